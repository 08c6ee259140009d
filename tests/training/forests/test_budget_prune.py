"""BudgetPrune: exact prunings, pruning rows, given forests and cost-aware growth."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_wine
from sklearn.ensemble import ExtraTreesClassifier, RandomForestClassifier
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression

from gatewise.errors import InputError
from gatewise_training import FeatureCosts
from gatewise_training.forests import budget_prune
from gatewise_training.forests.budget_forest import BudgetForest
from gatewise_training.forests.budget_prune import BudgetPrune
from gatewise_training.prune.solvers import lp
from tests.support.tree_walks import (
    make_prices_of_two_groups,
    measure_costs_and_splits,
    split_two_thirds,
)

pytestmark = pytest.mark.slow  # fits, and compiles growth and pruning


def test_prunings_of_the_path_are_optimal_on_the_pruning_rows():
    X, y, _, _ = split_two_thirds(load_wine)
    system = BudgetPrune(
        make_prices_of_two_groups(13), n_estimators=8, n_points=10, random_state=0
    ).fit(X, y)
    problem = system.path_.problem
    for lam in (0.002, 0.01):
        optimum = lp.solve(problem, lam)
        is_kept = system.path_.breakpoints > lam
        assert problem.objective(is_kept, lam) == pytest.approx(optimum.objective, abs=1e-9)


def test_fitted_forests_are_not_refitted():
    X, y, X_test, _ = split_two_thirds()
    n_half = len(X) // 2
    forest = RandomForestClassifier(6, random_state=0).fit(X[:n_half], y[:n_half])
    for estimator in (forest, FrozenEstimator(forest)):
        system = BudgetPrune(estimator=estimator, n_points=5, random_state=0)
        system.fit(X[n_half:], y[n_half:])
        probabilities = system.forest_.proba(X_test)
        np.testing.assert_allclose(probabilities, forest.predict_proba(X_test), atol=1e-6)
    with pytest.raises(InputError, match="features"):
        BudgetPrune(estimator=forest).fit(X[:, :5], y)
    with pytest.raises(InputError, match="class"):
        BudgetPrune(estimator=forest).fit(X, y + 5)


def test_unfitted_forests_are_cloned():
    X, y, X_test, y_test = split_two_thirds()
    forest = ExtraTreesClassifier(10, max_depth=5)
    system = BudgetPrune(estimator=forest, n_points=5, random_state=0).fit(X, y)
    assert not hasattr(forest, "estimators_")
    assert system.forest_.n_trees == 10  # as in the given forest
    assert system.score(X_test, y_test) > 0.85  # the more frequent class has 63 % of the rows
    with pytest.raises(InputError, match="forest"):
        BudgetPrune(estimator=LogisticRegression()).fit(X, y)
    with pytest.raises(InputError, match="frozen and not fitted"):
        BudgetPrune(estimator=FrozenEstimator(ExtraTreesClassifier())).fit(X, y)


def test_settings_of_a_given_forest_name_the_users_labels_and_columns():
    X, y, _, _ = split_two_thirds()
    forest = RandomForestClassifier(3, max_depth=1, class_weight={"ill": 1000}, random_state=0)
    labels = np.where(y == 0, "ill", "well")
    system = BudgetPrune(estimator=forest, max_loss=0.0, random_state=0).fit(X, labels)
    # 37 % of the rows are ill, and outweigh the others
    assert (system.forest_.counts[system.forest_.trees.roots].argmax(axis=1) == 0).all()
    table = pd.DataFrame(X, columns=[f"f{k}" for k in range(X.shape[1])])
    costs = dict.fromkeys(table.columns, 1.0)
    grown_forest = BudgetForest(costs, n_estimators=2, random_state=0)
    assert BudgetPrune(costs, estimator=grown_forest).fit(table, labels).forest_.n_trees <= 2


@pytest.mark.parametrize("pruning_rows", ["training", "validation"])
def test_pruning_rows_setting_chooses_the_pruning_rows(pruning_rows):
    X, y, X_val, y_val = split_two_thirds()
    system = BudgetPrune(n_estimators=4, n_points=5, pruning_rows=pruning_rows, random_state=0)
    system.fit(X, y, validation=(X_val, y_val))
    problem = system.path_.problem
    cost_of_forest = problem.cost(problem.is_inner)
    rows = X if pruning_rows == "training" else X_val
    mean_cost = system.forest_.cost(rows, system.feature_costs_).mean()
    assert cost_of_forest == pytest.approx(mean_cost)
    n_training_rows = system.forest_.counts[system.forest_.trees.roots].sum(axis=1)
    np.testing.assert_allclose(n_training_rows, len(X))


def test_large_tables_are_pruned_on_a_sample_of_rows(monkeypatch):
    monkeypatch.setattr(budget_prune, "PRUNING_ROWS", 50)
    X, y, _, _ = split_two_thirds()
    system = BudgetPrune(n_estimators=4, n_points=5, random_state=0).fit(X, y)
    assert len(system.path_.x) == 50
    assert set(map(bytes, system.path_.x)) <= set(map(bytes, X))


def test_frontier_of_cost_aware_growth_contains_several_forests():
    X, y, X_test, y_test = split_two_thirds()
    system = BudgetPrune(
        make_prices_of_two_groups(X.shape[1]),
        growth="cost-aware",
        n_estimators=8,
        n_points=8,
        random_state=0,
    ).fit(X, y)
    assert len({id(forest) for forest, _ in system.sources_}) >= 2
    for point in system.frontier_.points[1::3]:  # some of them, to save time
        point_system = system.at(budget=point.cost)
        (stage,) = point_system.stages_
        row_costs, _ = measure_costs_and_splits(point_system, X_test, system.feature_costs_)
        np.testing.assert_allclose(point_system.cost(X_test), row_costs, rtol=1e-12)
        assert stage.model.n_nodes <= point_system.forest_.n_nodes
        assert point_system.path_.forest is point_system.forest_
    assert system.score(X_test, y_test) > 0.88  # the more frequent class has 63 % of the rows


def test_forests_grown_at_a_higher_price_cost_less():
    X, y, X_test, _ = split_two_thirds()
    mean_costs = []
    for mu in (0.3, 0.0):
        system = BudgetPrune(
            growth="cost-aware", mu=mu, n_estimators=8, n_points=4, random_state=0
        ).fit(X, y)
        forest = system.at(max_loss=0.0).forest_
        mean_costs.append(forest.cost(X_test, FeatureCosts.uniform(30)).mean())
    assert mean_costs[0] < mean_costs[1]


def test_classes_missing_in_a_fold_have_a_probability():
    X, y, _, _ = split_two_thirds(load_wine)
    # two rows of class 1 cannot be in all five folds
    rows = np.concatenate([np.flatnonzero(y != 1), np.flatnonzero(y == 1)[:2]])
    system = BudgetPrune(n_estimators=4, n_points=4, random_state=0).fit(X[rows], y[rows])
    assert system.predict_proba(X).shape == (len(X), 3)
