"""Each tree pruned by itself, with its own costs: the papers' "ind.pru." baseline.

"Optimally pruning decision tree ensembles with feature cost" (2016), table 1: the same exact
program, for each tree alone. A tree then pays for a feature although others have bought it for the
row.
"""

from __future__ import annotations

import numpy as np

from gatewise_training.prune.baselines.weakest_link import breakpoints
from gatewise_training.prune.nested_prunings import PruneSequence
from gatewise_training.prune.problem import PruneProblem

__all__ = ["per_tree"]


def per_tree(problem: PruneProblem) -> PruneSequence:
    """Optimal prunings of each tree alone, for all prices of cost.

    Within one tree a row's first use of a feature is at one node, so nothing is shared and every
    node has a price of its own: the problem has a closed solution for all prices at once.

    Parameters
    ----------
    problem : PruneProblem

    Returns
    -------
    PruneSequence
        Levels are ``lam`` in the ensemble's unit: error of one tree divided by the number of
        trees. The paper's ``lam`` for a single tree is `n_trees` times that. Costs are those of
        the ensemble, in which rows pay for a feature once.
    """
    size = np.diff(problem.column_start)
    own = np.bincount(
        problem.column_nodes,
        weights=np.repeat(problem.column_price, size),
        minlength=problem.n_nodes,
    )
    until = breakpoints(problem.parent, problem.profit, own + problem.depth_price)
    return PruneSequence(problem, np.where(problem.left >= 0, until, -np.inf))
