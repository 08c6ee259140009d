"""Trees walked one row and one node at a time, in plain Python, and the data to walk them with."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from sklearn.datasets import load_breast_cancer

from gatewise.costs import FeatureCosts
from gatewise.models.trees import TreeEnsemble

__all__ = ["columns_of", "paths", "price", "priced", "thirds"]


def paths(trees: TreeEnsemble, row: Any) -> list[list[int]]:
    """Nodes that a row passes in each tree, the leaf last."""
    found = []
    for root in trees.roots.tolist():
        nodes = [root]
        while (k := int(trees.feature[nodes[-1]])) >= 0:
            here = nodes[-1]
            left = trees.nan_left[here] if np.isnan(row[k]) else row[k] <= trees.threshold[here]
            nodes.append(int((trees.left if left else trees.right)[here]))
        found.append(nodes)
    return found


def columns_of(trees: TreeEnsemble, row: Any) -> set[int]:
    """Columns that a row's paths test."""
    return {int(trees.feature[h]) for nodes in paths(trees, row) for h in nodes[:-1]}


def price(columns: Iterable[int], costs: FeatureCosts) -> float:
    """Own prices of some columns, and the shared price of each group among them once."""
    columns = set(columns)
    groups = {int(costs.group[k]) for k in columns} - {-1}
    return float(sum(costs.own[k] for k in columns) + sum(costs.shared[g] for g in groups))


def thirds(load: Callable[..., Any] = load_breast_cancer, seed: int = 0) -> tuple[Any, ...]:
    """Two thirds of a data set's rows and labels, and the other third."""
    X, y = load(return_X_y=True)
    order = np.random.default_rng(seed).permutation(len(X))
    X, y = X[order].astype(np.float32), y[order]
    n = 2 * len(X) // 3
    return X[:n], y[:n], X[n:], y[n:]


def priced(n: int) -> FeatureCosts:
    """Own prices that differ; two groups with shared prices, the rest alone."""
    group = ["a"] * 4 + ["b"] * 4 + [None] * (n - 8)
    return FeatureCosts(1 + np.arange(n) % 3 / 2, group=group, shared={"a": 2.0, "b": 3.0})
