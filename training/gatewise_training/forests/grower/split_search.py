"""Search for the best boundary between two codes of one column, by minimax impurity or by gain.

A code is the number of a bin of the column's values, and an event is a code that occurs at the
node. Boundary e separates the first e + 1 of these codes from the codes above them. The loops over
m are over classes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba
import numpy as np

from gatewise_training.forests.grower.histogram import put_all_right
from gatewise_training.forests.grower.impurity import change_of_pairs, entropy

#: Criteria of a split, as integers, because kernels compare them faster than strings.
PAIRS, ENTROPY = 0, 1

#: Largest number of random thresholds per column and node (BudgetRF, section 3).
MAX_DRAWS = 80


class GrowthRule(NamedTuple):
    """Settings of a tree's growth."""

    criterion: int  # PAIRS or ENTROPY
    alpha: float  # threshold of Pairs, in examples
    mu: float  # a split loses mu * price of its gain for each example that acquires the feature
    stumps: bool  # whether only random thresholds are tried
    max_depth: int
    log_table: Any  # (n_examples + 1,): :func:`.log_table`, for ENTROPY


@numba.njit(cache=True, nogil=True)
def minimax_pairs(
    counts_by_code: Any, n_events: int, node: Any, alpha: float, is_allowed: Any, crossing_work: Any
) -> Any:
    """Find the boundary that minimises the larger threshold-Pairs impurity of the two children.

    From one boundary to the next the left impurity rises and the right one falls, because the
    function is monotone. The search therefore ends where they cross. If the codes of a column are
    not counted yet, :func:`.minimax_split.find_crossing` gives the same result faster.

    `counts_by_code`, (n_events, n_classes), are the examples of each code that occurs.
    `is_allowed`, (n_events - 1,), marks the boundaries that may be chosen; if it is empty, all may
    be chosen. `crossing_work` is a :class:`.CrossingWork`. Returns the impurity and the index of
    the boundary, or -1.
    """
    left = crossing_work.left
    right = crossing_work.right
    n_classes = len(left)
    n_right = put_all_right(node.counts, left, right)
    n_left = left_impurity = 0.0
    right_impurity = node.impurity
    best_impurity = np.inf
    best_boundary = -1
    for boundary in range(n_events - 1):
        for m in range(n_classes):
            n_moved = counts_by_code[boundary, m]
            if n_moved:
                left_impurity += change_of_pairs(left, n_left, m, n_moved, alpha)
                right_impurity += change_of_pairs(right, n_right, m, -n_moved, alpha)
                left[m] += n_moved
                right[m] -= n_moved
                n_left += n_moved
                n_right -= n_moved
        impurity = max(left_impurity, right_impurity)
        # if several boundaries are equally good, the last one before the crossing wins, as in
        # find_crossing
        is_tie = impurity == best_impurity and left_impurity < right_impurity
        is_better = impurity < best_impurity or is_tie
        if is_better and (len(is_allowed) == 0 or is_allowed[boundary]):
            best_impurity = impurity
            best_boundary = boundary
        if left_impurity >= right_impurity and impurity >= best_impurity:
            break
    return best_impurity, best_boundary


@numba.njit(cache=True, nogil=True)
def best_gain(
    counts_by_code: Any, n_events: int, node: Any, rule: Any, is_allowed: Any, crossing_work: Any
) -> Any:
    """Find the boundary with the largest gain, which is the decrease of the summed entropy.

    Arrays are as for :func:`minimax_pairs`. Returns the gain, which is at least 0, and the index of
    the boundary. If no boundary may be chosen, the gain is minus infinity and the index -1. If
    several boundaries are equally good, the first one is chosen.
    """
    left = crossing_work.left
    right = crossing_work.right
    n_classes = len(left)
    log_table = rule.log_table
    put_all_right(node.counts, left, right)
    largest_gain = -np.inf
    best_boundary = -1
    for boundary in range(n_events - 1):
        for m in range(n_classes):
            left[m] += counts_by_code[boundary, m]
            right[m] -= counts_by_code[boundary, m]
        if len(is_allowed) and not is_allowed[boundary]:
            continue
        gain = node.impurity - entropy(left, log_table) - entropy(right, log_table)
        if gain > largest_gain:
            largest_gain = gain
            best_boundary = boundary
    if best_boundary >= 0:
        largest_gain = max(largest_gain, 0.0)  # rounding may make it negative
    return largest_gain, best_boundary


@numba.njit(cache=True, nogil=True)
def draw_stumps(
    codes: Any, lower: Any, upper: Any, n_examples: int, is_allowed: Any, thresholds: Any
) -> None:
    """Mark the boundaries that random thresholds fall on (BudgetRF, section 3).

    As in the paper, there are 80 thresholds for more than 2,000 examples, 40 for more than 500, and
    20 otherwise. They are uniform over the range of the values at the node. The boundary before NaN
    may always be chosen, because no threshold falls on it.

    `codes`, (n_events,), are the codes that occur, ascending. `lower` and `upper` are the smallest
    and largest values of all codes of the column. The marks are written to `is_allowed`, at least
    (n_events - 1,), and `thresholds`, (MAX_DRAWS,), is a working array.
    """
    n_events = len(codes)
    n_numbers = n_events - 1 if codes[n_events - 1] == len(lower) else n_events
    for boundary in range(n_events - 1):
        is_allowed[boundary] = boundary == n_numbers - 1
    if n_numbers < 2:
        return
    if n_examples > 2000:
        n_draws = MAX_DRAWS
    elif n_examples > 500:
        n_draws = 40
    else:
        n_draws = 20
    low = np.float64(lower[codes[0]])
    high = np.float64(upper[codes[n_numbers - 1]])
    for i in range(n_draws):
        thresholds[i] = low + (high - low) * np.random.random()  # noqa: NPY002  (numba's stream)
    for i in range(n_draws):
        # bisection for the last code that is completely below the threshold
        lowest = 0
        highest = n_numbers
        while highest - lowest > 1:
            boundary = (lowest + highest) // 2
            if thresholds[i] >= upper[codes[boundary]]:
                lowest = boundary
            else:
                highest = boundary
        if lowest < n_numbers - 1 and thresholds[i] >= upper[codes[lowest]]:
            is_allowed[lowest] = True
