"""Rules for a stage's graph: nothing but what :mod:`.onnx_graph` writes; see :mod:`.graph_rules`.

The operators are few, with the attributes, axes and types that are written; every result's shape
follows from the inputs' before anything runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from numpy.typing import NDArray

from gatewise_export.onnx_files.onnx_parts import FLOAT, INT64, ML_DOMAIN, Model, Node, ValueInfo
from gatewise_export.onnx_files.protobuf import Malformed
from gatewise_export.onnx_files.shapes import ROWS, Shape, joint_shape, row_size, written
from gatewise_export.onnx_files.tree_rules import MOST_TREE_NODES, Trees, read_trees_node

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

    `nodes`: in an order in which they can be run, one after the other. `trees`: by the output of
    the node that holds them. `columns`: of each value that is a matrix. `elements`: numbers that
    all values hold together for one row.
    """

    nodes: tuple[Node, ...]
    constants: Mapping[str, NDArray[Any]]
    trees: Mapping[str, Trees]
    columns: Mapping[str, int]
    elements: int
    n_inputs: int


def check_stage(model: Model, n_inputs: int, n_outputs: int) -> StageGraph:
    """Check a graph and keep what was read; raise Malformed with the reason."""
    return _StageCheck(model, n_inputs, n_outputs).checked()


class _Value(NamedTuple):
    """What is certain of a value before anything runs."""

    shape: Shape
    kind: int
    constant: NDArray[Any] | None = None


class _StageCheck:
    def __init__(self, model: Model, n_inputs: int, n_outputs: int) -> None:
        self.model, self.graph = model, model.graph
        self.n_inputs, self.n_outputs = n_inputs, n_outputs
        self.values: dict[str, _Value] = {}
        self.trees: dict[str, Trees] = {}
        self.elements = 0

    def checked(self) -> StageGraph:
        if self.model.ir_version not in _IR_VERSIONS:
            raise Malformed(f"ONNX of IR version {self.model.ir_version}")
        for domain, version in self.model.opsets.items():
            if version not in _OPSETS.get(domain, ()):
                raise Malformed(f"operators {domain or 'ai.onnx'!r} of version {version}")
        if len(self.graph.nodes) > MOST_NODES:
            raise Malformed(f"it has {len(self.graph.nodes)} nodes, more than {MOST_NODES}")
        self.check_ends()
        for tensor in self.graph.initializers:
            tensor.check()
            if tensor.kind not in (FLOAT, INT64):
                raise Malformed(f"constant {tensor.name!r} is neither float32 nor int64")
            self.add(tensor.name, _Value(tensor.shape, tensor.kind, tensor.array()))
        for node in self.graph.nodes:
            try:
                self.check_node(node)
            except Malformed as error:
                raise Malformed(f"{node.op_type[:64]}: {error}") from None
        made = self.values.get(MARGINS)
        if made is None or made[:2] != ((ROWS, self.n_outputs), FLOAT):
            found = "nothing" if made is None else written(made.shape)
            raise Malformed(
                f"its nodes give {found} as {MARGINS!r}, not {written((ROWS, self.n_outputs))}"
            )
        return StageGraph(
            nodes=self.graph.nodes,
            constants={n: v.constant for n, v in self.values.items() if v.constant is not None},
            trees=self.trees,
            columns={n: v.shape[1] for n, v in self.values.items() if len(v.shape) == 2},
            elements=self.elements,
            n_inputs=self.n_inputs,
        )

    def check_ends(self) -> None:
        """One input and one output, as the manifest says."""
        for what, given, name, columns in (
            ("inputs", self.graph.inputs, INPUT, self.n_inputs),
            ("outputs", self.graph.outputs, MARGINS, self.n_outputs),
        ):
            if len(given) != 1 or not _is_matrix(given[0], name, columns):
                found = ", ".join(f"{v.name[:64]} {v.kind} {v.shape}" for v in given[:4])
                raise Malformed(
                    f"its graph's {what} are [{found}], not {name!r}, float32 (n, {columns})"
                )
        if self.graph.values:
            raise Malformed("it declares shapes of inner values")
        self.values[INPUT] = _Value((ROWS, self.n_inputs), FLOAT)

    def add(self, name: str, value: _Value) -> None:
        """Take in a value that a constant or a node makes."""
        if not name or name in self.values:
            raise Malformed(f"the value {name!r} is made twice, or has no name")
        if len(value.shape) > 4:
            raise Malformed(f"a value of {len(value.shape)} dimensions")
        self.elements += row_size(value.shape)
        if self.elements > MOST_ELEMENTS:
            raise Malformed(f"its values hold more than {MOST_ELEMENTS} numbers a row")
        self.values[name] = value

    def check_node(self, node: Node) -> None:
        domain = node.domain if node.domain != "ai.onnx" else ""
        rule = _RULES.get(node.op_type) if not domain else None
        trees = (domain, node.op_type) == (ML_DOMAIN, "TreeEnsembleRegressor")
        if rule is None and not trees:
            where = f" of domain {node.domain[:64]!r}" if node.domain else ""
            raise Malformed(f"an operator{where} that no stage may use")
        if node.domain not in self.model.opsets:
            raise Malformed(f"an operator of domain {node.domain!r}, which is not imported")
        unknown = [n for n in node.inputs if n not in self.values]
        if unknown:
            raise Malformed(f"it reads {unknown[0]!r}, which no earlier node makes")
        if node.overload:
            raise Malformed("an overloaded operator")
        values = [self.values[n] for n in node.inputs]
        _check_inputs(node, values, "f" if rule is None else rule.inputs)
        if rule is None:
            shape = self.read_trees(node, values[0].shape)
        else:
            _check_settings(node, rule.settings)
            shape = rule.shape(node, values)
        self.add(node.outputs[0], _Value(shape, FLOAT))

    def read_trees(self, node: Node, shape: Shape) -> Shape:
        if len(shape) != 2 or shape[0] != ROWS:
            raise Malformed(f"trees that read {written(shape)}")
        strange = set(node.attributes) - _TREE_ATTRIBUTES
        if strange:
            raise Malformed(f"the attribute {min(strange)[:64]!r}, which no stage uses")
        left = MOST_TREE_NODES - sum(len(t.feature) for t in self.trees.values())
        trees = read_trees_node(node, width=shape[1], ordered=True, most_nodes=left)
        self.trees[node.outputs[0]] = trees
        return (ROWS, len(trees.base))


