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
  "The volume algorithm", 2000); its level sets, and the trees' own prunings, are repaired
  (:func:`.tree_recursion.improved`).

The method proves the gap between `objective` and `bound`. Where the frontier is steep, many
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
    lam = check_price(lam)
    problem = merged(problem)
    start, nodes = problem.column_start, problem.column_nodes
    trees = PricedTrees(problem, lam)
    price = trees.full_price
    beta = even_shares(problem, lam)
    best_beta = beta.copy()
    bound = -np.inf
    best_keep = np.zeros(problem.n_nodes, np.bool_)
    objective = float(problem.objective(best_keep, lam))
    average: Floats | None = None
    length = 1.0
    n_waited = step = 0
    for step in range(1, max_iterations + 1):
        keep, gain = trees.best(trees.charges(beta))
        value = trees.bound(gain)
        # longer steps while the bound rises; else, again from the best multipliers, shorter ones
        if value > bound + 1e-3 * max(objective - bound, 0.0):
            length = min(1.1 * length, 2.0)
            n_waited = 0
        else:
            n_waited += 1
            if n_waited >= PATIENCE:
                length *= 0.5
                n_waited = 0
                beta = best_beta.copy()
        if value > bound:
            bound = value
            best_beta[:] = beta
        # prunings from this step and, now and then, from the average of the steps
        share = keep.astype(np.float64)
        average = share if average is None else average + AVERAGING * (share - average)
        if step % REPAIR_EVERY == 1:
            mixture, _ = level_sets(problem, average, lam)
            candidates = [improved(problem, keep, lam), improved(problem, mixture, lam)]
        else:
            candidates = [(keep, float(problem.objective(keep, lam)))]
        for candidate, candidate_objective in candidates:
            if candidate_objective < objective:
                best_keep = candidate
                objective = candidate_objective
        gap = objective - bound
        if gap <= tolerance * abs(objective) or gap <= 1e-14:
            break
        # Polyak's step: length * gap / |slope|^2
        square = _squared_slope(start, nodes, price, average)
        if square <= 0.0:
            average = share
            square = _squared_slope(start, nodes, price, average)
        if square <= 0.0:  # every acquisition's nodes agree: the bound is the objective
            break
        _climb(start, nodes, price, average, length * (objective - value) / square, beta)
    return Solution(best_keep, objective, min(bound, objective), lam, step)


@numba.njit(cache=True, nogil=True)
def _squared_slope(start: Any, nodes: Any, price: Any, share: Any) -> float:
    """Squared slope along the simplices: ``sum_c price_c sum_h (share_h - mean_c)^2``."""
    total = 0.0
    for c in range(len(price)):
        n_nodes = start[c + 1] - start[c]
        if n_nodes < 2:
            continue
        mean = 0.0
        for j in range(start[c], start[c + 1]):
            mean += share[nodes[j]]
        mean /= n_nodes
        squares = 0.0
        for j in range(start[c], start[c + 1]):
            squares += (share[nodes[j]] - mean) ** 2
        total += price[c] * squares
    return total


@numba.njit(cache=True, nogil=True)
def _climb(start: Any, nodes: Any, price: Any, share: Any, length: float, beta: Any) -> None:
    """Add ``length * price * share``, and project each acquisition's onto its simplex."""
    for c in range(len(price)):
        begin = start[c]
        end = start[c + 1]
        if end - begin < 2 or price[c] <= 0.0:
            continue
        total = 0.0
        for j in range(begin, end):
            beta[j] += length * price[c] * share[nodes[j]]
            total += beta[j]
        # Michelot's projection: max(beta - cut, 0), whose positive entries sum to the price
        n_positive = end - begin
        cut = (total - price[c]) / n_positive
        while True:
            n_above = 0
            sum_above = 0.0
            for j in range(begin, end):
                if beta[j] > cut:
                    n_above += 1
                    sum_above += beta[j]
            if n_above >= n_positive:  # above by rounding at a tie, which would never end
                break
            n_positive = n_above
            cut = (sum_above - price[c]) / n_positive
        for j in range(begin, end):
            beta[j] = max(beta[j] - cut, 0.0)
