"""Boosted trees on codes, compiled: one tree of Newton steps under first-use prices.

LightGBM needs a millisecond for a round on a few hundred rows, nearly all of it overhead. Here a
tree grows leaf by leaf as LightGBM's does, the best split first. With G and H the sums of gradients
and hessians of a leaf's rows, a split gains ::

    G_left^2 / H_left + G_right^2 / H_right - G^2 / H

less the price of the feature, and of its group, that no tree has used yet. A price is paid at once:
the other leaves of the same tree have the feature free.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba
import numpy as np

from gatewise_training.forests.grower.growing import (
    BEGIN,
    DEPTH,
    END,
    NODE,
    LeafSplit,
    copy_into,
    mark_left,
    partition,
    write_leaf,
    write_split,
)

MIN_ROWS = 5
"""Least rows of a leaf."""

MIN_HESSIAN = 1e-3
"""Least sum of hessians of a leaf."""

GRADIENT, HESSIAN, COUNT = range(3)
"""Columns of the sums over rows."""


class FirstUse(NamedTuple):
    """SplitPrices of first uses, and what is paid already."""

    own: Any  # (n_features,)
    group: Any  # (n_features,): -1 for no group
    shared: Any  # (n_groups,)
    paid: Any  # (n_features + n_groups,), bool


class TreeSettings(NamedTuple):
    """Settings of a tree's growth."""

    rate: float
    n_leaves: int
    max_depth: int  # -1: no bound


class BoostWork(NamedTuple):
    """Working arrays; those with a row for each leaf begin with `leaf_` or are the last three."""

    rows: Any  # (n,): leaf after leaf
    spare: Any  # (n,)
    is_left: Any  # (n,), bool
    toll: Any  # (n_features,): price of a first use of each feature now
    leaf_sums: Any  # (n_leaves, n_features, n_codes + 1, 3): by code; the last is NaN's
    gain: Any  # (n_leaves, n_features): of the best split of each column, without its price
    last_code: Any  # (n_leaves, n_features): on the left of that split
    nan_left: Any  # (n_leaves, n_features), bool: side of NaN


@numba.njit(cache=True, nogil=True)
def work_arrays(n: int, n_features: int, n_codes: Any, n_leaves: int) -> Any:
    """Working arrays of :func:`grow_boosted_tree`, for columns of at most `n_codes` codes."""
    return BoostWork(
        np.empty(n, np.int64),
        np.empty(n, np.int64),
        np.empty(n, np.bool_),
        np.empty(n_features),
        np.zeros((n_leaves, n_features, n_codes + 1, 3)),
        np.empty((n_leaves, n_features)),
        np.zeros((n_leaves, n_features), np.int64),
        np.zeros((n_leaves, n_features), np.bool_),
    )


@numba.njit(cache=True, nogil=True)
def set_tolls(prices: Any, toll: Any) -> None:
    """Write the price of a first use of each feature: its own and its group's, where not paid."""
    n_features = len(prices.own)
    for k in range(n_features):
        toll[k] = 0.0 if prices.paid[k] else prices.own[k]
        g = prices.group[k]
        if g >= 0 and not prices.paid[n_features + g]:
            toll[k] += prices.shared[g]


