"""Encode and decode messages between device and cloud. Pure, no I/O.

A message is one CBOR map (RFC 8949) with text keys; numbers travel as RFC 8746 typed arrays,
never one by one. Layout, version 1:

======== ===================== ===============================================================
key      CBOR type             meaning
======== ===================== ===============================================================
``v``    unsigned              layout version, 1
``id``   16 bytes              the request's id; a response repeats it
``m``    text, 1 to 64 bytes   model name
``mv``   text, 1 to 64 bytes   model version
``crc``  4 bytes               the last entry: CRC-32 of all bytes before its value, big-endian
-------- --------------------- ---------------------------------------------------------------
Request
----------------------------------------------------------------------------------------------
``ttl``  unsigned              time left to live in ms, relative (a device's clock drifts)
``n``    unsigned, 1 to 4096   rows (instances)
``k``    unsigned, to 2^20     columns: the cloud model's inputs, in its order
``x``    tag 85, 84, 64, 72    rows * columns values, row by row, little-endian: float32, float16,
         or 77                 uint8, int8 or int16
``z``    unsigned              optional, 1: the bytes of ``x`` are compressed (zlib, RFC 1950)
``f``    text                  optional, "jpeg": ``x`` is a byte string, the one instance as a JPEG
                               file; then there is no ``n``, ``k`` or ``z``
``a``    unsigned              optional, of one row: an audit; the class index already given,
``ap``   unsigned, to 10^6     its probability to be audited, in millionths, and
``an``   unsigned              the instances since the last audit that were not
``xb``   unsigned, to 4 MiB    optional: ``x`` is empty and its bytes, so many, come behind it in
``xp``   unsigned, to 1024     so many parts; those bytes have the SHA-256
``xh``   32 bytes              of this value
-------- --------------------- ---------------------------------------------------------------
Part of a request
----------------------------------------------------------------------------------------------
``i``    unsigned              which one, from 0; there is no ``m`` and ``mv``
``x``    bytes                 the bytes; all but the last part have as many
-------- --------------------- ---------------------------------------------------------------
Response that accepts a request in parts
----------------------------------------------------------------------------------------------
``to``   text, 1 to 64 bytes   the worker that waits for them: the last level of their topic
-------- --------------------- ---------------------------------------------------------------
Response that answers
----------------------------------------------------------------------------------------------
``n``    unsigned              rows, as in the request
``c``    unsigned, 2 to 65535  classes
``y``    tag 69                class index of each row: uint16, little-endian
``p``    tag 85                rows * classes probabilities, 0 to 1: float32, little-endian
``us``   unsigned              time in the worker, in microseconds
``s``    tag 69                optional: stage that answered each row, uint16, little-endian; the
                               number of stages, as for all rows without it: the high-cost model
-------- --------------------- ---------------------------------------------------------------
Response that refuses (``m`` and ``mv`` are left out where the request's were unreadable)
----------------------------------------------------------------------------------------------
``e``    text, 1 to 32 bytes   error code; ``busy`` and ``no-model`` may be retried
``d``    text, 0 to 200 bytes  detail for people
``w``    unsigned              optional, with ``busy``: ms to wait before the next request
======== ===================== ===============================================================

A decoder checks everything. A payload is at most :data:`MAX_PAYLOAD` bytes and exactly one map of
at most 32 entries, definite lengths, no key twice, nothing nested in it, no CBOR tag but the
typed arrays above; every type, range and shape is checked. Keys that are not listed are
ignored, so that version 1 may grow. Versions before the checksum send none: a message without
``crc`` is taken if it has no key that they did not know, which may be a damaged ``crc``. Infinite
values are refused; NaN, the mark of a missing value, only passes where the caller allows it.

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
from typing import Any, Final

import cbor2
import numpy as np
from numpy.typing import NDArray

from gatewise.models.instances import JPEG
from gatewise_edge.checks import (
    MAX_NAME,
    check_device,
    check_id,
    check_int,
    check_model,
    check_text,
)
from gatewise_edge.errors import WireError
from gatewise_edge.link.messages import (
    BAD_REQUEST,
    BUSY,
    EXPIRED,
    FAILED,
    MAX_CLASSES,
    MAX_CODE,
    MAX_COLUMNS,
    MAX_DETAIL,
    MAX_PARTS,
    MAX_PAYLOAD,
    MAX_ROWS,
    MAX_SKIPPED,
    MAX_TTL_MS,
    MAX_VALUES,
    MAX_WORKER_US,
    NO_MODEL,
    RESPONSE_FIELDS,
    RETRYABLE,
    AnnouncedParts,
    AuditMark,
    Part,
    Request,
    Response,
    new_id,
)
from gatewise_edge.link.topics import (
    JSON_REQUESTS,
    REQUESTS,
    dead_topic,
    device_of,
    json_request_topic,
    json_response_topic,
    manifest_topic,
    metrics_topic,
    part_topic,
    parts_of,
    request_topic,
    response_topic,
    shared,
    status_topic,
)

# Messages and topics have modules of their own; all names of the wire are importable from here.
__all__ = [
    "BAD_REQUEST",
    "BUSY",
    "EXPIRED",
    "FAILED",
    "JSON_REQUESTS",
    "MAX_PAYLOAD",
    "NO_MODEL",
    "REQUESTS",
    "RESPONSE_FIELDS",
    "RETRYABLE",
    "AuditMark",
    "Part",
    "Request",
    "Response",
    "check_device",
    "check_model",
    "dead_topic",
    "decode_part",
    "decode_request",
    "decode_response",
    "device_of",
    "encode_in_parts",
    "encode_part",
    "encode_request",
    "encode_response",
    "json_request_topic",
    "json_response_topic",
    "manifest_topic",
    "metrics_topic",
    "new_id",
    "part_topic",
    "parts_of",
    "request_topic",
    "response_topic",
    "shared",
    "status_topic",
]

WIRE_VERSION: Final = 1
MAX_ENTRIES: Final = 32
_MILLION: Final = 1_000_000
#: Types of a request's values.
_TYPES: Final = ("<f4", "<f2", "u1", "i1", "<i2")
#: Bytes of a part: a device stops at its deadline with few of them under way.
_PART_BYTES: Final = 64 * 1024
#: Of compression: most of what can be gained, in little time.
_LEVEL: Final = 1
#: Keys of a message without a checksum.
_OLD_KEYS: Final = frozenset(
    {"v", "id", "m", "mv", "ttl", "n", "k", "x", "c", "y", "p", "us", "s", "e", "d"}
)

_ARRAYS: Final[dict[int, np.dtype[Any]]] = {
    64: np.dtype("u1"),
    69: np.dtype("<u2"),
    72: np.dtype("i1"),
    77: np.dtype("<i2"),
    84: np.dtype("<f2"),
    85: np.dtype("<f4"),
}
_TAGS: Final[dict[np.dtype[Any], int]] = {dtype: tag for tag, dtype in _ARRAYS.items()}


# -- encoding ------------------------------------------------------------------------------


def encode_request(request: Request) -> bytes:
    """Encode a request; WireError if it is larger than :data:`MAX_PAYLOAD`."""
    return _dumps(_request_entries(request))


def encode_in_parts(request: Request) -> tuple[bytes, bytes]:
    """Encode a request of any size: the message, and the bytes that come behind it in parts.

    There are none of these where it fits one message. WireError if they are more than
    :data:`MAX_VALUES`.
    """
    entries = _request_entries(request)
    try:
        return _dumps(entries), b""
    except WireError:
        content: bytes = getattr(entries["x"], "value", entries["x"])
    empty = b"" if entries["x"] is content else cbor2.CBORTag(entries["x"].tag, b"")
    parts = _parts_for(content, hashlib.sha256(content).digest())
    note = {"x": empty, "xb": parts.size, "xp": parts.count, "xh": parts.digest}
    return _dumps(entries | note), content


def _parts_for(content: bytes, digest: bytes) -> AnnouncedParts:
    return AnnouncedParts(len(content), -(-len(content) // _PART_BYTES), digest)


def encode_part(part: Part) -> bytes:
    """Encode a part; WireError if it is larger than :data:`MAX_PAYLOAD`."""
    return _dumps({"v": WIRE_VERSION, "id": part.id, "i": part.index, "x": part.content})


def cut_parts(id: bytes, content: bytes) -> Iterator[bytes]:  # noqa: A002
    """Encode the parts of the bytes that :func:`encode_in_parts` gave, one by one."""
    size = _parts_for(content, bytes(32)).part_size
    for index, start in enumerate(range(0, len(content), size)):
        yield encode_part(Part(id, index, content[start : start + size]))


def _request_entries(request: Request) -> dict[str, Any]:
    audit: dict[str, Any] = {}
    if request.audit is not None:
        audit["a"] = request.audit.class_index
        audit["ap"] = round(request.audit.probability * _MILLION)
        audit["an"] = request.audit.skipped
    head = {
        "v": WIRE_VERSION,
        "id": request.id,
        "m": request.model,
        "mv": request.version,
        "ttl": request.ttl_ms,
    }
    return audit | head | _values(request)


def _values(request: Request) -> dict[str, Any]:
    """Entries of a request's instances."""
    if request.jpeg is not None:
        return {"f": JPEG, "x": request.jpeg}
    rows, columns = request.X.shape
    x, extra = _typed(request.X, request.X.dtype.newbyteorder("<").str), {}
    if request.deflate:
        short = zlib.compress(x.value, _LEVEL)
        if len(short) < len(x.value):
            x, extra = cbor2.CBORTag(x.tag, short), {"z": 1}
    return {"n": rows, "k": columns, "x": x, **extra}


