"""Curves of prunings, chosen on validation rows and reported on test rows.

A curve has the forests of one method. Costs and errors on validation rows are computed for all
forests, those on test rows only for chosen forests.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from benchmarks.data.folds import Fold, Table
from gatewise.costs import FeatureCosts
from gatewise_training.prune.forest import Forest

BUDGETS = {
    "forest-bin": (2, 3, 4, 6, 8, 10, 12, 14, 16, 18, 20, 23),
    "mbne_tiny": (1, 2, 3, 4, 6, 8, 12, 16, 20, 25, 30, 36),
}
"""Mean numbers of features that an instance may acquire."""

CIFAR_BUDGETS = (20, 40, 60, 80, 100, 130, 160, 200, 240, 280, 320, 400)


def measured(forest: Forest, costs: FeatureCosts, rows: Table) -> tuple[float, float]:
    """Mean cost, and error of averaged leaf distributions, on some rows."""
    answers = forest.proba(rows[0]).argmax(axis=1)
    return float(forest.cost(rows[0], costs).mean()), float(np.mean(answers != rows[1]))


@dataclass(frozen=True, eq=False)
class Made:
    """Forest of a curve, with figures that are computed on first use."""

    make: Callable[[], Forest]
    fold: Fold
    costs: FeatureCosts

    @cached_property
    def validation(self) -> tuple[float, float]:
        """Cost and error on validation rows."""
        assert self.fold.validation is not None
        return measured(self.make(), self.costs, self.fold.validation)

    @cached_property
    def test(self) -> tuple[float, float]:
        """Cost and error on test rows."""
        return measured(self.make(), self.costs, self.fold.test)


@dataclass(eq=False)
class Curve:
    """Forests of one method."""

    points: list[Made] = field(default_factory=list)

    @classmethod
    def of(
        cls, forest: Forest, sequence: Any, fold: Fold, costs: FeatureCosts, n_points: int
    ) -> Curve:
        """Curve of `n_points` prunings of a sequence, about evenly spaced in cost."""
        return cls(
            [
                Made(lambda level=level: forest.pruned(sequence.keep(level)), fold, costs)
                for level in sequence.thinned(n_points)
            ]
        )

    def __add__(self, other: Curve) -> Curve:
        return Curve(self.points + other.points)

    def at(self, budget: float) -> Made | None:
        """Most accurate forest within a budget on validation rows; the cheaper one of equals."""
        within = [p for p in self.points if p.validation[0] <= budget + 1e-9]
        return min(within, key=lambda p: p.validation[::-1], default=None)

    def within(self, error: float) -> Made | None:
        """Cheapest forest with at most this error on validation rows."""
        good = [p for p in self.points if p.validation[1] <= error + 1e-12]
        return min(good, key=lambda p: p.validation, default=None)


def at_budgets(curves: Sequence[Curve], budgets: Sequence[float]) -> list[dict[str, float] | None]:
    """Figures of the choice at each budget as means over folds; None without a choice."""
    rows: list[dict[str, float] | None] = []
    for budget in budgets:
        points_of_curves = [curve.at(budget) for curve in curves]
        rows.append(_pooled(points_of_curves))
    return rows


def cheapest_within(curves: Sequence[Curve], errors: Sequence[float]) -> dict[str, float] | None:
    """Figures of the cheapest forests within validation errors, one error per fold."""
    return _pooled([c.within(e) for c, e in zip(curves, errors, strict=True)])


def cheapest_on_test(curves: Sequence[Curve], loss: float) -> dict[str, float] | None:
    """Figures of the cheapest forests that lose at most `loss` on test rows.

    The test rows of each fold choose the forest, which a deployed system cannot do.
    """
    chosen = []
    for curve in curves:
        error = curve.points[0].test[1] + loss
        within = [point for point in curve.points if point.test[1] <= error + 1e-12]
        chosen.append(min(within, key=lambda point: point.test, default=None))
    return _pooled(chosen)


def _pooled(chosen: Sequence[Made | None]) -> dict[str, float] | None:
    points_within = [point for point in chosen if point is not None]
    if len(points_within) < len(chosen) or not points_within:
        return None
    sizes = [len(point.fold.truth) for point in points_within]
    held, test = ([getattr(p, part) for p in points_within] for part in ("validation", "test"))
    figures = [float(v) for v in np.average(np.hstack([held, test]), axis=0, weights=sizes)]
    names = ("val_cost", "val_error", "cost", "error")
    return {name: round(v, 5) for name, v in zip(names, figures, strict=True)}
