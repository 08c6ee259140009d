"""Compiled growth of a boosted tree on codes, by Newton steps under first-use prices.

On a few hundred rows LightGBM needs a millisecond per round, which is nearly all overhead. As in
LightGBM, a tree grows best-first, leaf by leaf. With G and H, the sums of gradients and hessians
over the rows of a leaf, the gain of a split is ::

    G_left^2 / H_left + G_right^2 / H_right - G^2 / H

The price of the feature and of its group is subtracted, unless a tree has already used them. Once
the price is paid, all other leaves use the feature for free. With :class:`.RowPrices`, the rows of
the leaf also pay for the split (CEGB, NIPS 2017, equation 13).

Loops over i are over rows, and loops over k are over columns.
"""

from __future__ import annotations

from typing import Any

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
from gatewise_training.learners.boost_records import (
    BoostArrays,
    GrowingTree,
    RowPrices,
)

#: Smallest number of rows of a leaf, as in :func:`.boosting.tree_params`.
MIN_ROWS = 5

#: Smallest sum of hessians of a leaf, which is LightGBM's default.
MIN_HESSIAN = 1e-3

#: Indices into the sums over rows.
GRADIENT, HESSIAN, COUNT = range(3)


@numba.njit(cache=True, nogil=True)
def no_row_prices() -> Any:
    """Make empty prices, for fits in which rows do not pay for splits."""
    no_items = np.zeros(0, np.int64)
    return RowPrices(np.zeros(0), np.zeros(0), no_items, no_items, np.zeros((0, 0), np.bool_))


@numba.njit(cache=True, nogil=True)
def work_arrays(n: int, n_features: int, n_codes: Any, n_leaves: int) -> Any:
    """Make the working arrays of :func:`grow_boosted_tree`, for at most `n_codes` codes."""
    return BoostArrays(
        rows=np.empty(n, np.int64),
        spare_rows=np.empty(n, np.int64),
        is_left=np.empty(n, np.bool_),
        first_use_price=np.empty(n_features),
        leaf_sums=np.zeros((n_leaves, n_features, n_codes + 1, 3)),
        gain=np.empty((n_leaves, n_features)),
        last_code=np.zeros((n_leaves, n_features), np.int64),
        nan_left=np.zeros((n_leaves, n_features), np.bool_),
    )


@numba.njit(cache=True, nogil=True)
def set_first_use_prices(prices: Any, first_use_price: Any) -> None:
    """Write to `first_use_price` the price of each feature and its groups that is not yet paid."""
    for k in range(len(first_use_price)):
        first_use_price[k] = 0.0
        for position in range(prices.start[k], prices.start[k + 1]):
            if not prices.is_paid[prices.items[position]]:
                first_use_price[k] += prices.price[prices.items[position]]


@numba.njit(cache=True, nogil=True)
def grow_boosted_tree(fit: Any, gradient: Any, hessian: Any, scores: Any, root: Any) -> int:
    """Grow a tree with nodes numbered from `root`, and add its leaf values to the scores.

    Returns the number of nodes, or 0 if no split is worth its price.

    Shapes: `gradient, hessian, scores` (n,).
    """
    # int64, because numba would otherwise compile functions a second time for Python integers
    root_leaf: Any = np.int64(0)
    n_leaves: Any = np.int64(1)
    n_nodes: Any = np.int64(1)
    tree = _make_root(fit, gradient, hessian, root)
    if len(tree.active_features) == 0:
        return 0
    count_codes(
        fit.columns.codes,
        fit.work.rows,
        gradient,
        hessian,
        tree.active_features,
        fit.work.leaf_sums[0],
    )
    _search_columns(fit, tree, root_leaf)
    _choose_column(fit, tree, root_leaf)
    while n_leaves < fit.settings.n_leaves:
        leaf = _find_best_leaf(tree, n_leaves, fit.settings.max_depth)
        if leaf < 0:
            break
        right_leaf = n_leaves
        feature = int(tree.best_feature[leaf])
        _split_leaf(fit, tree, leaf, right_leaf, root + n_nodes)
        n_nodes += 2
        n_leaves += 1
        # once a price is paid, the best splits of all other leaves may change
        if _pay_first_use(fit, feature):
            for other_leaf in range(n_leaves):
                if other_leaf != leaf and other_leaf != right_leaf:
                    _choose_column(fit, tree, other_leaf)
        if n_leaves == fit.settings.n_leaves:
            break
        # find the best splits of both children
        _divide_sums(fit, tree, leaf, right_leaf)
        for child_leaf in (leaf, right_leaf):
            _search_columns(fit, tree, child_leaf)
            _choose_column(fit, tree, child_leaf)
    if n_nodes == 1:
        return 0
    # write the leaf values, which are Newton steps: -learning_rate * G / H
    for leaf in range(n_leaves):
        gradient_sum = tree.totals[leaf, GRADIENT]
        step = np.float32(-fit.settings.learning_rate * gradient_sum / tree.totals[leaf, HESSIAN])
        fit.value[tree.leaves[leaf, NODE]] = step
        for i in range(tree.leaves[leaf, BEGIN], tree.leaves[leaf, END]):
            scores[fit.work.rows[i]] += step
    return int(n_nodes)


