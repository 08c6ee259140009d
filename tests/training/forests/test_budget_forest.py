"""BudgetForest: the paper's construction and bound, budgets, and bootstrap samples."""

from __future__ import annotations

import joblib
import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_wine

from gatewise.errors import InputError
from gatewise_training import FeatureCosts
from gatewise_training.forests.budget_forest import BudgetForest, _list_tree_counts
from gatewise_training.forests.grower.binning import Codes
from gatewise_training.forests.grower.growth import RowAcquisitions, SplitRule, grow
from tests.support.tree_walks import split_two_thirds

pytestmark = pytest.mark.slow  # fits, and compiles the growth of trees


@pytest.mark.parametrize(("alpha", "max_cost", "n_errors"), [(1.0, 2.0, 4), (0.0, 10.0, 0)])
def test_tree_on_the_1024_examples_of_the_paper(alpha, max_cost, n_errors):
    """With a threshold of one example it ends at depth 2 with 4 errors (figures 1 and 2)."""
    # each example has the bits of its number as features, the most significant first
    example_numbers = np.arange(1024)
    x = ((example_numbers[:, None] >> np.arange(9, -1, -1)) & 1).astype(np.float32)
    quarter = example_numbers // 256
    # the class is the quarter, except for examples 0, 256, 512 and 768
    y = np.where(example_numbers % 256 == 0, (quarter + 1) % 4, quarter)
    costs = FeatureCosts.uniform(10)
    tree = grow(Codes.of_table(x), y, np.ones(1024, np.int64), 4, costs, SplitRule(alpha=alpha))
    assert tree.cost(x, costs).max() == max_cost
    assert (tree.proba(x).argmax(axis=1) != y).sum() == n_errors
    assert sorted(np.unique(tree.trees.feature[:3])) == [0, 1]  # t1 and t2 of the paper


def test_probabilities_of_majority_voting_are_shares_of_votes():
    X, y, X_test, _ = split_two_thirds(load_wine)
    settings = {"n_estimators": 5, "alpha": 6.0, "max_loss": 0.0, "random_state": 0}
    voting_forest = BudgetForest(voting="majority", **settings).fit(X, y)
    np.testing.assert_allclose(
        voting_forest.predict_proba(X_test), voting_forest.forest_.vote_shares(X_test), atol=1e-6
    )


def test_trees_are_added_until_the_validation_cost_exceeds_the_budget():
    X, y, X_val, y_val = split_two_thirds()
    costs = FeatureCosts.uniform(X.shape[1])
    settings = {"n_estimators": 16, "alpha": 0.0, "random_state": 0}
    system_without_budget = BudgetForest(costs, max_loss=0.0, **settings)
    system_without_budget.fit(X, y, validation=(X_val, y_val))
    forest = find_largest_forest(system_without_budget)
    assert forest.n_trees == 16  # no budget ends the growth before n_estimators
    prefixes = [forest.select(range(n_trees)) for n_trees in range(1, 17)]
    mean_costs = np.array([prefix.cost(X_val, costs).mean() for prefix in prefixes])
    accuracies = np.array(
        [(prefix.proba(X_val).argmax(axis=1) == y_val).mean() for prefix in prefixes]
    )
    for budget in (mean_costs[2], mean_costs[2] - 1e-6, (mean_costs[8] + mean_costs[9]) / 2):
        n_affordable = int((mean_costs <= budget).sum())
        system = BudgetForest(costs, budget=budget, **settings)
        system.fit(X, y, validation=(X_val, y_val))
        n_trees = system.forest_.n_trees
        assert n_trees <= n_affordable
        assert system.cost(X_val).mean() <= budget + 1e-9
        assert system.score(X_val, y_val) >= accuracies[n_affordable - 1] - 1e-12
        # algorithm 1 keeps all trees within the budget, whatever their accuracy
        system_by_cost = clone(system).set_params(selection="cost")
        system_by_cost.fit(X, y, validation=(X_val, y_val))
        assert system_by_cost.at(budget=budget).forest_.n_trees == n_affordable
        tree_counts = {count for source, count in system_by_cost.sources_ if source.n_nodes > 1}
        assert tree_counts == {n_affordable}
        # the trees do not depend on the budget
        np.testing.assert_array_equal(
            system.forest_.trees.threshold, prefixes[n_trees - 1].trees.threshold
        )
        for source, count in system.sources_:
            assert source.n_trees == 1 or count <= n_affordable + 1


