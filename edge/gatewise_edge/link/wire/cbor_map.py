"""A message as one CBOR map with a checksum: written, and read from untrusted senders. Pure.

What a map may hold and how large it may be is said in :mod:`.encoding`.
"""

from __future__ import annotations

import io
import math
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import cbor2
import numpy as np
from numpy.typing import NDArray

from gatewise_edge.checks import (
    MAX_NAME,
    MAX_PAYLOAD,
    MAX_VALUES,
    check_id,
    check_int,
    check_text,
)
from gatewise_edge.errors import WireError

#: Layout of messages.
WIRE_VERSION: Final = 1
MAX_ENTRIES: Final = 32
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


def typed_array(array: NDArray[Any], dtype: str) -> cbor2.CBORTag:
    """Make a typed array (RFC 8746) of little-endian values."""
    data = np.ascontiguousarray(array, np.dtype(dtype))
    return cbor2.CBORTag(_TAGS[data.dtype], data.tobytes())


def write_map(message: dict[str, Any]) -> bytes:
    """Encode a message with its checksum; WireError if it is larger than :data:`MAX_PAYLOAD`."""
    covered = cbor2.dumps(message | {"crc": bytes(4)})[:-4]
    payload: bytes = covered + _checksum(covered)
    if len(payload) > MAX_PAYLOAD:
        raise WireError("size", f"a message of {len(payload)} bytes; at most {MAX_PAYLOAD} may go")
    return payload


def _checksum(covered: bytes | memoryview) -> bytes:
    return zlib.crc32(covered).to_bytes(4, "big")


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
            inner = value.value if isinstance(value, _Tagged) else value
            if isinstance(inner, list | tuple | dict | _Tagged):
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

    def file(self, key: str, form_key: str, form: str) -> bytes:
        """Return a byte string, its form named by another entry."""
        found, value = self.text(form_key), self._entries.get(key)
        if found != form or type(value) is not bytes:
            raise WireError("type", f"{form_key!r} is not {form!r}, or {key!r} no byte string")
        return value

    def bytes_of(self, key: str) -> bytes:
        """Return a byte string."""
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
        in_parts: int | None = None,
        content: bytes | None = None,
    ) -> NDArray[Any]:
        """Return an array of one of `dtypes`, in this machine's byte order.

        Its bytes are the entry's, or `content` in their place; or `in_parts` bytes that are not
        there yet: then the values are 0.
        """
        typed = self._entries.get(key)
        if not isinstance(typed, _Tagged) or type(typed.value) is not bytes:
            raise WireError("type", f"{key!r} is not a typed array")
        dtype = _ARRAYS.get(typed.tag)
        if dtype is None or dtype not in [np.dtype(d) for d in dtypes]:
            raise WireError("type", f"{key!r} is a typed array of tag {typed.tag}, not of {dtypes}")
        size = math.prod(shape) * dtype.itemsize
        content = typed.value if content is None else content
        if in_parts is not None:
            if content or size > MAX_VALUES or not (deflated or size == in_parts):
                raise WireError("shape", f"{key!r} comes in {in_parts} bytes, not as {shape}")
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


def read_map(payload: bytes) -> Entries:
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
    return Entries(entries)
