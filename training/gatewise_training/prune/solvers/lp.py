"""The pruning problem as a linear program for HiGHS: exact, because it is integral.

A variable for each node and each acquisition::

    min  base_error - sum profit_h y_h + lam (sum price_c w_c + sum depth_price_h y_h)
    s.t. y_child <= y_parent,   y_h <= w_c for each first use h in c,   0 <= y <= 1,  w >= 0

It is (IP3) of "Optimally pruning decision tree ensembles with feature cost" (2016) and (IP) of
BudgetPrune (NIPS 2016) with ``y_parent - y_h`` for ``z_h``, 1 where h becomes a leaf. Their
theorems 4.2 and 3.2 say that the relaxation is integral.

The bound does not rely on HiGHS's objective: its multipliers, made feasible, go through the tree
recursion, which proves a bound in floating-point sums alone.
"""

from __future__ import annotations

import numpy as np

from gatewise_training.prune.problem import PruneProblem, Solution, check_price
from gatewise_training.prune.solvers.highs import closure_rows, incidence, minimise_shares
from gatewise_training.prune.tree_recursion import PricedTrees, level_sets, merged


def solve(
    problem: PruneProblem,
    lam: float,
    *,
    time_limit: float | None = None,
) -> Solution:
    """Solve the linear relaxation with HiGHS; `iterations` of the solution are HiGHS's."""
    lam = check_price(lam)
    problem = merged(problem)
    inner = problem.inner
    if not inner.any():
        return Solution(inner, problem.base_error, problem.base_error, lam, 0)
    nodes = np.flatnonzero(inner)
    node_matrix = incidence(nodes, np.arange(len(nodes)), (problem.n_nodes, len(nodes)))
    share, multipliers, iterations = minimise_shares(
        problem,
        lam,
        node_matrix,
        closure_rows(problem, node_matrix),
        0.0,
        time_limit=time_limit,
    )
    share = np.where(inner, share, 0.0)
    # the solver closes it up to its tolerance only
    for h in np.flatnonzero(inner & (problem.parent >= 0)):
        share[h] = min(share[h], share[problem.parent[h]])
    keep, objective = level_sets(problem, share, lam)
    bound = min(PricedTrees(problem, lam).lower_bound(multipliers), objective)
    return Solution(keep, objective, bound, lam, iterations)
