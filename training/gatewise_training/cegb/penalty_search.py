"""A search for penalties: the costs of their models cover the range from no feature to all.

Where a fixed list of penalties has a model of one feature and then one of five, the search goes on
in between: the next penalty always goes into the widest gap between costs, on a log scale.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from typing import Final

from gatewise.costs import FeatureCosts

#: Penalties that every search starts with, in addition to 0: nats per feature of mean price.
FIRST: Final = (3e-2, 1e-3)
#: Beyond the outermost penalties the search goes on by this factor, and no further than these.
STEP: Final = 4.0
SMALLEST: Final = 1e-8
LARGEST: Final = 1e3
#: Penalties nearer to each other than this factor are not parted.
CLOSE: Final = 1.02


def spread_penalties(
    cost_at: Callable[[float], float], costs: FeatureCosts, n_penalties: int
) -> list[float]:
    """Find `n_penalties` penalties, from the highest down to 0, by the costs of their fits."""
    cost_of = {p: cost_at(p) for p in (0.0, *FIRST[: n_penalties - 1])} | {math.inf: 0.0}
    while len(cost_of) <= n_penalties and cost_of[0.0] > 0:
        penalty = in_widest_gap(cost_of, costs)
        if penalty is None:
            break
        cost_of[penalty] = cost_at(penalty)
    return sorted((p for p in cost_of if p < math.inf), reverse=True)


def in_widest_gap(cost_of: Mapping[float, float], costs: FeatureCosts) -> float | None:
    """Get a penalty in the widest gap between costs of 0 and infinity; None if all are closed."""
    prices = costs.alone[costs.alone > 0]
    half_price = float(prices.min()) / 2.0 if len(prices) else 1.0

    def height(penalty: float) -> float:
        return math.log(max(cost_of[penalty], half_price))

    pairs = list(pairwise(sorted(cost_of)))
    for gap, a, b in sorted(((height(a) - height(b), a, b) for a, b in pairs), reverse=True):
        middle = between(a, b, cost_of)
        if gap > 0 and middle is not None:
            return middle
    return None


def between(a: float, b: float, penalties: Iterable[float]) -> float | None:
    """Get a penalty between two neighbours among `penalties`; None if they are near enough."""
    finite = [p for p in penalties if 0 < p < math.inf]
    if not finite:
        return None
    if a == 0.0:
        return min(finite) / STEP if min(finite) > SMALLEST else None
    if math.isinf(b):
        return max(finite) * STEP if max(finite) < LARGEST else None
    return math.sqrt(a * b) if b > CLOSE * a else None