def _is_matrix(value: ValueInfo, name: str, columns: int) -> bool:
    shape = value.shape
    return (
        (value.name, value.kind, value.element) == (name, "tensor", FLOAT)
        and shape is not None
        and len(shape) == 2
        and not isinstance(shape[0], int)
        and shape[1] == columns
    )


# -- one rule an operator ------------------------------------------------------------------


def _check_inputs(node: Node, values: list[_Value], kinds: str) -> None:
    """Demand inputs of these kinds: ``f`` float32, ``i`` constant int64; and one output."""
    given = "".join("i" if v.kind == INT64 and v.constant is not None else "f" for v in values)
    if given != kinds or any(v.kind != FLOAT for v in values if v.constant is None):
        raise Malformed(f"inputs of the wrong number or type ({given or 'none'}, not {kinds})")
    if any(v.kind == FLOAT for v, k in zip(values, kinds, strict=True) if k == "i"):
        raise Malformed("inputs of the wrong type")
    if len(node.outputs) != 1:
        raise Malformed(f"it must have 1 output, not {len(node.outputs)}")


def _check_settings(node: Node, allowed: Mapping[str, tuple[int, ...]]) -> None:
    """Demand attributes among these, whole numbers with these values; the first is the default."""
    for name in node.attributes:
        if name not in allowed:
            raise Malformed(f"the attribute {name[:64]!r}, which no stage uses")
    for name, values in allowed.items():
        found = node.get(name, values[0])
        if not isinstance(found, int) or found not in values:
            raise Malformed(f"{name!r} must be {values[-1]}")


def _number(value: _Value, *ndims: int) -> int:
    """The one number of a constant of so many dimensions."""
    constant = value.constant
    if constant is None or constant.ndim not in ndims or constant.size != 1:
        raise Malformed("an index that is not one constant number")
    return int(constant.reshape(-1)[0])


def _broadcast(node: Node, values: list[_Value]) -> Shape:
    return joint_shape([v.shape for v in values])


def _unsqueeze(node: Node, values: list[_Value]) -> Shape:
    shape = values[0].shape
    if _number(values[1], 1) != 2 or len(shape) != 2:
        raise Malformed("it must make a matrix's columns a third dimension")
    return (*shape, 1)


def _cumsum(node: Node, values: list[_Value]) -> Shape:
    shape = values[0].shape
    if _number(values[1], 0) != 1 or len(shape) < 2:
        raise Malformed("it must add along axis 1")
    return shape


def _gather(node: Node, values: list[_Value]) -> Shape:
    shape, index = values[0].shape, _number(values[1], 0, 1)
    if node.get("axis", 0) != 1 or len(shape) < 2 or not 0 <= index < shape[1]:
        raise Malformed(f"index {index} on axis 1 of {written(shape)}")
    kept = () if values[1].shape == () else (1,)
    return (shape[0], *kept, *shape[2:])


def _reduce_sum(node: Node, values: list[_Value]) -> Shape:
    shape = values[0].shape
    if _number(values[1], 1) != 1 or len(shape) != 2:
        raise Malformed("it must add up a matrix's columns")
    return (shape[0], 1)


class _Rule(NamedTuple):
    """What an operator takes, and how the shape of its result follows."""

    inputs: str
    shape: Callable[[Node, list[_Value]], Shape]
    settings: Mapping[str, tuple[int, ...]]


_RULES: Final = {
    "Sub": _Rule("ff", _broadcast, {}),
    "Mul": _Rule("ff", _broadcast, {}),
    "Add": _Rule("ff", _broadcast, {}),
    "Div": _Rule("ff", _broadcast, {}),
    "Unsqueeze": _Rule("fi", _unsqueeze, {}),
    "CumSum": _Rule("fi", _cumsum, {"exclusive": (0,), "reverse": (0,)}),
    "Gather": _Rule("fi", _gather, {"axis": (0, 1)}),
    "ReduceSum": _Rule("fi", _reduce_sum, {"keepdims": (1,), "noop_with_empty_axes": (0,)}),
}
"""The operators of ONNX's own domain; trees are checked on their own."""

_TREE_ATTRIBUTES: Final = {
    "n_targets", "aggregate_function", "post_transform", "base_values", "nodes_treeids",
    "nodes_nodeids", "nodes_featureids", "nodes_values", "nodes_modes", "nodes_truenodeids",
    "nodes_falsenodeids", "nodes_missing_value_tracks_true", "target_treeids", "target_nodeids",
    "target_ids", "target_weights",
}  # fmt: skip
