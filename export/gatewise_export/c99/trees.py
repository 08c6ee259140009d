"""Trees in the form that C walks: inner nodes alone, each before its left and its right part.

A node is a test, a threshold and the number of inner nodes of its left part: the left child comes
next, the right child after the left part, and a leaf is where a part is empty. A tree of n inner
nodes has n + 1 leaves, so leaves need no links either. With one float per leaf, float thresholds
and small tables, an inner node takes 6 to 8 bytes and a leaf 4; a node of the flat arrays takes 21.
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

    `slots`, (n_features,), holds the slot of each column.

    >>> tree = TreeEnsemble(
    ...     feature=np.array([3, -1, 0, -1, -1]), threshold=np.array([0.5, 0, 2, 0, 0], np.float32),
    ...     left=np.array([1, -1, 3, -1, -1]), right=np.array([2, -1, 4, -1, -1]),
    ...     nan_left=np.zeros(5, bool), value=np.array([[0], [-1], [0], [1], [2]], np.float32),
    ...     roots=np.array([0]), output=np.array([0]), base=np.zeros(1, np.float32), n_features=4)
    >>> packed = pack_trees(tree, np.arange(4), takes_missing=False)
    >>> packed.slot.tolist(), packed.skip.tolist(), packed.value.ravel().tolist()
    ([3, 0], [0, 0], [-1.0, 1.0, 2.0])
    """
    trees = trees.canonical()
    inner = trees.feature >= 0
    rank: NDArray[np.int64] = np.cumsum(inner) - inner  # inner nodes before each node
    value, output = _values(trees, ~inner)
    return PackedTrees(
        start=np.append(rank[trees.roots], inner.sum()),
        slot=slots[trees.feature[inner]].astype(np.int64),
        threshold=trees.threshold[inner],
        nan_left=trees.nan_left[inner] & takes_missing,
        skip=rank[trees.right[inner]] - rank[inner] - 1,
        value=value,
        output=output,
        base=trees.base,
    )


def _values(
    trees: TreeEnsemble, leaf: NDArray[np.bool_]
) -> tuple[NDArray[np.float32], NDArray[np.int64] | None]:
    """Values of the leaves: one number each if every tree adds to one output, else a row each."""
    if (trees.output >= 0).all():
        return trees.value[leaf, :1], trees.output.astype(np.int64)
    tree = np.searchsorted(trees.roots, np.flatnonzero(leaf), side="right") - 1
    output = trees.output[tree]
    value = trees.value[leaf]
    # adding a 0 changes no sum that began as 0
    rows = np.where((output < 0)[:, None], value, np.float32(0))
    scalar = np.flatnonzero(output >= 0)
    rows[scalar, output[scalar]] = value[scalar, 0]
    return rows, None
