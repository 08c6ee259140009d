"""Encode and decode messages between device and cloud.

A message is one CBOR map (RFC 8949) with text keys and a checksum. Arrays are typed arrays (RFC
8746), because encoding numbers one by one would take long. docs/wire.md lists every key, its type
and its limits.

A decoder trusts nothing. A payload must have at most :data:`.MAX_PAYLOAD` bytes and be one map of
at most 32 entries, with definite lengths, distinct keys and no nested values. The only allowed CBOR
tags are those of typed arrays. Every type, range and shape is checked. Infinite values are refused.
NaN stands for a missing value; the model that answers decides whether it accepts it. Unknown keys
are ignored, because later devices may add keys.

>>> import numpy as np
>>> request = Request(id=bytes(16), model="digits", version="1", ttl_ms=500, X=np.ones((1, 2)))
>>> payload = encode_request(request)
>>> len(payload), decode_request(payload).X.tolist()
(73, [[1.0, 1.0]])
"""

from __future__ import annotations

import io
import math
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import cbor2
import numpy as np
from numpy.typing import NDArray

from gatewise_edge.checks import check_id, check_int, check_size, check_text
from gatewise_edge.errors import WireError
from gatewise_edge.link.messages import (
    MAX_CLASSES,
    MAX_CODE_BYTES,
    MAX_COLUMNS,
    MAX_DETAIL_BYTES,
    MAX_LATE_S,
    MAX_ROWS,
    MAX_TTL_MS,
    MAX_WORKER_US,
    AuditMark,
    Request,
    Response,
)
from gatewise_export.bundle.topic_levels import MAX_LEVEL_BYTES

#: Version of the messages' layout.
WIRE_VERSION: Final = 1
#: Largest number of entries of a message, about twice as many as a request has.
_MAX_ENTRIES: Final = 32
#: Probabilities of an audit are encoded as integers in millionths.
_MILLION: Final = 1_000_000
#: Data types of typed arrays by their tag (RFC 8746, section 2).
_DTYPE_OF_TAG: Final = {
    tag: np.dtype(name)
    for tag, name in {64: "u1", 69: "<u2", 72: "i1", 77: "<i2", 84: "<f2", 85: "<f4"}.items()
}
_TAG_OF_DTYPE: Final = {dtype: tag for tag, dtype in _DTYPE_OF_TAG.items()}
_LABEL_TAG: Final = _TAG_OF_DTYPE[np.dtype("<u2")]
_PROBABILITY_TAG: Final = _TAG_OF_DTYPE[np.dtype("<f4")]
#: Tags that the values of a request may have.
_REQUEST_VALUE_TAGS: Final = (85, 84, 64, 72, 77)

Decoded = TypeVar("Decoded")


# -- encoding ------------------------------------------------------------------------------


def write_map(entries: dict[str, Any]) -> bytes:
    """Encode a message with its checksum; raise WireError if it exceeds :data:`.MAX_PAYLOAD`."""
    # The checksum is the last entry, and covers all bytes before its value.
    content = cbor2.dumps(entries | {"crc": bytes(4)})[:-4]
    payload: bytes = content + _checksum(content)
    check_size(payload)
    return payload


def _checksum(content: bytes | memoryview) -> bytes:
    """CRC-32 in network byte order, which detects damage but does not authenticate."""
    return zlib.crc32(content).to_bytes(4, "big")


def _typed_array(array: NDArray[Any], dtype: str | np.dtype[Any]) -> cbor2.CBORTag:
    contiguous_array = np.ascontiguousarray(array, dtype)
    return cbor2.CBORTag(_TAG_OF_DTYPE[contiguous_array.dtype], contiguous_array.tobytes())


def encode_request(request: Request) -> bytes:
    """Encode a request; raise WireError if it is larger than :data:`.MAX_PAYLOAD`."""
    return write_map(_request_entries(request))


