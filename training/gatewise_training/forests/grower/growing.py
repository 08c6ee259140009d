"""Parts that the compiled growers of trees share: records of columns and splits, rows, nodes.

Arrays are written element by element, because numba compiles the assignment of a slice for one to
two seconds, most of it for an error's text.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from gatewise.models.trees import TreeEnsemble
from gatewise_training.forests.grower.binning import between

BEGIN, END, DEPTH, NODE = range(4)
"""Columns of an array of leaves that may still be split: its rows are those from BEGIN up to END of
the rows' array, DEPTH counts from 0 at the root, and NODE is its number in :class:`GrownNodes`."""

LARGEST = np.float32(np.finfo(np.float32).max)


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
    """Make n nodes that are leaves."""
    return GrownNodes(
        feature=np.full(n, -1, np.int32),
        threshold=np.zeros(n, np.float32),
        left=np.full(n, -1, np.int32),
        right=np.full(n, -1, np.int32),
        nan_left=np.zeros(n, np.bool_),
    )


class LeafSplit(NamedTuple):
    """A split of a leaf on one column.

    Codes up to `below` go left and those from `above` on right; the codes between do not occur. The
    code of NaN is the largest. `feature` is -1 for no split.
    """

    feature: Any
    below: Any
    above: Any
    nan_left: bool


@numba.njit(cache=True, nogil=True)
def split_threshold(columns: Any, split: Any) -> Any:
    """Get the threshold of a split; above all numbers where only NaN goes right."""
    first = columns.start[split.feature]
    if split.above >= columns.start[split.feature + 1] - first:
        return LARGEST
    return between(columns.upper[first + split.below], columns.lower[first + split.above])


@numba.njit(cache=True, nogil=True)
def mark_left(columns: Any, split: Any, rows: Any, is_left: Any) -> None:
    """Write which of the rows go left; shapes: `rows` (n,), `is_left` at least (n,)."""
    column = columns.codes[split.feature]
    nan_code = columns.start[split.feature + 1] - columns.start[split.feature]
    for i in range(len(rows)):
        code = column[rows[i]]
        is_left[i] = code <= split.below or (split.nan_left and code == nan_code)


@numba.njit(cache=True, nogil=True)
def partition(values: Any, is_left: Any, spare: Any) -> int:
    """Bring the values that go left to the front, all in their order; returns their number."""
    n_left = n_right = 0
    for i in range(len(values)):
        if is_left[i]:
            values[n_left] = values[i]
            n_left += 1
        else:
            spare[n_right] = values[i]
            n_right += 1
    for i in range(n_right):
        values[n_left + i] = spare[i]
    return n_left


@numba.njit(cache=True, nogil=True)
def write_split(
    nodes: Any, node: int, columns: Any, split: Any, nan_left: bool, child: int
) -> None:
    """Write a split into a node; its children `child` and `child + 1` become leaves."""
    nodes.feature[node] = split.feature
    nodes.threshold[node] = split_threshold(columns, split)
    nodes.nan_left[node] = nan_left
    nodes.left[node] = child
    nodes.right[node] = child + 1
    nodes.feature[child] = -1
    nodes.feature[child + 1] = -1


@numba.njit(cache=True, nogil=True)
def write_leaf(leaves: Any, place: int, begin: int, end: int, depth: int, node: int) -> int:
    """Write a row of an array of leaves; returns the number of the next row."""
    leaves[place, BEGIN] = begin
    leaves[place, END] = end
    leaves[place, DEPTH] = depth
    leaves[place, NODE] = node
    return place + 1


@numba.njit(cache=True, nogil=True)
def copy_into(array: Any, place: int, source: Any, n: int) -> None:
    """Copy the first values of a source to a place of an array, both of one dimension."""
    for i in range(n):
        array[place + i] = source[i]


@numba.njit(cache=True, nogil=True)
def wider(array: Any, size: int) -> Any:
    """Copy an array into one of more rows; the further ones are not set."""
    copy = np.empty((size, *array.shape[1:]), array.dtype)
    copy_into(copy.reshape(-1), 0, array.reshape(-1), array.size)
    return copy


@numba.njit(cache=True, nogil=True)
def wider_nodes(nodes: Any, size: int) -> Any:
    """Copy nodes to the front of `size` nodes; the further ones are leaves."""
    longer = unsplit_nodes(size)
    copy_into(longer.feature, 0, nodes.feature, len(nodes.feature))
    copy_into(longer.threshold, 0, nodes.threshold, len(nodes.threshold))
    copy_into(longer.left, 0, nodes.left, len(nodes.left))
    copy_into(longer.right, 0, nodes.right, len(nodes.right))
    copy_into(longer.nan_left, 0, nodes.nan_left, len(nodes.nan_left))
    return longer
