"""The pruning problem in the formulation of the papers, solved by HiGHS.

The relaxation of (IP3) of "Optimally pruning decision tree ensembles with feature cost" (2016) and
of (IP) of BudgetPrune (NIPS 2016): ``z_h = 1`` if h becomes a leaf, with a variable for each use of
a feature in a tree, and sums along paths.
"""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp

from gatewise_training.prune.problem import PruneProblem
from gatewise_training.prune.solvers.highs import acquisitions, incidence, minimise


def papers_optimum(problem: PruneProblem, lam: float) -> float:
    """Compute the optimum over z of all nodes, w of each first use, and w of each acquisition."""
    equal, upper = papers_constraints(problem)
    inner = problem.inner
    paths = _paths(problem)
    n_uses = len(problem.column_nodes)
    # With y_h = 1 - sum of z along the path to h, the price of depth becomes a cost of z.
    depth = lam * np.where(inner, problem.depth_price, 0.0)
    cost = np.concatenate(
        [problem.error - paths.T @ depth, np.zeros(n_uses), lam * problem.column_price]
    )
    x, _, _ = minimise(
        cost, A_ub=upper, b_ub=np.zeros(n_uses), A_eq=equal, b_eq=np.ones(equal.shape[0]),
        bounds=(0.0, 1.0),
    )  # fmt: skip
    return float(cost @ x + depth.sum())


def papers_constraints(problem: PruneProblem) -> tuple[sp.csr_array, sp.csr_array]:
    """Make the matrices of the equalities and of the inequalities of (IP3)."""
    n_nodes = problem.n_nodes
    n_columns = problem.n_columns
    n_uses = len(problem.column_nodes)
    inner = problem.inner
    paths = _paths(problem)
    identity = sp.eye_array(n_uses)
    equal = sp.block_array([
        [paths[~inner], None, None],
        [paths[problem.column_nodes], identity, sp.csr_array((n_uses, n_columns))],
    ], format="csr")  # fmt: skip
    upper = sp.hstack(
        [sp.csr_array((n_uses, n_nodes)), identity, -acquisitions(problem)], format="csr"
    )
    return equal, upper


def _paths(problem: PruneProblem) -> sp.csr_array:
    """Make the square matrix whose row h marks the nodes from the root to h."""
    nodes = np.arange(problem.n_nodes)
    rows = [nodes]
    columns = [nodes]
    ancestor = problem.parent.astype(np.intp)
    while (ancestor >= 0).any():
        has_ancestor = ancestor >= 0
        rows.append(nodes[has_ancestor])
        columns.append(ancestor[has_ancestor])
        ancestor = np.where(has_ancestor, problem.parent[ancestor], -1)
    shape = (problem.n_nodes, problem.n_nodes)
    return incidence(np.concatenate(rows), np.concatenate(columns), shape)