@numba.njit(cache=True, nogil=True)
def grow_boosted_tree(
    columns: Any, gradient: Any, hessian: Any, prices: Any, settings: Any, work: Any, nodes: Any,
    value: Any, first: Any, scores: Any,
) -> int:  # fmt: skip
    """Grow a tree, write its nodes from `first` on and add its leaves' values to the scores.

    Returns the number of nodes, 0 if there is nothing to split.

    Shapes: `gradient, hessian, scores` (n,), `value` as the arrays of `nodes`.
    """
    n = len(gradient)
    leaves = np.zeros((settings.n_leaves, 4), np.int64)
    total = np.zeros((settings.n_leaves, 2))  # GRADIENT and HESSIAN of each leaf
    best_gain = np.zeros(settings.n_leaves)  # less its price
    best_feature = np.zeros(settings.n_leaves, np.int64)

    # the root
    for i in range(n):
        work.rows[i] = i
    set_tolls(prices, work.toll)
    active = _worthwhile_features(gradient, hessian, prices, total[0])
    write_leaf(leaves, 0, 0, n, 0, first)
    nodes.feature[first] = -1
    if len(active) == 0:
        return 0
    count_codes(columns.codes, work.rows[:n], gradient, hessian, active, work.leaf_sums[0])
    _search_columns(columns.start, active, total[0], n, work, 0)
    best_gain[0], best_feature[0] = _best_column(active, work.gain[0], work.toll)
    n_leaves = n_nodes = 1

    while n_leaves < settings.n_leaves:
        leaf = _best_leaf(best_gain, leaves, n_leaves, settings.max_depth)
        if leaf < 0:
            break
        # split it: the left child takes its place, the right one comes behind the others
        new = n_leaves
        k = int(best_feature[leaf])
        begin, end, depth = leaves[leaf, BEGIN], leaves[leaf, END], leaves[leaf, DEPTH]
        split = LeafSplit(
            k, work.last_code[leaf, k], work.last_code[leaf, k] + 1, work.nan_left[leaf, k]
        )
        rows = work.rows[begin:end]
        mark_left(columns, split, rows, work.is_left)
        middle = begin + partition(rows, work.is_left, work.spare)
        child = first + n_nodes
        write_split(nodes, leaves[leaf, NODE], columns, split, split.nan_left, child)
        write_leaf(leaves, leaf, begin, middle, depth + 1, child)
        write_leaf(leaves, new, middle, end, depth + 1, child + 1)
        _share_totals(gradient, hessian, work.rows[begin:middle], total, leaf, new)
        n_nodes += 2
        n_leaves += 1
        # its price is paid from here on, in all leaves
        if work.toll[k] > 0.0:
            prices.paid[k] = True
            if prices.group[k] >= 0:
                prices.paid[len(prices.own) + prices.group[k]] = True
            set_tolls(prices, work.toll)
            for other in range(n_leaves):
                if other != leaf and other != new:
                    best_gain[other], best_feature[other] = _best_column(
                        active, work.gain[other], work.toll
                    )
        if n_leaves == settings.n_leaves:
            break
        _share_sums(columns, gradient, hessian, active, work, leaves, leaf, new)
        for child_leaf in (leaf, new):
            n_rows = leaves[child_leaf, END] - leaves[child_leaf, BEGIN]
            _search_columns(columns.start, active, total[child_leaf], n_rows, work, child_leaf)
            best_gain[child_leaf], best_feature[child_leaf] = _best_column(
                active, work.gain[child_leaf], work.toll
            )
    if n_nodes == 1:
        return 0
    for leaf in range(n_leaves):
        step = np.float32(-settings.rate * total[leaf, GRADIENT] / total[leaf, HESSIAN])
        value[leaves[leaf, NODE]] = step
        for i in range(leaves[leaf, BEGIN], leaves[leaf, END]):
            scores[work.rows[i]] += step
    return n_nodes


@numba.njit(cache=True, nogil=True)
def _worthwhile_features(gradient: Any, hessian: Any, prices: Any, total: Any) -> Any:
    """List the features that a split may be worth the price of; sum up gradients and hessians.

    No split can gain more than single rows apart would: ``sum g_i^2 / h_i - G^2 / H``. A group may
    be paid within the tree, so its price does not count here.
    """
    bound = whole_gradient = whole_hessian = 0.0
    for i in range(len(gradient)):
        whole_gradient += gradient[i]
        whole_hessian += hessian[i]
        bound += gradient[i] * gradient[i] / hessian[i]
    bound -= whole_gradient * whole_gradient / whole_hessian
    total[GRADIENT] = whole_gradient
    total[HESSIAN] = whole_hessian
    active = np.empty(len(prices.own), np.int64)
    n_active = 0
    for k in range(len(prices.own)):
        if prices.paid[k] or prices.own[k] < bound:
            active[n_active] = k
            n_active += 1
    return active[:n_active]


@numba.njit(cache=True, nogil=True)
def _best_leaf(best_gain: Any, leaves: Any, n_leaves: int, max_depth: int) -> int:
    """Find the leaf with the best split worth its price; -1 without any."""
    best = -1
    for leaf in range(n_leaves):
        is_deep = max_depth > 0 and leaves[leaf, DEPTH] >= max_depth
        is_best = best < 0 or best_gain[leaf] > best_gain[best]
        if best_gain[leaf] > 0.0 and not is_deep and is_best:
            best = leaf
    return best