@numba.njit(cache=True, nogil=True)
def _make_root(fit: Any, gradient: Any, hessian: Any, root: Any) -> Any:
    """Make a tree that consists of a root with all rows."""
    n = len(gradient)
    n_leaves = fit.settings.n_leaves
    leaves = np.zeros((n_leaves, 4), np.int64)
    totals = np.zeros((n_leaves, 2))
    for i in range(n):
        fit.work.rows[i] = i
    set_first_use_prices(fit.prices, fit.work.first_use_price)
    active_features = _list_affordable_features(gradient, hessian, fit.prices, totals[0])
    write_leaf(leaves, 0, 0, n, 0, root)
    fit.nodes.feature[root] = -1
    best_gain = np.zeros(n_leaves)
    best_feature = np.zeros(n_leaves, np.int64)
    return GrowingTree(
        gradient=gradient,
        hessian=hessian,
        active_features=active_features,
        leaves=leaves,
        totals=totals,
        best_gain=best_gain,
        best_feature=best_feature,
    )


@numba.njit(cache=True, nogil=True)
def _split_leaf(fit: Any, tree: Any, leaf: int, right_leaf: int, child: Any) -> None:
    """Split a leaf; the left child keeps its index, and the right child gets `right_leaf`."""
    work = fit.work
    leaves = tree.leaves
    k = int(tree.best_feature[leaf])
    begin = leaves[leaf, BEGIN]
    end = leaves[leaf, END]
    depth = leaves[leaf, DEPTH]
    last_code = work.last_code[leaf, k]
    split = LeafSplit(k, last_code, last_code + 1, work.nan_left[leaf, k])
    rows = work.rows[begin:end]
    if len(fit.row_prices.split):
        _mark_acquired(fit, rows, k)
    mark_left(fit.columns, split, rows, work.is_left)
    middle = begin + partition(rows, work.is_left, work.spare_rows)
    write_split(fit.nodes, leaves[leaf, NODE], fit.columns, split, split.nan_left, child)
    write_leaf(leaves, leaf, begin, middle, depth + 1, child)
    write_leaf(leaves, right_leaf, middle, end, depth + 1, child + 1)
    _divide_totals(fit, tree, leaf, right_leaf)


@numba.njit(cache=True, nogil=True)
def _pay_first_use(fit: Any, feature: int) -> bool:
    """Pay the first use of a feature; return whether the price was above 0."""
    prices = fit.prices
    if fit.work.first_use_price[feature] <= 0.0:
        return False
    for position in range(prices.start[feature], prices.start[feature + 1]):
        prices.is_paid[prices.items[position]] = True
    set_first_use_prices(prices, fit.work.first_use_price)
    return True


@numba.njit(cache=True, nogil=True)
def _mark_acquired(fit: Any, rows: Any, feature: int) -> None:
    """Mark a feature and its groups as acquired by some rows."""
    prices = fit.row_prices
    for position in range(prices.start[feature], prices.start[feature + 1]):
        for i in range(len(rows)):
            prices.is_acquired[prices.items[position], rows[i]] = True


