"""Checks of ids, names, numbers and texts, for messages and settings."""

from __future__ import annotations

import sys
from functools import lru_cache
from typing import Any, Final

from gatewise.errors import InputError
from gatewise.prices import MAX_REQUEST_BYTES
from gatewise_edge.errors import WireError
from gatewise_export.bundle.topic_levels import FORBIDDEN_CHARACTERS, MAX_LEVEL_BYTES

#: Largest size of a message in bytes: the lowest limit of common brokers.
MAX_PAYLOAD: Final = MAX_REQUEST_BYTES

#: Size of a message's id: 128 random bits, so that two devices never draw the same one.
_ID_BYTES: Final = 16
#: Ids that would make topics ambiguous, because of gw/v1/model/... and gw/v1/dead/...
_RESERVED_IDS: Final = frozenset({"model", "dead"})


def check_id(value: object) -> bytes:
    """Return the id of a message if it has 16 bytes, or raise WireError."""
    if type(value) is not bytes or len(value) != _ID_BYTES:
        raise WireError("id", f"a message's id must be {_ID_BYTES} bytes")
    return value


def check_size(payload: bytes) -> None:
    """Raise WireError if a message is too large."""
    if len(payload) > MAX_PAYLOAD:
        raise WireError(
            "size", f"a message of {len(payload)} bytes: the largest allowed is {MAX_PAYLOAD}"
        )


def check_int(field_name: str, value: object, smallest: int, largest: int) -> int:
    """Return an integer between `smallest` and `largest`, or raise WireError."""
    if type(value) is not int:
        raise WireError("type", f"{field_name} must be an integer, not {type(value).__name__}")
    if not smallest <= value <= largest:
        raise WireError("range", f"{field_name} must lie in {smallest} to {largest}")
    return value


def check_text(field_name: str, value: object, min_bytes: int, max_bytes: int) -> str:
    """Return a text of `min_bytes` to `max_bytes` bytes, or raise WireError."""
    if type(value) is not str:
        raise WireError("type", f"{field_name} must be a text, not {type(value).__name__}")
    try:
        n_bytes = len(value.encode("utf-8"))
    except UnicodeEncodeError:
        raise WireError("name", f"{field_name} is not valid Unicode") from None
    if not min_bytes <= n_bytes <= max_bytes:
        raise WireError(
            "range", f"{field_name} must have {min_bytes} to {max_bytes} bytes, not {n_bytes}"
        )
    return value


def check_level(field_name: str, value: str) -> str:
    """Return a topic level of 1 to 64 bytes without ``/ + #`` and control characters.

    Raises WireError.
    """
    if type(value) is not str:  # it may not be hashable, which the cache requires
        return check_text(field_name, value, 1, MAX_LEVEL_BYTES)  # raises
    return _check_level_cached(field_name, value)


@lru_cache(maxsize=4096)  # most messages have the same names
def _check_level_cached(field_name: str, value: str) -> str:
    check_text(field_name, value, 1, MAX_LEVEL_BYTES)
    if FORBIDDEN_CHARACTERS.search(value):
        raise WireError(
            "name", f"{field_name} {value!r} contains '/', '+', '#' or a control character"
        )
    return value


def check_device(device: str) -> str:
    """Return a device id, which is a topic level but not a reserved one, or raise WireError."""
    check_level("device id", device)
    if device in _RESERVED_IDS:
        raise WireError("name", f"device id {device!r} is reserved")
    return device


def check_positive(field_name: str, value: Any) -> float:
    """Return a positive finite number as a float, or raise InputError."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 < value <= sys.float_info.max:  # NaN fails both comparisons
        raise InputError(f"{field_name} is {value!r}; it must be a positive number")
    return float(value)
