"""BudgetPrune's primal-dual method: ascent on the multipliers, a tree recursion a step.

Nan, Wang & Saligrama, "Pruning random forests for prediction on a budget", NIPS 2016, algorithm 1.
A multiplier ``beta[h, c] >= 0`` charges node h for its part in the acquisition c. Given the
multipliers, the best pruning of each tree comes bottom up (:mod:`.tree_recursion`), and
``beta <- beta + gamma (y_h - w_c)`` goes uphill on a concave bound of the optimum.

Beyond the paper, all of it safe because any feasible multipliers prove their bound:

- w is eliminated: the multipliers of an acquisition add up to ``lam * price`` (more is never worse
  up to there), so that a step is projected onto a simplex for each acquisition;
- the step length is Polyak's, from the gap itself, on steps weighted by the prices;
- the direction is an average over steps, whose limit is the fractional optimum (Barahona & Anbil,
  "The volume algorithm", 2000); its level sets, and the trees' own prunings, are repaired into good
  ones (:func:`.tree_recursion.improved`).

The gap between `objective` and `bound` is what the method proves. Where the frontier is steep, many
prunings are nearly optimal and the gap closes slowly: the minimum cut is the solver to use.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from gatewise_training.prune.problem import Floats, PruneProblem, Solution, check_price
from gatewise_training.prune.tree_recursion import (
    PricedTrees,
    even_shares,
    improved,
    level_sets,
    merged,
)

AVERAGING = 0.15
"""Weight of the newest pruning in the average."""

PATIENCE = 8
"""Steps without a better bound after which steps become shorter."""

REPAIR_EVERY = 10
"""Steps between repairs of the average's level sets."""


def solve(
    problem: PruneProblem,
    lam: float,
    *,
    tolerance: float = 1e-4,
    max_iterations: int = 500,
) -> Solution:
    """Prune by dual ascent; not exact, but its gap is proved. Acquisitions are merged first."""
    lam, problem = check_price(lam), merged(problem)
    start, nodes = problem.column_start, problem.column_nodes
    trees = PricedTrees(problem, lam)
    price = trees.full_price
    beta = even_shares(problem, lam)
    best_beta, bound = beta.copy(), -np.inf
    keep = np.zeros(problem.n_nodes, np.bool_)
    objective = float(problem.objective(keep, lam))
    average: Floats | None = None
    length, waiting, step = 1.0, 0, 0
    for step in range(1, max_iterations + 1):
        found, gain = trees.best(trees.charges(beta))
        value = trees.bound(gain)
        if value > bound + 1e-3 * max(objective - bound, 0.0):
            length, waiting = min(1.1 * length, 2.0), 0
        else:
            waiting += 1
            if waiting >= PATIENCE:
                # start again from the best multipliers, with half the step
                length, waiting = 0.5 * length, 0
                beta = best_beta.copy()
        if value > bound:
            bound = value
            best_beta[:] = beta
        share = found.astype(np.float64)
        average = share if average is None else average + AVERAGING * (share - average)
        if step % REPAIR_EVERY == 1:
            mixture, _ = level_sets(problem, average, lam)
            tried = [improved(problem, each, lam) for each in (found, mixture)]
        else:
            tried = [(found, float(problem.objective(found, lam)))]
        for other, cost in tried:
            if cost < objective:
                keep, objective = other, cost
        gap = objective - bound
        if gap <= tolerance * abs(objective) or gap <= 1e-14:
            break
        square = _squared_slope(start, nodes, price, average)
        if square <= 0.0:
            average = share
            square = _squared_slope(start, nodes, price, average)
        if square <= 0.0:  # every acquisition's nodes agree: the bound is the objective
            break
        _climb(start, nodes, price, average, length * (objective - value) / square, beta)
    return Solution(keep, objective, min(bound, objective), lam, step)


@numba.njit(cache=True, nogil=True)
def _squared_slope(start: Any, nodes: Any, price: Any, share: Any) -> float:
    """Squared slope along the simplices, each acquisition weighted by its price."""
    total = 0.0
    for c in range(len(price)):
        first, last = start[c], start[c + 1]
        if last - first < 2:
            continue
        mean = 0.0
        for j in range(first, last):
            mean += share[nodes[j]]
        mean /= last - first
        part = 0.0
        for j in range(first, last):
            part += (share[nodes[j]] - mean) ** 2
        total += price[c] * part
    return total


@numba.njit(cache=True, nogil=True)
def _climb(start: Any, nodes: Any, price: Any, share: Any, length: float, beta: Any) -> None:
    """Go up by ``length * price * share`` and project each acquisition's onto its simplex."""
    for c in range(len(price)):
        first, last = start[c], start[c + 1]
        if last - first < 2 or price[c] <= 0.0:
            continue
        total = 0.0
        for j in range(first, last):
            beta[j] += length * price[c] * share[nodes[j]]
            total += beta[j]
        # Michelot's projection: take the excess off evenly; who falls below 0 leaves
        count, excess = last - first, total - price[c]
        cut = excess / count
        while True:
            left, rest = 0, 0.0
            for j in range(first, last):
                if beta[j] > cut:
                    left += 1
                    rest += beta[j]
            if left >= count:  # more only by rounding, at a tie; it would go on for ever
                break
            count = left
            cut = (rest - price[c]) / count
        for j in range(first, last):
            beta[j] = max(beta[j] - cut, 0.0)
