"""Tests of measurements, choice of points and page of the benchmark of budgeted trees."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest
from sklearn.ensemble import RandomForestClassifier

from benchmarks import bench_trees
from benchmarks.data import problems
from benchmarks.data.fetching import find_file
from benchmarks.trees import pages, pruning, timing
from benchmarks.trees.curves import (
    CostAndError,
    PrunedForest,
    average_cheapest,
    choose_at_budgets,
    measure_cost_and_error,
)
from gatewise_training.prune.forest import Forest

pytestmark = pytest.mark.slow  # compiles growth and pruning

needs_shared_data = pytest.mark.skipif(
    find_file("mbne_tiny") is None,
    reason="mbne_tiny.npz is not there: python -m benchmarks.data fetch",
)


@pytest.fixture(scope="module")
def problem_and_fold():
    """Costs and first fold of Breast Cancer."""
    problem = problems.get("breast_cancer")
    return problem.costs, problem.make_folds(0)[0]


@pytest.fixture(scope="module")
def forest(problem_and_fold):
    """A forest of four trees."""
    _, fold = problem_and_fold
    return Forest.from_sklearn(RandomForestClassifier(4, random_state=0).fit(*fold.train))


def make_point(validation, test, fold):
    """Make a point with given (cost, error) on validation and test rows."""
    point = PrunedForest(lambda: None, fold, None)
    vars(point).update(
        validation=CostAndError(*validation), test=CostAndError(*test)
    )  # replaces the computed figures
    return point


def test_points_are_chosen_on_validation_rows(problem_and_fold):
    _, fold = problem_and_fold
    curve = [
        make_point((5.0, 0.10), (5.1, 0.30), fold),
        make_point((3.0, 0.10), (3.2, 0.40), fold),
        make_point((2.0, 0.20), (2.1, 0.01), fold),
    ]
    points = choose_at_budgets(curve, [1.0, 2.5, 9.0])
    # None is affordable, then the cheaper one of two with equal errors
    assert [point and point["error"] for point in points] == [None, 0.01, 0.40]
    assert average_cheapest([curve], 0.05)["cost"] == 3.2
    assert average_cheapest([curve], 0.05, "test")["cost"] == 2.1


def test_cost_and_error_of_a_forest_equal_a_walk_through_its_trees(problem_and_fold, forest):
    costs, fold = problem_and_fold
    X, y = fold.test
    cost, error = measure_cost_and_error(forest, costs, fold.test)
    answers = forest.proba(X).argmax(axis=1)
    is_acquired = np.zeros((len(X), costs.n_features), bool)
    trees = forest.trees
    for row_index, row in enumerate(X):
        for node in trees.roots:
            while trees.feature[node] >= 0:
                feature = trees.feature[node]
                is_acquired[row_index, feature] = True
                goes_left = row[feature] <= trees.threshold[node]
                node = trees.left[node] if goes_left else trees.right[node]
    assert cost == pytest.approx(is_acquired.sum(axis=1).mean())  # each feature costs 1
    assert error == np.mean(answers != y)


def test_solvers_are_timed_on_the_same_problem(problem_and_fold):
    costs, fold = problem_and_fold
    (row,) = timing.measure_solvers(fold, costs, ((3, 100),), 1)
    assert row["trees"] == 3
    assert row["instances"] == 100
    for name in ("highs", "dantzig_wolfe"):
        assert abs(row[name]["above"]) < 1e-9  # exact solvers, apart from rounding
    # a gap bounds the distance from the optimum
    assert row["primal_dual"]["gap"] >= row["primal_dual"]["above"] - 1e-12 >= -2e-12
    for name in ("highs", "dantzig_wolfe", "primal_dual"):
        assert row[name]["cpu"] > 0


def test_no_larger_problem_is_tried_after_highs_reaches_its_limit(problem_and_fold, monkeypatch):
    def raise_time_limit(*_arguments, **_settings):
        raise RuntimeError("time limit reached")

    monkeypatch.setattr(timing.lp, "solve", raise_time_limit)
    costs, fold = problem_and_fold
    (row,) = timing.measure_solvers(fold, costs, ((2, 50), (3, 100)), 1)
    assert row["highs"] == {"stopped": "time limit reached"}


def test_cost_aware_growth_lowers_the_cost(problem_and_fold):
    costs, fold = problem_and_fold
    plain_forest, aware_forest = (
        pruning.grow_forest(fold, costs, 5, 0, criterion="entropy", mu=mu) for mu in (0.0, 0.3)
    )
    assert (
        measure_cost_and_error(aware_forest, costs, fold.test).cost
        < measure_cost_and_error(plain_forest, costs, fold.test).cost
    )


@needs_shared_data
def test_quick_run_writes_all_parts_into_one_page(tmp_path):
    problems.get.cache_clear()
    parts = ("budgetrf", "pruning", "cegb", "adapt")
    options = SimpleNamespace(quick=True)
    sections = {part: bench_trees.BENCHMARK.parts[part](options) for part in parts}
    document = json.loads(json.dumps(bench_trees.merge(tmp_path / "trees.json", sections)))
    _, pruning, cegb, adapt = document["parts"].values()
    assert pruning["figures"]["mbne_tiny"]["objective"]["least_advantage"] >= -1e-12
    points = pruning["tables"]["mbne_tiny"]["points"]
    assert points["ensemble-high"]["cost"] < points["unpruned"]["cost"]
    for part in (pruning, cegb, adapt):
        figure = part["figures"]["mbne_tiny"]
        for curve in figure["curves"].values():
            for point, budget in zip(curve, figure["budgets"], strict=True):
                # both are rounded in the document
                assert point is None or point["val_cost"] <= budget + 1e-5
    page = "\n".join(pages.page(document))
    assert page.count("This was a quick run on few rows.") == 4
    assert "The part `timing` has not been run." in page
    assert "BudgetPrune: entropy forest, pruned as an ensemble" in page
    assert "<svg" in (tmp_path / "trees-mbne_tiny.svg").read_text()
