"""A stage's graph, held against all that it may be; see :mod:`.graph_rules`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from numpy.typing import NDArray

from gatewise_export.onnx_files.onnx_parts import FLOAT, INT64, Model, Node, ValueInfo
from gatewise_export.onnx_files.protobuf import Malformed
from gatewise_export.onnx_files.stage_operators import ML_DOMAIN, ROWS, RULES, Value, say
from gatewise_export.onnx_files.tree_rules import Trees

__all__ = ["INPUT", "MARGINS", "StageGraph", "check_stage"]

INPUT, MARGINS = "x", "margins"

MOST_NODES: Final = 64
MOST_ELEMENTS: Final = 1 << 24
"""Numbers that all values of a graph may hold together for one row (64 MiB)."""
#: Versions under which the operators mean what they mean here
_OPSETS: Final = {"": range(13, 22), ML_DOMAIN: range(1, 5)}
_IR_VERSIONS: Final = range(4, 11)


@dataclass(frozen=True, eq=False)
class StageGraph:
    """A stage's graph that may be run.

    Attributes
    ----------
    nodes : tuple of Node
        In an order in which they can be run, one after the other.
    constants : dict of str to ndarray
    trees : dict of str to Trees
        By the output of the node that holds them.
    columns : dict of str to int
        Of each value that is a matrix.
    elements : int
        Numbers that all values hold together for one row.
    n_inputs, n_outputs : int
    """

    nodes: tuple[Node, ...]
    constants: Mapping[str, NDArray[Any]]
    trees: Mapping[str, Trees]
    columns: Mapping[str, int]
    elements: int
    n_inputs: int
    n_outputs: int


def check_stage(model: Model, n_inputs: int, n_outputs: int) -> StageGraph:
    """Check a graph and keep what was read.

    Raises
    ------
    Malformed
        With the reason.
    """
    return _StageCheck(model, n_inputs, n_outputs).all()


class _StageCheck:
    def __init__(self, model: Model, n_inputs: int, n_outputs: int) -> None:
        self.model, self.graph = model, model.graph
        self.n_inputs, self.n_outputs = n_inputs, n_outputs
        self.values: dict[str, Value] = {}
        self.trees: dict[str, Trees] = {}
        self.elements = 0

    def all(self) -> StageGraph:
        if self.model.ir_version not in _IR_VERSIONS:
            raise Malformed(f"ONNX of IR version {self.model.ir_version}")
        for domain, version in self.model.opsets.items():
            if version not in _OPSETS.get(domain, ()):
                raise Malformed(f"operators {domain or 'ai.onnx'!r} of version {version}")
        if len(self.graph.nodes) > MOST_NODES:
            raise Malformed(f"it has {len(self.graph.nodes)} nodes, more than {MOST_NODES}")
        self.ends()
        self.constants()
        for node in self.graph.nodes:
            try:
                self.node(node)
            except Malformed as error:
                raise Malformed(f"{node.op_type[:64]}: {error}") from None
        made = self.values.get(MARGINS)
        if made is None or made[:2] != ((ROWS, self.n_outputs), FLOAT):
            found = "nothing" if made is None else say(made.shape)
            raise Malformed(
                f"its nodes give {found} as {MARGINS!r}, not {say((ROWS, self.n_outputs))}"
            )
        return StageGraph(
            nodes=self.graph.nodes,
            constants={n: v.constant for n, v in self.values.items() if v.constant is not None},
            trees=self.trees,
            columns={n: v.shape[1] for n, v in self.values.items() if len(v.shape) == 2},
            elements=self.elements,
            n_inputs=self.n_inputs,
            n_outputs=self.n_outputs,
        )

    def ends(self) -> None:
        """One input and one output, as the manifest says."""
        for what, given, name, columns in (
            ("inputs", self.graph.inputs, INPUT, self.n_inputs),
            ("outputs", self.graph.outputs, MARGINS, self.n_outputs),
        ):
            if len(given) != 1 or not _is_matrix(given[0], name, columns):
                told = ", ".join(f"{v.name[:64]} {v.kind} {v.shape}" for v in given[:4])
                raise Malformed(
                    f"its graph's {what} are [{told}], not {name!r}, float32 (n, {columns})"
                )
        if self.graph.values:
            raise Malformed("it declares shapes of inner values")
        self.values[INPUT] = Value((ROWS, self.n_inputs), FLOAT)

    def constants(self) -> None:
        for tensor in self.graph.initializers:
            tensor.check()
            if tensor.kind not in (FLOAT, INT64):
                raise Malformed(f"constant {tensor.name!r} is neither float32 nor int64")
            self.give(tensor.name, Value(tensor.shape, tensor.kind, tensor.array()))

    def give(self, name: str, value: Value) -> None:
        if not name or name in self.values:
            raise Malformed(f"the value {name!r} is made twice, or has no name")
        if len(value.shape) > 4:
            raise Malformed(f"a value of {len(value.shape)} dimensions")
        size = 1
        for d in value.shape:
            size *= 1 if d == ROWS else d
        self.elements += size
        if self.elements > MOST_ELEMENTS:
            raise Malformed(f"its values hold more than {MOST_ELEMENTS} numbers a row")
        self.values[name] = value

    def node(self, node: Node) -> None:
        rule = RULES.get((node.domain if node.domain != "ai.onnx" else "", node.op_type))
        if rule is None:
            domain = f" of domain {node.domain[:64]!r}" if node.domain else ""
            raise Malformed(f"an operator{domain} that no stage may use")
        if node.domain not in self.model.opsets:
            raise Malformed(f"an operator of domain {node.domain!r}, which is not imported")
        unknown = [n for n in node.inputs if n not in self.values]
        if unknown:
            raise Malformed(f"it reads {unknown[0]!r}, which no earlier node makes")
        if node.overload:
            raise Malformed("an overloaded operator")
        values = [self.values[n] for n in node.inputs]
        for name, made in zip(node.outputs, rule(self.trees, node, values), strict=True):
            self.give(name, made)


def _is_matrix(value: ValueInfo, name: str, columns: int) -> bool:
    shape = value.shape
    return (
        (value.name, value.kind, value.element) == (name, "tensor", FLOAT)
        and shape is not None
        and len(shape) == 2
        and not isinstance(shape[0], int)
        and shape[1] == columns
    )
