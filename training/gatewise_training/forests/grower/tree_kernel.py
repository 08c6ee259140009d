"""Depth-first growth of one tree on codes: BudgetRF's GREEDYTREE, or by gain less prices.

The minimax criterion (BudgetRF, ICML 2015, algorithm 1) chooses the split that minimises
``c_k / (F(S) - max over children F(S_child))``. A node is a leaf if ``F(S) = 0``, or if no split
lowers F for both children.

The other criterion chooses the split that maximises the gain in summed entropy less a penalty. The
penalty is ``mu`` times the price that the examples at the node have to pay for the feature and its
group. An example has already paid for them if an earlier split on its path, or an earlier tree,
tested them. Growth continues until nodes are pure, even if the penalty exceeds every gain, because
the first split of a tree is rarely worth its price. Pruning later removes such splits.

Loops over i are over rows, and loops over k are over columns. An item is a feature or a group.
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
    extend_array,
    mark_left,
    partition,
    unsplit_nodes,
    write_leaf,
    write_split,
)
from gatewise_training.forests.grower.histogram import (
    ColumnRows,
    NodeRows,
    SparseCounts,
    clear_sparse,
    count_sparse,
    event_arrays,
    gather_codes,
    list_events,
    list_sparse_events,
)
from gatewise_training.forests.grower.impurity import entropy, threshold_pairs
from gatewise_training.forests.grower.minimax_split import Boundary, crossing_arrays, find_crossing
from gatewise_training.forests.grower.split_search import (
    MAX_DRAWS,
    PAIRS,
    best_gain,
    draw_stumps,
    minimax_pairs,
)

FEATURE, BELOW, ABOVE, MERIT, DROP, HAS_NAN = range(6)
"""Indices into the record of a node's best split so far: its column, its codes and its merit."""

FIRST_DEPTHS = 64
"""Number of depths that a path has room for at first; it is doubled for deeper trees."""


class TreePrices(NamedTuple):
    """Prices of features, (n_features,), and of groups, (n_groups,)."""

    standalone: Any  # price of a feature with its groups
    own: Any
    group: Any  # (n_features,): -1 for no group
    shared: Any  # price of a group with the groups that it requires


class RowItems(NamedTuple):
    """Items that rows acquired for earlier trees: features, then groups."""

    items: Any  # (n_features + n_groups, n_rows), bool
    has_rows: Any  # (n_features + n_groups,), bool: whether any row acquired the item


class BootstrapSample(NamedTuple):
    """Rows of a tree's bootstrap sample, which growth reorders."""

    rows: Any  # (n,), int32
    y: Any  # (n,), int32: classes
    weight: Any  # (n,), int32: number of draws of each row
    n_classes: int


class Path(NamedTuple):
    """Open features and paid items of the path to a node, by depth.

    A feature is open if it may still vary. Nodes are visited depth first, so a node overwrites the
    entries of greater depths.
    """

    open_features: Any  # (n_depths, n_features): list of the open features
    n_open: Any  # (n_depths,): length of this list
    paid: Any  # (n_depths, n_features + n_groups), bool


class WorkArrays(NamedTuple):
    """Working arrays of the search for splits."""

    events: Any  # CodeEvents
    sparse_counts: Any  # SparseCounts
    crossing_work: Any  # CrossingWork
    code: Any  # (n,), int32: codes of a node's rows
    # (n_events,), bool: boundaries that random thresholds fall on; empty if all may be chosen
    is_allowed: Any
    thresholds: Any  # (MAX_DRAWS,)
    # (n_groups,): number of examples at the node that owe the price of a group, or -1 if they are
    # not counted yet
    owing_counts: Any
    best: Any  # (6,): FEATURE to HAS_NAN of the best split of a node


class SplitSearch(NamedTuple):
    """Data, settings and working arrays of the search for splits in one tree."""

    columns: Any  # Codes
    rule: Any  # GrowthRule
    prices: Any  # TreePrices
    acquired: Any  # RowItems
    work: Any  # WorkArrays


