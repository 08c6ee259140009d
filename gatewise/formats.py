"""Formatters for counts, shares, bytes, times, energies and money, and readers of such texts.

An unknown value, None or NaN, becomes ``n/a``. Functions whose names begin with ``read_`` parse
texts such as ``30s``, ``12:00``, ``6/min`` and ``64KB``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Final

from gatewise.errors import InputError

#: Function that formats a value, or returns ``n/a`` for an unknown value.
Format = Callable[[float | None], str]

_UNKNOWN: Final = "n/a"

DAY: Final = 86_400.0  # seconds
#: Seconds of each unit of time, by the names that people write.
_UNIT_SECONDS: Final = {
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
#: Largest share that a sum of floats may give instead of 0.
_ROUNDING_ERROR: Final = 1e-12
_CLOCK: Final = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2}))?")


def number(value: float | None) -> str:
    """Format a number with three significant digits and thousands separators.

    >>> number(23.456), number(1234567.0), number(64.0), number(None)
    ('23.5', '1,234,567', '64', 'n/a')
    """
    if value is None or math.isnan(value):
        return _UNKNOWN
    if abs(value) >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.3g}"


def count(value: float | None) -> str:
    """Format a whole number, with the words million and billion for large numbers.

    >>> count(1234.4), count(1.44e9), count(2.6e6)
    ('1,234', '1.44 billion', '2.6 million')
    """
    if value is None or math.isnan(value):
        return _UNKNOWN
    # values from here on round up to one unit
    if value >= 0.9995e9:
        return f"{number(value / 1e9)} billion"
    return f"{number(value / 1e6)} million" if value >= 999_999.5 else f"{value:,.0f}"


def plural(quantity: float, noun: str) -> str:
    """Format a quantity with its noun in the singular or plural.

    >>> plural(1, "device"), plural(1_000, "device")
    ('1 device', '1,000 devices')
    """
    return f"{quantity:,.0f} {noun}{'s' if quantity != 1 else ''}"


def percent(share: float | None, digits: int = 1) -> str:
    """Format a share as a percentage; a tiny share keeps one significant digit.

    >>> percent(0.98765), percent(1.0), percent(0.98765, 2), percent(0.000216), percent(None)
    ('98.8 %', '100 %', '98.77 %', '0.02 %', 'n/a')
    >>> percent(8.3e-7), percent(8e-19)  # the latter is a rounding error
    ('0.00008 %', '0 %')
    """
    if share is None or math.isnan(share):
        return _UNKNOWN
    if abs(share) < _ROUNDING_ERROR:
        return "0 %"
    if abs(share) < 0.1 ** (digits + 2):
        return f"{100 * share:.{-math.floor(math.log10(100 * abs(share)))}f} %"
    return f"{100 * share:.{0 if share in (0, 1) else digits}f} %"


def byte_size(size: float | None) -> str:
    """Format an amount of bytes in B, kB, MB or GB (powers of 1000).

    >>> byte_size(640), byte_size(4096), byte_size(1.5e6), byte_size(2e9)
    ('640 B', '4.1 kB', '1.50 MB', '2.00 GB')
    """
    if size is None or math.isnan(size):
        return _UNKNOWN
    if size < 1e3:
        return f"{size:.0f} B"
    if size < 1e6:
        return f"{size / 1e3:.1f} kB"
    return f"{size / 1e6:.2f} MB" if size < 1e9 else f"{size / 1e9:.2f} GB"


def millis(value: float | None) -> str:
    """Format a time in milliseconds.

    >>> millis(0.0731), millis(12.34), millis(1234.5), millis(3e-5)
    ('0.073 ms', '12.3 ms', '1,234 ms', '0 ms')
    """
    if value is None or math.isnan(value):
        return _UNKNOWN
    if 5e-4 < value < 1:  # times below half a microsecond are shown as 0
        return f"{value:.2g} ms"
    return "0 ms" if value < 1 else f"{number(value)} ms"


def duration(seconds: float | None) -> str:
    """Format a duration in seconds, with a suitable unit.

    >>> duration(0.04), duration(45), duration(600), duration(5400), duration(604_800)
    ('0.04 s', '45 s', '10 min', '1.5 h', '7 days')
    """
    if seconds is None or math.isnan(seconds):
        return _UNKNOWN
    for unit, size in (("day", 86_400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= size:
            amount = number(seconds / size)
            return f"{amount} {unit}{'s' if unit == 'day' and amount != '1' else ''}"
    return f"{seconds:.3g} s"


def joules(value: float | None) -> str:
    """Format an energy in joules as kJ, J, mJ or uJ.

    >>> joules(12.34), joules(0.0123), joules(4.5e-6), joules(0.0), joules(4_031.0)
    ('12.3 J', '12.3 mJ', '4.5 uJ', '0 J', '4.03 kJ')
    """
    if value is None or math.isnan(value):
        return _UNKNOWN
    for unit, size in (("kJ", 1e3), ("J", 1.0), ("mJ", 1e-3)):
        if value >= 0.9995 * size:  # values from here on round up to one unit in three digits
            return f"{number(value / size)} {unit}"
    return f"{number(value / 1e-6)} uJ" if value else "0 J"


def money(value: float | None, currency: str) -> str:
    """Format an amount of money.

    >>> money(1234.5, "EUR"), money(0.0123, "EUR")
    ('1,234 EUR', '0.0123 EUR')
    """
    text = number(value)
    return text if text == _UNKNOWN else f"{text} {currency}"


def interval(low: float, high: float, format_value: Format) -> str:
    """Format the ends of an interval; return an empty text if both look equal after rounding.

    >>> interval(0.4, 0.6, percent), interval(0.9, 1.2, joules), interval(1.0, 1.0001, number)
    ('40.0 to 60.0 %', '900 mJ to 1.2 J', '')
    """
    low_text = format_value(low)
    high_text = format_value(high)
    if low_text == high_text:
        return ""
    # leave out the first unit if both are the same, as in "40.0 to 60.0 %"
    number_text, _, unit = low_text.partition(" ")
    return f"{number_text if high_text.endswith(f' {unit}') else low_text} to {high_text}"


def listed(texts: Sequence[str]) -> str:
    """Join texts by commas, and the last two by "and".

    >>> listed(["a"]), listed(["a", "b"]), listed(["a", "b", "c"])
    ('a', 'a and b', 'a, b and c')
    """
    if len(texts) < 2:
        return "".join(texts)
    return f"{', '.join(texts[:-1])} and {texts[-1]}"


def threshold(value: float | None, digits: int = 4) -> str:
    """Format the threshold of a stage.

    With the threshold None a stage never stops, and with the lowest float32 number it always stops.

    >>> threshold(0.53125), threshold(None), threshold(-3.4028234663852886e38)
    ('0.5312', 'never', 'always')
    """
    if value is None or value == math.inf:
        return "never"
    return "always" if value < -3e38 else f"{value:.{digits}g}"


def read_number(text: str, subject: str) -> float:
    """Read a finite number; an InputError names it by `subject`."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise InputError(f"{subject}: {text!r} is not a number")
    return value


