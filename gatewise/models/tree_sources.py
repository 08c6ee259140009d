"""Nodes of other libraries' trees: LightGBM's models in their text form, scikit-learn's forests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gatewise.errors import InputError

LEAF = -1
"""In the place of a leaf's feature and children."""


@dataclass(frozen=True, eq=False)
class Nodes:
    """One tree with node indices of its own; the arrays are those of ``TreeEnsemble``."""

    feature: NDArray[Any]
    threshold: NDArray[np.float32]
    left: NDArray[Any]
    right: NDArray[Any]
    nan_left: NDArray[np.bool_]
    value: NDArray[Any]


def float32_below(threshold: NDArray[np.float64]) -> NDArray[np.float32]:
    """Round to the largest float32 that is not above.

    For float32 rows ``x <= t`` and ``x <= float32_below(t)`` are then the same test.
    """
    with np.errstate(over="ignore"):
        rounded = np.asarray(threshold, np.float64).astype(np.float32)
        above = rounded.astype(np.float64) > threshold
        return np.where(above, np.nextafter(rounded, np.float32(-np.inf)), rounded)


def forest_nodes(forest: Any) -> list[Nodes]:
    """Trees of a fitted scikit-learn forest; values are class shares divided by their number."""
    trees = []
    for estimator in forest.estimators_:
        tree = estimator.tree_
        counts = tree.value[:, 0, :]
        leaf = tree.children_left < 0
        trees.append(
            Nodes(
                feature=np.where(leaf, LEAF, tree.feature),
                threshold=float32_below(np.where(leaf, 0, tree.threshold)),
                left=tree.children_left,
                right=tree.children_right,
                nan_left=tree.missing_go_to_left.astype(bool),
                value=counts / counts.sum(axis=1, keepdims=True) / len(forest.estimators_),
            )
        )
    return trees


def lightgbm_nodes(text: str) -> tuple[list[Nodes], int, int]:
    """Trees, number of outputs and number of features of a LightGBM model's text."""
    head, *blocks = text.split("\nTree=")
    if "average_output" in head.split("\n"):
        raise InputError('LightGBM boosting="rf" is not supported; use a forest')
    header = dict(line.split("=", 1) for line in head.splitlines() if "=" in line)
    n_outputs, n_features = int(header["num_tree_per_iteration"]), int(header["max_feature_idx"])
    return [_lightgbm_tree(block) for block in blocks], n_outputs, n_features + 1


def _lightgbm_tree(block: str) -> Nodes:
    fields = dict(line.split("=", 1) for line in block.splitlines() if "=" in line)
    if int(fields.get("num_cat", 0)):
        raise InputError("LightGBM's categorical splits are not supported; encode the categories")
    if int(fields.get("is_linear", 0)):
        raise InputError("LightGBM's linear leaves are not supported; train with linear_tree=False")

    def numbers(key: str, kind: type) -> NDArray[Any]:
        return np.array(fields.get(key, "").split(), dtype=kind)

    n_splits = int(fields["num_leaves"]) - 1
    leaves = numbers("leaf_value", np.float64)
    n = n_splits + len(leaves)
    kinds = numbers("decision_type", np.int64)
    missing = kinds >> 2 & 3
    if (missing == 1).any():
        raise InputError("LightGBM's zero_as_missing is not supported; train without it")
    threshold = numbers("threshold", np.float64)
    # missing type None (0) treats NaN as the number 0; type NaN (2) has a default side
    nan_left = np.where(missing == 2, kinds & 2, threshold >= 0).astype(bool)

    def children(key: str) -> NDArray[np.int64]:
        side = numbers(key, np.int64)
        return np.where(side < 0, n_splits + ~side, side)

    def padded(array: NDArray[Any], fill: float) -> NDArray[Any]:
        return np.concatenate([array, np.full(n - len(array), fill, array.dtype)])

    return Nodes(
        feature=padded(numbers("split_feature", np.int64), LEAF),
        threshold=padded(float32_below(threshold), 0),
        left=padded(children("left_child"), LEAF),
        right=padded(children("right_child"), LEAF),
        nan_left=padded(nan_left, False),
        value=np.concatenate([np.zeros(n_splits), leaves])[:, None],
    )
