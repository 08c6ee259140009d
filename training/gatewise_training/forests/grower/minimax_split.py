"""The best minimax boundary of one column, without sorting it.

Along the codes of a column the left child's threshold-Pairs impurity rises from 0 to the node's,
and the right child's falls from there to 0. The worse child is least just before or just after the
code at which they cross. So only the neighbourhood of the crossing need be sorted out: rows are
counted into coarse bins of codes, the bin with the crossing is counted into finer ones, and so on.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from gatewise_training.forests.grower.histogram import all_right
from gatewise_training.forests.grower.impurity import change_of_pairs

ROWS_A_BIN = 2
FEWEST_BINS = 8


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
    n_left, f_left, f_right = 0.0, 0.0, impurity
    below, above = -1, -1  # codes that occur beside the bin which is looked into
    n = len(code)
    while True:
        most = max(n // ROWS_A_BIN, FEWEST_BINS)
        shift = 0
        while (high - low) >> shift >= most:
            shift += 1
        histogram[: (((high - low) >> shift) + 1) * n_classes] = 0
        for i in range(n):
            histogram[((code[i] - low) >> shift) * n_classes + y[i]] += weight[i]
        at, last = 0, -1  # bins
        while True:
            more_left, more_right, joined = 0.0, 0.0, 0.0
            for m in range(n_classes):
                more = histogram[at * n_classes + m]
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
                last = at
            at += 1
        if shift == 0:
            break
        # look into the bin: step back before it, and keep its rows
        inside = 0
        first, end = low + (at << shift), low + ((at + 1) << shift)
        for m in range(n_classes):
            left[m] -= histogram[at * n_classes + m]
            right[m] += histogram[at * n_classes + m]
        new_low, new_high = high, low
        for i in range(n):
            c = code[i]
            if c < first:
                below = max(below, c)
            elif c >= end:
                above = c if above < 0 else min(above, c)
            else:
                new_low, new_high = min(new_low, c), max(new_high, c)
                spare[0, inside], spare[1, inside], spare[2, inside] = c, y[i], weight[i]
                inside += 1
        code, y, weight = spare[0, :inside], spare[1, :inside], spare[2, :inside]
        n, low, high = inside, new_low, new_high
    middle = low + at
    if last >= 0:
        below = low + last
    f_after = f_left + more_left
    if below >= 0 and f_right <= f_after:
        return f_right, below, middle
    for b in range(at + 1, high - low + 1):
        some = np.int32(0)
        for m in range(n_classes):
            some |= histogram[b * n_classes + m]
        if some:
            above = low + b
            break
    if above < 0:
        return f_right, below, middle
    return f_after, middle, above
