"""The best minimax boundary of one column, without sorting it.

Along the codes of a column the left child's threshold-Pairs impurity rises from 0 to the node's,
and the right child's falls from there to 0. The worse child is least just before or just after the
code at which they cross. So only the neighbourhood of the crossing is examined: rows are counted
into coarse bins of codes, the rows of the bin with the crossing into finer bins, and so on until
each bin is one code.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba
import numpy as np

from gatewise_training.forests.grower.histogram import all_right
from gatewise_training.forests.grower.impurity import change_of_pairs

ROWS_PER_BIN = 2
"""Mean rows of a coarse bin."""

MIN_BINS = 8
"""Least number of coarse bins."""


class Boundary(NamedTuple):
    """The best boundary of a column at a node, and its score.

    Codes up to `below` go left and those from `above` on right; `below` is -1 without a boundary.
    The score is the worse child's impurity for threshold-Pairs, and the gain for other criteria.
    """

    score: float
    below: Any  # int64
    above: Any  # int64


class CrossingWork(NamedTuple):
    """Working arrays of :func:`crossing`."""

    bins: Any  # (max(n, MIN_BINS) * n_classes,), int32: examples by bin and class
    inner_rows: Any  # (3, n), int32: codes, classes and weights of the crossing bin's rows
    left: Any  # (n_classes,): examples of the left child
    right: Any  # (n_classes,)


class Sums(NamedTuple):
    """Examples and impurities of the children where the examined bin of codes begins."""

    n_left: float
    n_right: float
    f_left: float
    f_right: float


@numba.njit(cache=True, nogil=True)
def crossing_arrays(n_rows: int, n_classes: int) -> Any:
    """Make the working arrays of :func:`crossing`."""
    return CrossingWork(
        bins=np.empty(max(n_rows, MIN_BINS) * n_classes, np.int32),
        inner_rows=np.empty((3, n_rows), np.int32),
        left=np.empty(n_classes, np.int64),
        right=np.empty(n_classes, np.int64),
    )


@numba.njit(cache=True, nogil=True)
def crossing(rows: Any, low: int, high: int, node: Any, alpha: float, work: Any) -> Any:
    """Find the :class:`Boundary` with the least threshold-Pairs impurity of the worse child."""
    bins = work.bins
    inner_rows = work.inner_rows
    left = work.left
    right = work.right
    n_classes = len(left)
    sums = Sums(0.0, all_right(node.counts, left, right), 0.0, node.impurity)
    code, y, weight = rows
    below: Any = np.int64(-1)  # codes that occur next to the bin that is examined
    above: Any = np.int64(-1)
    while True:
        shift = _count_bins(code, y, weight, low, high, bins, n_classes=n_classes)
        bin_number, last_bin, f_left_after, sums = _move_bins(bins, left, right, sums, alpha)
        if shift == 0:
            break
        begin = low + (bin_number << shift)
        end = low + ((bin_number + 1) << shift)
        for m in range(n_classes):
            more = bins[bin_number * n_classes + m]
            left[m] -= more
            right[m] += more
        n, low, high, below, above = _keep_between(
            code, y, weight, begin, end, inner_rows=inner_rows, below=below, above=above
        )
        code = inner_rows[0, :n]
        y = inner_rows[1, :n]
        weight = inner_rows[2, :n]
    # the crossing is at one code: the boundary is just before or just after it
    middle = low + bin_number
    if last_bin >= 0:
        below = low + last_bin
    if below >= 0 and sums.f_right <= f_left_after:
        return Boundary(sums.f_right, below, middle)
    next_bin = _next_occupied(bins, bin_number + 1, high - low + 1, n_classes)
    if next_bin >= 0:
        above = low + next_bin
    if above < 0:
        return Boundary(sums.f_right, below, middle)
    return Boundary(f_left_after, middle, above)


@numba.njit(cache=True, nogil=True)
def _count_bins(
    code: Any, y: Any, weight: Any, low: int, high: int, bins: Any, n_classes: int
) -> int:
    """Count rows into bins of ``2^shift`` codes; returns the shift."""
    n = len(code)
    max_bins = max(n // ROWS_PER_BIN, MIN_BINS)
    shift = 0
    while (high - low) >> shift >= max_bins:
        shift += 1
    bins[: (((high - low) >> shift) + 1) * n_classes] = 0
    for i in range(n):
        bins[((code[i] - low) >> shift) * n_classes + y[i]] += weight[i]
    return shift


@numba.njit(cache=True, nogil=True)
def _move_bins(bins: Any, left: Any, right: Any, sums: Any, alpha: float) -> Any:
    """Move bins to the left child until its impurity reaches the right child's.

    Returns the bin of the crossing, whose examples are left but not in the sums, the last occupied
    bin before it (-1 without any), the left impurity with the bin, and the :class:`Sums` before it.
    """
    n_left, n_right, f_left, f_right = sums
    n_classes = len(left)
    bin_number = 0
    last_bin = -1
    while True:
        more_left = more_right = joined = 0.0
        for m in range(n_classes):
            more = bins[bin_number * n_classes + m]
            if more:
                more_left += change_of_pairs(left, n_left + joined, m, more, alpha)
                more_right += change_of_pairs(right, n_right - joined, m, -more, alpha)
                left[m] += more
                right[m] -= more
                joined += more
        if joined > 0.0:
            if f_left + more_left >= f_right + more_right:
                break
            last_bin = bin_number
        f_left += more_left
        f_right += more_right
        n_left += joined
        n_right -= joined
        bin_number += 1
    return bin_number, last_bin, f_left + more_left, Sums(n_left, n_right, f_left, f_right)


@numba.njit(cache=True, nogil=True)
def _keep_between(
    code: Any,
    y: Any,
    weight: Any,
    begin: int,
    end: int,
    inner_rows: Any,
    below: int,
    above: int,
) -> Any:
    """Copy the rows with codes from `begin` up to `end` to `inner_rows`.

    Returns their number, their least and largest code, and `below` and `above`, the nearest codes
    of other rows, -1 without any.
    """
    n = 0
    low = end
    high = begin
    for i in range(len(code)):
        c = code[i]
        if c < begin:
            below = max(below, c)
        elif c >= end:
            above = c if above < 0 else min(above, c)
        else:
            low = min(low, c)
            high = max(high, c)
            inner_rows[0, n] = c
            inner_rows[1, n] = y[i]
            inner_rows[2, n] = weight[i]
            n += 1
    return n, low, high, below, above


@numba.njit(cache=True, nogil=True)
def _next_occupied(bins: Any, begin: int, end: int, n_classes: int) -> int:
    """Find the first bin with an example from `begin` up to `end`; -1 without any."""
    for b in range(begin, end):
        for m in range(n_classes):
            if bins[b * n_classes + m]:
                return b
    return -1
