"""Strict reader of protocol buffers' wire format: standard library and numpy alone.

A message is a row of fields, each a number, one of four kinds of value, and the value. Nothing is
copied or reserved on a length's word: a length that reaches beyond its message is refused, and
what a field holds stays where it is until it is asked for. Refused is also what another reader
might understand otherwise: groups, which no current writer makes, and a field twice, of another
kind, or not known. Long lists of numbers, one field each, are read with numpy, some million a
second.

Source: https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

VARINT: Final = 0
FIXED64: Final = 1
BYTES: Final = 2
FIXED32: Final = 5

_MASK: Final = (1 << 64) - 1
_LONGEST: Final = 10  # bytes of a varint
_BLOCK: Final = 1 << 16
_LONGEST_NAME: Final = 4096


class Malformed(ValueError):  # noqa: N818 - a reason, which the reader puts a file's name to
    """Bytes that are no message of the wire format; the text says why."""


@dataclass(frozen=True, slots=True)
class Field:
    """One field: `value` is a varint's number; else the value lies in bytes `start` to `end`."""

    number: int
    kind: int
    start: int
    end: int
    value: int


@dataclass(frozen=True, slots=True)
class Run:
    """Numbers one after another: a tag before each, or, packed, none (`tag` is None)."""

    kind: int
    start: int
    end: int
    tag: int | None
    count: int


Found = dict[int, list[Field]]
"""Fields of a message by their numbers."""


