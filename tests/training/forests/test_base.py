"""What both budgeted forests do: frontier, costs counted row by row, probabilities, settings."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer, load_wine
from sklearn.ensemble import RandomForestClassifier

from gatewise.errors import InputError
from gatewise_training.forests.budget_forest import BudgetForest
from gatewise_training.forests.budget_prune import BudgetPrune
from tests.support.tree_walks import counted, priced, thirds

pytestmark = pytest.mark.slow  # fits, and compiles growth and pruning

SMALL = {
    BudgetForest: {"n_estimators": 12, "alpha": 0.0},
    BudgetPrune: {"n_estimators": 8, "n_points": 10},
}


@pytest.fixture(
    scope="module",
    params=[(kind, load) for kind in SMALL for load in (load_breast_cancer, load_wine)],
    ids=lambda p: f"{p[0].__name__}-{p[1].__name__}",
)
def fitted(request, make_once):
    kind, load = request.param
    X, y, X_test, y_test = thirds(load)
    system = kind(priced(X.shape[1]), random_state=0, **SMALL[kind])
    name = f"{kind.__name__}-{load.__name__}"
    return make_once(name, lambda _: system.fit(X, y)), X_test, y_test


def test_the_frontier_reaches_from_nothing_to_the_whole_forest(fitted):
    system, X, y = fitted
    points = system.frontier_.points
    assert points[0].cost == 0.0  # no tree, or single leaves
    assert len(points) >= 3
    for budget in np.linspace(0.0, points[-1].cost, 5):
        moved = system.at(budget=float(budget))
        assert moved.operating_point_.cost <= budget + 1e-9
        assert moved.grown_ is system.grown_  # nothing is refitted
    whole = system.at(max_loss=0.0)
    assert whole.score(X, y) > 0.85
    assert system.at(budget=points[-1].cost / 2).cost(X).mean() < whole.cost(X).mean()


def test_costs_are_those_of_the_paths_walked(fitted):
    system, X, _ = fitted
    for point in system.frontier_.points[::2]:
        moved = system.at(budget=point.cost)
        row_costs, _ = counted(moved, X, system.feature_costs_)
        np.testing.assert_allclose(moved.cost(X), row_costs, rtol=1e-12)


def test_probabilities_are_the_averaged_leaf_distributions(fitted):
    system, X, _ = fitted
    for point in system.frontier_.points[::2]:
        moved = system.at(budget=point.cost)
        proba = moved.predict_proba(X)
        np.testing.assert_allclose(proba.sum(axis=1), 1.0, atol=1e-5)
        np.testing.assert_allclose(proba, moved.stages_[0].margins(X), atol=1e-6)
        np.testing.assert_array_equal(moved.predict(X), system.classes_[proba.argmax(axis=1)])
        if isinstance(system, BudgetForest):
            np.testing.assert_allclose(proba, moved.forest_.proba(X), atol=1e-6)


def test_forests_survive_pickling(fitted):
    system, X, _ = fitted
    again = pickle.loads(pickle.dumps(system))
    np.testing.assert_array_equal(system.predict_proba(X), again.predict_proba(X))
    np.testing.assert_array_equal(system.forest_.counts, again.forest_.counts)


@pytest.mark.parametrize(
    ("kind", "setting"),
    [
        (BudgetForest, {"criterion": "misses"}),
        (BudgetForest, {"alpha": -1.0}),
        (BudgetForest, {"mu": 0.1}),
        (BudgetForest, {"mu": -0.1, "criterion": "entropy"}),
        (BudgetForest, {"mu": float("nan"), "criterion": "entropy"}),
        (BudgetForest, {"splits": "some"}),
        (BudgetForest, {"voting": "loud"}),
        (BudgetForest, {"n_estimators": 0}),
        (BudgetForest, {"max_depth": 0}),
        (BudgetPrune, {"n_points": 1}),
        (BudgetPrune, {"n_estimators": 0}),
        (BudgetPrune, {"depth_cost": -1.0}),
        (BudgetPrune, {"pruning_rows": "test"}),
        (BudgetPrune, {"solver": "guess"}),
        (BudgetPrune, {"growth": "wild"}),
        (BudgetPrune, {"mu": -0.1, "growth": "cost-aware"}),
        (BudgetPrune, {"estimator": RandomForestClassifier(), "growth": "cost-aware"}),
    ],
)
def test_bad_settings_are_refused_by_name(kind, setting):
    X, y, _, _ = thirds()
    with pytest.raises(InputError, match=next(iter(setting))):
        kind(**setting).fit(X, y)
