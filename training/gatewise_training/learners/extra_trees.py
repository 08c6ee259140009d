"""Extremely randomised trees (Geurts, Ernst & Wehenkel, 2006), compiled.

As in scikit-learn's ExtraTreesClassifier with its defaults: every row, the square root of the
features tried at a node, one uniform threshold each, the best by Gini impurity. There a tree of a
few hundred rows costs two milliseconds, nearly all of it overhead, and a feature that does not vary
within a node counts as tried, which makes forests on columns of mostly 0 larger and worse.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from gatewise.models.trees import TreeEnsemble
from gatewise_training.forests.grower.growing import (
    BEGIN,
    DEPTH,
    END,
    NODE,
    copy_into,
    wider,
    write_leaf,
)

CONSTANT = DEPTH
"""Column of the waiting nodes: how many of the first features in the order do not vary there."""


def fit_extra_trees(
    x: NDArray[np.float32],
    y: NDArray[np.int64],
    n_classes: int,
    *,
    weight: NDArray[np.float64],
    n_trees: int,
    min_rows: int = 1,
    seed: int,
) -> TreeEnsemble:
    """Fit a forest; margins are the averaged class distributions of the leaves.

    Shapes: `x` (n, n_features), without NaN, `y, weight` (n,); leaves hold `min_rows` at least.
    """
    n_features = x.shape[1]
    tried = max(1, int(np.sqrt(n_features)))
    columns = np.ascontiguousarray(x.T, np.float32)
    nodes, used, roots = _grow_forest(
        columns,
        y.astype(np.int32),
        np.asarray(weight, np.float64),
        n_classes,
        n_trees,
        tried,
        min_rows,
        seed,
    )
    feature, threshold, left, right, value = (each[:used].copy() for each in nodes)
    return TreeEnsemble(
        feature, threshold, left, right, np.zeros(used, np.bool_), value, roots,
        np.full(n_trees, -1, np.int32), np.zeros(n_classes, np.float32), n_features,
    )  # fmt: skip


@numba.njit(cache=True, nogil=True)
def _grow_forest(
    columns: Any, y: Any, weight: Any, n_classes: int, n_trees: int, tried: int, min_rows: int,
    seed: int,
) -> Any:  # fmt: skip
    np.random.seed(seed)  # noqa: NPY002  (numba's stream, each thread has its own)
    n_features, n = columns.shape
    size = max(n_trees * min(2 * n, 64), 2 * n)
    feature, left, right = (
        np.empty(size, np.int32), np.empty(size, np.int32), np.empty(size, np.int32)
    )  # fmt: skip
    threshold, value = np.empty(size, np.float32), np.empty((size, n_classes), np.float32)
    roots = np.empty(n_trees, np.int32)
    rows, spare = np.empty(n, np.int32), np.empty(n, np.int32)
    # as leaves, but in the place of the depth how many of the first in `order` do not vary there
    waiting = np.empty((2 * n, 4), np.int64)
    order = np.arange(n_features)
    whole, part = np.empty(n_classes), np.empty(n_classes)
    used = 0
    for t in range(n_trees):
        if used + 2 * n > size:
            size = 2 * size + 2 * n
            feature, left, right = wider(feature, size), wider(left, size), wider(right, size)
            threshold, value = wider(threshold, size), wider(value, size)
        for i in range(n):
            rows[i] = i
        roots[t] = used
        n_waiting = write_leaf(waiting, 0, 0, n, 0, used)
        used += 1
        while n_waiting:
            n_waiting -= 1
            begin, end = waiting[n_waiting, BEGIN], waiting[n_waiting, END]
            constant, node = waiting[n_waiting, CONSTANT], waiting[n_waiting, NODE]
            for m in range(n_classes):
                whole[m] = 0.0
            for i in range(begin, end):
                whole[y[rows[i]]] += weight[rows[i]]
            total = whole.sum()
            feature[node] = left[node] = right[node] = -1
            threshold[node] = 0.0
            for m in range(n_classes):
                value[node, m] = whole[m] / (total * n_trees) if total > 0.0 else 0.0
            if whole.max() >= total or end - begin < max(2, 2 * min_rows):
                continue
            at, cut, constant = _draw_split(
                columns, y, weight, rows, begin, end, whole, total, part, order, constant, tried,
                min_rows,
            )  # fmt: skip
            if at < 0:
                continue
            middle, back = begin, 0
            for i in range(begin, end):
                r = rows[i]
                goes_left = columns[at, r] <= cut
                rows[middle] = spare[back] = r  # no branch for a processor to guess
                middle += goes_left
                back += not goes_left
            copy_into(rows, middle, spare, back)
            feature[node], threshold[node] = at, cut
            left[node], right[node] = used, used + 1
            n_waiting = write_leaf(waiting, n_waiting, middle, end, constant, used + 1)
            n_waiting = write_leaf(waiting, n_waiting, begin, middle, constant, used)
            used += 2
            for m in range(n_classes):
                value[node, m] = 0.0
    return (feature, threshold, left, right, value), used, roots


@numba.njit(cache=True, nogil=True)
def _draw_split(
    columns: Any, y: Any, weight: Any, rows: Any, begin: int, end: int, whole: Any, total: float,
    part: Any, order: Any, constant: int, tried: int, min_rows: int,
) -> Any:  # fmt: skip
    """Best of the splits drawn, as feature and threshold; feature -1 if none is possible.

    The first `constant` columns of `order` do not vary within the node, and so not below it: no
    node below changes their places. Returns how many they are after this node.
    """
    best, at, cut = -np.inf, -1, np.float32(0.0)
    found, n_features = 0, len(order)
    for j in range(constant, n_features):
        if found >= tried:
            break
        other = np.random.randint(j, n_features)  # noqa: NPY002
        order[j], order[other] = order[other], order[j]
        column = columns[order[j]]
        low, high = _range(column, rows[begin:end])
        if low >= high:  # a column without a choice does not count
            order[constant], order[j] = order[j], order[constant]
            constant += 1
            continue
        found += 1
        share = np.random.random()  # noqa: NPY002
        limit = np.float32(np.float64(low) + share * (np.float64(high) - np.float64(low)))
        if limit >= high:
            limit = low
        for m in range(len(part)):
            part[m] = 0.0
        count = 0
        for i in range(begin, end):
            r = rows[i]
            goes_left = column[r] <= limit
            part[y[r]] += weight[r] * goes_left
            count += goes_left
        if count < min_rows or end - begin - count < min_rows:
            continue
        mass = squares = rest = 0.0
        for m in range(len(whole)):
            mass += part[m]
            squares += part[m] * part[m]
            rest += (whole[m] - part[m]) ** 2
        if mass <= 0.0 or mass >= total:
            continue
        worth = squares / mass + rest / (total - mass)  # falls as Gini impurity rises
        if worth > best:
            best, at, cut = worth, order[j], limit
    return at, cut, constant


@numba.njit(cache=True, nogil=True, fastmath={"nnan", "nsz"})  # lets several be compared at once
def _range(column: Any, rows: Any) -> Any:
    """Smallest and largest of some values, without NaN."""
    low = high = column[rows[0]]
    for i in range(len(rows)):
        v = column[rows[i]]
        low, high = min(low, v), max(high, v)
    return low, high
