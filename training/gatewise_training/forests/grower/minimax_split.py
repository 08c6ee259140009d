"""Search for the best minimax boundary of one column, without sorting the column.

A boundary divides the codes of a column into a left and a right child. As it moves along the codes,
the threshold-Pairs impurity of the left child rises from 0 to the impurity of the node, and the
impurity of the right child falls to 0. The larger of the two is smallest just before or just after
the code at which they cross. Rows are therefore counted in coarse bins of codes, then only the rows
of the bin with the crossing are counted in finer bins, and so on until each bin is one code. The
loops over m are over classes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba
import numpy as np

from gatewise_training.forests.grower.histogram import put_all_right
from gatewise_training.forests.grower.impurity import change_of_pairs

#: Mean number of rows of a coarse bin; with fewer bins than rows, a pass over the bins is cheap.
ROWS_PER_BIN = 2

#: Smallest number of coarse bins, so that nodes of few rows do not need many passes.
MIN_BINS = 8


class Boundary(NamedTuple):
    """The best boundary of a column at a node, and its score.

    Codes up to `last_left_code` go left, and codes from `first_right_code` on go right.
    `last_left_code` is -1 if there is no boundary. The score is the larger impurity of the two
    children for threshold-Pairs, and the gain for entropy.
    """

    score: float
    last_left_code: Any  # int64
    first_right_code: Any  # int64


class CrossingWork(NamedTuple):
    """Working arrays of :func:`find_crossing`."""

    bins: Any  # (max(n, MIN_BINS) * n_classes,), int32: examples by bin and class
    inner_rows: Any  # (3, n), int32: codes, classes and weights of the rows of the crossing bin
    left: Any  # (n_classes,): examples of each class in the left child
    right: Any  # (n_classes,): examples of each class in the right child


class ChildSums(NamedTuple):
    """Numbers of examples and impurities of the children at the start of a bin."""

    n_left: float
    n_right: float
    f_left: float
    f_right: float


@numba.njit(cache=True, nogil=True)
def crossing_arrays(n_rows: int, n_classes: int) -> Any:
    """Make the working arrays of :func:`find_crossing`."""
    return CrossingWork(
        bins=np.empty(max(n_rows, MIN_BINS) * n_classes, np.int32),
        inner_rows=np.empty((3, n_rows), np.int32),
        left=np.empty(n_classes, np.int64),
        right=np.empty(n_classes, np.int64),
    )


@numba.njit(cache=True, nogil=True)
def find_crossing(
    rows: Any, low: int, high: int, node: Any, alpha: float, crossing_work: Any
) -> Any:
    """Find the :class:`Boundary` that minimises the larger threshold-Pairs impurity of a child."""
    bins = crossing_work.bins
    inner_rows = crossing_work.inner_rows
    left = crossing_work.left
    right = crossing_work.right
    n_classes = len(left)
    sums = ChildSums(0.0, put_all_right(node.counts, left, right), 0.0, node.impurity)
    row_codes, y, weight = rows
    # nearest codes outside the bin that is being examined
    last_left_code: Any = np.int64(-1)
    first_right_code: Any = np.int64(-1)
    while True:
        shift = _count_bins(row_codes, y, weight, low, high, bins, n_classes=n_classes)
        bin_number, last_bin, f_left_after, sums = _move_bins(bins, left, right, sums, alpha)
        if shift == 0:
            break
        begin = low + (bin_number << shift)
        end = low + ((bin_number + 1) << shift)
        # move the crossing bin back, because its codes may be on both sides of the boundary
        for m in range(n_classes):
            n_moved = bins[bin_number * n_classes + m]
            left[m] -= n_moved
            right[m] += n_moved
        n, low, high, last_left_code, first_right_code = _select_codes(
            row_codes,
            y,
            weight,
            begin,
            end,
            inner_rows=inner_rows,
            last_left_code=last_left_code,
            first_right_code=first_right_code,
        )
        row_codes = inner_rows[0, :n]
        y = inner_rows[1, :n]
        weight = inner_rows[2, :n]
    # the crossing is at one code, so the boundary is just before or just after this code
    crossing_code = low + bin_number
    if last_bin >= 0:
        last_left_code = low + last_bin
    if last_left_code >= 0 and sums.f_right <= f_left_after:
        return Boundary(sums.f_right, last_left_code, crossing_code)
    next_bin = _find_occupied_bin(bins, bin_number + 1, high - low + 1, n_classes)
    if next_bin >= 0:
        first_right_code = low + next_bin
    if first_right_code < 0:
        return Boundary(sums.f_right, last_left_code, crossing_code)
    return Boundary(f_left_after, crossing_code, first_right_code)


@numba.njit(cache=True, nogil=True)
def _count_bins(
    row_codes: Any, y: Any, weight: Any, low: int, high: int, bins: Any, n_classes: int
) -> int:
    """Count rows in bins of ``2^shift`` codes; return the shift."""
    n = len(row_codes)
    max_bins = max(n // ROWS_PER_BIN, MIN_BINS)
    shift = 0
    while (high - low) >> shift >= max_bins:
        shift += 1
    bins[: (((high - low) >> shift) + 1) * n_classes] = 0
    for i in range(n):
        bins[((row_codes[i] - low) >> shift) * n_classes + y[i]] += weight[i]
    return shift


@numba.njit(cache=True, nogil=True)
def _move_bins(bins: Any, left: Any, right: Any, sums: Any, alpha: float) -> Any:
    """Move bins to the left child until its impurity reaches the impurity of the right child.

    Returns the crossing bin, the last occupied bin before it or -1, the left impurity with the
    crossing bin, and the :class:`ChildSums` without it. `left` and `right` include that bin.
    """
    n_left, n_right, f_left, f_right = sums
    n_classes = len(left)
    bin_number = 0
    last_bin = -1
    while True:
        left_change = 0.0
        right_change = 0.0
        bin_size = 0.0
        for m in range(n_classes):
            n_moved = bins[bin_number * n_classes + m]
            if n_moved:
                left_change += change_of_pairs(left, n_left + bin_size, m, n_moved, alpha)
                right_change += change_of_pairs(right, n_right - bin_size, m, -n_moved, alpha)
                left[m] += n_moved
                right[m] -= n_moved
                bin_size += n_moved
        if bin_size > 0.0:
            if f_left + left_change >= f_right + right_change:
                break
            last_bin = bin_number
        f_left += left_change
        f_right += right_change
        n_left += bin_size
        n_right -= bin_size
        bin_number += 1
    return bin_number, last_bin, f_left + left_change, ChildSums(n_left, n_right, f_left, f_right)


@numba.njit(cache=True, nogil=True)
def _select_codes(
    row_codes: Any,
    y: Any,
    weight: Any,
    begin: int,
    end: int,
    inner_rows: Any,
    last_left_code: int,
    first_right_code: int,
) -> Any:
    """Copy the rows with codes from `begin` up to `end` to `inner_rows`.

    Returns the number of these rows, their smallest and their largest code, and the nearest codes
    `last_left_code` and `first_right_code` of other rows, or -1.
    """
    n = 0
    low = end
    high = begin
    for i in range(len(row_codes)):
        code = row_codes[i]
        if code < begin:
            last_left_code = max(last_left_code, code)
        elif code >= end:
            first_right_code = code if first_right_code < 0 else min(first_right_code, code)
        else:
            low = min(low, code)
            high = max(high, code)
            inner_rows[0, n] = code
            inner_rows[1, n] = y[i]
            inner_rows[2, n] = weight[i]
            n += 1
    return n, low, high, last_left_code, first_right_code


@numba.njit(cache=True, nogil=True)
def _find_occupied_bin(bins: Any, begin: int, end: int, n_classes: int) -> int:
    """Find the first bin with an example from `begin` up to `end`, or -1."""
    for bin_number in range(begin, end):
        for m in range(n_classes):
            if bins[bin_number * n_classes + m]:
                return bin_number
    return -1
