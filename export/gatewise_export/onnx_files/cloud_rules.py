"""Rules for a high-cost model's graph: what it may not do to a worker; see :mod:`.graph_rules`.

Converters use many operators, so this is a list of what is refused, and shapes are followed only
through those that are common: a value whose shape is not known is not checked.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from gatewise_export.onnx_files.onnx_parts import ML_DOMAIN, Graph, Model, Node, Tensor
from gatewise_export.onnx_files.protobuf import Malformed
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


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_ELEMENTWISE: Final = _words(
    "Add Sub Mul Div Pow Sum Max Min Mean Equal Less Greater LessOrEqual GreaterOrEqual And Or Xor "
    "Where Mod BitShift BitwiseAnd BitwiseOr BitwiseXor PRelu"
)
_SAME: Final = _words(
    "Abs Neg Exp Log Sqrt Relu Sigmoid Tanh Softmax LogSoftmax Not Cast Identity Floor Ceil Round "
    "Erf Sign Reciprocal Clip CumSum Sin Cos Elu LeakyRelu Selu Softplus Softsign IsNaN IsInf "
    "Scaler Normalizer Imputer Binarizer HardSigmoid Hardmax Dropout BatchNormalization"
)

Known = tuple[int | None, ...] | None
"""A shape: None for the rows and whatever else is not known."""


def check_cloud(model: Model) -> None:
    """Check a graph; raises Malformed with the reason."""
    _CloudCheck().graph(model.graph, {}, {}, 0)


class _CloudCheck:
    def __init__(self) -> None:
        self.nodes = 0

    def graph(
        self, graph: Graph, shapes: Mapping[str, Known], constants: Mapping[str, Tensor], depth: int
    ) -> None:
        if graph.n_sparse:
            raise Malformed("it holds sparse tensors")
        shapes, constants = dict(shapes), dict(constants)
        for tensor in graph.initializers:
            tensor.check()
            constants[tensor.name], shapes[tensor.name] = tensor, tensor.shape
        if not depth:
            for value in graph.inputs:
                if value.name not in constants and value.shape is not None:
                    shapes[value.name] = tuple(
                        d if isinstance(d, int) and i else None for i, d in enumerate(value.shape)
                    )
        for node in graph.nodes:
            self.nodes += 1
            if self.nodes > MOST_NODES:
                raise Malformed(f"it has more than {MOST_NODES} nodes")
            try:
                self.node(node, shapes, constants, depth)
            except Malformed as error:
                raise Malformed(f"{node.op_type[:64]}: {error}") from None

    def node(
        self, node: Node, shapes: dict[str, Known], constants: dict[str, Tensor], depth: int
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
                self.graph(held, {}, {}, depth + 1)
            if attribute.kind == 10:
                raise Malformed("an operator with graphs inside")
            for tensor in held if attribute.kind == 9 else (held,) if attribute.kind == 4 else ():
                tensor.check()
        self.sizes(node, shapes, constants)
        if kind in TREE_OPERATORS:
            shape = shapes.get(node.inputs[0]) if node.inputs else None
            width = shape[1] if shape is not None and len(shape) == 2 else None
            read_trees_node(node, width=width, ordered=False, most_nodes=MOST_TREE_NODES)
        elif kind == "TreeEnsemble":
            raise Malformed("trees in a form that is not checked here; use ai.onnx.ml version 3")
        if kind == "Constant" and isinstance(node.get("value"), Tensor) and node.outputs:
            constants[node.outputs[0]] = node.get("value")
        for name in node.outputs:
            shapes[name] = None
        made = self.shape(node, shapes, constants)
        if made is not None and node.outputs:
            if math.prod(1 if d is None else d for d in made) > MOST_ELEMENTS:
                raise Malformed(f"a result of more than {MOST_ELEMENTS} numbers a row")
            shapes[node.outputs[0]] = made

    def sizes(
        self, node: Node, shapes: Mapping[str, Known], constants: Mapping[str, Tensor]
    ) -> None:
        """A result that is as large as an input says: the input must be known, and small."""
        named = _SIZE_ATTRIBUTES.get(node.op_type)
        if named is not None and named in node.attributes:
            numbers = np.atleast_1d(np.asarray(node.get(named), np.float64))
            self.bounded(node, numbers, shapes)
        for place in _SIZES.get(node.op_type, ()):
            name = node.inputs[place] if place < len(node.inputs) else ""
            if not name:
                continue
            if name not in constants:
                raise Malformed("a result of a size that only a run will know")
            self.bounded(node, constants[name].array().astype(np.float64), shapes)

    def bounded(
        self, node: Node, numbers: np.ndarray[Any, Any], shapes: Mapping[str, Known]
    ) -> None:
        grows = node.op_type in ("Tile", "Resize", "Upsample", "OneHot", "Pad")
        shape = shapes.get(node.inputs[0]) if grows and node.inputs else ()
        size = math.prod(1 if d is None else d for d in shape or ())
        if not np.isfinite(numbers).all():
            raise Malformed("a result of no finite size")
        if size * float(np.prod(np.maximum(np.abs(numbers), 1.0))) > MOST_ELEMENTS:
            raise Malformed(f"a result of more than {MOST_ELEMENTS} numbers")

    # -- shapes, as far as they are known --------------------------------------------------

    def shape(
        self, node: Node, shapes: Mapping[str, Known], constants: Mapping[str, Tensor]
    ) -> Known:
        kind = node.op_type
        given = [shapes.get(n) for n in node.inputs]
        if kind == "Constant":
            held = node.get("value")
            return held.shape if isinstance(held, Tensor) else None
        if not given or given[0] is None:
            return None
        first = given[0]
        if kind in _ELEMENTWISE:
            return _broadcast(given)
        if kind in _SAME:
            return first
        if kind == "MatMul":
            return _product(given)
        if kind == "Concat":
            return self.concat(node, given)
        if kind == "Transpose":
            order = node.get("perm", tuple(range(len(first)))[::-1])
            return tuple(first[int(i)] for i in order if 0 <= int(i) < len(first))
        if kind in ("ConstantOfShape", "Expand") and node.inputs:
            size = constants.get(node.inputs[0 if kind == "ConstantOfShape" else 1])
            wide = None if size is None else tuple(int(d) for d in size.array().reshape(-1))
            return wide if kind == "ConstantOfShape" else _broadcast([first, wide])
        if kind == "Unsqueeze" and len(node.inputs) > 1 and node.inputs[1] in constants:
            grown = list(first)
            for axis in sorted(constants[node.inputs[1]].array().reshape(-1).tolist()):
                if not 0 <= axis <= len(grown):
                    return None
                grown.insert(axis, 1)
            return tuple(grown)
        return None

    def concat(self, node: Node, given: list[Known]) -> Known:
        axis = node.get("axis", 0)
        if any(g is None or len(g) != len(given[0] or ()) for g in given):
            return None
        known = [g for g in given if g is not None]
        if not -len(known[0]) <= axis < len(known[0]):
            return None
        along = [g[axis] for g in known]
        total = None if None in along else sum(d for d in along if d is not None)
        made = list(known[0])
        made[axis] = total
        return tuple(made)


def _broadcast(given: list[Known]) -> Known:
    width = max(len(g) if g is not None else 0 for g in given)
    made: list[int | None] = [1] * width
    for shape in given:
        if shape is None:
            return None
        for i, d in enumerate(reversed(shape), 1):
            old = made[-i]
            made[-i] = d if old == 1 else old if d in (1, None) else d
    return tuple(made)


def _product(given: list[Known]) -> Known:
    if len(given) != 2 or any(g is None or len(g) < 2 for g in given):
        return None
    one, two = (g for g in given if g is not None)
    ahead = _broadcast([one[:-2], two[:-2]])
    return None if ahead is None else (*ahead, one[-2], two[-1])
