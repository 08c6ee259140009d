"""Nested prunings, from the whole forest to single leaves: what the baselines return.

Every node stays up to a level of its own, so a sequence is one number a node. All costs and errors
of a sequence come from one pass: a purchase is made up to the largest level of its nodes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from gatewise.errors import InputError
from gatewise_training.prune.problem import PruneProblem

__all__ = ["PruneSequence"]

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class PruneSequence:
    """Prunings of one forest, each a pruning of the one before.

    Attributes
    ----------
    problem : PruneProblem
        What measures cost and training error.
    until : ndarray of float64, shape (n_nodes,)
        A node stays an inner node at every level below this. No child's is above its parent's.
    dropped : tuple of tuple of int
        For :func:`greedy_prune`: the columns that each step drops.
    """

    problem: PruneProblem
    until: Floats
    dropped: tuple[tuple[int, ...], ...] = ()

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
        bought = np.full(problem.n_columns, -np.inf)
        some = np.diff(problem.column_start) > 0
        if some.any():
            bought[some] = np.maximum.reduceat(uses, problem.column_start[:-1][some])
        return self._above(
            np.concatenate([bought, self.until]),
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
        """Lowest level whose cost on the pruning rows is at most `budget`.

        Raises
        ------
        InputError
            If none is.
        """
        within = np.flatnonzero(self.costs <= budget + 1e-9)
        if not len(within):
            raise InputError(
                f"no pruning costs at most {budget:g}; the cheapest costs {self.costs[-1]:g}"
            )
        return float(self.levels[within[0]])

    def thinned(self, n_points: int = 50) -> Floats:
        """Levels whose costs are about evenly spaced, first and last among them."""
        wanted = np.linspace(self.costs[0], self.costs[-1], max(n_points, 2))
        places = np.searchsorted(-self.costs, -wanted).clip(max=len(self.levels) - 1)
        chosen = np.unique(np.concatenate([[0], places, [len(self.levels) - 1]]))
        return np.asarray(self.levels[chosen])

    def _above(self, until: Floats, weight: Floats) -> Floats:
        """Total weight of what stays, at each level."""
        order = np.argsort(until)
        total = np.concatenate([np.cumsum(weight[order][::-1])[::-1], [0.0]])
        return np.asarray(total[np.searchsorted(until[order], self.levels, side="right")])
