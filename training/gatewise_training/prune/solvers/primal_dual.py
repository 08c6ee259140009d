"""BudgetPrune's primal-dual method: dual ascent with one tree recursion per step.

The method is algorithm 1 of Nan, Wang & Saligrama, "Pruning random forests for prediction on a
budget", NIPS 2016. A multiplier ``beta[h, c] >= 0`` charges node h for its part in acquisition c.
Given the multipliers, a recursion finds the best pruning of each tree (:mod:`.tree_recursion`). The
step ``beta <- beta + gamma (y_h - w_c)`` then ascends a concave lower bound on the optimum.

The implementation differs from the paper as follows. The changes cannot invalidate the bound,
because any feasible multipliers prove one.

- w is eliminated. The multipliers of an acquisition always add up to ``lam * price``, because a
  smaller sum never gives a better bound. Each step is therefore projected onto a simplex for each
  acquisition.
- The step length is Polyak's, computed from the gap between the best objective and the bound of the
  multipliers, and the steps are weighted by the prices.
- The direction is an average over steps, which converges to the fractional optimum (Barahona &
  Anbil, "The volume algorithm", 2000). Its level sets, and the prunings of the recursion, are
  repaired (:func:`.tree_recursion.repair`).

The method proves the gap between `objective` and `bound`. If the frontier is steep, many prunings
are nearly optimal and the gap closes slowly. The minimum cut is then the better solver.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from gatewise_training.prune.problem import Floats, NodeMask, PruneProblem, Solution, check_price
from gatewise_training.prune.tree_recursion import (
    PricedTrees,
    best_level_set,
    even_shares,
    merge_columns,
    repair,
)

#: Weight of the newest pruning in the average of the prunings.
NEWEST_WEIGHT = 0.15

#: Number of steps without a better bound after which the step length is halved.
PATIENCE = 8

#: Number of steps between two repairs.
REPAIR_INTERVAL = 10


def solve(
    problem: PruneProblem, lam: float, *, tolerance: float = 1e-4, max_iterations: int = 500
) -> Solution:
    """Prune by dual ascent, which is not exact but proves its gap."""
    lam = check_price(lam)
    problem = merge_columns(problem)
    start = problem.column_start
    nodes = problem.column_nodes
    trees = PricedTrees(problem, lam)
    price = trees.full_price
    beta = even_shares(problem, lam)
    best_beta = beta.copy()
    bound = -np.inf
    best_pruning = np.zeros(problem.n_nodes, np.bool_)
    objective = float(problem.objective(best_pruning, lam))
    average_share: Floats | None = None
    step_scale = 1.0
    n_stalled_steps = 0
    step = 0
    for step in range(1, max_iterations + 1):
        is_kept, gains = trees.prune(trees.charges(beta))
        dual_value = trees.bound_from_gains(gains)
        # lengthen the steps while the bound rises; otherwise return to the best multipliers with
        # shorter steps
        is_rising = step == 1 or dual_value > bound + 1e-3 * max(objective - bound, 0.0)
        if dual_value > bound:
            bound = dual_value
            best_beta[:] = beta
        if is_rising:
            step_scale = min(1.1 * step_scale, 2.0)
            n_stalled_steps = 0
        else:
            n_stalled_steps += 1
            if n_stalled_steps >= PATIENCE:
                step_scale *= 0.5
                n_stalled_steps = 0
                beta = best_beta.copy()
                dual_value = bound
        share = is_kept.astype(np.float64)
        average_share = (
            share
            if average_share is None
            else average_share + NEWEST_WEIGHT * (share - average_share)
        )
        is_repaired = step % REPAIR_INTERVAL == 1
        shares_to_repair = average_share if is_repaired else None
        for candidate, candidate_objective in _list_prunings(
            problem, lam, is_kept, shares_to_repair
        ):
            if candidate_objective < objective:
                best_pruning = candidate
                objective = candidate_objective
        gap = objective - bound
        if gap <= tolerance * abs(objective) or gap <= 1e-14:  # 1e-14: rounding at an optimum of 0
            break
        # Polyak's step length: step_scale * (objective - dual_value) / |slope|^2
        squared_slope = _compute_squared_slope(start, nodes, price, average_share)
        if squared_slope <= 0.0:
            average_share = share
            squared_slope = _compute_squared_slope(start, nodes, price, average_share)
        if squared_slope <= 0.0:  # the nodes of every acquisition agree, so the gap is 0
            break
        step_length = step_scale * (objective - dual_value) / squared_slope
        _ascend(start, nodes, price, average_share, step_length, beta)
    return Solution(best_pruning, objective, min(bound, objective), lam, step)


def _list_prunings(
    problem: PruneProblem, lam: float, is_kept: NodeMask, average_share: Floats | None
) -> list[tuple[NodeMask, float]]:
    """List the prunings that a step offers, with their objectives.

    They are the pruning of the step or, with the average of the shares, (n_nodes,), its repair and
    the repair of the average's best level set.
    """
    if average_share is None:
        return [(is_kept, float(problem.objective(is_kept, lam)))]
    level_set, _ = best_level_set(problem, average_share, lam)
    return [repair(problem, is_kept, lam), repair(problem, level_set, lam)]


@numba.njit(cache=True, nogil=True)
def _compute_squared_slope(start: Any, nodes: Any, price: Any, share: Any) -> float:
    """Squared slope along the simplices: ``sum_c price_c sum_h (share_h - mean_c)^2``."""
    squared_slope = 0.0
    for column in range(len(price)):
        n_nodes = start[column + 1] - start[column]
        if n_nodes < 2:
            continue
        mean = 0.0
        for use in range(start[column], start[column + 1]):
            mean += share[nodes[use]]
        mean /= n_nodes
        squared_deviations = 0.0
        for use in range(start[column], start[column + 1]):
            squared_deviations += (share[nodes[use]] - mean) ** 2
        squared_slope += price[column] * squared_deviations
    return squared_slope


@numba.njit(cache=True, nogil=True)
def _ascend(start: Any, nodes: Any, price: Any, share: Any, step_length: float, beta: Any) -> None:
    """Add ``step_length * price * share`` to the multipliers, and project them onto the simplices.

    The multipliers of an acquisition are at least 0 and add up to its price.
    """
    for column in range(len(price)):
        begin = start[column]
        end = start[column + 1]
        if end - begin < 2 or price[column] <= 0.0:
            continue
        beta_sum = 0.0
        for use in range(begin, end):
            beta[use] += step_length * price[column] * share[nodes[use]]
            beta_sum += beta[use]
        # Michelot's projection (1986): max(beta - offset, 0), whose entries sum to the price
        n_positive = end - begin
        offset = (beta_sum - price[column]) / n_positive
        while True:
            n_above = 0
            beta_sum_above = 0.0
            for use in range(begin, end):
                if beta[use] > offset:
                    n_above += 1
                    beta_sum_above += beta[use]
            if n_above >= n_positive:  # rounding at a tie may raise the number, without end
                break
            n_positive = n_above
            offset = (beta_sum_above - price[column]) / n_positive
        for use in range(begin, end):
            beta[use] = max(beta[use] - offset, 0.0)
