"""Graphs of flat models read back into flat arrays: the way of ``onnx_graph`` in reverse.

Lets a bundle be checked without the system that it was made from: onnxruntime runs the graph,
the flat arrays are summed beside it, and both must say the same, bit for bit.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from gatewise_export.errors import BundleError
from gatewise_training.kernel import SQUARINGS, KernelModel
from gatewise_training.linear import LinearModel
from gatewise_training.scored_model import PlainModel, ScoredModel
from gatewise_training.stage import FlatModel
from gatewise_training.trees import TreeEnsemble

__all__ = ["read_flat"]

LINEAR = (
    ("Sub", "Mul", "Mul", "CumSum", "Gather", "Add"),
    ("Sub", "Mul", "Unsqueeze", "Mul", "CumSum", "Gather", "Add"),
)
KERNEL = ("Sub", "Mul", "Unsqueeze", "Sub", "Mul", "CumSum", "Gather", "Mul", "Add", "Div") + (
    "Mul",
) * SQUARINGS
KERNELS = tuple(KERNEL + form[2:] for form in LINEAR)
CONSTANT = ("ReduceSum", "Add")
TREES = ("TreeEnsembleRegressor",)
STOP = ("Concat", "TreeEnsembleRegressor", "Add", "Concat")
OWN_SCORES = (("Abs",), ("TopK", "Gather", "Gather", "Sub"))


def read_flat(content: bytes) -> FlatModel:
    """Read a graph that :func:`gatewise_export.onnx_graph.flat_graph` wrote.

    Parameters
    ----------
    content : bytes
        The ONNX file.

    Raises
    ------
    BundleError
        If it is not such a graph.
    """
    try:
        graph = onnx.load_model_from_string(content).graph
        forms = tuple(node.op_type for node in graph.node)
        n_features = graph.input[0].type.tensor_type.shape.dim[1].dim_value
        for own in OWN_SCORES:
            if forms[-len(own + STOP) :] == own + STOP:
                model = _plain(graph, forms[: -len(own + STOP)], n_features)
                wide = n_features + model.n_outputs + 1
                return ScoredModel(model, _trees(graph.node[-3], wide))
        return _plain(graph, forms, n_features)
    except BundleError:
        raise
    except (KeyError, IndexError, ValueError, TypeError) as error:
        raise BundleError(f"a graph with flat arrays that do not fit together: {error}") from error
    except Exception as error:  # protobuf's DecodeError is not public
        raise BundleError(f"a graph that is not an ONNX file: {error}") from error


def _plain(graph: onnx.GraphProto, forms: tuple[str, ...], n_features: int) -> PlainModel:
    """Read the classifier that a graph's first nodes, of these forms, make."""
    if forms == TREES:
        return _trees(graph.node[0], n_features)
    if forms in KERNELS:
        return _kernel(graph)
    if forms in LINEAR or forms == CONSTANT:
        return _linear(graph, constant=forms == CONSTANT)
    raise BundleError("a graph of another form than Gatewise writes: it cannot be read back")


def _trees(written: onnx.NodeProto, n_features: int) -> TreeEnsemble:
    node: dict[str, Any] = {a.name: helper.get_attribute_value(a) for a in written.attribute}
    tree = np.array(node["nodes_treeids"], np.int64)
    number = np.array(node["nodes_nodeids"], np.int64)
    roots = np.flatnonzero(number == 0)
    inner = np.array([mode != b"LEAF" for mode in node["nodes_modes"]])
    strange = set(node["nodes_modes"]) - {b"LEAF", b"BRANCH_LEQ"}
    if strange or (np.arange(len(tree)) - roots[tree] != number).any():
        raise ValueError("nodes of an unknown kind or order")

    def child(key: str) -> NDArray[np.int32]:
        return np.where(inner, np.array(node[key]) + roots[tree], -1).astype(np.int32)

    value = np.zeros((len(tree), node["n_targets"]), np.float32)
    leaf = roots[np.array(node["target_treeids"])] + np.array(node["target_nodeids"])
    value[leaf, np.array(node["target_ids"])] = node["target_weights"]
    missing = node.get("nodes_missing_value_tracks_true", [0] * len(tree))
    return TreeEnsemble(
        feature=np.where(inner, node["nodes_featureids"], -1).astype(np.int32),
        threshold=np.array(node["nodes_values"], np.float32),
        left=child("nodes_truenodeids"),
        right=child("nodes_falsenodeids"),
        nan_left=np.array(missing, np.bool_),
        value=value,
        roots=roots.astype(np.int32),
        output=np.full(len(roots), -1, np.int32),
        base=np.array(node["base_values"], np.float32),
        n_features=n_features,
    )


def _linear(graph: onnx.GraphProto, *, constant: bool) -> LinearModel:
    arrays = _arrays(graph)
    if constant:
        none = np.zeros(0, np.float32)
        value = arrays["value"]
        return LinearModel(none, none, np.zeros((0, len(value)), np.float32), value)
    return LinearModel(arrays["mean"], arrays["scale"], _weights(arrays), arrays["bias"])


def _kernel(graph: onnx.GraphProto) -> KernelModel:
    arrays = _arrays(graph)
    return KernelModel(
        mean=arrays["mean"],
        scale=arrays["scale"],
        landmarks=np.ascontiguousarray(arrays["landmarks"].T),
        rate=np.float32(arrays["rate"]),
        weights=_weights(arrays),
        bias=arrays["bias"],
    )


def _arrays(graph: onnx.GraphProto) -> dict[str, NDArray[Any]]:
    return {t.name: numpy_helper.to_array(t) for t in graph.initializer}


def _weights(arrays: dict[str, NDArray[Any]]) -> NDArray[np.float32]:
    weights: NDArray[np.float32] = arrays["weights"]
    return weights[:, None] if weights.ndim == 1 else weights
