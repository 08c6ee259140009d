"""CEGB's estimators: what each instance pays, counted by hand; budgets and frontiers."""

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
from gatewise_training.cegb.objectives import Classes
from gatewise_training.cegb.penalties import SplitPrices
from gatewise_training.cegb.ranker import CEGBRanker
from gatewise_training.cegb.regressor import CEGBRegressor
from gatewise_training.cegb.sweep import Goal, Task, sweep_penalties
from tests.support.ranked_queries import queries
from tests.support.tree_walks import counted

pytestmark = pytest.mark.slow

FEW = {"n_penalties": 6, "n_rounds": 30, "random_state": 0}


def by_class(X, y, seed=0):
    rng = np.random.default_rng(seed)
    rows = rng.permutation(len(X))
    cut = int(0.6 * len(X))
    return (X[rows[:cut]], y[rows[:cut]]), (X[rows[cut:]], y[rows[cut:]])


# -- what instances pay ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("accounting", "load"), [("lazy", load_wine), ("coupled", load_breast_cancer)]
)
def test_costs_are_those_of_the_paths(accounting, load):
    (X, y), held = by_class(*load(return_X_y=True))
    X_val, y_val = (part[:70] for part in held)
    k = X.shape[1]
    own = (0.5 + np.arange(k) % 4).tolist()
    group = [None if i % 3 == 0 else f"g{i % 5}" for i in range(k)]
    shared = {f"g{g}": 1.0 + g for g in range(5)}
    costs = FeatureCosts(own, group=group, shared=shared)
    model = CEGBClassifier(costs, accounting=accounting, penalty_split=0.01, **FEW)
    model.fit(X, y, validation=(X_val, y_val))
    assert len(model.frontier_.points) >= 2
    for point in model.frontier_.points:
        moved = model.at(budget=point.cost)
        row_costs, splits = counted(moved, X_val, costs)
        np.testing.assert_allclose(moved.cost(X_val), row_costs)
        # the frontier has what the models that were fitted do on the validation rows
        assert point.cost == pytest.approx(row_costs.mean())
        assert point.accuracy == pytest.approx(moved.score(X_val, y_val))
        report = moved.cost_report(X_val)
        assert report.splits.tolist() == splits.tolist()
        np.testing.assert_allclose(report.total, row_costs + 0.01 * splits)


@pytest.mark.parametrize("accounting", ["lazy", "coupled"])
@pytest.mark.parametrize("budget", [0.0, 2.0])
def test_a_budget_is_met_on_validation_rows(accounting, budget):
    (X, y), (X_val, y_val) = by_class(*load_breast_cancer(return_X_y=True))
    model = CEGBClassifier(accounting=accounting, budget=budget, **FEW)
    model.fit(X, y, validation=(X_val, y_val))
    row_costs, _ = counted(model, X_val, FeatureCosts.uniform(30))
    assert row_costs.mean() <= budget + 1e-9
    if budget == 0.0:  # no feature: the more frequent class
        assert len(set(model.predict(X_val))) == 1
    else:
        assert model.score(X_val, y_val) > 0.85


@pytest.mark.parametrize(("budget", "max_loss"), [(3.3, 0.01), (None, 0.02)])
def test_the_search_covers_the_range_and_closes_in_on_its_goal(budget, max_loss):
    X, y = load_breast_cancer(return_X_y=True)
    X, target = X.astype(np.float32), Classes(y.astype(np.int64), np.ones(len(y)), 2)
    growth = TreeGrowth(n_rounds=30, patience=None, num_leaves=15)
    prices = SplitPrices(FeatureCosts.uniform(30), "lazy")
    task = Task(X, target, prices, growth, prefixes=(1.0,), seed=0)
    folds = ((np.arange(300), np.arange(300, len(y))),)
    fits = sweep_penalties(
        task, folds, penalties=None, n_penalties=12, goal=Goal(budget, max_loss),
        report=lambda *_: None,
    )  # fmt: skip
    assert len(fits) == 13  # the constant model is not counted
    assert fits[0].cost == 0.0
    assert [f.penalty for f in fits] == sorted((f.penalty for f in fits), reverse=True)
    assert fits[-1].penalty == 0.0
    costs = np.sort([f.cost for f in fits[1:]])
    assert (costs < 0.2 * costs[-1]).any()
    assert (np.diff(costs) < 0.5 * costs[-1]).all()
    if budget is not None:
        assert any(0.9 * budget <= cost <= budget for cost in costs)
    else:
        cheap = min(f.cost for f in fits if f.score >= fits[-1].score - max_loss)
        assert cheap < 0.3 * costs[-1]


def test_cross_fitting_scores_on_rows_that_are_not_fitted():
    X, y = load_breast_cancer(return_X_y=True)
    flip = np.random.default_rng(0).random(len(y)) < 0.5
    model = CEGBClassifier(penalties=(0.01,), max_loss=0.0, **FEW).fit(X, np.where(flip, y, 1 - y))
    assert all(p.accuracy < 0.6 for p in model.frontier_.points)  # noise can't be learned


# -- GreedyMiser is a special case -----------------------------------------------------------


