"""Records and functions that the compiled growers of trees share.

Arrays are written element by element, because numba takes one to two seconds to compile the
assignment of a slice, mostly because of its error message.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from gatewise.models.trees import TreeEnsemble
from gatewise_training.forests.grower.binning import threshold_between

#: Columns of an array of leaves that may still be split. The rows of a leaf lie from BEGIN up to
#: END in the array of rows, its depth counts from 0 at the root, and NODE is its index in
#: :class:`GrownNodes`.
BEGIN, END, DEPTH, NODE = range(4)

#: Threshold that sends all numbers to the left.
MAX_FLOAT32 = np.float32(np.finfo(np.float32).max)


class GrownNodes(NamedTuple):
    """Nodes of grown trees, each array of shape (n_nodes,); `feature` is -1 at leaves."""

    feature: Any
    threshold: Any
    left: Any
    right: Any
    nan_left: Any


def ensemble_of(
    nodes: GrownNodes,
    n_nodes: int,
    value: NDArray[np.float32],
    *,
    roots: NDArray[np.int32],
    output: NDArray[np.int32],
    base: NDArray[np.float32],
    n_features: int,
) -> TreeEnsemble:
    """Copy the first `n_nodes` nodes, and their values (n_nodes, n_values), into an ensemble."""
    return TreeEnsemble(
        feature=nodes.feature[:n_nodes].copy(),
        threshold=nodes.threshold[:n_nodes].copy(),
        left=nodes.left[:n_nodes].copy(),
        right=nodes.right[:n_nodes].copy(),
        nan_left=nodes.nan_left[:n_nodes].copy(),
        value=value[:n_nodes].copy(),
        roots=roots,
        output=output,
        base=base,
        n_features=n_features,
    )


@numba.njit(cache=True, nogil=True)
def unsplit_nodes(n: int) -> Any:
    """Make `n` nodes that are leaves."""
    return GrownNodes(
        feature=np.full(n, -1, np.int32),
        threshold=np.zeros(n, np.float32),
        left=np.full(n, -1, np.int32),
        right=np.full(n, -1, np.int32),
        nan_left=np.zeros(n, np.bool_),
    )


class LeafSplit(NamedTuple):
    """A split of a leaf on one column.

    Codes up to `last_left_code` go left, and codes from `first_right_code` on go right. Codes
    between the two do not occur at the leaf. The code of NaN is the largest. `feature` is -1 if
    there is no split.
    """

    feature: Any
    last_left_code: Any
    first_right_code: Any
    nan_left: bool


@numba.njit(cache=True, nogil=True)
def split_threshold(columns: Any, split: Any) -> Any:
    """Get the threshold of a split, which no number exceeds if only NaN goes right."""
    column_start = columns.start[split.feature]
    if split.first_right_code >= columns.start[split.feature + 1] - column_start:
        return MAX_FLOAT32
    return threshold_between(
        columns.upper[column_start + split.last_left_code],
        columns.lower[column_start + split.first_right_code],
    )


@numba.njit(cache=True, nogil=True)
def mark_left(columns: Any, split: Any, rows: Any, is_left: Any) -> None:
    """Mark the rows that go left; shapes: `rows` (n,), `is_left` at least (n,)."""
    column = columns.codes[split.feature]
    nan_code = columns.start[split.feature + 1] - columns.start[split.feature]
    for i in range(len(rows)):
        code = column[rows[i]]
        is_left[i] = code <= split.last_left_code or (split.nan_left and code == nan_code)


@numba.njit(cache=True, nogil=True)
def partition(values: Any, is_left: Any, scratch: Any) -> int:
    """Move the values that go left to the front, in a stable order; return their number."""
    n_left = n_right = 0
    for i in range(len(values)):
        if is_left[i]:
            values[n_left] = values[i]
            n_left += 1
        else:
            scratch[n_right] = values[i]
            n_right += 1
    for i in range(n_right):
        values[n_left + i] = scratch[i]
    return n_left


@numba.njit(cache=True, nogil=True)
def write_split(
    nodes: Any, node: int, columns: Any, split: Any, nan_left: bool, left_child: int
) -> None:
    """Write a split into a node; its children `left_child` and `left_child + 1` become leaves."""
    nodes.feature[node] = split.feature
    nodes.threshold[node] = split_threshold(columns, split)
    nodes.nan_left[node] = nan_left
    nodes.left[node] = left_child
    nodes.right[node] = left_child + 1
    nodes.feature[left_child] = -1
    nodes.feature[left_child + 1] = -1


@numba.njit(cache=True, nogil=True)
def write_leaf(leaves: Any, index: int, begin: int, end: int, depth: int, node: int) -> int:
    """Write one row of an array of leaves; return the index of the next row."""
    leaves[index, BEGIN] = begin
    leaves[index, END] = end
    leaves[index, DEPTH] = depth
    leaves[index, NODE] = node
    return index + 1


@numba.njit(cache=True, nogil=True)
def copy_into(array: Any, start: int, source: Any, n: int) -> None:
    """Copy the first `n` values of a source into an array from `start` on, both 1-dimensional."""
    for i in range(n):
        array[start + i] = source[i]


@numba.njit(cache=True, nogil=True)
def extend_array(array: Any, n_rows: int) -> Any:
    """Copy an array into one with more rows; the new rows are not initialised."""
    longer_array = np.empty((n_rows, *array.shape[1:]), array.dtype)
    copy_into(longer_array.reshape(-1), 0, array.reshape(-1), array.size)
    return longer_array


@numba.njit(cache=True, nogil=True)
def extend_nodes(nodes: Any, n_nodes: int) -> Any:
    """Copy nodes into arrays of `n_nodes` nodes; the new nodes are leaves."""
    longer_nodes = unsplit_nodes(n_nodes)
    copy_into(longer_nodes.feature, 0, nodes.feature, len(nodes.feature))
    copy_into(longer_nodes.threshold, 0, nodes.threshold, len(nodes.threshold))
    copy_into(longer_nodes.left, 0, nodes.left, len(nodes.left))
    copy_into(longer_nodes.right, 0, nodes.right, len(nodes.right))
    copy_into(longer_nodes.nan_left, 0, nodes.nan_left, len(nodes.nan_left))
    return longer_nodes
