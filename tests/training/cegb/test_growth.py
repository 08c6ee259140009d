"""Trees under CEGB's charges: prices of groups, refused tables, and the end of growth."""

from __future__ import annotations

import lightgbm as lgb
import numpy as np
import pytest

from gatewise.costs import FeatureCosts
from gatewise.errors import InputError
from gatewise.models.trees import TreeEnsemble
from gatewise_training.cegb.growth import TreeGrowth, boost_trees, cegb_settings
from gatewise_training.cegb.objectives import ClassTarget
from gatewise_training.cegb.penalties import Charge, SplitPrices, check_lazy_size
from gatewise_training.learners.boosting import fit_boosting, tree_params
from tests.support.parted_rows import draw_parted_rows


def make_growth(**changes):
    defaults = {"n_rounds": 1, "patience": None, "num_leaves": 15, "learning_rate": 0.1}
    return TreeGrowth(**(defaults | changes))


def draw_rows_and_target(n=3000, n_classes=2):
    x, y = draw_parted_rows(n, n_classes)
    return x, ClassTarget(y, np.ones(n), np.ones(n), n_classes)


def test_breadth_first_trees_have_the_depth_that_their_leaves_fill():
    # 4 is the largest depth of which all 2^4 leaves are below 31
    settings = cegb_settings(make_growth(growth="breadth-first", num_leaves=31), 1000, 2)
    assert (settings["num_leaves"], settings["max_depth"]) == (16, 4)
    limited_depth = make_growth(growth="breadth-first", num_leaves=31, max_depth=2)
    settings = cegb_settings(limited_depth, 1000, 2)
    assert (settings["num_leaves"], settings["max_depth"]) == (4, 2)  # 2^2 leaves
    assert cegb_settings(make_growth(), 1000, 2)["max_depth"] == -1  # no limit, in LightGBM


@pytest.mark.parametrize("n_classes", [2, 3])
def test_trees_without_prices_are_those_of_plain_boosting(n_classes):
    x, target = draw_rows_and_target(1500, n_classes)
    charge = Charge(SplitPrices(FeatureCosts.uniform(6), "lazy"), 0.0, x)
    assert charge.params == {}
    trees, _ = boost_trees(x, target, make_growth(n_rounds=5, num_leaves=7), charge)
    boosting_params = {"num_leaves": 7, "max_delta_step": 0.0}
    boosted_trees, _ = fit_boosting(x, target.y, n_classes, max_rounds=5, params=boosting_params)
    np.testing.assert_allclose(trees.margins(x), boosted_trees.margins(x), atol=2e-2)


# -- groups ----------------------------------------------------------------------------------


class PriceRecorder:
    """A booster that records the prices that are set on it."""

    def __init__(self, booster):
        self.booster = booster
        self.recorded_prices = []

    def model_to_string(self, **options):
        return self.booster.model_to_string(**options)

    def reset_parameter(self, params):
        self.recorded_prices.append(params)
        self.booster.reset_parameter(params)


def test_lazy_group_prices_are_the_mean_prices_that_rows_owe():
    rng = np.random.default_rng(0)
    x = rng.integers(0, 7, size=(600, 4)).astype(np.float32)
    y = x[:, 0] * (x[:, 1] > 2) + 0.5 * x[:, 2] + 0.3 * x[:, 3] + rng.normal(size=600)
    costs = FeatureCosts([0.1, 0.2, 0.3, 0.4], group=["a", "a", "b", None], shared={"a": 3, "b": 1})
    charge = Charge(SplitPrices(costs, "lazy"), 0.02, x)
    # twice the penalty, because LightGBM's gains are twice those of equation 12
    price_unit = 2 * 0.02 / (costs.total / 4)
    parameter = "cegb_penalty_feature_lazy"
    np.testing.assert_allclose(
        charge.params[parameter], price_unit * np.array([3.1, 3.2, 1.3, 0.4])
    )
    params = tree_params(0) | {"objective": "regression", "num_leaves": 4} | charge.params
    booster = PriceRecorder(lgb.Booster(params, lgb.Dataset(x, y)))
    for round_number in range(6):
        booster.booster.update()
        charge.update_group_prices(booster, round_number)
        acquired = TreeEnsemble.from_lightgbm(booster.booster).visited_features(x)
        owed_prices = np.zeros((len(x), 4))
        for row in range(len(x)):
            for k in range(4):
                new_features = [] if acquired[row, k] else [k]
                owed_prices[row, k] = costs.price(new_features, acquired[row])
        lacks_feature = ~acquired
        for k in range(4):
            price = booster.recorded_prices[-1][parameter][k]
            if lacks_feature[:, k].any():
                assert price == pytest.approx(
                    price_unit * owed_prices[lacks_feature[:, k], k].mean()
                )
    assert 0.0 < acquired[:, 0].mean() < 1.0  # some rows have acquired the first feature


