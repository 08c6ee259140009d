"""Cost-complexity pruning of every tree: errors against leaves, blind to what features cost.

Breiman, Friedman, Olshen & Stone, "Classification and regression trees", 1984, chapter 3; a
baseline of BudgetPrune (NIPS 2016).
"""

from __future__ import annotations

import numpy as np

from gatewise_training.prune.baselines.weakest_link import breakpoints
from gatewise_training.prune.nested_prunings import PruneSequence
from gatewise_training.prune.problem import PruneProblem

__all__ = ["cost_complexity"]


def cost_complexity(problem: PruneProblem) -> PruneSequence:
    """Weakest-link prunings of all trees, at one complexity parameter for them all.

    Parameters
    ----------
    problem : PruneProblem

    Returns
    -------
    PruneSequence
        Levels are Breiman's ``alpha``: training error, averaged over the trees, that a leaf must
        save.
    """
    inner = problem.left >= 0
    until = breakpoints(problem.parent, problem.profit, inner.astype(np.float64))
    return PruneSequence(problem, np.where(inner, until, -np.inf))