def encode_response(response: Response) -> bytes:
    """Encode a response; WireError if it is larger than :data:`MAX_PAYLOAD`."""
    message: dict[str, Any] = {"v": WIRE_VERSION, "id": response.id}
    if response.model:
        message |= {"m": response.model, "mv": response.version}
    if response.error is not None:
        wait = {"w": response.wait_ms} if response.wait_ms else {}
        return _dumps(message | {"e": response.error, "d": response.detail} | wait)
    if response.parts_to:
        return _dumps(message | {"to": response.parts_to})
    message |= {
        "n": response.rows,
        "c": response.probabilities.shape[1],
        "y": _typed(response.labels, "<u2"),
        "p": _typed(response.probabilities, "<f4"),
        "us": response.worker_us,
    }
    if response.exits is not None:
        message["s"] = _typed(response.exits, "<u2")
    return _dumps(message)


def _typed(array: NDArray[Any], dtype: str) -> cbor2.CBORTag:
    data = np.ascontiguousarray(array, np.dtype(dtype))
    return cbor2.CBORTag(_TAGS[data.dtype], data.tobytes())


def _dumps(message: dict[str, Any]) -> bytes:
    covered = cbor2.dumps(message | {"crc": bytes(4)})[:-4]
    payload: bytes = covered + _checksum(covered)
    if len(payload) > MAX_PAYLOAD:
        raise WireError("size", f"a message of {len(payload)} bytes; at most {MAX_PAYLOAD} may go")
    return payload


