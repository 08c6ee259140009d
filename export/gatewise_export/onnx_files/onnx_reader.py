"""Reader of untrusted ONNX files without the `onnx` package: a device has none.

Reading takes little memory whatever the bytes say: lists of numbers and tensors stay where they
are in the file until they are asked for, every length is checked, nesting, texts and parts are
bounded, and what another reader might understand otherwise is refused. What was read is not yet
fit to be run: :mod:`.graph_rules` says what is.

Source: onnx.proto of ONNX 1.23 (https://github.com/onnx/onnx/blob/main/onnx/onnx.proto).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

from gatewise_export.bundle.errors import BundleError
from gatewise_export.onnx_files import onnx_parts
from gatewise_export.onnx_files.protobuf import (
    BYTES,
    FIXED32,
    FIXED64,
    VARINT,
    Field,
    Fields,
    Found,
    Malformed,
    Run,
    signed,
)

MOST_BYTES: Final = 1 << 30
MOST_PARTS: Final = 200_000
"""Nodes, attributes, tensors, names and the like of a file."""
MOST_TEXTS: Final = 32 << 20
"""Texts in lists of texts: the kinds of nodes of trees."""
MOST_WORDS: Final = 1024
MOST_DIMENSIONS: Final = 32
DEEPEST: Final = 4
"""Graphs inside graphs, and types inside types."""

_INT, _INTS, _FLOATS, _STRINGS = 2, 7, 6, 8
#: AttributeProto: the declared type, and the fields that its value may be in
_VALUES: Final = {
    1: (2,), 2: (3,), 3: (4,), 4: (5,), 5: (6,), 6: (7,), 7: (8,), 8: (9,), 9: (10,), 10: (11,),
}  # fmt: skip
_ATTRIBUTE_VALUES: Final = frozenset({2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 14, 15, 22, 23})

Part = TypeVar("Part")


def read_model(
    content: bytes,
    file: str = "the graph",
    *,
    most_bytes: int = MOST_BYTES,
    most_parts: int = MOST_PARTS,
    most_texts: int = MOST_TEXTS,
) -> onnx_parts.Model:
    """Read an ONNX file of bounded size, parts (nodes, tensors, names) and texts in lists."""
    if len(content) > most_bytes:
        raise BundleError(f"{file} is too large: {len(content)} B, {most_bytes} are allowed")
    try:
        return _Reader(content, most_parts, most_texts).model()
    except Malformed as error:
        raise BundleError(f"{file} is not a usable ONNX file: {error}") from None


class _Reader(Fields):
    """Messages of onnx.proto, one method each; `start` and `end` say where one lies."""

    def __init__(self, content: bytes, most_parts: int, most_texts: int) -> None:
        super().__init__(content, most_parts)
        self.size = len(content)
        self.texts = most_texts
        self.words: dict[bytes, bytes] = {}  # equal texts are held once

    def model(self) -> onnx_parts.Model:
        known = {
            1: VARINT, 2: BYTES, 3: BYTES, 4: BYTES, 5: VARINT, 6: BYTES, 7: BYTES, 8: BYTES,
            14: BYTES, 20: BYTES, 25: BYTES, 26: BYTES,
        }  # fmt: skip
        found = self.fields("the model", 0, self.size, known, many={8, 14, 20, 25, 26})
        if 7 not in found:
            raise Malformed("it holds no graph")
        opsets: dict[str, int] = {}
        for f in found.get(8, ()):
            one = self.fields("an operator set", f.start, f.end, {1: BYTES, 2: VARINT})
            domain = self.name(one, 1)
            if opsets.setdefault(domain, self.number(one, 2)) != self.number(one, 2):
                raise Malformed(f"operator set {domain!r} stands in two versions")
        functions = [self.name(self.loose(f.start, f.end), 1) for f in found.get(25, ())]
        return onnx_parts.Model(
            ir_version=self.number(found, 1),
            opsets=opsets,
            graph=self.graph(found[7][0], 0),
            functions=tuple(functions),
            others=tuple(w for n, w in ((20, "training"), (26, "devices")) if n in found),
        )

    def graph(self, at: Field, depth: int) -> onnx_parts.Graph:
        if depth > DEEPEST:
            raise Malformed(f"graphs inside graphs, more than {DEEPEST} deep")
        known = dict.fromkeys((1, 2, 5, 10, 11, 12, 13, 14, 15, 16), BYTES)
        many = {1, 5, 11, 12, 13, 14, 15, 16}
        found = self.fields("a graph", at.start, at.end, known, many=many)

        def each(number: int, read: Callable[[Field], Part]) -> tuple[Part, ...]:
            return tuple(read(f) for f in found.get(number, ()))

        return onnx_parts.Graph(
            name=self.name(found, 2),
            nodes=each(1, lambda f: self.node(f, depth)),
            initializers=each(5, self.tensor),
            inputs=each(11, self.value_info),
            outputs=each(12, self.value_info),
            values=each(13, self.value_info),
            n_sparse=len(found.get(15, ())),
        )

    def node(self, at: Field, depth: int) -> onnx_parts.Node:
        known = dict.fromkeys((1, 2, 3, 4, 5, 6, 7, 8, 9, 10), BYTES)
        found = self.fields("a node", at.start, at.end, known, many={1, 2, 5, 9, 10})
        attributes: dict[str, onnx_parts.Attribute] = {}
        for f in found.get(5, ()):
            attribute = self.attribute(f, depth)
            if attribute.name in attributes:
                raise Malformed(f"attribute {attribute.name!r} of a node stands twice")
            attributes[attribute.name] = attribute
        return onnx_parts.Node(
            op_type=self.name(found, 4),
            domain=self.name(found, 7),
            name=self.name(found, 3),
            overload=self.name(found, 8),
            inputs=tuple(self.text(f) for f in found.get(1, ())),
            outputs=tuple(self.text(f) for f in found.get(2, ())),
            attributes=attributes,
        )

    # -- attributes ------------------------------------------------------------------------

    def attribute(self, at: Field, depth: int) -> onnx_parts.Attribute:
        """Read one pass; lists of numbers stay where they are."""
        found: Found = {}
        runs: dict[int, list[Run]] = {}
        texts: list[bytes] = []
        place, wire = at.start, self.wire
        while place < at.end:
            tag = wire.content[place]
            if tag in (_FLOATS_TAG, _INTS_TAG):
                run = wire.run(place, at.end, tag)
                if run.count:
                    runs.setdefault(tag >> 3, []).append(run)
                    place = run.end
                    continue
            elif tag == _TEXTS_TAG:
                place = self._words(place, at.end, texts)
                if place == at.end:
                    break
            field, place = wire.field(place, at.end)
            number, kind = field.number, field.kind
            if number == 9 and kind == BYTES:
                texts.append(self._word(field))
            elif number in (7, 8) and kind in (BYTES, FIXED32 if number == 7 else VARINT):
                runs.setdefault(number, []).append(self._run(field, number))
            else:
                self.take(found, "an attribute", field, _ATTRIBUTE_FIELDS, {10, 11, 15, 23})
        name = self.name(found, 1)
        declared = self.number(found, 20)
        if declared not in _VALUES:
            raise Malformed(f"attribute {name!r} is of an unknown or unusable type {declared}")
        given = (set(found) | set(runs) | ({9} if texts else set())) & _ATTRIBUTE_VALUES
        if not given <= set(_VALUES[declared]) or self.name(found, 21):
            raise Malformed(f"attribute {name!r} holds another value than its type says")
        value: Any = None
        if declared in (_FLOATS, _INTS):
            (number,) = _VALUES[declared]
            value = tuple(runs.get(number, ()))
        elif declared == _STRINGS:
            value = tuple(texts)
        else:
            value = self._single(found, declared, depth)
        return onnx_parts.Attribute(name, declared, value, wire)

    def _single(self, found: Found, declared: int, depth: int) -> Any:
        number = _VALUES[declared][0]
        fields = found.get(number, [])
        if declared == 1:
            return self._float(fields)
        if declared == _INT:
            return self.number(found, number)
        if declared == 3:
            return self.wire.bytes(fields[0].start, fields[0].end) if fields else b""
        if declared in (4, 5) and not fields:
            raise Malformed("an attribute without its tensor or graph")
        if declared == 4:
            return self.tensor(fields[0])
        if declared == 5:
            return self.graph(fields[0], depth + 1)
        if declared == 9:
            return tuple(self.tensor(f) for f in fields)
        return tuple(self.graph(f, depth + 1) for f in fields)

    def _float(self, fields: list[Field]) -> float:
        if not fields:
            return 0.0
        run = self.wire.packed(fields[0].start, fields[0].end, FIXED32)
        return float(self.wire.fixed(run, onnx_parts.DTYPES[1])[0])

    def _words(self, at: int, end: int, texts: list[bytes]) -> int:
        """Read the short texts that stand here, one field each; gives where that ends."""
        content, words, first = self.wire.content, self.words, len(texts)
        most = first + self.texts
        while at + 1 < end and content[at] == _TEXTS_TAG:
            length = content[at + 1]
            stop = at + 2 + length
            if length > 127 or stop > end:
                break
            word = content[at + 2 : stop]
            texts.append(words.get(word) or self._new_word(word))
            if len(texts) > most:
                raise Malformed("too many texts in lists of texts")
            at = stop
        self.texts -= len(texts) - first
        return at

    def _word(self, field: Field) -> bytes:
        self.texts -= 1
        if self.texts < 0:
            raise Malformed("too many texts in lists of texts")
        word = self.wire.bytes(field.start, field.end)
        return self.words.get(word) or self._new_word(word)

    def _new_word(self, word: bytes) -> bytes:
        """Hold equal texts once; others are parts of the file like any."""
        if word:
            self.part()
            if len(self.words) < MOST_WORDS:
                self.words[word] = word
        return word

    # -- tensors, types --------------------------------------------------------------------

    def tensor(self, at: Field) -> onnx_parts.Tensor:
        """Read what a tensor says of itself; its numbers stay where they are."""
        known = {
            1: VARINT, 2: VARINT, 3: BYTES, 4: FIXED32, 5: VARINT, 6: BYTES, 7: VARINT, 8: BYTES,
            9: BYTES, 10: FIXED64, 11: VARINT, 12: BYTES, 13: BYTES, 14: VARINT, 16: BYTES,
        }  # fmt: skip
        found: Found = {}
        runs: dict[int, list[Run]] = {}
        dims: list[int] = []
        for field in self.wire.fields(at.start, at.end):
            number, kind = field.number, field.kind
            if number == 1 and kind in (VARINT, BYTES):
                dims += self._dims(field)
                if len(dims) > MOST_DIMENSIONS:
                    raise Malformed(f"a tensor of more than {MOST_DIMENSIONS} dimensions")
            elif number in onnx_parts.FIXED_FIELDS and kind in (known[number], BYTES):
                self.part()
                runs.setdefault(number, []).append(self._run(field, number, known[number]))
            else:
                self.take(found, "a tensor", field, known, {6, 13, 16})
        self.part()
        if 3 in found:
            raise Malformed("a tensor in segments, which nothing reads")
        raw = found.get(9)
        return onnx_parts.Tensor(
            name=self.name(found, 8),
            kind=self.number(found, 2),
            shape=tuple(dims),
            external=bool(self.number(found, 14)) or 13 in found,
            raw=None if raw is None else (raw[0].start, raw[0].end),
            runs={n: tuple(r) for n, r in runs.items()},
            texts=tuple((f.start, f.end) for f in found.get(6, ())),
            wire=self.wire,
        )

    def _dims(self, field: Field) -> list[int]:
        self.part()
        if field.kind == VARINT:
            return [signed(field.value)]
        run = self.wire.packed(field.start, field.end, VARINT)
        if run.count > MOST_DIMENSIONS:
            return [0] * run.count  # refused by whom asked
        return [int(d) for d in self.wire.integers(run)]

    def _run(self, field: Field, number: int, kind: int | None = None) -> Run:
        """The numbers of one field, alone or packed."""
        if field.kind == BYTES:
            kind = kind if kind is not None else (FIXED32 if number == 7 else VARINT)
            return self.wire.packed(field.start, field.end, kind)
        return Run(field.kind, field.start, field.end, None, 1)

    def value_info(self, at: Field) -> onnx_parts.ValueInfo:
        known = {1: BYTES, 2: BYTES, 3: BYTES, 4: BYTES}
        found = self.fields("a value", at.start, at.end, known, many={4})
        kind, element, shape = "nothing", 0, None
        if 2 in found:
            kind, element, shape = self._type(found[2][0], 0)
        return onnx_parts.ValueInfo(self.name(found, 1), kind, element, shape)

    def _type(self, at: Field, depth: int) -> tuple[str, int, tuple[int | str | None, ...] | None]:
        if depth > DEEPEST:
            raise Malformed(f"types inside types, more than {DEEPEST} deep")
        known = dict.fromkeys((1, 4, 5, 6, 7, 8, 9), BYTES)
        found = self.fields("a type", at.start, at.end, known)
        kinds = {1: "tensor", 4: "sequence", 5: "map", 7: "opaque", 8: "sparse", 9: "optional"}
        given = [n for n in kinds if n in found]
        if not given:
            return "nothing", 0, None
        if len(given) > 1:
            raise Malformed("a value of several types")
        (number,) = given
        inner = found[number][0]
        if number not in (1, 8):
            for field in self.loose(inner.start, inner.end).values():
                if field[0].kind == BYTES and number in (4, 5, 9):
                    self._type(field[0], depth + 1)
            return kinds[number], 0, None
        tensor = self.fields("a tensor's type", inner.start, inner.end, {1: VARINT, 2: BYTES})
        shape = self._shape(tensor[2][0]) if 2 in tensor else None
        return kinds[number], self.number(tensor, 1), shape

    def _shape(self, at: Field) -> tuple[int | str | None, ...]:
        shape: list[int | str | None] = []
        found = self.fields("a shape", at.start, at.end, {1: BYTES}, many={1})
        for f in found.get(1, ()):
            known = {1: VARINT, 2: BYTES, 3: BYTES}
            one = self.fields("a dimension", f.start, f.end, known)
            if 1 in one and 2 in one:
                raise Malformed("a dimension that is a number and a name")
            shape.append(self.number(one, 1) if 1 in one else self.name(one, 2) or None)
        return tuple(shape)


_FLOATS_TAG: Final = 7 << 3 | FIXED32
_INTS_TAG: Final = 8 << 3 | VARINT
_TEXTS_TAG: Final = 9 << 3 | BYTES
_ATTRIBUTE_FIELDS: Final = {
    1: BYTES, 2: FIXED32, 3: VARINT, 4: BYTES, 5: BYTES, 6: BYTES, 10: BYTES, 11: BYTES,
    13: BYTES, 14: BYTES, 15: BYTES, 20: VARINT, 21: BYTES, 22: BYTES, 23: BYTES,
}  # fmt: skip