def read_span(text: str, subject: str) -> float:
    """Read a duration such as ``500ms``, ``30s``, ``10min``, ``2h``, ``1day``, in seconds.

    >>> read_span("1.5min", "period")
    90.0
    """
    match = _SPAN.fullmatch(text.strip())
    if match is None or match[2] not in _UNIT_SECONDS:
        raise InputError(
            f"{subject}: {text!r} is not a span of time; write it as 500ms, 30s, 10min, 2h"
        )
    return float(match[1]) * _UNIT_SECONDS[match[2]]


def read_rate(text: str, subject: str) -> float:
    """Read a rate above 0 such as ``1/min``, ``0.5/s`` or ``200/day``, per second.

    >>> read_rate("30/min", "rate")
    0.5
    """
    amount, slash, unit = text.strip().partition("/")
    if not slash or unit not in _UNIT_SECONDS:
        raise InputError(f"{subject}: {text!r} is not a rate; write it as 1/min, 0.5/s, 200/day")
    rate = read_number(amount, subject) / _UNIT_SECONDS[unit]
    if not rate > 0:
        raise InputError(f"{subject}: {text!r} must be above 0")
    return rate


def read_clock(text: str, subject: str) -> float:
    """Read a time of day, ``HH:MM`` or ``HH:MM:SS`` up to ``24:00``, in seconds since midnight.

    >>> read_clock("12:30", "peak")
    45000.0
    """
    match = _CLOCK.fullmatch(text.strip())
    if match is not None:
        hours = int(match[1])
        minutes = int(match[2])
        seconds = int(match[3] or 0)
        time_of_day = 3600.0 * hours + 60.0 * minutes + seconds
        if minutes < 60 and seconds < 60 and time_of_day <= DAY:
            return time_of_day
    raise InputError(f"{subject}: {text!r} is not a time of day; write it as 14:00")


def read_bytes(text: str, subject: str) -> int:
    """Read an amount of bytes; the units KB, MB and GB are powers of 1024.

    >>> [read_bytes(text, "keep_bytes") for text in ("900", "64KB", "1.5 MiB")]
    [900, 65536, 1572864]
    """
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) ?(?:([KMG])I?)?B?", text.strip().upper())
    unit = {None: 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    size = 0 if match is None else round(float(match[1]) * unit[match[2]])
    if size < 1:
        raise InputError(f"{subject} {text}: give a number of bytes, such as 65536, 64KB or 1MB")
    return size
