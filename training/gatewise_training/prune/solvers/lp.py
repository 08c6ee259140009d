"""The pruning problem as a linear program for HiGHS, which is exact because it is integral.

The program has a variable for each node and each acquisition::

    min  base_error - sum profit_h y_h + lam (sum price_c w_c + sum depth_price_h y_h)
    s.t. y_child <= y_parent,   y_h <= w_c for each first use h in c,   0 <= y <= 1,  w >= 0

It is (IP3) of "Optimally pruning decision tree ensembles with feature cost" (2016) and (IP) of
BudgetPrune (NIPS 2016), with ``y_parent - y_h`` for ``z_h``, which is 1 if h becomes a leaf. Their
theorems 4.2 and 3.2 state that the relaxation is integral.

The bound does not rely on the objective that HiGHS reports. It comes from HiGHS's multipliers: they
are made feasible, and the tree recursion computes the bound that they prove.
"""

from __future__ import annotations

import numpy as np

from gatewise_training.prune.primal_heuristics import best_level_set
from gatewise_training.prune.problem import PruneProblem, Solution, check_price
from gatewise_training.prune.solvers.highs import closure_rows, incidence, minimise_shares
from gatewise_training.prune.tree_recursion import PricedTrees, merge_columns


def solve(problem: PruneProblem, lam: float, *, time_limit: float | None = None) -> Solution:
    """Solve the linear relaxation with HiGHS; `iterations` counts HiGHS's iterations."""
    lam = check_price(lam)
    problem = merge_columns(problem)
    is_inner = problem.is_inner
    if not is_inner.any():
        return Solution(is_inner, problem.base_error, problem.base_error, lam, 0)
    nodes = np.flatnonzero(is_inner)
    node_matrix = incidence(nodes, np.arange(len(nodes)), (problem.n_nodes, len(nodes)))
    shares, multipliers, iterations = minimise_shares(
        problem, lam, node_matrix, closure_rows(problem, node_matrix), 0.0, time_limit=time_limit
    )
    shares = np.where(is_inner, shares, 0.0)
    # HiGHS may leave a child's share above its parent's, within its tolerance
    for node in np.flatnonzero(is_inner & (problem.parent >= 0)):
        shares[node] = min(shares[node], shares[problem.parent[node]])
    is_kept, objective = best_level_set(problem, shares, lam)
    bound = min(PricedTrees(problem, lam).bound_from_multipliers(multipliers), objective)
    return Solution(is_kept, objective, bound, lam, iterations)
