"""Conversion of flat trees to the attributes of ONNX's ``TreeEnsembleRegressor``."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gatewise.models.trees import TreeEnsemble

#: Version of ONNX's operators in the graphs of stages.
OPSET = 17
ML_DOMAIN = "ai.onnx.ml"
ML_OPSET = 3  # the latest one that onnxruntime on devices supports


def tree_ensemble_attributes(model: TreeEnsemble) -> dict[str, Any]:
    """Make the attributes with which the operator computes the margins of `model`."""
    n_nodes = model.n_nodes
    n_trees = model.n_trees
    tree_of_node = np.repeat(np.arange(n_trees), np.diff(np.append(model.roots, n_nodes)))
    node_in_tree = np.arange(n_nodes) - model.roots[tree_of_node]
    is_inner = model.feature >= 0

    def child_in_tree(child_nodes: NDArray[np.int32]) -> NDArray[np.int64]:
        return np.where(is_inner, child_nodes - model.roots[tree_of_node], 0)

    leaf_of_entry, target, weight = _list_leaf_weights(model, tree_of_node, is_inner)
    attributes: dict[str, Any] = {
        "n_targets": model.n_outputs,
        "aggregate_function": "SUM",
        "post_transform": "NONE",
        "base_values": model.base + np.float32(0),  # -0 becomes 0, as in a sum that starts at 0
        "nodes_treeids": tree_of_node,
        "nodes_nodeids": node_in_tree,
        "nodes_featureids": np.where(is_inner, model.feature, 0),
        "nodes_values": np.where(is_inner, model.threshold, np.float32(0)),
        "nodes_modes": np.array([b"LEAF", b"BRANCH_LEQ"])[is_inner.astype(np.intp)],
        "nodes_truenodeids": child_in_tree(model.left),
        "nodes_falsenodeids": child_in_tree(model.right),
        "target_treeids": tree_of_node[leaf_of_entry],
        "target_nodeids": node_in_tree[leaf_of_entry],
        "target_ids": target,
        "target_weights": weight,
    }
    if (model.nan_left & is_inner).any():
        attributes["nodes_missing_value_tracks_true"] = (model.nan_left & is_inner).astype(np.int64)
    return attributes


def _list_leaf_weights(
    model: TreeEnsemble, tree: NDArray[np.intp], is_inner: NDArray[np.bool_]
) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.float32]]:
    """List the node, the target and the weight of each entry of the leaves."""
    leaves = np.flatnonzero(~is_inner)
    output = model.output[tree[leaves]]
    one_output_leaves = np.flatnonzero(output >= 0)
    all_output_leaves = np.flatnonzero(output < 0)
    weight = np.zeros((len(leaves), model.n_outputs), np.float32)
    weight[one_output_leaves, output[one_output_leaves]] = model.value[leaves[one_output_leaves], 0]
    if len(all_output_leaves):
        weight[all_output_leaves] = model.value[leaves[all_output_leaves]]
    # Leave out weights of 0, which do not change sums. There are two exceptions: each leaf needs an
    # entry, and onnxruntime ignores the base of a target without entries.
    has_entry = weight != 0
    has_entry[tree[leaves] == 0] |= model.base != 0
    lacks_entries = ~has_entry.any(axis=1)
    has_entry[lacks_entries, np.maximum(output[lacks_entries], 0)] = True
    row, target = np.nonzero(has_entry)
    return leaves[row], target, weight[row, target]
