"""Forests that keep the class counts of every node, which pruning needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numba
import numpy as np
from numpy.typing import NDArray

from gatewise.costs import FeatureCosts
from gatewise.errors import InputError
from gatewise.models.trees import TreeEnsemble

Voting = Literal["mean", "majority"]


@dataclass(frozen=True, eq=False)
class Forest:
    """Classification trees, with the class counts of every node.

    Attributes
    ----------
    trees : TreeEnsemble
        Each node, including inner nodes, has as value its class distribution divided by the
        number of trees, so that any node can become a leaf. The margins are the averaged
        distributions of the leaves.
    counts : ndarray of float64, shape (n_nodes, n_classes)
        Summed weights of the training rows of each class, in the tree's own bootstrap sample.

    Raises
    ------
    InputError
        If the counts do not match the nodes.
    """

    trees: TreeEnsemble
    counts: NDArray[np.float64]

    def __post_init__(self) -> None:
        if self.counts.shape[:1] != (self.trees.n_nodes,) or self.counts.ndim != 2:
            raise InputError(
                f"counts must have shape ({self.trees.n_nodes}, n_classes) for a forest of "
                f"{self.trees.n_nodes} nodes, not counts of shape {self.counts.shape}"
            )

    @classmethod
    def from_counts(cls, trees: TreeEnsemble, counts: NDArray[np.float64]) -> Forest:
        """Make a forest from trees and the counts of their nodes, (n_nodes, n_classes).

        The values of the trees are replaced by the class distributions.
        """
        n_classes = counts.shape[1]
        node_values = (_class_shares(counts) / max(trees.n_trees, 1)).astype(np.float32)
        output = np.full(trees.n_trees, -1, np.int32)
        base = np.zeros(n_classes, np.float32)
        return cls(replace(trees, value=node_values, output=output, base=base), counts)

    @classmethod
    def from_sklearn(cls, forest: Any) -> Forest:
        """Convert a fitted RandomForestClassifier or ExtraTreesClassifier.

        Counts are in-bag, so a row that was drawn twice for a tree counts twice in that tree.
        """
        # `value` has the shares of the classes, whose sum is 1 only up to rounding
        counts_of_trees = [
            estimator.tree_.value[:, 0, :]
            / estimator.tree_.value[:, 0, :].sum(axis=1, keepdims=True)
            * estimator.tree_.weighted_n_node_samples[:, None]
            for estimator in forest.estimators_
        ]
        return cls(
            TreeEnsemble.from_forest(forest), np.concatenate(counts_of_trees).astype(np.float64)
        )

    @classmethod
    def join(cls, forests: Sequence[Forest]) -> Forest:
        """Join the trees of one or more forests into one forest, which averages all of them."""
        if not forests:
            raise InputError("a forest needs at least one tree")
        first_trees = forests[0].trees
        trees = TreeEnsemble.join(
            [forest.trees for forest in forests], first_trees.base, first_trees.n_features
        )
        return cls.from_counts(trees, np.concatenate([forest.counts for forest in forests]))

    def select(self, tree_indices: Sequence[int]) -> Forest:
        """Make a forest of the trees with these indices, in this order."""
        selected_trees, nodes = self.trees.select_trees(tree_indices)
        return Forest.from_counts(selected_trees, self.counts[nodes])

    @property
    def n_trees(self) -> int:
        """Number of trees."""
        return self.trees.n_trees

    @property
    def n_nodes(self) -> int:
        """Number of nodes, leaves included."""
        return self.trees.n_nodes

    @property
    def n_classes(self) -> int:
        """Number of classes."""
        return int(self.counts.shape[1])

    @cached_property
    def parent(self) -> NDArray[np.int32]:
        """Parent of each node, shape (n_nodes,); -1 at roots."""
        return self.trees.parent

    @property
    def node_errors(self) -> NDArray[np.float64]:
        """Weight of the training rows that each node would misclassify as a leaf, (n_nodes,)."""
        return np.asarray(self.counts.sum(axis=1) - self.counts.max(axis=1))

    def count_rows(
        self, x: NDArray[np.float32], y: NDArray[np.int64], weight: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Count other rows, such as all training rows, by node and class, like :attr:`counts`.

        Shapes: `x` (n, n_features), `y` (n,) class indices, `weight` (n,).
        """
        leaves, _ = self.trees.first_visits(np.ascontiguousarray(x, np.float32))
        counts = np.zeros_like(self.counts)
        for leaf in leaves:
            np.add.at(counts, (leaf, y), weight)
        # a parent's index is below its children's
        for node in range(self.n_nodes - 1, -1, -1):
            if self.parent[node] >= 0:
                counts[self.parent[node]] += counts[node]
        return counts

    def feature_usage(self, x: NDArray[np.float32]) -> NDArray[np.float64]:
        """Share of the rows that use each feature on at least one path, shape (n_features,)."""
        return np.asarray(self.trees.visited_features(x).mean(axis=0), np.float64)

    def cost(self, x: NDArray[np.float32], costs: FeatureCosts) -> NDArray[np.float64]:
        """Cost of each row, which pays once for each feature and group on its paths, shape (n,)."""
        return costs.instance_costs(self.trees.visited_features(x))

    def proba(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        """Averaged leaf distributions, shape (n, n_classes)."""
        return self.trees.margins(x)

    def summed_counts(self, x: NDArray[np.float32]) -> NDArray[np.float64]:
        """Sum of the class counts of each row's leaves, shape (n, n_classes).

        BudgetRF ranks rows by the share of class 1 in these counts (ICML 2015, section 3). Unlike
        in :meth:`proba`, leaves with more training rows have more weight.
        """
        leaves, _ = self.trees.first_visits(np.ascontiguousarray(x, np.float32))
        return np.asarray(self.counts[leaves].sum(axis=0))

    def vote_shares(self, x: NDArray[np.float32]) -> NDArray[np.float64]:
        """Share of the trees that vote for each class, shape (n, n_classes)."""
        votes = Forest.from_counts(self.trees, self.node_shares("majority"))
        return votes.proba(x).astype(np.float64)

    def node_shares(self, voting: Voting) -> NDArray[np.float64]:
        """Class shares with which each node answers, shape (n_nodes, n_classes).

        With "mean" they are the node's class distribution. With "majority" the most frequent class
        has share 1; in a tie this is the class with the lowest index.
        """
        if voting == "mean":
            return _class_shares(self.counts)
        shares = np.zeros_like(self.counts)
        shares[np.arange(self.n_nodes), self.counts.argmax(axis=1)] = 1.0
        return shares

    def pruned(self, is_inner: NDArray[np.bool_]) -> Forest:
        """Turn the inner nodes outside `is_inner`, bool (n_nodes,), into leaves."""
        is_inner = is_inner & (self.trees.left >= 0)
        nodes = np.flatnonzero(_mark_reachable(is_inner, self.parent))
        return Forest(self.trees.take_nodes(nodes, is_inner=is_inner), self.counts[nodes])


def _class_shares(counts: NDArray[np.float64]) -> NDArray[np.float64]:
    """Divide the counts of each node by their sum; a node without rows has shares of 0."""
    return np.asarray(counts / np.maximum(counts.sum(axis=1, keepdims=True), 1e-300))


@numba.njit(cache=True, nogil=True)
def _mark_reachable(is_inner: Any, parent: Any) -> Any:
    """Mark the nodes that have only inner nodes as ancestors."""
    is_reachable = np.zeros(len(is_inner), np.bool_)
    for node in range(len(is_inner)):  # a parent's index is below its children's
        is_reachable[node] = parent[node] < 0 or (
            is_reachable[parent[node]] and is_inner[parent[node]]
        )
    return is_reachable