@pytest.mark.parametrize(("load", "penalty"), [(load_breast_cancer, 0.02), (load_wine, 0.003)])
def test_greedy_miser_grows_cegbs_first_order_coupled_trees(load, penalty, monkeypatch):
    """CEGB, section 4.3: with these settings both grow the same trees, on one engine."""
    monkeypatch.setattr(gated_trees, "LARGE_ROWS", 0)
    X, y = load(return_X_y=True)
    group = [f"g{k // 3}" for k in range(X.shape[1])]
    costs = FeatureCosts(np.ones(len(group)), group=group, shared=dict.fromkeys(set(group), 2.0))
    same = {
        "penalties": (penalty,), "n_rounds": 25, "max_depth": 4, "newton": False,
        "learning_rate": 0.3, "random_state": 0,
    }  # fmt: skip
    miser = GreedyMiser(costs, num_leaves=16, **same).fit(X, y)
    cegb = CEGBClassifier(
        costs, accounting="coupled", growth="breadth-first", patience=None, **same
    ).fit(X, y)
    of_miser, of_cegb = (
        {s.model.n_nodes: s for (s,) in m.chains_ if s.n_trees > 1} for m in (miser, cegb)
    )
    assert of_miser
    both = set(of_miser) & set(of_cegb)
    assert both == set(of_miser)
    for size in both:
        for array in ("feature", "threshold", "left", "right", "value", "base"):
            np.testing.assert_array_equal(
                getattr(of_miser[size].model, array), getattr(of_cegb[size].model, array)
            )
        assert of_miser[size].features.tolist() == of_cegb[size].features.tolist()
        assert _deepest(of_miser[size].model) <= 4


def _deepest(trees):
    level, depth = trees.roots, -1
    while len(level):
        inner = level[trees.feature[level] >= 0]
        level, depth = np.concatenate([trees.left[inner], trees.right[inner]]), depth + 1
    return depth


# -- surface ---------------------------------------------------------------------------------


def test_missing_values_are_values_where_they_are_allowed():
    X, y = load_breast_cancer(return_X_y=True)
    X = np.where(np.random.default_rng(0).random(X.shape) < 0.2, np.nan, X)
    with pytest.raises(InputError, match="allow_missing"):
        CEGBClassifier(**FEW).fit(X, y)
    model = CEGBClassifier(allow_missing=True, budget=6.0, penalties=(0.01,), **FEW).fit(X, y)
    assert model.score(X, y) > 0.85


@pytest.mark.parametrize(
    ("changes", "says"),
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
def test_settings_are_checked(changes, says):
    X, y, qid = queries(0)
    with pytest.raises(InputError, match=says):
        CEGBRanker(**FEW | changes).fit(X, y, qid=qid)


# -- values ----------------------------------------------------------------------------------


@pytest.mark.parametrize("accounting", ["lazy", "coupled"])
def test_the_regressors_frontier_is_r2_against_cost(accounting):
    (X, y), (X_val, y_val) = by_class(*load_diabetes(return_X_y=True))
    own = [1.0, 0.2, 2.0, 1.0, 3.0, 3.0, 3.0, 3.0, 3.0, 1.0]
    model = CEGBRegressor(FeatureCosts(own), accounting=accounting, budget=6.0, **FEW)
    model.fit(X, y, validation=(X_val, y_val))
    assert model.operating_point_.cost <= 6.0
    assert model.score(X_val, y_val) > 0.2
    for point in model.frontier_.points:
        moved = model.at(budget=point.cost)
        row_costs, _ = counted(moved, X_val, FeatureCosts(own))
        np.testing.assert_allclose(moved.cost(X_val), row_costs)
        assert point.cost == pytest.approx(row_costs.mean())
        assert point.accuracy == pytest.approx(r2_score(y_val, moved.predict(X_val)), abs=1e-6)
    assert model.frontier_.points[0].cost == 0.0
    least = model.at(max_loss=0.05).operating_point_
    assert least.accuracy >= model.frontier_.reference_accuracy - 0.05 or (
        least is model.frontier_.points[-1]
    )


def test_penalties_mean_the_same_in_any_unit():
    (X, y), validation = by_class(*load_diabetes(return_X_y=True))
    fits = []
    for scale in (1.0, 1024.0):
        model = CEGBRegressor(penalties=(0.01,), **FEW)
        fits.append(model.fit(X, scale * y, validation=(validation[0], scale * validation[1])))
    plain, scaled = fits
    assert [p.cost for p in plain.frontier_.points] == [p.cost for p in scaled.frontier_.points]
    np.testing.assert_allclose(1024 * plain.predict(X), scaled.predict(X), rtol=1e-5)


def test_weights_count_in_the_loss():
    X, y = load_diabetes(return_X_y=True)
    half = np.where(np.arange(len(y)) % 2, y, y + 1000.0)
    weight = np.where(np.arange(len(y)) % 2, 1.0, 0.0)
    model = CEGBRegressor(budget=5.0, **FEW).fit(X, half, weight)
    assert abs(model.predict(X).mean() - y.mean()) < 20


@pytest.mark.parametrize("bound", [{"budget": 4.0}, {"max_loss": 0.05}])
def test_a_guarantee_takes_the_boldest_model_that_keeps_it(bound):
    """Single models are certified one after another; a test on 456 rows must stay inside."""
    X, y = load_breast_cancer(return_X_y=True)
    rng = np.random.default_rng(0)
    X = np.tile(X, (4, 1)) * rng.normal(1.0, 0.01, size=(4 * len(X), X.shape[1]))
    grid = (0.1, 0.05, 0.03, 0.01, 0.003)
    model = CEGBClassifier(guarantee=0.9, penalties=grid, n_rounds=20, random_state=0, **bound)
    point = model.fit(X, np.tile(y, 4)).operating_point_
    assert point.guarantee["confidence"] == 0.9
    if "budget" in bound:
        assert 0.0 < point.cost < 4.0
        assert point.accuracy > 0.9
    else:
        assert point.accuracy > model.frontier_.reference_accuracy - 0.05
        assert point.cost < 0.5 * model.frontier_.points[-1].cost