@numba.njit(cache=True, nogil=True)
def grow_tree(columns: Any, sample: Any, rule: Any, prices: Any, items: Any, seed: int) -> Any:
    """Grow a tree; return its :class:`GrownNodes` and their class counts, (n_nodes, n_classes).

    `columns` are :class:`.Codes`, and `items` is the array of :class:`RowItems`.
    """
    np.random.seed(seed)  # noqa: NPY002  (numba's stream; each thread has its own)
    n = len(sample.rows)
    n_features = len(columns.codes)
    nodes = unsplit_nodes(2 * n - 1)  # a tree with a row in each of its n leaves
    counts = np.zeros((2 * n - 1, sample.n_classes), np.int32)
    open_leaves = np.empty((2 * n - 1, 4), np.int64)
    n_open_leaves = write_leaf(open_leaves, 0, 0, n, 0, 0)
    n_nodes = 1
    path = _make_root_path(n_features, n_features + len(prices.shared))
    work = _make_working_arrays(columns, n, sample.n_classes, len(prices.shared), rule.stumps)
    search = SplitSearch(columns, rule, prices, _mark_acquired_items(items, rule), work)
    is_left = np.empty(n, np.bool_)
    scratch_rows = np.empty(n, np.int32)
    while n_open_leaves:
        n_open_leaves -= 1
        begin = open_leaves[n_open_leaves, BEGIN]
        end = open_leaves[n_open_leaves, END]
        depth = open_leaves[n_open_leaves, DEPTH]
        node = open_leaves[n_open_leaves, NODE]
        node_rows = _select_node_rows(sample, begin, end, counts[node], rule)
        is_pure = node_rows.impurity <= 0.0 or node_rows.counts.max() == node_rows.n_examples
        if is_pure or depth >= rule.max_depth or len(node_rows.rows) < 2:
            continue
        if depth + 2 > len(path.n_open):
            path = _extend_path(path)
        split, has_nan = find_best_split(search, node_rows, path, depth)
        if split.feature < 0:
            continue
        _mark_paid(path, depth, split.feature, prices.group, n_features)
        # move the rows of the left child to the front
        mark_left(columns, split, node_rows.rows, is_left)
        n_left = partition(node_rows.rows, is_left, scratch_rows)
        partition(node_rows.y, is_left, scratch_rows)
        partition(node_rows.weight, is_left, scratch_rows)
        # if no row here is NaN, NaN in later rows goes to the child with more examples
        n_left_examples = node_rows.weight[:n_left].sum()
        nan_left = 2 * n_left_examples >= node_rows.n_examples and not has_nan
        write_split(nodes, node, columns, split, nan_left, n_nodes)
        middle = begin + n_left
        n_open_leaves = write_leaf(open_leaves, n_open_leaves, middle, end, depth + 1, n_nodes + 1)
        n_open_leaves = write_leaf(open_leaves, n_open_leaves, begin, middle, depth + 1, n_nodes)
        n_nodes += 2
    return nodes, counts[:n_nodes].copy()


@numba.njit(cache=True, nogil=True)
def _make_root_path(n_features: int, n_items: int) -> Any:
    """Make the path to the root, where all features are open and no item is paid."""
    path = Path(
        np.empty((FIRST_DEPTHS, n_features), np.int32),
        np.empty(FIRST_DEPTHS, np.int64),
        np.zeros((FIRST_DEPTHS, n_items), np.bool_),
    )
    for k in range(n_features):
        path.open_features[0, k] = k
    path.n_open[0] = n_features
    return path


@numba.njit(cache=True, nogil=True)
def _extend_path(path: Any) -> Any:
    """Copy a path into one of twice the depth."""
    n_depths = 2 * len(path.n_open)
    return Path(
        extend_array(path.open_features, n_depths),
        extend_array(path.n_open, n_depths),
        extend_array(path.paid, n_depths),
    )


@numba.njit(cache=True, nogil=True)
def _mark_acquired_items(items: Any, rule: Any) -> Any:
    """Mark the items that some row acquired for earlier trees."""
    acquired = RowItems(items, np.zeros(len(items), np.bool_))
    if rule.mu > 0.0:
        for item in range(len(items)):
            acquired.has_rows[item] = items[item].any()
    return acquired


@numba.njit(cache=True, nogil=True)
def _make_working_arrays(columns: Any, n: int, n_classes: int, n_groups: int, stumps: bool) -> Any:
    """Make the working arrays of a tree on `n` rows."""
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
        owing_counts=np.zeros(n_groups),
        best=np.empty(HAS_NAN + 1),
    )


