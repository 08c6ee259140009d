"""Boosted trees on codes, compiled: one tree of Newton steps under first-use prices.

LightGBM needs a millisecond for a round on a few hundred rows, nearly all of it overhead. Here a
tree grows leaf by leaf as LightGBM's does, the best split first: gain ``G_L^2 / H_L + G_R^2 / H_R -
G^2 / H`` less the price of a feature, and of its group, that no tree has used yet. A price is paid
at once: the other leaves of the same tree have the feature free.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from gatewise_training.forests.grower.binning import between
from gatewise_training.forests.grower.growing_arrays import copy_into, put_row

MIN_ROWS = 5
"""Rows of a leaf at least."""

MIN_HESSIAN = 1e-3
"""Hessian of a leaf at least."""


@numba.njit(cache=True, nogil=True)
def tolls(own: Any, group: Any, shared: Any, paid: Any, out: Any) -> None:
    """Price of a first use of each feature: its own and its group's, where not paid.

    Shapes: `paid` (n_features + n_groups,), `out` (n_features,).
    """
    n_features = len(own)
    for k in range(n_features):
        out[k] = 0.0 if paid[k] else own[k]
        if group[k] >= 0 and not paid[n_features + group[k]]:
            out[k] += shared[group[k]]


@numba.njit(cache=True, nogil=True)
def grow_boosted_tree(
    codes: Any, start: Any, lower: Any, upper: Any, gradient: Any, hessian: Any, own: Any,
    group: Any, shared: Any, paid: Any, rate: float, n_leaves: int, max_depth: int, work: Any,
    nodes: Any, first: Any, scores: Any,
) -> int:  # fmt: skip
    """Grow a tree, write its nodes from `first` on and add its leaves' values to the scores.

    Shapes: `codes` (n_features, n), `gradient, hessian, scores` (n,), `own, group` (n_features,),
    `shared` (n_groups,), `paid` (n_features + n_groups,); returns how many nodes there are, 0 if
    there is nothing to split.
    """
    feature, threshold, left, right, nan_left, value = nodes
    sums, rows, spare, raw, cut, nan_side, toll = work
    n, n_features = len(gradient), len(codes)
    leaf = np.zeros((n_leaves, 4), np.int64)  # first row, end, depth, node
    total = np.zeros((n_leaves, 2))
    best = np.zeros((n_leaves, 2))  # gain less prices, feature
    bound = whole_g = whole_h = 0.0
    for i in range(n):
        rows[i] = i
        whole_g += gradient[i]
        whole_h += hessian[i]
        bound += gradient[i] * gradient[i] / hessian[i]
    tolls(own, group, shared, paid, toll)
    bound -= whole_g * whole_g / whole_h
    # no split can gain more than single rows apart would: dearer features need not be counted
    active, n_active = np.empty(n_features, np.int64), 0
    for k in range(n_features):
        if paid[k] or own[k] < bound:  # its group may be paid within this tree
            active[n_active] = k
            n_active += 1
    active = active[:n_active]
    put_row(leaf, 0, 0, n, 0, first)
    total[0, 0], total[0, 1] = whole_g, whole_h
    feature[first] = -1
    if n_active == 0:
        return 0
    count_codes(codes, rows, leaf[0, 0], n, gradient, hessian, active, sums[0])
    _search(start, active, sums[0], total[0], n, raw[0], cut[0], nan_side[0])
    best[0, 0], best[0, 1] = _best(active, raw[0], toll)
    n_open, n_nodes = 1, 1
    while n_open < n_leaves:
        at = -1
        for s in range(n_open):
            deep = max_depth > 0 and leaf[s, 2] >= max_depth
            if best[s, 0] > 0.0 and not deep and (at < 0 or best[s, 0] > best[at, 0]):
                at = s
        if at < 0:
            break
        k = int(best[at, 1])
        begin, end, depth, node = leaf[at, 0], leaf[at, 1], leaf[at, 2], leaf[at, 3]
        b, to_left, none = cut[at, k], nan_side[at, k], start[k + 1] - start[k]
        middle, back = int(begin), 0
        column = codes[k]
        g = h = 0.0
        for i in range(begin, end):
            r = rows[i]
            c = column[r]
            if c <= b or (c == none and to_left):
                rows[middle] = r
                middle += 1
                g += gradient[r]
                h += hessian[r]
            else:
                spare[back] = r
                back += 1
        copy_into(rows, middle, spare, back)
        feature[node] = k
        if b + 1 >= none:
            threshold[node] = np.float32(np.finfo(np.float32).max)  # all that is a number
        else:
            threshold[node] = between(upper[start[k] + b], lower[start[k] + b + 1])
        nan_left[node] = to_left
        new = n_open
        left[node], right[node] = first + n_nodes, first + n_nodes + 1
        feature[first + n_nodes] = feature[first + n_nodes + 1] = -1
        put_row(leaf, at, begin, middle, depth + 1, first + n_nodes)
        put_row(leaf, new, middle, end, depth + 1, first + n_nodes + 1)
        total[new, 0], total[new, 1] = total[at, 0] - g, total[at, 1] - h
        total[at, 0], total[at, 1] = g, h
        n_nodes += 2
        n_open += 1
        if toll[k] > 0.0:  # paid from here on, in all leaves
            paid[k] = True
            if group[k] >= 0:
                paid[n_features + group[k]] = True
            tolls(own, group, shared, paid, toll)
            for s in range(n_open):
                if s != at and s != new:
                    best[s, 0], best[s, 1] = _best(active, raw[s], toll)
        if n_open == n_leaves:
            break
        # count the smaller side, and subtract it from what the parent had
        small, large = (at, new) if middle - begin <= end - middle else (new, at)
        if small == at:
            copy_into(sums[new].reshape(-1), 0, sums[at].reshape(-1), sums[at].size)
        count_codes(
            codes, rows, leaf[small, 0], leaf[small, 1], gradient, hessian, active, sums[small]
        )
        for j in range(len(active)):
            part, other = sums[large, active[j]], sums[small, active[j]]
            for c in range(start[active[j] + 1] - start[active[j]] + 1):
                part[c, 0] -= other[c, 0]
                part[c, 1] -= other[c, 1]
                part[c, 2] -= other[c, 2]
        for s in (at, new):
            _search(
                start, active, sums[s], total[s], leaf[s, 1] - leaf[s, 0], raw[s], cut[s],
                nan_side[s],
            )  # fmt: skip
            best[s, 0], best[s, 1] = _best(active, raw[s], toll)
    if n_nodes == 1:
        return 0
    for s in range(n_open):
        begin, end, node = leaf[s, 0], leaf[s, 1], leaf[s, 3]
        step = np.float32(-rate * total[s, 0] / total[s, 1])
        value[node] = step
        for i in range(begin, end):
            scores[rows[i]] += step
    return n_nodes


@numba.njit(cache=True, nogil=True)
def scratch(n: int, n_features: int, n_codes: Any, n_leaves: int) -> Any:
    """Working arrays of :func:`grow_boosted_tree`, for columns of at most so many codes."""
    return (
        np.zeros((n_leaves, n_features, n_codes + 1, 3)),
        np.empty(n, np.int64),
        np.empty(n, np.int64),
        np.empty((n_leaves, n_features)),
        np.zeros((n_leaves, n_features), np.int64),
        np.zeros((n_leaves, n_features), np.bool_),
        np.empty(n_features),
    )


@numba.njit(cache=True, nogil=True)
def count_codes(
    codes: Any, rows: Any, begin: int, end: int, gradient: Any, hessian: Any, active: Any, sums: Any
) -> None:
    """Sum gradients, hessians and rows by code of each column."""
    for j in range(len(active)):
        part, column = sums[active[j]], codes[active[j]]
        part[:] = 0.0
        for i in range(begin, end):
            r = rows[i]
            c = column[r]
            part[c, 0] += gradient[r]
            part[c, 1] += hessian[r]
            part[c, 2] += 1.0


@numba.njit(cache=True, nogil=True)
def _search(
    start: Any, active: Any, sums: Any, total: Any, n: int, raw: Any, cut: Any, nan_side: Any
) -> None:
    """Find the best split of a leaf on each column: its gain, last code and side of NaN."""
    whole = total[0] * total[0] / total[1]
    for j in range(len(active)):
        k = active[j]
        part, none = sums[k], start[k + 1] - start[k]
        raw[k] = -np.inf
        missing = part[none, 2]
        for side in range(2 if missing > 0.5 else 1):
            g = h = count = 0.0
            if side:
                g, h, count = part[none, 0], part[none, 1], missing
            for c in range(none if missing > 0.5 and not side else none - 1):
                if part[c, 2] < 0.5:
                    continue
                g += part[c, 0]
                h += part[c, 1]
                count += part[c, 2]
                if n - count < MIN_ROWS or total[1] - h < MIN_HESSIAN:
                    break
                if count < MIN_ROWS or h < MIN_HESSIAN:
                    continue
                rest = total[0] - g
                gain = g * g / h + rest * rest / (total[1] - h) - whole
                if gain > raw[k]:
                    # rows without a value here that come later go with the heavier side
                    heavier = 2.0 * count >= n if missing < 0.5 else side == 1
                    raw[k], cut[k], nan_side[k] = gain, c, heavier


@numba.njit(cache=True, nogil=True)
def _best(active: Any, raw: Any, toll: Any) -> Any:
    gain, at = 0.0, -1.0
    for j in range(len(active)):
        k = active[j]
        if raw[k] - toll[k] > gain + 1e-12:
            gain, at = raw[k] - toll[k], float(k)
    return gain, at
