"""Search of one node's best split over all its open columns, with the prices of what rows lack.

Loops over i are over rows, and loops over k are over columns. An item is a feature or a group.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba
import numpy as np

from gatewise_training.forests.grower.growing import LeafSplit
from gatewise_training.forests.grower.histogram import (
    ColumnRows,
    SparseCounts,
    clear_sparse,
    count_sparse,
    event_arrays,
    gather_codes,
    list_events,
    list_sparse_events,
)
from gatewise_training.forests.grower.minimax_split import Boundary, crossing_arrays, find_crossing
from gatewise_training.forests.grower.split_search import (
    MAX_DRAWS,
    PAIRS,
    best_gain,
    draw_stumps,
    minimax_pairs,
)

#: Indices into the record of a node's best split so far: its column, its codes and its merit.
FEATURE, LAST_LEFT_CODE, FIRST_RIGHT_CODE, MERIT, DROP, HAS_NAN = range(6)


class TreePrices(NamedTuple):
    """Price of each feature with its groups, (n_features,), and :class:`.PricedItems`."""

    standalone: Any
    price: Any
    start: Any
    items: Any


class RowItems(NamedTuple):
    """Items that rows acquired for earlier trees: features, then groups."""

    items: Any  # (n_features + n_groups, n_rows), bool
    has_rows: Any  # (n_features + n_groups,), bool: whether any row acquired the item


class WorkArrays(NamedTuple):
    """Working arrays of the search for splits."""

    events: Any  # CodeEvents
    sparse_counts: Any  # SparseCounts
    crossing_work: Any  # CrossingWork
    code: Any  # (n,), int32: codes of a node's rows
    # (n_events,), bool: boundaries that random thresholds fall on; empty if all may be chosen
    is_allowed: Any
    thresholds: Any  # (MAX_DRAWS,)
    # (n_items,): number of examples at the node that owe the price of an item, or -1 if they are
    # not counted yet; empty if acquisitions have no price
    owing_counts: Any
    best_split: Any  # (6,): FEATURE to HAS_NAN of the best split of a node


class SplitSearch(NamedTuple):
    """Data, settings and working arrays of the search for splits in one tree."""

    columns: Any  # Codes
    rule: Any  # GrowthRule
    prices: Any  # TreePrices
    acquired: Any  # RowItems
    work: Any  # WorkArrays


@numba.njit(cache=True, nogil=True)
def make_work_arrays(columns: Any, n: int, n_classes: int, n_items: int, stumps: bool) -> Any:
    """Make the working arrays of the searches in a tree on `n` rows."""
    n_features = len(columns.codes)
    n_codes = 1  # including the code of NaN
    for k in range(n_features):
        n_codes = max(n_codes, columns.start[k + 1] - columns.start[k] + 1)
    events = event_arrays(n, n_codes, n_classes)
    sparse_counts = SparseCounts(
        slots=np.zeros((columns.sparse.offset[n_features], n_classes), np.int32),
        is_touched=np.zeros(n_features, np.bool_),
        touched_columns=np.empty(n_features, np.int32),
    )
    return WorkArrays(
        events=events,
        sparse_counts=sparse_counts,
        crossing_work=crossing_arrays(n, n_classes),
        code=np.empty(n, np.int32),
        is_allowed=np.empty(len(events.code) if stumps else 0, np.bool_),
        thresholds=np.empty(MAX_DRAWS),
        owing_counts=np.zeros(n_items),
        best_split=np.empty(HAS_NAN + 1),
    )


@numba.njit(cache=True, nogil=True)
def find_best_split(search: Any, node: Any, path: Any, depth: int) -> Any:
    """Find the best split of a node; also return whether the node's rows have NaN in its column.

    The features that are still open below the node are written to the path at the next depth.
    """
    columns, rule, prices, acquired, work = search
    for item in range(len(work.owing_counts)):
        work.owing_counts[item] = -1.0
    n_touched = 0
    if len(work.sparse_counts.slots):
        n_touched = count_sparse(columns.sparse, node, work.sparse_counts)
    best_split = work.best_split
    best_split[FEATURE] = -1
    best_split[MERIT] = -np.inf
    best_split[DROP] = 0.0
    best_split[HAS_NAN] = 0
    path.n_open[depth + 1] = _search_columns(
        columns, rule, prices, acquired, work=work, node=node, path=path, depth=depth
    )
    clear_sparse(columns.sparse, work.sparse_counts, n_touched)
    split = LeafSplit(
        np.int64(best_split[FEATURE]),
        np.int64(best_split[LAST_LEFT_CODE]),
        np.int64(best_split[FIRST_RIGHT_CODE]),
        False,
    )
    return split, best_split[HAS_NAN] > 0


@numba.njit(cache=True, nogil=True)
def _search_columns(
    columns: Any, rule: Any, prices: Any, acquired: Any, work: Any, node: Any, path: Any, depth: int
) -> int:
    """Search the open columns of a node for the best split; return the number that stay open.

    Arrays are read from their records before the loop. For each read of a record, numba counts
    references to all arrays of the record, and each call passes all of them.
    """
    codes = columns.codes
    common_codes = columns.sparse.common
    events = work.events
    crossing_work = work.crossing_work
    node_rows = node.rows
    rows = ColumnRows(work.code[: len(node_rows)], node.y, node.weight)
    best_split = work.best_split
    node_features = path.open_features[depth].copy()
    child_features = path.open_features[depth + 1]
    n_open = 0
    for open_index in range(path.n_open[depth]):
        k = node_features[open_index]
        # penalty = mu * price of the examples that have not acquired the column
        penalty = 0.0
        can_win = True
        if rule.mu > 0.0:
            counts = work.owing_counts
            penalty = _compute_penalty(
                k, node, rule.mu, prices, acquired, paid=path.paid[depth], owing_counts=counts
            )
            # the gain is at most the impurity
            can_win = node.impurity - penalty >= best_split[MERIT]
        # codes of the node's rows; the codes of a sparse column are already counted
        low: Any = np.int64(0)
        high: Any = np.int64(0)
        n_events: Any = np.int64(0)
        if can_win and common_codes[k] < 0:
            low, high = gather_codes(codes[k], node_rows, rows.code)
        elif can_win:
            low, high, n_events = _list_sparse_codes(
                columns.sparse, k, node, work.sparse_counts, events
            )
        if can_win and low == high:  # the column does not vary
            continue
        child_features[n_open] = k
        n_open += 1
        if not can_win:
            continue
        # the best boundary between two codes
        if n_events == 0 and rule.criterion == PAIRS and not rule.stumps:
            boundary = find_crossing(rows, low, high, node, rule.alpha, crossing_work)
        else:
            if n_events == 0:
                n_events = list_events(rows, low, high, events)
            if rule.stumps:
                _allow_stumps(columns, k, node.n_examples, n_events, work)
            boundary = _find_event_boundary(
                events, n_events, node, rule, work.is_allowed, crossing_work
            )
        if boundary.last_left_code >= 0:
            has_nan = high == columns.start[k + 1] - columns.start[k]
            score = boundary.score - penalty
            impurity_drop, merit = _drop_and_merit(
                rule.criterion, node.impurity, score, prices.standalone[k]
            )
            _keep_better_split(best_split, k, boundary, impurity_drop, merit, has_nan)
    return n_open


@numba.njit(cache=True, nogil=True)
def _list_sparse_codes(sparse: Any, k: int, node: Any, counts: Any, events: Any) -> Any:
    """List the codes of sparse column k; return the smallest, the largest and their number.

    All three are 0 if the column does not vary.
    """
    n_events = np.int64(0)
    if counts.is_touched[k]:
        n_events = np.int64(list_sparse_events(sparse, k, node.counts, counts.slots, events))
    if n_events < 2:
        return np.int64(0), np.int64(0), np.int64(0)
    return np.int64(events.code[0]), np.int64(events.code[n_events - 1]), n_events


@numba.njit(cache=True, nogil=True)
def _allow_stumps(columns: Any, k: int, n_examples: int, n_events: int, work: Any) -> None:
    """Mark the boundaries of column k that random thresholds fall on."""
    column_values = slice(columns.start[k], columns.start[k + 1])
    draw_stumps(
        work.events.code[:n_events],
        columns.lower[column_values],
        columns.upper[column_values],
        n_examples,
        work.is_allowed,
        work.thresholds,
    )


@numba.njit(cache=True, nogil=True)
def _find_event_boundary(
    events: Any, n_events: int, node: Any, rule: Any, is_allowed: Any, crossing_work: Any
) -> Any:
    """Find the best :class:`.Boundary` between the codes that are listed in `events`."""
    if rule.criterion == PAIRS:
        score, boundary = minimax_pairs(
            events.count, n_events, node, rule.alpha, is_allowed, crossing_work
        )
    else:
        score, boundary = best_gain(events.count, n_events, node, rule, is_allowed, crossing_work)
    if boundary < 0:
        return Boundary(score, np.int64(-1), np.int64(-1))
    return Boundary(score, np.int64(events.code[boundary]), np.int64(events.code[boundary + 1]))


@numba.njit(cache=True, nogil=True)
def _drop_and_merit(criterion: int, impurity: float, score: float, price: float) -> Any:
    """Compute how much a split lowers the impurity, and its merit; the largest merit wins.

    For threshold-Pairs the merit is the inverse of ``c / (F - worst)``. The merit of free features
    is infinite, so they are compared by their drops. For entropy the merit is the gain minus the
    penalty, and may be negative.
    """
    if criterion != PAIRS:
        return np.inf, score
    impurity_drop = impurity - score
    return impurity_drop, impurity_drop / price if price > 0.0 else np.inf


@numba.njit(cache=True, nogil=True)
def _keep_better_split(
    best_split: Any, k: int, boundary: Any, impurity_drop: float, merit: float, has_nan: bool
) -> None:
    """Write a split into `best_split` if it lowers the impurity and its merit is larger."""
    both_are_free = merit == np.inf and best_split[MERIT] == np.inf
    is_better = impurity_drop > best_split[DROP] if both_are_free else merit > best_split[MERIT]
    if impurity_drop > 0.0 and is_better:
        best_split[FEATURE] = k
        best_split[LAST_LEFT_CODE] = boundary.last_left_code
        best_split[FIRST_RIGHT_CODE] = boundary.first_right_code
        best_split[MERIT] = merit
        best_split[DROP] = impurity_drop
        best_split[HAS_NAN] = has_nan


@numba.njit(cache=True, nogil=True)
def _compute_penalty(
    k: int, node: Any, mu: float, prices: Any, acquired: Any, paid: Any, owing_counts: Any
) -> float:
    """Compute ``mu`` times the price that the examples at a node owe for feature k.

    `owing_counts` caches :func:`_count_owing`, because the features of a group ask for it again.
    """
    penalty = 0.0
    for position in range(prices.start[k], prices.start[k + 1]):
        item = prices.items[position]
        if paid[item]:
            continue
        if owing_counts[item] < 0.0:
            owing_counts[item] = _count_owing(acquired.items[item], acquired.has_rows[item], node)
        penalty += mu * prices.price[item] * owing_counts[item]
    return penalty


@numba.njit(cache=True, nogil=True)
def _count_owing(acquired: Any, has_rows: bool, node: Any) -> float:
    """Count the examples at a node that have not acquired an item for earlier trees."""
    rows = node.rows
    weight = node.weight
    n_owing = node.n_examples
    if has_rows:
        for i in range(len(rows)):
            if acquired[rows[i]]:
                n_owing -= weight[i]
    return float(n_owing)