@numba.njit(cache=True, nogil=True)
def _select_node_rows(sample: Any, begin: int, end: int, counts: Any, rule: Any) -> Any:
    """Get the rows of a node, and write its number of examples of each class to `counts`."""
    y = sample.y[begin:end]
    weight = sample.weight[begin:end]
    n_examples = 0
    for i in range(len(y)):
        counts[y[i]] += weight[i]
        n_examples += weight[i]
    if rule.criterion == PAIRS:
        impurity = threshold_pairs(counts, rule.alpha)
    else:
        impurity = entropy(counts, rule.log_table)
    return NodeRows(sample.rows[begin:end], y, weight, counts, n_examples, impurity)


@numba.njit(cache=True, nogil=True)
def find_best_split(search: Any, node: Any, path: Any, depth: int) -> Any:
    """Find the best split of a node; also return whether the node's rows have NaN in its column.

    The features that are still open below the node are written to the path at the next depth.
    """
    columns, rule, prices, acquired, work = search
    for group in range(len(work.owing_counts)):
        work.owing_counts[group] = -1.0
    n_touched = 0
    if len(work.sparse_counts.slots):
        n_touched = count_sparse(columns.sparse, node, work.sparse_counts)
    best = work.best
    best[FEATURE] = -1
    best[MERIT] = -np.inf
    best[DROP] = 0.0
    best[HAS_NAN] = 0
    path.n_open[depth + 1] = _search_columns(
        columns, rule, prices, acquired, work=work, node=node, path=path, depth=depth
    )
    clear_sparse(columns.sparse, work.sparse_counts, n_touched)
    split = LeafSplit(np.int64(best[FEATURE]), np.int64(best[BELOW]), np.int64(best[ABOVE]), False)
    return split, best[HAS_NAN] > 0


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
    best = work.best
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
            can_win = node.impurity - penalty >= best[MERIT]  # the gain is at most the impurity
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
        if boundary.below >= 0:
            has_nan = high == columns.start[k + 1] - columns.start[k]
            score = boundary.score - penalty
            impurity_drop, merit = _drop_and_merit(
                rule.criterion, node.impurity, score, prices.standalone[k]
            )
            _keep_better_split(best, k, boundary, impurity_drop, merit, has_nan)
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
    values = slice(columns.start[k], columns.start[k + 1])
    draw_stumps(
        work.events.code[:n_events],
        columns.lower[values],
        columns.upper[values],
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
    is infinite, so they are compared by their drops. For entropy the merit is the gain less the
    penalty, which may be negative.
    """
    if criterion != PAIRS:
        return np.inf, score
    impurity_drop = impurity - score
    return impurity_drop, impurity_drop / price if price > 0.0 else np.inf


@numba.njit(cache=True, nogil=True)
def _keep_better_split(
    best: Any, k: int, boundary: Any, impurity_drop: float, merit: float, has_nan: bool
) -> None:
    """Write a split into `best` if it lowers the impurity and its merit is larger."""
    both_are_free = merit == np.inf and best[MERIT] == np.inf
    is_better = impurity_drop > best[DROP] if both_are_free else merit > best[MERIT]
    if impurity_drop > 0.0 and is_better:
        best[FEATURE] = k
        best[BELOW] = boundary.below
        best[ABOVE] = boundary.above
        best[MERIT] = merit
        best[DROP] = impurity_drop
        best[HAS_NAN] = has_nan


@numba.njit(cache=True, nogil=True)
def _compute_penalty(
    k: int, node: Any, mu: float, prices: Any, acquired: Any, paid: Any, owing_counts: Any
) -> float:
    """Compute ``mu`` times the price that the examples at a node owe for feature k.

    `owing_counts` caches :func:`_count_owing` for groups, because the features of a group ask
    for it again.
    """
    penalty = 0.0
    if not paid[k]:
        penalty = mu * prices.own[k] * _count_owing(acquired.items[k], acquired.has_rows[k], node)
    group = prices.group[k]
    if group >= 0 and not paid[len(prices.own) + group]:
        if owing_counts[group] < 0.0:
            item = len(prices.own) + group
            owing_counts[group] = _count_owing(acquired.items[item], acquired.has_rows[item], node)
        penalty += mu * prices.shared[group] * owing_counts[group]
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


@numba.njit(cache=True, nogil=True)
def _mark_paid(path: Any, depth: int, feature: int, group: Any, n_features: int) -> None:
    """Mark a feature and its group as paid in the children of a node."""
    child_paid = path.paid[depth + 1]
    for item in range(len(child_paid)):
        child_paid[item] = path.paid[depth, item]
    child_paid[feature] = True
    if group[feature] >= 0:
        child_paid[n_features + group[feature]] = True