class Wire:
    """Bytes to be read as messages.

    >>> wire = Wire(bytes([0x08, 0x96, 0x01, 0x12, 0x02, 0x68, 0x69]))
    >>> [(f.number, f.value or wire.bytes(f.start, f.end)) for f in wire.fields(0, 7)]
    [(1, 150), (2, b'hi')]
    """

    def __init__(self, content: bytes) -> None:
        self.content = content
        self._array = np.frombuffer(content, np.uint8)

    def bytes(self, start: int, end: int) -> bytes:
        """Copy a part."""
        return self.content[start:end]

    def varint(self, at: int, end: int) -> tuple[int, int]:
        """Read a number of 64 bits without a sign; gives it and where it ends."""
        content, number, shift = self.content, 0, 0
        while at < end:
            byte = content[at]
            at += 1
            number |= (byte & 127) << shift
            if byte < 128:
                return number & _MASK, at
            shift += 7
            if shift == 7 * _LONGEST:
                raise Malformed("a number of more than 10 bytes")
        raise Malformed("it ends within a number")

    def field(self, at: int, end: int) -> tuple[Field, int]:
        """Read the field that starts at `at`; gives it and where the next one starts."""
        tag, at = self.varint(at, end)
        number, kind = tag >> 3, tag & 7
        if not 0 < number < 1 << 29:
            raise Malformed(f"a field of the impossible number {number}")
        if kind == VARINT:
            value, stop = self.varint(at, end)
            return Field(number, kind, at, stop, value), stop
        if kind == BYTES:
            length, at = self.varint(at, end)
        elif kind in (FIXED32, FIXED64):
            length = 4 if kind == FIXED32 else 8
        else:
            raise Malformed(f"a field of kind {kind}, which nothing writes")
        if length > end - at:
            raise Malformed(f"a length of {length} B where {end - at} B are left")
        return Field(number, kind, at, at + length, 0), at + length

    def fields(self, start: int, end: int) -> Iterator[Field]:
        """Read the fields of a message one after another."""
        while start < end:
            field, start = self.field(start, end)
            yield field

    # -- long lists ------------------------------------------------------------------------

    def run(self, at: int, end: int, tag: int) -> Run:
        """Find how many fields of the same one-byte tag stand here, one number each."""
        start, count, kind = at, 0, tag & 7
        while at < end:
            if kind == FIXED32:
                whole = self._array[at : min(end, at + 5 * _BLOCK)]
                tags = whole[: len(whole) // 5 * 5 : 5] == tag
                found = len(tags) if tags.all() else int(tags.argmin())
                step = 5 * found
            else:
                lasts = self._pairs(at, end, tag)[1]
                found = len(lasts)
                step = int(lasts[-1]) + 1 if found else 0
            if not found:
                break
            at, count = at + step, count + found
        return Run(kind, start, at, tag, count)

    def packed(self, start: int, end: int, kind: int) -> Run:
        """Describe the packed numbers in a part of the bytes."""
        if kind == VARINT:
            count = int(np.count_nonzero(self._array[start:end] < 128))
            if end > start and self.content[end - 1] >= 128:
                raise Malformed("it ends within a number")
        else:
            size = 4 if kind == FIXED32 else 8
            count, rest = divmod(end - start, size)
            if rest:
                raise Malformed(f"{end - start} B of packed numbers of {size} B each")
        return Run(kind, start, end, None, count)

    def integers(self, run: Run) -> NDArray[np.int64]:
        """Read the numbers of a run of kind VARINT."""
        out = np.empty(run.count, np.int64)
        at, done = run.start, 0
        while done < run.count:
            firsts, lasts = self._pairs(at, run.end, run.tag)
            if not len(lasts):
                raise Malformed("a number of more than 10 bytes")
            values = np.zeros(len(lasts), np.uint64)
            lengths = lasts - firsts + 1
            for byte in range(int(lengths.max())):
                more = np.flatnonzero(lengths > byte)
                part = self._array[at + firsts[more] + byte] & np.uint8(127)
                values[more] |= part.astype(np.uint64) << np.uint64(7 * byte)
            out[done : done + len(lasts)] = values.view(np.int64)
            done += len(lasts)
            at += int(lasts[-1]) + 1
        return out

    def fixed(self, run: Run, dtype: type) -> NDArray[np.generic]:
        """Read the numbers of a run of kind FIXED32 or FIXED64."""
        part = self._array[run.start : run.end]
        if run.tag is not None:
            part = part.reshape(-1, 5)[:, 1:]
        return np.ascontiguousarray(part).reshape(-1).view(np.dtype(dtype).newbyteorder("<"))

    def _pairs(
        self, at: int, end: int, tag: int | None
    ) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """First and last bytes, counted from `at`, of the next numbers: a block's, whole ones."""
        block = self._array[at : min(end, at + _BLOCK)]
        ends = np.flatnonzero(block < 128)  # a tag of one byte ends where it starts
        starts = np.empty_like(ends)
        starts[:1], starts[1:] = 0, ends[:-1] + 1
        if tag is not None:
            ends, starts = ends[: len(ends) // 2 * 2], starts[: len(ends) // 2 * 2]
            tags, good = starts[::2], (ends[::2] == starts[::2])
            good &= block[tags] == tag
            starts, ends = starts[1::2], ends[1::2]
        else:
            good = np.ones(len(ends), np.bool_)
        good &= ends - starts < _LONGEST
        whole = len(good) if good.all() else int(good.argmin())
        return starts[:whole], ends[:whole]


class Fields:
    """Fields of messages, counted, and none twice.

    `most_parts`: fields that the whole file may have; long lists of numbers count as one.
    """

    def __init__(self, content: bytes, most_parts: int) -> None:
        self.wire = Wire(content)
        self.parts = most_parts

    def fields(
        self, where: str, start: int, end: int, known: dict[int, int], *, many: Collection[int] = ()
    ) -> Found:
        found: Found = {}
        for field in self.wire.fields(start, end):
            self.take(found, where, field, known, many)
        return found

    def take(
        self,
        found: Found,
        where: str,
        field: Field,
        known: dict[int, int],
        many: Collection[int],
    ) -> None:
        number = field.number
        if known.get(number) != field.kind:
            what = "kind" if number in known else "number"
            raise Malformed(f"{where} has a field ({number}) of an unknown {what}")
        if number in found and number not in many:
            raise Malformed(f"{where} has a field ({number}) twice")
        self.part()
        found.setdefault(number, []).append(field)

    def loose(self, start: int, end: int) -> Found:
        """Fields of a message that is refused or passed over: any, but bounded."""
        found: Found = {}
        for field in self.wire.fields(start, end):
            self.part()
            found.setdefault(field.number, []).append(field)
        return found

    def part(self) -> None:
        """Count one more part of the file."""
        self.parts -= 1
        if self.parts < 0:
            raise Malformed("too many nodes, attributes, tensors or names")

    def name(self, found: Found, number: int) -> str:
        """A short text; empty where the field is missing."""
        return self.text(found[number][0]) if number in found else ""

    def text(self, field: Field) -> str:
        """The short text of one field."""
        if field.end - field.start > _LONGEST_NAME:
            raise Malformed(f"a name longer than {_LONGEST_NAME} B")
        try:
            return str(self.wire.bytes(field.start, field.end), "utf-8")
        except UnicodeDecodeError:
            raise Malformed("a name that is not UTF-8") from None

    def number(self, found: Found, number: int) -> int:
        """A number with its sign; 0 where the field is missing."""
        if number not in found:
            return 0
        return signed(found[number][0].value)


def signed(value: int) -> int:
    """Read 64 bits as a number with a sign."""
    return value - (1 << 64) if value >> 63 else value
