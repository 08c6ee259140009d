"""The path of all optimal prunings, compared with pruned forests and with solves at one price.

`lam` is the price of a unit of cost in training errors.
"""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression

from gatewise.errors import InputError
from gatewise_training import FeatureCosts
from gatewise_training.prune import build_problem, prune
from gatewise_training.prune.forest import Forest
from gatewise_training.prune.path import breakpoints, breakpoints_by_solver
from gatewise_training.prune.presolve import reduce_problem
from gatewise_training.prune.solvers.mincut import best_closure, solve

pytestmark = pytest.mark.slow  # compiles all pruning methods


def test_reduced_problem_has_the_same_optimum():
    x, y = load_digits(return_X_y=True)
    sklearn_forest = RandomForestClassifier(5, random_state=0).fit(x[:900], y[:900])
    rows = x[900:1300].astype(np.float32)
    problem = build_problem(Forest.from_sklearn(sklearn_forest), rows, FeatureCosts.uniform(64))
    closure, node_numbers = reduce_problem(problem)
    assert closure.n_nodes < 0.5 * problem.n_nodes  # the reduction is considerable
    assert closure.column_price.sum() + closure.price.sum() == pytest.approx(
        problem.cost((node_numbers >= 0) | (node_numbers == -1))
    )
    for lam in (1e-3, 1e-2):
        closure_kept, cut_value, _ = best_closure(closure, lam)
        acquired = closure.acquired(closure_kept)
        cost = closure.price[closure_kept].sum() + closure.column_price[acquired].sum()
        gain = closure.profit[closure_kept].sum() - lam * cost
        assert gain == pytest.approx(closure.total_profit - cut_value, abs=1e-12)
        # -1 and -2 are the numbers of nodes that always and never stay
        is_kept = np.append(closure_kept, [False, True])[node_numbers]
        assert problem.objective(is_kept, lam) == pytest.approx(solve(problem, lam).objective)


@pytest.fixture(scope="module")
def cancer_forest():
    x, y = load_breast_cancer(return_X_y=True)
    labels = np.array(["benign", "malignant"])[y]
    sklearn_forest = RandomForestClassifier(10, random_state=0).fit(x[:400], labels[:400])
    return sklearn_forest, x[400:], labels[400:], FeatureCosts(np.linspace(0.5, 2, 30))


def test_frontier_equals_the_figures_of_the_pruned_forests(cancer_forest):
    sklearn_forest, x, y, costs = cancer_forest
    path = prune(sklearn_forest, x, y, costs)
    table = path.frontier()
    assert len(path) == len(table["cost"]) > 10  # the path has enough prunings to compare
    assert (np.diff(table["cost"]) <= 0).all()
    assert (np.diff(table["training_error"]) >= 0).all()
    for index in range(0, len(path), 5):
        forest = path.forest.pruned(path.breakpoints > table["lam"][index])
        rows = x.astype(np.float32)
        assert table["cost"][index] == pytest.approx(forest.cost(rows, costs).mean())
        predictions = sklearn_forest.classes_[forest.proba(rows).argmax(axis=1)]
        assert table["accuracy"][index] == pytest.approx(np.mean(predictions == y))


def test_points_are_optimal_at_a_price_and_within_a_budget(cancer_forest):
    sklearn_forest, x, y, costs = cancer_forest
    path = prune(sklearn_forest, x, y, costs)
    for lam in (0.0, 0.002, 0.01):
        point = path.at(lam=lam)
        assert point.objective == pytest.approx(solve(path.problem, lam).objective, abs=1e-12)
        assert point.objective == pytest.approx(point.training_error + lam * point.cost)
    highest_cost = path.at(lam=0.0).cost
    for budget in (0.0, 0.3 * highest_cost, 0.7 * highest_cost, 2 * highest_cost):
        point = path.at(budget=budget)
        assert point.cost <= budget + 1e-9
        costs_of_points = path.frontier(5)["cost"]
        assert not ((point.cost + 1e-9 < costs_of_points) & (costs_of_points <= budget)).any()
    with pytest.raises(InputError, match="exactly one"):
        path.at()
    with pytest.raises(InputError, match="at most -1"):
        path.at(budget=-1.0)


@pytest.mark.parametrize("free_columns", [[], [0, 7, 20, 21, 22, 23, 27]])
def test_breakpoints_of_parts_are_those_of_the_whole_problem(cancer_forest, free_columns):
    """Free columns give nodes that stay at every price; rare labels give nodes without profit."""
    _, x, _, costs = cancer_forest
    rare_labels = np.random.default_rng(0).random(len(x)) < 0.15
    sklearn_forest = RandomForestClassifier(10, max_depth=4, random_state=0).fit(x, rare_labels)
    prices = costs.own.copy()
    prices[free_columns] = 0.0
    rows = x[:60].astype(np.float32)
    problem = build_problem(Forest.from_sklearn(sklearn_forest), rows, FeatureCosts(prices))
    prices_of_parts = breakpoints(problem)
    np.testing.assert_allclose(prices_of_parts, breakpoints_by_solver(solve, problem), rtol=1e-9)
    assert (prices_of_parts[~problem.is_inner] == -np.inf).all()
    assert (prices_of_parts[problem.is_inner] == 0.0).any()
    assert np.isinf(prices_of_parts[problem.is_inner]).any() == bool(free_columns)


def test_invalid_arguments_are_refused(cancer_forest):
    sklearn_forest, x, y, costs = cancer_forest
    with pytest.raises(InputError, match="no solver 'magic'"):
        prune(sklearn_forest, x, y, costs, solver="magic")
    with pytest.raises(InputError, match="the forest has no class 'other'"):
        prune(sklearn_forest, x, np.where(y == "benign", y, "other"), costs)
    with pytest.raises(InputError, match="30 feature costs for 5 features"):
        prune(sklearn_forest, x[:, :5], y, costs)
    with pytest.raises(InputError, match="not LogisticRegression"):
        prune(LogisticRegression(), x, y, costs)
    with pytest.raises(InputError, match="depth_cost"):
        prune(sklearn_forest, x, y, costs, depth_cost=-1.0)
    with pytest.raises(InputError, match="lam must be"):
        solve(prune(sklearn_forest, x, y, costs).problem, np.nan)
