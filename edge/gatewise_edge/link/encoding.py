"""Encode and decode messages between device and cloud. Pure, no I/O.

A message is one CBOR map (RFC 8949) with text keys and a checksum; numbers travel as RFC 8746 typed
arrays, never one by one. docs/wire.md lists every key, its type and its limits.

A decoder checks everything. A payload is at most :data:`MAX_PAYLOAD` bytes and exactly one map of
at most 32 entries, definite lengths, no key twice, nothing nested in it, no CBOR tag but typed
arrays; every type, range and shape is checked. Keys that are not known are ignored, so that
version 1 may grow. Versions before the checksum send none: a message without ``crc`` is taken if
it has no key that they did not know, which may be a damaged ``crc``. Infinite values are refused;
NaN, the mark of a missing value, only passes where the caller allows it.

>>> import numpy as np
>>> request = Request(id=bytes(16), model="digits", version="1", ttl_ms=500, X=np.ones((1, 2)))
>>> payload = encode_request(request)
>>> len(payload), decode_request(payload).X.tolist()
(73, [[1.0, 1.0]])
"""

from __future__ import annotations

import hashlib
import io
import math
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import cbor2
import numpy as np
from numpy.typing import NDArray

from gatewise.models.instances import JPEG
from gatewise_edge.checks import MAX_NAME, MAX_PAYLOAD, MAX_VALUES, check_id, check_int, check_text
from gatewise_edge.errors import WireError
from gatewise_edge.link.messages import (
    MAX_CLASSES,
    MAX_CODE,
    MAX_COLUMNS,
    MAX_DETAIL,
    MAX_PARTS,
    MAX_ROWS,
    MAX_SKIPPED,
    MAX_TTL_MS,
    MAX_WORKER_US,
    AnnouncedParts,
    AuditMark,
    Part,
    Request,
    Response,
)

#: Layout of messages.
WIRE_VERSION: Final = 1
MAX_ENTRIES: Final = 32
_MILLION: Final = 1_000_000
#: Bytes of a part: a device stops at its deadline with few of them under way.
_PART_BYTES: Final = 64 * 1024
#: Of compression: most of what can be gained, in little time.
_LEVEL: Final = 1
#: Keys of a message without a checksum.
_OLD_KEYS: Final = frozenset(
    {"v", "id", "m", "mv", "ttl", "n", "k", "x", "c", "y", "p", "us", "s", "e", "d"}
)
_ARRAYS: Final = {
    tag: np.dtype(name)
    for tag, name in {64: "u1", 69: "<u2", 72: "i1", 77: "<i2", 84: "<f2", 85: "<f4"}.items()
}
_TAGS: Final = {dtype: tag for tag, dtype in _ARRAYS.items()}
#: Tags of the types of a request's values.
_VALUES: Final = (85, 84, 64, 72, 77)

Decoded = TypeVar("Decoded")


# -- encoding ------------------------------------------------------------------------------


def write_map(message: dict[str, Any]) -> bytes:
    """Encode a message with its checksum; WireError if it is larger than :data:`MAX_PAYLOAD`."""
    covered = cbor2.dumps(message | {"crc": bytes(4)})[:-4]
    payload: bytes = covered + _checksum(covered)
    if len(payload) > MAX_PAYLOAD:
        raise WireError("size", f"a message of {len(payload)} bytes; at most {MAX_PAYLOAD} may go")
    return payload


def _checksum(covered: bytes | memoryview) -> bytes:
    return zlib.crc32(covered).to_bytes(4, "big")


def _typed_array(array: NDArray[Any], dtype: str | np.dtype[Any]) -> cbor2.CBORTag:
    data = np.ascontiguousarray(array, dtype)
    return cbor2.CBORTag(_TAGS[data.dtype], data.tobytes())


def encode_request(request: Request) -> bytes:
    """Encode a request; WireError if it is larger than :data:`MAX_PAYLOAD`."""
    return write_map(_request_entries(request))


