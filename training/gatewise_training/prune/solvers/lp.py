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

from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.optimize import linprog

from gatewise_training.prune.problem import Floats, PruneProblem, Solution, check_price
from gatewise_training.prune.tree_recursion import PricedTrees, best_level_set, merge_columns


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


class LinearSolution(NamedTuple):
    """Optimum of a linear program."""

    x: Floats  # the variables or, from :func:`minimise_shares`, the shares of the nodes
    multipliers: Floats  # of the inequalities or, from :func:`minimise_shares`, of the first uses
    iterations: int  # of HiGHS


def minimise(cost: Floats, *, time_limit: float | None = None, **program: Any) -> LinearSolution:
    """Solve a linear program.

    Costs are scaled to a mean magnitude of 1. HiGHS's tolerances are absolute, and the part of one
    row in the training error may be below them.
    """
    magnitude = np.abs(cost)
    scale = float(magnitude[magnitude > 0].mean()) if magnitude.any() else 1.0
    options = {} if time_limit is None else {"time_limit": time_limit}
    untyped_linprog: Any = linprog  # its overloads lack sparse matrices among the keywords
    solution = untyped_linprog(cost / scale, method="highs", options=options, **program)
    if solution.status != 0:
        raise RuntimeError(f"HiGHS found no optimum of the pruning problem: {solution.message}")
    multipliers = -np.asarray(solution.ineqlin.marginals) * scale
    return LinearSolution(np.asarray(solution.x), multipliers, int(solution.nit))


def minimise_shares(
    problem: PruneProblem,
    lam: float,
    node_matrix: sp.csr_array,
    rows: sp.csr_array,
    bound: float,
    **settings: Any,
) -> LinearSolution:
    """Solve the relaxed problem, which keeps a share ``y_h`` of each node h.

    With ``y = node_matrix @ x`` the program is ::

        min  lam (sum price_c w_c + sum depth_price_h y_h) - sum profit_h y_h
        s.t. y_h <= w_c for each first use h in c,   rows @ x <= bound,   0 <= x, w <= 1

    Shapes: `node_matrix` (n_nodes, n_variables), `rows` (n_rows, n_variables). Returns ``y``,
    (n_nodes,), with the multipliers of the first uses, (n_uses,).
    """
    nodes = problem.column_nodes
    inequalities = sp.block_array(
        [[node_matrix[nodes], -acquisitions(problem)], [rows, None]], format="csr"
    )
    bounds = np.repeat([0.0, bound], [len(nodes), rows.shape[0]])
    node_cost = lam * problem.depth_price - problem.profit
    cost = np.concatenate([node_matrix.T @ node_cost, lam * problem.column_price])
    solution = minimise(cost, A_ub=inequalities, b_ub=bounds, bounds=(0.0, 1.0), **settings)
    shares = node_matrix @ solution.x[: node_matrix.shape[1]]
    return LinearSolution(shares, solution.multipliers[: len(nodes)], solution.iterations)


def closure_rows(problem: PruneProblem, node_matrix: sp.csr_array) -> sp.csr_array:
    """Make rows of ``y_child - y_parent`` for all inner nodes that have a parent."""
    children = np.flatnonzero(problem.is_inner & (problem.parent >= 0))
    rows: sp.csr_array = node_matrix[children] - node_matrix[problem.parent[children]]
    return rows


def acquisitions(problem: PruneProblem) -> sp.csr_array:
    """Mark the acquisition of each first use, shape (n_uses, n_columns)."""
    n_uses = len(problem.column_nodes)
    return incidence(np.arange(n_uses), problem.use_column, (n_uses, problem.n_columns))


def incidence(rows: NDArray[Any], columns: NDArray[Any], shape: tuple[int, int]) -> sp.csr_array:
    """Make a sparse matrix with ones at pairs of rows and columns."""
    return sp.csr_array((np.ones(len(rows)), (rows, columns)), shape=shape)
