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
