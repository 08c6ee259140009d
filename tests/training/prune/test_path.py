"""Minimum cuts and the complete frontier: against brute force and against single solves."""

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
from gatewise_training.prune.path import breakpoints, breakpoints_by
from gatewise_training.prune.presolve import reduce_problem
from gatewise_training.prune.solvers.mincut import best_closure, solve

pytestmark = pytest.mark.slow  # compiles all ways to prune


def test_reductions_leave_the_optimum():
    x, y = load_digits(return_X_y=True)
    grown = RandomForestClassifier(5, random_state=0).fit(x[:900], y[:900])
    rows = x[900:1300].astype(np.float32)
    problem = build_problem(Forest.from_sklearn(grown), rows, FeatureCosts.uniform(64))
    closure, place = reduce_problem(problem)
    assert closure.n_nodes < 0.5 * problem.n_nodes
    assert closure.column_price.sum() + closure.price.sum() == pytest.approx(
        problem.cost((place >= 0) | (place == -1))
    )
    for lam in (1e-3, 1e-2):
        kept, flow, _ = best_closure(closure, lam)
        worth = closure.profit[kept].sum() - lam * (
            closure.price[kept].sum() + closure.column_price[closure.acquired(kept)].sum()
        )
        assert worth == pytest.approx(closure.worth - flow, abs=1e-12)
        keep = np.append(kept, [False, True])[place]
        assert problem.objective(keep, lam) == pytest.approx(solve(problem, lam).objective)


@pytest.fixture(scope="module")
def cancer():
    x, y = load_breast_cancer(return_X_y=True)
    names = np.array(["benign", "malignant"])[y]
    grown = RandomForestClassifier(10, random_state=0).fit(x[:400], names[:400])
    return grown, x[400:], names[400:], FeatureCosts(np.linspace(0.5, 2, 30))


def test_the_path_is_measured_by_its_forests(cancer):
    grown, x, y, costs = cancer
    path = prune(grown, x, y, costs)
    table = path.frontier()
    assert len(path) == len(table["cost"]) > 10
    assert (np.diff(table["cost"]) <= 0).all()
    assert (np.diff(table["training_error"]) >= 0).all()
    for at in range(0, len(path), 5):
        forest = path.forest.pruned(path.breakpoints > table["lam"][at])
        rows = x.astype(np.float32)
        assert table["cost"][at] == pytest.approx(forest.cost(rows, costs).mean())
        said = grown.classes_[forest.proba(rows).argmax(axis=1)]
        assert table["accuracy"][at] == pytest.approx(np.mean(said == y))


def test_points_by_price_and_by_budget(cancer):
    grown, x, y, costs = cancer
    path = prune(grown, x, y, costs)
    for lam in (0.0, 0.002, 0.01):
        point = path.at(lam=lam)
        assert point.objective == pytest.approx(solve(path.problem, lam).objective, abs=1e-12)
        assert point.objective == pytest.approx(point.training_error + lam * point.cost)
    costliest = path.at(lam=0.0).cost
    for budget in (0.0, 0.3 * costliest, 0.7 * costliest, 2 * costliest):
        point = path.at(budget=budget)
        assert point.cost <= budget + 1e-9
        costlier = [c for c in path.frontier(5)["cost"] if point.cost + 1e-9 < c <= budget]
        assert not costlier
    with pytest.raises(InputError, match="exactly one"):
        path.at()
    with pytest.raises(InputError, match="at most -1"):
        path.at(budget=-1.0)


@pytest.mark.parametrize("free_columns", [[], [0, 7, 20, 21, 22, 23, 27]])
def test_breakpoints_of_parts_are_those_of_the_whole_problem(cancer, free_columns):
    """Free columns make nodes that stay at every price, rare labels nodes that save nothing."""
    _, x, _, costs = cancer
    rare = np.random.default_rng(0).random(len(x)) < 0.15
    grown = RandomForestClassifier(10, max_depth=4, random_state=0).fit(x, rare)
    prices = costs.own.copy()
    prices[free_columns] = 0.0
    rows = x[:60].astype(np.float32)
    problem = build_problem(Forest.from_sklearn(grown), rows, FeatureCosts(prices))
    of_parts = breakpoints(problem)
    np.testing.assert_allclose(of_parts, breakpoints_by(solve, problem), rtol=1e-9)
    assert (of_parts[~problem.inner] == -np.inf).all()
    assert (of_parts[problem.inner] == 0.0).any()
    assert np.isinf(of_parts[problem.inner]).any() == bool(free_columns)


def test_within_a_budget_a_gap_of_the_hull_is_filled(cancer):
    grown, x, y, costs = cancer
    path = prune(grown, x, y, costs)
    budgets = np.linspace(path.at(lam=1.0).cost, path.at(lam=0.0).cost, 40)
    filled = [path.within(budget=budget) for budget in budgets]
    on_hull = [path.at(budget=budget) for budget in budgets]
    assert all(point.cost <= budget + 1e-9 for point, budget in zip(filled, budgets, strict=True))
    errors = np.array([point.training_error for point in filled])
    hull_errors = np.array([point.training_error for point in on_hull])
    assert (errors <= hull_errors + 1e-12).all()
    assert (errors < hull_errors - 1e-12).any()
    wide_gap = [path.within(budget=budget, gap=np.inf).training_error for budget in budgets]
    np.testing.assert_allclose(wide_gap, hull_errors)


def test_bad_input_is_refused(cancer):
    grown, x, y, costs = cancer
    with pytest.raises(InputError, match="no solver 'magic'"):
        prune(grown, x, y, costs, solver="magic")
    with pytest.raises(InputError, match="the forest has no class 'other'"):
        prune(grown, x, np.where(y == "benign", y, "other"), costs)
    with pytest.raises(InputError, match="all three must agree"):
        prune(grown, x[:, :5], y, costs)
    with pytest.raises(InputError, match="not LogisticRegression"):
        prune(LogisticRegression(), x, y, costs)
    with pytest.raises(InputError, match="depth_cost"):
        prune(grown, x, y, costs, depth_cost=-1.0)
    with pytest.raises(InputError, match="lam must be"):
        solve(prune(grown, x, y, costs).problem, np.nan)
