"""Search for the best boundary between two codes of one column, by minimax impurity or by gain.

Boundary e separates the first e + 1 codes that occur at the node from the codes above them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba
import numpy as np

from gatewise_training.forests.grower.histogram import put_all_right
from gatewise_training.forests.grower.impurity import change_of_pairs, entropy

PAIRS, ENTROPY = 0, 1


class GrowthRule(NamedTuple):
    """Settings of a tree's growth."""

    criterion: int  # PAIRS or ENTROPY
    alpha: float  # threshold of Pairs, in examples
    mu: float  # gain that an acquisition of unit price by one example must bring
    stumps: bool  # whether only random thresholds are tried
    max_depth: int
    log_table: Any  # (n_examples + 1,): :func:`.log_table`, for ENTROPY


@numba.njit(cache=True, nogil=True)
def minimax_pairs(
    count: Any, n_events: int, node: Any, alpha: float, is_allowed: Any, work: Any
) -> Any:
    """Find the boundary that minimises the larger threshold-Pairs impurity of the two children.

    From one boundary to the next the left impurity rises and the right one falls, because the
    function is monotone. The search therefore ends where they cross. If the codes of a column are
    not counted yet, :func:`.minimax_split.find_crossing` gives the same result faster.

    `count`, (n_events, n_classes), are the examples of each code that occurs. `is_allowed`,
    (n_events - 1,), marks the boundaries that may be chosen; if it is empty, all may be chosen.
    `work` is a :class:`.CrossingWork`. Returns the impurity and the index of the boundary, or -1.
    """
    left = work.left
    right = work.right
    n_classes = len(left)
    n_right = put_all_right(node.counts, left, right)
    n_left = f_left = 0.0
    f_right = node.impurity
    best_impurity = np.inf
    best_event = -1
    for e in range(n_events - 1):
        for m in range(n_classes):
            n_moved = count[e, m]
            if n_moved:
                f_left += change_of_pairs(left, n_left, m, n_moved, alpha)
                f_right += change_of_pairs(right, n_right, m, -n_moved, alpha)
                left[m] += n_moved
                right[m] -= n_moved
                n_left += n_moved
                n_right -= n_moved
        impurity = max(f_left, f_right)
        is_tie = impurity == best_impurity and f_left < f_right
        is_better = impurity < best_impurity or is_tie
        if is_better and (len(is_allowed) == 0 or is_allowed[e]):
            best_impurity = impurity
            best_event = e
        if f_left >= f_right and impurity >= best_impurity:
            break
    return best_impurity, best_event


@numba.njit(cache=True, nogil=True)
def best_gain(count: Any, n_events: int, node: Any, rule: Any, is_allowed: Any, work: Any) -> Any:
    """Find the boundary with the largest gain, which is the decrease of the summed entropy.

    Arrays are as for :func:`minimax_pairs`. Returns the gain, which is at least 0, and the index of
    the boundary. If no boundary may be chosen, they are minus infinity and -1. Of several equally
    good boundaries the first one is chosen.
    """
    left = work.left
    right = work.right
    n_classes = len(left)
    table = rule.log_table
    put_all_right(node.counts, left, right)
    best_score = -np.inf
    best_event = -1
    for e in range(n_events - 1):
        for m in range(n_classes):
            left[m] += count[e, m]
            right[m] -= count[e, m]
        if len(is_allowed) and not is_allowed[e]:
            continue
        gain = node.impurity - entropy(left, table) - entropy(right, table)
        if gain > best_score:
            best_score = gain
            best_event = e
    return max(best_score, 0.0) if best_event >= 0 else best_score, best_event


@numba.njit(cache=True, nogil=True)
def draw_stumps(
    code: Any, lower: Any, upper: Any, n_examples: int, is_allowed: Any, draws: Any
) -> None:
    """Mark the boundaries that random thresholds fall on (BudgetRF, section 3).

    There are 80 thresholds for more than 2,000 examples, 40 for more than 500, and 20 otherwise.
    They are uniform over the range of the values at the node. The boundary before NaN may always be
    chosen.

    `code`, (n_events,), are the codes that occur, ascending. `lower` and `upper` are the smallest
    and largest values of all codes of the column. The marks are written to `is_allowed`, at least
    (n_events - 1,), and `draws`, (80,), is a working array.
    """
    n_events = len(code)
    n_numbers = n_events - 1 if code[n_events - 1] == len(lower) else n_events
    for e in range(n_events - 1):
        is_allowed[e] = e == n_numbers - 1
    if n_numbers < 2:
        return
    n_draws = 80 if n_examples > 2000 else 40 if n_examples > 500 else 20
    low = np.float64(lower[code[0]])
    high = np.float64(upper[code[n_numbers - 1]])
    for d in range(n_draws):
        draws[d] = low + (high - low) * np.random.random()  # noqa: NPY002  (numba's stream)
    for d in range(n_draws):
        # bisection for the last code that is completely below the threshold
        lower_event = 0
        upper_event = n_numbers
        while upper_event - lower_event > 1:
            e = (lower_event + upper_event) // 2
            if draws[d] >= upper[code[e]]:
                lower_event = e
            else:
                upper_event = e
        if lower_event < n_numbers - 1 and draws[d] >= upper[code[lower_event]]:
            is_allowed[lower_event] = True
