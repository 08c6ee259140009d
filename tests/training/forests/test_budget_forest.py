"""BudgetForest: the paper's construction, budgets, its frontier, costs counted row by row."""

from __future__ import annotations

import joblib
import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_wine

from gatewise.errors import InputError
from gatewise_training import FeatureCosts
from gatewise_training.forests.budget_forest import BudgetForest, _numbers_of_trees
from gatewise_training.forests.grower.binning import Codes
from gatewise_training.forests.grower.growth import RowAcquisitions, SplitRule, grow
from tests.support.tree_walks import thirds

pytestmark = pytest.mark.slow  # fits, and compiles the growth of trees


@pytest.mark.parametrize(("alpha", "cost", "errors"), [(1.0, 2.0, 4), (0.0, 10.0, 0)])
def test_the_papers_1024_examples(alpha, cost, errors):
    """BudgetRF, figures 1 and 2: a threshold of one example stops at depth 2 with 4 errors."""
    number = np.arange(1024)
    x = ((number[:, None] >> np.arange(9, -1, -1)) & 1).astype(np.float32)
    quarter = number // 256
    y = np.where(number % 256 == 0, (quarter + 1) % 4, quarter)  # 0, 256, 512, 768 stray
    costs = FeatureCosts.uniform(10)
    tree = grow(Codes.of_table(x), y, np.ones(1024, np.int64), 4, costs, SplitRule(alpha=alpha))
    assert tree.cost(x, costs).max() == cost
    assert (tree.proba(x).argmax(axis=1) != y).sum() == errors
    assert sorted(np.unique(tree.trees.feature[:3])) == [0, 1]  # the paper's t1 and t2 first


def test_each_tree_may_have_one_vote():
    X, y, X_test, _ = thirds(load_wine)
    settings = {"n_estimators": 5, "alpha": 6.0, "max_loss": 0.0, "random_state": 0}
    voting = BudgetForest(voting="majority", **settings).fit(X, y)
    np.testing.assert_allclose(voting.predict_proba(X_test), voting.forest_.vote(X_test), atol=1e-6)


def test_trees_are_added_until_the_validation_cost_passes_the_budget():
    X, y, X_val, y_val = thirds()
    costs = FeatureCosts.uniform(X.shape[1])
    settings = {"n_estimators": 16, "alpha": 0.0, "max_loss": 0.0, "random_state": 0}
    free = BudgetForest(costs, **settings).fit(X, y, validation=(X_val, y_val))
    forest = max((f for f, _ in free.grown_), key=lambda f: f.n_trees)
    assert forest.n_trees == 16
    first = [forest.select(range(t + 1)) for t in range(16)]
    mean = np.array([f.cost(X_val, costs).mean() for f in first])
    right = np.array([(f.proba(X_val).argmax(axis=1) == y_val).mean() for f in first])
    for budget in (mean[2], mean[2] - 1e-6, (mean[8] + mean[9]) / 2):
        within = int((mean <= budget).sum())  # all but the tree with which it passes
        system = BudgetForest(costs, budget=budget, **settings)
        system.fit(X, y, validation=(X_val, y_val))
        assert system.forest_.n_trees <= within
        assert system.cost(X_val).mean() <= budget + 1e-9
        assert system.score(X_val, y_val) >= right[within - 1] - 1e-12
        # algorithm 1 keeps all of them, whatever their accuracy
        by_cost = clone(system).set_params(selection="cost")
        by_cost.fit(X, y, validation=(X_val, y_val))
        assert by_cost.at(budget=budget).forest_.n_trees == within
        assert {number for forest, number in by_cost.grown_ if forest.n_nodes > 1} == {within}
        np.testing.assert_array_equal(  # the same trees, whatever the budget
            system.forest_.trees.threshold, first[system.forest_.n_trees - 1].trees.threshold
        )
        for f, number in system.grown_:
            assert f.n_trees == 1 or number <= within + 1


def test_the_number_of_trees_before_the_budget_is_passed_is_always_measured():
    for passing in range(1, 41):
        numbers = _numbers_of_trees(40, passing)
        assert {max(passing - 1, 1), passing} <= set(numbers)
        assert numbers == sorted(set(numbers))
        assert numbers[-1] == passing
    assert _numbers_of_trees(40, None)[-1] == 40


def test_too_small_a_budget_leaves_no_tree():
    X, y, X_test, _ = thirds()
    system = BudgetForest(budget=0.0, n_estimators=3, alpha=0.0, random_state=0).fit(X, y)
    assert not system.cost(X_test).any()
    assert (system.predict(X_test) == np.bincount(y).argmax()).all()


