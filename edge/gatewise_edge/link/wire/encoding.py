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
import zlib
from collections.abc import Iterator
from typing import Any, Final

import cbor2

from gatewise.models.instances import JPEG
from gatewise_edge.checks import MAX_VALUES
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
from gatewise_edge.link.wire.cbor_map import (
    WIRE_VERSION,
    Entries,
    read_map,
    typed_array,
    write_map,
)

_MILLION: Final = 1_000_000
#: Types of a request's values.
_TYPES: Final = ("<f4", "<f2", "u1", "i1", "<i2")
#: Bytes of a part: a device stops at its deadline with few of them under way.
_PART_BYTES: Final = 64 * 1024
#: Of compression: most of what can be gained, in little time.
_LEVEL: Final = 1


# -- encoding ------------------------------------------------------------------------------


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
    """Encode a part; WireError if it is larger than :data:`MAX_PAYLOAD`."""
    return write_map({"v": WIRE_VERSION, "id": part.id, "i": part.index, "x": part.content})


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
    x, extra = typed_array(request.X, request.X.dtype.newbyteorder("<").str), {}
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
        return write_map(message | {"e": response.error, "d": response.detail} | wait)
    if response.parts_to:
        return write_map(message | {"to": response.parts_to})
    message |= {
        "n": response.rows,
        "c": response.probabilities.shape[1],
        "y": typed_array(response.labels, "<u2"),
        "p": typed_array(response.probabilities, "<f4"),
        "us": response.worker_us,
    }
    if response.exits is not None:
        message["s"] = typed_array(response.exits, "<u2")
    return write_map(message)


# -- decoding ------------------------------------------------------------------------------


def decode_request(
    payload: bytes, *, allow_missing: bool = False, content: bytes | None = None
) -> Request:
    """Decode a request from an untrusted sender; `content` is what came behind it in parts.

    A worker that serves models with and without missing values passes `allow_missing` and checks
    :attr:`Request.has_missing` once it has the model. Raises WireError, with the message's `id`
    where one could be read.
    """
    message = read_map(payload)
    try:
        parts = _parts(message) if message.has("xp") and content is None else None
        values: dict[str, Any] = {"parts": parts}
        if message.has("f"):
            file = message.file("x", "f", JPEG)
            values["jpeg"] = file if content is None else content
        else:
            shape = (message.integer("n", 1, MAX_ROWS), message.integer("k", 1, MAX_COLUMNS))
            deflated = message.has("z")
            behind = None if parts is None else parts.size
            values["X"] = message.array(
                "x", shape, *_TYPES, deflated=deflated, in_parts=behind, content=content
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


def _parts(message: Entries) -> AnnouncedParts:
    size, count = message.integer("xb", 1, MAX_VALUES), message.integer("xp", 1, MAX_PARTS)
    return AnnouncedParts(size, count, message.bytes_of("xh"))


def decode_part(payload: bytes) -> Part:
    """Decode a part from an untrusted sender; raises WireError as :func:`decode_request`."""
    message = read_map(payload)
    try:
        index = message.integer("i", 0, MAX_PARTS - 1)
        return Part(message.id, index, message.bytes_of("x"))
    except WireError as error:
        error.id = message.id
        raise


def _audit(message: Entries) -> AuditMark:
    return AuditMark(
        class_index=message.integer("a", 0, MAX_CLASSES),
        probability=message.integer("ap", 1, _MILLION) / _MILLION,
        skipped=message.integer("an", 0, MAX_SKIPPED),
    )


def decode_response(payload: bytes) -> Response:
    """Decode a response from an untrusted sender; raises WireError as :func:`decode_request`."""
    message = read_map(payload)
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
