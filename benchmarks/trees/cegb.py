"""Figures 2 and 3b of the CEGB paper, with points chosen on validation rows."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from benchmarks.comparison.record import Point
from benchmarks.comparison.systems import system_points
from benchmarks.data import problems
from benchmarks.data.folds import Fold
from benchmarks.trees.curves import BUDGETS
from gatewise.console import note
from gatewise_training.adapt.greedy_miser import GreedyMiser
from gatewise_training.cegb.classifier import CEGBClassifier

METHODS = {
    "lazy": "CEGB, lazy prices, best-first",
    "coupled": "CEGB, coupled prices, best-first",
    "miser": "GreedyMiser, as in its paper: first-order, depth 4, ten times the rounds",
    "lazy-16-best": "CEGB, lazy, best-first, 16 leaves, all rounds",
    "lazy-16-breadth": "CEGB, lazy, breadth-first to depth 4, all rounds",
}
"""Figure 2 has the first three methods. Figure 3b has the last two with equal leaves and trees."""

MISER_RATES = (0.1, 1.0)
"""Learning rates of GreedyMiser; its paper and the CEGB paper search them also."""


def measure_figures(name: str, *, n_rounds: int, n_penalties: int, fold: Fold) -> dict[str, Any]:
    """Fit every method on one problem.

    Figure 3b has exactly `n_rounds` rounds, figure 2 at most that number. GreedyMiser has ten times
    the rounds, because its paper and the CEGB paper use 1,000 trees. Validation rows choose among
    the points of both of its learning rates.
    """
    problem = problems.get(name)
    common_settings: dict[str, Any] = {
        "feature_costs": problem.costs,
        "n_rounds": n_rounds,
        "random_state": 0,
    }
    sweep_settings = common_settings | {"n_penalties": n_penalties}
    fixed_tree_settings = sweep_settings | {"patience": None, "num_leaves": 16}
    misers = [
        GreedyMiser(
            penalties=miser_penalties(n_penalties),
            newton=False,
            max_depth=4,
            learning_rate=learning_rate,
            **common_settings | {"n_rounds": 10 * n_rounds},
        )
        for learning_rate in MISER_RATES
    ]
    systems = {
        "lazy": [CEGBClassifier(accounting="lazy", **sweep_settings)],
        "coupled": [CEGBClassifier(accounting="coupled", **sweep_settings)],
        "miser": misers,
        "lazy-16-best": [CEGBClassifier(growth="best-first", **fixed_tree_settings)],
        "lazy-16-breadth": [CEGBClassifier(growth="breadth-first", **fixed_tree_settings)],
    }
    curves: dict[str, list[dict[str, float] | None]] = {}
    fit_seconds: dict[str, float] = {}
    for method, variants in systems.items():
        points: list[Point] = []
        start_time = time.process_time()
        for system in variants:
            system.fit(*fold.train, validation=fold.validation)
            points += system_points(system, fold)
        fit_seconds[method] = round(time.process_time() - start_time, 2)
        curves[method] = [_figures_at_budget(points, budget) for budget in BUDGETS[name]]
        note(f"cegb: {name}, {method}: {fit_seconds[method]} CPU s")
    return {
        "data": problem.source,
        "note": problem.note,
        "n_rounds": n_rounds,
        "n_penalties": n_penalties,
        "miser_rounds": 10 * n_rounds,
        "budgets": list(BUDGETS[name]),
        "fit_cpu": fit_seconds,
        "curves": curves,
    }


def miser_penalties(n_penalties: int) -> list[float]:
    """Penalties of GreedyMiser on a log scale, from few features to no effect."""
    highest = 0.1
    lowest = 1e-5
    n_steps = max(n_penalties - 1, 1)
    return [highest * (lowest / highest) ** (i / n_steps) for i in range(n_penalties)]


def _figures_at_budget(points: Sequence[Point], budget: float) -> dict[str, float] | None:
    """Figures of the most accurate point within a budget on validation rows, or None."""
    affordable_points = [point for point in points if point.val_cost <= budget + 1e-9]
    if not affordable_points:
        return None
    best_point = max(affordable_points, key=lambda point: (point.val_accuracy, -point.val_cost))
    return {
        "val_cost": round(best_point.val_cost, 5),
        "val_error": round(1 - best_point.val_accuracy, 5),
        "cost": round(best_point.cost, 5),
        "error": round(1 - best_point.accuracy, 5),
    }
