"""Repairs of a pruning: each half of a round against the recursion in plain Python."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from gatewise_training.prune import tree_recursion
from gatewise_training.prune.problem import PruneProblem
from gatewise_training.prune.tree_recursion import improved


def random_problem(seed, n_trees=3, n_columns=12):
    """Trees of seven nodes with profits, prices of depth and shared acquisitions."""
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
    return [problem.column_nodes[a:b] for a, b in pairwise(problem.column_start)]


def best_trees(problem, gain):
    """Nodes that a tree recursion keeps under gains, subtree by subtree."""

    def worth(h):
        children = np.flatnonzero(problem.parent == h)
        return gain[h] + sum(max(worth(child), 0.0) for child in children)

    keep = np.zeros(problem.n_nodes, bool)
    for h in range(problem.n_nodes):
        above = problem.parent[h]
        keep[h] = worth(h) > 0.0 and (above < 0 or keep[above])
    return keep


def plain_round(problem, keep, lam):
    """Drop what loses by itself, then add what gains by itself."""
    columns = columns_of(problem)
    for adding in (False, True):
        gain = problem.profit - lam * problem.depth_price
        for nodes, price in zip(columns, problem.column_price, strict=True):
            n_kept = keep[nodes].sum()
            if adding and n_kept == 0:
                gain[nodes] -= lam * price  # each of them alone would pay
            if not adding and n_kept == 1:
                gain[nodes[keep[nodes]]] -= lam * price  # saved if this node goes
        if not adding:
            gain[~keep] = -np.inf
        keep = best_trees(problem, gain)
    return keep


@pytest.mark.parametrize("max_rounds", [1, 3])
def test_a_round_of_repair_drops_what_loses_alone_and_adds_what_gains_alone(
    max_rounds, monkeypatch
):
    if max_rounds == 1:
        monkeypatch.setattr(tree_recursion, "MAX_REPAIRS", 1)
    n_dropped = n_added = 0
    for seed in range(60):
        problem = random_problem(seed)
        rng = np.random.default_rng(seed)
        keep = problem.inner & (rng.random(problem.n_nodes) < 0.7)
        below = problem.parent >= 0
        keep[below] &= keep[problem.parent[below]]
        lam = 0.3
        expected, objective = keep, problem.objective(keep, lam)
        for _ in range(max_rounds):
            repaired = plain_round(problem, expected, lam)
            if problem.objective(repaired, lam) >= objective - 1e-15:
                break
            expected, objective = repaired, problem.objective(repaired, lam)
        better, value = improved(problem, keep, lam)
        np.testing.assert_array_equal(better, expected)
        assert value == pytest.approx(objective, abs=1e-15)
        n_dropped += bool((keep & ~better).any())
        n_added += bool((better & ~keep).any())
    assert min(n_dropped, n_added) > 10


def test_repairs_save_prices_that_a_single_node_pays():
    """Two nodes of two trees: alone a node loses its price, and together they share it."""
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
    none, first, both = np.zeros(6, bool), np.arange(6) == 0, problem.inner
    keep, value = improved(problem, first, 1.0)  # 0.4 for 0.5: the acquisition is saved
    np.testing.assert_array_equal(keep, none)
    assert value == pytest.approx(0.7)
    keep, value = improved(problem, first, 0.6)  # 0.4 for 0.3: it stays, and the other joins free
    np.testing.assert_array_equal(keep, both)
    assert value == pytest.approx(0.3)
    keep, value = improved(problem, both, 1.0)  # neither alone saves the shared price
    np.testing.assert_array_equal(keep, both)
    assert value == pytest.approx(0.5)
    keep, value = improved(problem, none, 0.8)  # 0.4 for 0.4: a gain of 0 is not taken
    np.testing.assert_array_equal(keep, none)
    assert value == pytest.approx(0.7)
