"""Rules for a given stage's graph: common operators of classifiers, each result's shape known.

A stage that was given as an ONNX file may convolve, pool and multiply. Its operators are those
of :mod:`.operator_shapes`, without any that loop, branch or make a result as large as a value
says. Every shape follows from that of the input before anything runs, so that values and work are
bounded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from gatewise_export.onnx_files.onnx_parts import FLOAT, INT64, Model, Node, Tensor
from gatewise_export.onnx_files.protobuf import Malformed
from gatewise_export.onnx_files.shapes import (
    ROWS,
    Shape,
    checked_axis,
    joint_shape,
    row_size,
    written,
)

MOST_GIVEN_PARTS: Final = 65_536
MOST_NODES: Final = 4096
MOST_ELEMENTS: Final = 1 << 25
"""Numbers that all values of a graph may hold together for one row (128 MiB)."""
MOST_WORK: Final = 1 << 34
"""Multiplications for one row: seconds on a small device."""
MOST_NUMBERS: Final = 1024
"""Numbers of a constant that shapes may follow from."""


@dataclass
class GraphTotals:
    """What the nodes of a graph take together for one row."""

    elements: int = 0
    work: int = 0
    tree_nodes: int = 0

    def add_elements(self, shape: Shape) -> None:
        self.elements += row_size(shape)
        if self.elements > MOST_ELEMENTS:
            raise Malformed(f"its values hold more than {MOST_ELEMENTS} numbers a row")

    def add_work(self, work: int) -> None:
        self.work += work
        if self.work > MOST_WORK:
            raise Malformed(f"it takes more than {MOST_WORK} multiplications a row")


@dataclass(frozen=True)
class KnownValue:
    """What is certain of a value before anything runs: its shape; numbers, if they are few."""

    shape: Shape
    numbers: NDArray[np.int64] | None = None

    @classmethod
    def of_constant(cls, tensor: Tensor) -> Self:
        tensor.check()
        few = tensor.kind == INT64 and tensor.size <= MOST_NUMBERS
        return cls(tensor.shape, tensor.array().astype(np.int64) if few else None)


@dataclass(frozen=True)
class OperatorCall:
    """A node with what is certain of its inputs."""

    node: Node
    inputs: list[KnownValue | None]
    totals: GraphTotals

    def shape(self, place: int = 0) -> Shape:
        value = self.inputs[place] if place < len(self.inputs) else None
        if value is None:
            raise Malformed(f"it has no input {place}")
        return value.shape

    def numbers(self, place: int, attribute: str = "") -> list[int] | None:
        """Whole numbers of a constant input, or of an attribute, as in older versions; or None."""
        if attribute and attribute in self.node.attributes:
            return self.listed(attribute)
        value = self.inputs[place] if place < len(self.inputs) else None
        if value is None:
            return None
        if value.numbers is None:
            raise Malformed(f"its input {place} must be a constant of few numbers")
        return [int(i) for i in value.numbers.reshape(-1)]

    def listed(self, attribute: str) -> list[int] | None:
        """Whole numbers of an attribute; or None."""
        if attribute not in self.node.attributes:
            return None
        return [int(i) for i in np.atleast_1d(self.node.get(attribute))]

    def number(self, name: str, default: int) -> int:
        return int(self.node.get(name, default))

    def axis(self, name: str, default: int, ndim: int) -> int:
        return checked_axis(self.number(name, default), ndim)


Rule = Callable[[OperatorCall], KnownValue | list[KnownValue]]


def check_given(
    model: Model, rules: Mapping[str, Mapping[str, Rule]], n_inputs: int, n_outputs: int
) -> None:
    """Check a graph from ``x``, float32 (n, n_inputs), to ``margins``, float32 (n, n_outputs).

    `rules` are those of the operators that it may hold, by domain and name.
    """
    _GivenCheck(model, rules).check(n_inputs, n_outputs)


class _GivenCheck:
    def __init__(self, model: Model, rules: Mapping[str, Mapping[str, Rule]]) -> None:
        self.model, self.rules = model, rules
        self.values: dict[str, KnownValue] = {}
        self.totals = GraphTotals()

    def check(self, n_inputs: int, n_outputs: int) -> None:
        graph = self.model.graph
        constants = {tensor.name for tensor in graph.initializers}
        for what, values, name in (
            ("inputs", [v for v in graph.inputs if v.name not in constants], "x"),
            ("outputs", graph.outputs, "margins"),
        ):
            ends = [(v.name, v.kind, v.element) for v in values]
            if ends != [(name, "tensor", FLOAT)]:
                raise Malformed(f"its {what} are not {name!r} alone, a float32 tensor")
        if len(graph.nodes) > MOST_NODES:
            raise Malformed(f"it has {len(graph.nodes)} nodes, more than {MOST_NODES}")
        self.add("x", KnownValue((ROWS, n_inputs)))
        for tensor in graph.initializers:
            self.add(tensor.name, KnownValue.of_constant(tensor))
        for node in graph.nodes:
            try:
                self.node(node)
            except Malformed as error:
                raise Malformed(f"{node.op_type[:64]}: {error}") from None
            except (TypeError, ValueError, IndexError, ArithmeticError):
                raise Malformed(
                    f"{node.op_type[:64]}: inputs or attributes that fit no rule"
                ) from None
        made = self.values.get("margins")
        if made is None or made.shape != (ROWS, n_outputs):
            found = "nothing" if made is None else written(made.shape)
            raise Malformed(f"its nodes give {found} as 'margins', not (n, {n_outputs})")

    def add(self, name: str, value: KnownValue) -> None:
        if value.numbers is not None and value.numbers.size > MOST_NUMBERS:
            value = KnownValue(value.shape)
        if not name or name in self.values:
            raise Malformed(f"the value {name!r} is made twice, or has no name")
        negative = any(d < 0 for d in value.shape if d != ROWS)
        if len(value.shape) > 8 or value.shape.count(ROWS) > 1 or negative:
            raise Malformed(f"a value of shape {written(value.shape)}")
        self.totals.add_elements(value.shape)
        self.values[name] = value

    def node(self, node: Node) -> None:
        domain = "" if node.domain == "ai.onnx" else node.domain
        rule = self.rules.get(domain, {}).get(node.op_type)
        if rule is None:
            raise Malformed("an operator that no given stage may use")
        if node.overload or any(a.kind in (5, 9, 10) for a in node.attributes.values()):
            raise Malformed("an operator with a graph inside, or overloaded")
        for name in node.inputs:
            if name and name not in self.values:
                raise Malformed(f"it reads {name!r}, which no earlier node makes")
        given = [self.values[n] if n else None for n in node.inputs]
        made = rule(OperatorCall(node, given, self.totals))
        results = [made] if isinstance(made, KnownValue) else made
        for place, name in enumerate(node.outputs):
            if not name:
                continue
            if place >= len(results):
                raise Malformed(f"its output {place} is of no known shape")
            self.add(name, results[place])


def by_operator(*rows: tuple[str, Rule]) -> dict[str, Rule]:
    """List rules by operator; each is given with the names of its operators."""
    return {name: rule for names, rule in rows for name in names.split()}


def same_shape(call: OperatorCall) -> KnownValue:
    """Give a result the shape of the first input."""
    value = call.inputs[0]
    if value is None:
        raise Malformed("it has no input")
    kept = call.node.op_type in ("Identity", "Cast")
    return value if kept else KnownValue(value.shape)


def broadcast(call: OperatorCall) -> KnownValue:
    """Give a result the shape of all inputs, broadcast together."""
    return KnownValue(joint_shape([call.shape(i) for i in range(len(call.inputs))]))
