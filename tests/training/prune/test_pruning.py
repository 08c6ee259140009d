"""The function `prune`: training rows, gaps of the hull, and integrality of the program.

h is a node, and `lam` the price of a unit of cost in training errors.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_iris
from sklearn.ensemble import (
    AdaBoostClassifier,
    BaggingClassifier,
    ExtraTreesClassifier,
    GradientBoostingClassifier,
    RandomForestClassifier,
    VotingClassifier,
)
from sklearn.tree import DecisionTreeClassifier

from gatewise.errors import InputError
from gatewise_training import BudgetPrune, FeatureCosts
from gatewise_training.prune import PruningPath, prune
from gatewise_training.prune.nested_prunings import pruning_within

COSTS = FeatureCosts([1.0, 2.0, 0.5])


def draw_rows(n, seed):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 3)).astype(np.float32)
    return x, (x[:, 0] + 0.7 * x[:, 1] + 0.5 * rng.normal(size=n) > 0).astype(np.int64)


@pytest.fixture(scope="module")
def sklearn_forest():
    x, y = draw_rows(150, 0)
    return RandomForestClassifier(4, max_depth=4, random_state=0).fit(x, y)


@pytest.fixture(scope="module")
def path(sklearn_forest):
    return prune(sklearn_forest, *draw_rows(80, 1), COSTS)


@pytest.mark.parametrize("solver", ["mincut", "lp", "dantzig_wolfe", "primal_dual"])
def test_forest_of_single_leaves_has_one_pruning(solver):
    x, y = np.ones((40, 3), np.float32), np.arange(40) % 2
    for n_trees in (1, 2):
        forest = ExtraTreesClassifier(n_trees, random_state=0).fit(x, y)
        path = prune(forest, x, y, COSTS, solver=solver)
        assert len(path) == 1
        point = path.at(lam=0.0)
        # half of the rows are of the other class
        assert (point.cost, point.training_error, point.is_kept.any()) == (0.0, 0.5, False)
        assert path.within(budget=0.0).cost == 0.0


@pytest.mark.parametrize(
    "ensemble",
    [
        BaggingClassifier(DecisionTreeClassifier(max_depth=3), 4, max_features=0.7),
        AdaBoostClassifier(DecisionTreeClassifier(max_depth=2), n_estimators=4),
        GradientBoostingClassifier(n_estimators=3),
        VotingClassifier([("a", DecisionTreeClassifier(max_depth=3))]),
    ],
    ids=lambda ensemble: type(ensemble).__name__,
)
def test_ensembles_that_combine_trees_in_another_way_are_refused(ensemble):
    x, y = draw_rows(150, 0)
    with pytest.raises(InputError, match=f"RandomForestClassifier .*{type(ensemble).__name__}"):
        prune(ensemble.fit(x, y), x, y, COSTS)


def test_training_rows_give_the_errors_of_the_nodes(sklearn_forest):
    """e_h is the number of training rows at h outside the most frequent class there."""
    x, y = draw_rows(150, 0)
    path = prune(sklearn_forest, *draw_rows(80, 1), COSTS, training=(x, y))
    first_node = 0
    for estimator in sklearn_forest.estimators_:
        is_visited = estimator.decision_path(x).toarray().astype(bool)
        for h in range(estimator.tree_.node_count):
            counts = np.bincount(y[is_visited[:, h]], minlength=2)
            error = (counts.sum() - counts.max()) / (len(x) * 4)
            assert path.problem.error[first_node + h] == pytest.approx(error, abs=1e-15)
        first_node += estimator.tree_.node_count
    path_of_bags = prune(sklearn_forest, *draw_rows(80, 1), COSTS)
    assert not np.allclose(path.problem.error, path_of_bags.problem.error)
    # leaves still answer by the rows that grew the trees
    np.testing.assert_array_equal(path.forest.trees.value, path_of_bags.forest.trees.value)
    with pytest.raises(InputError, match="has no class 7, which is in the training rows"):
        prune(sklearn_forest, *draw_rows(80, 1), COSTS, training=(x, y * 0 + 7))


def test_weights_of_training_rows_count_in_the_errors_of_the_nodes(sklearn_forest):
    x, y = draw_rows(80, 1)
    weight = np.random.default_rng(4).integers(1, 4, len(y))
    # a row of weight 3 counts as three equal rows
    repeated_rows = np.repeat(np.arange(len(y)), weight)
    path = prune(sklearn_forest, x, None, COSTS, training=(x, y, weight))
    expected_path = prune(
        sklearn_forest, x, None, COSTS, training=(x[repeated_rows], y[repeated_rows])
    )
    np.testing.assert_allclose(path.problem.error, expected_path.problem.error, atol=1e-15)


def test_columns_in_another_order_than_the_forests_are_refused():
    x, y = draw_rows(80, 1)
    table = pd.DataFrame(x, columns=[f"f{k}" for k in range(x.shape[1])])
    forest = RandomForestClassifier(3, random_state=0).fit(table, y)
    assert prune(forest, table, y, COSTS).costs.n_features == x.shape[1]
    other_table = table[table.columns[::-1]]
    message = "the forest was fitted with 'f0' as column 0"
    with pytest.raises(InputError, match=message):
        prune(forest, other_table, y, COSTS)
    with pytest.raises(InputError, match=message):
        BudgetPrune(estimator=forest).fit(other_table, y)


def test_node_errors_setting_chooses_the_rows_of_the_errors():
    x, y = draw_rows(200, 2)
    settings = {"n_estimators": 4, "random_state": 0}
    validation_rows = draw_rows(100, 3)
    model_by_training_errors = BudgetPrune(**settings, node_errors="training").fit(
        x, y, validation=validation_rows
    )
    problem, forest = model_by_training_errors.path_.problem, model_by_training_errors.path_.forest
    counts = forest.count_rows(x, y, np.ones(len(y)))
    expected_errors = (counts.sum(axis=1) - counts.max(axis=1)) / (len(x) * 4)
    np.testing.assert_allclose(problem.error, expected_errors, atol=1e-15)
    model_by_bags = BudgetPrune(**settings).fit(x, y, validation=validation_rows)
    np.testing.assert_allclose(model_by_bags.path_.problem.error, forest.node_errors / (len(x) * 4))


def test_within_fills_the_gaps_of_the_hull_as_the_estimator_does(path):
    n_better = 0
    for budget in np.linspace(0.0, path.sequence.costs[0], 12):
        point = path.within(budget=float(budget))
        is_kept_as_expected = pruning_within(
            path.sequence, float(budget), (path.per_tree, path.greedy)
        )
        np.testing.assert_array_equal(point.is_kept, is_kept_as_expected)
        hull_point = path.at(budget=float(budget))
        assert point.cost <= budget + 1e-9
        assert point.training_error <= hull_point.training_error + 1e-12
        assert point.forest.cost(path.x, COSTS).mean() == pytest.approx(point.cost)
        n_better += point.training_error < hull_point.training_error - 1e-9
    assert n_better
    with pytest.raises(InputError, match="needs the costs"):
        _ = PruningPath(path.forest, path.problem, path.breakpoints).greedy


def test_usage_is_the_share_of_rows_that_test_a_feature(sklearn_forest, path):
    x, _ = draw_rows(80, 1)
    is_tested = np.zeros((len(x), 3), bool)
    for estimator in sklearn_forest.estimators_:
        for node in range(estimator.tree_.node_count):
            k = estimator.tree_.feature[node]
            if k >= 0:
                is_tested[:, k] |= (
                    estimator.decision_path(x)[:, [node]].toarray()[:, 0].astype(bool)
                )
    np.testing.assert_allclose(path.forest.feature_usage(x), is_tested.mean(axis=0))


def test_prices_are_found_by_the_names_of_columns():
    X, y = load_iris(return_X_y=True, as_frame=True)
    forest = RandomForestClassifier(3, random_state=0).fit(X.to_numpy(), y)
    prices = dict(zip(X.columns, [1.0, 2.0, 3.0, 4.0], strict=True))
    expected_cost = (
        prune(forest, X.to_numpy(), y, FeatureCosts([*prices.values()])).at(lam=0.0).cost
    )
    reversed_prices = dict(reversed(prices.items()))
    for costs in ([*prices.values()], reversed_prices, FeatureCosts(reversed_prices)):
        assert prune(forest, X, y, costs).at(lam=0.0).cost == expected_cost
