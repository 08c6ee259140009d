"""Reproduce figures 2 and 3b of the paper on cost-efficient gradient boosting (CEGB).

Both plot the error against the cost. Points are chosen on validation rows.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from benchmarks.comparison.record import Point
from benchmarks.comparison.summary import pick_budget
from benchmarks.comparison.systems import system_points
from benchmarks.data import problems
from benchmarks.data.folds import Fold
from benchmarks.trees.curves import BUDGETS, CurvePoint, make_curve_point
from gatewise.console import note
from gatewise.costs import FeatureCosts
from gatewise_training.adapt.greedy_miser import GreedyMiser
from gatewise_training.cegb.classifier import CEGBClassifier

#: Titles of the methods. Figure 2 has the first three. Figure 3b compares the last two, with equal
#: numbers of leaves and trees.
METHODS = {
    "lazy": "CEGB, lazy prices, best-first",
    "coupled": "CEGB, coupled prices, best-first",
    "miser": "GreedyMiser, as in its paper: first-order, depth 4, ten times the rounds",
    "lazy-16-best": "CEGB, lazy, best-first, 16 leaves, all rounds",
    "lazy-16-breadth": "CEGB, lazy, breadth-first to depth 4, all rounds",
}

#: Learning rates of GreedyMiser; both papers also search these rates.
MISER_RATES = (0.1, 1.0)

#: GreedyMiser has this many times the rounds of CEGB, because both papers give it 1,000 trees.
MISER_ROUNDS_FACTOR = 10


def measure_figures(name: str, *, n_rounds: int, n_penalties: int, fold: Fold) -> dict[str, Any]:
    """Fit every method on one problem.

    Methods of figure 3b have exactly `n_rounds` rounds. CEGB of figure 2 has at most that number,
    and GreedyMiser MISER_ROUNDS_FACTOR times as many. The CPU time of a method
    includes the evaluation of its points.
    """
    problem = problems.get(name)
    systems_by_method = _make_systems(problem.costs, n_rounds, n_penalties)
    curves: dict[str, list[CurvePoint | None]] = {}
    cpu_seconds: dict[str, float] = {}
    for method in METHODS:
        points: list[Point] = []
        start_time = time.process_time()
        for system in systems_by_method[method]:
            system.fit(*fold.train, validation=fold.validation)
            points += system_points(system, fold)
        cpu_seconds[method] = round(time.process_time() - start_time, 2)
        curves[method] = [_choose_at_budget(points, budget) for budget in BUDGETS[name]]
        note(f"cegb: {name}, {method}: {cpu_seconds[method]} CPU s")
    return {
        "data": problem.source,
        "note": problem.note,
        "n_rounds": n_rounds,
        "n_penalties": n_penalties,
        "miser_rounds": MISER_ROUNDS_FACTOR * n_rounds,
        "budgets": list(BUDGETS[name]),
        "fit_cpu": cpu_seconds,
        "curves": curves,
    }


def _make_systems(costs: FeatureCosts, n_rounds: int, n_penalties: int) -> dict[str, list[Any]]:
    """Make the systems of each method, whose points are put together."""
    common_settings: dict[str, Any] = {"feature_costs": costs, "random_state": 0}
    sweep_settings = common_settings | {"n_rounds": n_rounds, "n_penalties": n_penalties}
    fixed_tree_settings = sweep_settings | {"patience": None, "num_leaves": 16}
    misers = [
        GreedyMiser(
            # from few features to no effect
            penalties=np.geomspace(0.1, 1e-5, n_penalties).tolist(),
            newton=False,
            max_depth=4,
            learning_rate=learning_rate,
            n_rounds=MISER_ROUNDS_FACTOR * n_rounds,
            **common_settings,
        )
        for learning_rate in MISER_RATES
    ]
    return {
        "lazy": [CEGBClassifier(accounting="lazy", **sweep_settings)],
        "coupled": [CEGBClassifier(accounting="coupled", **sweep_settings)],
        "miser": misers,
        "lazy-16-best": [CEGBClassifier(growth="best-first", **fixed_tree_settings)],
        "lazy-16-breadth": [CEGBClassifier(growth="breadth-first", **fixed_tree_settings)],
    }


def _choose_at_budget(points: list[Point], budget: float) -> CurvePoint | None:
    """Find costs and errors of the most accurate point on validation rows within a budget.

    Return None if every point costs more.
    """
    if min(point.val_cost for point in points) > budget:
        return None
    point = pick_budget(points, budget)
    return make_curve_point(point.val_cost, 1 - point.val_accuracy, point.cost, 1 - point.accuracy)
