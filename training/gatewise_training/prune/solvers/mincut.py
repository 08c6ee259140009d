"""The exact solver of the pruning problem at one price: a minimum cut by push-relabel.

A maximum closure is a minimum cut (Picard, 1976). Profits flow from the source into the nodes.
A node passes flow without limit to its parent and to its acquisitions, which pass it to the sink
up to their prices. Nodes from which the sink can no longer be reached earn more than they cost, and
stay.

:mod:`.push_relabel` implements the algorithm of Goldberg & Tarjan (1988) with a first-in first-out
queue, the gap heuristic and global relabelling. Its first phase suffices, because only the cut is
needed. It starts from a greedy flow from the leaves upwards, or from the flow at another price. The
flow proves the optimum: the amount that reaches the sink is the value of the cut, and ``bound`` is
computed from it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gatewise_training.prune.presolve import FREE, Closure, Flow, reduce_problem
from gatewise_training.prune.problem import PruneProblem, Solution, check_price
from gatewise_training.prune.solvers.flow_network import make_greedy_flow
from gatewise_training.prune.solvers.push_relabel import improve_flow

#: Share of the profits that may fail to reach the sink because of rounding.
TOLERANCE = 1e-12


def solve(problem: PruneProblem, lam: float) -> Solution:
    """Find the optimal pruning for one price; `iterations` counts the global relabellings."""
    lam = check_price(lam)
    closure, closure_number = reduce_problem(problem)
    closure_kept, cut_value, iterations = best_closure(closure, lam)
    # DROPPED = -2 and FREE = -1 are indices from the end, so they read the two values added there
    is_kept = np.append(closure_kept, [False, True])[closure_number]
    free_profit = float(problem.profit[closure_number == FREE].sum())
    bound = problem.base_error - free_profit - (closure.total_profit - cut_value)
    return Solution(is_kept, problem.objective(is_kept, lam), bound, lam, iterations)


def best_closure(
    closure: Closure, lam: float, flow: Flow | None = None
) -> tuple[NDArray[np.bool_], float, int]:
    """Find the nodes with the largest profit minus ``lam`` times price.

    The search starts from `flow`, a flow of this closure at another price, and changes it in place.
    Returns the mask of the nodes, shape (n_nodes,), the value of the minimum cut, and the number of
    global relabellings.
    """
    flow = first_flow(closure, lam) if flow is None else flow
    is_kept, cut_value, n_rounds = improve_flow(
        closure.at_price(lam),
        flow.to_columns,
        flow.to_parent,
        TOLERANCE * closure.total_profit,
    )
    return is_kept, float(cut_value), int(n_rounds)


def first_flow(closure: Closure, lam: float) -> Flow:
    """Make a flow greedily: each node pays as much as it can, and its parent gets the rest."""
    flow = Flow.zero(closure)
    make_greedy_flow(closure.at_price(lam), flow.to_columns, flow.to_parent)
    return flow
