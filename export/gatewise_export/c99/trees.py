"""Trees in the form that C walks: inner nodes alone, each before its left and its right part.

A node is a test, a threshold and the number of inner nodes of its left part: the left child comes
next, the right one so many later, and a leaf is where a part is empty. A tree of n inner nodes has
n + 1 leaves, so leaves need no links either. With one float a leaf, float thresholds and small
tables that is 6 to 8 bytes an inner node and 4 a leaf, instead of 21 a node in the flat arrays.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gatewise.models.trees import TreeEnsemble


@dataclass(frozen=True, eq=False)
class PackedTrees:
    """An ensemble's trees, packed.

    Inner nodes, (n_inner,): the `slot` that is tested, `threshold`, its rank among the slot's as
    `code`, if coded, `nan_left`, False where the value is never NaN, and `skip`, the inner nodes of
    the left part. `start`, (n_trees + 1,): the first inner node of each tree, and their number.
    `value`, (n_leaves, width): leaf after leaf, in the order of the walk; the first of tree t is
    ``start[t] + t``. `output`, (n_trees,): which output a tree adds to (width 1); None if trees add
    to all (width n_outputs). `base`: (n_outputs,).
    """

    start: NDArray[np.int64]
    slot: NDArray[np.int64]
    threshold: NDArray[np.float32]
    nan_left: NDArray[np.bool_]
    skip: NDArray[np.int64]
    value: NDArray[np.float32]
    output: NDArray[np.int64] | None
    base: NDArray[np.float32]
    code: NDArray[np.int64] | None = None

    @property
    def n_trees(self) -> int:
        """Number of trees."""
        return len(self.start) - 1


def pack_trees(
    trees: TreeEnsemble, slots: NDArray[np.int64], *, takes_missing: bool
) -> PackedTrees:
    """Pack an ensemble; the sums, in tree order and the base last, keep their bits.

    `slots`, (n_features,), are those of its columns.

    >>> tree = TreeEnsemble(
    ...     feature=np.array([3, -1, 0, -1, -1]), threshold=np.array([0.5, 0, 2, 0, 0], np.float32),
    ...     left=np.array([1, -1, 3, -1, -1]), right=np.array([2, -1, 4, -1, -1]),
    ...     nan_left=np.zeros(5, bool), value=np.array([[0], [-1], [0], [1], [2]], np.float32),
    ...     roots=np.array([0]), output=np.array([0]), base=np.zeros(1, np.float32), n_features=4)
    >>> packed = pack_trees(tree, np.arange(4), takes_missing=False)
    >>> packed.slot.tolist(), packed.skip.tolist(), packed.value.ravel().tolist()
    ([3, 0], [0, 0], [-1.0, 1.0, 2.0])
    """
    inner, leaves, start = _order(trees)
    parts = _inner_nodes(trees)
    value, output = _values(trees, np.array(leaves, np.int64))
    return PackedTrees(
        start=np.array(start, np.int64),
        slot=slots[trees.feature[inner]].astype(np.int64),
        threshold=trees.threshold[inner],
        nan_left=trees.nan_left[inner] & takes_missing,
        skip=parts[trees.left[inner]],
        value=value,
        output=output,
        base=trees.base,
    )


def _order(trees: TreeEnsemble) -> tuple[NDArray[np.int64], list[int], list[int]]:
    """Inner nodes and leaves as a walk to the left first meets them; where each tree starts."""
    feature, left, right = trees.feature.tolist(), trees.left.tolist(), trees.right.tolist()
    inner: list[int] = []
    leaves: list[int] = []
    start = [0]
    for root in trees.roots.tolist():
        waiting = [root]
        while waiting:
            node = waiting.pop()
            if feature[node] >= 0:
                inner.append(node)
                waiting += (right[node], left[node])
            else:
                leaves.append(node)
        start.append(len(inner))
    return np.array(inner, np.int64), leaves, start


def _inner_nodes(trees: TreeEnsemble) -> NDArray[np.int64]:
    """Number of inner nodes at and below each node."""
    counts = [0] * len(trees.feature)
    left, right = trees.left.tolist(), trees.right.tolist()
    for node in np.flatnonzero(trees.feature >= 0)[::-1].tolist():  # children come after parents
        counts[node] = 1 + counts[left[node]] + counts[right[node]]
    return np.array(counts, np.int64)


def _values(
    trees: TreeEnsemble, leaves: NDArray[np.int64]
) -> tuple[NDArray[np.float32], NDArray[np.int64] | None]:
    """Values of the leaves: one number if each tree adds to one output alone, else a row.

    Adding a 0 changes no sum that began as 0, so trees that add to all outputs a row with one
    number (as they come back from a graph) are narrowed to it.
    """
    ends = np.append(trees.roots[1:], len(trees.feature))
    tree = np.searchsorted(trees.roots, leaves, side="right") - 1
    wide = np.zeros((len(leaves), trees.n_outputs), np.float32)
    scalar = trees.output[tree] >= 0
    wide[scalar, trees.output[tree[scalar]]] = trees.value[leaves[scalar], 0]
    if (~scalar).any():
        wide[~scalar] = trees.value[leaves[~scalar]]
    filled = np.zeros((len(ends), trees.n_outputs), np.bool_)
    np.logical_or.at(filled, tree, wide != 0)
    if (filled.sum(axis=1) > 1).any():
        return wide, None
    output = filled.argmax(axis=1).astype(np.int64)
    return wide[np.arange(len(leaves)), output[tree]][:, None], output
