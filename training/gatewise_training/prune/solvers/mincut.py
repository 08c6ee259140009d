"""The exact solver: one minimum cut, by push-relabel on the implicit graph.

A maximum closure is a minimum cut (Picard, 1976): profits flow from the source into the nodes, from
a node to its parent and to what it acquires without limit, and out to the sink up to the prices.
Nodes from which the sink cannot be reached any more are those that pay for themselves; they stay.

Push-relabel (Goldberg & Tarjan, 1988) with a first-in first-out queue, gaps and global relabelling;
only its first phase, since the cut is wanted and not the flow
(:mod:`.push_relabel`). Before it, profits flow greedily from the leaves
upwards, or as a cut at another price has left them. The flow found proves the optimum: what reaches
the sink is the value of the cut, so ``bound`` is computed from the flow and not assumed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gatewise_training.prune.presolve import FREE, Closure, Flow, reduce_problem
from gatewise_training.prune.problem import PruneProblem, Solution, check_price
from gatewise_training.prune.solvers.push_relabel import fill, improve_flow

TOLERANCE = 1e-12
"""Share of the profits that may be left unsent though the sink can be reached: rounding."""


def solve(problem: PruneProblem, lam: float) -> Solution:
    """Find the optimal pruning for one price of cost; of several the one that keeps most.

    `iterations` of the solution are relabellings.
    """
    lam = check_price(lam)
    closure, place = reduce_problem(problem)
    kept, reached, iterations = best_closure(closure, lam)
    keep = np.append(kept, [False, True])[place]
    free = float(problem.profit[place == FREE].sum())
    bound = problem.base_error - free - (closure.worth - reached)
    return Solution(keep, problem.objective(keep, lam), bound, lam, iterations)


def best_closure(
    closure: Closure, lam: float, flow: Flow | None = None
) -> tuple[NDArray[np.bool_], float, int]:
    """Find the closure of greatest profit less ``lam`` times price.

    A `flow` to start from, of this closure at another price, is changed into this one's.

    Shapes: returns `kept` (n_nodes,).
    """
    flow = first_flow(closure, lam) if flow is None else flow
    kept, reached, rounds = improve_flow(
        _graph(closure, lam), flow.acquired, flow.up, TOLERANCE * closure.worth
    )
    return kept, float(reached), int(rounds)


def first_flow(closure: Closure, lam: float) -> Flow:
    """Make a good flow in one pass: every node pays what it can, its parent gets the rest."""
    flow = Flow.none(closure)
    fill(_graph(closure, lam), flow.acquired, flow.up)
    return flow


def _graph(closure: Closure, lam: float) -> tuple[NDArray[Any], ...]:
    """Edges, inflows and capacities of the closure problem, prices times ``lam``."""
    return (
        closure.parent, closure.profit, lam * closure.price, closure.start, closure.columns,
        lam * closure.column_price,
    )  # fmt: skip
