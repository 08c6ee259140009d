"""Checks of ids, names, numbers and texts, in messages of both directions and in settings."""

from __future__ import annotations

import math
import re
from functools import lru_cache
from typing import Any, Final

from gatewise.errors import InputError
from gatewise.prices import MAX_REQUEST_BYTES
from gatewise_edge.errors import WireError

#: Largest number of bytes of a name: every name is a level of a topic and a label of a metric.
MAX_NAME: Final = 64
#: Largest number of bytes of a message.
MAX_PAYLOAD: Final = MAX_REQUEST_BYTES

#: Separators and wildcards of topics (MQTT 3.1.1, section 4.7), and control characters.
_NOT_IN_A_LEVEL: Final = re.compile(r"[/+#\x00-\x1f\x7f-\x9f]")
#: Levels that stand where a device's id does: gw/v1/model/... and gw/v1/dead/...
_RESERVED_IDS: Final = frozenset({"model", "dead"})


def check_id(value: object) -> bytes:
    """Return a message's 16-byte id, or raise WireError."""
    if type(value) is not bytes or len(value) != 16:
        raise WireError("id", "a message's id must be 16 bytes")
    return value


def check_size(payload: bytes) -> None:
    """Refuse a message that is too large, by WireError."""
    if len(payload) > MAX_PAYLOAD:
        raise WireError(
            "size", f"a message of {len(payload)} bytes: the largest allowed is {MAX_PAYLOAD}"
        )


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


def check_level(what: str, value: str) -> str:
    """Return a topic level of 1 to 64 bytes without ``/ + #`` and controls, or raise WireError."""
    return _level(what, value) if type(value) is str else check_text(what, value, 1, MAX_NAME)


@lru_cache(maxsize=4096)  # the same names come in each message
def _level(what: str, value: str) -> str:
    check_text(what, value, 1, MAX_NAME)
    if _NOT_IN_A_LEVEL.search(value):
        raise WireError("name", f"{what} {value!r} holds '/', '+', '#' or a control character")
    return value


def check_device(device: str) -> str:
    """Return a device id: a topic level, not ``model`` and not ``dead``; or raise WireError."""
    check_level("device id", device)
    if device in _RESERVED_IDS:
        raise WireError("name", f"device id {device!r} is reserved")
    return device


def check_model(name: str, what: str = "model name") -> str:
    """Return a model's name or version: a topic level; or raise WireError."""
    return check_level(what, name)


def check_positive(what: str, value: Any) -> float:
    """Return a positive finite number, or raise InputError."""
    if not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
        raise InputError(f"{what} is {value!r}; it must be a positive number")
    return float(value)
