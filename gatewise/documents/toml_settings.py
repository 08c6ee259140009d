"""Files of settings, read strictly: every key is known and every value is checked.

Errors are of class InputError and begin with the file and the key.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self, TypeVar

from gatewise.errors import InputError

_T = TypeVar("_T")
_MOST_NAMED = 20  # keys in an error


class SettingsTable:
    """A table of settings, read key by key; `where` names it in errors.

    `values`: what should be a table. `known`: keys that it may have. `inner`: whether it is a table
    within a table. Raises InputError if it is none, or has a key that is not known. All methods
    raise it for a value that cannot be, and for a key that is missing and has no default.
    """

    def __init__(
        self, values: object, where: str, known: Collection[str], *, inner: bool = False
    ) -> None:
        if not isinstance(values, dict):
            raise InputError(f"{where} is {values!r}, not a table")
        for key in values:
            if key not in known:
                there = ", ".join(list(known)[:_MOST_NAMED])
                raise InputError(f"{where}: unknown key {key!r}; there are {there}")
        self.values: dict[str, Any] = values
        self.where = where
        self._separator = "." if inner else ": "

    @classmethod
    def read(
        cls,
        path: Path,
        what: str,
        known: Collection[str],
        *,
        parse: Callable[[str], object] = tomllib.loads,
    ) -> Self:
        """Read a TOML file, or one that `parse` reads; `what` names its kind in errors."""
        where = f"{what} {path}"
        try:
            document = parse(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise InputError(f"{where}: {getattr(error, 'strerror', None) or error}") from error
        if not isinstance(document, dict):
            raise InputError(f"{where}: holds no table")
        return cls(document, where, known)

    def place(self, key: str) -> str:
        """Name of a key in errors."""
        return f"{self.where}{self._separator}{key}"

    def get(self, key: str, default: object = None) -> Any:
        """Get a value that is not checked; None as the default: the key must be there."""
        value = self.values.get(key, default)
        if value is None:
            raise InputError(f"{self.place(key)} is missing")
        return value

    def number(
        self,
        key: str,
        default: float | None = None,
        *,
        positive: bool = False,
        infinite: bool = False,
    ) -> float:
        """Get a number, within the limits of :func:`take_number`."""
        value = self.get(key, default)
        return take_number(value, self.place(key), positive=positive, infinite=infinite)

    def numbers(self, keys: Collection[str], *, infinite: bool = False) -> dict[str, float]:
        """Get those of several numbers that are given."""
        return {key: self.number(key, infinite=infinite) for key in keys if key in self.values}

    def number_list(self, key: str, length: int | None, of: str) -> list[float]:
        """Get a list of numbers at least 0, as many as there are `of` something (if known)."""
        found = self.get(key)
        if not isinstance(found, list) or not found:
            raise InputError(f"{self.place(key)} is {found!r}, not a list of numbers")
        if length is not None and len(found) != length:
            raise InputError(f"{self.place(key)} has {len(found)} figures, {length} {of}")
        return [take_number(value, f"{self.place(key)}[{i}]") for i, value in enumerate(found)]

    def text(self, key: str, default: str | None = None) -> str:
        """Get a text that is not empty."""
        return take_text(self.get(key, default), self.place(key))

    def choice(self, key: str, options: Mapping[str, _T], default: _T | None = None) -> _T:
        """Get the option that a key names."""
        if default is not None and key not in self.values:
            return default
        name = self.get(key)
        if not isinstance(name, str) or name not in options:
            raise InputError(f"{self.place(key)} is {name!r}; choose one of {', '.join(options)}")
        return options[name]

    def table(self, key: str, known: Collection[str]) -> SettingsTable:
        """Get a table within this one."""
        return SettingsTable(self.get(key), self.place(key), known, inner=True)

    @contextmanager
    def named_in_errors(self, key: str | None = None) -> Iterator[None]:
        """Put the name of the file, or of a key in it, before errors of what is made of it."""
        try:
            yield
        except InputError as error:
            raise InputError(f"{self.place(key) if key else self.where}: {error}") from None


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
