"""Repairs of a pruning, compared with the same rounds in plain Python.

h is a node, and `lam` the price of a unit of cost in training errors.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from gatewise_training.prune import tree_recursion
from gatewise_training.prune.problem import PruneProblem
from gatewise_training.prune.tree_recursion import repair


def draw_problem(seed, n_trees=3, n_columns=12):
    """Draw trees of seven nodes with profits, depth prices and shared acquisitions."""
    rng = np.random.default_rng(seed)
    parent = np.concatenate(
        [
            np.array([-1, 0, 0, 1, 1, 2, 2]) + 7 * tree * (np.arange(7) > 0)
            for tree in range(n_trees)
        ]
    ).astype(np.int32)
    n = len(parent)
    is_inner = np.tile([True, True, True, False, False, False, False], n_trees)
    profit = np.where(is_inner, rng.exponential(0.1, n), 0.0)
    use_counts = rng.integers(1, 4, n_columns)
    nodes = [rng.choice(np.flatnonzero(is_inner), count, replace=False) for count in use_counts]
    error = np.zeros(n)
    for h in range(n - 1, -1, -1):
        error[h] = profit[h] + error[parent == h].sum()
    return PruneProblem(
        parent=parent,
        is_inner=is_inner,
        error=error,
        profit=profit,
        column_start=np.cumsum([0, *use_counts]).astype(np.int64),
        column_nodes=np.concatenate(nodes).astype(np.int32),
        column_price=rng.exponential(0.5, n_columns),
        depth_price=np.where(is_inner, rng.exponential(0.05, n), 0.0),
    )


def list_columns(problem):
    """List the nodes that make each acquisition."""
    starts_and_stops = pairwise(problem.column_start)
    return [problem.column_nodes[start:stop] for start, stop in starts_and_stops]


def find_best_trees(problem, gain):
    """Keep the nodes with subtrees of a positive gain."""

    def compute_subtree_gain(h):
        children = np.flatnonzero(problem.parent == h)
        return gain[h] + sum(max(compute_subtree_gain(child), 0.0) for child in children)

    is_kept = np.zeros(problem.n_nodes, bool)
    for h in range(problem.n_nodes):
        parent = problem.parent[h]
        is_kept[h] = compute_subtree_gain(h) > 0.0 and (parent < 0 or is_kept[parent])
    return is_kept


def repair_plainly(problem, is_kept, lam):
    """Drop the nodes that lose on their own, then add the nodes that gain on their own."""
    columns = list_columns(problem)
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
        is_kept = find_best_trees(problem, gain)
    return is_kept


@pytest.mark.parametrize("max_rounds", [1, 3])
def test_rounds_of_repair_equal_plain_rounds(max_rounds, monkeypatch):
    if max_rounds == 1:
        monkeypatch.setattr(tree_recursion, "MAX_REPAIRS", 1)
    n_dropped = 0
    n_added = 0
    for seed in range(60):
        problem = draw_problem(seed)
        rng = np.random.default_rng(seed)
        is_kept = problem.is_inner & (rng.random(problem.n_nodes) < 0.7)
        has_parent = problem.parent >= 0
        is_kept[has_parent] &= is_kept[problem.parent[has_parent]]
        lam = 0.3
        is_kept_expected = is_kept
        expected_objective = problem.objective(is_kept, lam)
        for _ in range(max_rounds):
            is_kept_next = repair_plainly(problem, is_kept_expected, lam)
            if problem.objective(is_kept_next, lam) >= expected_objective - 1e-15:
                break
            is_kept_expected = is_kept_next
            expected_objective = problem.objective(is_kept_next, lam)
        is_kept_repaired, repaired_objective = repair(problem, is_kept, lam)
        np.testing.assert_array_equal(is_kept_repaired, is_kept_expected)
        assert repaired_objective == pytest.approx(expected_objective, abs=1e-15)
        n_dropped += bool((is_kept & ~is_kept_repaired).any())
        n_added += bool((is_kept_repaired & ~is_kept).any())
    assert min(n_dropped, n_added) > 10  # the draws include repairs of both kinds
