"""Strict decoding, encoding and JSON Schemas of JSON and TOML documents.

A record is a subclass of :class:`Record`. The types of its fields state the bounds of values. Rules
that involve several fields are in ``__post_init__`` or in a function that reads the document.

>>> class Stage(Record):
...     kind: Text
...     inputs: Annotated[tuple[int, ...], Meta(min_length=1, max_length=65535)]
>>> decode_json(b'{"kind": "trees", "inputs": [0, 3]}', Stage, "stage.json")
Stage(kind='trees', inputs=(0, 3))
>>> decode_json(b'{"kind": "trees", "inputs": [0, "x"]}', Stage, "stage.json")
Traceback (most recent call last):
    ...
gatewise.documents.DocumentError: stage.json: inputs[1]: must be a whole number, not "x"
"""

from __future__ import annotations

import json
import re
import tomllib
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Final, NoReturn, TypeVar

import msgspec
from msgspec import Meta as Meta

from gatewise.errors import InputError

T = TypeVar("T")

#: Largest number in a document, so that sums of many numbers stay finite.
MAX_NUMBER: Final = 1e300

#: Largest number of lists and objects in a document, so that its values fit into memory.
MAX_CONTAINERS: Final = 200_000

#: A number that is neither NaN nor infinite.
Finite = Annotated[float, Meta(ge=-MAX_NUMBER, le=MAX_NUMBER)]
#: A number that is not negative, such as a price or a time.
Amount = Annotated[float, Meta(ge=0.0, le=MAX_NUMBER)]
#: A number above 0, such as a rate.
Positive = Annotated[float, Meta(gt=0.0, le=MAX_NUMBER)]
#: A probability or a fraction.
Share = Annotated[float, Meta(ge=0.0, le=1.0)]
#: Pattern for the end of a text. "$" would also match before a final line break.
END: Final = r"(?![\s\S])"
#: Control and format characters, and unusual spaces.
_UNPRINTABLE: Final = (
    r"\x00-\x1f\x7f-\xa0\xad\u0600-\u0605\u061c\u06dd\u070f\u1680\u180e\u2000-\u200f\u2028-\u202f"
    r"\u205f-\u206f\u3000\ufeff\ufff9-\ufffb"
)
Text = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=256,
        pattern=f"^[^{_UNPRINTABLE}]*{END}",
        description="text without characters that cannot be printed",
    ),
]
#: Name of a file without a folder.
FileName = Annotated[
    str,
    Meta(
        pattern=rf"^[A-Za-z0-9][A-Za-z0-9_.\-]{{0,99}}{END}",
        description="a plain file name: letters, digits, . _ -",
    ),
]


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base class of records; :func:`encode_json` omits fields that equal their default."""


class DocumentError(InputError):
    """Invalid document; `field`, such as ``stages[0].kind``, is the part that is wrong."""

    def __init__(self, file: str, field: str, problem: str) -> None:
        super().__init__(": ".join(part for part in (file, field, problem) if part))
        self.file = file
        self.field = field
        self.problem = problem


def decode_json(content: bytes, record_type: type[T], file: str) -> T:
    """Decode JSON into a record.

    Raises DocumentError, which names the document by `file`, for unknown or repeated keys, NaN,
    infinity, and values outside the bounds.
    """
    # count lists and objects, because an empty list takes 30 times as much memory as its text
    n_containers = content.count(b"[") + content.count(b"{")
    if n_containers > MAX_CONTAINERS:
        problem = f"not readable JSON: {n_containers} lists and objects, more than {MAX_CONTAINERS}"
        raise DocumentError(file, "", problem)
    try:
        record: T = _make_decoder(record_type).decode(content)  # type: ignore[arg-type]
    except msgspec.ValidationError as error:
        _raise_document_error(error, _parse_json(content, file), record_type, file)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DocumentError(file, "", f"not readable JSON: {error}") from None
    # msgspec accepts repeated keys, of which one reader may use the first and another the last
    _parse_json(content, file)
    return record


def read_toml(path: str | Path, record_type: type[T], kind: str = "") -> T:
    """Read a TOML file into a record; errors contain its `kind`, such as ``costs``."""
    file = f"{kind} file {path}" if kind else str(path)
    return convert(parse_toml(path, file), record_type, file)


def parse_toml(path: str | Path, file: str) -> dict[str, Any]:
    """Parse a TOML file, which may begin with a byte order mark.

    Raises DocumentError, which names the document by `file`.
    """
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8-sig"))
    except (OSError, ValueError) as error:
        problem = getattr(error, "strerror", None) or str(error)
        raise DocumentError(file, "", problem) from error


def convert(value: object, record_type: type[T] | Any, file: str = "", field: str = "") -> T:
    """Convert plain values to a type.

    Raises DocumentError, which names the document by `file` and the value by `field`.
    """
    try:
        record: T = msgspec.convert(value, record_type, dec_hook=_decode_path)
    except msgspec.ValidationError as error:
        _raise_document_error(error, value, record_type, file, field)
    return record


def encode_json(value: object, *, indent: int = 0) -> bytes:
    """Encode a record as JSON, without the fields that equal their default."""
    content = msgspec.json.encode(plain_values(value), enc_hook=_convert_leaf)
    return msgspec.json.format(content, indent=indent) + b"\n" if indent else content


def _convert_leaf(value: Any) -> Any:
    """Convert a numpy scalar to a Python number, and another value, such as a path, to text."""
    return value.item() if hasattr(value, "item") else str(value)


def plain_values(value: object) -> Any:
    """Convert a record to dicts and lists, without the fields that equal their default."""
    if isinstance(value, msgspec.Struct):
        config = value.__struct_config__
        value_of_field = {} if config.tag is None else {str(config.tag_field): config.tag}
        for field in msgspec.structs.fields(value):
            field_value = getattr(value, field.name)
            default = field.default
            if field.default_factory is not msgspec.NODEFAULT:
                default = field.default_factory()
            # compare here, because msgspec's omit_defaults compares by identity
            if field_value != default:
                value_of_field[field.encode_name] = plain_values(field_value)
        return value_of_field
    if isinstance(value, dict):
        return {key: plain_values(entry) for key, entry in value.items()}
    if isinstance(value, set | frozenset):
        return sorted(value)
    return (
        [plain_values(element) for element in value] if isinstance(value, list | tuple) else value
    )


def json_schema(record_type: type, title: str) -> bytes:
    """Make the JSON Schema of a record."""
    schema = msgspec.json.schema(record_type)
    schema_header = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": title}
    return msgspec.json.format(msgspec.json.encode(schema_header | schema), indent=2) + b"\n"


@cache
def _make_decoder(record_type: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(record_type, dec_hook=_decode_path)


def unique_json(text: bytes | str) -> Any:
    """Parse JSON; InputError for a repeated key, ValueError for malformed JSON."""
    return json.loads(text, object_pairs_hook=_check_unique_keys)


def _parse_json(content: bytes, file: str) -> Any:
    try:
        return unique_json(content)
    except (ValueError, RecursionError) as error:
        raise DocumentError(file, "", f"not readable JSON: {error}") from None


def _decode_path(target_type: type, value: Any) -> Any:
    if target_type is not Path:
        raise NotImplementedError(f"documents cannot hold a {target_type}")
    if not isinstance(value, str | Path):
        raise ValueError(f"must be text, not {_shorten_value(value)}")
    return Path(value)


def _check_unique_keys(keys_and_values: list[tuple[str, Any]]) -> dict[str, Any]:
    value_of_key = dict(keys_and_values)
    if len(value_of_key) != len(keys_and_values):
        keys = [key for key, _ in keys_and_values]
        duplicate = next(key for key in keys if keys.count(key) > 1)
        raise InputError(f"the key {duplicate[:64]!r} is repeated")
    return value_of_key


# -- errors ----------------------------------------------------------------------------------

#: Keys and indices on the path to a value of a document.
Keys = tuple[str | int, ...]

_LOCATION_PATTERN: Final = re.compile(r" - at (`key` in )?`\$(.*)`$")
_TOKEN_PATTERN: Final = re.compile(r"\[\.\.\.\]|\[(\d+)\]|\.([^.\[]+)")
_KIND_DESCRIPTIONS: Final = {
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "bool": "true or false",
    "array": "a list",
    "object": "an object",
    "null": "null",
}
_BOUND_WORDS: Final = {">=": "of at least", "<=": "of at most", ">": "above", "<": "below"}


def _raise_document_error(
    error: msgspec.ValidationError, value: object, record_type: Any, file: str, field: str = ""
) -> NoReturn:
    """Raise a DocumentError that names the field, its requirement and its value."""
    message = str(error)
    location_match = _LOCATION_PATTERN.search(message)
    if location_match is None:
        raise DocumentError(
            file, field, _rewrite_message(message, value, _find_type(record_type, ()))
        ) from None
    is_about_key = location_match[1] is not None
    tokens = _split_path(location_match[2] + "[...]" * is_about_key, message, value, record_type)
    location = field
    for token in tokens:
        value = token if is_about_key and token is tokens[-1] else value[token]  # type: ignore[index]
        location = _append_key(location, token)
    plain_problem = message[: location_match.start()]
    value_type = (
        _find_key_type(record_type, tokens[:-1])
        if is_about_key
        else _find_type(record_type, tokens)
    )
    plain_problem = ("its name " if is_about_key else "") + _rewrite_message(
        plain_problem, value, value_type
    )
    raise DocumentError(file, location, plain_problem) from None


def _append_key(parent: str, key: str | int) -> str:
    """Append a key or index to the name of a field, as in ``stages[0].kind``."""
    if isinstance(key, int):
        return f"{parent}[{key}]"
    name = key[:64] if key.isprintable() else repr(key[:64])
    return f"{parent}.{name}" if parent else name


def _split_path(path: str, message: str, document: Any, record_type: Any) -> Keys:
    """List the keys and indices on the path to a value.

    `path` is the path in msgspec's message, which does not contain the keys of mappings.
    """
    tokens: list[str | int] = []
    node = document
    for match in _TOKEN_PATTERN.finditer(path):
        if match[1] is not None:
            tokens.append(int(match[1]))
        elif match[2] is not None:
            tokens.append(match[2])
        else:
            # find the key by halving the mapping while the error stays the same
            entries = list(node.items())
            while len(entries) > 1:
                half_entries = entries[: len(entries) // 2]
                if not _has_error(
                    _copy_with_value(document, tuple(tokens), dict(half_entries)),
                    record_type,
                    message,
                ):
                    half_entries = entries[len(entries) // 2 :]
                entries = half_entries
            tokens.append(entries[0][0])
        node = node[tokens[-1]]
    return tuple(tokens)


def _copy_with_value(document: Any, tokens: Keys, value: object) -> Any:
    """Copy a document, with another value at the path `tokens`."""
    if not tokens:
        return value
    changed_document = document.copy()
    changed_document[tokens[0]] = _copy_with_value(document[tokens[0]], tokens[1:], value)
    return changed_document


def _has_error(document: object, record_type: Any, message: str) -> bool:
    try:
        msgspec.convert(document, record_type, dec_hook=_decode_path)
    except msgspec.ValidationError as error:
        return str(error) == message
    return False


def _find_type(record_type: Any, tokens: Keys) -> Any:
    """Find the :mod:`msgspec.inspect` type of the value at a path; None if it is unknown."""
    type_node: Any = msgspec.inspect.type_info(record_type)
    for token in tokens:
        types = _list_types(type_node)
        tags = [
            possible_type.tag
            for possible_type in types
            if getattr(possible_type, "tag_field", None) == token
        ]
        if tags:
            return msgspec.inspect.LiteralType(tuple(tags))
        type_node = next(
            (
                member
                for possible_type in types
                if (member := _find_entry_type(possible_type, token)) is not None
            ),
            None,
        )
    return type_node


def _find_key_type(record_type: Any, tokens: Keys) -> Any:
    """Find the type of the keys of the mapping at a path."""
    types = _list_types(_find_type(record_type, tokens))
    return next(
        (
            possible_type.key_type
            for possible_type in types
            if isinstance(possible_type, msgspec.inspect.DictType)
        ),
        None,
    )


def _find_entry_type(type_node: Any, token: str | int) -> Any:
    """Find the type of the entry with a key or index; None if the type has no such entry."""
    if isinstance(type_node, msgspec.inspect.StructType):
        return next((field.type for field in type_node.fields if field.encode_name == token), None)
    if isinstance(type_node, msgspec.inspect.DictType):
        return type_node.value_type
    if isinstance(type_node, msgspec.inspect.TupleType) and isinstance(token, int):
        return type_node.item_types[token]
    return getattr(type_node, "item_type", None)


def _list_types(type_node: Any) -> list[Any]:
    """List the types that a value may have, except null."""
    if isinstance(type_node, msgspec.inspect.Metadata):
        return _list_types(type_node.type)
    if isinstance(type_node, msgspec.inspect.UnionType):
        return [
            possible_type for member in type_node.types for possible_type in _list_types(member)
        ]
    return (
        [] if type_node is None or isinstance(type_node, msgspec.inspect.NoneType) else [type_node]
    )


def _get_description(type_node: Any) -> str | None:
    """Get the description of a type, or of one type of a union, from its schema."""
    if isinstance(type_node, msgspec.inspect.UnionType):
        return next(filter(None, map(_get_description, type_node.types)), None)
    schema = getattr(type_node, "extra_json_schema", None) or {}
    description: str | None = schema.get("description")
    return description


def _rewrite_message(message: str, value: object, type_node: Any) -> str:
    """Rewrite a message of msgspec in plain words."""
    if match := re.fullmatch(r"Object missing required field `(.*)`", message):
        return f"lacks {match[1]!r}"
    if match := re.fullmatch(r"Object contains unknown field `(.*)`", message):
        fields = [
            field
            for possible_type in _list_types(type_node)
            for field in getattr(possible_type, "fields", ())
        ]
        names = ", ".join(dict.fromkeys(field.encode_name for field in fields))
        return f"has an unknown key {match[1][:64]!r}" + (f"; there are {names}" if names else "")
    requirement = _state_requirement(message, value, type_node)
    return message if requirement is None else f"must {requirement}"


def _state_requirement(message: str, value: object, type_node: Any) -> str | None:
    """State the requirement and the value; None for a message that already states both."""
    if message.endswith("out of range"):
        return f"be within the range of a number of 64 bits, not {_shorten_value(value)}"
    if re.match("Invalid (enum )?value", message):
        allowed_values = [
            allowed_value
            for possible_type in _list_types(type_node)
            for allowed_value in getattr(possible_type, "values", ())
        ]
        words = " or ".join(map(repr, allowed_values))
        return f"be {words}, not {_shorten_value(value)}"
    match = re.match(r"Expected `([^`]*)`(.*)", message)
    if match is None:
        return None
    kinds = match[1].split(" | ")
    condition = match[2]
    if " matching regex " in condition:
        requirement = _get_description(type_node) or f"text {condition.strip()}"
        return f"be {requirement}, not {_shorten_value(value)}"
    if bound := re.match(r" of length (?:(>=|<=) )?(\d+)", condition):
        n_entries = len(value)  # type: ignore[arg-type]
        unit = "characters" if kinds[0] == "str" else "entries"
        comparison = {">=": "at least ", "<=": "at most ", None: ""}[bound[1]]
        return f"have {comparison}{bound[2]} {unit}, not {n_entries}"
    words = " or ".join(_KIND_DESCRIPTIONS.get(kind, kind) for kind in kinds)
    if bound := re.match(r" (>=|<=|>|<) (.*)", condition):
        words += f" {_BOUND_WORDS[bound[1]]} {float(bound[2]):g}"
    return f"be {words}, not {_shorten_value(value)}"


def _shorten_value(value: object) -> str:
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    text = json.dumps(value, default=str)
    return text if len(text) <= 64 else text[:60] + "..."
