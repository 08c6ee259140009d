"""Forests with the class counts of every node: what growing hands to pruning."""

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
    """Classification trees, and beside them the class counts of every node.

    In `trees` every node, inner ones too, has its class distribution divided by the number of trees
    as its value, so that it can become a leaf; the margins are averaged leaf distributions.
    `counts`, (n_nodes, n_classes), are the weighted training rows of each class in the tree's own
    bootstrap sample; InputError if they do not match.
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
        """Make a forest of a structure and its counts, (n_nodes, n_classes); values are shares."""
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
        """Make one forest of at least one: trees one after another, averaged."""
        if not forests:
            raise InputError("a forest needs at least one tree")
        first = forests[0].trees
        trees = TreeEnsemble.join([f.trees for f in forests], first.base, first.n_features)
        return cls.of_counts(trees, np.concatenate([f.counts for f in forests]))

    def select(self, trees: Sequence[int]) -> Forest:
        """Some of the trees, in the order given, averaged among themselves."""
        part, nodes = self.trees.select_trees(trees)
        return Forest.of_counts(part, self.counts[nodes])

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
        """Weighted training rows that each node gets wrong as a leaf, shape (n_nodes,)."""
        return np.asarray(self.counts.sum(axis=1) - self.counts.max(axis=1))

    def cost(self, x: NDArray[np.float32], costs: FeatureCosts) -> NDArray[np.float64]:
        """Cost of the paths of each row, features and groups once over all trees, shape (n,)."""
        return costs.per_instance(self.trees.visited(x))

    def proba(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        """Averaged leaf distributions, shape (n, n_classes)."""
        return self.trees.margins(x)

    def vote(self, x: NDArray[np.float32]) -> NDArray[np.float64]:
        """Shares of the trees that vote for each class, shape (n, n_classes)."""
        votes = Forest.of_counts(self.trees, self.node_shares("majority"))
        return votes.proba(x).astype(np.float64)

    def node_shares(self, voting: Voting) -> NDArray[np.float64]:
        """Class shares that each node stands for, shape (n_nodes, n_classes).

        Its class distribution, or for a majority vote 1 for its most frequent class, the lowest
        of equals.
        """
        if voting == "mean":
            return np.asarray(self.counts / self.counts.sum(axis=1, keepdims=True))
        shares = np.zeros_like(self.counts)
        shares[np.arange(self.n_nodes), self.counts.argmax(axis=1)] = 1.0
        return shares

    def pruned(self, keep: NDArray[np.bool_]) -> Forest:
        """Turn inner nodes that `keep`, bool (n_nodes,), leaves out into leaves."""
        stays = keep & (self.trees.left >= 0)
        nodes = np.flatnonzero(_reached(stays, self.parent))
        return Forest(self.trees.take_nodes(nodes, inner=stays), self.counts[nodes])


@numba.njit(cache=True, nogil=True)
def _reached(stays: Any, parent: Any) -> Any:
    """Nodes above which all stay."""
    there = np.zeros(len(stays), np.bool_)
    for h in range(len(stays)):  # a parent's index is below its child's
        there[h] = parent[h] < 0 or (there[parent[h]] and stays[parent[h]])
    return there
