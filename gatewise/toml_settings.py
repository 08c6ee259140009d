"""TOML files of settings, read strictly: every key is known and every value is checked.

Errors are of class InputError and begin with the file and the key, `where`.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from gatewise.errors import InputError

__all__ = ["refuse_unknown", "take_number", "take_text", "toml_table"]


def toml_table(path: Path, what: str) -> dict[str, Any]:
    """Read a TOML file; `what` names its kind in errors."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{what} {path}: {error.strerror or error}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{what} {path}: {error}") from error


def refuse_unknown(table: Mapping[str, Any], known: Collection[str], where: str) -> None:
    """Refuse a table with a key that is not among `known`."""
    for key in table:
        if key not in known:
            raise InputError(f"{where}: unknown key {key!r}; there are {', '.join(known)}")


def take_number(
    value: object, where: str, *, positive: bool = False, infinite: bool = False
) -> float:
    """Check a number: at least 0 (or above it), and finite unless `infinite` may be."""
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        raise InputError(f"{where} is {value!r}, not a number")
    if value < 0 or (positive and value == 0):
        raise InputError(f"{where} is {value}, must be {'above' if positive else 'at least'} 0")
    if math.isinf(value) and not infinite:
        raise InputError(f"{where} is {value}, must be finite")
    return float(value)


def take_text(value: object, where: str) -> str:
    """Check a text that is not empty."""
    if not isinstance(value, str) or not value.strip():
        raise InputError(f"{where} is {value!r}, not a text")
    return value
