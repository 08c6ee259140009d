"""Walk the trees of a stage for one instance, and acquire a feature only when a node tests it.

For one row plain Python is faster than numpy, because a call of numpy takes longer than the tests
of a tree. A device may have neither numba nor a compiler. Python's floats compare float32 values
exactly. The leaves are summed in float32 in the order of the trees, so margins have the same bits
as in training.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gatewise.models.trees import TreeEnsemble

#: Largest number of nodes to store in Python lists. Lists are a quarter faster than arrays, but
#: six times as large.
_MAX_LIST_NODES: Final = 1 << 16

Matrix = NDArray[np.float32]


class TreeWalker:
    """The trees of one stage. Several threads may walk them at the same time.

    The tree of this example tests column 1 and, if its value is above 0.5, column 0:

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
    >>> TreeWalker(tree).walk(acquire).tolist(), acquired
    ([[-0.75]], [1])
    """

    def __init__(self, trees: TreeEnsemble) -> None:
        self.trees = trees
        self._feature, self._threshold, self._left, self._right, self._nan_left = (
            _python_sequence(array)
            for array in (trees.feature, trees.threshold, trees.left, trees.right, trees.nan_left)
        )
        self._roots: list[int] = trees.roots.tolist()
        # Trees that add to a single output, and that output, as indices into an array of shape
        # (n_trees, n_outputs).
        single_output_trees = np.flatnonzero(trees.output >= 0)
        adds_to_single_outputs = trees.n_outputs > 1 and len(single_output_trees) > 0
        self._single_output_index = (
            (single_output_trees, trees.output[single_output_trees])
            if adds_to_single_outputs
            else None
        )
        self._base_margins = trees.base + np.float32(0)
        self._all_output_trees = np.flatnonzero(trees.output < 0)

    def walk(self, acquire: Callable[[int], float]) -> Matrix:
        """Walk all trees for one instance; return its float32 margins, shape (1, n_outputs).

        ``acquire(column)`` returns the value of an input, float32 or NaN. It is called once for
        each tested input, in the order of the first tests. Its exceptions end the walk.
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
                value = values[column]
                if value is None:
                    value = values[column] = acquire(column)
                if value <= threshold[node]:
                    node = left[node]
                elif value == value or not self._nan_left[node]:  # not NaN, or NaN goes right
                    node = right[node]
                else:
                    node = left[node]
                column = feature[node]
            leaves.append(node)
        return self._sum_leaves(leaves)

    def _sum_leaves(self, leaves: list[int]) -> Matrix:
        """Sum the leaves in float32 in the order of the trees, which ``accumulate`` preserves."""
        trees = self.trees
        if not leaves:
            return self._base_margins[np.newaxis].copy()
        terms = leaf_values = trees.value.take(leaves, axis=0)
        if self._single_output_index is not None:
            # A tree adds 0 to its other outputs, which does not change their sums.
            terms = np.zeros((len(leaves), trees.n_outputs), np.float32)
            terms[self._single_output_index] = leaf_values[self._single_output_index[0], 0]
            if len(self._all_output_trees):
                terms[self._all_output_trees] = leaf_values[self._all_output_trees]
        # Training starts from 0, so that a sum of -0 becomes 0. Adding the base last has the same
        # effect, because the base is never -0.
        margins: Matrix = np.add.accumulate(terms)[-1:] + self._base_margins
        return margins


def _python_sequence(array: NDArray[Any]) -> Sequence[Any]:
    """Sequence of the array's items as Python numbers: a list or, for a large array, a view."""
    sequence: Sequence[Any] = array.tolist() if len(array) <= _MAX_LIST_NODES else array.data
    return sequence
