"""One tree, depth first, on codes: BudgetRF's GREEDYTREE, and growth by gain less prices.

Minimax (BudgetRF, ICML 2015, algorithm 1): the split that minimises
``c_k / (F(S) - max over children F(S_child))`` until ``F(S) = 0``, or no split lowers F for both
children. By gain: the split that maximises the gain in summed impurity less ``mu`` times the price
that the instances at the node have to pay for it, until the node is pure. An instance has paid for
a feature, or for a group, if an earlier split on its path or an earlier tree tested it. A price
above every gain does not end growth, because the first split of a tree is hardly ever worth its
price alone; pruning cuts the splits that are not worth theirs in the end.
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
    GrownNodes,
    LeafSplit,
    mark_left,
    partition,
    wider,
    write_leaf,
    write_split,
)
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


class SparseColumns(NamedTuple):
    """Columns in which one code prevails; fields as of :class:`.Sparse`."""

    common: Any
    offset: Any
    entry_start: Any
    entry_slot: Any
    entry_feature: Any


class GrowthRule(NamedTuple):
    """Settings of a tree's growth."""

    criterion: int  # PAIRS, ENTROPY or GINI
    alpha: float  # threshold of Pairs, in examples
    mu: float  # gain that one example's acquisition of unit price must bring
    stumps: bool  # random thresholds alone
    max_features: int
    max_depth: int
    log_table: Any  # (n_examples + 1,), of :func:`.log_table`, for ENTROPY


class TreePrices(NamedTuple):
    """Prices of features, (n_features,), and of groups, (n_groups,)."""

    alone: Any  # price of a feature with its groups
    own: Any
    group: Any  # (n_features,): -1 for no group
    shared: Any  # price of a group with the groups that it requires


class RowItems(NamedTuple):
    """Features, and behind them groups, that rows acquired for earlier trees."""

    items: Any  # (n_features + n_groups, n_rows), bool
    has_rows: Any  # (n_features + n_groups,), bool: whether any row acquired the item


class Path(NamedTuple):
    """Open features and paid items of the path to a node, by depth.

    Nodes are visited depth first, so a node overwrites the entries below its own depth.
    """

    open_features: Any  # (n_depths, n_features): the features that vary stand first
    n_open: Any  # (n_depths,)
    paid: Any  # (n_depths, n_features + n_groups), bool


class NodeRows(NamedTuple):
    """Rows of a node."""

    rows: Any  # (n,)
    y: Any  # (n,): classes
    weight: Any  # (n,): how often each was drawn
    counts: Any  # (n_classes,): examples
    n_examples: int
    impurity: float


class Work(NamedTuple):
    """Working arrays of the search for splits."""

    counting: Any  # of :func:`.scratch`
    event_code: Any
    event_count: Any
    code: Any
    bins: Any
    slots: Any
    is_touched: Any
    touched: Any
    allowed: Any
    draws: Any
    moved: Any
    left_count: Any
    right_count: Any
    group_owing: Any  # (n_groups,): examples at the node that owe a group; -1: not counted yet


