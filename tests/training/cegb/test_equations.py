"""Splits of CEGB's trees, compared with equations 12 and 13 in plain Python.

The equations are those of the paper (NIPS 2017): the gain of a split, and its price, of which
`alpha` is the part for each row. k is a column.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import lightgbm as lgb
import numpy as np
import pytest

from gatewise.costs import FeatureCosts
from gatewise_training.cegb.growth import TreeGrowth, grow
from gatewise_training.cegb.objectives import ValueTarget
from gatewise_training.cegb.penalties import Charge, SplitPrices
from gatewise_training.learners.boosting import tree_params

MIN_ROWS = 5  # smallest number of rows of a leaf, as in the product
N_VALUES = 7


def draw_table(n=400, seed=0):
    """Draw a table with so few distinct values that LightGBM has a bin for each."""
    rng = np.random.default_rng(seed)
    x = rng.integers(0, N_VALUES, size=(n, 4)).astype(np.float32)
    y = x[:, 0] * (x[:, 1] > 2) + 0.5 * x[:, 2] + 0.3 * x[:, 3] + rng.normal(size=n)
    return x, y - y.mean()


@dataclass
class TreeProblem:
    """Data and prices of one tree; `acquired` is updated by :func:`visit_nodes`."""

    x: np.ndarray
    gradient: np.ndarray
    acquired: np.ndarray
    price: np.ndarray
    alpha: float


def compute_net_gain(problem, rows, column, value):
    """Compute twice equation 12, the gain of a split less its price, with hessians of 1."""
    goes_left = problem.x[rows, column] <= value
    children_rows = rows[goes_left], rows[~goes_left]
    if min(map(len, children_rows)) < MIN_ROWS:
        return -np.inf
    gain = sum(
        problem.gradient[child_rows].sum() ** 2 / len(child_rows) for child_rows in children_rows
    )
    gain -= problem.gradient[rows].sum() ** 2 / len(rows)
    lazy_price = problem.price[column] * (~problem.acquired[rows, column]).sum()
    return gain - 2.0 * (lazy_price + problem.alpha * len(rows))


class NodeGains(NamedTuple):
    """Gains of a node: of its split (None at leaves), and of the best possible split."""

    node: int
    ancestors: tuple[int, ...]
    split_gain: float | None
    best_gain: float


def visit_nodes(tree, problem, node, rows, ancestors=()):
    """Yield the gains of all nodes below a node, and mark the features that rows acquire."""
    best_gain = max(
        compute_net_gain(problem, rows, k, value)
        for k in range(problem.x.shape[1])
        for value in range(N_VALUES)
    )
    k = int(tree.feature[node])
    if k < 0:
        yield NodeGains(node, ancestors, None, best_gain)
        return
    threshold = float(tree.threshold[node])
    yield NodeGains(node, ancestors, compute_net_gain(problem, rows, k, threshold), best_gain)
    problem.acquired[rows, k] = True
    goes_left = problem.x[rows, k] <= threshold
    children = (tree.left[node], rows[goes_left]), (tree.right[node], rows[~goes_left])
    for child, child_rows in children:
        yield from visit_nodes(tree, problem, int(child), child_rows, (*ancestors, node))


TOLERANCE = 1e-2  # LightGBM sums gradients in float32


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("alpha", [0.0, 0.4])
@pytest.mark.parametrize("growth_order", ["best-first", "breadth-first"])
def test_every_split_is_the_best_by_equations_12_and_13(growth_order, alpha, seed):
    """In the second tree, features that rows acquired in the first tree are free."""
    x, y = draw_table(300, seed=seed)
    price = np.array([0.5, 1.0, 2.0, 4.0])
    penalty = 0.05
    price_unit = penalty / price.mean()
    target = ValueTarget(y, np.ones(len(y)), 1.0)
    growth = TreeGrowth(growth=growth_order, patience=None, num_leaves=12, learning_rate=0.5)
    acquired = np.zeros(x.shape, bool)
    margins = np.zeros(len(x))
    for n_rounds in (1, 2):
        charge = Charge(SplitPrices(FeatureCosts(price), "lazy", alpha), penalty, x)
        trees, n_best_rounds = grow(x, target, growth, charge, rounds=n_rounds, seed=0)
        assert n_best_rounds == n_rounds
        problem = TreeProblem(x, margins - y, acquired, price_unit * price, price_unit * alpha)
        root = int(trees.roots[-1])
        assert_best_gains(list(visit_nodes(trees, problem, root, np.arange(len(x)))), growth_order)
        np.testing.assert_array_equal(acquired, trees.visited_features(x))
        margins = trees.margins(x)[:, 0].astype(np.float64)


def assert_best_gains(nodes, growth_order):
    """Assert that no split has a smaller gain than a split that could be made instead."""
    root = nodes[0].node
    split_gains = {node.node: node.split_gain for node in nodes if node.split_gain is not None}
    assert len(split_gains) >= 2
    for node, ancestors, split_gain, best_gain in nodes:
        is_leaf = split_gain is None
        if not is_leaf:
            assert split_gain > 0
            # gains are sums of hundreds of float32 gradients
            assert split_gain == pytest.approx(best_gain, rel=1e-3, abs=TOLERANCE)
        if growth_order == "breadth-first":
            assert len(ancestors) <= 3  # 8 leaves, the largest power of 2 below 12
            # a leaf above the largest depth has no split that is worth its price
            assert not is_leaf or len(ancestors) == 3 or best_gain <= TOLERANCE
        else:
            # splits are numbered in their order: splits made since the node was a leaf are better
            start = ancestors[-1] + 1 if ancestors else root
            end = root + len(split_gains) if is_leaf else node
            earlier_gains = [split_gains[number] for number in range(start, end)]
            assert all(gain >= best_gain - TOLERANCE for gain in earlier_gains)
            # a leaf remains only if there are 12 leaves, or no split is worth its price
            assert not is_leaf or len(split_gains) == 11 or best_gain <= TOLERANCE


def test_trees_equal_those_of_lightgbm_with_the_same_penalties():
    x, y = draw_table(1500)
    # LightGBM's gains are twice those of equation 12, so its prices are doubled. A coupled price
    # is charged once for all rows. 1.75 is the mean of the feature costs 1, 2, 1 and 3.
    for accounting, n_charged_rows in (("lazy", 1), ("coupled", len(x))):
        target = ValueTarget(y, np.ones(len(y)), 1.0)
        growth = TreeGrowth(n_rounds=15, patience=None, num_leaves=15, learning_rate=0.1)
        charge = Charge(SplitPrices(FeatureCosts([1.0, 2, 1, 3]), accounting, 0.2), 0.02, x)
        trees, _ = grow(x, target, growth, charge)
        price_unit = 2 * 0.02 / 1.75 * n_charged_rows
        booster = lgb.train(
            tree_params(0) | {
                "objective": "regression", "num_leaves": 15, "cegb_tradeoff": 1.0,
                "cegb_penalty_split": 2 * 0.02 / 1.75 * 0.2,
                f"cegb_penalty_feature_{accounting}":
                    [price_unit * price for price in (1, 2, 1, 3)],
            },
            lgb.Dataset(x, y), 15,
        )  # fmt: skip
        np.testing.assert_allclose(trees.margins(x)[:, 0], booster.predict(x), atol=1e-4)
