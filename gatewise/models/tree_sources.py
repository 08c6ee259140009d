"""Nodes of LightGBM's models in text form and of scikit-learn's forests."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gatewise.errors import InputError

LEAF = -1
"""Index that stands for the feature and the children of a leaf."""
FLOAT32_MAX = np.finfo(np.float32).max
LIGHTGBM_ZERO = np.float32(1e-35)
"""Largest number that LightGBM treats as 0."""


@dataclass(frozen=True, eq=False)
class Nodes:
    """Nodes of one tree, or of several, as the arrays of a ``TreeEnsemble``."""

    feature: NDArray[Any]
    threshold: NDArray[np.float32]
    left: NDArray[Any]
    right: NDArray[Any]
    nan_left: NDArray[np.bool_]
    value: NDArray[Any]


def float32_below(threshold: NDArray[np.float64]) -> NDArray[np.float32]:
    """Round down to float32, so that float32 rows compare with the threshold as before."""
    with np.errstate(over="ignore"):
        rounded = np.asarray(threshold, np.float64).astype(np.float32)
        is_above = rounded.astype(np.float64) > threshold
        return np.where(is_above, np.nextafter(rounded, np.float32(-np.inf)), rounded)


def forest_nodes(estimators: Sequence[Any]) -> list[Nodes]:
    """Convert fitted trees of scikit-learn; values are class shares or sums."""
    trees = []
    for estimator in estimators:
        tree = estimator.tree_
        leaf = tree.children_left < 0
        trees.append(
            Nodes(
                feature=np.where(leaf, LEAF, tree.feature),
                threshold=float32_below(np.where(leaf, 0, tree.threshold)),
                left=tree.children_left,
                right=tree.children_right,
                nan_left=tree.missing_go_to_left.astype(bool),
                value=tree.value[:, 0, :],
            )
        )
    return trees


def lightgbm_nodes(text: str) -> tuple[Nodes, NDArray[np.int32], int, int]:
    """Trees, their roots, number of outputs and number of features of a LightGBM model's text.

    The nodes of all trees follow each other, each tree's leaves behind its splits.
    """
    head, _, tree_lines = text.partition("\nTree=")
    # lines behind the trees may begin with names of features, which may be anything
    body = tree_lines.partition("\nend of trees")[0]
    if "average_output" in head.split("\n"):
        raise InputError('LightGBM boosting="rf" is not supported; use a forest')
    header = dict(line.split("=", 1) for line in head.splitlines() if "=" in line)
    n_outputs = int(header["num_tree_per_iteration"])
    n_features = int(header["max_feature_idx"]) + 1

    fields: defaultdict[str, list[str]] = defaultdict(list)
    for line in body.split("\n"):
        key, _, values = line.partition("=")
        fields[key].append(values)

    def numbers(key: str, kind: type) -> NDArray[Any]:
        """Values of a field, of all trees one after another."""
        return np.fromstring(" ".join(fields[key]), kind, sep=" ")

    if numbers("num_cat", np.int64).any():
        raise InputError("LightGBM's categorical splits are not supported; encode the categories")
    if numbers("is_linear", np.int64).any():
        raise InputError("LightGBM's linear leaves are not supported; train with linear_tree=False")
    # A tree with L leaves has L - 1 splits; a node of the flat arrays is the tree's root plus the
    # split's number, or plus L - 1 and the leaf's number.
    n_leaves = numbers("num_leaves", np.int64)
    n_splits = n_leaves - 1
    roots = np.cumsum(n_splits + n_leaves) - (n_splits + n_leaves)
    root = np.repeat(roots, n_splits)
    splits = np.repeat(n_splits, n_splits)
    inner = root + places(n_splits)
    outer = np.repeat(roots + n_splits, n_leaves) + places(n_leaves)
    n = len(inner) + len(outer)

    # Bit 1 of a decision: the default side is the left one; bits 2 and 3: type of missing values.
    kinds = numbers("decision_type", np.int64)
    missing = kinds >> 2 & 3
    if (missing == 1).any():
        raise InputError("LightGBM's zero_as_missing is not supported; train without it")
    threshold = numbers("threshold", np.float64)
    # missing type None (0) treats NaN as the number 0; type NaN (2) has a default side
    nan_left = np.where(missing == 2, kinds & 2, threshold >= 0).astype(bool)

    def at_splits(values: NDArray[Any], fill: float, dtype: type) -> NDArray[Any]:
        spread: NDArray[Any] = np.full(n, fill, dtype)
        spread[inner] = values
        return spread

    def children(key: str) -> NDArray[np.int64]:
        # ~leaf stands for a leaf, so that all negative numbers are leaves
        side = numbers(key, np.int64)
        return root + np.where(side < 0, splits + ~side, side)

    value = np.zeros((n, 1), np.float32)
    value[outer, 0] = numbers("leaf_value", np.float64)
    nodes = Nodes(
        feature=at_splits(numbers("split_feature", np.int64), LEAF, np.int32),
        threshold=at_splits(_beside_zero(threshold), 0, np.float32),
        left=at_splits(children("left_child"), LEAF, np.int32),
        right=at_splits(children("right_child"), LEAF, np.int32),
        nan_left=at_splits(nan_left, False, np.bool_),
        value=value,
    )
    return nodes, roots.astype(np.int32), n_outputs, n_features


def _beside_zero(threshold: NDArray[np.float64]) -> NDArray[np.float32]:
    """Round LightGBM's thresholds for float32 rows; those near 0 divide at the end of its zero."""
    is_near = np.abs(threshold) <= LIGHTGBM_ZERO
    below_zero = np.nextafter(-LIGHTGBM_ZERO, np.float32(-np.inf))
    zero_edge = np.where(threshold >= 0, LIGHTGBM_ZERO, below_zero)
    return np.where(is_near, zero_edge, float32_below(threshold)).astype(np.float32)


def places(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Number the members of several runs of `sizes`: 0, 1, ... within each run."""
    stops = np.cumsum(sizes)
    return np.arange(sizes.sum()) - np.repeat(stops - sizes, sizes)