@numba.njit(cache=True, nogil=True)
def grow_tree(
    columns: Any, sparse: Any, rows: Any, y: Any, weight: Any, n_classes: int, rule: Any,
    prices: Any, items: Any, seed: int,
) -> Any:  # fmt: skip
    """Grow a tree; returns its :class:`GrownNodes` and their class counts, (n_nodes, n_classes).

    Shapes: `rows, y, weight` (n,), which are reordered; `items` as of :class:`RowItems`.
    """
    np.random.seed(seed)  # noqa: NPY002  (numba's stream, each thread has its own)
    n = len(rows)
    n_features, n_groups = len(columns.codes), len(prices.shared)
    nodes = _empty_nodes(2 * n - 1)
    counts = np.zeros((2 * n - 1, n_classes), np.int32)
    pending = np.empty((2 * n - 1, 4), np.int64)
    n_pending = write_leaf(pending, 0, 0, n, 0, 0)
    n_nodes = 1
    path = _root_path(n_features, n_features + n_groups)
    acquired = _row_items(items, rule)
    work = _work(columns, sparse, n, n_classes, n_groups, rule.stumps)
    is_left = np.empty(n, np.bool_)
    while n_pending:
        n_pending -= 1
        begin = pending[n_pending, BEGIN]
        end = pending[n_pending, END]
        depth = pending[n_pending, DEPTH]
        node = pending[n_pending, NODE]
        part = _node_rows(rows[begin:end], y[begin:end], weight[begin:end], counts[node], rule)
        is_pure = part.impurity <= 0.0 or part.counts.max() == part.n_examples
        if is_pure or depth >= rule.max_depth or len(part.rows) < 2:
            continue
        if depth + 2 > len(path.n_open):
            path = _longer_path(path)
        split, has_nan = find_best_split(
            columns, sparse, part, rule, prices, acquired, path, depth, work
        )
        if split.feature < 0:
            continue
        _pay(path, depth, split.feature, prices.group, n_features)
        # rows of the left child first, then of the right one
        mark_left(columns, split, part.rows, is_left)
        n_left = partition(part.rows, is_left, work.moved[0])
        partition(part.y, is_left, work.moved[1])
        partition(part.weight, is_left, work.moved[2])
        # rows without a value that come later go with the heavier side
        n_left_examples = part.weight[:n_left].sum()
        nan_left = 2 * n_left_examples >= part.n_examples and not has_nan
        write_split(nodes, node, columns, split, nan_left, n_nodes)
        middle = begin + n_left
        n_pending = write_leaf(pending, n_pending, middle, end, depth + 1, n_nodes + 1)
        n_pending = write_leaf(pending, n_pending, begin, middle, depth + 1, n_nodes)
        n_nodes += 2
    return GrownNodes(
        nodes.feature[:n_nodes].copy(), nodes.threshold[:n_nodes].copy(),
        nodes.left[:n_nodes].copy(), nodes.right[:n_nodes].copy(), nodes.nan_left[:n_nodes].copy(),
    ), counts[:n_nodes].copy()  # fmt: skip


@numba.njit(cache=True, nogil=True)
def _empty_nodes(n: int) -> Any:
    return GrownNodes(
        np.full(n, -1, np.int32), np.zeros(n, np.float32), np.full(n, -1, np.int32),
        np.full(n, -1, np.int32), np.zeros(n, np.bool_),
    )  # fmt: skip


@numba.njit(cache=True, nogil=True)
def _root_path(n_features: int, n_items: int) -> Any:
    """Make the path to the root: all features are open, nothing is paid."""
    path = Path(
        np.empty((64, n_features), np.int32),
        np.empty(64, np.int64),
        np.zeros((64, n_items), np.bool_),
    )
    for k in range(n_features):
        path.open_features[0, k] = k
    path.n_open[0] = n_features
    return path


@numba.njit(cache=True, nogil=True)
def _longer_path(path: Any) -> Any:
    """Copy a path into one of twice the depth."""
    size = 2 * len(path.n_open)
    return Path(wider(path.open_features, size), wider(path.n_open, size), wider(path.paid, size))


@numba.njit(cache=True, nogil=True)
def _row_items(items: Any, rule: Any) -> Any:
    """Mark the items that some row acquired for earlier trees."""
    acquired = RowItems(items, np.zeros(len(items), np.bool_))
    if rule.mu > 0.0:
        for item in range(len(items)):
            acquired.has_rows[item] = items[item].any()
    return acquired