def _request_entries(request: Request) -> dict[str, Any]:
    """Entries of a request's message, without optional entries that have their defaults."""
    entries: dict[str, Any] = {}
    if request.audit is not None:
        entries["a"] = request.audit.class_index
        entries["ap"] = max(1, round(request.audit.probability * _MILLION))
        if request.audit.confidence is not None:
            entries["ac"] = round(min(request.audit.confidence, 1.0) * _MILLION)
    if request.is_private:
        entries["pr"] = 1
    if request.late_s:
        entries["late"] = request.late_s
    entries |= {"v": WIRE_VERSION, "id": request.id, "m": request.model, "mv": request.version}
    entries["ttl"] = request.ttl_ms
    n_rows, n_columns = request.X.shape
    typed_array = _typed_array(request.X, request.X.dtype.newbyteorder("<"))
    return entries | {"n": n_rows, "k": n_columns, "x": typed_array}


def encode_response(response: Response) -> bytes:
    """Encode a response; raise WireError if it is larger than :data:`.MAX_PAYLOAD`."""
    entries = response_entries(response)
    for key, dtype in {"y": "<u2", "p": "<f4"}.items():
        if key in entries:
            entries[key] = _typed_array(entries[key], dtype)
    return write_map(entries)


def response_entries(response: Response) -> dict[str, Any]:
    """Entries of a response's message; its arrays are not encoded yet."""
    entries: dict[str, Any] = {"v": WIRE_VERSION, "id": response.id}
    if response.model:
        entries |= {"m": response.model, "mv": response.version}
    if response.error is not None:
        wait_entry = {"w": response.wait_ms} if response.wait_ms else {}
        return entries | {"e": response.error, "d": response.detail} | wait_entry
    labels = response.labels
    probabilities = response.probabilities
    entries |= {"n": response.n_rows, "c": probabilities.shape[1], "y": labels, "p": probabilities}
    return entries | {"us": response.worker_us}


# -- decoding ------------------------------------------------------------------------------


def decode_request(payload: bytes) -> Request:
    """Decode a request from an untrusted sender.

    Raises WireError, with the `id` of the message if it can be read.
    """
    return decode_entries(payload, _build_request)


def decode_response(payload: bytes) -> Response:
    """Decode a response from an untrusted sender; raise WireError as :func:`decode_request`."""
    return decode_entries(payload, _build_response)


def _build_request(entries: Entries) -> Request:
    shape = (entries.integer("n", 1, MAX_ROWS), entries.integer("k", 1, MAX_COLUMNS))
    return Request(
        id=entries.id,
        model=entries.text("m"),
        version=entries.text("mv"),
        ttl_ms=entries.integer("ttl", 0, MAX_TTL_MS),
        X=entries.array("x", shape, *_REQUEST_VALUE_TAGS),
        audit=_build_audit_mark(entries) if entries.has("a") else None,
        is_private=bool(entries.integer("pr", 0, 1)) if entries.has("pr") else False,
        late_s=entries.integer("late", 0, MAX_LATE_S) if entries.has("late") else 0,
    )


def _build_response(entries: Entries) -> Response:
    if entries.has("e"):
        return Response(
            id=entries.id,
            model=entries.text("m") if entries.has("m") else "",
            version=entries.text("mv") if entries.has("mv") else "",
            error=entries.text("e", MAX_CODE_BYTES),
            detail=entries.text("d", MAX_DETAIL_BYTES, min_bytes=0) if entries.has("d") else "",
            wait_ms=entries.integer("w", 0, MAX_TTL_MS) if entries.has("w") else 0,
        )
    model = entries.text("m")
    version = entries.text("mv")
    n_rows = entries.integer("n", 1, MAX_ROWS)
    n_classes = entries.integer("c", 2, MAX_CLASSES)
    return Response(
        id=entries.id,
        model=model,
        version=version,
        labels=entries.array("y", (n_rows,), _LABEL_TAG),
        probabilities=entries.array("p", (n_rows, n_classes), _PROBABILITY_TAG),
        worker_us=entries.integer("us", 0, MAX_WORKER_US),
    )


def _build_audit_mark(entries: Entries) -> AuditMark:
    return AuditMark(
        class_index=entries.integer("a", 0, MAX_CLASSES),
        probability=entries.integer("ap", 1, _MILLION) / _MILLION,
        confidence=entries.integer("ac", 0, _MILLION) / _MILLION if entries.has("ac") else None,
    )


def decode_entries(payload: bytes, build: Callable[[Entries], Decoded]) -> Decoded:
    """Read a message's entries and `build` its record; add the message's id to a WireError."""
    entries = Entries(_read_map(payload))
    try:
        return build(entries)
    except WireError as error:
        error.id = entries.id
        raise


