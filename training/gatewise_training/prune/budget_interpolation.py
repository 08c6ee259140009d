"""Prunings between two neighbours of the exact frontier.

The exact frontier is a convex hull: where dropping one feature pays only if it is dropped almost
everywhere, neighbours lie far apart, and a budget between them buys no more than the cheaper one.
Nothing better is optimal for any price there, but much is better for that budget. With ``low``
inside ``high``, any baseline's pruning b gives one between them, ``low | (high & b)``; of several
baselines the one that loses least training error is taken.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gatewise_training.prune.nested_prunings import PruneSequence
from gatewise_training.prune.problem import PruneProblem

__all__ = ["keep_within"]

Keep = NDArray[np.bool_]


def keep_within(
    exact: PruneSequence, budget: float, baselines: Sequence[PruneSequence], *, gap: float = 0.0
) -> Keep:
    """Find the best pruning known within a budget.

    Parameters
    ----------
    exact : PruneSequence
        The exact frontier.
    budget : float
        Mean cost on the pruning rows at most.
    baselines : sequence of PruneSequence
        Of the same problem.
    gap : float, default 0.0
        What the exact pruning may leave of the budget before others are looked for.

    Returns
    -------
    ndarray of bool, shape (n_nodes,)
        Its cost is within the budget; its training error is at most that of the exact pruning
        within the budget.

    Raises
    ------
    InputError
        If nothing is within the budget.
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
