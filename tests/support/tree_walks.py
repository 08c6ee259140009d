"""Trees walked one row and one node at a time, in plain Python, and the data to walk them with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.datasets import load_breast_cancer

from gatewise.costs import FeatureCosts
from gatewise.models.stage import Stage
from gatewise.models.trees import TreeEnsemble
from tests.support.prices import price_of


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


def stage_columns(stage: Stage, row: Any) -> set[int]:
    """Columns of the instance that a row acquires in a stage."""
    if stage.acquisition == "stage":
        return set(stage.features.tolist())
    assert isinstance(stage.model, TreeEnsemble)
    return {int(stage.features[k]) for k in columns_of(stage.model, row[stage.features])}


def counted(model: Any, X: Any, costs: FeatureCosts) -> tuple[Any, Any]:
    """Feature cost of each row in a model of one stage, and the splits that it passes."""
    (stage,) = model.stages_
    rows = np.asarray(X, np.float32)
    bills = [price_of(costs, stage_columns(stage, row)) for row in rows]
    walks = [paths(stage.model, row[stage.features]) for row in rows]
    return np.array(bills), np.array([sum(map(len, w)) - stage.n_trees for w in walks])


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
