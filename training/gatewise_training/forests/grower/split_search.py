"""The best boundary between two codes of one column, by minimax impurity or by gain.

Boundary e parts the codes up to the e-th that occurs at the node from those above.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba
import numpy as np

from gatewise_training.forests.grower.histogram import all_right
from gatewise_training.forests.grower.impurity import change_of_pairs, entropy

PAIRS, ENTROPY = 0, 1


class GrowthRule(NamedTuple):
    """Settings of a tree's growth."""

    criterion: int  # PAIRS or ENTROPY
    alpha: float  # threshold of Pairs, in examples
    mu: float  # gain that one example's acquisition of unit price must bring
    stumps: bool  # random thresholds alone
    max_depth: int
    log_table: Any  # (n_examples + 1,), of :func:`.log_table`, for ENTROPY


@numba.njit(cache=True, nogil=True)
def least_worst_pairs(
    count: Any, n_events: int, node: Any, alpha: float, allowed: Any, work: Any
) -> Any:
    """Find the boundary with the least threshold-Pairs impurity of the worse child.

    From boundary to boundary the left child's impurity rises and the right one's falls (the
    function is monotone), so the search ends where they cross. For columns whose codes are not
    counted yet :func:`.minimax_split.crossing` does the same faster.

    `count`, (n_events, n_classes), are the examples of each code that occurs; `allowed`,
    (n_events - 1,), marks the boundaries that may be chosen, all where it is empty; `work` is a
    :class:`.CrossingWork`. Returns the impurity and the number of the boundary, -1 without any.
    """
    left = work.left
    right = work.right
    n_classes = len(left)
    n_right = all_right(node.counts, left, right)
    n_left = f_left = 0.0
    f_right = node.impurity
    best_worst = np.inf
    best_event = -1
    for e in range(n_events - 1):
        for m in range(n_classes):
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
def best_gain(count: Any, n_events: int, node: Any, rule: Any, allowed: Any, work: Any) -> Any:
    """Find the boundary that lowers the summed entropy of the children most.

    Arrays as for :func:`least_worst_pairs`. The gain is at least 0, or minus infinity if no
    boundary may be chosen; the first of the best is taken.
    """
    left = work.left
    right = work.right
    n_classes = len(left)
    table = rule.log_table
    all_right(node.counts, left, right)
    best_score = -np.inf
    best_event = -1
    for e in range(n_events - 1):
        for m in range(n_classes):
            left[m] += count[e, m]
            right[m] -= count[e, m]
        if len(allowed) and not allowed[e]:
            continue
        gain = node.impurity - entropy(left, table) - entropy(right, table)
        if gain > best_score:
            best_score = gain
            best_event = e
    return max(best_score, 0.0) if best_event >= 0 else best_score, best_event


@numba.njit(cache=True, nogil=True)
def draw_stumps(
    code: Any, lower: Any, upper: Any, n_examples: int, allowed: Any, draws: Any
) -> None:
    """Mark the boundaries that random thresholds fall on (BudgetRF, section 3).

    80, 40 or 20 thresholds for more than 2000, more than 500, or fewer examples, uniform over the
    range of the values at the node. A boundary before NaN may always be chosen.

    `code`, (n_events,), are the codes that occur, ascending; `lower` and `upper` the values of the
    column's codes; `allowed`, at least (n_events - 1,), receives the marks; `draws`, (80,), is a
    working array.
    """
    n_events = len(code)
    n_numbers = n_events - 1 if code[n_events - 1] == len(lower) else n_events
    for e in range(n_events - 1):
        allowed[e] = e == n_numbers - 1
    if n_numbers < 2:
        return
    n_draws = 80 if n_examples > 2000 else 40 if n_examples > 500 else 20
    low = np.float64(lower[code[0]])
    high = np.float64(upper[code[n_numbers - 1]])
    for d in range(n_draws):
        draws[d] = low + (high - low) * np.random.random()  # noqa: NPY002  (numba's stream)
    for d in range(n_draws):
        # bisection for the last value that the threshold has reached
        reached = 0
        too_high = n_numbers
        while too_high - reached > 1:
            e = (reached + too_high) // 2
            if draws[d] >= upper[code[e]]:
                reached = e
            else:
                too_high = e
        if reached < n_numbers - 1 and draws[d] >= upper[code[reached]]:
            allowed[reached] = True
