"""Fields of the messages of an ONNX file: taken one by one, counted, and none twice.

What another reader might understand otherwise (a field twice, of another kind, or one that is
not known) is refused.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from gatewise_export.onnx_files.protobuf import BYTES, Field, Malformed, Wire

__all__ = ["LONGEST_NAME", "Fields", "signed"]

LONGEST_NAME: Final = 4096

Found = dict[int, list[Field]]


class Fields:
    """Fields of messages.

    Parameters
    ----------
    content : bytes
    most_parts : int
        Fields that the whole file may have; long lists of numbers count as one.
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
        if field.end - field.start > LONGEST_NAME:
            raise Malformed(f"a name longer than {LONGEST_NAME} B")
        try:
            return str(self.wire.bytes(field.start, field.end), "utf-8")
        except UnicodeDecodeError:
            raise Malformed("a name that is not UTF-8") from None

    def number(self, found: Found, number: int) -> int:
        """A number with its sign; 0 where the field is missing."""
        if number not in found:
            return 0
        return signed(found[number][0].value)

    def metadata(self, fields: Collection[Field]) -> dict[str, str]:
        metadata: dict[str, str] = {}
        for f in fields:
            entry = self.fields("metadata", f.start, f.end, {1: BYTES, 2: BYTES})
            text = ""
            if 2 in entry:
                text = self.wire.bytes(entry[2][0].start, entry[2][0].end).decode(
                    "utf-8", "replace"
                )
            metadata[self.name(entry, 1)] = text
        return metadata


def signed(value: int) -> int:
    """Read 64 bits as a number with a sign."""
    return value - (1 << 64) if value >> 63 else value