def find_largest_forest(system):
    return max((forest for forest, _ in system.sources_), key=lambda forest: forest.n_trees)


def test_largest_number_of_trees_within_the_budget_is_always_tried():
    for n_over_budget in range(1, 41):
        counts = _list_tree_counts(40, n_over_budget)
        assert {max(n_over_budget - 1, 1), n_over_budget} <= set(counts)
        assert counts == sorted(set(counts))
        assert counts[-1] == n_over_budget
    assert _list_tree_counts(40, None)[-1] == 40  # the budget allows all trees


def test_budget_of_zero_gives_a_model_without_trees():
    X, y, X_test, _ = split_two_thirds()
    system = BudgetForest(budget=0.0, n_estimators=3, alpha=0.0, random_state=0).fit(X, y)
    assert not system.cost(X_test).any()
    assert (system.predict(X_test) == np.bincount(y).argmax()).all()


def test_forest_costs_less_if_acquisitions_of_earlier_trees_are_free(monkeypatch):
    X, y, X_test, _ = split_two_thirds()
    costs = FeatureCosts.uniform(X.shape[1])

    def fit_and_measure_cost():
        system = BudgetForest(costs, criterion="entropy", mu=0.3, n_estimators=10, random_state=0)
        return find_largest_forest(system.fit(X, y)).cost(X_test, costs).mean()

    cost = fit_and_measure_cost()
    # without a record of acquisitions, every tree pays for its features again
    monkeypatch.setattr(RowAcquisitions, "add", lambda *_: None)
    assert cost < 0.9 * fit_and_measure_cost()


def test_predictions_do_not_depend_on_the_number_of_jobs():
    X, y, X_test, _ = split_two_thirds()
    for settings in ({"alpha": 0.0, "splits": "stumps"}, {"criterion": "entropy"}):
        one_job_forest = BudgetForest(n_estimators=4, random_state=3, max_loss=0.0, **settings)
        two_job_forest = clone(one_job_forest)
        one_job_forest.fit(X, y)
        with joblib.parallel_config(n_jobs=2):
            two_job_forest.fit(X, y)
        np.testing.assert_array_equal(
            one_job_forest.predict_proba(X_test), two_job_forest.predict_proba(X_test)
        )


def test_missing_values_are_used_if_they_are_allowed():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 3)).astype(np.float32)
    X[rng.random(400) < 0.5, 1] = np.nan
    y = np.isnan(X[:, 1]).astype(int)
    with pytest.raises(InputError, match="NaN"):
        BudgetForest().fit(X, y)
    system = BudgetForest(
        allow_missing=True, n_estimators=5, alpha=0.0, max_loss=0.0, random_state=0
    ).fit(X, y)
    assert system.score(X, y) == 1.0
    assert system.cost(X).max() == 1.0


def test_bootstrap_samples_draw_rows_by_weight():
    X, y, _, _ = split_two_thirds()
    weight = np.where(y == 1, 9.0, 1.0)
    system = BudgetForest(n_estimators=20, alpha=0.0, max_loss=0.0, random_state=0)
    system.fit(X, y, weight)
    forest = find_largest_forest(system)
    counts = forest.counts[forest.trees.roots].sum(axis=0)
    # after cross-fitting, each of the 20 trees of the final forest draws as many rows as there are
    assert counts.sum() == 20 * len(X)
    expected_share = weight[y == 1].sum() / weight.sum()
    # the standard error of about 7,600 draws is below 0.004
    assert counts[1] / counts.sum() == pytest.approx(expected_share, abs=0.02)


