"""Strict reader of untrusted JSON: each value is checked, and errors name its place.

An object may be described by a dataclass: its types say what the values of its keys must be
(:meth:`JsonField.record`), and :func:`write_record` writes it.
"""

from __future__ import annotations

import json
import math
import re
import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from types import NoneType
from typing import Any, Final, NoReturn, TypeVar

import msgspec

from gatewise.documents import DocumentError, convert, plain_values
from gatewise.errors import ManifestError

MOST_CONTAINERS = 200_000
"""Lists and objects of a document."""

_FILE_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}", re.ASCII)

Choice = TypeVar("Choice", bound=str)
Record = TypeVar("Record")

NEEDED: Final = {"json": "needed"}
"""Marks a field of a dataclass with a default: its key may not be missing nevertheless."""
WRITTEN: Final = {"json": "written"}
"""Marks a field whose key may be missing, but is always written; others hold a default then."""
NO_KEY: Final = {"json": "no key"}
"""Marks a field that documents do not have."""


@dataclass(frozen=True)
class JsonField:
    """A value in a JSON document, and where it stands.

    Every reader below returns the plain value or raises :class:`ManifestError`.

    >>> document = JsonField.parse('{"stages": [{"outputs": 10}]}')
    >>> stage = document["stages"].items(1, 64)[0]
    >>> stage.where, stage["outputs"].integer(1, 100)
    ('stages[0]', 10)
    """

    value: Any
    where: str = "the document"

    @classmethod
    def parse(cls, text: str | bytes) -> JsonField:
        """Parse JSON: no NaN or infinity, no key twice in one object, no half of a character."""
        try:
            _bounded(text)
            if isinstance(text, bytes):
                text = text.decode("utf-8")
            value = json.loads(text, parse_constant=_refuse, object_pairs_hook=_unique)
            if "\\u" in text:
                json.dumps(value, ensure_ascii=False).encode()
        except (ValueError, RecursionError) as error:
            raise ManifestError("the document", f"not readable JSON: {error}") from error
        return cls(value)

    def fail(self, why: str) -> NoReturn:
        """Raise an error that names this field."""
        raise ManifestError(self.where, why)

    # -- containers ------------------------------------------------------------------------

    def keys(self, needed: Sequence[str], optional: Sequence[str] = ()) -> None:
        """Demand an object with exactly these keys."""
        if not isinstance(self.value, dict):
            self.fail(f"must be an object, not {_kind(self.value)}")
        missing = [k for k in needed if k not in self.value]
        if missing:
            self.fail(f"lacks {missing[0]!r}")
        unknown = [k for k in self.value if k not in needed and k not in optional]
        if unknown:
            self.fail(f"has an unknown key {unknown[0][:64]!r}")

    def __getitem__(self, key: str) -> JsonField:
        if not isinstance(self.value, dict) or key not in self.value:
            self.fail(f"lacks {key!r}")
        return self._child(key)

    def get(self, key: str) -> JsonField | None:
        """The field of an optional key; None where it is missing or null."""
        if not isinstance(self.value, dict) or self.value.get(key) is None:
            return None
        return self._child(key)

    def entries(self, most: int) -> dict[str, JsonField]:
        """The fields of an object with any keys."""
        if not isinstance(self.value, dict):
            self.fail(f"must be an object, not {_kind(self.value)}")
        if len(self.value) > most:
            self.fail(f"has {len(self.value)} entries, more than {most}")
        return {key: self._child(key) for key in self.value}

    def items(self, least: int, most: int) -> list[JsonField]:
        """The fields of a list of bounded length."""
        if not isinstance(self.value, list):
            self.fail(f"must be a list, not {_kind(self.value)}")
        if not least <= len(self.value) <= most:
            self.fail(f"must have {least} to {most} entries, not {len(self.value)}")
        return [JsonField(v, f"{self.where}[{i}]") for i, v in enumerate(self.value)]

    def _child(self, key: str) -> JsonField:
        prefix = "" if self.where == "the document" else f"{self.where}."
        return JsonField(self.value[key], prefix + key)

    def unique(self, values: Iterable[Any], what: str) -> None:
        """Demand that no value that was read here stands twice."""
        seen = set()
        for value in values:
            if value in seen:
                self.fail(f"{what} {value!r} stands twice")
            seen.add(value)

    # -- objects that a dataclass describes ----------------------------------------------------

    def record(self, cls: type[Record], *others: str) -> Record:
        """An object with the fields of a dataclass, and `others`, as its keys."""
        return cls(**self.values(cls, others=others))

    def convert(self, cls: type[Record]) -> Record:
        """An object that a msgspec type describes."""
        try:
            return convert(self.value, cls, "", "")
        except DocumentError as error:
            prefix = "" if self.where == "the document" else self.where
            separator = "." if prefix and error.field[:1] not in ("", "[") else ""
            raise ManifestError(f"{prefix}{separator}{error.field}", error.why) from None

    def values(
        self, cls: type, apart: Collection[str] = (), others: Collection[str] = ()
    ) -> dict[str, Any]:
        """Values of such an object by field, without those that are read `apart`.

        A field that may be missing is left out where it is missing or null.
        """
        entries = _entries(cls)
        needed = [e.key for e in entries if e.needed]
        self.keys([*others, *needed], [e.key for e in entries if not e.needed])
        return {
            e.name: e.read(self[e.key])
            for e in entries
            if e.name not in apart and (e.needed or self.get(e.key) is not None)
        }

    # -- plain values ----------------------------------------------------------------------

    def text(self, longest: int = 256) -> str:
        """Text of 1 to `longest` UTF-8 bytes, all of which can be printed."""
        value = self.value
        if not isinstance(value, str):
            self.fail(f"must be text, not {_kind(value)}")
        if (trouble := text_trouble(value, longest)) is not None:
            self.fail(trouble)
        return value

    def matching(self, pattern: re.Pattern[str], wanted: str) -> str:
        """Text that matches a pattern as a whole."""
        text = self.text()
        if pattern.fullmatch(text) is None:
            self.fail(f"{text!r} is not {wanted}")
        return text

    def file_name(self) -> str:
        """Name of a file, which leads to no other folder."""
        return self.matching(_FILE_NAME, "a plain file name: letters, digits, . _ -")

    def choice(self, allowed: Sequence[Choice]) -> Choice:
        """One of a few words."""
        found = next((word for word in allowed if word == self.value), None)
        if found is None:
            self.fail(f"must be {' or '.join(map(repr, allowed))}, not {_short(self.value)}")
        return found

    def integer(self, least: int, most: int) -> int:
        """A whole number."""
        value = self.value
        if not isinstance(value, int) or isinstance(value, bool):
            self.fail(f"must be a whole number, not {_short(value)}")
        if not least <= value <= most:
            self.fail(f"must be {least} to {most}, not {_short(value)}")
        return value

    def number(self, least: float, most: float) -> float:
        """A finite number."""
        value = self.value
        if not isinstance(value, int | float) or isinstance(value, bool):
            self.fail(f"must be a number, not {_short(value)}")
        if not (least <= value <= most and math.isfinite(value)):
            self.fail(f"must be {least:g} to {most:g}, not {_short(value)}")
        return float(value)


