"""Linear programs of the pruning problem, which HiGHS solves through scipy."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.optimize import linprog

from gatewise_training.prune.problem import Floats, PruneProblem


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
