"""Extremely randomised trees (Geurts, Ernst & Wehenkel, 2006), compiled.

As in scikit-learn's ExtraTreesClassifier, each tree is fitted on all rows. If there are K features,
a node tries sqrt(K) of them, each with one uniformly random threshold, and uses the split with the
lowest Gini impurity. scikit-learn needs two milliseconds for a tree of a few hundred rows, which is
nearly all overhead. It also counts features that are constant within a node among those sqrt(K),
which makes forests on columns of mostly 0 larger and less accurate.
"""

from __future__ import annotations

from typing import Any, NamedTuple

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
    ensemble_of,
    extend_array,
    extend_nodes,
    unsplit_nodes,
    write_leaf,
)

#: Column of the pending nodes with the number of features that are constant within the node.
N_CONSTANT = DEPTH


class ForestTask(NamedTuple):
    """Training rows and settings of a forest."""

    columns: Any  # (n_features, n), float32
    labels: Any  # (n,), uint32
    weight: Any  # (n,)
    counts_rows: bool  # whether there are two classes and all weights are 1
    n_classes: int
    n_trees: int
    n_candidates: int  # number of varying columns that a node tries
    min_rows: int  # smallest number of rows of a leaf


class ForestArrays(NamedTuple):
    """Working arrays of a forest's growth.

    Indices are unsigned, because numba checks whether signed ones are negative.
    """

    rows: Any  # (n,), uint32: rows of all pending nodes, one node after another
    spare_rows: Any  # (n,), uint32
    pending_nodes: Any  # (2 * n, 4): columns BEGIN, END, N_CONSTANT, NODE
    # copies for a node's rows, which loops read one after another
    node_cells: Any  # (n,), float32: cells of the drawn column
    node_labels: Any  # (n,), uint32
    node_weight: Any  # (n,)
    column_order: Any  # (n_features,): columns; columns that are constant within the node are first
    class_sums: Any  # (n_classes,): weight of a node's rows of each class
    left_sums: Any  # (n_classes,): weight of the rows on the left of a candidate split


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
    """Fit a forest with at least `min_rows` rows per leaf.

    Its margins are the averaged class distributions of the leaves. Shapes: `x` (n, n_features),
    without NaN, `y, weight` (n,).
    """
    n_features = x.shape[1]
    task = ForestTask(
        columns=np.ascontiguousarray(x.T, np.float32),
        labels=y.astype(np.uint32),
        weight=np.asarray(weight, np.float64),
        counts_rows=n_classes == 2 and bool(np.all(weight == 1.0)),
        n_classes=n_classes,
        n_trees=n_trees,
        n_candidates=max(1, int(np.sqrt(n_features))),
        min_rows=min_rows,
    )
    nodes, value, n_nodes, roots = _grow_forest(task, seed)
    return ensemble_of(
        nodes,
        n_nodes,
        value,
        roots=roots,
        output=np.full(n_trees, -1, np.int32),
        base=np.zeros(n_classes, np.float32),
        n_features=n_features,
    )


@numba.njit(cache=True, nogil=True)
def _grow_forest(task: Any, seed: int) -> Any:
    """Grow all trees; return the nodes, their values, the number of nodes, and the roots."""
    np.random.seed(seed)  # noqa: NPY002  (numba's stream; each thread has its own)
    n_features, n = task.columns.shape
    # room for trees of 64 nodes at first, and always for the largest tree
    max_nodes = max(task.n_trees * min(2 * n, 64), 2 * n)
    nodes = unsplit_nodes(max_nodes)
    value = np.zeros((max_nodes, task.n_classes), np.float32)
    work = ForestArrays(
        rows=np.empty(n, np.uint32),
        spare_rows=np.empty(n, np.uint32),
        pending_nodes=np.empty((2 * n, 4), np.int64),
        node_cells=np.empty(n, np.float32),
        node_labels=np.empty(n, np.uint32),
        node_weight=np.empty(n),
        column_order=np.arange(n_features),
        class_sums=np.empty(task.n_classes),
        left_sums=np.empty(task.n_classes),
    )
    roots = np.empty(task.n_trees, np.int32)
    n_nodes: Any = np.int64(0)  # numba would compile the growth a second time for a Python integer
    for tree in range(task.n_trees):
        # a tree has fewer than 2 n nodes
        if n_nodes + 2 * n > max_nodes:
            max_nodes = 2 * max_nodes + 2 * n
            nodes = extend_nodes(nodes, max_nodes)
            value = extend_array(value, max_nodes)
        roots[tree] = n_nodes
        n_nodes = _grow_tree(task, work, nodes, value, n_nodes)
    return nodes, value, n_nodes, roots