@numba.njit(cache=True, nogil=True)
def _work(columns: Any, sparse: Any, n: int, n_classes: int, n_groups: int, stumps: bool) -> Any:
    n_features = len(columns.codes)
    most_codes = 1  # NaN's code included
    for k in range(n_features):
        most_codes = max(most_codes, columns.start[k + 1] - columns.start[k] + 1)
    counting = scratch(n, most_codes, n_classes)
    return Work(
        counting=counting,
        event_code=counting[3],
        event_count=counting[4],
        code=np.empty(n, np.int32),
        bins=np.empty(max(n, FEWEST_BINS) * n_classes, np.int32),
        slots=np.zeros((sparse.offset[n_features], n_classes), np.int32),
        is_touched=np.zeros(n_features, np.bool_),
        touched=np.empty(n_features, np.int32),
        allowed=np.empty(len(counting[3]) if stumps else 0, np.bool_),
        draws=np.empty(80),
        moved=np.empty((3, n), np.int32),
        left_count=np.empty(n_classes, np.int64),
        right_count=np.empty(n_classes, np.int64),
        group_owing=np.zeros(n_groups),
    )


@numba.njit(cache=True, nogil=True)
def _node_rows(rows: Any, y: Any, weight: Any, counts: Any, rule: Any) -> Any:
    """Count the examples of a node by class."""
    n_examples = 0
    for i in range(len(rows)):
        counts[y[i]] += weight[i]
        n_examples += weight[i]
    if rule.criterion == PAIRS:
        impurity = threshold_pairs(counts, rule.alpha)
    elif rule.criterion == ENTROPY:
        impurity = entropy(counts, rule.log_table)
    else:
        impurity = gini(counts)
    return NodeRows(rows, y, weight, counts, n_examples, impurity)


@numba.njit(cache=True, nogil=True)
def find_best_split(
    columns: Any, sparse: Any, part: Any, rule: Any, prices: Any, acquired: Any, path: Any,
    depth: int, work: Any,
) -> Any:  # fmt: skip
    """Find the best split of a node, and whether rows at the node have NaN there.

    Features that may still vary below the node are written into the path at the next depth. The
    loop holds the search of a column, on local names for arrays: a call for each column, or a
    record's field, would take half as long again as the search itself.
    """
    codes, start, lower, upper = columns
    common, offset, entry_start, entry_slot, entry_feature = sparse
    rows, y, weight, counts, n_examples, impurity = part
    event_code, event_count = work.event_code, work.event_count
    code, moved, slots = work.code, work.moved, work.slots
    left_count, right_count, allowed = work.left_count, work.right_count, work.allowed
    n = len(rows)
    n_features = len(codes)
    node_features = path.open_features[depth].copy()
    child_features = path.open_features[depth + 1]
    for g in range(len(work.group_owing)):
        work.group_owing[g] = -1.0
    n_touched = 0
    if offset[n_features]:
        n_touched = count_sparse(
            rows, y, weight, entry_start, entry_slot, entry_feature, slots, work.is_touched,
            work.touched,
        )  # fmt: skip

    best_merit = -np.inf
    best_drop = 0.0
    best_has_nan = False
    best = LeafSplit(np.int64(-1), np.int64(0), np.int64(0), False)
    n_tried = n_open = n_events = 0
    for j in range(path.n_open[depth]):
        # draw a feature
        if n_tried >= rule.max_features and best.feature >= 0:
            child_features[n_open] = node_features[j]
            n_open += 1
            continue
        if rule.max_features < n_features:
            draw = np.random.randint(j, path.n_open[depth])  # noqa: NPY002
            node_features[j], node_features[draw] = node_features[draw], node_features[j]
        k = node_features[j]
        toll = 0.0
        if rule.mu > 0.0:
            toll = _toll(k, part, rule.mu, prices, acquired, path.paid[depth], work.group_owing)
            if impurity - toll < best_merit:  # no gain could win
                child_features[n_open] = k
                n_open += 1
                n_tried += 1
                continue
        # the codes that occur at the node
        is_sparse = common[k] >= 0
        if is_sparse:
            if not work.is_touched[k]:
                continue
            n_events = sparse_counts(
                slots, offset[k], offset[k + 1], common[k], counts, event_code, event_count
            )
            if n_events < 2:
                continue
            low = event_code[0]
            high = event_code[n_events - 1]
        else:
            low, high = gather(codes[k], rows, code)
            if low == high:
                continue
        child_features[n_open] = k
        n_open += 1
        n_tried += 1
        # the best boundary between two of them
        if rule.criterion == PAIRS and not is_sparse and not rule.stumps:
            worst, left_code, right_code = crossing(
                code[:n], y, weight, low, high, counts, rule.alpha, impurity, moved, work.bins,
                left_count, right_count,
            )  # fmt: skip
        else:
            if not is_sparse:
                n_events = code_counts(code, y, weight, low, high, len(counts), work.counting)
            if rule.stumps:
                values = slice(start[k], start[k + 1])
                draw_stumps(
                    event_code, n_events, lower[values], upper[values], n_examples, allowed,
                    work.draws,
                )  # fmt: skip
            if rule.criterion == PAIRS:
                worst, event = least_worst_pairs(
                    event_count, n_events, counts, rule.alpha, impurity, allowed, left_count,
                    right_count,
                )  # fmt: skip
            else:
                gain, event = best_gain(
                    event_count, n_events, counts, rule.criterion, rule.log_table, impurity,
                    allowed, left_count, right_count,
                )  # fmt: skip
            if event < 0:
                continue
            left_code = event_code[event]
            right_code = event_code[event + 1]
        # compare it with the best of the columns before
        if rule.criterion == PAIRS:
            drop = impurity - worst
            if drop <= 0.0:
                continue
            # least c / (F - worst) as its largest inverse; free features compare their drops
            merit = drop / prices.alone[k] if prices.alone[k] > 0.0 else np.inf
            both_are_free = merit == np.inf and best_merit == np.inf
            is_better = drop > best_drop if both_are_free else merit > best_merit
        else:
            drop = 0.0
            merit = gain - toll
            is_better = merit > best_merit
        if is_better:
            best_merit = merit
            best_drop = drop
            best_has_nan = high == start[k + 1] - start[k]
            best = LeafSplit(np.int64(k), np.int64(left_code), np.int64(right_code), False)
    clear_sparse(offset, slots, work.is_touched, work.touched, n_touched)
    path.n_open[depth + 1] = n_open
    return best, best_has_nan


