"""Curves of prunings, chosen on validation rows and reported on test rows.

A curve has the forests of one method. Costs and errors on validation rows are computed for all
forests, those on test rows only for chosen forests.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import numpy as np

from benchmarks.data.folds import Fold, LabelledRows
from gatewise.costs import FeatureCosts
from gatewise_training.prune.forest import Forest

#: Mean numbers of features that an instance may acquire.
BUDGETS = {
    "forest-bin": (2, 3, 4, 6, 8, 10, 12, 14, 16, 18, 20, 23),
    "mbne_tiny": (1, 2, 3, 4, 6, 8, 12, 16, 20, 25, 30, 36),
}

#: Mean numbers of the 400 features of CIFAR-10.
CIFAR_BUDGETS = (20, 40, 60, 80, 100, 130, 160, 200, 240, 280, 320, 400)


def cost_and_error(forest: Forest, costs: FeatureCosts, rows: LabelledRows) -> tuple[float, float]:
    """Compute mean cost, and error of averaged leaf distributions, on some rows."""
    answers = forest.proba(rows[0]).argmax(axis=1)
    return float(forest.cost(rows[0], costs).mean()), float(np.mean(answers != rows[1]))


@dataclass(frozen=True, eq=False)
class PrunedForest:
    """Forest of a curve, with figures that are computed on first use."""

    make: Callable[[], Forest]
    fold: Fold
    costs: FeatureCosts

    @cached_property
    def validation(self) -> tuple[float, float]:
        """Cost and error on validation rows."""
        assert self.fold.validation is not None
        return cost_and_error(self.make(), self.costs, self.fold.validation)

    @cached_property
    def test(self) -> tuple[float, float]:
        """Cost and error on test rows."""
        return cost_and_error(self.make(), self.costs, self.fold.test)


@dataclass(eq=False)
class Curve:
    """Forests of one method."""

    points: list[PrunedForest] = field(default_factory=list)

    @classmethod
    def from_sequence(
        cls, forest: Forest, sequence: Any, fold: Fold, costs: FeatureCosts, n_points: int
    ) -> Curve:
        """Measure `n_points` prunings of a sequence, about evenly spaced in cost."""
        masks = map(sequence.kept_at, sequence.evenly_spaced_levels(n_points))
        return cls([PrunedForest(partial(forest.pruned, mask), fold, costs) for mask in masks])

    def __add__(self, other: Curve) -> Curve:
        return Curve(self.points + other.points)

    def choose_within_budget(self, budget: float) -> PrunedForest | None:
        """Choose the forest with the smallest error on validation rows, and of equals the cheapest.

        Only forests within the `budget` on validation rows are considered.
        """
        affordable_forests = [
            pruned_forest
            for pruned_forest in self.points
            if pruned_forest.validation[0] <= budget + 1e-9
        ]
        return min(
            affordable_forests,
            key=lambda pruned_forest: pruned_forest.validation[::-1],
            default=None,
        )

    def choose_within_error(self, max_error: float) -> PrunedForest | None:
        """Choose the cheapest forest with at most this error on validation rows."""
        accurate_forests = [
            pruned_forest
            for pruned_forest in self.points
            if pruned_forest.validation[1] <= max_error + 1e-12
        ]
        return min(
            accurate_forests, key=lambda pruned_forest: pruned_forest.validation, default=None
        )


def at_budgets(curves: Sequence[Curve], budgets: Sequence[float]) -> list[dict[str, float] | None]:
    """Average the figures of the choice at each budget over folds; None without a choice."""
    rows: list[dict[str, float] | None] = []
    for budget in budgets:
        forests = [curve.choose_within_budget(budget) for curve in curves]
        rows.append(_pooled(forests))
    return rows


def cheapest_within(curves: Sequence[Curve], errors: Sequence[float]) -> dict[str, float] | None:
    """Average the figures of the cheapest forests within validation errors, one per fold."""
    return _pooled(
        [curve.choose_within_error(error) for curve, error in zip(curves, errors, strict=True)]
    )


def cheapest_on_test(curves: Sequence[Curve], loss: float) -> dict[str, float] | None:
    """Average the figures of the cheapest forests that lose at most `loss` on test rows.

    The test rows of each fold choose the forest, which a deployed system cannot do.
    """
    forests = []
    for curve in curves:
        max_error = curve.points[0].test[1] + loss
        accurate_forests = [
            forest for forest in curve.points if forest.test[1] <= max_error + 1e-12
        ]
        forests.append(min(accurate_forests, key=lambda forest: forest.test, default=None))
    return _pooled(forests)


def _pooled(forests: Sequence[PrunedForest | None]) -> dict[str, float] | None:
    chosen_forests = [forest for forest in forests if forest is not None]
    if len(chosen_forests) < len(forests) or not chosen_forests:
        return None
    weights = [len(forest.fold.test_truth) for forest in chosen_forests]
    validation, test = (
        [getattr(forest, row_set) for forest in chosen_forests]
        for row_set in ("validation", "test")
    )
    means = [
        float(mean) for mean in np.average(np.hstack([validation, test]), axis=0, weights=weights)
    ]
    keys = ("val_cost", "val_error", "cost", "error")
    return {name: round(mean, 5) for name, mean in zip(keys, means, strict=True)}