@numba.njit(cache=True, nogil=True)
def _grow_tree(task: Any, work: Any, nodes: Any, value: Any, root: int) -> int:
    """Grow a tree depth first, with nodes numbered from `root`; return the next free node."""
    rows = work.rows
    pending_nodes = work.pending_nodes
    for i in range(len(rows)):
        rows[i] = i
    n_pending = write_leaf(pending_nodes, 0, 0, len(rows), 0, root)
    n_nodes = root + 1
    while n_pending:
        n_pending -= 1
        begin = pending_nodes[n_pending, BEGIN]
        end = pending_nodes[n_pending, END]
        node = pending_nodes[n_pending, NODE]
        _read_labels(task, work, rows[begin:end])
        _write_class_shares(task, work.class_sums, value[node])
        is_pure = work.class_sums.max() >= work.class_sums.sum()
        if is_pure or end - begin < max(2, 2 * task.min_rows):
            continue
        feature, threshold, n_constant = _draw_split(
            task, work, begin, end, pending_nodes[n_pending, N_CONSTANT]
        )
        if feature < 0:
            continue
        # move rows that go left to the front; both writes are unconditional, to avoid a branch
        middle = begin
        n_right = 0
        for i in range(begin, end):
            row = rows[i]
            is_left = task.columns[feature, row] <= threshold
            rows[middle] = row
            work.spare_rows[n_right] = row
            middle += is_left
            n_right += not is_left
        copy_into(rows, middle, work.spare_rows, n_right)
        # push both children, the left one last so that it is popped first
        nodes.feature[node] = feature
        nodes.threshold[node] = threshold
        nodes.left[node] = n_nodes
        nodes.right[node] = n_nodes + 1
        n_pending = write_leaf(pending_nodes, n_pending, middle, end, n_constant, n_nodes + 1)
        n_pending = write_leaf(pending_nodes, n_pending, begin, middle, n_constant, n_nodes)
        n_nodes += 2
        value[node] = 0.0
    return n_nodes


@numba.njit(cache=True, nogil=True)
def _read_labels(task: ForestTask, work: ForestArrays, rows: NDArray[np.uint32]) -> None:
    """Read labels and weights of a node's rows, and sum the weights by class."""
    class_sums = work.class_sums
    for m in range(len(class_sums)):
        class_sums[m] = 0.0
    for i in range(len(rows)):
        label = task.labels[rows[i]]
        weight = task.weight[rows[i]]
        work.node_labels[i] = label
        work.node_weight[i] = weight
        class_sums[label] += weight


@numba.njit(cache=True, nogil=True)
def _write_class_shares(task: Any, class_sums: Any, value: Any) -> None:
    """Write the class shares of a node, divided by the number of trees, into its value."""
    total_weight = class_sums.sum()
    for m in range(len(class_sums)):
        value[m] = class_sums[m] / (total_weight * task.n_trees) if total_weight > 0.0 else 0.0