def test_figures_of_the_frontier_equal_those_of_the_systems():
    X, y, X_val, y_val = split_two_thirds(load_wine)
    for voting in ("mean", "majority"):
        system = BudgetForest(n_estimators=12, alpha=0.0, voting=voting, random_state=0)
        system.fit(X, y, validation=(X_val, y_val))
        for point in system.frontier_.points:
            point_system = system.at(budget=point.cost)
            assert point_system.score(X_val, y_val) == pytest.approx(
                point_system.operating_point_.accuracy
            )
            assert point_system.cost(X_val).mean() == pytest.approx(
                point_system.operating_point_.cost
            )


def test_selection_by_cost_needs_a_budget():
    with pytest.raises(InputError, match="largest forest within a budget"):
        BudgetForest(selection="cost").fit(*load_wine(return_X_y=True))


def compute_optimal_max_cost(x, y, prices, rows, used_features):
    """Compute the smallest max-cost of a tree with pure leaves."""
    if len(set(y[rows])) < 2:
        return 0.0
    best_cost = np.inf
    for k in range(x.shape[1]):
        rows_by_value = [rows[x[rows, k] == value] for value in (0, 1)]
        if k in used_features or not all(map(len, rows_by_value)):
            continue
        features = used_features | {k}
        child_cost = max(
            compute_optimal_max_cost(x, y, prices, child_rows, features)
            for child_rows in rows_by_value
        )
        best_cost = min(best_cost, prices[k] + child_cost)
    return best_cost


@pytest.mark.parametrize("n_classes", [2, 3])
def test_max_costs_are_within_the_bound_of_theorem_2_2(n_classes):
    """``Cost(S) <= OPT(S) (log F(S) + 1)``, where the smallest F above 0 is scaled to 1."""
    ratios = []
    for seed in range(40):
        rng = np.random.default_rng(seed)
        # 14 different rows of five bits, so that some tree has pure leaves
        x = ((rng.permutation(32)[:14, None] >> np.arange(5)) & 1).astype(np.float32)
        y = rng.integers(0, n_classes, 14)
        y[:n_classes] = range(n_classes)  # every class occurs
        prices = rng.uniform(0.5, 4.0, 5).round(1)
        costs = FeatureCosts(prices)
        tree = grow(Codes.of_table(x), y, np.ones(14, np.int64), n_classes, costs, SplitRule())
        assert (tree.proba(x).argmax(axis=1) == y).all()
        optimum = compute_optimal_max_cost(x, y, prices, np.arange(14), frozenset())
        counts = np.bincount(y)
        impurity = counts.sum() ** 2 - (counts**2).sum()  # ordered pairs; at least 2
        ratios.append(tree.cost(x, costs).max() / optimum)
        assert 1.0 - 1e-6 <= ratios[-1] <= np.log(impurity / 2) + 1
    assert max(ratios) > 1.0 + 1e-6  # greedy trees are not optimal


def draw_rows_of_a_costly_rare_class(n):
    """Draw rows of which the rare class needs many features."""
    rng = np.random.default_rng(0)
    y = (rng.random(n) < 0.1).astype(int)
    X = rng.normal(size=(n, 8)).astype(np.float32) + 0.6 * y[:, None]
    X[:, 0] = rng.normal(size=n) + np.where(y == 1, 1, -2)
    return X, y


def test_class_weights_do_not_count_in_the_cost_that_a_budget_bounds():
    X, y = draw_rows_of_a_costly_rare_class(800)
    system = BudgetForest(
        budget=3.0,
        alpha=2.0,
        selection="cost",
        class_weight={0: 1, 1: 50},
        n_estimators=8,
        random_state=0,
    ).fit(X, y)
    # with class weights, the cost of 8 trees would exceed the budget
    assert system.forest_.n_trees == 8
    assert system.operating_point_.cost < 3.0
