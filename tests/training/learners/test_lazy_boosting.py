"""Lazy fits: what rows remember, what is refused, and that no penalty means plain boosting."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gatewise.errors import InputError
from gatewise_training.learners.boosting import fit_boosting
from gatewise_training.learners.lazy_boosting import LazyBooster, check_lazy
from tests.support.parted_rows import parted_rows


def visited_cost(model, x):
    return model.visited(x).sum(axis=1).mean()


@pytest.mark.parametrize("n_classes", [2, 4])
def test_without_a_price_a_stage_is_a_plain_boosted_model(n_classes):
    x, y = parted_rows(1500, n_classes)
    weight = np.random.default_rng(1).uniform(0.5, 1.5, len(y))
    weight /= weight.mean()
    few = {"num_leaves": 7, "min_sum_hessian_in_leaf": 0.0}
    lazy = LazyBooster(x, y, n_classes, weight=weight, params=few)
    model, kept = lazy.stage(np.zeros(6), rounds=5)
    plain, _ = fit_boosting(x, y, n_classes, weight=weight, rounds=5, params=few)
    assert kept == 5
    # the same trees but for the starting value's last bits and float32 sums of gradients
    np.testing.assert_allclose(model.margins(x), plain.margins(x), atol=2e-2)
    again, _ = lazy.stage(np.zeros(6), rounds=5)  # a stage begins anew: from the prior
    np.testing.assert_allclose(again.margins(x), model.margins(x), atol=1e-3)


@pytest.mark.parametrize("n_classes", [2, 3])
def test_what_rows_have_paid_is_free_and_nothing_else_is(n_classes):
    x, y = parted_rows(1500, n_classes)
    booster = LazyBooster(x, y, n_classes, params={"num_leaves": 15})
    first, kept = booster.stage(np.full(6, 0.05 if n_classes == 2 else 0.01), rounds=10)
    assert kept == 10
    paid = first.visited(x)
    assert 0.2 < paid.mean() < 0.95  # some rows acquired what others did not
    second, kept = booster.stage(np.full(6, 1e6), rounds=10)
    assert kept == 10
    acquired = second.visited(x)
    assert acquired.any()
    assert not (acquired & ~paid).any()
    # without the first stage nothing at all is worth that price
    nothing, kept = LazyBooster(x, y, n_classes).stage(np.full(6, 1e6), rounds=10)
    assert (kept, nothing.n_trees, nothing.visited(x).any()) == (0, 0, False)
    share = np.bincount(y)[-1] / len(y)
    prior = np.log(share / (1 - share)) if n_classes == 2 else np.log(share)
    assert nothing.margins(x)[:, -1] == pytest.approx(prior, rel=1e-6)


def test_costlier_first_uses_are_fewer():
    x, y = parted_rows(1500)
    costs = [
        visited_cost(LazyBooster(x, y, 2).stage(np.full(6, p), rounds=20)[0], x)
        for p in (0.0, 0.02, 0.1, 0.3)
    ]
    assert costs == sorted(costs, reverse=True)
    assert costs[0] > 1.5 * costs[2]
    penalty = np.full(6, 0.02)
    penalty[3] = 1.0
    model, _ = LazyBooster(x, y, 2).stage(penalty, rounds=20)
    assert not model.visited(x)[:, 3].any()


def test_held_rows_end_a_stage_and_later_rounds_are_taken_back():
    x, y = parted_rows(2000)
    weight = np.where(y == 1, 2.0, 1.0)  # weights count in the loss that ends a stage, too
    held = x[1000:], y[1000:], weight[1000:]
    params = {"num_leaves": 31}
    booster = LazyBooster(
        x[:1000], y[:1000], 2, weight=weight[:1000], validation=held, params=params
    )
    for penalty in (0.05, 0.01):
        model, kept = booster.stage(np.full(6, penalty), rounds=400, patience=10)
        assert 0 < kept < 390
        assert model.n_trees == kept

        def loss(trees, m=model):
            margins = m.base + trees.astype(np.float64)
            losses = np.logaddexp(0, margins[:, 0]) - held[1] * margins[:, 0]
            return np.average(losses, weights=held[2])

        leaves = np.zeros((1000, 1))
        losses = []
        for tree in range(model.n_trees):
            one = replace(model.select_trees([tree])[0], base=np.zeros(1, np.float32))
            leaves += one.margins(held[0])
            losses.append(loss(leaves))
        assert int(np.argmin(losses)) == kept - 1


def test_fits_that_lightgbm_would_get_wrong_are_refused():
    with pytest.raises(InputError, match=r"40000000 rows times 54 features .* \(2147483647\)"):
        check_lazy(40_000_000, 54)
    check_lazy(2**31 // 54, 54)
    x, y = parted_rows(200)
    for sampling in (
        {"bagging_fraction": 0.5},
        {"bagging_freq": 1},
        {"data_sample_strategy": "goss"},
        {"boosting": "goss"},
    ):
        (name,) = sampling
        with pytest.raises(InputError, match=f"wrong with {name}=.*must not be sampled"):
            LazyBooster(x, y, 2, params=sampling)


def test_a_constant_table_gives_a_stage_without_trees():
    booster = LazyBooster(np.ones((50, 3), np.float32), np.arange(50) % 2, 2)
    model, kept = booster.stage(np.zeros(3))
    assert (kept, model.n_trees) == (0, 0)