@numba.njit(cache=True, nogil=True)
def _draw_split(task: Any, work: Any, begin: int, end: int, n_constant: int) -> Any:
    """Draw splits; return feature (or -1) and threshold of the best one, and the new `n_constant`.

    The first `n_constant` columns of `column_order` are constant within the node and its
    descendants. The returned number includes the constant columns that are found here.
    """
    column_order = work.column_order
    class_sums = work.class_sums
    left_sums = work.left_sums
    total_weight = class_sums.sum()
    n_rows = end - begin
    best_score = -np.inf
    best_feature = -1
    best_threshold = np.float32(0.0)
    n_drawn = 0
    for position in range(n_constant, len(column_order)):
        if n_drawn >= task.n_candidates:
            break
        # draw a column and a threshold; constant columns do not count
        drawn_position = np.random.randint(position, len(column_order))  # noqa: NPY002
        _swap(column_order, position, drawn_position)
        column = task.columns[column_order[position]]
        low, high = _read_cells(column, work.rows[begin:end], work.node_cells)
        if low >= high:
            _swap(column_order, n_constant, position)
            n_constant += 1
            continue
        n_drawn += 1
        share = np.random.random()  # noqa: NPY002
        threshold = np.float32(np.float64(low) + share * (np.float64(high) - np.float64(low)))
        if threshold >= high:  # by rounding to float32; the right child must not be empty
            threshold = low
        # W_left: weights of the left rows by class; W_right = W - W_left, with W of the node
        if task.counts_rows:
            n_left = _count_left(work.node_cells[:n_rows], threshold, work.node_labels, left_sums)
        else:
            n_left = _sum_left(work, n_rows, threshold)
        if n_left < task.min_rows or n_rows - n_left < task.min_rows:
            continue
        # sum W_left^2 / sum W_left + sum W_right^2 / sum W_right rises as Gini impurity falls
        left_total = 0.0
        left_squares = 0.0
        right_squares = 0.0
        for m in range(len(class_sums)):
            left_total += left_sums[m]
            left_squares += left_sums[m] * left_sums[m]
            right_squares += (class_sums[m] - left_sums[m]) ** 2
        if left_total <= 0.0 or left_total >= total_weight:
            continue
        score = left_squares / left_total + right_squares / (total_weight - left_total)
        if score > best_score:
            best_score = score
            best_feature = column_order[position]
            best_threshold = threshold
    return best_feature, best_threshold, n_constant


@numba.njit(cache=True, nogil=True)
def _swap(column_order: Any, position: int, other_position: int) -> None:
    """Exchange two columns of the order."""
    column = column_order[position]
    column_order[position] = column_order[other_position]
    column_order[other_position] = column


@numba.njit(cache=True, nogil=True)
def _sum_left(work: ForestArrays, n_rows: int, threshold: np.float32) -> int:
    """Sum the weights of the rows on the left by class; return the number of these rows."""
    left_sums = work.left_sums
    for m in range(len(left_sums)):
        left_sums[m] = 0.0
    n_left = 0
    for i in range(n_rows):
        is_left = work.node_cells[i] <= threshold
        left_sums[work.node_labels[i]] += work.node_weight[i] * is_left
        n_left += is_left
    return n_left


@numba.njit(cache=True, nogil=True)
def _count_left(
    cells: NDArray[np.float32],
    threshold: np.float32,
    labels: NDArray[np.uint32],
    left_sums: NDArray[np.float64],
) -> int:
    """Count the rows on the left, of both classes; write the counts as sums of weights of 1.

    Counts, unlike sums of floats, may be computed in any order, so several rows are at once.
    """
    n_left = 0
    n_left_of_second = 0
    for i in range(len(cells)):
        is_left = cells[i] <= threshold
        n_left += is_left
        n_left_of_second += is_left & labels[i]
    left_sums[0] = n_left - n_left_of_second
    left_sums[1] = n_left_of_second
    return n_left


# fastmath lets the compiler compare several values at once
@numba.njit(cache=True, nogil=True, fastmath={"nnan", "nsz"})
def _read_cells(
    column: NDArray[np.float32], rows: NDArray[np.uint32], node_cells: NDArray[np.float32]
) -> tuple[np.float32, np.float32]:
    """Read the cells of a node's rows; return their minimum and maximum. No cell is NaN."""
    low = high = column[rows[0]]
    for i in range(len(rows)):
        cell = column[rows[i]]
        node_cells[i] = cell
        low = min(low, cell)
        high = max(high, cell)
    return low, high