@numba.njit(cache=True, nogil=True)
def _sum_row_prices(fit: Any, rows: Any, feature: int) -> float:
    """Compute the price that the rows of a leaf pay for a split on a feature.

    ``sum_i [ split + sum_j price_j (1 - has_item_ij) ]``, where j are the items of the feature.
    """
    prices = fit.row_prices
    price = len(rows) * prices.split[feature]
    for position in range(prices.start[feature], prices.start[feature + 1]):
        item = prices.items[position]
        price += prices.price[item] * _count_rows_without(fit, rows, item)
    return float(price)


@numba.njit(cache=True, nogil=True)
def _count_rows_without(fit: Any, rows: Any, item: int) -> int:
    """Count the rows that have not acquired a feature or a group."""
    n_rows = 0
    for i in range(len(rows)):
        n_rows += not fit.row_prices.is_acquired[item, rows[i]]
    return n_rows


@numba.njit(cache=True, nogil=True)
def _list_affordable_features(gradient: Any, hessian: Any, prices: Any, totals_of_root: Any) -> Any:
    """List the features with a price below the largest possible gain.

    The sums of gradients and hessians are written to `totals_of_root`. A split cannot gain more
    than leaves of single rows would, ``sum g_i^2 / h_i - G^2 / H``. Prices of groups are not
    counted, because another feature of the tree may pay them.
    """
    max_gain = gradient_sum = hessian_sum = 0.0
    for i in range(len(gradient)):
        gradient_sum += gradient[i]
        hessian_sum += hessian[i]
        max_gain += gradient[i] * gradient[i] / hessian[i]
    max_gain -= gradient_sum * gradient_sum / hessian_sum
    totals_of_root[GRADIENT] = gradient_sum
    totals_of_root[HESSIAN] = hessian_sum
    active_features = np.empty(len(prices.start) - 1, np.int64)
    n_active = 0
    for k in range(len(active_features)):
        if prices.is_paid[k] or prices.price[k] < max_gain:
            active_features[n_active] = k
            n_active += 1
    return active_features[:n_active]


@numba.njit(cache=True, nogil=True)
def _find_best_leaf(tree: Any, n_leaves: int, max_depth: int) -> int:
    """Find the leaf with the best split, or -1 if no split is worth its price."""
    best_leaf = -1
    for leaf in range(n_leaves):
        is_deep = max_depth > 0 and tree.leaves[leaf, DEPTH] >= max_depth
        is_best = best_leaf < 0 or tree.best_gain[leaf] > tree.best_gain[best_leaf]
        if tree.best_gain[leaf] > 0.0 and not is_deep and is_best:
            best_leaf = leaf
    return best_leaf


@numba.njit(cache=True, nogil=True)
def _divide_totals(fit: Any, tree: Any, left: int, right: int) -> None:
    """Divide the totals of a split leaf, stored at `left`, between its children."""
    totals = tree.totals
    left_gradient = 0.0
    left_hessian = 0.0
    for i in range(tree.leaves[left, BEGIN], tree.leaves[left, END]):
        row = fit.work.rows[i]
        left_gradient += tree.gradient[row]
        left_hessian += tree.hessian[row]
    totals[right, GRADIENT] = totals[left, GRADIENT] - left_gradient
    totals[right, HESSIAN] = totals[left, HESSIAN] - left_hessian
    totals[left, GRADIENT] = left_gradient
    totals[left, HESSIAN] = left_hessian


@numba.njit(cache=True, nogil=True)
def _divide_sums(fit: Any, tree: Any, left: int, right: int) -> None:
    """Divide the sums by code of a split leaf between its children.

    The sums of the smaller child are computed, and subtracted to get the sums of the other.
    """
    sums = fit.work.leaf_sums
    leaves = tree.leaves
    start = fit.columns.start
    n_left = leaves[left, END] - leaves[left, BEGIN]
    is_left_small = n_left <= leaves[right, END] - leaves[right, BEGIN]
    small_leaf, large_leaf = (left, right) if is_left_small else (right, left)
    if is_left_small:
        copy_into(sums[right].reshape(-1), 0, sums[left].reshape(-1), sums[left].size)
    rows = fit.work.rows[leaves[small_leaf, BEGIN] : leaves[small_leaf, END]]
    count_codes(
        fit.columns.codes, rows, tree.gradient, tree.hessian, tree.active_features, sums[small_leaf]
    )
    for k in tree.active_features:
        for code in range(start[k + 1] - start[k] + 1):
            for sum_index in range(3):
                sums[large_leaf, k, code, sum_index] -= sums[small_leaf, k, code, sum_index]