def test_trees_know_what_the_ones_before_them_have_acquired(monkeypatch):
    X, y, X_test, _ = thirds()
    costs = FeatureCosts.uniform(X.shape[1])

    def cost():
        system = BudgetForest(costs, criterion="entropy", mu=0.3, n_estimators=10, random_state=0)
        grown = system.fit(X, y).grown_
        return max((f for f, _ in grown), key=lambda f: f.n_trees).cost(X_test, costs).mean()

    remembering = cost()
    monkeypatch.setattr(RowAcquisitions, "add", lambda *_: None)
    assert remembering < 0.9 * cost()


def test_the_number_of_jobs_changes_nothing():
    X, y, X_test, _ = thirds()
    for settings in (
        {"alpha": 0.0, "splits": "stumps"},
        {"criterion": "entropy"},
    ):
        one = BudgetForest(n_estimators=4, random_state=3, max_loss=0.0, **settings)
        two = clone(one)
        one.fit(X, y)
        with joblib.parallel_config(n_jobs=2):
            two.fit(X, y)
        np.testing.assert_array_equal(one.predict_proba(X_test), two.predict_proba(X_test))


def test_missing_values_are_values():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 3)).astype(np.float32)
    X[rng.random(400) < 0.5, 1] = np.nan
    y = np.isnan(X[:, 1]).astype(int)  # only whether it is missing tells
    with pytest.raises(InputError, match="NaN"):
        BudgetForest().fit(X, y)
    system = BudgetForest(
        allow_missing=True, n_estimators=5, alpha=0.0, max_loss=0.0, random_state=0
    ).fit(X, y)
    assert system.score(X, y) == 1.0
    assert system.cost(X).max() == 1.0


def test_samples_are_drawn_by_weight():
    X, y, _, _ = thirds()
    weight = np.where(y == 1, 9.0, 1.0)
    system = BudgetForest(n_estimators=20, alpha=0.0, max_loss=0.0, random_state=0)
    system.fit(X, y, weight)
    forest = max((f for f, _ in system.grown_), key=lambda f: f.n_trees)
    counts = forest.counts[forest.trees.roots].sum(axis=0)
    assert counts.sum() == 20 * len(X)  # cross-fitted: what is kept has seen all rows
    share = weight[y == 1].sum() / weight.sum()
    assert counts[1] / counts.sum() == pytest.approx(share, abs=0.02)


def test_measured_outputs_equal_the_stages_outputs():
    """What validation rows are measured by is what the kept model gives, to the bit."""
    X, y, X_val, y_val = thirds(load_wine)
    for voting in ("mean", "majority"):
        system = BudgetForest(n_estimators=12, alpha=0.0, voting=voting, random_state=0)
        system.fit(X, y, validation=(X_val, y_val))
        for point in system.frontier_.points:
            moved = system.at(budget=point.cost)
            assert moved.score(X_val, y_val) == pytest.approx(moved.operating_point_.accuracy)
            assert moved.cost(X_val).mean() == pytest.approx(moved.operating_point_.cost)


def test_the_largest_forest_within_a_budget_needs_a_budget():
    with pytest.raises(InputError, match="largest forest within a budget"):
        BudgetForest(selection="cost").fit(*load_wine(return_X_y=True))


def optimal_max_cost(x, y, prices, rows, used):
    """Least max-cost of a tree of pure leaves that tests no feature twice on a path."""
    if len(set(y[rows])) < 2:
        return 0.0
    best = np.inf
    for k in range(x.shape[1]):
        sides = [rows[x[rows, k] == value] for value in (0, 1)]
        if k in used or not all(map(len, sides)):
            continue
        below = max(optimal_max_cost(x, y, prices, side, used | {k}) for side in sides)
        best = min(best, prices[k] + below)
    return best


@pytest.mark.parametrize("n_classes", [2, 3])
def test_max_costs_are_within_the_bound_of_theorem_2_2(n_classes):
    """``Cost(S) <= OPT(S) (log F(S) + 1)``, F scaled to 1 as its least impurity above 0."""
    ratios = []
    for seed in range(40):
        rng = np.random.default_rng(seed)
        x = ((rng.permutation(32)[:14, None] >> np.arange(5)) & 1).astype(np.float32)
        y = rng.integers(0, n_classes, 14)
        y[:n_classes] = range(n_classes)
        prices = rng.uniform(0.5, 4.0, 5).round(1)
        costs = FeatureCosts(prices)
        tree = grow(Codes.of_table(x), y, np.ones(14, np.int64), n_classes, costs, SplitRule())
        assert (tree.proba(x).argmax(axis=1) == y).all()
        optimum = optimal_max_cost(x, y, prices, np.arange(14), frozenset())
        counts = np.bincount(y)
        impurity = counts.sum() ** 2 - (counts**2).sum()  # ordered pairs; the least is 2
        ratios.append(tree.cost(x, costs).max() / optimum)
        assert 1.0 - 1e-6 <= ratios[-1] <= np.log(impurity / 2) + 1
    assert max(ratios) > 1.0 + 1e-6  # greedy trees are not optimal