def encode_in_parts(request: Request) -> tuple[bytes, bytes]:
    """Encode a request of any size: the message, and the bytes that come behind it in parts.

    There are none of these where it fits one message. WireError if they are more than
    :data:`MAX_VALUES`.
    """
    entries = _request_entries(request)
    try:
        return write_map(entries), b""
    except WireError:
        content: bytes = getattr(entries["x"], "value", entries["x"])
    empty = b"" if entries["x"] is content else cbor2.CBORTag(entries["x"].tag, b"")
    parts = _parts_for(content, hashlib.sha256(content).digest())
    note = {"x": empty, "xb": parts.size, "xp": parts.count, "xh": parts.digest}
    return write_map(entries | note), content


def _parts_for(content: bytes, digest: bytes) -> AnnouncedParts:
    return AnnouncedParts(len(content), -(-len(content) // _PART_BYTES), digest)


def encode_part(part: Part) -> bytes:
    """Encode a part; WireError if it is too large."""
    return write_map({"v": WIRE_VERSION, "id": part.id, "i": part.index, "x": part.content})


def cut_parts(id: bytes, content: bytes) -> Iterator[bytes]:  # noqa: A002
    """Encode the parts of the bytes that :func:`encode_in_parts` gave, one by one."""
    size = _parts_for(content, bytes(32)).part_size
    for index, start in enumerate(range(0, len(content), size)):
        yield encode_part(Part(id, index, content[start : start + size]))


def _request_entries(request: Request) -> dict[str, Any]:
    entries: dict[str, Any] = {}
    if request.audit is not None:
        entries["a"] = request.audit.class_index
        entries["ap"] = round(request.audit.probability * _MILLION)
        entries["an"] = request.audit.skipped
    entries |= {"v": WIRE_VERSION, "id": request.id, "m": request.model, "mv": request.version}
    entries["ttl"] = request.ttl_ms
    if request.jpeg is not None:
        return entries | {"f": JPEG, "x": request.jpeg}
    rows, columns = request.X.shape
    x = _typed_array(request.X, request.X.dtype.newbyteorder("<"))
    entries |= {"n": rows, "k": columns, "x": x}
    if request.deflate:
        short = zlib.compress(x.value, _LEVEL)
        if len(short) < len(x.value):
            entries |= {"x": cbor2.CBORTag(x.tag, short), "z": 1}
    return entries


def encode_response(response: Response) -> bytes:
    """Encode a response; WireError if it is larger than :data:`MAX_PAYLOAD`."""
    message = response_entries(response)
    for key, dtype in {"y": "<u2", "p": "<f4", "s": "<u2"}.items():
        if key in message:
            message[key] = _typed_array(message[key], dtype)
    return write_map(message)


def response_entries(response: Response) -> dict[str, Any]:
    """Entries of a response's message, with its arrays as they are."""
    message: dict[str, Any] = {"v": WIRE_VERSION, "id": response.id}
    if response.model:
        message |= {"m": response.model, "mv": response.version}
    if response.error is not None:
        wait = {"w": response.wait_ms} if response.wait_ms else {}
        return message | {"e": response.error, "d": response.detail} | wait
    if response.parts_to:
        return message | {"to": response.parts_to}
    labels, probabilities = response.labels, response.probabilities
    message |= {"n": response.rows, "c": probabilities.shape[1], "y": labels, "p": probabilities}
    exits = {} if response.exits is None else {"s": response.exits}
    return message | {"us": response.worker_us} | exits


# -- decoding ------------------------------------------------------------------------------


def decode_request(
    payload: bytes, *, allow_missing: bool = False, content: bytes | None = None
) -> Request:
    """Decode a request from an untrusted sender; `content` is what came behind it in parts.

    A worker that serves models with and without missing values passes `allow_missing` and checks
    :attr:`Request.has_missing` once it has the model. Raises WireError, with the message's `id`
    where one could be read.
    """

    def build(message: Entries) -> Request:
        parts = _parts(message) if message.has("xp") and content is None else None
        values: dict[str, Any] = {}
        if message.has("f"):
            if message.text("f") != JPEG:
                raise WireError("type", f"'f' is not {JPEG!r}")
            file = message.octets("x")
            values["jpeg"] = file if content is None else content
        else:
            shape = (message.integer("n", 1, MAX_ROWS), message.integer("k", 1, MAX_COLUMNS))
            values["X"] = message.array(
                "x", shape, *_VALUES, deflated=message.has("z"), parts=parts, content=content
            )
        request = Request(
            id=message.id,
            model=message.text("m"),
            version=message.text("mv"),
            ttl_ms=message.integer("ttl", 0, MAX_TTL_MS),
            audit=_audit(message) if message.has("a") else None,
            parts=parts,
            **values,
        )
        if not allow_missing and request.has_missing:
            raise WireError("missing", "the instances hold a NaN")
        return request

    return _decoded(payload, build)


def decode_part(payload: bytes) -> Part:
    """Decode a part from an untrusted sender; raises WireError as :func:`decode_request`."""
    return _decoded(payload, lambda m: Part(m.id, m.integer("i", 0, MAX_PARTS - 1), m.octets("x")))


def decode_response(payload: bytes) -> Response:
    """Decode a response from an untrusted sender; raises WireError as :func:`decode_request`."""
    return _decoded(payload, _response)


def _response(message: Entries) -> Response:
    if message.has("e"):
        return Response(
            id=message.id,
            model=message.text("m") if message.has("m") else "",
            version=message.text("mv") if message.has("mv") else "",
            error=message.text("e", MAX_CODE),
            detail=message.text("d", MAX_DETAIL, shortest=0) if message.has("d") else "",
            wait_ms=message.integer("w", 0, MAX_TTL_MS) if message.has("w") else 0,
        )
    model, version = message.text("m"), message.text("mv")
    if message.has("to"):
        return Response(id=message.id, model=model, version=version, parts_to=message.text("to"))
    rows, classes = message.integer("n", 1, MAX_ROWS), message.integer("c", 2, MAX_CLASSES)
    return Response(
        id=message.id,
        model=model,
        version=version,
        labels=message.array("y", (rows,), 69),
        probabilities=message.array("p", (rows, classes), 85),
        worker_us=message.integer("us", 0, MAX_WORKER_US),
        exits=message.array("s", (rows,), 69) if message.has("s") else None,
    )


def _parts(message: Entries) -> AnnouncedParts:
    size, count = message.integer("xb", 1, MAX_VALUES), message.integer("xp", 1, MAX_PARTS)
    return AnnouncedParts(size, count, message.octets("xh"))


def _audit(message: Entries) -> AuditMark:
    return AuditMark(
        class_index=message.integer("a", 0, MAX_CLASSES),
        probability=message.integer("ap", 1, _MILLION) / _MILLION,
        skipped=message.integer("an", 0, MAX_SKIPPED),
    )


def _decoded(payload: bytes, build: Callable[[Entries], Decoded]) -> Decoded:
    """Read a message's entries; an error has the message's id."""
    message = Entries(_read_map(payload))
    try:
        return build(message)
    except WireError as error:
        error.id = message.id
        raise


class Entries:
    """Entries of a message, each checked as it is read."""

    def __init__(self, entries: dict[Any, Any]) -> None:
        self._entries = entries
        self.id: bytes = check_id(entries.get("id"))
        version = entries.get("v")
        if type(version) is not int or version != WIRE_VERSION:
            raise WireError(
                "version", f"a message of layout {str(version)[:20]}, not 1", id=self.id
            )
        for key, value in entries.items():
            inner = value.value if type(value) is _Tagged else value
            if type(inner) in _NESTED:
                raise WireError("type", f"{str(key)[:20]!r} is nested: nothing may be", id=self.id)

    def has(self, key: str) -> bool:
        """Whether there is such an entry."""
        return key in self._entries

    def integer(self, key: str, low: int, high: int) -> int:
        """Return an integer between `low` and `high`."""
        return check_int(key, self._entries.get(key), low, high)

    def text(self, key: str, longest: int = MAX_NAME, *, shortest: int = 1) -> str:
        """Return a text within its limits of length."""
        return check_text(key, self._entries.get(key), shortest, longest)

    def octets(self, key: str) -> bytes:
        """Return a byte string."""
        value = self._entries.get(key)
        if type(value) is not bytes:
            raise WireError("type", f"{key!r} is no byte string")
        return value

    def array(
        self,
        key: str,
        shape: tuple[int, ...],
        *tags: int,
        deflated: bool = False,
        parts: AnnouncedParts | None = None,
        content: bytes | None = None,
    ) -> NDArray[Any]:
        """Return an array of one of the types, in this machine's byte order.

        Its bytes, perhaps compressed, are the entry's, or `content` in their place; or they come in
        `parts`: then the values are 0.
        """
        typed = self._entries.get(key)
        if not isinstance(typed, _Tagged) or type(typed.value) is not bytes:
            raise WireError("type", f"{key!r} is not a typed array")
        if typed.tag not in tags:
            raise WireError("type", f"{key!r} is a typed array of tag {typed.tag}, not {tags}")
        dtype = _ARRAYS[typed.tag]
        size = math.prod(shape) * dtype.itemsize
        if parts is not None:
            if typed.value or size > MAX_VALUES or not (deflated or size == parts.size):
                raise WireError("shape", f"{key!r} comes in {parts.size} bytes, not as {shape}")
            return np.broadcast_to(np.zeros((), dtype), shape)
        octets = typed.value if content is None else content
        if deflated:
            self.integer("z", 1, 1)
            octets = _inflated(key, octets, size)
        if len(octets) != size:
            raise WireError("shape", f"{key!r} has {len(octets)} bytes, not those of {shape}")
        values: NDArray[Any] = np.frombuffer(octets, dtype).reshape(shape)
        return values if dtype.isnative else values.astype(dtype.newbyteorder("="))


def _inflated(key: str, content: bytes, size: int) -> bytes:
    """Decompress so many bytes, and no more."""
    if size > MAX_VALUES:
        raise WireError("size", f"{key!r} would have {size} bytes; at most {MAX_VALUES} may be")
    inflater = zlib.decompressobj()
    try:
        values = inflater.decompress(content, size)
        # what ends exactly at the limit has yet to read its checksum
        more = inflater.decompress(inflater.unconsumed_tail, 1) if not inflater.eof else b""
    except zlib.error as error:
        raise WireError("type", f"{key!r} is not compressed by zlib: {error}") from None
    if more or not inflater.eof or inflater.unused_data:
        raise WireError("shape", f"{key!r} does not hold {size} bytes, compressed")
    return values


@dataclass(slots=True)
class _Tagged:
    tag: int
    value: Any


_NESTED: Final = frozenset({list, tuple, dict, _Tagged})


class _NoTagRuns(Mapping[int, Callable[[Any, bool], Any]]):
    """A table of tag decoders for cbor2 that keeps every tag as data.

    Otherwise a sender could have dates, regular expressions, e-mails and huge decimals built.
    """

    def __getitem__(self, tag: int) -> Callable[[Any, bool], Any]:
        return lambda value, immutable: _Tagged(tag, value)

    def __iter__(self) -> Iterator[int]:
        return iter(())

    def __len__(self) -> int:
        return 1


_NO_TAG_RUNS: Final = _NoTagRuns()


def _read_map(payload: bytes) -> dict[Any, Any]:
    """Decode a message from an untrusted sender; WireError if it is none."""
    if len(payload) > MAX_PAYLOAD:
        raise WireError("size", f"a message of {len(payload)} bytes; at most {MAX_PAYLOAD} may be")
    stream = io.BytesIO(payload)
    try:
        entries = cbor2.CBORDecoder(
            stream,
            semantic_decoders=_NO_TAG_RUNS,
            max_depth=4,
            allow_indefinite=False,
            allow_duplicate_keys=False,
            strict_hashable_types=True,
        ).decode()
    except (cbor2.CBORDecodeError, ValueError, OverflowError, RecursionError) as error:
        raise WireError("cbor", f"not a message in CBOR: {str(error)[:120]}") from None
    if stream.tell() != len(payload):
        raise WireError("cbor", "a message with bytes after its end")
    if type(entries) is not dict or len(entries) > MAX_ENTRIES:
        raise WireError("cbor", f"a message is one CBOR map of at most {MAX_ENTRIES} entries")
    if "crc" in entries:
        whole = entries["crc"] == payload[-4:] == _checksum(memoryview(payload)[:-4])
    else:
        whole = entries.keys() <= _OLD_KEYS
    if not whole:
        raise WireError("checksum", "a message that was damaged on its way")
    return entries
