"""The operators that a stage's graph may hold, and what each demands and gives.

They are those that :mod:`.onnx_graph` writes, with the attributes, axes and types
that it writes; every result's shape follows from the inputs' before anything runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from numpy.typing import NDArray

from gatewise_export.onnx_files.onnx_parts import FLOAT, INT64, Node
from gatewise_export.onnx_files.protobuf import Malformed
from gatewise_export.onnx_files.tree_rules import Trees, read_trees_node

__all__ = ["ML_DOMAIN", "MOST_TREE_NODES", "ROWS", "RULES", "Shape", "Value", "say"]

ML_DOMAIN: Final = "ai.onnx.ml"
MOST_TREE_NODES: Final = 1 << 21

Shape = tuple[int, ...]
"""Of a value; `ROWS` stands for the number of rows."""
ROWS: Final = -1


class Value(NamedTuple):
    """What is known of a value before anything runs."""

    shape: Shape
    kind: int
    constant: NDArray[Any] | None = None


def say(shape: Shape) -> str:
    """Write a shape as errors show it."""
    return "(" + ", ".join("n" if d == ROWS else str(d) for d in shape) + ")"


# -- one rule an operator ------------------------------------------------------------------


def _takes(node: Node, values: list[Value], kinds: str) -> None:
    """Demand inputs of these kinds: ``f`` float32, ``i`` constant int64."""
    given = "".join("i" if v.kind == INT64 and v.constant is not None else "f" for v in values)
    if given != kinds or any(v.kind != FLOAT for v in values if v.constant is None):
        raise Malformed(f"inputs of the wrong number or type ({given or 'none'}, not {kinds})")
    if any(v.kind == FLOAT for v, k in zip(values, kinds, strict=True) if k == "i"):
        raise Malformed("inputs of the wrong type")
    if len(node.outputs) != 1:
        raise Malformed(f"it must have 1 output, not {len(node.outputs)}")


def _settings(node: Node, **allowed: tuple[int, ...]) -> None:
    """Demand attributes among these, whole numbers with these values; the first is the default."""
    for name in node.attributes:
        if name not in allowed:
            raise Malformed(f"the attribute {name[:64]!r}, which no stage uses")
    for name, values in allowed.items():
        found = node.get(name, values[0])
        if not isinstance(found, int) or found not in values:
            raise Malformed(f"{name!r} must be {values[-1]}")


def _number(value: Value, ndims: tuple[int, ...]) -> int:
    """The one number of a constant."""
    constant = value.constant
    if constant is None or constant.ndim not in ndims or constant.size != 1:
        raise Malformed("an index that is not one constant number")
    return int(constant.reshape(-1)[0])


def _broadcast(known: dict[str, Trees], node: Node, values: list[Value]) -> list[Value]:
    _takes(node, values, "ff")
    _settings(node)
    one, two = (v.shape for v in values)
    width = max(len(one), len(two))
    one, two = (1,) * (width - len(one)) + one, (1,) * (width - len(two)) + two
    shape = []
    for a, b in zip(one, two, strict=True):
        if a != b and 1 not in (a, b):
            raise Malformed(f"{say(values[0].shape)} and {say(values[1].shape)} do not fit")
        shape.append(b if a == 1 else a)
    return [Value(tuple(shape), FLOAT)]


def _unsqueeze(known: dict[str, Trees], node: Node, values: list[Value]) -> list[Value]:
    _takes(node, values, "fi")
    _settings(node)
    shape, axis = values[0].shape, _number(values[1], (1,))
    if axis != 2 or len(shape) != 2:
        raise Malformed("it must make a matrix's columns a third dimension")
    return [Value((*shape, 1), FLOAT)]


def _cumsum(known: dict[str, Trees], node: Node, values: list[Value]) -> list[Value]:
    _takes(node, values, "fi")
    _settings(node, exclusive=(0,), reverse=(0,))
    shape = values[0].shape
    if _number(values[1], (0,)) != 1 or len(shape) < 2:
        raise Malformed("it must add along axis 1")
    return [Value(shape, FLOAT)]


def _gather(known: dict[str, Trees], node: Node, values: list[Value]) -> list[Value]:
    _takes(node, values, "fi")
    _settings(node, axis=(0, 1))
    shape, index = values[0].shape, _number(values[1], (0, 1))
    if node.get("axis", 0) != 1 or len(shape) < 2 or not 0 <= index < shape[1]:
        raise Malformed(f"index {index} on axis 1 of {say(shape)}")
    kept = () if values[1].shape == () else (1,)
    return [Value((shape[0], *kept, *shape[2:]), FLOAT)]


def _reduce_sum(known: dict[str, Trees], node: Node, values: list[Value]) -> list[Value]:
    _takes(node, values, "fi")
    _settings(node, keepdims=(1,), noop_with_empty_axes=(0,))
    shape = values[0].shape
    if _number(values[1], (1,)) != 1 or len(shape) != 2:
        raise Malformed("it must add up a matrix's columns")
    return [Value((shape[0], 1), FLOAT)]


def _tree_sums(known: dict[str, Trees], node: Node, values: list[Value]) -> list[Value]:
    _takes(node, values, "f")
    shape = values[0].shape
    if len(shape) != 2 or shape[0] != ROWS:
        raise Malformed(f"trees that read {say(shape)}")
    strange = set(node.attributes) - _TREE_ATTRIBUTES
    if strange:
        raise Malformed(f"the attribute {min(strange)[:64]!r}, which no stage uses")
    left = MOST_TREE_NODES - sum(len(t.feature) for t in known.values())
    trees = read_trees_node(node, width=shape[1], ordered=True, most_nodes=left)
    known[node.outputs[0]] = trees
    return [Value((ROWS, len(trees.base)), FLOAT)]


_TREE_ATTRIBUTES: Final = {
    "n_targets", "aggregate_function", "post_transform", "base_values", "nodes_treeids",
    "nodes_nodeids", "nodes_featureids", "nodes_values", "nodes_modes", "nodes_truenodeids",
    "nodes_falsenodeids", "nodes_missing_value_tracks_true", "target_treeids", "target_nodeids",
    "target_ids", "target_weights",
}  # fmt: skip

_Rule = Callable[[dict[str, Trees], Node, list[Value]], list[Value]]
RULES: Final[dict[tuple[str, str], _Rule]] = {
    ("", "Sub"): _broadcast,
    ("", "Mul"): _broadcast,
    ("", "Add"): _broadcast,
    ("", "Div"): _broadcast,
    ("", "Unsqueeze"): _unsqueeze,
    ("", "CumSum"): _cumsum,
    ("", "Gather"): _gather,
    ("", "ReduceSum"): _reduce_sum,
    (ML_DOMAIN, "TreeEnsembleRegressor"): _tree_sums,
}
