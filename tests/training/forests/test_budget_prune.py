"""BudgetPrune: its frontier, costs counted row by row, and the ways to give it a forest."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer, load_wine
from sklearn.ensemble import ExtraTreesClassifier, RandomForestClassifier
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression

from gatewise.errors import InputError
from gatewise_training import FeatureCosts
from gatewise_training.forests import budget_prune
from gatewise_training.forests.budget_prune import BudgetPrune
from tests.support.tree_walks import columns_of, price, priced, thirds


def cost_of(stage, costs, row):
    """Feature cost of one row, walked node by node."""
    own = row[stage.features]
    return price(stage.features[list(columns_of(stage.model, own))].tolist(), costs)


@pytest.fixture(scope="module", params=[load_breast_cancer, load_wine], ids=["two", "three"])
def fitted(request):
    X, y, X_test, y_test = thirds(request.param)
    system = BudgetPrune(priced(X.shape[1]), n_estimators=8, n_points=10, random_state=0)
    return system.fit(X, y), X_test, y_test


def test_the_frontier_reaches_from_nothing_to_the_whole_forest(fitted):
    system, X, y = fitted
    points = system.frontier_.points
    assert points[0].cost == 0.0  # single leaves ask for nothing
    assert len(points) >= 4
    costs = [p.cost for p in points]
    for budget in np.linspace(costs[0], costs[-1], 5):
        there = system.at(budget=float(budget))
        assert there.operating_point_.cost <= budget + 1e-9
        assert there.forest_ is system.forest_  # nothing is refitted
    whole = system.at(max_loss=0.0)
    assert whole.score(X, y) > 0.9
    cheap = system.at(budget=costs[-1] / 2)
    assert cheap.cost(X).mean() < whole.cost(X).mean()


def test_costs_are_those_of_the_paths_walked(fitted):
    system, X, _ = fitted
    for point in system.frontier_.points[::2]:
        there = system.at(budget=point.cost)
        (stage,) = there.stages_
        counted = [cost_of(stage, system.feature_costs_, row) for row in X]
        np.testing.assert_allclose(there.cost(X), counted, rtol=1e-12)


def test_probabilities_are_the_averaged_leaf_distributions(fitted):
    system, X, _ = fitted
    (stage,) = system.stages_
    proba = system.predict_proba(X)
    np.testing.assert_allclose(proba.sum(axis=1), 1.0, atol=1e-5)
    np.testing.assert_array_equal(system.predict(X), system.classes_[proba.argmax(axis=1)])
    np.testing.assert_allclose(proba, stage.margins(X.astype(np.float32)), atol=1e-6)


def test_the_path_is_optimal_at_every_point(fitted):
    """Each pruning judged is the exact optimum at its price, on the pruning rows."""
    from gatewise_training.prune.solvers import lp

    system, _, _ = fitted
    problem = system.path_.problem
    for lam in (0.002, 0.01):
        optimum = lp.solve(problem, lam)
        keep = system.path_.breakpoints > lam
        assert problem.objective(keep, lam) == pytest.approx(optimum.objective, abs=1e-9)


def test_a_fitted_forest_is_pruned_as_it_is():
    X, y, X_test, _ = thirds()
    half = len(X) // 2
    forest = RandomForestClassifier(6, random_state=0).fit(X[:half], y[:half])
    for given in (forest, FrozenEstimator(forest)):
        system = BudgetPrune(estimator=given, n_points=5, random_state=0).fit(X[half:], y[half:])
        whole = system.forest_.proba(X_test)
        np.testing.assert_allclose(whole, forest.predict_proba(X_test), atol=1e-6)
    with pytest.raises(InputError, match="features"):
        BudgetPrune(estimator=forest).fit(X[:, :5], y)
    with pytest.raises(InputError, match="class"):
        BudgetPrune(estimator=forest).fit(X, y + 5)


def test_an_unfitted_forest_is_copied():
    X, y, X_test, y_test = thirds()
    forest = ExtraTreesClassifier(10, max_depth=5)
    system = BudgetPrune(estimator=forest, n_points=5, random_state=0).fit(X, y)
    assert not hasattr(forest, "estimators_")
    assert system.forest_.n_trees == 10
    assert system.score(X_test, y_test) > 0.85
    with pytest.raises(InputError, match="forest"):
        BudgetPrune(estimator=LogisticRegression()).fit(X, y)


@pytest.mark.parametrize("way", ["training", "validation"])
def test_which_rows_prune(way):
    X, y, X_val, y_val = thirds()
    system = BudgetPrune(n_estimators=4, n_points=5, pruning_rows=way, random_state=0)
    system.fit(X, y, validation=(X_val, y_val))
    problem = system.path_.problem
    whole = problem.cost(problem.left >= 0)
    rows = X if way == "training" else X_val
    assert whole == pytest.approx(system.forest_.cost(rows, system.feature_costs_).mean())
    grown = system.forest_.counts[system.forest_.trees.roots].sum(axis=1)
    np.testing.assert_allclose(grown, len(X))


def test_many_rows_prune_by_a_sample(monkeypatch):
    monkeypatch.setattr(budget_prune, "PRUNING_ROWS", 50)
    X, y, _, _ = thirds()
    system = BudgetPrune(n_estimators=4, n_points=5, random_state=0).fit(X, y)
    assert len(system.path_.x) == 50
    assert set(map(bytes, system.path_.x)) <= set(map(bytes, X))


def test_cost_aware_growth_joins_the_frontier():
    X, y, X_test, y_test = thirds()
    system = BudgetPrune(
        priced(X.shape[1]), growth="cost-aware", n_estimators=8, n_points=8, random_state=0
    ).fit(X, y)
    assert len({id(forest) for forest, _ in system.grown_}) >= 2  # no one mu is best everywhere
    for point in system.frontier_.points[1::3]:
        there = system.at(budget=point.cost)
        (stage,) = there.stages_
        counted = [cost_of(stage, system.feature_costs_, row) for row in X_test]
        np.testing.assert_allclose(there.cost(X_test), counted, rtol=1e-12)
        assert stage.model.n_nodes <= there.forest_.n_nodes
        assert there.path_.forest is there.forest_
    assert system.score(X_test, y_test) > 0.88
    one = BudgetPrune(growth="cost-aware", mu=0.3, n_estimators=8, n_points=4, random_state=0)
    plain = BudgetPrune(growth="cost-aware", mu=0.0, n_estimators=8, n_points=4, random_state=0)
    costs = [f.fit(X, y).at(max_loss=0.0).forest_ for f in (one, plain)]
    dear, cheap = (f.cost(X_test, FeatureCosts.uniform(30)).mean() for f in costs[::-1])
    assert cheap < dear


def test_a_class_that_a_fold_has_not_seen_keeps_its_place():
    X, y, _, _ = thirds(load_wine)
    rare = np.concatenate([np.flatnonzero(y != 1), np.flatnonzero(y == 1)[:2]])
    system = BudgetPrune(n_estimators=4, n_points=4, random_state=0).fit(X[rare], y[rare])
    assert system.predict_proba(X).shape == (len(X), 3)


@pytest.mark.parametrize(
    ("setting", "word"),
    [
        ({"n_points": 1}, "n_points"),
        ({"n_estimators": 0}, "n_estimators"),
        ({"depth_cost": -1.0}, "depth_cost"),
        ({"pruning_rows": "test"}, "pruning_rows"),
        ({"solver": "guess"}, "solver"),
        ({"growth": "wild"}, "growth"),
        ({"growth": "cost-aware", "mu": -0.1}, "mu"),
        ({"growth": "cost-aware", "estimator": RandomForestClassifier()}, "estimator"),
    ],
)
def test_bad_settings_are_refused(setting, word):
    X, y, _, _ = thirds()
    with pytest.raises(InputError, match=word):
        BudgetPrune(**setting).fit(X, y)
