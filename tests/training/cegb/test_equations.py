"""CEGB's equations 12 and 13: every split of a tree checked against them, in plain Python."""

from __future__ import annotations

import lightgbm as lgb
import numpy as np
import pytest

from gatewise.costs import FeatureCosts
from gatewise_training.cegb.growth import TreeGrowth, grow
from gatewise_training.cegb.objectives import Measured
from gatewise_training.cegb.penalties import Charge, SplitPrices
from gatewise_training.learners.boosting import tree_params

LEAST = 5  # rows of a leaf, as everywhere in the project


def table(n=400, seed=0, values=7):
    """Few distinct values, so that LightGBM's bins are the values themselves."""
    rng = np.random.default_rng(seed)
    x = rng.integers(0, values, size=(n, 4)).astype(np.float32)
    y = x[:, 0] * (x[:, 1] > 2) + 0.5 * x[:, 2] + 0.3 * x[:, 3] + rng.normal(size=n)
    return x, y - y.mean()


def net_gain(x, gradient, hessian, rows, column, value, owned, price, alpha):
    """Equation 12 times two: what a split takes off the loss, less what its rows pay for it."""
    left = x[rows, column] <= value
    sides = rows[left], rows[~left]
    # LightGBM guesses the rows of a child from its share of the hessian
    each = len(rows) / hessian[rows].sum()
    if min(round(each * hessian[part].sum()) for part in sides) < LEAST:
        return -np.inf
    gain = sum(gradient[part].sum() ** 2 / hessian[part].sum() for part in sides)
    gain -= gradient[rows].sum() ** 2 / hessian[rows].sum()
    lazily = price[column] * (~owned[rows, column]).sum()
    return gain - 2.0 * (lazily + alpha * len(rows))


def walk(tree, x, gradient, hessian, owned, price, alpha, node=None, rows=None, above=()):
    """Yield of each node: its number, those above, net gain of its split or None, best there is.

    `owned` tells which row has acquired which column, and is kept up.
    """
    node = int(tree.roots[-1]) if node is None else node
    rows = np.arange(len(x)) if rows is None else rows
    here = x, gradient, hessian, rows
    best = max(
        net_gain(*here, k, v, owned, price, alpha) for k in range(x.shape[1]) for v in range(7)
    )
    k = int(tree.feature[node])
    if k < 0:
        yield node, above, None, best
        return
    value = float(tree.threshold[node])
    yield node, above, net_gain(*here, k, value, owned, price, alpha), best
    owned[rows, k] = True
    goes = x[rows, k] <= value
    for child, part in ((tree.left[node], rows[goes]), (tree.right[node], rows[~goes])):
        yield from walk(
            tree, x, gradient, hessian, owned, price, alpha, int(child), part, (*above, node)
        )


SLACK = 1e-2  # LightGBM sums gradients in float32


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("alpha", [0.0, 0.4])
@pytest.mark.parametrize("order", ["best-first", "breadth-first"])
def test_every_split_is_the_best_by_equations_12_and_13(order, alpha, seed):
    """Of two trees: in the second, rows own what they acquired in the first."""
    x, y = table(300, seed=seed)
    price = np.array([0.5, 1.0, 2.0, 4.0])
    penalty = 0.05
    unit = penalty / price.mean()
    target = Measured(y, np.ones(len(y)), 1.0)
    growth = TreeGrowth(growth=order, patience=None, num_leaves=12, learning_rate=0.5)
    owned, margins = np.zeros(x.shape, bool), np.zeros(len(x))
    for round_ in (1, 2):
        charge = Charge(SplitPrices(FeatureCosts(price), "lazy", alpha), penalty, x)
        trees, kept = grow(x, target, growth, charge, rounds=round_, seed=0)
        assert kept == round_
        checked = owned.copy()
        hessian = np.ones(len(x))
        nodes = list(walk(trees, x, margins - y, hessian, checked, unit * price, unit * alpha))
        _check(nodes, order)
        np.testing.assert_array_equal(checked, trees.visited(x))
        owned, margins = checked, trees.margins(x)[:, 0].astype(np.float64)


def _check(nodes, order):
    root = nodes[0][0]
    worth = {node: own for node, _, own, _ in nodes if own is not None}
    assert len(worth) >= 2
    for node, above, own, best in nodes:
        if own is not None:
            assert own > 0
            assert own == pytest.approx(best, rel=1e-3, abs=SLACK)
        if order == "breadth-first":
            assert len(above) <= 3
            # no leaf above the bound was left unsplit although a split was worth its price
            assert own is not None or len(above) == 3 or best <= SLACK
        else:
            # splits are numbered in their order: while this waited, only better ones were made
            end = root + len(worth) if own is None else node
            since = [worth[n] for n in range(above[-1] + 1 if above else root, end)]
            assert all(other >= best - SLACK for other in since)
            assert own is not None or len(worth) == 11 or best <= SLACK


def test_growth_is_lightgbms_own():
    """The same trees as LightGBM grows alone: lazy, coupled, and with a price of a split."""
    x, y = table(1500)
    for accounting, factor in (("lazy", 1), ("coupled", len(x))):
        target = Measured(y, np.ones(len(y)), 1.0)
        growth = TreeGrowth(n_rounds=15, patience=None, num_leaves=15, learning_rate=0.1)
        charge = Charge(SplitPrices(FeatureCosts([1.0, 2, 1, 3]), accounting, 0.2), 0.02, x)
        trees, _ = grow(x, target, growth, charge)
        each = 2 * 0.02 / 1.75 * factor
        alone = lgb.train(
            tree_params(0) | {
                "objective": "regression", "num_leaves": 15, "cegb_tradeoff": 1.0,
                "cegb_penalty_split": 2 * 0.02 / 1.75 * 0.2,
                f"cegb_penalty_feature_{accounting}": [each, 2 * each, each, 3 * each],
            },
            lgb.Dataset(x, y), 15,
        )  # fmt: skip
        np.testing.assert_allclose(trees.margins(x)[:, 0], alone.predict(x), atol=1e-4)
