"""Parts of a cascade with which no instance costs more than a cap.

The cost of an instance is bounded by that of the costliest exit that it can reach: the features of
all stages up to there, or of all stages and the high-cost model, and the price of the request. A
cascade whose offloads would cost more than the cap is taken apart: into stages that never offload,
and into stages few enough that an offload after them still keeps the cap.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

ExitLimits = Callable[[Sequence[int]], NDArray[np.float64]]
"""The most that leaving at each exit can cost with some of a cascade's stages alone."""


def stages_within_cost(
    limits: ExitLimits, first_stages: Sequence[int], n_stages: int, most: float
) -> list[tuple[int, ...]]:
    """List choices of stages that an instance can run within a cap; each as rising numbers.

    A cascade that keeps the cap is kept as it is. Of one that does not there are the first stages
    that keep it together without an offload, the same with one, and each of `first_stages`, those
    that a cascade may begin with, alone.

    Stages at 1, 3 and 5, a high-cost model for 4 more:

    >>> costs = np.array([1.0, 3.0, 5.0])
    >>> def limits(kept):
    ...     paid = np.cumsum(costs[list(kept)])
    ...     return np.append(paid, paid[-1] + 4.0)
    >>> stages_within_cost(limits, (0, 1, 2), 3, 13.0)
    [(0, 1, 2)]
    >>> stages_within_cost(limits, (0, 1, 2), 3, 5.0)
    [(0, 1), (0,), (1,), (2,)]
    """
    if limits(range(n_stages))[-1] <= most:
        return [tuple(range(n_stages))]
    found: list[tuple[int, ...]] = []
    for last in (-2, -1):  # the last stage, the high-cost model
        kept: list[int] = []
        for s in range(n_stages):
            if (kept or s in first_stages) and limits([*kept, s])[last] <= most:
                kept.append(s)
        found += [tuple(kept)] * bool(kept)
    alone = [(s,) for s in first_stages if limits([s])[0] <= most]
    return list(dict.fromkeys([*found, *alone]))
