"""Primal heuristics: make a pruning of a fractional solution, and improve a pruning.

The solvers that prove lower bounds (:mod:`.tree_recursion`) use them to find good prunings.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from gatewise_training.prune.problem import Floats, NodeMask, PruneProblem
from gatewise_training.prune.tree_recursion import prune_by_gain

#: Maximum number of rounds of :func:`repair`, each of which passes all acquisitions twice.
MAX_REPAIRS = 3

#: Maximum number of level sets that :func:`best_level_set` compares, which bounds its time.
MAX_LEVEL_SETS = 20


def best_level_set(problem: PruneProblem, fraction: Floats, lam: float) -> tuple[NodeMask, float]:
    """Find the best level set of a fractional solution, and its objective.

    A level set is the pruning ``{h : fraction_h > threshold}``. The objective of the fractional
    solution is an average of the objectives of its level sets, so the best level set is at least as
    good. `fraction`, of shape (n_nodes,), is the part of each node that is kept, in [0, 1]; it is
    not larger at a node than at the node's parent. At most MAX_LEVEL_SETS level sets are compared.
    """
    fraction = np.round(fraction, 9)  # HiGHS's numbers are equal only up to its tolerance
    thresholds = np.unique(fraction.clip(0.0, 1.0))
    thresholds = thresholds[thresholds < 1.0] if len(thresholds) > 1 else np.array([0.5])
    indices = np.linspace(0, len(thresholds) - 1, MAX_LEVEL_SETS).round().astype(int)
    prunings = [fraction > threshold for threshold in thresholds[np.unique(indices)]]
    objectives = [problem.objective(is_kept, lam) for is_kept in prunings]
    best_index = int(np.argmin(objectives))
    return prunings[best_index], float(objectives[best_index])


def repair(problem: PruneProblem, is_kept: NodeMask, lam: float) -> tuple[NodeMask, float]:
    """Improve a pruning by dropping and adding nodes, and return it with its objective.

    Each round first drops nodes that earn less than the acquisitions that only they make. It then
    adds nodes that earn more than the new acquisitions that they make. The objective cannot rise.
    """
    start, nodes = problem.column_start, problem.column_nodes
    objective = float(problem.objective(is_kept, lam))
    for _ in range(MAX_REPAIRS):
        new_is_kept = is_kept
        # gain of a node = profit - lam * (depth price + prices of its acquisitions that count): if
        # nodes are dropped, those that it alone makes; if they are added, those that no node makes
        for is_adding in (False, True):
            gain = problem.profit - lam * problem.depth_price
            _charge_changes(start, nodes, lam * problem.column_price, new_is_kept, is_adding, gain)
            if not is_adding:
                gain[~new_is_kept] = -np.inf
            new_is_kept = prune_by_gain(problem.parent, gain)
        new_objective = float(problem.objective(new_is_kept, lam))
        if new_objective >= objective - 1e-15:  # no decrease beyond rounding
            break
        is_kept = new_is_kept
        objective = new_objective
    return is_kept, objective


@numba.njit(cache=True, nogil=True)
def _charge_changes(
    start: Any, nodes: Any, price: Any, is_kept: Any, is_adding: bool, gain: Any
) -> None:
    """Subtract prices of acquisitions from the gains of nodes, in place.

    When adding, each node pays for the acquisitions that no kept node makes yet. Otherwise, a kept
    node pays for the acquisitions that only this node makes.
    """
    for column in range(len(price)):
        n_kept = 0
        for use in range(start[column], start[column + 1]):
            if is_kept[nodes[use]]:
                n_kept += 1
        if n_kept == 0 and is_adding:
            for use in range(start[column], start[column + 1]):
                gain[nodes[use]] -= price[column]
        elif n_kept == 1 and not is_adding:
            for use in range(start[column], start[column + 1]):
                if is_kept[nodes[use]]:
                    gain[nodes[use]] -= price[column]
