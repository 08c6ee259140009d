"""Figures 4 and 5 of the Adapt paper.

In figure 4, f0 of Adapt-GBRT is a forest that BudgetPrune also prunes. An offloaded instance pays
for the features on its paths through f0. In figure 5, f0 of Adapt-GBRT, Adapt-LIN and the L1
baseline is a forest or a support vector machine.

The paper has plots without numbers, so the pages compare curves and not single figures.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from benchmarks.data import problems
from benchmarks.data.folds import Fold
from benchmarks.trees.curves import CurvePoint, make_curve_point
from benchmarks.trees.pruning import fit_sklearn_forest
from gatewise.console import note
from gatewise.costs import FeatureCosts
from gatewise_training import AdaptGBRT, AdaptLin, BudgetPrune, GreedyMiser, L1Cascade
from gatewise_training.prune.forest import Forest

#: Mean numbers of features by problem, about the range of the axes in the paper.
BUDGETS = {
    "mbne_tiny": (8, 12, 16, 20, 25, 30, 36, 42, 50),
    "forest-bin": (8, 10, 12, 14, 16, 18, 20, 23, 27),
    "letter-bin": (8, 9, 10, 11, 12, 13, 14, 15, 16),
}

METHODS = {
    "adapt-gbrt": "Adapt-GBRT before the forest",
    "adapt-lin": "Adapt-LIN before the forest",
    "adapt-l1": "the L1 baseline before the forest",
    "adapt-gbrt-svm": "Adapt-GBRT before the support vector machine",
    "adapt-lin-svm": "Adapt-LIN before the support vector machine",
    "adapt-l1-svm": "the L1 baseline before the support vector machine",
    "budget-prune": "BudgetPrune of the forest",
    "greedy-miser": "GreedyMiser",
}
FIGURE_4 = ("adapt-gbrt", "budget-prune", "greedy-miser")
#: Methods of each problem: those of figure 4, and on Letters also those of figure 5.
#:
#: The suffix ``-svm`` of a method means that its f0 is the support vector machine.
FIGURES = {"mbne_tiny": FIGURE_4, "forest-bin": FIGURE_4, "letter-bin": tuple(METHODS)}


def measure_figure(problem_name: str, *, n_trees: int, n_rounds: int, fold: Fold) -> dict[str, Any]:
    """Fit the methods on one problem and measure them at budgets on test rows."""
    problem = problems.get(problem_name)
    budgets = BUDGETS[problem_name]
    train_rows, train_classes = fold.train
    # high-cost models: the forest and, for figure 5, a support vector machine
    forest = fit_sklearn_forest(fold, n_trees)
    svm = None
    if "adapt-gbrt-svm" in FIGURES[problem_name]:
        # columns are standardised, so the kernel's exponent has mean 2 for any number of them
        gamma = 1 / train_rows.shape[1]
        svm = make_pipeline(StandardScaler(), SVC(C=10, gamma=gamma, random_state=0)).fit(
            train_rows, train_classes
        )
    # each method before its high-cost model, at all budgets
    curves: dict[str, list[CurvePoint | None]] = {}
    fit_seconds: dict[str, float] = {}
    for method in FIGURES[problem_name]:
        high_cost_model = svm if method.endswith("-svm") else forest
        system = _make_system(method, high_cost_model, problem.costs, n_rounds)
        start_time = time.process_time()  # CPU time, because other work shares the machine
        system.fit(train_rows, train_classes, validation=fold.validation)
        fit_seconds[method] = round(time.process_time() - start_time, 2)
        curves[method] = [_measure_at_budget(system, budget, fold) for budget in budgets]
        note(f"adapt: {problem_name}, {method}: {fit_seconds[method]} CPU s")
    test_rows, test_classes = fold.test
    return {
        "data": problem.source,
        "note": problem.note,
        "n_rounds": n_rounds,
        "n_trees": n_trees,
        "budgets": list(budgets),
        "f0_error": {
            title: round(float(np.mean(model.predict(test_rows) != test_classes)), 5)
            for title, model in (("forest", forest), ("support vector machine", svm))
            if model is not None
        },
        # an instance pays the forest only for the features on its paths
        "f0_cost": round(
            float(Forest.from_sklearn(forest).cost(test_rows, problem.costs).mean()), 5
        ),
        "fit_cpu": fit_seconds,
        "curves": curves,
    }


def _make_system(method: str, high_cost_model: Any, costs: FeatureCosts, n_rounds: int) -> Any:
    """Make a method with the settings of the paper: its gate, and first-order trees of depth 4."""
    common_settings: dict[str, Any] = {"feature_costs": costs, "random_state": 0}
    if method == "budget-prune":
        return BudgetPrune(estimator=high_cost_model, pruning_rows="validation", **common_settings)
    tree_settings: dict[str, Any] = {"newton": False, "max_depth": 4, "n_rounds": n_rounds}
    if method == "greedy-miser":
        return GreedyMiser(**tree_settings, **common_settings)
    # a support vector machine reads all features; a forest reads those on an instance's paths
    accounting = "union" if method.endswith("-svm") else "paths"
    common_settings |= {"stop": "gate", "accounting": accounting}
    low_cost_method = method.removesuffix("-svm")
    if low_cost_method == "adapt-gbrt":
        return AdaptGBRT(high_cost_model, **tree_settings, **common_settings)
    linear_class = {"adapt-lin": AdaptLin, "adapt-l1": L1Cascade}[low_cost_method]
    return linear_class(high_cost_model, **common_settings)


def _measure_at_budget(system: Any, budget: float, fold: Fold) -> CurvePoint | None:
    """Measure on test rows the point that validation rows choose within a budget.

    Return None if every point costs more.
    """
    if min(point.cost for point in system.frontier_.points) > budget:
        return None
    system_at_budget = system.at(budget=budget)
    point = system_at_budget.operating_point_
    rows, classes = fold.test
    error = np.mean(system_at_budget.predict(rows) != classes)
    return make_curve_point(
        point.cost, 1 - point.accuracy, system_at_budget.cost(rows).mean(), error
    )


def find_lowest_cost(curve: Sequence[CurvePoint | None], max_error: float) -> float | None:
    """Find the lowest test cost among the points whose test error is at most `max_error`."""
    return min(
        (point["cost"] for point in curve if point is not None and point["error"] <= max_error),
        default=None,
    )
