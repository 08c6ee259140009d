"""One tree, depth first, on codes: BudgetRF's GREEDYTREE, and growth by gain less prices.

Minimax (BudgetRF, ICML 2015, algorithm 1): the split that minimises
``c_k / (F(S) - max over children F(S_child))`` until ``F(S) = 0``, or no split lowers F for both
children. By gain: the split that maximises the gain in summed impurity less ``mu`` times what the
instances at the node would have to pay for it, until the node is pure. An instance has paid for a
feature, or for a group, if an earlier split on its path or an earlier tree tested it. A price
above every gain does not end growth: the first split of a tree hardly pays for itself, and what
turns out not to be worth its price is for pruning to cut.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from gatewise_training.forests.grower.binning import between
from gatewise_training.forests.grower.growing_arrays import put_row, wider
from gatewise_training.forests.grower.histogram import (
    clear_sparse,
    code_counts,
    count_sparse,
    gather,
    scratch,
    sparse_counts,
)
from gatewise_training.forests.grower.impurity import entropy, gini, threshold_pairs
from gatewise_training.forests.grower.minimax_split import FEWEST_BINS, crossing
from gatewise_training.forests.grower.split_search import (
    ENTROPY,
    PAIRS,
    best_gain,
    draw_stumps,
    least_worst_pairs,
)


@numba.njit(cache=True, nogil=True)
def grow_tree(
    codes: Any, start: Any, lower: Any, upper: Any, common: Any, offset: Any, entry_start: Any,
    entry_slot: Any, entry_feature: Any, rows: Any, y: Any, weight: Any, n_classes: int, rule: int,
    alpha: float, table: Any, price: Any, own: Any, shared: Any, group: Any, mu: float,
    acquired: Any, stumps: bool, max_features: int, max_depth: int, seed: int,
) -> Any:  # fmt: skip
    """Grow a tree.

    Shapes: `rows, y, weight` (n,), `price` (n_features,), `acquired` (n_features + n_groups,
    n_all); returns `feature, threshold, left, right, nan_left, counts` (n_nodes, ...).
    """
    np.random.seed(seed)  # noqa: NPY002  (numba's stream, each thread has its own)
    n, n_features, n_groups = len(rows), len(codes), len(shared)
    most = 2 * n - 1
    feature = np.full(most, -1, np.int32)
    threshold = np.zeros(most, np.float32)
    left, right = np.full(most, -1, np.int32), np.full(most, -1, np.int32)
    nan_left = np.zeros(most, np.bool_)
    counts = np.zeros((most, n_classes), np.int32)
    # nodes that wait: where their rows are, their depth
    waiting = np.empty((most, 4), np.int64)
    n_waiting, n_nodes = put_row(waiting, 0, 0, 0, n, 0), 1
    # for each depth what the path above leaves open, and has paid; a left subtree writes below
    alive = np.empty((64, n_features), np.int32)
    n_alive = np.empty(64, np.int64)
    paid = np.zeros((64, n_features + n_groups), np.bool_)
    for k in range(n_features):
        alive[0, k] = k
    n_alive[0] = n_features
    some = np.zeros(n_features + n_groups, np.bool_)  # whether any row has paid
    if mu > 0.0:
        for item in range(n_features + n_groups):
            some[item] = acquired[item].any()
    due = np.zeros(n_groups)
    most_codes = _widest(start)
    work = scratch(n, most_codes, n_classes)
    event_code, event_count = work[3], work[4]
    code = np.empty(n, np.int32)
    bins = np.empty(max(n, FEWEST_BINS) * n_classes, np.int32)
    slots = np.zeros((offset[n_features], n_classes), np.int32)
    is_touched = np.zeros(n_features, np.bool_)
    touched = np.empty(n_features, np.int32)
    allowed = np.empty(len(event_code) if stumps else 0, np.bool_)
    draws = np.empty(80)
    moved = np.empty((3, n), np.int32)
    l_count, r_count = np.empty(n_classes, np.int64), np.empty(n_classes, np.int64)

    while n_waiting:
        n_waiting -= 1
        node, begin, end, depth = waiting[n_waiting]
        here = rows[begin:end]
        classes = y[begin:end]
        drawn = weight[begin:end]
        whole = counts[node]
        n_here = 0
        for i in range(len(here)):
            whole[classes[i]] += drawn[i]
            n_here += drawn[i]
        impurity = _impurity(whole, rule, alpha, table)
        if impurity <= 0.0 or depth >= max_depth or len(here) < 2 or whole.max() == n_here:
            continue
        if depth + 2 > len(alive):
            alive, paid = wider(alive, 2 * len(alive)), wider(paid, 2 * len(paid))
            n_alive = np.append(n_alive, n_alive)
        for g in range(n_groups):
            due[g] = -1.0  # not known yet
        n_touched = 0
        if offset[n_features]:
            n_touched = count_sparse(
                here, classes, drawn, entry_start, entry_slot, entry_feature, slots, is_touched,
                touched,
            )  # fmt: skip

        best, free_drop, at, best_split, best_nan = -np.inf, 0.0, -1, (0, 0), False
        tried = n_left_open = 0
        pool = alive[depth].copy()
        for j in range(n_alive[depth]):
            if tried >= max_features and at >= 0:
                alive[depth + 1, n_left_open] = pool[j]
                n_left_open += 1
                continue
            if max_features < n_features:
                other = np.random.randint(j, n_alive[depth])  # noqa: NPY002
                pool[j], pool[other] = pool[other], pool[j]
            k = pool[j]
            toll = 0.0
            if mu > 0.0:
                if not paid[depth, k]:
                    toll = mu * own[k] * _owing(acquired[k], some[k], here, drawn, n_here)
                g = group[k]
                if g >= 0 and not paid[depth, n_features + g]:
                    if due[g] < 0.0:
                        item = n_features + g
                        due[g] = _owing(acquired[item], some[item], here, drawn, n_here)
                    toll += mu * shared[g] * due[g]
                if impurity - toll < best:  # no gain could win
                    alive[depth + 1, n_left_open] = k
                    n_left_open += 1
                    tried += 1
                    continue
            n_real = start[k + 1] - start[k]
            is_sparse = common[k] >= 0
            if is_sparse:
                if not is_touched[k]:
                    continue
                events = sparse_counts(
                    slots, offset[k], offset[k + 1], common[k], whole, event_code, event_count
                )
                if events < 2:
                    continue
                low, high = event_code[0], event_code[events - 1]
            else:
                low, high = gather(codes[k], here, code)
                if low == high:
                    continue
            alive[depth + 1, n_left_open] = k
            n_left_open += 1
            tried += 1
            if rule == PAIRS and not is_sparse and not stumps:
                worst, below, above = crossing(
                    code[: len(here)], classes, drawn, low, high, whole, alpha, impurity, moved,
                    bins, l_count, r_count,
                )  # fmt: skip
            else:
                if not is_sparse:
                    events = code_counts(code, classes, drawn, low, high, n_classes, work)
                if stumps:
                    values = slice(start[k], start[k + 1])
                    draw_stumps(
                        event_code, events, lower[values], upper[values], n_here, allowed, draws
                    )
                if rule == PAIRS:
                    worst, e = least_worst_pairs(
                        event_count, events, whole, alpha, impurity, allowed, l_count, r_count
                    )
                else:
                    gain, e = best_gain(
                        event_count, events, whole, rule, table, impurity, allowed, l_count, r_count
                    )
                if e < 0:
                    continue
                below, above = event_code[e], event_code[e + 1]
            if rule == PAIRS:
                if worst >= impurity:
                    continue
                # the least c / (F - worst) is the largest inverse; what is free wins by its drop
                better = (impurity - worst) / price[k] if price[k] > 0.0 else np.inf
                if better == np.inf and best == np.inf:
                    if impurity - worst <= free_drop:
                        continue
                elif better <= best:
                    continue
                free_drop = impurity - worst
            else:
                better = gain - toll
                if better <= best:
                    continue
            best, at = better, k
            best_split = (below, above)
            best_nan = high == n_real
        clear_sparse(offset, slots, is_touched, touched, n_touched)
        n_alive[depth + 1] = n_left_open
        if at < 0:
            continue

        for item in range(n_features + n_groups):
            paid[depth + 1, item] = paid[depth, item]
        paid[depth + 1, at] = True
        if group[at] >= 0:
            paid[depth + 1, n_features + group[at]] = True
        middle, heavy_left = _part(codes[at], best_split[0], here, classes, drawn, moved, n_here)
        feature[node] = at
        if best_split[1] == start[at + 1] - start[at]:
            threshold[node] = np.float32(np.finfo(np.float32).max)  # all that is a number
        else:
            threshold[node] = between(
                upper[start[at] + best_split[0]], lower[start[at] + best_split[1]]
            )
        nan_left[node] = heavy_left and not best_nan
        left[node], right[node] = n_nodes, n_nodes + 1
        n_waiting = put_row(waiting, n_waiting, n_nodes + 1, begin + middle, end, depth + 1)
        n_waiting = put_row(waiting, n_waiting, n_nodes, begin, begin + middle, depth + 1)
        n_nodes += 2

    return (
        feature[:n_nodes].copy(), threshold[:n_nodes].copy(), left[:n_nodes].copy(),
        right[:n_nodes].copy(), nan_left[:n_nodes].copy(), counts[:n_nodes].copy(),
    )  # fmt: skip


@numba.njit(cache=True, nogil=True)
def _widest(start: Any) -> int:
    """Most codes of a column, NaN's included."""
    most = 1
    for k in range(len(start) - 1):
        most = max(most, start[k + 1] - start[k] + 1)
    return most


