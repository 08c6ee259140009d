"""The checks that messages, in both directions, names and settings go through."""

from __future__ import annotations

import math
from typing import Any, Final

from gatewise.errors import InputError
from gatewise_edge.errors import WireError

__all__ = ["MAX_NAME", "check_id", "check_int", "check_positive", "check_text"]

MAX_NAME: Final = 64


def check_id(value: object) -> bytes:
    """Return a message's 16-byte id, or raise WireError."""
    if type(value) is not bytes or len(value) != 16:
        raise WireError("id", "a message's id must be 16 bytes")
    return value


def check_int(what: str, value: object, low: int, high: int) -> int:
    """Return an integer between `low` and `high`, or raise WireError."""
    if type(value) is not int:
        raise WireError("type", f"{what} must be an integer, not {type(value).__name__}")
    if not low <= value <= high:
        raise WireError("range", f"{what} must lie in {low} to {high}")
    return value


def check_text(what: str, value: object, shortest: int, longest: int) -> str:
    """Return a text within its limits of length, or raise WireError."""
    if type(value) is not str:
        raise WireError("type", f"{what} must be a text, not {type(value).__name__}")
    try:
        size = len(value.encode("utf-8"))
    except UnicodeEncodeError:
        raise WireError("name", f"{what} is not valid Unicode") from None
    if not shortest <= size <= longest:
        raise WireError("range", f"{what} must have {shortest} to {longest} bytes, not {size}")
    return value


def check_positive(what: str, value: Any) -> float:
    """Return a positive finite number, or raise InputError."""
    if not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
        raise InputError(f"{what} is {value!r}; it must be a positive number")
    return float(value)
