"""The pruning problem as its papers write it down, given to HiGHS.

(IP3) of "Optimally pruning decision tree ensembles with feature cost" (2016) and (IP) of
BudgetPrune (NIPS 2016), relaxed: ``z_h = 1`` where h becomes a leaf, one variable for each use in a
tree, and sums along paths.
"""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp

from gatewise_training.prune.problem import PruneProblem
from gatewise_training.prune.solvers.highs import acquisitions, incidence, minimise


def papers_optimum(problem: PruneProblem, lam: float) -> float:
    """Solve with variables z of all nodes, w of each first use, and w of each acquisition."""
    equal, upper = papers_constraints(problem)
    inner, paths, uses = problem.inner, _paths(problem), len(problem.column_nodes)
    # y_h = 1 - sum of z along the path to h: what depth costs is charged to the z above it
    depth = lam * np.where(inner, problem.depth_price, 0.0)
    cost = np.concatenate(
        [problem.error - paths.T @ depth, np.zeros(uses), lam * problem.column_price]
    )
    x, _, _ = minimise(
        cost, A_ub=upper, b_ub=np.zeros(uses), A_eq=equal, b_eq=np.ones(equal.shape[0]),
        bounds=(0.0, 1.0),
    )  # fmt: skip
    return float(cost @ x + depth.sum())


def papers_constraints(problem: PruneProblem) -> tuple[sp.csr_array, sp.csr_array]:
    """Matrices of the equalities and of the inequalities of (IP3)."""
    n, n_columns, uses = problem.n_nodes, problem.n_columns, len(problem.column_nodes)
    inner, paths, own = problem.inner, _paths(problem), sp.eye_array(uses)
    equal = sp.block_array([
        [paths[~inner], None, None],
        [paths[problem.column_nodes], own, sp.csr_array((uses, n_columns))],
    ], format="csr")  # fmt: skip
    upper = sp.hstack([sp.csr_array((uses, n)), own, -acquisitions(problem)], format="csr")
    return equal, upper


def _paths(problem: PruneProblem) -> sp.csr_array:
    """Row h marks the nodes from the root to h, h included; shape (n_nodes, n_nodes)."""
    here = np.arange(problem.n_nodes)
    nodes, marked = [here], [here]
    above = problem.parent.astype(np.intp)
    while (above >= 0).any():
        some = above >= 0
        nodes.append(here[some])
        marked.append(above[some])
        above = np.where(some, problem.parent[above], -1)
    rows, columns = np.concatenate(nodes), np.concatenate(marked)
    return incidence(rows, columns, (problem.n_nodes, problem.n_nodes))
