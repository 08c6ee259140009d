"""Splits of CEGB's trees, compared with equations 12 and 13 in plain Python.

The equations are those of the paper (NIPS 2017). The gain of a split, for gradients g and hessians
of 1, less its price, is

    (sum_left g)^2 / n_left + (sum_right g)^2 / n_right - (sum g)^2 / n - 2 price,

which is twice equation 12. By equation 13 with lazy accounting, the price of a split is `alpha` for
each row, and the price of its column for each row that has not acquired the column.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import lightgbm as lgb
import numpy as np
import pytest

from gatewise.costs import FeatureCosts
from gatewise_training.cegb.growth import TreeGrowth, boost_trees
from gatewise_training.cegb.objectives import ValueTarget
from gatewise_training.cegb.penalties import Charge, SplitPrices
from gatewise_training.learners.boosting import tree_params

MIN_ROWS = 5  # smallest number of rows of a leaf, as in the product
N_VALUES = 7  # distinct values of a column, from 0
GAIN_TOLERANCE = 1e-2  # gains are computed from float32 sums of gradients


def draw_table(n_rows, seed=0):
    """Draw a table with so few distinct values that LightGBM has a bin for each."""
    rng = np.random.default_rng(seed)
    x = rng.integers(0, N_VALUES, size=(n_rows, 4)).astype(np.float32)
    y = x[:, 0] * (x[:, 1] > 2) + 0.5 * x[:, 2] + 0.3 * x[:, 3] + rng.normal(size=n_rows)
    return x, y - y.mean()


@dataclass
class TreeProblem:
    """Rows and prices of one tree, in the unit of the loss.

    :func:`visit_nodes` marks the features that its splits acquire in `acquired`.
    """

    x: np.ndarray  # (n, n_columns)
    gradient: np.ndarray  # (n,)
    acquired: np.ndarray  # (n, n_columns), bool
    price: np.ndarray  # (n_columns,)
    alpha: float


def compute_net_gain(problem, rows, column, threshold):
    """Compute twice equation 12, the gain of a split less its price, with hessians of 1."""
    goes_left = problem.x[rows, column] <= threshold
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
    """Yield the gains of a node and of all nodes below it, and mark the features that rows acquire.

    The order in which nodes are visited does not matter, because the rows of two nodes overlap only
    if one node is above the other, and the upper one is visited first.
    """
    best_gain = max(
        compute_net_gain(problem, rows, column, threshold)
        for column in range(problem.x.shape[1])
        for threshold in range(N_VALUES)
    )
    split_column = int(tree.feature[node])
    if split_column < 0:  # a leaf
        yield NodeGains(node, ancestors, None, best_gain)
        return
    threshold = float(tree.threshold[node])
    split_gain = compute_net_gain(problem, rows, split_column, threshold)
    yield NodeGains(node, ancestors, split_gain, best_gain)
    problem.acquired[rows, split_column] = True
    goes_left = problem.x[rows, split_column] <= threshold
    children = (tree.left[node], rows[goes_left]), (tree.right[node], rows[~goes_left])
    for child, child_rows in children:
        yield from visit_nodes(tree, problem, int(child), child_rows, (*ancestors, node))


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("alpha", [0.0, 0.4])
@pytest.mark.parametrize("growth_order", ["best-first", "breadth-first"])
def test_every_split_is_the_best_by_equations_12_and_13(growth_order, alpha, seed):
    """In the second tree, features that rows acquired in the first tree are free."""
    x, y = draw_table(300, seed=seed)
    price = np.array([0.5, 1.0, 2.0, 4.0])
    penalty = 0.05
    price_unit = penalty / price.mean()  # the penalty is that of a feature with the mean price
    target = ValueTarget(y, np.ones(len(y)), 1.0)
    growth = TreeGrowth(growth=growth_order, patience=None, num_leaves=12, learning_rate=0.5)
    acquired = np.zeros(x.shape, bool)
    margins = np.zeros(len(x))
    for n_rounds in (1, 2):  # the first tree of the second fit is that of the first fit
        charge = Charge(SplitPrices(FeatureCosts(price), "lazy", alpha), penalty, x)
        trees, n_best_rounds = boost_trees(x, target, growth, charge, rounds=n_rounds, seed=0)
        assert n_best_rounds == n_rounds
        # the gradient of the squared error is the margin less y
        problem = TreeProblem(x, margins - y, acquired, price_unit * price, price_unit * alpha)
        last_root = int(trees.roots[-1])
        all_rows = np.arange(len(x))
        assert_best_gains(list(visit_nodes(trees, problem, last_root, all_rows)), growth_order)
        np.testing.assert_array_equal(acquired, trees.visited_features(x))
        margins = trees.margins(x)[:, 0].astype(np.float64)


def assert_best_gains(node_gains, growth_order):
    """Assert that no split has a smaller gain than a split that could be made instead.

    The root's gains are the first.
    """
    root = node_gains[0].node
    gain_of_split = {
        gains.node: gains.split_gain for gains in node_gains if gains.split_gain is not None
    }
    assert len(gain_of_split) >= 2  # else there is no order of splits to test
    for node, ancestors, split_gain, best_gain in node_gains:
        is_leaf = split_gain is None
        if not is_leaf:
            assert split_gain > 0
            # gains are sums of hundreds of float32 gradients
            assert split_gain == pytest.approx(best_gain, rel=1e-3, abs=GAIN_TOLERANCE)
        if growth_order == "breadth-first":
            assert len(ancestors) <= 3  # 8 leaves, the largest power of 2 below 12
            # a leaf above the largest depth has no split that is worth its price
            assert not is_leaf or len(ancestors) == 3 or best_gain <= GAIN_TOLERANCE
        else:
            # splits have the numbers from the root's, in their order: those made since the node
            # was a leaf, up to its own split, were better than its best split
            first_number = ancestors[-1] + 1 if ancestors else root
            end_number = root + len(gain_of_split) if is_leaf else node
            earlier_gains = [gain_of_split[number] for number in range(first_number, end_number)]
            assert all(gain >= best_gain - GAIN_TOLERANCE for gain in earlier_gains)
            # a leaf remains only if there are 12 leaves, or no split is worth its price
            assert not is_leaf or len(gain_of_split) == 11 or best_gain <= GAIN_TOLERANCE


def test_trees_equal_those_of_lightgbm_with_the_same_penalties():
    x, y = draw_table(1500)
    price = np.array([1.0, 2.0, 1.0, 3.0])
    alpha = 0.2
    penalty = 0.02
    # LightGBM's gains are twice those of equation 12, so its prices are doubled
    price_unit = 2 * penalty / price.mean()
    # a coupled price is charged once, not for each row, so LightGBM is given that of all rows
    for accounting, n_charged_rows in (("lazy", 1), ("coupled", len(x))):
        target = ValueTarget(y, np.ones(len(y)), 1.0)
        growth = TreeGrowth(n_rounds=15, patience=None, num_leaves=15, learning_rate=0.1)
        charge = Charge(SplitPrices(FeatureCosts(price), accounting, alpha), penalty, x)
        trees, _ = boost_trees(x, target, growth, charge)
        booster = lgb.train(
            tree_params(0) | {
                "objective": "regression", "num_leaves": 15, "cegb_tradeoff": 1.0,
                "cegb_penalty_split": price_unit * alpha,
                f"cegb_penalty_feature_{accounting}":
                    (price_unit * n_charged_rows * price).tolist(),
            },
            lgb.Dataset(x, y), 15,
        )  # fmt: skip
        # margins are sums of 15 float32 leaf values, and LightGBM's of float64 ones
        np.testing.assert_allclose(trees.margins(x)[:, 0], booster.predict(x), atol=1e-4)
