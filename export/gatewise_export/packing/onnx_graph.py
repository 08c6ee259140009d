"""Flat models as ONNX graphs: fewest nodes, raw margins out, the same bits as in training.

A graph has one input ``x``, float32 (n, k), and one output ``margins``, float32 (n, outputs).
Labels, probabilities and the decision to stop are the runtime's, so a graph stays as small
and as fast as can be (:func:`gatewise_export.to_onnx` adds them for other tools).

- Trees become one ``TreeEnsembleRegressor`` with all outputs as targets. onnxruntime adds
  leaves in the order of the trees and the base last, in float32, as
  :meth:`TreeEnsemble.margins` does (with ``intra_op_num_threads = 1``).
- Linear models add their terms with ``CumSum``, one after another, as
  :meth:`LinearModel.margins` does; ``Gemm`` adds in an order of its own.
- Kernel machines add squared gaps feature by feature, then landmark by landmark, with
  ``CumSum`` too; division and squarings are rounded alike everywhere.

ai.onnx.ml is at version 3: skl2onnx and onnxruntime on devices know no later one alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from gatewise._version import __version__
from gatewise.models.kernel_machine import SQUARINGS, KernelModel
from gatewise.models.linear import LinearModel
from gatewise.models.stage import FlatModel
from gatewise.models.trees import TreeEnsemble

__all__ = ["INPUT", "MARGINS", "ML_DOMAIN", "Parts", "constant", "flat_graph", "model_of", "tensor"]

INPUT = "x"
MARGINS = "margins"
ML_DOMAIN = "ai.onnx.ml"
OPSET = 17
ML_OPSET = 3
IR_VERSION = 8

Parts = tuple[list[onnx.NodeProto], list[onnx.TensorProto]]
"""Nodes and the constants that they read."""


def flat_graph(model: FlatModel) -> onnx.ModelProto:
    """Write a flat model as a graph from ``x`` to ``margins``.

    Parameters
    ----------
    model : TreeEnsemble, LinearModel or KernelModel

    Returns
    -------
    onnx.ModelProto
        The same model gives the same bytes.

    Examples
    --------
    >>> import numpy as np
    >>> one = np.ones(1, np.float32)
    >>> graph = flat_graph(LinearModel(0 * one, one, np.array([[2]], np.float32), one)).graph
    >>> [node.op_type for node in graph.node]
    ['Sub', 'Mul', 'Mul', 'CumSum', 'Gather', 'Add']
    """
    if model.n_features == 0:
        parts = _constant_nodes(model.margins(np.zeros((1, 0), np.float32))[0])
    elif isinstance(model, TreeEnsemble):
        parts = _tree_nodes(model)
    elif isinstance(model, KernelModel):
        parts = _kernel_nodes(model)
    else:
        parts = _linear_nodes(model)
    outputs = [tensor(MARGINS, TensorProto.FLOAT, "n", model.n_outputs)]
    return model_of(parts, model.n_features, outputs)


def _constant_nodes(margins: NDArray[np.float32]) -> Parts:
    """The same margins for every row of a matrix without columns."""
    nodes = [
        helper.make_node("ReduceSum", [INPUT, "columns"], ["zero"], keepdims=1),
        helper.make_node("Add", ["zero", "value"], [MARGINS]),
    ]
    return nodes, [constant("columns", np.array([1])), constant("value", margins)]


def _tree_nodes(model: TreeEnsemble) -> Parts:
    """One ``TreeEnsembleRegressor`` from ``x`` to ``margins``."""
    n_nodes, n_trees = model.n_nodes, model.n_trees
    tree = np.repeat(np.arange(n_trees), np.diff(np.append(model.roots, n_nodes)))
    number = np.arange(n_nodes) - model.roots[tree]  # counted anew in each tree
    inner = model.feature >= 0

    def child(side: NDArray[np.int32]) -> NDArray[np.int64]:
        return np.where(inner, side - model.roots[tree], 0)

    leaf, target, weight = _leaf_weights(model, tree, inner)
    attributes: dict[str, Any] = {
        "n_targets": model.n_outputs,
        "aggregate_function": "SUM",
        "post_transform": "NONE",
        "base_values": model.base + np.float32(0),  # -0 becomes 0, as in a sum with 0
        "nodes_treeids": tree,
        "nodes_nodeids": number,
        "nodes_featureids": np.where(inner, model.feature, 0),
        "nodes_values": np.where(inner, model.threshold, np.float32(0)),
        "nodes_modes": ["BRANCH_LEQ" if i else "LEAF" for i in inner.tolist()],
        "nodes_truenodeids": child(model.left),
        "nodes_falsenodeids": child(model.right),
        "target_treeids": tree[leaf],
        "target_nodeids": number[leaf],
        "target_ids": target,
        "target_weights": weight,
    }
    if (model.nan_left & inner).any():
        attributes["nodes_missing_value_tracks_true"] = (model.nan_left & inner).astype(np.int64)
    plain = {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in attributes.items()}
    node = helper.make_node(
        "TreeEnsembleRegressor", [INPUT], [MARGINS], domain=ML_DOMAIN, name="trees", **plain
    )
    return [node], []


def _leaf_weights(
    model: TreeEnsemble, tree: NDArray[np.intp], inner: NDArray[np.bool_]
) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.float32]]:
    """Node, target and weight of every entry, leaf by leaf."""
    leaves = np.flatnonzero(~inner)
    output = model.output[tree[leaves]]
    scalar, whole = np.flatnonzero(output >= 0), np.flatnonzero(output < 0)
    weight = np.zeros((len(leaves), model.n_outputs), np.float32)
    weight[scalar, output[scalar]] = model.value[leaves[scalar], 0]
    weight[whole] = model.value[leaves[whole]] if len(whole) else 0
    # Adding a 0 changes no sum, so most zeros are left out; but a leaf needs an entry, and
    # onnxruntime forgets the base of a target that no entry reached.
    keep = weight != 0
    keep[tree[leaves] == 0] |= model.base != 0
    bare = ~keep.any(axis=1)
    keep[bare, np.maximum(output[bare], 0)] = True
    row, target = np.nonzero(keep)
    return leaves[row], target, weight[row, target]


def _linear_nodes(model: LinearModel) -> Parts:
    """Standardise, weigh, add up in the order of the features, add the bias."""
    constants = [constant("mean", model.mean), constant("scale", model.scale)]
    nodes = [
        helper.make_node("Sub", [INPUT, "mean"], ["centred"]),
        helper.make_node("Mul", ["centred", "scale"], ["z"]),
    ]
    if model.n_outputs == 1:
        constants.append(constant("weights", model.weights[:, 0]))
        nodes.append(helper.make_node("Mul", ["z", "weights"], ["terms"]))
    else:
        constants += [constant("weights", model.weights), constant("depth", np.array([2]))]
        nodes.append(helper.make_node("Unsqueeze", ["z", "depth"], ["z_column"]))
        nodes.append(helper.make_node("Mul", ["z_column", "weights"], ["terms"]))
    added, last = _add_up(model.n_features, model.n_outputs == 1)
    return nodes + added, constants + last + [_bias(model.bias)]


def _kernel_nodes(model: KernelModel) -> Parts:
    """Standardise, squared distances, kernel values, weigh, add up, add the bias."""
    constants = [
        constant("mean", model.mean),
        constant("scale", model.scale),
        constant("landmarks", model.landmarks.T),
        constant("rate", np.array(model.rate, np.float32)),
        constant("one", np.array(1, np.float32)),
        constant("depth", np.array([2])),
        constant("rows", np.array(1)),
        constant("last_feature", np.array(model.n_features - 1)),
    ]
    nodes = [
        helper.make_node("Sub", [INPUT, "mean"], ["centred"]),
        helper.make_node("Mul", ["centred", "scale"], ["z"]),
        helper.make_node("Unsqueeze", ["z", "depth"], ["z_column"]),
        helper.make_node("Sub", ["z_column", "landmarks"], ["gaps"]),  # (n, k, landmarks)
        helper.make_node("Mul", ["gaps", "gaps"], ["squares"]),
        helper.make_node("CumSum", ["squares", "rows"], ["distances"]),
        helper.make_node("Gather", ["distances", "last_feature"], ["distance"], axis=1),
        helper.make_node("Mul", ["distance", "rate"], ["scaled"]),
        helper.make_node("Add", ["scaled", "one"], ["shifted"]),
        helper.make_node("Div", ["one", "shifted"], ["power_0"]),
    ]
    nodes += [
        helper.make_node("Mul", [f"power_{i}", f"power_{i}"], [f"power_{i + 1}"])
        for i in range(SQUARINGS)
    ]
    value = f"power_{SQUARINGS}"
    if model.n_outputs == 1:
        constants.append(constant("weights", model.weights[:, 0]))
    else:
        constants.append(constant("weights", model.weights))
        nodes.append(helper.make_node("Unsqueeze", [value, "depth"], ["value_column"]))
        value = "value_column"
    nodes.append(helper.make_node("Mul", [value, "weights"], ["terms"]))
    added, last = _add_up(len(model.landmarks), model.n_outputs == 1)
    return nodes + added, constants + last + [_bias(model.bias)]


def _add_up(n_terms: int, single: bool) -> Parts:
    """Add ``terms`` along axis 1 one after another, then ``bias``."""
    last = np.array(n_terms - 1)
    nodes = [
        helper.make_node("CumSum", ["terms", "columns"], ["sums"]),
        helper.make_node("Gather", ["sums", "last"], ["sum"], axis=1),
        helper.make_node("Add", ["sum", "bias"], [MARGINS]),
    ]
    # for a single output the list of one index keeps the sums a column
    index = last[None] if single else last
    return nodes, [constant("columns", np.array(1)), constant("last", index)]


def _bias(bias: NDArray[np.float32]) -> onnx.TensorProto:
    return constant("bias", bias + np.float32(0))  # -0 becomes 0, as in a sum with 0


# -- shared with the other graphs ----------------------------------------------------------


def model_of(
    parts: Parts, n_features: int, outputs: Sequence[onnx.ValueInfoProto]
) -> onnx.ModelProto:
    """Make a model of nodes that read ``x``, and check it."""
    nodes, constants = parts
    inputs = [tensor(INPUT, TensorProto.FLOAT, "n", n_features)]
    graph = helper.make_graph(nodes, "gatewise", inputs, list(outputs), constants)
    model = helper.make_model(
        graph,
        producer_name="gatewise",
        producer_version=__version__,
        ir_version=IR_VERSION,
        opset_imports=[
            helper.make_opsetid("", OPSET),
            helper.make_opsetid(ML_DOMAIN, ML_OPSET),
        ],
    )
    onnx.checker.check_model(model)
    return model


def tensor(name: str, kind: int, *shape: int | str) -> onnx.ValueInfoProto:
    """Describe a graph's input or output."""
    return helper.make_tensor_value_info(name, kind, list(shape))


def constant(name: str, array: NDArray[Any]) -> onnx.TensorProto:
    """Make a named constant of a graph."""
    return numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name)
