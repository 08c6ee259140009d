"""Parts of an ONNX file, as :mod:`.onnx_reader` reads them.

Numbers are fetched from the file when they are asked for, so that a file can be looked over
before any memory is spent on it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gatewise_export.onnx_files.protobuf import FIXED32, FIXED64, VARINT, Malformed, Run, Wire

ML_DOMAIN: Final = "ai.onnx.ml"
FLOAT: Final = 1
INT64: Final = 7
STRING: Final = 8

#: TensorProto.DataType and the type that numpy has for it
DTYPES: Final[dict[int, type]] = {
    1: np.float32, 2: np.uint8, 3: np.int8, 4: np.uint16, 5: np.int16, 6: np.int32, 7: np.int64,
    9: np.bool_, 10: np.float16, 11: np.float64, 12: np.uint32, 13: np.uint64,
}  # fmt: skip
#: TensorProto: the list that a type's numbers are in where they are not raw bytes
_FIELD_OF: Final = {
    1: 4, 2: 5, 3: 5, 4: 5, 5: 5, 6: 5, 7: 7, 9: 5, 10: 5, 11: 10, 12: 11, 13: 11,
}  # fmt: skip
FIXED_FIELDS: Final = {4: FIXED32, 5: VARINT, 7: VARINT, 10: FIXED64, 11: VARINT}

#: AttributeProto.AttributeType
_FLOATS, _INTS = 6, 7

Shape = tuple[int | str | None, ...]


@dataclass(frozen=True, eq=False, slots=True)
class Tensor:
    """A constant.

    `kind`: TensorProto.DataType. `shape`: as the file says; :meth:`check` holds it against the
    bytes. `external`: whether it says that its bytes are in another file.
    """

    name: str
    kind: int
    shape: tuple[int, ...]
    external: bool
    raw: tuple[int, int] | None
    runs: Mapping[int, tuple[Run, ...]]
    texts: tuple[tuple[int, int], ...]
    wire: Wire

    @property
    def size(self) -> int:
        """Number of elements, as the shape says."""
        return math.prod(self.shape)

    def check(self) -> None:
        """Hold shape and type against the bytes that are there."""
        if self.external:
            raise Malformed(f"tensor {self.name!r} keeps its data in another file")
        if any(not 0 <= d < 1 << 31 for d in self.shape):
            raise Malformed(f"tensor {self.name!r} has an impossible shape {self.shape}")
        if self.kind != STRING and self.kind not in DTYPES:
            raise Malformed(f"tensor {self.name!r} is of an unknown type {self.kind}")
        counts = {n: sum(r.count for r in runs) for n, runs in self.runs.items()}
        counts[6] = len(self.texts)
        own = 6 if self.kind == STRING else _FIELD_OF[self.kind]
        listed = counts.pop(own, 0)
        if any(counts.values()) or (self.raw is not None and (listed or self.kind == STRING)):
            raise Malformed(f"tensor {self.name!r} holds data of several kinds")
        if self.raw is not None:
            width = np.dtype(DTYPES[self.kind]).itemsize
            there, rest = divmod(self.raw[1] - self.raw[0], width)
            listed = -1 if rest else there
        if listed != self.size:
            raise Malformed(
                f"tensor {self.name!r} of shape {self.shape} does not hold {self.size} elements"
            )

    def array(self) -> NDArray[Any]:
        """Its numbers (a tensor of texts has none), read-only."""
        self.check()
        if self.kind == STRING:
            raise Malformed(f"tensor {self.name!r} holds texts")
        dtype = np.dtype(DTYPES[self.kind])
        if self.raw is not None:
            content = self.wire.bytes(*self.raw)
            return (
                np.frombuffer(content, dtype.newbyteorder("<"))
                .astype(dtype, copy=False)
                .reshape(self.shape)
            )
        number = _FIELD_OF[self.kind]
        parts = [self._listed(run, dtype) for run in self.runs.get(number, ())]
        flat = np.concatenate([np.zeros(0, dtype), *parts])
        flat.setflags(write=False)
        return flat.reshape(self.shape)

    def _listed(self, run: Run, dtype: np.dtype[Any]) -> NDArray[Any]:
        if run.kind == VARINT:
            numbers = self.wire.integers(run)
            if dtype == np.float16:  # its bits stand in the list
                return numbers.astype(np.uint16).view(np.float16)
            return numbers.astype(dtype)
        return self.wire.fixed(run, np.float64 if run.kind == FIXED64 else np.float32)


@dataclass(frozen=True, eq=False, slots=True)
class Attribute:
    """A setting of a node.

    `kind`: AttributeProto.AttributeType: 1 float, 2 int, 3 text, 4 tensor, 5 graph; 6 to 10 lists
    of these. `held`: its value; for lists of numbers where they lie.
    """

    name: str
    kind: int
    held: Any
    wire: Wire

    def __len__(self) -> int:
        """Number of entries of a list; 1 for a single value."""
        if self.kind in (_FLOATS, _INTS):
            return sum(run.count for run in self.held)
        return len(self.held) if self.kind > _FLOATS else 1

    @property
    def value(self) -> Any:
        """float, int, bytes, Tensor, Graph; float32 or int64 array; tuple of the rest."""
        if self.kind not in (_FLOATS, _INTS):
            return self.held
        if self.kind == _INTS:
            parts = [self.wire.integers(run) for run in self.held]
            return np.concatenate(parts) if parts else np.zeros(0, np.int64)
        floats = [self.wire.fixed(run, np.float32) for run in self.held]
        return np.concatenate(floats) if floats else np.zeros(0, np.float32)


@dataclass(frozen=True, eq=False, slots=True)
class Node:
    """One operation."""

    op_type: str
    domain: str
    name: str
    overload: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Attribute]

    def get(self, name: str, default: Any = None) -> Any:
        """Value of an attribute."""
        attribute = self.attributes.get(name)
        return default if attribute is None else attribute.value


@dataclass(frozen=True, slots=True)
class ValueInfo:
    """A graph's description of an input or output.

    `kind`: ``tensor``, ``sequence``, ``map``, ``opaque``, ``sparse``, ``optional`` or ``nothing``.
    `element`: a tensor's TensorProto.DataType. `shape`: a tensor's: numbers, names, None where
    nothing is said; None altogether without a shape.
    """

    name: str
    kind: str
    element: int
    shape: Shape | None


@dataclass(frozen=True, eq=False, slots=True)
class Graph:
    """Nodes in order, and the constants and values that they use."""

    name: str
    nodes: tuple[Node, ...]
    initializers: tuple[Tensor, ...]
    inputs: tuple[ValueInfo, ...]
    outputs: tuple[ValueInfo, ...]
    values: tuple[ValueInfo, ...]
    n_sparse: int


@dataclass(frozen=True, eq=False, slots=True)
class Model:
    """An ONNX file.

    `opsets`: version of each operator domain; "" is ONNX's own. `functions`: names of functions
    that it brings along. `others`: parts that were passed over: ``training``, ``devices``.
    """

    ir_version: int
    opsets: Mapping[str, int]
    graph: Graph
    functions: tuple[str, ...]
    others: tuple[str, ...]