def _checksum(covered: bytes | memoryview) -> bytes:
    return zlib.crc32(covered).to_bytes(4, "big")


# -- decoding ------------------------------------------------------------------------------


def decode_request(
    payload: bytes, *, allow_missing: bool = False, content: bytes | None = None
) -> Request:
    """Decode a request from an untrusted sender; `content` is what came behind it in parts.

    A worker that serves models with and without missing values passes `allow_missing` and checks
    :attr:`Request.has_missing` once it has the model. Raises WireError, with the message's `id`
    where one could be read.
    """
    message = _loads(payload)
    try:
        parts = _parts(message) if message.has("xp") and content is None else None
        values: dict[str, Any] = {"parts": parts}
        if message.has("f"):
            file = message.file("x", "f", JPEG)
            values["jpeg"] = file if content is None else content
        else:
            shape = (message.integer("n", 1, MAX_ROWS), message.integer("k", 1, MAX_COLUMNS))
            deflated = message.has("z")
            values["X"] = message.array(
                "x", shape, *_TYPES, deflated=deflated, parts=parts, content=content
            )
        request = Request(
            id=message.id,
            model=message.text("m"),
            version=message.text("mv"),
            ttl_ms=message.integer("ttl", 0, MAX_TTL_MS),
            **values,
            audit=_audit(message) if message.has("a") else None,
        )
        if not allow_missing and request.has_missing:
            raise WireError("missing", "the instances hold a NaN")
    except WireError as error:
        error.id = message.id
        raise
    return request


def _parts(message: _Entries) -> AnnouncedParts:
    size, count = message.integer("xb", 1, MAX_VALUES), message.integer("xp", 1, MAX_PARTS)
    return AnnouncedParts(size, count, message.bytes_of("xh"))


def decode_part(payload: bytes) -> Part:
    """Decode a part from an untrusted sender; raises WireError as :func:`decode_request`."""
    message = _loads(payload)
    try:
        index = message.integer("i", 0, MAX_PARTS - 1)
        return Part(message.id, index, message.bytes_of("x"))
    except WireError as error:
        error.id = message.id
        raise


