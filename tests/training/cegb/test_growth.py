"""Trees under CEGB's charges: groups, sampled rows, refusals, and where growth ends."""

from __future__ import annotations

import lightgbm as lgb
import numpy as np
import pytest

from gatewise.costs import FeatureCosts
from gatewise.errors import InputError
from gatewise.models.trees import TreeEnsemble
from gatewise_training.cegb.growth import TreeGrowth, cegb_settings, grow
from gatewise_training.cegb.objectives import Classes
from gatewise_training.cegb.penalties import Charge, SplitPrices, check_lazy_size
from gatewise_training.learners.boosting import fit_boosting, tree_params
from tests.support.parted_rows import parted_rows


def settings(**changes):
    plain = {"n_rounds": 1, "patience": None, "num_leaves": 15, "learning_rate": 0.1}
    return TreeGrowth(**(plain | changes))


def classes(n=3000, n_classes=2):
    x, y = parted_rows(n, n_classes)
    return x, Classes(y, np.ones(n), n_classes)


def test_breadth_first_takes_the_depth_that_its_leaves_fill():
    bounds = cegb_settings(settings(growth="breadth-first", num_leaves=31), 1000, 2)
    assert (bounds["num_leaves"], bounds["max_depth"]) == (16, 4)
    deep = settings(growth="breadth-first", num_leaves=31, max_depth=2)
    bounds = cegb_settings(deep, 1000, 2)
    assert (bounds["num_leaves"], bounds["max_depth"]) == (4, 2)
    assert cegb_settings(settings(), 1000, 2)["max_depth"] == -1


@pytest.mark.parametrize("n_classes", [2, 3])
def test_without_a_price_it_is_plain_boosting(n_classes):
    x, target = classes(1500, n_classes)
    charge = Charge(SplitPrices(FeatureCosts.uniform(6), "lazy"), 0.0, x)
    assert charge.params == {}
    trees, _ = grow(x, target, settings(n_rounds=5, num_leaves=7), charge)
    same = {"num_leaves": 7, "max_delta_step": 0.0}
    plain, _ = fit_boosting(x, target.y, n_classes, rounds=5, params=same)
    np.testing.assert_allclose(trees.margins(x), plain.margins(x), atol=2e-2)


# -- groups ----------------------------------------------------------------------------------


class Recorder:
    """Stands for a booster where only the new prices are of interest."""

    def __init__(self, booster):
        self.booster, self.prices = booster, []

    def model_to_string(self, **how):
        return self.booster.model_to_string(**how)

    def reset_parameter(self, params):
        self.prices.append(params)
        self.booster.reset_parameter(params)


def test_lazy_group_prices_are_what_rows_owe_on_average():
    rng = np.random.default_rng(0)
    x = rng.integers(0, 7, size=(600, 4)).astype(np.float32)
    y = x[:, 0] * (x[:, 1] > 2) + 0.5 * x[:, 2] + 0.3 * x[:, 3] + rng.normal(size=600)
    costs = FeatureCosts([0.1, 0.2, 0.3, 0.4], group=["a", "a", "b", None], shared={"a": 3, "b": 1})
    charge = Charge(SplitPrices(costs, "lazy"), 0.02, x)
    factor = 2 * 0.02 / (costs.total / 4)
    name = "cegb_penalty_feature_lazy"
    np.testing.assert_allclose(charge.params[name], factor * np.array([3.1, 3.2, 1.3, 0.4]))
    params = tree_params(0) | {"objective": "regression", "num_leaves": 4} | charge.params
    booster = Recorder(lgb.Booster(params, lgb.Dataset(x, y)))
    for round_ in range(6):
        booster.booster.update()
        charge.after(booster, round_)
        acquired = TreeEnsemble.from_lightgbm(booster.booster).visited(x)
        owed = np.zeros((len(x), 4))
        for i in range(len(x)):
            for k in range(4):
                rest = [] if acquired[i, k] else [k]
                owed[i, k] = costs.price(rest, acquired[i])
        lacking = ~acquired
        for k in range(4):
            price = booster.prices[-1][name][k]
            if lacking[:, k].any():
                assert price == pytest.approx(factor * owed[lacking[:, k], k].mean())
    assert acquired[:, 0].mean() not in (0.0, 1.0)  # rows did differ


def test_tables_above_lightgbms_lazy_bits_are_refused():
    check_lazy_size(2**31 - 1, 1)
    with pytest.raises(InputError, match="accounting='lazy': 1073741824 rows times 2 features"):
        check_lazy_size(2**30, 2)


# -- first order, ends, and nothing to acquire ---------------------------------------------------


def test_first_order_leaves_are_mean_gradients():
    x, target = classes(1000)
    charge = Charge(SplitPrices(FeatureCosts.uniform(6), "coupled"), 0.001, x)
    trees, _ = grow(x, target, settings(newton=False), charge)
    start = target.start()
    gradient = (1 / (1 + np.exp(-start[0])) - target.y).astype(np.float64)
    grown = trees.margins(x)[:, 0] - trees.base[0]
    for value in np.unique(grown):
        rows = grown == value
        assert value == pytest.approx(-0.1 * gradient[rows].mean(), abs=1e-5)


def test_validation_rows_end_the_growth():
    x, target = classes(2000)
    rows, held = np.arange(1000), np.arange(1000, 2000)
    validation = x[held], target.take(held)
    charge = Charge(SplitPrices(FeatureCosts.uniform(6), "lazy"), 0.002, x[rows])
    growth = settings(n_rounds=400, patience=10, num_leaves=31)
    trees, kept = grow(x[rows], target.take(rows), growth, charge, validation=validation)
    assert 5 < kept < 390
    assert trees.n_trees == kept

    def loss(rounds):
        charge = Charge(SplitPrices(FeatureCosts.uniform(6), "lazy"), 0.002, x[rows])
        part, _ = grow(x[rows], target.take(rows), growth, charge, rounds=rounds)
        return validation[1].loss(part.margins(x[held]).astype(np.float64))

    here = loss(kept)
    assert here == pytest.approx(validation[1].loss(trees.margins(x[held]).astype(np.float64)))
    assert all(here <= loss(kept + step) + 1e-6 for step in (-1, 1, 4, 9))


@pytest.mark.parametrize("accounting", ["lazy", "coupled"])
@pytest.mark.parametrize("n_classes", [2, 3])
def test_splits_not_worth_their_price_leave_the_prior(accounting, n_classes):
    x, target = classes(500, n_classes)
    for rows, penalty in ((x, 1e6), (np.ones_like(x), 0.0), (np.full_like(x, np.nan), 0.0)):
        charge = Charge(SplitPrices(FeatureCosts.uniform(6), accounting), penalty, rows)
        trees, kept = grow(rows, target, settings(n_rounds=5), charge)
        assert kept == 0
        assert not trees.visited(rows).any()
        np.testing.assert_allclose(
            trees.margins(rows), np.tile(target.start(), (500, 1)), rtol=1e-6
        )
