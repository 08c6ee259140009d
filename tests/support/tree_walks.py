"""Reference walk of trees in plain Python, one row and one node at a time, and data for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.datasets import load_breast_cancer

from gatewise.costs import FeatureCosts
from gatewise.models.stage import Stage
from gatewise.models.trees import TreeEnsemble
from tests.support.prices import sum_prices


def find_tree_paths(trees: TreeEnsemble, row: Any) -> list[list[int]]:
    """List the nodes on a row's path in each tree, with the leaf last."""
    paths = []
    for root in trees.roots.tolist():
        nodes = [root]
        while (column := int(trees.feature[nodes[-1]])) >= 0:
            node = nodes[-1]
            goes_left = row[column] <= trees.threshold[node]
            if np.isnan(row[column]):
                goes_left = trees.nan_left[node]
            nodes.append(int((trees.left if goes_left else trees.right)[node]))
        paths.append(nodes)
    return paths


def find_tested_columns(trees: TreeEnsemble, row: Any) -> set[int]:
    """Find the columns that the nodes on a row's paths test."""
    return {
        int(trees.feature[node]) for nodes in find_tree_paths(trees, row) for node in nodes[:-1]
    }


def find_stage_columns(stage: Stage, row: Any) -> set[int]:
    """Find the columns that a stage acquires for a row."""
    if stage.acquisition == "stage":
        return set(stage.features.tolist())
    assert isinstance(stage.model, TreeEnsemble)
    return {int(stage.features[k]) for k in find_tested_columns(stage.model, row[stage.features])}


def measure_costs_and_splits(model: Any, X: Any, costs: FeatureCosts) -> tuple[Any, Any]:
    """Compute the feature cost and the number of splits of each row in a model of one stage."""
    (stage,) = model.stages_
    rows = np.asarray(X, np.float32)
    costs_of_rows = [sum_prices(costs, find_stage_columns(stage, row)) for row in rows]
    paths_of_rows = [find_tree_paths(stage.model, row[stage.features]) for row in rows]
    n_splits = [sum(map(len, paths)) - stage.n_trees for paths in paths_of_rows]
    return np.array(costs_of_rows), np.array(n_splits)


def split_two_thirds(
    load: Callable[..., Any] = load_breast_cancer, seed: int = 0
) -> tuple[Any, ...]:
    """Split a data set into two thirds and one third; return rows and labels of both parts."""
    X, y = load(return_X_y=True)
    row_order = np.random.default_rng(seed).permutation(len(X))
    X = X[row_order].astype(np.float32)
    y = y[row_order]
    n_two_thirds = 2 * len(X) // 3
    return X[:n_two_thirds], y[:n_two_thirds], X[n_two_thirds:], y[n_two_thirds:]


def make_prices_of_two_groups(n: int) -> FeatureCosts:
    """Make different own prices, and shared prices of two groups of four features."""
    group = ["a"] * 4 + ["b"] * 4 + [None] * (n - 8)
    return FeatureCosts(1 + np.arange(n) % 3 / 2, group=group, shared={"a": 2.0, "b": 3.0})