def _audit(message: _Entries) -> AuditMark:
    return AuditMark(
        class_index=message.integer("a", 0, MAX_CLASSES),
        probability=message.integer("ap", 1, _MILLION) / _MILLION,
        skipped=message.integer("an", 0, MAX_SKIPPED),
    )


def decode_response(payload: bytes) -> Response:
    """Decode a response from an untrusted sender; raises WireError as :func:`decode_request`."""
    message = _loads(payload)
    try:
        if message.has("e"):
            return Response(
                id=message.id,
                model=message.text("m") if message.has("m") else "",
                version=message.text("mv") if message.has("mv") else "",
                error=message.text("e", MAX_CODE),
                detail=message.text("d", MAX_DETAIL, shortest=0) if message.has("d") else "",
                wait_ms=message.integer("w", 0, MAX_TTL_MS) if message.has("w") else 0,
            )
        if message.has("to"):
            model, version = message.text("m"), message.text("mv")
            to = message.text("to")
            return Response(id=message.id, model=model, version=version, parts_to=to)
        rows, classes = message.integer("n", 1, MAX_ROWS), message.integer("c", 2, MAX_CLASSES)
        return Response(
            id=message.id,
            model=message.text("m"),
            version=message.text("mv"),
            labels=message.array("y", (rows,), "<u2"),
            probabilities=message.array("p", (rows, classes), "<f4"),
            worker_us=message.integer("us", 0, MAX_WORKER_US),
            exits=message.array("s", (rows,), "<u2") if message.has("s") else None,
        )
    except WireError as error:
        error.id = message.id
        raise


class _Entries:
    """A decoded map; each entry is checked as it is read."""

    def __init__(self, entries: dict[Any, Any]) -> None:
        self._entries = entries
        self.id: bytes = check_id(entries.get("id"))
        version = entries.get("v")
        if type(version) is not int or version != WIRE_VERSION:
            raise WireError(
                "version", f"a message of layout {str(version)[:20]}, not 1", id=self.id
            )
        for key, value in entries.items():
            inner = value.value if isinstance(value, _Tagged) else value
            if isinstance(inner, list | tuple | dict | _Tagged):
                raise WireError("type", f"{str(key)[:20]!r} is nested: nothing may be", id=self.id)

    def has(self, key: str) -> bool:
        return key in self._entries

    def integer(self, key: str, low: int, high: int) -> int:
        return check_int(key, self._entries.get(key), low, high)

    def text(self, key: str, longest: int = MAX_NAME, *, shortest: int = 1) -> str:
        return check_text(key, self._entries.get(key), shortest, longest)

    def file(self, key: str, form_key: str, form: str) -> bytes:
        found, value = self.text(form_key), self._entries.get(key)
        if found != form or type(value) is not bytes:
            raise WireError("type", f"{form_key!r} is not {form!r}, or {key!r} no byte string")
        return value

    def bytes_of(self, key: str) -> bytes:
        value = self._entries.get(key)
        if type(value) is not bytes:
            raise WireError("type", f"{key!r} is no byte string")
        return value

    def array(
        self,
        key: str,
        shape: tuple[int, ...],
        *dtypes: str,
        deflated: bool = False,
        parts: AnnouncedParts | None = None,
        content: bytes | None = None,
    ) -> NDArray[Any]:
        typed = self._entries.get(key)
        if not isinstance(typed, _Tagged) or type(typed.value) is not bytes:
            raise WireError("type", f"{key!r} is not a typed array")
        dtype = _ARRAYS.get(typed.tag)
        if dtype is None or dtype not in [np.dtype(d) for d in dtypes]:
            raise WireError("type", f"{key!r} is a typed array of tag {typed.tag}, not of {dtypes}")
        size = math.prod(shape) * dtype.itemsize
        content = typed.value if content is None else content
        if parts is not None:
            if content or size > MAX_VALUES or not (deflated or size == parts.size):
                raise WireError("shape", f"{key!r} comes in {parts.size} bytes, not as {shape}")
            return np.broadcast_to(np.zeros((), dtype), shape)
        if deflated:
            self.integer("z", 1, 1)
            content = _inflated(key, content, size)
        if len(content) != size:
            raise WireError("shape", f"{key!r} has {len(content)} bytes, not those of {shape}")
        values: NDArray[Any] = np.frombuffer(content, dtype).reshape(shape)
        return values.astype(dtype.newbyteorder("="), copy=False)


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


@dataclass(frozen=True, slots=True)
class _Tagged:
    tag: int
    value: Any


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


def _loads(payload: bytes) -> _Entries:
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
    return _Entries(entries)
