"""The best minimax boundary of one column, without sorting it.

Along the codes of a column the left child's threshold-Pairs impurity rises from 0 to the node's,
and the right child's falls from there to 0. The worse child is least just before or just after the
code at which they cross. So only the neighbourhood of the crossing is examined: rows are counted
into coarse bins of codes, the bin with the crossing is counted into finer bins, and so on.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from gatewise_training.forests.grower.histogram import all_right
from gatewise_training.forests.grower.impurity import change_of_pairs

ROWS_A_BIN = 2
"""Mean rows of a coarse bin."""

FEWEST_BINS = 8
"""Least number of coarse bins."""


@numba.njit(cache=True, nogil=True)
def crossing(
    code: Any, y: Any, weight: Any, low: int, high: int, whole: Any, alpha: float, impurity: float,
    spare: Any, histogram: Any, left: Any, right: Any,
) -> Any:  # fmt: skip
    """Find the boundary with the least threshold-Pairs impurity of the worse child.

    Shapes: `code` (n,), `y, weight` (n,), `whole` (n_classes,).
    """
    n_classes = len(whole)
    n_right = all_right(whole, left, right)
    n_left = f_left = 0.0
    f_right = impurity
    code_below = code_above = -1  # codes that occur next to the bin that is examined
    n = len(code)
    while True:
        # count the rows into bins of 2^shift codes
        most_bins = max(n // ROWS_A_BIN, FEWEST_BINS)
        shift = 0
        while (high - low) >> shift >= most_bins:
            shift += 1
        histogram[: (((high - low) >> shift) + 1) * n_classes] = 0
        for i in range(n):
            histogram[((code[i] - low) >> shift) * n_classes + y[i]] += weight[i]
        # move bins to the left child until its impurity reaches the right child's
        bin_number = 0
        last_bin = -1
        while True:
            more_left = more_right = joined = 0.0
            for m in range(n_classes):
                more = histogram[bin_number * n_classes + m]
                if more:
                    more_left += change_of_pairs(left, n_left + joined, m, more, alpha)
                    more_right += change_of_pairs(right, n_right - joined, m, -more, alpha)
                    left[m] += more
                    right[m] -= more
                    joined += more
            if f_left + more_left >= f_right + more_right and joined > 0.0:
                break
            f_left += more_left
            f_right += more_right
            n_left += joined
            n_right -= joined
            if joined > 0.0:
                last_bin = bin_number
            bin_number += 1
        if shift == 0:
            break
        # examine this bin: go back before it, and keep its rows
        n_inside = 0
        begin = low + (bin_number << shift)
        end = low + ((bin_number + 1) << shift)
        for m in range(n_classes):
            left[m] -= histogram[bin_number * n_classes + m]
            right[m] += histogram[bin_number * n_classes + m]
        new_low = high
        new_high = low
        for i in range(n):
            c = code[i]
            if c < begin:
                code_below = max(code_below, c)
            elif c >= end:
                code_above = c if code_above < 0 else min(code_above, c)
            else:
                new_low = min(new_low, c)
                new_high = max(new_high, c)
                spare[0, n_inside] = c
                spare[1, n_inside] = y[i]
                spare[2, n_inside] = weight[i]
                n_inside += 1
        code, y, weight = spare[0, :n_inside], spare[1, :n_inside], spare[2, :n_inside]
        n = n_inside
        low = new_low
        high = new_high
    # the crossing is at one code: the boundary is just before or just after it
    middle = low + bin_number
    if last_bin >= 0:
        code_below = low + last_bin
    f_after = f_left + more_left
    if code_below >= 0 and f_right <= f_after:
        return f_right, code_below, middle
    for b in range(bin_number + 1, high - low + 1):
        any_count = np.int32(0)
        for m in range(n_classes):
            any_count |= histogram[b * n_classes + m]
        if any_count:
            code_above = low + b
            break
    if code_above < 0:
        return f_right, code_below, middle
    return f_after, middle, code_above