@numba.njit(cache=True, nogil=True)
def _share_totals(
    gradient: Any, hessian: Any, left_rows: Any, total: Any, left: int, right: int
) -> None:
    """Share the totals of a leaf, those at `left`, between its children."""
    left_gradient = left_hessian = 0.0
    for i in range(len(left_rows)):
        left_gradient += gradient[left_rows[i]]
        left_hessian += hessian[left_rows[i]]
    total[right, GRADIENT] = total[left, GRADIENT] - left_gradient
    total[right, HESSIAN] = total[left, HESSIAN] - left_hessian
    total[left, GRADIENT] = left_gradient
    total[left, HESSIAN] = left_hessian


@numba.njit(cache=True, nogil=True)
def _share_sums(
    columns: Any, gradient: Any, hessian: Any, active: Any, work: Any, leaves: Any, left: int,
    right: int,
) -> None:  # fmt: skip
    """Share the sums by code of a leaf, those at `left`: count the smaller child, subtract it."""
    sums = work.leaf_sums
    is_left_small = (
        leaves[left, END] - leaves[left, BEGIN] <= leaves[right, END] - leaves[right, BEGIN]
    )
    small, large = (left, right) if is_left_small else (right, left)
    if is_left_small:
        copy_into(sums[right].reshape(-1), 0, sums[left].reshape(-1), sums[left].size)
    rows = work.rows[leaves[small, BEGIN] : leaves[small, END]]
    count_codes(columns.codes, rows, gradient, hessian, active, sums[small])
    for j in range(len(active)):
        k = active[j]
        for c in range(columns.start[k + 1] - columns.start[k] + 1):
            for column in range(3):
                sums[large, k, c, column] -= sums[small, k, c, column]


@numba.njit(cache=True, nogil=True)
def count_codes(codes: Any, rows: Any, gradient: Any, hessian: Any, active: Any, sums: Any) -> None:
    """Sum gradients, hessians and rows by code of each active column."""
    for j in range(len(active)):
        by_code, column = sums[active[j]], codes[active[j]]
        by_code[:] = 0.0
        for i in range(len(rows)):
            row = rows[i]
            code = column[row]
            by_code[code, GRADIENT] += gradient[row]
            by_code[code, HESSIAN] += hessian[row]
            by_code[code, COUNT] += 1.0


@numba.njit(cache=True, nogil=True)
def _search_columns(start: Any, active: Any, total: Any, n: int, work: Any, leaf: int) -> None:
    """Find the best split of a leaf of n rows on each active column."""
    whole = total[GRADIENT] * total[GRADIENT] / total[HESSIAN]
    for j in range(len(active)):
        k = active[j]
        by_code = work.leaf_sums[leaf, k]
        nan_code = start[k + 1] - start[k]
        best_gain = -np.inf
        n_missing = by_code[nan_code, COUNT]
        for nan_left in range(2 if n_missing > 0.5 else 1):
            g = h = count = 0.0
            if nan_left:
                g, h, count = by_code[nan_code, GRADIENT], by_code[nan_code, HESSIAN], n_missing
            # with NaN on the right, all numbers may go left
            for c in range(nan_code if n_missing > 0.5 and not nan_left else nan_code - 1):
                if by_code[c, COUNT] < 0.5:
                    continue
                g += by_code[c, GRADIENT]
                h += by_code[c, HESSIAN]
                count += by_code[c, COUNT]
                if n - count < MIN_ROWS or total[HESSIAN] - h < MIN_HESSIAN:
                    break
                if count < MIN_ROWS or h < MIN_HESSIAN:
                    continue
                rest = total[GRADIENT] - g
                gain = g * g / h + rest * rest / (total[HESSIAN] - h) - whole
                if gain > best_gain:
                    best_gain = gain
                    work.last_code[leaf, k] = c
                    # rows without a value that come later go with the heavier side
                    heavier = 2.0 * count >= n
                    work.nan_left[leaf, k] = heavier if n_missing < 0.5 else nan_left == 1
        work.gain[leaf, k] = best_gain


@numba.njit(cache=True, nogil=True)
def _best_column(active: Any, gain: Any, toll: Any) -> Any:
    """Find the column with the largest gain less its price, and that; 0 and -1 without any."""
    best_gain, best_column = 0.0, -1
    for j in range(len(active)):
        k = active[j]
        if gain[k] - toll[k] > best_gain + 1e-12:
            best_gain, best_column = gain[k] - toll[k], k
    return best_gain, best_column
