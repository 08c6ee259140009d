"""Rules for a high-cost model's graph: what it may not do to a worker; see :mod:`.graph_rules`.

Converters use many operators, so this is a list of what is refused, and shapes are followed only
through those that are common: a value whose shape is not known is not checked.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from gatewise_export.onnx_files.given_rules import (
    GraphTotals,
    KnownValue,
    OperatorCall,
    Rule,
    broadcast,
    by_operator,
    same_shape,
)
from gatewise_export.onnx_files.onnx_parts import ML_DOMAIN, Graph, Model, Node, Tensor
from gatewise_export.onnx_files.protobuf import Malformed
from gatewise_export.onnx_files.shapes import ROWS, joint_shape, row_size
from gatewise_export.onnx_files.tree_rules import TREE_OPERATORS, read_trees_node

MOST_ELEMENTS: Final = 1 << 26
"""Numbers that one value may hold for a row (256 MiB as float32)."""
MOST_NODES: Final = 20_000
MOST_TREE_NODES: Final = 1 << 26

_DOMAINS: Final = ("", "ai.onnx", ML_DOMAIN)
#: Refused: they loop as long as a value says, run what a value chooses, or read a file
_NEVER: Final = frozenset({"Loop", "If", "SequenceMap", "Optional", "ImageDecoder"})
#: Inputs that say how large the result is
_SIZES: Final = {
    "ConstantOfShape": (0,), "Expand": (1,), "Tile": (1,), "Range": (0, 1, 2), "OneHot": (1,),
    "Pad": (1,), "Resize": (2, 3), "Upsample": (1,), "MaxUnpool": (2,), "Col2Im": (0,),
    "HannWindow": (0,), "HammingWindow": (0,), "BlackmanWindow": (0,), "MelWeightMatrix": (0, 1),
    "AffineGrid": (1,), "CenterCropPad": (1,), "DFT": (1,), "CastMap": (),
}  # fmt: skip
_SIZE_ATTRIBUTES: Final = {
    "RandomNormal": "shape", "RandomUniform": "shape", "Multinomial": "sample_size",
    "CastMap": "max_map", "Pad": "pads", "Upsample": "scales", "MaxUnpool": "pads",
}  # fmt: skip


def _constant_of_shape(call: OperatorCall) -> KnownValue:
    return KnownValue(tuple(call.numbers(0) or ()))


def _expand(call: OperatorCall) -> KnownValue:
    return KnownValue(joint_shape([call.shape(), tuple(call.numbers(1) or ())]))


CLOUD_RULES: Final = by_operator(
    ("ConstantOfShape", _constant_of_shape),
    ("Expand", _expand),
    (
        "Add Sub Mul Div Pow Sum Max Min Mean Equal Less Greater LessOrEqual GreaterOrEqual "
        "And Or Xor Where Mod BitShift BitwiseAnd BitwiseOr BitwiseXor PRelu",
        broadcast,
    ),
    (
        "Abs Neg Exp Log Sqrt Relu Sigmoid Tanh Softmax LogSoftmax Not Cast Identity Floor "
        "Ceil Round Erf Sign Reciprocal Clip CumSum Sin Cos Elu LeakyRelu Selu Softplus "
        "Softsign IsNaN IsInf Scaler Normalizer Imputer Binarizer HardSigmoid Hardmax Dropout "
        "BatchNormalization",
        same_shape,
    ),
)
"""Rules of operators beside those that a given stage may use, too."""


def check_cloud(model: Model, rules: Mapping[str, Rule]) -> None:
    """Check a graph; raises Malformed with the reason.

    `rules` are those of the operators that shapes are followed through, by name.
    """
    _CloudCheck(rules).graph(model.graph, 0)


class _Unbounded(GraphTotals):
    """Results are bounded one by one, a row's work by a worker's deadline."""

    def add_work(self, work: int) -> None:
        pass


class _CloudCheck:
    def __init__(self, rules: Mapping[str, Rule]) -> None:
        self.rules = rules
        self.nodes = 0

    def graph(self, graph: Graph, depth: int) -> None:
        if graph.n_sparse:
            raise Malformed("it holds sparse tensors")
        known: dict[str, KnownValue] = {}
        constants: dict[str, Tensor] = {}
        for tensor in graph.initializers:
            known[tensor.name] = KnownValue.of_constant(tensor)
            constants[tensor.name] = tensor
        for value in () if depth else graph.inputs:
            columns = tuple(d for d in (value.shape or ())[1:] if isinstance(d, int) and d >= 0)
            if value.name not in constants and value.shape and len(columns) + 1 == len(value.shape):
                known[value.name] = KnownValue((ROWS, *columns))
        for node in graph.nodes:
            self.nodes += 1
            if self.nodes > MOST_NODES:
                raise Malformed(f"it has more than {MOST_NODES} nodes")
            try:
                self.node(node, known, constants, depth)
            except Malformed as error:
                raise Malformed(f"{node.op_type[:64]}: {error}") from None
            except (TypeError, ValueError, IndexError, ArithmeticError):
                raise Malformed(f"{node.op_type[:64]}: attributes that fit no rule") from None

    def node(
        self, node: Node, known: dict[str, KnownValue], constants: dict[str, Tensor], depth: int
    ) -> None:
        kind = node.op_type
        if node.domain not in _DOMAINS:
            raise Malformed(f"an operator of the custom domain {node.domain[:64]!r}")
        if kind in _NEVER:
            raise Malformed("an operator that a cloud model may not use")
        for attribute in node.attributes.values():
            held = attribute.held
            if attribute.kind == 5 and (kind != "Scan" or depth):
                raise Malformed("an operator with a graph inside")
            if attribute.kind == 5:
                self.graph(held, depth + 1)
            if attribute.kind == 10:
                raise Malformed("an operator with graphs inside")
            for tensor in held if attribute.kind == 9 else (held,) if attribute.kind == 4 else ():
                tensor.check()
        self.sizes(node, known, constants)
        if kind in TREE_OPERATORS:
            x = known.get(node.inputs[0]) if node.inputs else None
            matrix = x is not None and len(x.shape) == 2 and x.shape[1] != ROWS
            width = x.shape[1] if x is not None and matrix else None
            read_trees_node(node, width=width, ordered=False, most_nodes=MOST_TREE_NODES)
        elif kind == "TreeEnsemble":
            raise Malformed("trees in a form that is not checked here; use ai.onnx.ml version 3")
        if kind == "Constant" and isinstance(node.get("value"), Tensor) and node.outputs:
            constants[node.outputs[0]] = node.get("value")
        made = self.result(node, known)
        for name in node.outputs:
            known.pop(name, None)
        if made is not None and node.outputs:
            if row_size(made.shape) > MOST_ELEMENTS:
                raise Malformed(f"a result of more than {MOST_ELEMENTS} numbers a row")
            known[node.outputs[0]] = made

    def sizes(
        self, node: Node, known: Mapping[str, KnownValue], constants: Mapping[str, Tensor]
    ) -> None:
        """A result that is as large as an input says: the input must be known, and small."""
        named = _SIZE_ATTRIBUTES.get(node.op_type)
        if named is not None and named in node.attributes:
            numbers = np.atleast_1d(np.asarray(node.get(named), np.float64))
            self.bounded(node, numbers, known)
        for place in _SIZES.get(node.op_type, ()):
            name = node.inputs[place] if place < len(node.inputs) else ""
            if not name:
                continue
            if name not in constants:
                raise Malformed("a result of a size that only a run will know")
            self.bounded(node, constants[name].array().astype(np.float64), known)

    def bounded(
        self, node: Node, numbers: np.ndarray[Any, Any], known: Mapping[str, KnownValue]
    ) -> None:
        grows = node.op_type in ("Tile", "Resize", "Upsample", "OneHot", "Pad")
        x = known.get(node.inputs[0]) if grows and node.inputs else None
        size = 1 if x is None else row_size(x.shape)
        if not np.isfinite(numbers).all():
            raise Malformed("a result of no finite size")
        if size * float(np.prod(np.maximum(np.abs(numbers), 1.0))) > MOST_ELEMENTS:
            raise Malformed(f"a result of more than {MOST_ELEMENTS} numbers")

    def result(self, node: Node, known: Mapping[str, KnownValue]) -> KnownValue | None:
        """The first result, if its shape follows from those that are known."""
        rule = self.rules.get(node.op_type)
        read = node.inputs[:1] if rule is same_shape else node.inputs
        if rule is None or any(name and name not in known for name in read):
            return None
        given = [known.get(name) for name in node.inputs]
        try:
            made = rule(OperatorCall(node, given, _Unbounded()))
        except (TypeError, ValueError, IndexError, ArithmeticError):
            return None
        return made if isinstance(made, KnownValue) else made[0]
