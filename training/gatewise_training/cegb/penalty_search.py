"""Search for penalties that give models over the whole range of costs.

With a fixed list of penalties, the cheapest model may use one feature and the next one five. The
search always places the next penalty in the widest gap between the costs of known models, on a log
scale.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from typing import Final

from gatewise.costs import FeatureCosts

#: Penalties that every search starts with in addition to 0, in nats per feature of mean price.
FIRST_PENALTIES: Final = (3e-2, 1e-3)
#: Beyond the smallest and the largest penalty so far, the search continues by this factor.
STEP_FACTOR: Final = 4.0
#: Bounds of the search.
MIN_PENALTY: Final = 1e-8
MAX_PENALTY: Final = 1e3
#: Smallest ratio of two neighbouring penalties between which another one is tried.
MIN_RATIO: Final = 1.02


def spread_penalties(
    cost_at: Callable[[float], float], costs: FeatureCosts, n_penalties: int
) -> list[float]:
    """Find at most `n_penalties` penalties by the costs of their fits, from the highest down to 0.

    `cost_at` fits a penalty and returns the cost of the model.
    """
    first_penalties = (0.0, *FIRST_PENALTIES[: n_penalties - 1])
    cost_by_penalty = {penalty: cost_at(penalty) for penalty in first_penalties} | {math.inf: 0.0}
    while len(cost_by_penalty) <= n_penalties and cost_by_penalty[0.0] > 0:
        penalty = penalty_in_widest_gap(cost_by_penalty, costs)
        if penalty is None:
            break
        cost_by_penalty[penalty] = cost_at(penalty)
    return sorted((penalty for penalty in cost_by_penalty if penalty < math.inf), reverse=True)


def penalty_in_widest_gap(
    cost_by_penalty: Mapping[float, float], costs: FeatureCosts
) -> float | None:
    """Find a penalty in the widest gap between the known costs, or None if no gap is left.

    `cost_by_penalty` maps penalties, which include 0 and infinity, to the costs of their models.
    """
    prices = costs.standalone_prices[costs.standalone_prices > 0]
    half_price = float(prices.min()) / 2.0 if len(prices) else 1.0

    def log_cost(penalty: float) -> float:
        return math.log(max(cost_by_penalty[penalty], half_price))

    gaps = [
        (log_cost(lower) - log_cost(higher), lower, higher)
        for lower, higher in pairwise(sorted(cost_by_penalty))
    ]
    for gap, lower, higher in sorted(gaps, reverse=True):
        new_penalty = middle_penalty(lower, higher, cost_by_penalty)
        if gap > 0 and new_penalty is not None:
            return new_penalty
    return None


def middle_penalty(lower: float, higher: float, penalties: Iterable[float]) -> float | None:
    """Find a penalty between two neighbours among `penalties`, or None if they are too close."""
    finite_penalties = [penalty for penalty in penalties if 0 < penalty < math.inf]
    if not finite_penalties:
        return None
    if lower == 0.0:
        return min(finite_penalties) / STEP_FACTOR if min(finite_penalties) > MIN_PENALTY else None
    if math.isinf(higher):
        return max(finite_penalties) * STEP_FACTOR if max(finite_penalties) < MAX_PENALTY else None
    return math.sqrt(lower * higher) if higher > MIN_RATIO * lower else None
