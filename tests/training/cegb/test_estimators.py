"""CEGB's estimators: costs per instance counted from the trees, budgets and frontiers."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer, load_diabetes, load_wine
from sklearn.metrics import r2_score

from gatewise.costs import FeatureCosts
from gatewise.errors import InputError
from gatewise_training.adapt import gated_trees
from gatewise_training.adapt.greedy_miser import GreedyMiser
from gatewise_training.cegb.classifier import CEGBClassifier
from gatewise_training.cegb.growth import TreeGrowth
from gatewise_training.cegb.objectives import ClassTarget
from gatewise_training.cegb.penalties import SplitPrices
from gatewise_training.cegb.scored_models import CEGBRanker, CEGBRegressor
from gatewise_training.cegb.sweep import Goal, SweepTask, sweep_penalties
from tests.support.ranked_queries import draw_queries
from tests.support.tree_walks import measure_costs_and_splits

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("two_folds")]

SETTINGS = {"n_penalties": 6, "n_rounds": 30, "random_state": 0}


def split_shuffled_rows(X, y, seed=0):
    """Split rows and labels into 60 % training rows and 40 % validation rows."""
    rng = np.random.default_rng(seed)
    rows = rng.permutation(len(X))
    n_train = int(0.6 * len(X))
    training_rows, validation_rows = rows[:n_train], rows[n_train:]
    return (X[training_rows], y[training_rows]), (X[validation_rows], y[validation_rows])


# -- costs of instances ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("accounting", "load"), [("lazy", load_wine), ("coupled", load_breast_cancer)]
)
def test_costs_equal_the_prices_on_the_paths(accounting, load):
    (X, y), validation = split_shuffled_rows(*load(return_X_y=True))
    X_val, y_val = (array[:70] for array in validation)
    n_features = X.shape[1]
    own = (0.5 + np.arange(n_features) % 4).tolist()
    group = [None if k % 3 == 0 else f"g{k % 5}" for k in range(n_features)]
    shared = {f"g{g}": 1.0 + g for g in range(5)}
    costs = FeatureCosts(own, group=group, shared=shared)
    model = CEGBClassifier(costs, accounting=accounting, penalty_split=0.01, **SETTINGS)
    model.fit(X, y, validation=(X_val, y_val))
    assert len(model.frontier_.points) >= 2
    for point in model.frontier_.points:
        point_model = model.at(budget=point.cost)
        row_costs, n_splits = measure_costs_and_splits(point_model, X_val, costs)
        np.testing.assert_allclose(point_model.cost(X_val), row_costs)
        # the frontier equals the figures of the fitted models on the validation rows
        assert point.cost == pytest.approx(row_costs.mean())
        assert point.accuracy == pytest.approx(point_model.score(X_val, y_val))
        report = point_model.cost_report(X_val)
        assert report.splits.tolist() == n_splits.tolist()
        np.testing.assert_allclose(report.total, row_costs + 0.01 * n_splits)


@pytest.mark.parametrize("accounting", ["lazy", "coupled"])
def test_budget_is_met_on_validation_rows(accounting):
    (X, y), (X_val, y_val) = split_shuffled_rows(*load_breast_cancer(return_X_y=True))
    model = CEGBClassifier(accounting=accounting, budget=2.0, **SETTINGS)
    model.fit(X, y, validation=(X_val, y_val))
    row_costs, _ = measure_costs_and_splits(model, X_val, FeatureCosts.uniform(30))
    assert row_costs.mean() <= 2.0 + 1e-9
    assert model.score(X_val, y_val) > 0.85  # the more frequent class has 63 % of the rows
    # without features the model predicts the more frequent class
    assert len(set(model.at(budget=0.0).predict(X_val))) == 1


@pytest.mark.parametrize(("budget", "max_loss"), [(3.3, 0.01), (None, 0.02)])
def test_search_covers_the_range_of_costs_and_reaches_its_goal(budget, max_loss):
    X, y = load_breast_cancer(return_X_y=True)
    X = X.astype(np.float32)
    target = ClassTarget(y.astype(np.int64), np.ones(len(y)), np.ones(len(y)), 2)
    growth = TreeGrowth(n_rounds=30, patience=None, num_leaves=15)
    prices = SplitPrices(FeatureCosts.uniform(30), "lazy")
    task = SweepTask(X, target, prices, growth, round_shares=(1.0,), seed=0)
    folds = ((np.arange(300), np.arange(300, len(y))),)
    fits = sweep_penalties(
        task, folds, penalties=None, n_penalties=12, goal=Goal(budget, max_loss),
        report_progress=lambda *_: None,
    )  # fmt: skip
    assert len(fits) == 13  # the constant model is not counted
    assert fits[0].cost == 0.0
    penalties = [fit.penalty for fit in fits]
    assert penalties == sorted(penalties, reverse=True)
    assert fits[-1].penalty == 0.0
    costs = np.sort([fit.cost for fit in fits[1:]])
    # some fits are cheap, and no gap between costs is wider than half of the range
    assert (costs < 0.2 * costs[-1]).any()
    assert (np.diff(costs) < 0.5 * costs[-1]).all()
    if budget is not None:
        assert any(0.9 * budget <= cost <= budget for cost in costs)  # close below the budget
    else:
        lowest_cost = min(fit.cost for fit in fits if fit.score >= fits[-1].score - max_loss)
        assert lowest_cost < 0.3 * costs[-1]  # the search has found a cheap model within the loss


def test_class_weights_do_not_count_in_the_costs_of_the_search():
    X, y = load_breast_cancer(return_X_y=True)
    X = X.astype(np.float32)
    target = ClassTarget(y.astype(np.int64), np.where(y == 0, 20.0, 1.0), np.ones(len(y)), 2)
    prices = SplitPrices.of_settings(FeatureCosts.uniform(30), "lazy", 0.5, None)
    growth = TreeGrowth(n_rounds=5, patience=None, num_leaves=7)
    task = SweepTask(X, target, prices, growth, round_shares=(1.0,), seed=0)
    rows = np.arange(400)
    validation_rows = np.arange(400, len(y))
    (fit,) = task.score_rounds(0.0, task.fit(0.0, rows, None), [], [validation_rows])
    assert len(np.unique(fit.acquired.sum(axis=1))) > 1  # the costs of rows differ
    assert fit.cost == pytest.approx(fit.acquired.sum(axis=1).mean())
    assert fit.evaluation_cost == pytest.approx(fit.row_evaluation_costs.mean())


def test_cross_fitting_scores_on_rows_that_are_not_fitted():
    X, y = load_breast_cancer(return_X_y=True)
    random_labels = np.random.default_rng(0).integers(0, 2, len(y))
    model = CEGBClassifier(penalties=(0.01,), max_loss=0.0, **SETTINGS).fit(X, random_labels)
    # random labels of two classes
    assert all(point.accuracy < 0.6 for point in model.frontier_.points)


# -- GreedyMiser is a special case -----------------------------------------------------------


@pytest.mark.parametrize(("load", "penalty"), [(load_breast_cancer, 0.02), (load_wine, 0.003)])
def test_greedy_miser_grows_first_order_coupled_trees_of_cegb(load, penalty, monkeypatch):
    """CEGB, section 4.3: both grow the same trees when both run on LightGBM."""
    monkeypatch.setattr(gated_trees, "MAX_SMALL_ROWS", 0)
    X, y = load(return_X_y=True)
    group = [f"g{k // 3}" for k in range(X.shape[1])]
    costs = FeatureCosts(np.ones(len(group)), group=group, shared=dict.fromkeys(set(group), 2.0))
    settings = {
        "penalties": (penalty,), "n_rounds": 25, "max_depth": 4, "newton": False,
        "learning_rate": 0.3, "random_state": 0,
    }  # fmt: skip
    miser = GreedyMiser(costs, num_leaves=16, **settings).fit(X, y)
    cegb = CEGBClassifier(
        costs, accounting="coupled", growth="breadth-first", patience=None, **settings
    ).fit(X, y)
    miser_stages_by_size, cegb_stages_by_size = (
        {stage.model.n_nodes: stage for (stage,) in system.chains_ if stage.n_trees > 1}
        for system in (miser, cegb)
    )
    assert miser_stages_by_size
    assert set(miser_stages_by_size) <= set(cegb_stages_by_size)
    for n_nodes, stage in miser_stages_by_size.items():
        cegb_stage = cegb_stages_by_size[n_nodes]
        for array_name in ("feature", "threshold", "left", "right", "value", "base"):
            np.testing.assert_array_equal(
                getattr(stage.model, array_name), getattr(cegb_stage.model, array_name)
            )
        assert stage.features.tolist() == cegb_stage.features.tolist()
        assert compute_depth(stage.model) <= 4  # the max_depth of the settings


def compute_depth(trees):
    """Compute the largest number of splits on a path, level by level."""
    nodes = trees.roots
    depth = -1
    while len(nodes):
        inner_nodes = nodes[trees.feature[nodes] >= 0]
        nodes = np.concatenate([trees.left[inner_nodes], trees.right[inner_nodes]])
        depth += 1
    return depth


# -- missing values and settings -------------------------------------------------------------


def test_missing_values_need_allow_missing():
    X, y = load_breast_cancer(return_X_y=True)
    X = np.where(np.random.default_rng(0).random(X.shape) < 0.2, np.nan, X)
    with pytest.raises(InputError, match="allow_missing"):
        CEGBClassifier(**SETTINGS).fit(X, y)
    model = CEGBClassifier(allow_missing=True, budget=6.0, penalties=(0.01,), **SETTINGS).fit(X, y)
    assert model.score(X, y) > 0.85  # the more frequent class has 63 % of the rows


@pytest.mark.parametrize(
    ("invalid_setting", "message"),
    [
        ({"accounting": "both"}, "accounting"),
        ({"penalty_split": -1.0}, "penalty_split"),
        ({"penalties": (-0.1,)}, "penalties"),
        ({"n_penalties": 0}, "n_penalties"),
        ({"budget": -1.0}, "budget"),
        ({"growth": "both"}, "growth"),
        ({"growth": "breadth-first", "max_depth": 20}, "max_depth"),
        ({"patience": 0}, "patience"),
        ({"n_rounds": 0}, "n_rounds"),
    ],
)
def test_invalid_settings_are_refused(invalid_setting, message):
    X, y, qid = draw_queries(0)
    with pytest.raises(InputError, match=message):
        CEGBRanker(**SETTINGS | invalid_setting).fit(X, y, qid=qid)


# -- the regressor ---------------------------------------------------------------------------


@pytest.mark.parametrize("accounting", ["lazy", "coupled"])
def test_frontier_of_the_regressor_relates_r2_to_cost(accounting):
    (X, y), (X_val, y_val) = split_shuffled_rows(*load_diabetes(return_X_y=True))
    own = [1.0, 0.2, 2.0, 1.0, 3.0, 3.0, 3.0, 3.0, 3.0, 1.0]
    model = CEGBRegressor(FeatureCosts(own), accounting=accounting, budget=6.0, **SETTINGS)
    model.fit(X, y, validation=(X_val, y_val))
    assert model.operating_point_.cost <= 6.0
    assert model.score(X_val, y_val) > 0.2  # R^2, which is 0 for the mean
    for point in model.frontier_.points:
        point_model = model.at(budget=point.cost)
        row_costs, _ = measure_costs_and_splits(point_model, X_val, FeatureCosts(own))
        np.testing.assert_allclose(point_model.cost(X_val), row_costs)
        assert point.cost == pytest.approx(row_costs.mean())
        assert point.accuracy == pytest.approx(
            r2_score(y_val, point_model.predict(X_val)), abs=1e-6
        )
    assert model.frontier_.points[0].cost == 0.0
    point = model.at(max_loss=0.05).operating_point_
    assert point.accuracy >= model.frontier_.reference_accuracy - 0.05 or (
        point is model.frontier_.points[-1]
    )


def test_penalties_do_not_depend_on_the_unit_of_the_values():
    (X, y), validation = split_shuffled_rows(*load_diabetes(return_X_y=True))
    models = []
    for scale in (1.0, 1024.0):  # a power of 2, with which products are exact
        model = CEGBRegressor(penalties=(0.01,), **SETTINGS)
        models.append(model.fit(X, scale * y, validation=(validation[0], scale * validation[1])))
    original_model, scaled_model = models
    original_costs, scaled_costs = (
        [point.cost for point in model.frontier_.points] for model in models
    )
    assert original_costs == scaled_costs
    np.testing.assert_allclose(1024 * original_model.predict(X), scaled_model.predict(X), rtol=1e-5)


def test_rows_without_weight_do_not_change_the_fit():
    X, y = load_diabetes(return_X_y=True)
    has_weight = np.arange(len(y)) % 2 == 1
    shifted_values = np.where(has_weight, y, y + 1000.0)
    weight = has_weight.astype(np.float64)
    model = CEGBRegressor(budget=5.0, **SETTINGS).fit(X, shifted_values, weight)
    # with equal weights the mean would be 500 higher
    assert abs(model.predict(X).mean() - y.mean()) < 20


# -- guarantees ------------------------------------------------------------------------------


@pytest.mark.parametrize("goal", [{"budget": 4.0}, {"max_loss": 0.05}])
def test_guarantee_chooses_the_last_model_that_passes_its_tests(goal):
    """Models are certified one after another on 342 calibration rows, within the bound."""
    X, y = load_breast_cancer(return_X_y=True)
    rng = np.random.default_rng(0)
    # copies of the rows with 1 % noise, so that there are enough calibration rows
    X = np.tile(X, (3, 1)) * rng.normal(1.0, 0.01, size=(3 * len(X), X.shape[1]))
    penalties = (0.1, 0.05, 0.03, 0.01, 0.003)
    model = CEGBClassifier(guarantee=0.9, penalties=penalties, n_rounds=15, random_state=0, **goal)
    point = model.fit(X, np.tile(y, 3)).operating_point_
    assert point.guarantee["confidence"] == 0.9
    if "budget" in goal:
        assert 0.0 < point.cost < 4.0
        assert point.accuracy > 0.9
    else:
        assert point.accuracy > model.frontier_.reference_accuracy - 0.05
        assert point.cost < 0.5 * model.frontier_.points[-1].cost
