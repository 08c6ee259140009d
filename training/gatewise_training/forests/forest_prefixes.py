"""Margins of the first 1, 2, ... trees of a forest, from one walk a tree."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from gatewise.models.trees import TreeEnsemble
from gatewise_training.prune.forest import Forest, Voting

__all__ = ["FirstTrees", "first_trees"]


def first_trees(forest: Forest, number: int, shares: NDArray[np.float64]) -> TreeEnsemble:
    """Make an ensemble of a forest's first trees; its margins are averages over them.

    It shares its arrays with the forest, but for the values: `shares` are
    :meth:`Forest.node_shares`.
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
        value=(shares[:end] / number).astype(np.float32),
        roots=trees.roots[:number],
        output=trees.output[:number],
    )


@dataclass(frozen=True, eq=False)
class FirstTrees:
    """Rows sent down all trees of a forest once."""

    leaf: NDArray[np.int32]  # (n_trees, n): leaf of each row in each tree
    # (n, n_features): the first tree that tests each column for a row; `n_trees` or more if none
    # does
    first: NDArray[np.int32]
    shares: NDArray[np.float64]  # (n_nodes, n_classes): :meth:`Forest.node_shares`

    @classmethod
    def on(cls, forest: Forest, x: NDArray[np.float32], voting: Voting) -> FirstTrees:
        """Walk rows of shape (n, n_features)."""
        return cls(*forest.trees.first_visits(x), forest.node_shares(voting))

    def outputs(self, number: int) -> NDArray[np.float32]:
        """Margins of the first trees, bit for bit those of :func:`first_trees`, (n, n_classes)."""
        value = (self.shares / number).astype(np.float32)
        out = np.zeros((self.leaf.shape[1], value.shape[1]), np.float32)
        for leaf in self.leaf[:number]:
            out += value[leaf]
        return out