@numba.njit(cache=True, nogil=True)
def _impurity(whole: Any, rule: int, alpha: float, table: Any) -> float:
    if rule == PAIRS:
        return threshold_pairs(whole, alpha)
    return entropy(whole, table) if rule == ENTROPY else gini(whole)


@numba.njit(cache=True, nogil=True)
def _owing(acquired: Any, some: bool, rows: Any, weight: Any, n_here: int) -> float:
    """Examples at the node that have not paid for a feature or a group in earlier trees."""
    owing = n_here
    if some:
        for i in range(len(rows)):
            if acquired[rows[i]]:
                owing -= weight[i]
    return float(owing)


@numba.njit(cache=True, nogil=True)
def _part(column: Any, code: int, rows: Any, y: Any, weight: Any, moved: Any, n_here: int) -> Any:
    """Bring the rows up to a code to the front, all in their order."""
    n_left = n_right = 0
    heavy = 0
    for i in range(len(rows)):
        if column[rows[i]] <= code:
            heavy += weight[i]
            rows[n_left], y[n_left], weight[n_left] = rows[i], y[i], weight[i]
            n_left += 1
        else:
            moved[0, n_right], moved[1, n_right], moved[2, n_right] = rows[i], y[i], weight[i]
            n_right += 1
    for i in range(n_right):
        at = n_left + i
        rows[at], y[at], weight[at] = moved[0, i], moved[1, i], moved[2, i]
    return n_left, 2 * heavy >= n_here
