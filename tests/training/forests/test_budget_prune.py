"""BudgetPrune: exact prunings, the rows that prune, and the ways to give it a forest."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.datasets import load_wine
from sklearn.ensemble import ExtraTreesClassifier, RandomForestClassifier
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression

from gatewise.errors import InputError
from gatewise_training import FeatureCosts
from gatewise_training.forests import budget_prune
from gatewise_training.forests.budget_prune import BudgetPrune
from gatewise_training.prune.solvers import lp
from tests.support.tree_walks import counted, priced, thirds

pytestmark = pytest.mark.slow  # fits, and compiles growth and pruning


def test_the_path_is_optimal_at_every_point():
    """Each pruning is the exact optimum at its price, on the pruning rows."""
    X, y, _, _ = thirds(load_wine)
    system = BudgetPrune(priced(13), n_estimators=8, n_points=10, random_state=0).fit(X, y)
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
def test_pruning_rows_setting_chooses_the_pruning_rows(way):
    X, y, X_val, y_val = thirds()
    system = BudgetPrune(n_estimators=4, n_points=5, pruning_rows=way, random_state=0)
    system.fit(X, y, validation=(X_val, y_val))
    problem = system.path_.problem
    whole = problem.cost(problem.inner)
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
        moved = system.at(budget=point.cost)
        (stage,) = moved.stages_
        row_costs, _ = counted(moved, X_test, system.feature_costs_)
        np.testing.assert_allclose(moved.cost(X_test), row_costs, rtol=1e-12)
        assert stage.model.n_nodes <= moved.forest_.n_nodes
        assert moved.path_.forest is moved.forest_
    assert system.score(X_test, y_test) > 0.88
    one = BudgetPrune(growth="cost-aware", mu=0.3, n_estimators=8, n_points=4, random_state=0)
    plain = BudgetPrune(growth="cost-aware", mu=0.0, n_estimators=8, n_points=4, random_state=0)
    costs = [f.fit(X, y).at(max_loss=0.0).forest_ for f in (one, plain)]
    costly, cheap = (f.cost(X_test, FeatureCosts.uniform(30)).mean() for f in costs[::-1])
    assert cheap < costly


def test_classes_missing_in_a_fold_keep_their_column():
    X, y, _, _ = thirds(load_wine)
    rare = np.concatenate([np.flatnonzero(y != 1), np.flatnonzero(y == 1)[:2]])
    system = BudgetPrune(n_estimators=4, n_points=4, random_state=0).fit(X[rare], y[rare])
    assert system.predict_proba(X).shape == (len(X), 3)
