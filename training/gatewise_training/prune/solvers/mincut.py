"""The exact solver: one minimum cut, by push-relabel on the implicit graph.

A maximum closure is a minimum cut (Picard, 1976): profits flow from the source into the nodes,
without limit from a node to its parent and to its acquisitions, and out to the sink up to the
prices. The nodes from which the sink cannot be reached any more pay for themselves, and stay.

Push-relabel (Goldberg & Tarjan, 1988) with a first-in first-out queue, gaps and global relabelling
(:mod:`.push_relabel`); its first phase suffices, because the cut is needed and not the flow. Before
it, profits flow greedily from the leaves upwards, or the flow of a cut at another price is used.
The flow proves the optimum: the amount that reaches the sink is the value of the cut, so ``bound``
is computed from the flow and not assumed.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gatewise_training.prune.presolve import FREE, Closure, Flow, reduce_problem
from gatewise_training.prune.problem import PruneProblem, Solution, check_price
from gatewise_training.prune.solvers.push_relabel import ClosureGraph, fill, improve_flow

TOLERANCE = 1e-12
"""Share of the profits that may stay unsent although the sink can be reached: rounding."""


def solve(problem: PruneProblem, lam: float) -> Solution:
    """Find the optimal pruning for one price; `iterations` are relabellings."""
    lam = check_price(lam)
    closure, number = reduce_problem(problem)
    closure_keep, reached, iterations = best_closure(closure, lam)
    keep = np.append(closure_keep, [False, True])[number]
    free_profit = float(problem.profit[number == FREE].sum())
    bound = problem.base_error - free_profit - (closure.worth - reached)
    return Solution(keep, problem.objective(keep, lam), bound, lam, iterations)


def best_closure(
    closure: Closure, lam: float, flow: Flow | None = None
) -> tuple[NDArray[np.bool_], float, int]:
    """Find the closure (n_nodes,) of greatest profit less ``lam`` times price.

    A `flow` of this closure at another price is the start, and is changed in place.
    """
    flow = first_flow(closure, lam) if flow is None else flow
    keep, reached, rounds = improve_flow(
        _graph(closure, lam), flow.acquired, flow.up, TOLERANCE * closure.worth
    )
    return keep, float(reached), int(rounds)


def first_flow(closure: Closure, lam: float) -> Flow:
    """Make a good flow in one pass: nodes pay what they can, and parents get the remainder."""
    flow = Flow.none(closure)
    fill(_graph(closure, lam), flow.acquired, flow.up)
    return flow


def _graph(closure: Closure, lam: float) -> ClosureGraph:
    """Edges, inflows and capacities of the closure problem, prices times ``lam``."""
    return ClosureGraph(
        parent=closure.parent,
        profit=closure.profit,
        price=lam * closure.price,
        start=closure.start,
        columns=closure.columns,
        column_price=lam * closure.column_price,
    )