@numba.njit(cache=True, nogil=True)
def count_codes(
    codes: Any, rows: Any, gradient: Any, hessian: Any, active_features: Any, sums: Any
) -> None:
    """Sum gradients and hessians and count rows, by code of each active column."""
    for active_index in range(len(active_features)):
        code_sums = sums[active_features[active_index]]
        column = codes[active_features[active_index]]
        code_sums[:] = 0.0
        for i in range(len(rows)):
            row = rows[i]
            code = column[row]
            code_sums[code, GRADIENT] += gradient[row]
            code_sums[code, HESSIAN] += hessian[row]
            code_sums[code, COUNT] += 1.0


@numba.njit(cache=True, nogil=True)
def _search_columns(fit: Any, tree: Any, leaf: int) -> None:
    """Find the best split of a leaf on each active column, and its gain minus row prices."""
    start = fit.columns.start
    work = fit.work
    n = tree.leaves[leaf, END] - tree.leaves[leaf, BEGIN]
    gradient = tree.totals[leaf, GRADIENT]
    hessian = tree.totals[leaf, HESSIAN]
    leaf_term = gradient * gradient / hessian
    for k in tree.active_features:
        code_sums = work.leaf_sums[leaf, k]
        nan_code = start[k + 1] - start[k]
        best_gain = -np.inf
        n_missing = code_sums[nan_code, COUNT]  # counts are floats, so 0.5 divides 0 from 1
        for nan_left in range(2 if n_missing > 0.5 else 1):
            left_gradient = 0.0
            left_hessian = 0.0
            n_left = 0.0
            if nan_left:
                left_gradient = code_sums[nan_code, GRADIENT]
                left_hessian = code_sums[nan_code, HESSIAN]
                n_left = n_missing
            # if NaN goes right, all numbers may go left
            n_boundaries = nan_code if n_missing > 0.5 and not nan_left else nan_code - 1
            for code in range(n_boundaries):
                if code_sums[code, COUNT] < 0.5:
                    continue
                left_gradient += code_sums[code, GRADIENT]
                left_hessian += code_sums[code, HESSIAN]
                n_left += code_sums[code, COUNT]
                right_hessian = hessian - left_hessian
                if n - n_left < MIN_ROWS or right_hessian < MIN_HESSIAN:
                    break
                if n_left < MIN_ROWS or left_hessian < MIN_HESSIAN:
                    continue
                # gain = G_left^2 / H_left + G_right^2 / H_right - G^2 / H
                right_gradient = gradient - left_gradient
                left_term = left_gradient * left_gradient / left_hessian
                right_term = right_gradient * right_gradient / right_hessian
                gain = left_term + right_term - leaf_term
                if gain > best_gain:
                    best_gain = gain
                    work.last_code[leaf, k] = code
                    # if no row here is NaN, NaN in later rows goes to the child with more rows
                    is_left_larger = 2.0 * n_left >= n
                    work.nan_left[leaf, k] = is_left_larger if n_missing < 0.5 else nan_left == 1
        if len(fit.row_prices.split):
            rows = work.rows[tree.leaves[leaf, BEGIN] : tree.leaves[leaf, END]]
            best_gain -= _sum_row_prices(fit, rows, k)
        work.gain[leaf, k] = best_gain


@numba.njit(cache=True, nogil=True)
def _choose_column(fit: Any, tree: Any, leaf: int) -> None:
    """Write the column with the largest gain minus price, and write this difference.

    If no gain is above its price, the column is -1 and the gain 0. If the gains of several columns
    are equal up to rounding, the first of these columns is chosen.
    """
    gains = fit.work.gain[leaf]
    prices = fit.work.first_use_price
    best_gain = 0.0
    best_feature = -1
    for k in tree.active_features:
        if gains[k] - prices[k] > best_gain + 1e-12:
            best_gain = gains[k] - prices[k]
            best_feature = k
    tree.best_gain[leaf] = best_gain
    tree.best_feature[leaf] = best_feature
