"""Dataclasses to JSON documents and back, with errors that name the wrong field.

A field's name in JSON is its own, or ``metadata["json"]``. A field that is None by default and None
is not written; properties named in the class attribute ``json_properties`` are. Keys that a class
has no field for are not read.
"""

from __future__ import annotations

import dataclasses
import math
import types
from collections.abc import Mapping
from functools import cache
from typing import Any, Union, get_args, get_origin, get_type_hints

from gatewise.console import plain
from gatewise.errors import InputError


def json_name(field: dataclasses.Field[Any]) -> str:
    """Name of a field in JSON."""
    name: str = field.metadata.get("json", field.name)
    return name


def to_document(value: Any) -> Any:
    """Turn a dataclass, and all that is in it, into what JSON can hold."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        found = {}
        for field in dataclasses.fields(value):
            part = getattr(value, field.name)
            if part is not None or field.default is not None:
                found[json_name(field)] = to_document(part)
        for name in getattr(value, "json_properties", ()):
            found[name] = to_document(getattr(value, name))
        return found
    if isinstance(value, Mapping):
        return {str(key): to_document(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [to_document(part) for part in value]
    return plain(value)


def from_document(kind: Any, value: Any, where: str = "") -> Any:
    """Read a value of a type from a JSON document."""
    origin = get_origin(kind)
    if kind is Any:
        return value
    if origin in (Union, types.UnionType):
        inner = next(arg for arg in get_args(kind) if arg is not types.NoneType)
        # A figure whose value is not known, as {"value": null, "low": null, "high": null}, is none.
        unknown = value is None or (isinstance(value, Mapping) and value.get("value", 0) is None)
        return None if unknown else from_document(inner, value, where)
    if origin is tuple:
        if not isinstance(value, list):
            raise _wrong(value, where, "a list")
        inner = get_args(kind)[0]
        return tuple(from_document(inner, part, f"{where}[{i}]") for i, part in enumerate(value))
    if origin is dict:
        if not isinstance(value, Mapping):
            raise _wrong(value, where, "an object")
        inner = get_args(kind)[1]
        return {key: from_document(inner, v, _inside(where, key)) for key, v in value.items()}
    if dataclasses.is_dataclass(kind):
        return _instance(kind, value, where)
    return _scalar(kind, value, where)


def _instance(kind: Any, value: Any, where: str) -> Any:
    if not isinstance(value, Mapping):
        raise _wrong(value, where, "an object")
    given = {}
    for field in dataclasses.fields(kind):
        name = json_name(field)
        if name in value:
            given[field.name] = from_document(
                _hints(kind)[field.name], value[name], _inside(where, name)
            )
        elif field.default is dataclasses.MISSING:
            raise InputError(f"{_inside(where, name)}: is missing")
    try:
        return kind(**given)
    except InputError as error:
        raise InputError(f"{where}: {error}" if where else str(error)) from None


def _scalar(kind: type, value: Any, where: str) -> Any:
    if kind in (int, float):
        if isinstance(value, bool) or not isinstance(value, kind if kind is int else (int, float)):
            raise _wrong(value, where, "a number" if kind is float else "a whole number")
        try:
            number = kind(value)
        except OverflowError:
            number = math.inf
        if not math.isfinite(number):
            raise InputError(f"{where}: is not a finite number")
        return number
    if not isinstance(value, kind):
        raise _wrong(value, where, {str: "a text", bool: "true or false"}.get(kind, kind.__name__))
    return value


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


def _inside(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name


def _wrong(value: Any, where: str, wanted: str) -> InputError:
    return InputError(f"{where or 'the document'}: is {value!r:.40}, not {wanted}")