@numba.njit(cache=True, nogil=True)
def _toll(k: int, part: Any, mu: float, prices: Any, acquired: Any, paid: Any, owing: Any) -> float:
    """Get ``mu`` times the price that the examples at a node have to pay for a feature.

    `owing` keeps the examples that owe each group; -1: not counted yet.
    """
    toll = 0.0
    if not paid[k]:
        toll = mu * prices.own[k] * _owing(acquired.items[k], acquired.has_rows[k], part)
    g = prices.group[k]
    if g >= 0 and not paid[len(prices.own) + g]:
        if owing[g] < 0.0:
            item = len(prices.own) + g
            owing[g] = _owing(acquired.items[item], acquired.has_rows[item], part)
        toll += mu * prices.shared[g] * owing[g]
    return toll


@numba.njit(cache=True, nogil=True)
def _owing(acquired: Any, has_rows: bool, part: Any) -> float:
    """Count the examples at a node that have not acquired an item for earlier trees."""
    n_owing = part.n_examples
    if has_rows:
        for i in range(len(part.rows)):
            if acquired[part.rows[i]]:
                n_owing -= part.weight[i]
    return float(n_owing)


@numba.njit(cache=True, nogil=True)
def _pay(path: Any, depth: int, feature: int, group: Any, n_features: int) -> None:
    """Mark a feature and its group as paid below a node at a depth."""
    child_paid = path.paid[depth + 1]
    for item in range(len(child_paid)):
        child_paid[item] = path.paid[depth, item]
    child_paid[feature] = True
    if group[feature] >= 0:
        child_paid[n_features + group[feature]] = True
