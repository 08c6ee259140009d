"""Nested prunings, from the whole forest to single leaves, and prunings between two of them.

Every node stays up to a level of its own, so a sequence is one number a node. All costs and errors
of a sequence come from one pass: an acquisition is made up to the largest level of its nodes.

The exact frontier is a convex hull: where dropping one feature pays only if it is dropped almost
everywhere, neighbours lie far apart, and a budget between them gives no more than the cheaper one.
Nothing better is optimal for any price there, but much is better for that budget. With ``low``
inside ``high``, any baseline's pruning b gives one between them, ``low | (high & b)``; of several
baselines the one that loses least training error is taken (:func:`keep_within`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from gatewise.errors import InputError
from gatewise_training.prune.problem import Floats, Keep, PruneProblem


@dataclass(frozen=True, eq=False)
class PruneSequence:
    """Prunings of one forest, each a pruning of the one before."""

    problem: PruneProblem  # what measures cost and training error
    # (n_nodes,): a node stays an inner node at every level below this; no child's is above its
    # parent's
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
        uses = self.until[problem.column_nodes]
        acquired = np.maximum.reduceat(uses, problem.column_start[:-1])
        return self._above(
            np.concatenate([acquired, self.until]),
            np.concatenate([problem.column_price, problem.depth_price]),
        )

    @cached_property
    def errors(self) -> Floats:
        """Training error, averaged over the trees, at each level; shape (n_points,), rising."""
        return self.problem.base_error - self._above(self.until, self.problem.profit)

    def keep(self, level: float) -> NDArray[np.bool_]:
        """Nodes that stay at a level, shape (n_nodes,): for :meth:`Forest.pruned`."""
        return np.asarray(self.until > level)

    def level_at(self, *, budget: float) -> float:
        """Lowest level with a cost on the pruning rows of at most `budget`."""
        within = np.flatnonzero(self.costs <= budget + 1e-9)
        if not len(within):
            raise InputError(
                f"no pruning costs at most {budget:g}; the cheapest costs {self.costs[-1]:g}"
            )
        return float(self.levels[within[0]])

    def thinned(self, n_points: int = 50) -> Floats:
        """Levels with about evenly spaced costs, first and last among them."""
        wanted = np.linspace(self.costs[0], self.costs[-1], max(n_points, 2))
        places = np.searchsorted(-self.costs, -wanted).clip(max=len(self.levels) - 1)
        chosen = np.unique(np.concatenate([[0], places, [len(self.levels) - 1]]))
        return np.asarray(self.levels[chosen])

    def _above(self, until: Floats, weight: Floats) -> Floats:
        """Total weight of what stays, at each level."""
        order = np.argsort(until)
        total = np.concatenate([np.cumsum(weight[order][::-1])[::-1], [0.0]])
        return np.asarray(total[np.searchsorted(until[order], self.levels, side="right")])


def keep_within(
    exact: PruneSequence, budget: float, baselines: Sequence[PruneSequence], *, gap: float = 0.0
) -> Keep:
    """Find the best pruning known within a budget.

    Shapes: returns (n_nodes,).
    """
    problem = exact.problem
    place = int(np.searchsorted(exact.levels, exact.level_at(budget=budget)))
    low = exact.keep(float(exact.levels[place]))
    if place == 0 or budget - exact.costs[place] <= gap:
        return low
    high = exact.keep(float(exact.levels[place - 1]))
    found = [low, *(_between(problem, low, high, b, budget) for b in baselines)]
    return found[int(np.argmin([problem.training_error(keep) for keep in found]))]


def _between(
    problem: PruneProblem, low: Keep, high: Keep, baseline: PruneSequence, budget: float
) -> Keep:
    """Bisect for the baseline's least pruned step that is within the budget."""

    def mixed(step: int) -> Keep:
        return np.asarray(low | (high & baseline.keep(float(baseline.levels[step]))))

    over, within = -1, len(baseline.levels) - 1
    if problem.cost(mixed(within)) > budget + 1e-9:  # what stays for good may lie between
        return low
    while within - over > 1:
        middle = (over + within) // 2
        if problem.cost(mixed(middle)) <= budget + 1e-9:
            within = middle
        else:
            over = middle
    return mixed(within)
