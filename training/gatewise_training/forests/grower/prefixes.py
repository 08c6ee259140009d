"""What the first trees of a forest do, for each number of them, from one walk a tree."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import numba
import numpy as np
from numpy.typing import NDArray

from gatewise.models.trees import TreeEnsemble
from gatewise_training.prune.forest import Forest

__all__ = ["Voting", "Walked", "first_trees", "shares"]

Voting = Literal["mean", "majority"]


def shares(forest: Forest, voting: Voting) -> NDArray[np.float64]:
    """What each node of a tree says, shape (n_nodes, n_classes).

    Its class distribution, or for a majority vote all on the class that it has most of, the
    lowest of equals.
    """
    if voting == "mean":
        return np.asarray(forest.counts / forest.counts.sum(axis=1, keepdims=True))
    said = np.zeros_like(forest.counts)
    said[np.arange(len(said)), forest.counts.argmax(axis=1)] = 1.0
    return said


def first_trees(forest: Forest, number: int, said: NDArray[np.float64]) -> TreeEnsemble:
    """Make an ensemble of a forest's first trees; its margins are shares of them.

    Parameters
    ----------
    forest : Forest
    number : int
        At least 1.
    said : ndarray of float64, shape (n_nodes, n_classes)
        :func:`shares` of the forest.

    Returns
    -------
    TreeEnsemble
        Shares its arrays with the forest, but for the values.
    """
    trees = forest.trees
    end = int(np.append(trees.roots, trees.n_nodes)[number])
    return replace(
        trees,
        feature=trees.feature[:end],
        threshold=trees.threshold[:end],
        left=trees.left[:end],
        right=trees.right[:end],
        nan_left=trees.nan_left[:end],
        value=(said[:end] / number).astype(np.float32),
        roots=trees.roots[:number],
        output=trees.output[:number],
    )


@dataclass(frozen=True, eq=False)
class Walked:
    """Rows sent down the trees of a forest.

    Attributes
    ----------
    leaf : ndarray of int32, shape (n_trees, n)
        Where each row ends in each tree.
    first : ndarray of int32, shape (n, n_features)
        The first tree that asks a row for a feature; `n_trees` or more if none does.
    """

    leaf: NDArray[np.int32]
    first: NDArray[np.int32]

    @classmethod
    def of(cls, forest: Forest, x: NDArray[np.float32]) -> Walked:
        """Walk rows of shape (n, n_features)."""
        trees = forest.trees
        leaf = np.empty((forest.n_trees, len(x)), np.int32)
        first = np.full(x.shape, np.iinfo(np.int32).max, np.int32)
        _walk(
            np.ascontiguousarray(x, np.float32), trees.feature, trees.threshold, trees.left,
            trees.right, trees.nan_left, trees.roots, leaf, first,
        )  # fmt: skip
        return cls(leaf, first)

    def outputs(self, number: int, said: NDArray[np.float64]) -> NDArray[np.float32]:
        """Margins of the first trees, bit for bit those of :func:`first_trees`.

        Returns
        -------
        ndarray of float32, shape (n, n_classes)
        """
        value = (said / number).astype(np.float32)
        out = np.zeros((self.leaf.shape[1], said.shape[1]), np.float32)
        for leaf in self.leaf[:number]:
            out += value[leaf]
        return out


@numba.njit(cache=True, nogil=True)
def _walk(
    x: Any, feature: Any, threshold: Any, left: Any, right: Any, nan_left: Any, roots: Any,
    leaf: Any, first: Any,
) -> None:  # fmt: skip
    for t in range(len(roots)):
        for i in range(len(x)):
            node = roots[t]
            while feature[node] >= 0:
                k = feature[node]
                first[i, k] = min(first[i, k], t)
                v = x[i, k]
                if v <= threshold[node] or (np.isnan(v) and nan_left[node]):
                    node = left[node]
                else:
                    node = right[node]
            leaf[t, i] = node
