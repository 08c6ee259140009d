"""Frontier, costs, probabilities and settings of both budgeted forests."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer, load_wine
from sklearn.ensemble import RandomForestClassifier

from gatewise.errors import InputError
from gatewise_training.forests.budget_forest import BudgetForest
from gatewise_training.forests.budget_prune import BudgetPrune
from tests.support.tree_walks import (
    make_prices_of_two_groups,
    measure_costs_and_splits,
    split_two_thirds,
)

pytestmark = pytest.mark.slow  # fits, and compiles growth and pruning

SETTINGS = {
    BudgetForest: {"n_estimators": 12, "alpha": 0.0},
    BudgetPrune: {"n_estimators": 8, "n_points": 10},
}


@pytest.fixture(
    scope="module",
    params=[
        (estimator_class, load)
        for estimator_class in SETTINGS
        for load in (load_breast_cancer, load_wine)
    ],
    ids=lambda class_and_table: "-".join(part.__name__ for part in class_and_table),
)
def fitted_system(request, make_once):
    estimator_class, load = request.param
    X, y, X_test, y_test = split_two_thirds(load)
    system = estimator_class(
        make_prices_of_two_groups(X.shape[1]), random_state=0, **SETTINGS[estimator_class]
    )
    name = f"{estimator_class.__name__}-{load.__name__}"
    return make_once(name, lambda _: system.fit(X, y)), X_test, y_test


def test_frontier_reaches_from_no_cost_to_the_whole_forest(fitted_system):
    system, X, y = fitted_system
    points = system.frontier_.points
    assert points[0].cost == 0.0  # a model without trees, or single leaves
    assert len(points) >= 3
    for budget in np.linspace(0.0, points[-1].cost, 5):
        point_system = system.at(budget=float(budget))
        assert point_system.operating_point_.cost <= budget + 1e-9
        assert point_system.sources_ is system.sources_  # no model is refitted
    whole_forest = system.at(max_loss=0.0)
    assert whole_forest.score(X, y) > 0.85
    assert system.at(budget=points[-1].cost / 2).cost(X).mean() < whole_forest.cost(X).mean()


def test_costs_equal_the_prices_on_the_paths(fitted_system):
    system, X, _ = fitted_system
    for point in system.frontier_.points[::2]:  # half of them, to save time
        point_system = system.at(budget=point.cost)
        row_costs, _ = measure_costs_and_splits(point_system, X, system.feature_costs_)
        np.testing.assert_allclose(point_system.cost(X), row_costs, rtol=1e-12)


def test_probabilities_are_averaged_leaf_distributions(fitted_system):
    system, X, _ = fitted_system
    for point in system.frontier_.points[::2]:
        point_system = system.at(budget=point.cost)
        probabilities = point_system.predict_proba(X)
        np.testing.assert_allclose(probabilities.sum(axis=1), 1.0, atol=1e-5)
        np.testing.assert_allclose(probabilities, point_system.stages_[0].margins(X), atol=1e-6)
        np.testing.assert_array_equal(
            point_system.predict(X), system.classes_[probabilities.argmax(axis=1)]
        )
        if isinstance(system, BudgetForest):
            np.testing.assert_allclose(probabilities, point_system.forest_.proba(X), atol=1e-6)


@pytest.mark.parametrize(
    ("estimator_class", "invalid_setting"),
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
def test_invalid_settings_are_refused_by_name(estimator_class, invalid_setting):
    X, y, _, _ = split_two_thirds()
    with pytest.raises(InputError, match=next(iter(invalid_setting))):
        estimator_class(**invalid_setting).fit(X, y)
