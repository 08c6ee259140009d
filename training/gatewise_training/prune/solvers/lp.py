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
from numpy.typing import NDArray

from gatewise.errors import InputError
from gatewise_training.prune.problem import PruneProblem, Solution, check_price
from gatewise_training.prune.solvers.highs import minimise
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
    trees = PricedTrees(problem, lam)
    program = (_closure if form == "closure" else _papers)(problem, lam)
    cost = program.pop("cost")
    if not len(cost):
        keep = np.zeros(problem.n_nodes, np.bool_)
        return Solution(keep, problem.base_error, problem.base_error, lam, 0)
    x, multipliers, iterations = minimise(
        cost, what="the pruning problem", method=method, time_limit=time_limit, **program
    )
    share = _kept_share(problem, x, form)
    keep, objective = level_sets(problem, share, lam)
    beta = multipliers[len(multipliers) - len(problem.column_nodes) :]
    bound = min(trees.lower_bound(beta), objective)
    return Solution(keep, objective, bound, lam, iterations)


def _inner(problem: PruneProblem) -> NDArray[np.bool_]:
    return np.asarray(problem.left >= 0)


def _incidence_columns(problem: PruneProblem) -> NDArray[np.intp]:
    """Acquisition of each first use, shape (len(column_nodes),)."""
    return np.repeat(np.arange(problem.n_columns), np.diff(problem.column_start))


def _closure(problem: PruneProblem, lam: float) -> dict[str, Any]:
    """Variables: y of inner nodes, then w. Rows: closure, then first uses."""
    inner = np.flatnonzero(_inner(problem))
    number = np.full(problem.n_nodes, -1)
    number[inner] = np.arange(len(inner))
    below = inner[problem.parent[inner] >= 0]
    column = _incidence_columns(problem) + len(inner)
    child = np.concatenate([number[below], number[problem.column_nodes]])
    above = np.concatenate([number[problem.parent[below]], column])
    n_rows, n = len(child), len(inner) + problem.n_columns
    rows = np.arange(n_rows)
    matrix = sp.csr_array(
        (
            np.concatenate([np.ones(n_rows), -np.ones(n_rows)]),
            (np.concatenate([rows, rows]), np.concatenate([child, above])),
        ),
        shape=(n_rows, n),
    )
    cost = np.concatenate(
        [lam * problem.depth_price[inner] - problem.profit[inner], lam * problem.column_price]
    )
    return {"cost": cost, "A_ub": matrix, "b_ub": np.zeros(n_rows), "bounds": (0.0, 1.0)}


def _papers(problem: PruneProblem, lam: float) -> dict[str, Any]:
    """Variables: z of all nodes, w of each first use, w. Rows: paths (=), then first uses (<=)."""
    n, uses = problem.n_nodes, len(problem.column_nodes)
    inner = _inner(problem)
    paths = _paths(problem)
    leaves = np.flatnonzero(~inner)
    equal = sp.block_array(
        [
            [paths[leaves], None],
            [paths[problem.column_nodes], sp.eye_array(uses)],
        ],
        format="csr",
    )
    equal = sp.hstack([equal, sp.csr_array((equal.shape[0], problem.n_columns))], format="csr")
    rows = np.arange(uses)
    upper = sp.csr_array(
        (
            np.concatenate([np.ones(uses), -np.ones(uses)]),
            (
                np.concatenate([rows, rows]),
                np.concatenate([n + rows, n + uses + _incidence_columns(problem)]),
            ),
        ),
        shape=(uses, n + uses + problem.n_columns),
    )
    # y_h = 1 - sum of z along the path to h: what depth costs is charged to the z above it
    depth = -lam * (paths.T @ np.where(inner, problem.depth_price, 0.0))
    cost = np.concatenate([problem.error + depth, np.zeros(uses), lam * problem.column_price])
    return {
        "cost": cost,
        "A_ub": upper,
        "b_ub": np.zeros(uses),
        "A_eq": equal,
        "b_eq": np.ones(equal.shape[0]),
        "bounds": (0.0, 1.0),
    }


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
    shape = (problem.n_nodes, problem.n_nodes)
    return sp.csr_array((np.ones(len(rows)), (rows, columns)), shape=shape)


def _kept_share(problem: PruneProblem, x: NDArray[np.float64], form: Form) -> NDArray[np.float64]:
    """How far each node stays, shape (n_nodes,)."""
    share = np.zeros(problem.n_nodes)
    inner = _inner(problem)
    if form == "closure":
        share[inner] = x[: inner.sum()]
    else:
        share[inner] = 1.0 - (_paths(problem) @ x[: problem.n_nodes])[inner]
    # closed up to the solver's tolerance only: make it closed
    for h in np.flatnonzero(inner & (problem.parent >= 0)):
        share[h] = min(share[h], share[problem.parent[h]])
    return share
