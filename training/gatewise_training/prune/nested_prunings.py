"""Nested prunings, from the whole forest to single leaves, and prunings between two of them.

Every node stays an inner node up to its own level, so a sequence is one number per node. All costs
and errors of a sequence come from one pass: an acquisition is made up to the largest level of its
nodes.

The exact frontier is a convex hull. Where dropping one feature pays only if it is dropped almost
everywhere, neighbouring prunings lie far apart, and for a budget between their costs the hull has
only the cheaper one. Other prunings are better for that budget, although they are optimal at no
price. With ``low`` inside ``high``, any baseline's pruning b gives a pruning between them,
``low | (high & b)``. The baseline that loses least training error is taken
(:func:`keep_within`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from gatewise.errors import InputError
from gatewise_training.prune.problem import Floats, Keep, PruneProblem

ROUNDING = 1e-9
"""A cost may be above a budget by this."""


@dataclass(frozen=True, eq=False)
class PruneSequence:
    """Prunings of one forest, each a pruning of the one before."""

    problem: PruneProblem  # measures costs and training errors
    # (n_nodes,): each node is an inner node at all levels below; never above the parent's
    until: Floats

    @cached_property
    def levels(self) -> Floats:
        """Levels at which something changes, ascending from 0, shape (n_points,)."""
        positive = self.until[(self.until > 0) & np.isfinite(self.until)]
        return np.concatenate([[0.0], np.unique(positive)])

    @cached_property
    def costs(self) -> Floats:
        """Mean cost on the pruning rows at each level, shape (n_points,), falling."""
        problem = self.problem
        acquired_until = np.zeros(0)
        if problem.n_columns:
            uses = self.until[problem.column_nodes]
            acquired_until = np.maximum.reduceat(uses, problem.column_start[:-1])
        return self._remaining(
            np.concatenate([acquired_until, self.until]),
            np.concatenate([problem.column_price, problem.depth_price]),
        )

    @cached_property
    def errors(self) -> Floats:
        """Training error, averaged over the trees, at each level; shape (n_points,), rising."""
        return self.problem.base_error - self._remaining(self.until, self.problem.profit)

    def keep(self, level: float) -> NDArray[np.bool_]:
        """Inner nodes at a level, shape (n_nodes,), for :meth:`Forest.pruned`."""
        return np.asarray(self.until > level)

    def level_at(self, *, budget: float) -> float:
        """Lowest level with a cost on the pruning rows of at most `budget`."""
        affordable = np.flatnonzero(self.costs <= budget + ROUNDING)
        if not len(affordable):
            raise InputError(
                f"no pruning costs at most {budget:g}; the cheapest costs {self.costs[-1]:g}"
            )
        return float(self.levels[affordable[0]])

    def thinned(self, n_points: int = 50) -> Floats:
        """Levels with about evenly spaced costs, first and last among them."""
        wanted_costs = np.linspace(self.costs[0], self.costs[-1], max(n_points, 2))
        last_number = len(self.levels) - 1
        numbers = np.searchsorted(-self.costs, -wanted_costs).clip(max=last_number)
        return np.asarray(self.levels[np.unique([0, *numbers, last_number])])

    def _remaining(self, until: Floats, weight: Floats) -> Floats:
        """Total weight at each level."""
        # sum of the weights with until > level, for all levels by one sort
        order = np.argsort(until)
        total = np.concatenate([np.cumsum(weight[order][::-1])[::-1], [0.0]])
        return np.asarray(total[np.searchsorted(until[order], self.levels, side="right")])


def keep_within(
    exact: PruneSequence, budget: float, baselines: Sequence[PruneSequence], *, gap: float = 0.0
) -> Keep:
    """Find the most accurate pruning within a budget, (n_nodes,): exact, or between two exact ones.

    An exact pruning is taken if its cost is within `gap` of the budget.
    """
    problem = exact.problem
    number = int(np.searchsorted(exact.levels, exact.level_at(budget=budget)))
    low = exact.keep(float(exact.levels[number]))
    if number == 0 or budget - exact.costs[number] <= gap:
        return low
    high = exact.keep(float(exact.levels[number - 1]))
    prunings = [low]
    prunings += [_between(problem, low, high, baseline, budget) for baseline in baselines]
    return min(prunings, key=problem.training_error)


def _between(
    problem: PruneProblem, low: Keep, high: Keep, baseline: PruneSequence, budget: float
) -> Keep:
    """Bisect for the baseline's least pruned step that is within the budget."""

    def mixture(step: int) -> Keep:
        return np.asarray(low | (high & baseline.keep(float(baseline.levels[step]))))

    too_costly = -1
    affordable = len(baseline.levels) - 1
    if problem.cost(mixture(affordable)) > budget + ROUNDING:  # some nodes are never pruned
        return low
    while affordable - too_costly > 1:
        middle = (too_costly + affordable) // 2
        if problem.cost(mixture(middle)) <= budget + ROUNDING:
            affordable = middle
        else:
            too_costly = middle
    return mixture(affordable)
