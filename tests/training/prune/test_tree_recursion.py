"""Repairs of a pruning, compared with the same rounds in plain Python."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from gatewise_training.prune import tree_recursion
from gatewise_training.prune.problem import PruneProblem
from gatewise_training.prune.tree_recursion import repair


def random_problem(seed, n_trees=3, n_columns=12):
    """Make trees of seven nodes with profits, depth prices and shared acquisitions."""
    rng = np.random.default_rng(seed)
    parent = np.concatenate(
        [np.array([-1, 0, 0, 1, 1, 2, 2]) + 7 * t * (np.arange(7) > 0) for t in range(n_trees)]
    ).astype(np.int32)
    n = len(parent)
    inner = np.tile([True, True, True, False, False, False, False], n_trees)
    profit = np.where(inner, rng.exponential(0.1, n), 0.0)
    sizes = rng.integers(1, 4, n_columns)
    nodes = [rng.choice(np.flatnonzero(inner), size, replace=False) for size in sizes]
    error = np.zeros(n)
    for h in range(n - 1, -1, -1):
        error[h] = profit[h] + error[parent == h].sum()
    return PruneProblem(
        parent=parent,
        inner=inner,
        error=error,
        profit=profit,
        column_start=np.cumsum([0, *sizes]).astype(np.int64),
        column_nodes=np.concatenate(nodes).astype(np.int32),
        column_price=rng.exponential(0.5, n_columns),
        depth_price=np.where(inner, rng.exponential(0.05, n), 0.0),
    )


def columns_of(problem):
    bounds = pairwise(problem.column_start)
    return [problem.column_nodes[start:stop] for start, stop in bounds]


def best_trees(problem, gain):
    """Keep the nodes whose subtrees have a positive gain."""

    def subtree_gain(h):
        children = np.flatnonzero(problem.parent == h)
        return gain[h] + sum(max(subtree_gain(child), 0.0) for child in children)

    is_kept = np.zeros(problem.n_nodes, bool)
    for h in range(problem.n_nodes):
        parent = problem.parent[h]
        is_kept[h] = subtree_gain(h) > 0.0 and (parent < 0 or is_kept[parent])
    return is_kept


def plain_round(problem, is_kept, lam):
    """Drop the nodes that lose on their own, then add the nodes that gain on their own."""
    columns = columns_of(problem)
    for is_adding in (False, True):
        gain = problem.profit - lam * problem.depth_price
        for nodes, price in zip(columns, problem.column_price, strict=True):
            n_kept = is_kept[nodes].sum()
            if is_adding and n_kept == 0:
                gain[nodes] -= lam * price  # any of them would pay the whole price
            if not is_adding and n_kept == 1:
                gain[nodes[is_kept[nodes]]] -= lam * price  # saved if this node is dropped
        if not is_adding:
            gain[~is_kept] = -np.inf
        is_kept = best_trees(problem, gain)
    return is_kept


@pytest.mark.parametrize("max_rounds", [1, 3])
def test_rounds_of_repair_equal_plain_rounds(max_rounds, monkeypatch):
    if max_rounds == 1:
        monkeypatch.setattr(tree_recursion, "MAX_REPAIRS", 1)
    n_dropped = 0
    n_added = 0
    for seed in range(60):
        problem = random_problem(seed)
        rng = np.random.default_rng(seed)
        is_kept = problem.inner & (rng.random(problem.n_nodes) < 0.7)
        has_parent = problem.parent >= 0
        is_kept[has_parent] &= is_kept[problem.parent[has_parent]]
        lam = 0.3
        expected = is_kept
        objective = problem.objective(is_kept, lam)
        for _ in range(max_rounds):
            candidate = plain_round(problem, expected, lam)
            if problem.objective(candidate, lam) >= objective - 1e-15:
                break
            expected = candidate
            objective = problem.objective(candidate, lam)
        repaired, value = repair(problem, is_kept, lam)
        np.testing.assert_array_equal(repaired, expected)
        assert value == pytest.approx(objective, abs=1e-15)
        n_dropped += bool((is_kept & ~repaired).any())
        n_added += bool((repaired & ~is_kept).any())
    assert min(n_dropped, n_added) > 10


def test_repair_saves_prices_that_a_single_node_pays():
    """Two nodes of two trees make the same acquisition."""
    problem = PruneProblem(
        parent=np.array([-1, 0, 0, -1, 3, 3], np.int32),
        inner=np.array([True, False, False, True, False, False]),
        error=np.array([0.4, 0.0, 0.0, 0.3, 0.0, 0.0]),
        profit=np.array([0.4, 0.0, 0.0, 0.3, 0.0, 0.0]),
        column_start=np.array([0, 2], np.int64),
        column_nodes=np.array([0, 3], np.int32),
        column_price=np.array([0.5]),
        depth_price=np.zeros(6),
    )
    no_nodes = np.zeros(6, bool)
    first_node = np.arange(6) == 0
    both_nodes = problem.inner
    is_kept, value = repair(problem, first_node, 1.0)  # earns 0.4 for 0.5, so it is dropped
    np.testing.assert_array_equal(is_kept, no_nodes)
    assert value == pytest.approx(0.7)
    is_kept, value = repair(problem, first_node, 0.6)  # earns 0.4 for 0.3; the other is then free
    np.testing.assert_array_equal(is_kept, both_nodes)
    assert value == pytest.approx(0.3)
    is_kept, value = repair(problem, both_nodes, 1.0)  # dropping one of them saves nothing
    np.testing.assert_array_equal(is_kept, both_nodes)
    assert value == pytest.approx(0.5)
    is_kept, value = repair(problem, no_nodes, 0.8)  # would earn 0.4 for 0.4, which is no gain
    np.testing.assert_array_equal(is_kept, no_nodes)
    assert value == pytest.approx(0.7)
