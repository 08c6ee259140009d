"""Sequences of nested prunings of a forest, and prunings between two neighbours of a sequence.

Each node stays an inner node up to its own level, so one number per node describes the whole
sequence. One pass computes the costs and errors at all levels, because an acquisition is made up to
the largest level of its nodes.

The exact frontier is a convex hull. Sometimes dropping a feature pays only if almost all nodes that
test it are pruned. Neighbouring prunings of the hull then lie far apart, and for a budget between
their costs the hull offers only the cheaper one. Other prunings are better for that budget,
although they are not optimal at any price. If the pruning ``low`` is nested in ``high``, any
pruning ``b`` of a baseline gives a pruning between them, ``low | (high & b)``.
:func:`pruning_within` chooses the baseline with the smallest training error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from gatewise.errors import InputError
from gatewise_training.prune.problem import Floats, NodeMask, PruneProblem

#: A cost counts as within a budget if it exceeds the budget by at most this much, because costs are
#: sums in different orders.
ROUNDING = 1e-9


@dataclass(frozen=True, eq=False)
class PruneSequence:
    """Nested prunings of one forest, ordered by a level at which each node is pruned."""

    problem: PruneProblem  # measures costs and training errors
    # (n_nodes,): level from which on the node is pruned; not above the level of its parent
    pruning_level: Floats

    @cached_property
    def levels(self) -> Floats:
        """Levels at which the pruning changes, ascending from 0, shape (n_points,)."""
        node_levels = self.pruning_level
        return np.concatenate(
            [[0.0], np.unique(node_levels[(node_levels > 0) & np.isfinite(node_levels)])]
        )

    @cached_property
    def costs(self) -> Floats:
        """Mean cost on the pruning rows at each level, falling, shape (n_points,)."""
        problem = self.problem
        acquisition_end = np.zeros(0)  # level from which on each acquisition is not made
        if problem.n_columns:
            use_ends = self.pruning_level[problem.column_nodes]
            acquisition_end = np.maximum.reduceat(use_ends, problem.column_start[:-1])
        return self._weight_above_levels(
            np.concatenate([acquisition_end, self.pruning_level]),
            np.concatenate([problem.column_price, problem.depth_price]),
        )

    @cached_property
    def errors(self) -> Floats:
        """Training error at each level, averaged over the trees, rising, shape (n_points,)."""
        profits = self._weight_above_levels(self.pruning_level, self.problem.profit)
        return self.problem.base_error - profits

    def kept_at(self, level: float) -> NDArray[np.bool_]:
        """Mask of the inner nodes at a level, shape (n_nodes,), for :meth:`Forest.pruned`."""
        return np.asarray(self.pruning_level > level)

    def level_at(self, *, budget: float) -> float:
        """Find the lowest level with a mean cost on the pruning rows within the budget."""
        affordable = np.flatnonzero(self.costs <= budget + ROUNDING)
        if not len(affordable):
            raise InputError(
                f"no pruning costs at most {budget:g}; the cheapest costs {self.costs[-1]:g}"
            )
        return float(self.levels[affordable[0]])

    def evenly_spaced_levels(self, n_points: int = 50) -> Floats:
        """Levels with about evenly spaced costs, including the first and the last level."""
        even_costs = np.linspace(self.costs[0], self.costs[-1], max(n_points, 2))
        last_index = len(self.levels) - 1
        indices = np.searchsorted(-self.costs, -even_costs).clip(max=last_index)
        return np.asarray(self.levels[np.unique([0, *indices, last_index])])

    def _weight_above_levels(self, end_level: Floats, weight: Floats) -> Floats:
        """Sum, for each level, the weights with an `end_level` above it."""
        # one sort gives the sums for all levels
        order = np.argsort(end_level)
        sums_from_end = np.concatenate([np.cumsum(weight[order][::-1])[::-1], [0.0]])
        return np.asarray(
            sums_from_end[np.searchsorted(end_level[order], self.levels, side="right")]
        )


def pruning_within(
    exact_sequence: PruneSequence,
    budget: float,
    baselines: Sequence[PruneSequence],
    *,
    gap: float = 0.0,
) -> NodeMask:
    """Find the most accurate pruning within a budget, shape (n_nodes,).

    The result is an exact pruning if its cost is at most `gap` below the budget. Otherwise it may
    also be a pruning between two exact ones, which a baseline gives.
    """
    problem = exact_sequence.problem
    level_index = int(
        np.searchsorted(exact_sequence.levels, exact_sequence.level_at(budget=budget))
    )
    low_pruning = exact_sequence.kept_at(float(exact_sequence.levels[level_index]))
    if level_index == 0 or budget - exact_sequence.costs[level_index] <= gap:
        return low_pruning
    high_pruning = exact_sequence.kept_at(float(exact_sequence.levels[level_index - 1]))
    prunings = [low_pruning]
    prunings += [
        _find_pruning_between(problem, low_pruning, high_pruning, baseline, budget)
        for baseline in baselines
    ]
    return min(prunings, key=problem.training_error)


def _find_pruning_between(
    problem: PruneProblem,
    low_pruning: NodeMask,
    high_pruning: NodeMask,
    baseline: PruneSequence,
    budget: float,
) -> NodeMask:
    """Find the largest pruning within the budget that a step of the baseline gives."""

    def pruning_at(step: int) -> NodeMask:
        return np.asarray(
            low_pruning | (high_pruning & baseline.kept_at(float(baseline.levels[step])))
        )

    # bisection over the steps of the baseline
    costly_step = -1
    affordable_step = len(baseline.levels) - 1
    if problem.cost(pruning_at(affordable_step)) > budget + ROUNDING:
        return low_pruning  # the baseline never prunes some nodes
    while affordable_step - costly_step > 1:
        middle_step = (costly_step + affordable_step) // 2
        if problem.cost(pruning_at(middle_step)) <= budget + ROUNDING:
            affordable_step = middle_step
        else:
            costly_step = middle_step
    return pruning_at(affordable_step)
