"""Curves of prunings, chosen on validation rows and reported on test rows.

A curve is the list of the forests of one method. Costs and errors on validation rows are computed
for all forests, those on test rows only for chosen forests.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Literal, NamedTuple

import numpy as np

from benchmarks.data.folds import Fold, LabelledRows
from gatewise.costs import FeatureCosts
from gatewise_training.prune.forest import Forest

#: Mean numbers of features that an instance may acquire.
BUDGETS = {
    "forest-bin": (2, 3, 4, 6, 8, 10, 12, 14, 16, 18, 20, 23),
    "mbne_tiny": (1, 2, 3, 4, 6, 8, 12, 16, 20, 25, 30, 36),
}

#: Cost and error of a point of a curve on validation rows and on test rows.
CurvePoint = dict[str, float]


class CostAndError(NamedTuple):
    """Mean cost of a forest, and error of its averaged leaf distributions, on some rows."""

    cost: float
    error: float


def measure_cost_and_error(
    forest: Forest, costs: FeatureCosts, labelled_rows: LabelledRows
) -> CostAndError:
    """Measure a forest on some rows."""
    rows, classes = labelled_rows
    answers = forest.proba(rows).argmax(axis=1)
    cost = float(forest.cost(rows, costs).mean())
    return CostAndError(cost, float(np.mean(answers != classes)))


def make_curve_point(*figures: float) -> CurvePoint:
    """Name and round cost and error on validation rows, then on test rows."""
    names = ("val_cost", "val_error", "cost", "error")
    return {name: round(float(figure), 5) for name, figure in zip(names, figures, strict=True)}


@dataclass(frozen=True, eq=False)
class PrunedForest:
    """Forest of a curve, with figures that are computed on first use."""

    make_forest: Callable[[], Forest]
    fold: Fold
    costs: FeatureCosts

    @cached_property
    def validation(self) -> CostAndError:
        """Figures on validation rows."""
        assert self.fold.validation is not None
        return measure_cost_and_error(self.make_forest(), self.costs, self.fold.validation)

    @cached_property
    def test(self) -> CostAndError:
        """Figures on test rows."""
        return measure_cost_and_error(self.make_forest(), self.costs, self.fold.test)


Curve = list[PrunedForest]


def make_curve(
    forest: Forest, sequence: Any, fold: Fold, costs: FeatureCosts, n_points: int
) -> Curve:
    """Measure `n_points` prunings of a sequence, about evenly spaced in cost."""
    masks = map(sequence.kept_at, sequence.evenly_spaced_levels(n_points))
    return [PrunedForest(partial(forest.pruned, mask), fold, costs) for mask in masks]


def choose_at_budgets(curve: Curve, budgets: Sequence[float]) -> list[CurvePoint | None]:
    """Choose the forest with the smallest validation error within each budget, or None.

    Of forests with equal errors, the cheapest is chosen.
    """
    points: list[CurvePoint | None] = []
    for budget in budgets:
        affordable_forests = [forest for forest in curve if forest.validation.cost <= budget + 1e-9]
        best_forest = min(
            affordable_forests,
            key=lambda forest: (forest.validation.error, forest.validation.cost),
            default=None,
        )
        points.append(
            None
            if best_forest is None
            else make_curve_point(*best_forest.validation, *best_forest.test)
        )
    return points


def average_cheapest(
    curves: Sequence[Curve], loss: float, row_set: Literal["validation", "test"] = "validation"
) -> CurvePoint:
    """Average the figures of the cheapest forests that lose at most `loss`, one per fold.

    Each curve begins with the unpruned forest, with which the others are compared. With
    ``row_set="test"`` the test rows choose the forests, which a deployed system cannot do.
    """
    forests = []
    for curve in curves:
        max_error = getattr(curve[0], row_set).error + loss + 1e-12
        accurate_forests = [
            forest for forest in curve if getattr(forest, row_set).error <= max_error
        ]
        forests.append(min(accurate_forests, key=lambda forest: getattr(forest, row_set)))
    weights = [len(forest.fold.test_truth) for forest in forests]
    figures = [[*forest.validation, *forest.test] for forest in forests]
    return make_curve_point(*np.average(figures, axis=0, weights=weights))
