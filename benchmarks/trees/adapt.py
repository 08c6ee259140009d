"""Figures 2, 4 and 5 of the Adapt paper.

In figure 4, f0 of Adapt-GBRT is a forest that BudgetPrune also prunes. An offloaded instance pays
for the features on its paths through f0. In figure 5, f0 of Adapt-GBRT, Adapt-LIN and the L1
baseline is a forest or a support vector machine.
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

BUDGETS = {
    "mbne_tiny": (8, 12, 16, 20, 25, 30, 36, 42, 50),
    "forest-bin": (8, 10, 12, 14, 16, 18, 20, 23, 27),
    "letter-bin": (8, 9, 10, 11, 12, 13, 14, 15, 16),
}
"""Mean numbers of features, about the range of the axes in the paper."""

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
FIGURES = {"mbne_tiny": FIGURE_4, "forest-bin": FIGURE_4, "letter-bin": tuple(METHODS)}
"""Methods of each problem: those of figure 4, and on Letters also those of figure 5."""


def measure_figure(name: str, *, n_trees: int, n_rounds: int, fold: Fold) -> dict[str, Any]:
    """Fit the methods on one problem and measure them at budgets on test rows."""
    problem = problems.get(name)
    x, y = fold.train
    # f0: the forest and, for figure 5, a support vector machine
    forest = sklearn_forest(fold, n_trees)
    svm = None
    if "adapt-gbrt-svm" in FIGURES[name]:
        scale = 1 / x.shape[1]
        svm = make_pipeline(StandardScaler(), SVC(C=10, gamma=scale, random_state=0)).fit(x, y)
    # each method before its f0, at all budgets
    curves: dict[str, list[dict[str, float] | None]] = {}
    seconds: dict[str, float] = {}
    for method in FIGURES[name]:
        f0 = svm if method.endswith("-svm") else forest
        system = _system(method, f0, problem.costs, n_rounds)
        start = time.process_time()
        system.fit(x, y, validation=fold.validation)
        seconds[method] = round(time.process_time() - start, 2)
        curves[method] = [_figures_at_budget(system, budget, fold) for budget in BUDGETS[name]]
        note(f"adapt: {name}, {method}: {seconds[method]} CPU s")
    test_x, test_y = fold.test
    return {
        "data": problem.source,
        "note": problem.note,
        "n_rounds": n_rounds,
        "n_trees": n_trees,
        "budgets": list(BUDGETS[name]),
        "f0_error": {
            title: round(float(np.mean(model.predict(test_x) != test_y)), 5)
            for title, model in (("forest", forest), ("support vector machine", svm))
            if model is not None
        },
        "f0_cost": round(float(Forest.from_sklearn(forest).cost(test_x, problem.costs).mean()), 5),
        "fit_cpu": seconds,
        "curves": curves,
    }


def _system(method: str, f0: Any, costs: FeatureCosts, n_rounds: int) -> Any:
    """Make a method with the settings of the paper: its gate, and first-order trees of depth 4."""
    common: dict[str, Any] = {"feature_costs": costs, "random_state": 0}
    if method == "budget-prune":
        return BudgetPrune(estimator=f0, pruning_rows="validation", **common)
    tree_settings: dict[str, Any] = {"newton": False, "max_depth": 4, "n_rounds": n_rounds}
    if method == "greedy-miser":
        return GreedyMiser(**tree_settings, **common)
    accounting = "union" if method.endswith("-svm") else "paths"
    common |= {"stop": "gate", "accounting": accounting}
    name = method.removesuffix("-svm")
    if name == "adapt-gbrt":
        return AdaptGBRT(f0, **tree_settings, **common)
    return {"adapt-lin": AdaptLin, "adapt-l1": L1Cascade}[name](f0, **common)


def _figures_at_budget(system: Any, budget: float, fold: Fold) -> dict[str, float] | None:
    """Test figures of the point that validation rows choose within a budget, or None."""
    costs = [point.cost for point in system.frontier_.points]
    if min(costs) > budget:
        return None
    system_at_budget = system.at(budget=budget)
    x, y = fold.test
    return {
        "val_cost": round(system_at_budget.operating_point_.cost, 5),
        "val_error": round(1 - system_at_budget.operating_point_.accuracy, 5),
        "cost": round(float(system_at_budget.cost(x).mean()), 5),
        "error": round(float(np.mean(system_at_budget.predict(x) != y)), 5),
    }


def cheapest_within(curve: Sequence[dict[str, float] | None], max_error: float) -> float | None:
    """Lowest test cost among the points whose test error is at most `max_error`."""
    return min(
        (p["cost"] for p in curve if p is not None and p["error"] <= max_error), default=None
    )


def measure_synthetic(seed: int) -> dict[str, Any]:
    """Measure figure 2: accuracy of Adapt with simple models on Synthetic-1.

    The points of the figure are not published. The points here lie in a square, with a linear
    border on the left and a wave on the right. Features are free, as in the paper. Only f0 reads a
    third column of zeros at price 1, so that the cost is the share of offloaded rows.
    """
    (x, y), validation, (test_x, test_y) = (
        synthetic_1(n, np.random.default_rng((seed, part)))
        for part, n in enumerate((1000, 1000, 4000))
    )
    f0 = SVC(C=100.0, gamma=4.0).fit(x, y)
    common: dict[str, Any] = {
        "feature_costs": FeatureCosts([0.0, 0.0, 1.0]),
        "stop": "gate",
        "p_full": (0.6,),
        "penalties": (1e-3,),
        "random_state": seed,
    }
    tree_settings: dict[str, Any] = {"max_depth": 2, "n_rounds": 10, "newton": False, "warm_up": 3}
    systems = {
        "adapt-lin": AdaptLin(f0, n_starts=0, **common),
        "adapt-gbrt": AdaptGBRT(f0, learning_rate=0.5, **tree_settings, **common),
    }
    points = {}
    for name, system in systems.items():
        system.fit(x, y, validation=validation)
        edge_only, cascade = system.at(budget=0.0), system.at(budget=0.6)
        points[name] = {
            "f1_on_all": float(edge_only.score(test_x, test_y)),
            "accuracy": float(cascade.score(test_x, test_y)),
            "offload_rate": float(cascade.offload(test_x).mean()),
        }
    return {"seed": seed, "f0": float(f0.score(test_x, test_y)), "points": points}


def synthetic_1(n: int, rng: np.random.Generator) -> tuple[Any, Any]:
    """Draw rows on both sides of a border, which is a line on the left and a wave on the right."""
    x = rng.uniform(-1, 1, size=(n, 2))
    border = np.where(x[:, 0] < 0, 0.6 + x[:, 0], 0.6 * np.cos(8 * x[:, 0]))
    return np.column_stack([x, np.zeros(n)]), (x[:, 1] > border).astype(int)