# -- readers, by type ------------------------------------------------------------------------

Reader = Callable[[JsonField], Any]


def text_trouble(text: str, longest: int = 256) -> str | None:
    """Find what keeps a text out of a document, if anything does."""
    try:
        size = len(text.encode("utf-8"))
    except UnicodeEncodeError:
        return "is not valid Unicode"
    if not 1 <= size <= longest:
        return f"must have 1 to {longest} bytes, not {size}"
    if not text.isprintable():
        return f"{text!r} holds a character that cannot be printed"
    return None


def whole(least: int, most: int) -> Reader:
    """Make a reader of whole numbers, for ``Annotated[int, whole(...)]``."""
    return lambda field: field.integer(least, most)


def real(least: float, most: float) -> Reader:
    """Make a reader of numbers, for ``Annotated[float, real(...)]``."""
    return lambda field: field.number(least, most)


def write_record(value: Any) -> Any:
    """Make plain values of a dataclass, without fields that hold the default, unless marked."""
    if isinstance(value, tuple):
        return [write_record(item) for item in value]
    if isinstance(value, Mapping):
        return {key: write_record(item) for key, item in value.items()}
    if isinstance(value, msgspec.Struct):
        return plain_values(value)
    if not is_dataclass(value) or isinstance(value, type):
        return value
    pairs = [(entry, getattr(value, entry.name)) for entry in _entries(type(value))]
    return {e.key: write_record(v) for e, v in pairs if e.written or v != e.default}


class _Entry(typing.NamedTuple):
    """A key of an object, and the field of a dataclass that it is of."""

    key: str
    name: str
    needed: bool
    written: bool
    default: Any
    read: Reader


@cache
def _entries(cls: type) -> tuple[_Entry, ...]:
    hints = typing.get_type_hints(cls, include_extras=True)
    found = []
    for f in fields(cls):
        if not f.init or f.metadata == NO_KEY:
            continue
        mark = f.metadata.get("json", "needed" if f.default is MISSING else "")
        key, read = f.metadata.get("key", f.name), _reader(hints[f.name])
        found.append(_Entry(key, f.name, mark == "needed", bool(mark), f.default, read))
    return tuple(found)


def _reader(hint: Any) -> Reader:
    """Reader of a type's values; types without one are read apart."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated and isinstance(args[1], msgspec.Meta):
        return lambda field: field.convert(hint)
    if origin is typing.Annotated and callable(args[1]):
        made: Reader = args[1]
        return made
    if origin is typing.Annotated:  # a tuple of any length, and the lengths that it may have
        item, lengths = _reader(typing.get_args(args[0])[0]), args[1]
        return lambda field: tuple(item(i) for i in field.items(*lengths))
    if origin is typing.Literal:
        return lambda field: field.choice(args)
    if NoneType in args:
        (kind,) = (_reader(a) for a in args if a is not NoneType)
        return lambda field: None if field.value is None else kind(field)
    if origin is tuple and Ellipsis not in args:
        parts = [_reader(a) for a in args]
        return lambda field: tuple(
            read(i) for read, i in zip(parts, field.items(len(parts), len(parts)), strict=True)
        )
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return lambda field: field.convert(hint)
    return lambda field: field.record(hint)


def _bounded(text: str | bytes) -> None:
    """Refuse what would take many times its size in memory: an empty list takes 30 times."""
    if isinstance(text, str):
        found = text.count("[") + text.count("{")
    else:
        found = text.count(b"[") + text.count(b"{")
    if found > MOST_CONTAINERS:
        raise ValueError(f"{found} lists and objects, more than {MOST_CONTAINERS}")


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "text", bool: "true or false"}
    return "null" if value is None else names.get(type(value), "a number")


def _short(value: Any) -> str:
    if isinstance(value, dict | list):
        return _kind(value)
    text = json.dumps(value)
    return text if len(text) <= 64 else text[:60] + "..."


def _refuse(word: str) -> NoReturn:
    raise ValueError(f"{word} is not JSON")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        keys = [k for k, _ in pairs]
        double = next(k for k in keys if keys.count(k) > 1)
        raise ValueError(f"key {double[:64]!r} stands twice")
    return found
