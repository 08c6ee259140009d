"""Walk the trees of a stage for one instance, and acquire a feature only when a node tests it.

One row in plain Python beats numpy's one-row calls. Comparisons of float32 values are exact in
Python's floats; the sums are numpy's in float32, in the order of the trees, so that margins have
the bits that training saw. No numba, no compiler: a device may have neither.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gatewise.models.trees import TreeEnsemble

#: Largest number of nodes kept in Python lists, which are a quarter faster than arrays, but six
#: times as large.
_MAX_LIST_NODES: Final = 1 << 16

Matrix = NDArray[np.float32]


class Walker:
    """The trees of one stage, ready to be walked; several threads may walk at a time.

    One tree tests column 1 and, if that is above 0.5, column 0:

    >>> tree = TreeEnsemble(
    ...     feature=np.array([1, -1, 0, -1, -1], np.int32),
    ...     threshold=np.array([0.5, 0, 2, 0, 0], np.float32),
    ...     left=np.array([1, -1, 3, -1, -1], np.int32),
    ...     right=np.array([2, -1, 4, -1, -1], np.int32),
    ...     nan_left=np.zeros(5, np.bool_),
    ...     value=np.array([[0], [-1], [0], [1], [2]], np.float32),
    ...     roots=np.array([0], np.int32), output=np.array([0], np.int32),
    ...     base=np.array([0.25], np.float32), n_features=2)
    >>> acquired = []
    >>> def acquire(column):
    ...     acquired.append(column)
    ...     return 0.0
    >>> Walker(tree).walk(acquire).tolist(), acquired
    ([[-0.75]], [1])
    """

    def __init__(self, trees: TreeEnsemble) -> None:
        self.trees = trees
        self._feature, self._threshold, self._left, self._right, self._nan_left = (
            _indexable(array)
            for array in (trees.feature, trees.threshold, trees.left, trees.right, trees.nan_left)
        )
        self._roots: list[int] = trees.roots.tolist()
        # trees that add to one output, and that output: indices into an array (n_trees, n_outputs)
        single_output_trees = np.flatnonzero(trees.output >= 0)
        adds_to_single_outputs = trees.n_outputs > 1 and len(single_output_trees) > 0
        self._single = (
            (single_output_trees, trees.output[single_output_trees])
            if adds_to_single_outputs
            else None
        )
        self._base = trees.base + np.float32(0)
        self._all_output_trees = np.flatnonzero(trees.output < 0)

    def walk(self, acquire: Callable[[int], float]) -> Matrix:
        """Walk all trees for one instance; its float32 margins (1, n_outputs) have training's bits.

        `acquire` gives the value of an input, float32 or NaN, by its column. It is called once
        for each tested input, in the order of the first tests. An exception from it ends the walk.
        """
        feature = self._feature
        threshold = self._threshold
        left = self._left
        right = self._right
        values: list[float | None] = [None] * self.trees.n_features
        leaves: list[int] = []
        for node in self._roots:
            column = feature[node]
            while column >= 0:
                v = values[column]
                if v is None:
                    v = values[column] = acquire(column)
                if v <= threshold[node]:
                    node = left[node]
                elif v == v or not self._nan_left[node]:
                    node = right[node]
                else:
                    node = left[node]
                column = feature[node]
            leaves.append(node)
        return self._sum(leaves)

    def run(self, x: Matrix) -> Matrix:
        """Margins of many rows."""
        return self.trees.run(x)

    def _sum(self, leaves: list[int]) -> Matrix:
        """Add up in float32, one tree after another: ``accumulate`` adds in no other order."""
        trees = self.trees
        if not leaves:
            return self._base[np.newaxis].copy()
        terms = leaf_values = trees.value.take(leaves, axis=0)
        if self._single is not None:
            # an output that a tree does not add to gets a 0, which changes no sum
            terms = np.zeros((len(leaves), trees.n_outputs), np.float32)
            terms[self._single] = leaf_values[self._single[0], 0]
            if len(self._all_output_trees):
                terms[self._all_output_trees] = leaf_values[self._all_output_trees]
        # training starts from 0, and 0 + -0 is 0; adding the base last gives the same, because the
        # base is never -0
        margins: Matrix = np.add.accumulate(terms)[-1:] + self._base
        return margins


def _indexable(array: NDArray[Any]) -> Sequence[Any]:
    """Items as Python's own numbers: a list, or a view where a list would be large."""
    listed: Sequence[Any] = array.tolist() if len(array) <= _MAX_LIST_NODES else array.data
    return listed
