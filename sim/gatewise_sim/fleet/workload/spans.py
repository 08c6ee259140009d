"""Spans of time, times of day and rates, as people write them: ``30s``, ``12:00``, ``6/min``."""

from __future__ import annotations

import math
import re
from typing import Final

from gatewise.errors import InputError

DAY: Final = 86_400.0  # seconds
_UNITS: Final = {
    "ms": 1e-3,
    "s": 1.0,
    "sec": 1.0,
    "m": 60.0,
    "min": 60.0,
    "h": 3600.0,
    "hour": 3600.0,
    "d": DAY,
    "day": DAY,
}
_SPAN: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]+)")
_CLOCK: Final = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2}))?")


def read_number(text: str, what: str) -> float:
    """Read a finite number; `what` names it in the InputError, as in the other readers."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise InputError(f"{what}: {text!r} is not a number")
    return value


def read_span(text: str, what: str) -> float:
    """Read a span of time such as ``500ms``, ``30s``, ``10min``, ``2h``, ``1day``, in seconds.

    >>> read_span("1.5min", "period")
    90.0
    """
    match = _SPAN.fullmatch(text.strip())
    if match is None or match[2] not in _UNITS:
        raise InputError(
            f"{what}: {text!r} is not a span of time; write it as 500ms, 30s, 10min, 2h"
        )
    return float(match[1]) * _UNITS[match[2]]


def read_rate(text: str, what: str) -> float:
    """Read a rate above 0 such as ``1/min``, ``0.5/s`` or ``200/day``, per second.

    >>> read_rate("30/min", "rate")
    0.5
    """
    number, slash, unit = text.strip().partition("/")
    if not slash or unit not in _UNITS:
        raise InputError(f"{what}: {text!r} is not a rate; write it as 1/min, 0.5/s, 200/day")
    rate = read_number(number, what) / _UNITS[unit]
    if not rate > 0:
        raise InputError(f"{what}: {text!r} must be above 0")
    return rate


def read_clock(text: str, what: str) -> float:
    """Read a time of day, ``HH:MM`` or ``HH:MM:SS`` up to ``24:00``, in seconds since midnight.

    >>> read_clock("12:30", "peak")
    45000.0
    """
    match = _CLOCK.fullmatch(text.strip())
    if match is not None:
        hours, minutes, seconds = int(match[1]), int(match[2]), int(match[3] or 0)
        at = 3600.0 * hours + 60.0 * minutes + seconds
        if minutes < 60 and seconds < 60 and at <= DAY:
            return at
    raise InputError(f"{what}: {text!r} is not a time of day; write it as 14:00")
