"""Forests with the class counts of every node, the input of pruning."""

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
        The value of every node, inner nodes included, is its class distribution divided by the
        number of trees, so that it can become a leaf. The margins are averaged leaf distributions.
    counts : ndarray of float64, shape (n_nodes, n_classes)
        Weighted training rows of each class in the tree's own bootstrap sample.

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
                f"counts of shape {self.counts.shape} for a forest of {self.trees.n_nodes} nodes"
            )

    @classmethod
    def of_counts(cls, trees: TreeEnsemble, counts: NDArray[np.float64]) -> Forest:
        """Make a forest from a structure and its counts, (n_nodes, n_classes)."""
        n_classes = counts.shape[1]
        total = np.maximum(counts.sum(axis=1, keepdims=True), 1e-300)
        value = (counts / total / max(trees.n_trees, 1)).astype(np.float32)
        output = np.full(trees.n_trees, -1, np.int32)
        base = np.zeros(n_classes, np.float32)
        return cls(replace(trees, value=value, output=output, base=base), counts)

    @classmethod
    def from_sklearn(cls, forest: Any) -> Forest:
        """Convert a fitted RandomForestClassifier or ExtraTreesClassifier.

        Counts are in-bag: a row drawn twice for a tree counts twice there.
        """
        counts = [
            e.tree_.value[:, 0, :]
            / e.tree_.value[:, 0, :].sum(axis=1, keepdims=True)
            * e.tree_.weighted_n_node_samples[:, None]
            for e in forest.estimators_
        ]
        return cls(TreeEnsemble.from_forest(forest), np.concatenate(counts).astype(np.float64))

    @classmethod
    def join(cls, forests: Sequence[Forest]) -> Forest:
        """Concatenate the trees of one or more forests into one forest, which averages them."""
        if not forests:
            raise InputError("a forest needs at least one tree")
        model = forests[0].trees
        trees = TreeEnsemble.join([f.trees for f in forests], model.base, model.n_features)
        return cls.of_counts(trees, np.concatenate([f.counts for f in forests]))

    def select(self, trees: Sequence[int]) -> Forest:
        """Make a forest of some of the trees, in that order."""
        selected, nodes = self.trees.select_trees(trees)
        return Forest.of_counts(selected, self.counts[nodes])

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
    def errors(self) -> NDArray[np.float64]:
        """Weight of the training rows that each node would misclassify as a leaf, (n_nodes,)."""
        return np.asarray(self.counts.sum(axis=1) - self.counts.max(axis=1))

    def recounted(
        self,
        x: NDArray[np.float32],
        y: NDArray[np.int64],
        weight: NDArray[np.float64] | None = None,
    ) -> Forest:
        """Count other rows at the nodes, such as all training rows instead of bootstrap samples.

        Shapes: `x` (n, n_features), `y` (n,), class indices.
        """
        weight = np.ones(len(y)) if weight is None else weight
        leaves, _ = self.trees.first_visits(np.ascontiguousarray(x, np.float32))
        counts = np.zeros_like(self.counts)
        for leaf in leaves:
            np.add.at(counts, (leaf, y), weight)
        # a parent's index is below its children's
        for node in range(self.n_nodes - 1, -1, -1):
            if self.parent[node] >= 0:
                counts[self.parent[node]] += counts[node]
        return replace(self, counts=counts)

    def usage(self, x: NDArray[np.float32]) -> NDArray[np.float64]:
        """Share of the rows that meet each feature on some path, shape (n_features,)."""
        return np.asarray(self.trees.visited(x).mean(axis=0), np.float64)

    def cost(self, x: NDArray[np.float32], costs: FeatureCosts) -> NDArray[np.float64]:
        """Cost of the paths of each row, features and groups once over all trees, shape (n,)."""
        return costs.per_instance(self.trees.visited(x))

    def proba(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        """Averaged leaf distributions, shape (n, n_classes)."""
        return self.trees.margins(x)

    def summed_counts(self, x: NDArray[np.float32]) -> NDArray[np.float64]:
        """Sum of the class counts of a row's leaves, shape (n, n_classes).

        The share of class 1 in them is the score by which BudgetRF ranks (ICML 2015, section 3).
        Unlike in :meth:`proba`, leaves with more training rows weigh more.
        """
        leaves, _ = self.trees.first_visits(np.ascontiguousarray(x, np.float32))
        return np.asarray(self.counts[leaves].sum(axis=0))

    def vote(self, x: NDArray[np.float32]) -> NDArray[np.float64]:
        """Shares of the trees that vote for each class, shape (n, n_classes)."""
        votes = Forest.of_counts(self.trees, self.node_shares("majority"))
        return votes.proba(x).astype(np.float64)

    def node_shares(self, voting: Voting) -> NDArray[np.float64]:
        """Answer of each node as class shares, shape (n_nodes, n_classes).

        For "mean" its class distribution; for "majority" 1 for its most frequent class (the lowest
        in a tie).
        """
        if voting == "mean":
            return np.asarray(self.counts / self.counts.sum(axis=1, keepdims=True))
        shares = np.zeros_like(self.counts)
        shares[np.arange(self.n_nodes), self.counts.argmax(axis=1)] = 1.0
        return shares

    def pruned(self, keep: NDArray[np.bool_]) -> Forest:
        """Turn inner nodes outside `keep`, bool (n_nodes,), into leaves."""
        is_inner = keep & (self.trees.left >= 0)
        nodes = np.flatnonzero(_reached(is_inner, self.parent))
        return Forest(self.trees.take_nodes(nodes, inner=is_inner), self.counts[nodes])


@numba.njit(cache=True, nogil=True)
def _reached(is_inner: Any, parent: Any) -> Any:
    """Mark the nodes that have only inner nodes above them."""
    reached = np.zeros(len(is_inner), np.bool_)
    for h in range(len(is_inner)):  # a parent's index is below its children's
        reached[h] = parent[h] < 0 or (reached[parent[h]] and is_inner[parent[h]])
    return reached
