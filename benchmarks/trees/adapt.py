"""Figures 2, 4 and 5 of the Adapt paper.

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
from benchmarks.trees.pruning import sklearn_forest
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
    forest = sklearn_forest(fold, n_trees)
    svm = None
    if "adapt-gbrt-svm" in FIGURES[problem_name]:
        # columns are standardised, so the kernel's exponent has mean 2 for any number of them
        gamma = 1 / train_rows.shape[1]
        svm = make_pipeline(StandardScaler(), SVC(C=10, gamma=gamma, random_state=0)).fit(
            train_rows, train_classes
        )
    # each method before its high-cost model, at all budgets
    curves: dict[str, list[dict[str, float] | None]] = {}
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


def _measure_at_budget(system: Any, budget: float, fold: Fold) -> dict[str, float] | None:
    """Measure on test rows the point that validation rows choose within a budget.

    Return None if every point costs more.
    """
    costs = [point.cost for point in system.frontier_.points]
    if min(costs) > budget:
        return None
    system_at_budget = system.at(budget=budget)
    test_rows, test_classes = fold.test
    return {
        "val_cost": round(system_at_budget.operating_point_.cost, 5),
        "val_error": round(1 - system_at_budget.operating_point_.accuracy, 5),
        "cost": round(float(system_at_budget.cost(test_rows).mean()), 5),
        "error": round(float(np.mean(system_at_budget.predict(test_rows) != test_classes)), 5),
    }


def find_lowest_cost(curve: Sequence[dict[str, float] | None], max_error: float) -> float | None:
    """Find the lowest test cost among the points whose test error is at most `max_error`."""
    return min(
        (point["cost"] for point in curve if point is not None and point["error"] <= max_error),
        default=None,
    )


def measure_synthetic(seed: int) -> dict[str, Any]:
    """Measure figure 2: accuracy of Adapt with simple models on Synthetic-1.

    The points of the figure are not published; see :func:`draw_synthetic_1` for those drawn here.
    Features are free, as in the paper. Only f0 reads a third column of zeros at price 1. The cost
    is therefore the share of offloaded rows.
    """
    (rows, classes), validation, (test_rows, test_classes) = (
        draw_synthetic_1(n_rows, np.random.default_rng((seed, part)))
        for part, n_rows in enumerate((1000, 1000, 4000))  # more test rows, for a small error
    )
    # narrow kernels and a weak penalty, so that f0 follows the wave
    high_cost_model = SVC(C=100.0, gamma=4.0).fit(rows, classes)
    common_settings: dict[str, Any] = {
        "feature_costs": FeatureCosts([0.0, 0.0, 1.0]),
        "stop": "gate",
        "p_full": (0.6,),
        "penalties": (1e-3,),
        "random_state": seed,
    }
    # few small trees, which cannot follow the wave themselves
    tree_settings: dict[str, Any] = {"max_depth": 2, "n_rounds": 10, "newton": False, "warm_up": 3}
    systems = {
        "adapt-lin": AdaptLin(high_cost_model, n_starts=0, **common_settings),
        "adapt-gbrt": AdaptGBRT(
            high_cost_model, learning_rate=0.5, **tree_settings, **common_settings
        ),
    }
    figures_of_method = {}
    # at budget 0 no row is offloaded, at 0.6 at most the share P_full of the paper
    for method, system in systems.items():
        system.fit(rows, classes, validation=validation)
        edge_only, cascade = system.at(budget=0.0), system.at(budget=0.6)
        figures_of_method[method] = {
            "f1_on_all": float(edge_only.score(test_rows, test_classes)),
            "accuracy": float(cascade.score(test_rows, test_classes)),
            "offload_rate": float(cascade.offload(test_rows).mean()),
        }
    return {
        "seed": seed,
        "f0": float(high_cost_model.score(test_rows, test_classes)),
        "points": figures_of_method,
    }


def draw_synthetic_1(n_rows: int, rng: np.random.Generator) -> tuple[Any, Any]:
    """Draw rows of a square, and their classes, which a line and a wave separate.

    With the coordinates u and v in [-1, 1], the class is 1 above the border:

        v > 0.6 + u         if u < 0, which a linear f1 can follow
        v > 0.6 cos(8 u)    otherwise, which only f0 can follow

    Both parts meet at u = 0. A row has the columns u, v and 0.
    """
    u, v = rng.uniform(-1, 1, size=(n_rows, 2)).T
    border = np.where(u < 0, 0.6 + u, 0.6 * np.cos(8 * u))
    return np.column_stack([u, v, np.zeros(n_rows)]), (v > border).astype(int)
