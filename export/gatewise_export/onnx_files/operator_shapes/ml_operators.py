"""Shapes of the operators of ONNX's domain of classical models."""

from __future__ import annotations

from typing import Final

from gatewise_export.onnx_files.given_rules import KnownValue, OperatorCall, by_operator, same_shape
from gatewise_export.onnx_files.protobuf import Malformed
from gatewise_export.onnx_files.shapes import ROWS, written
from gatewise_export.onnx_files.tree_rules import MOST_TREE_NODES, TREE_OPERATORS, read_trees_node


def _linear(call: OperatorCall) -> list[KnownValue]:
    """Scores of a linear model; labels before them where it classifies."""
    x = call.shape()
    weights = len(call.node.get("coefficients", ()))
    biases = len(call.node.get("intercepts", ()))
    if len(x) != 2 or ROWS in x[1:] or not weights or weights % x[1]:
        raise Malformed(f"{weights} coefficients for {written(x)}")
    width = weights // x[1]
    if biases not in (0, width):
        raise Malformed(f"{biases} intercepts for {width} scores")
    if call.node.op_type == "LinearRegressor":
        if call.number("targets", 1) != width:
            raise Malformed(f"{width} targets")
        return [KnownValue((x[0], width))]
    labels = [len(call.node.get(f"classlabels_{kind}", ())) for kind in ("ints", "strings")]
    if biases != width or max(labels) != width or min(labels):
        raise Malformed(f"{max(labels)} classes for {width} scores")
    call.totals.add_work(weights)
    return [KnownValue((x[0],)), KnownValue((x[0], width))]


def _trees(call: OperatorCall) -> list[KnownValue]:
    x = call.shape()
    if len(x) != 2 or x[0] != ROWS:
        raise Malformed(f"trees that read {written(x)}")
    left = MOST_TREE_NODES - call.totals.tree_nodes
    trees = read_trees_node(call.node, width=x[1], ordered=False, most_nodes=left)
    call.totals.tree_nodes += len(trees.feature)
    scores = KnownValue((ROWS, len(trees.base)))
    one = call.node.op_type == "TreeEnsembleRegressor"
    return [scores] if one else [KnownValue((ROWS,)), scores]


def _scaler(call: OperatorCall) -> KnownValue:
    x = call.shape()
    for name in ("offset", "scale"):
        if len(call.node.get(name, (0,))) not in (1, x[-1]):
            raise Malformed(f"{name!r} does not fit {written(x)}")
    return KnownValue(x)


def _columns(call: OperatorCall) -> KnownValue:
    """Columns that constant numbers name."""
    x, numbers = call.shape(), call.numbers(1)
    if numbers is None or len(x) != 2 or not all(0 <= i < x[1] for i in numbers):
        raise Malformed(f"columns beyond {written(x)}")
    return KnownValue((x[0], len(numbers)))


ML_RULES: Final = by_operator(
    ("LinearClassifier LinearRegressor", _linear),
    (" ".join(TREE_OPERATORS), _trees),
    ("Scaler", _scaler),
    ("Normalizer Binarizer", same_shape),
    ("ArrayFeatureExtractor", _columns),
)
