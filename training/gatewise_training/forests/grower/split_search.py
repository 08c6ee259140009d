"""The best boundary between two codes of one column, by minimax impurity or by gain.

Boundary e parts the codes up to the e-th that occurs at the node from those above.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from gatewise_training.forests.grower.histogram import all_right
from gatewise_training.forests.grower.impurity import change_of_pairs, entropy, gini

PAIRS, ENTROPY, GINI = 0, 1, 2


@numba.njit(cache=True, nogil=True)
def least_worst_pairs(
    count: Any, events: int, whole: Any, alpha: float, impurity: float, allowed: Any, left: Any,
    right: Any,
) -> Any:  # fmt: skip
    """Find the boundary with the least threshold-Pairs impurity of the worse child.

    From boundary to boundary the left child's impurity rises and the right one's falls (the
    function is monotone), so the search ends where they cross. For columns whose codes are not
    counted yet :func:`.minimax_split.crossing` does the same faster.

    Shapes: `count` (at least events, n_classes), `whole` (n_classes,), `left, right` (n_classes,).
    """
    n_right = all_right(whole, left, right)
    n_left = f_left = 0.0
    f_right = impurity
    best_worst = np.inf
    best_event = -1
    for e in range(events - 1):
        for m in range(len(whole)):
            more = count[e, m]
            if more:
                f_left += change_of_pairs(left, n_left, m, more, alpha)
                f_right += change_of_pairs(right, n_right, m, -more, alpha)
                left[m] += more
                right[m] -= more
                n_left += more
                n_right -= more
        worst = max(f_left, f_right)
        is_better = worst < best_worst or (worst == best_worst and f_left < f_right)
        if is_better and (len(allowed) == 0 or allowed[e]):
            best_worst = worst
            best_event = e
        if f_left >= f_right and worst >= best_worst:
            break
    return best_worst, best_event


@numba.njit(cache=True, nogil=True)
def best_gain(
    count: Any, events: int, whole: Any, rule: int, table: Any, impurity: float, allowed: Any,
    left: Any, right: Any,
) -> Any:  # fmt: skip
    """Find the boundary that lowers the summed impurity of the children most.

    As :func:`least_worst_pairs`, with `rule` ENTROPY or GINI and the table of logarithms. The gain
    is at least 0, or minus infinity if no boundary may be chosen; of the best the first is taken.
    """
    all_right(whole, left, right)
    best_score = -np.inf
    best_event = -1
    for e in range(events - 1):
        for m in range(len(whole)):
            left[m] += count[e, m]
            right[m] -= count[e, m]
        if len(allowed) and not allowed[e]:
            continue
        if rule == ENTROPY:
            gain = impurity - entropy(left, table) - entropy(right, table)
        else:
            gain = impurity - gini(left) - gini(right)
        if gain > best_score:
            best_score = gain
            best_event = e
    return max(best_score, 0.0) if best_event >= 0 else best_score, best_event


@numba.njit(cache=True, nogil=True)
def draw_stumps(
    code: Any, events: int, lower: Any, upper: Any, n_examples: int, allowed: Any, draws: Any
) -> None:
    """Mark the boundaries that random thresholds fall on (BudgetRF, section 3).

    80, 40 or 20 thresholds for more than 2000, more than 500, or fewer examples, uniform over the
    range of the values at the node. A boundary before NaN may always be chosen. `code` (int32) has
    the `events` codes that occur, ascending, `lower` and `upper` (float32) the values of the
    column's codes; `allowed` receives the answer, `draws` (float64, (80,)) is a working array.
    """
    real = events - 1 if code[events - 1] == len(lower) else events
    for e in range(events - 1):
        allowed[e] = e == real - 1
    if real < 2:
        return
    n_draws = 80 if n_examples > 2000 else 40 if n_examples > 500 else 20
    low = np.float64(lower[code[0]])
    high = np.float64(upper[code[real - 1]])
    for d in range(n_draws):
        draws[d] = low + (high - low) * np.random.random()  # noqa: NPY002  (numba's stream)
    for d in range(n_draws):
        # bisection for the last value that the threshold has reached
        reached = 0
        too_high = real
        while too_high - reached > 1:
            e = (reached + too_high) // 2
            if draws[d] >= upper[code[e]]:
                reached = e
            else:
                too_high = e
        if reached < real - 1 and draws[d] >= upper[code[reached]]:
            allowed[reached] = True