def test_tables_too_large_for_lightgbms_lazy_penalty_are_refused():
    check_lazy_size(2**31 - 1, 1)  # the largest int32, with which LightGBM indexes rows x features
    with pytest.raises(InputError, match="accounting='lazy': 1073741824 rows times 2 features"):
        check_lazy_size(2**30, 2)


# -- first-order steps, and the end of growth ------------------------------------------------


def test_first_order_leaves_are_mean_gradients():
    x, target = draw_rows_and_target(1000)
    charge = Charge(SplitPrices(FeatureCosts.uniform(6), "coupled"), 0.001, x)
    trees, _ = boost_trees(x, target, make_growth(newton=False), charge)
    base_margins = target.base_margins()
    gradient = (1 / (1 + np.exp(-base_margins[0])) - target.y).astype(np.float64)
    leaf_values = trees.margins(x)[:, 0] - trees.base[0]
    for leaf_value in np.unique(leaf_values):
        rows = leaf_values == leaf_value
        # 0.1 is the learning rate
        assert leaf_value == pytest.approx(-0.1 * gradient[rows].mean(), abs=1e-5)


@pytest.mark.slow
def test_loss_on_validation_rows_ends_the_growth():
    x, target = draw_rows_and_target(2000)
    rows = np.arange(1000)
    validation_rows = np.arange(1000, 2000)
    validation = x[validation_rows], target.take(validation_rows)
    charge = Charge(SplitPrices(FeatureCosts.uniform(6), "lazy"), 0.002, x[rows])
    growth = make_growth(n_rounds=400, patience=10, num_leaves=31)
    trees, n_best_rounds = boost_trees(
        x[rows], target.take(rows), growth, charge, validation=validation
    )
    assert 5 < n_best_rounds < 390  # neither the first rounds nor the last possible ones
    assert trees.n_trees == n_best_rounds

    def compute_validation_loss(model):
        return validation[1].loss(model.margins(x[validation_rows]).astype(np.float64))

    def compute_loss_after(n_rounds):
        charge = Charge(SplitPrices(FeatureCosts.uniform(6), "lazy"), 0.002, x[rows])
        return compute_validation_loss(
            boost_trees(x[rows], target.take(rows), growth, charge, rounds=n_rounds)[0]
        )

    best_loss = compute_loss_after(n_best_rounds)
    assert best_loss == pytest.approx(compute_validation_loss(trees))
    # within the patience of 10 rounds, no other number of rounds has a smaller loss
    other_losses = [compute_loss_after(n_best_rounds + change) for change in (-1, 1, 4, 9)]
    assert best_loss <= min(other_losses) + 1e-6


@pytest.mark.parametrize("accounting", ["lazy", "coupled"])
@pytest.mark.parametrize("n_classes", [2, 3])
def test_model_is_the_prior_if_no_split_is_worth_its_price(accounting, n_classes):
    x, target = draw_rows_and_target(500, n_classes)
    # a very high penalty, or features with one value or none
    for rows, penalty in ((x, 1e6), (np.ones_like(x), 0.0), (np.full_like(x, np.nan), 0.0)):
        charge = Charge(SplitPrices(FeatureCosts.uniform(6), accounting), penalty, rows)
        trees, n_best_rounds = boost_trees(rows, target, make_growth(n_rounds=5), charge)
        assert n_best_rounds == 0
        assert not trees.visited_features(rows).any()
        np.testing.assert_allclose(
            trees.margins(rows), np.tile(target.base_margins(), (500, 1)), rtol=1e-6
        )
