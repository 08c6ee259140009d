"""The pruning problem in the formulation of the papers, solved by HiGHS.

The relaxation of (IP3) of "Optimally pruning decision tree ensembles with feature cost" (2016) and
of (IP) of BudgetPrune (NIPS 2016): ``z_h = 1`` if h becomes a leaf, with a variable for each use of
a feature in a tree, and sums along paths.
"""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp

from gatewise_training.prune.problem import PruneProblem
from gatewise_training.prune.solvers.lp import acquisitions, incidence, minimise


def solve_papers_program(problem: PruneProblem, lam: float) -> float:
    """Compute the optimum over z of all nodes, w of each first use, and w of each acquisition."""
    equalities, inequalities = make_papers_constraints(problem)
    is_inner = problem.is_inner
    on_path = _mark_paths(problem)
    n_uses = len(problem.column_nodes)
    # With y_h = 1 - sum of z along the path to h, the price of depth becomes a cost of z.
    depth_costs = lam * np.where(is_inner, problem.depth_price, 0.0)
    cost = np.concatenate(
        [problem.error - on_path.T @ depth_costs, np.zeros(n_uses), lam * problem.column_price]
    )
    solution, _, _ = minimise(
        cost, A_ub=inequalities, b_ub=np.zeros(n_uses), A_eq=equalities,
        b_eq=np.ones(equalities.shape[0]), bounds=(0.0, 1.0),
    )  # fmt: skip
    return float(cost @ solution + depth_costs.sum())


def make_papers_constraints(problem: PruneProblem) -> tuple[sp.csr_array, sp.csr_array]:
    """Make the matrices of the equalities and of the inequalities of (IP3)."""
    n_nodes = problem.n_nodes
    n_columns = problem.n_columns
    n_uses = len(problem.column_nodes)
    is_inner = problem.is_inner
    on_path = _mark_paths(problem)
    identity = sp.eye_array(n_uses)
    equalities = sp.block_array([
        [on_path[~is_inner], None, None],
        [on_path[problem.column_nodes], identity, sp.csr_array((n_uses, n_columns))],
    ], format="csr")  # fmt: skip
    inequalities = sp.hstack(
        [sp.csr_array((n_uses, n_nodes)), identity, -acquisitions(problem)], format="csr"
    )
    return equalities, inequalities


def _mark_paths(problem: PruneProblem) -> sp.csr_array:
    """Make the square matrix in which row h marks the nodes from the root to h."""
    nodes = np.arange(problem.n_nodes)
    row_indices = [nodes]
    column_indices = [nodes]
    ancestor = problem.parent.astype(np.intp)
    while (ancestor >= 0).any():
        has_ancestor = ancestor >= 0
        row_indices.append(nodes[has_ancestor])
        column_indices.append(ancestor[has_ancestor])
        ancestor = np.where(has_ancestor, problem.parent[ancestor], -1)
    shape = (problem.n_nodes, problem.n_nodes)
    return incidence(np.concatenate(row_indices), np.concatenate(column_indices), shape)