class Entries:
    """The entries of a message; the methods check the values that they return."""

    def __init__(self, entries: dict[Any, Any]) -> None:
        self._entries = entries
        self.id: bytes = check_id(entries.get("id"))
        version = entries.get("v")
        if type(version) is not int or version != WIRE_VERSION:
            raise WireError(
                "version",
                f"a message of layout {str(version)[:20]}, not {WIRE_VERSION}",
                id=self.id,
            )
        for key, value in entries.items():
            untagged_value = value.value if type(value) is _Tagged else value
            if type(untagged_value) in _NESTED_TYPES:
                raise WireError("type", f"{str(key)[:20]!r} has a nested value", id=self.id)

    def has(self, key: str) -> bool:
        """Whether the message has an entry with this key."""
        return key in self._entries

    def integer(self, key: str, smallest: int, largest: int) -> int:
        """Return an integer between `smallest` and `largest`."""
        return check_int(key, self._entries.get(key), smallest, largest)

    def text(self, key: str, max_bytes: int = MAX_LEVEL_BYTES, *, min_bytes: int = 1) -> str:
        """Return a text of `min_bytes` to `max_bytes` bytes."""
        return check_text(key, self._entries.get(key), min_bytes, max_bytes)

    def array(self, key: str, shape: tuple[int, ...], *tags: int) -> NDArray[Any]:
        """Return an array with one of the `tags`, in this machine's byte order."""
        tagged_value = self._entries.get(key)
        if not isinstance(tagged_value, _Tagged) or type(tagged_value.value) is not bytes:
            raise WireError("type", f"{key!r} is not a typed array")
        if tagged_value.tag not in tags:
            raise WireError(
                "type", f"{key!r} is a typed array of tag {tagged_value.tag}, not {tags}"
            )
        dtype = _DTYPE_OF_TAG[tagged_value.tag]
        n_bytes = math.prod(shape) * dtype.itemsize
        if len(tagged_value.value) != n_bytes:
            raise WireError("shape", f"{key!r} has {len(tagged_value.value)} bytes, not {n_bytes}")
        values: NDArray[Any] = np.frombuffer(tagged_value.value, dtype).reshape(shape)
        return values if dtype.isnative else values.astype(dtype.newbyteorder("="))


@dataclass(slots=True)
class _Tagged:
    tag: int
    value: Any


#: Types of values that no entry of a message may have.
_NESTED_TYPES: Final = frozenset({list, tuple, dict, _Tagged})


class _TagsAsData(Mapping[int, Callable[[Any, bool], Any]]):
    """A table of cbor2's tag decoders that decodes every tag to a :class:`_Tagged`.

    Without it, a sender could make cbor2 construct dates, regular expressions, e-mails and huge
    decimals.
    """

    def __getitem__(self, tag: int) -> Callable[[Any, bool], Any]:
        return lambda value, immutable: _Tagged(tag, value)

    def __iter__(self) -> Iterator[int]:
        return iter(())

    def __len__(self) -> int:
        return 1


_TAGS_AS_DATA: Final = _TagsAsData()


def _read_map(payload: bytes) -> dict[Any, Any]:
    """Decode the CBOR map of a message and verify its checksum."""
    check_size(payload)
    stream = io.BytesIO(payload)
    try:
        entries = cbor2.CBORDecoder(
            stream,
            semantic_decoders=_TAGS_AS_DATA,
            max_depth=4,  # a map, a tag, and bytes; a deeper value cannot be valid
            allow_indefinite=False,
            allow_duplicate_keys=False,
            strict_hashable_types=True,
        ).decode()
    except (cbor2.CBORDecodeError, ValueError, OverflowError, RecursionError) as error:
        raise WireError("cbor", f"not a message in CBOR: {str(error)[:120]}") from None
    if stream.tell() != len(payload):
        raise WireError("cbor", "bytes follow the end of the message")
    if type(entries) is not dict or len(entries) > _MAX_ENTRIES:
        raise WireError("cbor", f"a message is one CBOR map of at most {_MAX_ENTRIES} entries")
    # The checksum is the value of the last entry.
    if not entries.get("crc") == payload[-4:] == _checksum(memoryview(payload)[:-4]):
        raise WireError("checksum", "the message was damaged in transit")
    return entries
