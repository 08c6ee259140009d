"""Readers for the nodes of LightGBM's models in text form and of scikit-learn's forests."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gatewise.errors import InputError

#: Value of the feature and of the children of a leaf.
LEAF = -1
#: Threshold that separates NaN from all numbers.
FLOAT32_MAX = np.finfo(np.float32).max
#: Largest number that LightGBM treats as 0.
LIGHTGBM_ZERO = np.float32(1e-35)


@dataclass(frozen=True, eq=False)
class Nodes:
    """Nodes of one or more trees; the arrays are the same as in ``TreeEnsemble``."""

    feature: NDArray[Any]
    threshold: NDArray[np.float32]
    left: NDArray[Any]
    right: NDArray[Any]
    nan_left: NDArray[np.bool_]
    value: NDArray[Any]


def float32_below(threshold: NDArray[np.float64]) -> NDArray[np.float32]:
    """Round thresholds down to float32, which keeps every comparison with a float32 value."""
    with np.errstate(over="ignore"):
        nearest = np.asarray(threshold, np.float64).astype(np.float32)
        is_above = nearest.astype(np.float64) > threshold
        return np.where(is_above, np.nextafter(nearest, np.float32(-np.inf)), nearest)


def forest_nodes(estimators: Sequence[Any]) -> list[Nodes]:
    """Convert fitted trees of scikit-learn; the values are shares or sums by class."""
    trees = []
    for estimator in estimators:
        tree = estimator.tree_
        is_leaf = tree.children_left < 0
        trees.append(
            Nodes(
                feature=np.where(is_leaf, LEAF, tree.feature),
                threshold=float32_below(np.where(is_leaf, 0, tree.threshold)),
                left=tree.children_left,
                right=tree.children_right,
                nan_left=tree.missing_go_to_left.astype(bool),
                value=tree.value[:, 0, :],
            )
        )
    return trees


class LightGBMTrees(NamedTuple):
    """Trees of a LightGBM model; in the nodes of each tree, the leaves come after the splits."""

    nodes: Nodes  # of all trees, one tree after another
    roots: NDArray[np.int32]  # (n_trees,)
    n_outputs: int
    n_features: int


def read_lightgbm(text: str) -> LightGBMTrees:
    """Read the trees of a LightGBM model from its text form."""
    # read the header, and the fields of all trees
    header_text, _, tree_lines = text.partition("\nTree=")
    # cut off the lines after the trees, which may begin with any name of a feature
    tree_text = tree_lines.partition("\nend of trees")[0]
    if "average_output" in header_text.split("\n"):
        raise InputError('LightGBM boosting="rf" is not supported; use a forest')
    header = dict(line.split("=", 1) for line in header_text.splitlines() if "=" in line)
    n_outputs = int(header["num_tree_per_iteration"])
    n_features = int(header["max_feature_idx"]) + 1

    fields: defaultdict[str, list[str]] = defaultdict(list)
    for line in tree_text.split("\n"):
        field_name, _, values = line.partition("=")
        fields[field_name].append(values)

    def read_numbers(field_name: str, dtype: type) -> NDArray[Any]:
        """Concatenate the values of a field over all trees."""
        return np.fromstring(" ".join(fields[field_name]), dtype, sep=" ")

    if read_numbers("num_cat", np.int64).any():
        raise InputError("LightGBM's categorical splits are not supported; encode the categories")
    if read_numbers("is_linear", np.int64).any():
        raise InputError("LightGBM's linear leaves are not supported; train with linear_tree=False")
    # Number the nodes. A tree with L leaves has L - 1 splits. In the flat arrays, split i is node
    # root + i, and leaf i is node root + L - 1 + i.
    n_leaves = read_numbers("num_leaves", np.int64)
    n_splits = n_leaves - 1
    roots = np.cumsum(n_splits + n_leaves) - (n_splits + n_leaves)
    root_of_split = np.repeat(roots, n_splits)
    n_splits_of_tree = np.repeat(n_splits, n_splits)
    split_nodes = root_of_split + run_positions(n_splits)
    leaf_nodes = np.repeat(roots + n_splits, n_leaves) + run_positions(n_leaves)
    n_nodes = len(split_nodes) + len(leaf_nodes)

    # Read the side of missing values. Bit 1 of a decision means that the default side is left, and
    # bits 2 and 3 are the type of missing values.
    decision_types = read_numbers("decision_type", np.int64)
    missing_types = decision_types >> 2 & 3
    if (missing_types == 1).any():
        raise InputError("LightGBM's zero_as_missing is not supported; train without it")
    threshold = read_numbers("threshold", np.float64)
    # type None (0) treats NaN as the number 0, and type NaN (2) uses the default side
    nan_left = np.where(missing_types == 2, decision_types & 2, threshold >= 0).astype(bool)

    def fill_splits(values: NDArray[Any], fill: float, dtype: type) -> NDArray[Any]:
        node_values: NDArray[Any] = np.full(n_nodes, fill, dtype)
        node_values[split_nodes] = values
        return node_values

    def read_children(field_name: str) -> NDArray[np.int64]:
        # LightGBM writes leaf i as ~i, so all negative numbers are leaves
        child_numbers = read_numbers(field_name, np.int64)
        return root_of_split + np.where(
            child_numbers < 0, n_splits_of_tree + ~child_numbers, child_numbers
        )

    value = np.zeros((n_nodes, 1), np.float32)
    value[leaf_nodes, 0] = read_numbers("leaf_value", np.float64)
    nodes = Nodes(
        feature=fill_splits(read_numbers("split_feature", np.int64), LEAF, np.int32),
        threshold=fill_splits(_round_thresholds(threshold), 0, np.float32),
        left=fill_splits(read_children("left_child"), LEAF, np.int32),
        right=fill_splits(read_children("right_child"), LEAF, np.int32),
        nan_left=fill_splits(nan_left, False, np.bool_),
        value=value,
    )
    return LightGBMTrees(nodes, roots.astype(np.int32), n_outputs, n_features)


def _round_thresholds(threshold: NDArray[np.float64]) -> NDArray[np.float32]:
    """Round LightGBM's thresholds for float32 rows.

    LightGBM treats values near 0 as 0. A threshold near 0 moves to the end of that interval.
    """
    is_near = np.abs(threshold) <= LIGHTGBM_ZERO
    below_zero = np.nextafter(-LIGHTGBM_ZERO, np.float32(-np.inf))
    zero_edge = np.where(threshold >= 0, LIGHTGBM_ZERO, below_zero)
    return np.where(is_near, zero_edge, float32_below(threshold)).astype(np.float32)


def run_positions(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Number the members of consecutive runs with these sizes: 0, 1, ... within each run."""
    stops = np.cumsum(sizes)
    return np.arange(sizes.sum()) - np.repeat(stops - sizes, sizes)
