"""The pruning problem as a linear program, given to HiGHS: exact, because it is integral.

Two forms of one program. ``"closure"`` has a variable for each node and each acquisition::

    min  base_error - sum profit_h y_h + lam (sum price_c w_c + sum depth_price_h y_h)
    s.t. y_child <= y_parent,   y_h <= w_c for each first use h in c,   0 <= y <= 1,  w >= 0

``"papers"`` is the form of "Optimally pruning decision tree ensembles with feature cost" (2016),
(IP3), and of BudgetPrune (NIPS 2016), (IP): ``z_h = 1`` where h becomes a leaf, one variable for
each use in a tree, and sums along paths. Their theorems 4.2 and 3.2 say that its relaxation is
integral; ``z_h = y_parent - y_h`` turns one form into the other.

The bound is not HiGHS's word for it: its multipliers, made feasible, go through the tree
recursion, which proves a bound in floating-point sums alone.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import scipy.sparse as sp

from gatewise.errors import InputError
from gatewise_training.prune.problem import Floats, PruneProblem, Solution, check_price
from gatewise_training.prune.solvers.highs import (
    acquisitions,
    closure_rows,
    incidence,
    minimise,
    minimise_shares,
)
from gatewise_training.prune.tree_recursion import PricedTrees, level_sets, merged

Form = Literal["closure", "papers"]


def solve(
    problem: PruneProblem,
    lam: float,
    *,
    form: Form = "closure",
    method: str = "highs",
    time_limit: float | None = None,
) -> Solution:
    """Solve the linear relaxation with HiGHS; `iterations` of the solution are HiGHS's."""
    lam = check_price(lam)
    if form not in ("closure", "papers"):
        raise InputError(f"form must be 'closure' or 'papers', not {form!r}")
    problem = merged(problem)
    inner = problem.inner
    if not inner.any():
        return Solution(inner, problem.base_error, problem.base_error, lam, 0)
    solve_form = _closure if form == "closure" else _papers
    share, multipliers, iterations = solve_form(problem, lam, method=method, time_limit=time_limit)
    share = np.where(inner, share, 0.0)
    # closed up to the solver's tolerance only: make it closed
    for h in np.flatnonzero(inner & (problem.parent >= 0)):
        share[h] = min(share[h], share[problem.parent[h]])
    keep, objective = level_sets(problem, share, lam)
    bound = min(PricedTrees(problem, lam).lower_bound(multipliers), objective)
    return Solution(keep, objective, bound, lam, iterations)


def _closure(problem: PruneProblem, lam: float, **settings: Any) -> tuple[Floats, Floats, int]:
    """Get how far each node stays, the multipliers of first uses, and HiGHS's iterations."""
    inner = np.flatnonzero(problem.inner)
    kept = incidence(inner, np.arange(len(inner)), (problem.n_nodes, len(inner)))
    return minimise_shares(problem, lam, kept, closure_rows(problem, kept), 0.0, **settings)


def _papers(problem: PruneProblem, lam: float, **settings: Any) -> tuple[Floats, Floats, int]:
    """Do the same with variables z of all nodes, w of each first use, and w."""
    n, n_columns, uses = problem.n_nodes, problem.n_columns, len(problem.column_nodes)
    inner, paths, own = problem.inner, _paths(problem), sp.eye_array(uses)
    equal = sp.block_array([
        [paths[~inner], None, None],
        [paths[problem.column_nodes], own, sp.csr_array((uses, n_columns))],
    ], format="csr")  # fmt: skip
    upper = sp.hstack([sp.csr_array((uses, n)), own, -acquisitions(problem)], format="csr")
    # y_h = 1 - sum of z along the path to h: what depth costs is charged to the z above it
    depth = -lam * (paths.T @ np.where(inner, problem.depth_price, 0.0))
    cost = np.concatenate([problem.error + depth, np.zeros(uses), lam * problem.column_price])
    x, multipliers, iterations = minimise(
        cost, A_ub=upper, b_ub=np.zeros(uses), A_eq=equal, b_eq=np.ones(equal.shape[0]),
        bounds=(0.0, 1.0), **settings,
    )  # fmt: skip
    return 1.0 - paths @ x[:n], multipliers, iterations


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
