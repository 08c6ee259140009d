"""Decision trees with the class counts of every node: what growing hands to pruning.

One form for scikit-learn's forests, LightGBM's trees and our own growers: the flat arrays of
:class:`TreeEnsemble` (which ONNX, the walker and C read), the training counts of inner nodes too,
and who pays first for a feature or a group on each path.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from gatewise.costs import FeatureCosts
from gatewise.errors import InputError
from gatewise.models.trees import LEAF, TreeEnsemble

__all__ = ["Forest"]


@dataclass(frozen=True, eq=False)
class Forest:
    """Classification trees with the class counts of every node.

    Attributes
    ----------
    trees : TreeEnsemble
        Every node's value is its class distribution divided by the number of trees, inner nodes
        too, so that a node can become a leaf; the margins are averaged leaf distributions.
    counts : ndarray of float64, shape (n_nodes, n_classes)
        Weighted training rows of each class at each node, in the tree's own bootstrap sample.

    Raises
    ------
    InputError
        If counts and nodes do not match, or a node that rows reached has none.
    """

    trees: TreeEnsemble
    counts: NDArray[np.float64]

    def __post_init__(self) -> None:
        if self.counts.shape[:1] != (self.trees.n_nodes,) or self.counts.ndim != 2:
            raise InputError(
                f"counts of shape {self.counts.shape} for a forest of {self.trees.n_nodes} nodes"
            )

    # -- ways in ---------------------------------------------------------------------------

    @classmethod
    def of_counts(cls, trees: TreeEnsemble, counts: NDArray[np.float64]) -> Forest:
        """Make a forest of a structure and its counts: values are the counts' shares.

        Parameters
        ----------
        trees : TreeEnsemble
            Its values, outputs and base are replaced.
        counts : ndarray of float64, shape (n_nodes, n_classes)
        """
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
    def of(
        cls,
        trees: TreeEnsemble,
        x: NDArray[np.float32],
        y: NDArray[np.int64],
        n_classes: int,
        weight: NDArray[np.float64] | None = None,
    ) -> Forest:
        """Count labelled rows at the nodes of any trees, LightGBM's for instance.

        What the trees add is replaced by the shares of the classes at their nodes: a boosted
        model becomes a forest that votes, which is for pruning its structure, not for its
        margins. A node that no row reaches takes its parent's counts.

        Parameters
        ----------
        trees : TreeEnsemble
        x : ndarray of float32, shape (n, n_features)
        y : ndarray of int64, shape (n,)
            Class indices.
        n_classes : int
        weight : ndarray of float64, shape (n,), optional
        """
        counts = np.zeros((trees.n_nodes, n_classes))
        weight = np.ones(len(x)) if weight is None else np.asarray(weight, np.float64)
        _count(np.asarray(y, np.int64), weight, counts, *_walk(trees, x))
        for node, parent in enumerate(_parents(trees)):  # parents come first
            if parent >= 0 and not counts[node].any():
                counts[node] = counts[parent]
        return cls.of_counts(trees, counts)

    def select(self, trees: Sequence[int]) -> Forest:
        """Some of the trees, in the order given, averaged among themselves."""
        ends = np.append(self.trees.roots[1:], self.n_nodes)
        spans = [np.arange(self.trees.roots[t], ends[t]) for t in trees]
        nodes = np.concatenate(spans) if spans else np.zeros(0, np.int64)
        starts = np.cumsum([0, *(len(span) for span in spans)])[:-1]
        part = self._part(nodes, starts.astype(np.int32))
        return Forest.of_counts(part, self.counts[nodes])

    # -- what it is ------------------------------------------------------------------------

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
        """Each node's parent, shape (n_nodes,); -1 at roots."""
        return _parents(self.trees)

    @property
    def errors(self) -> NDArray[np.float64]:
        """Weighted training rows that each node gets wrong as a leaf, shape (n_nodes,)."""
        return np.asarray(self.counts.sum(axis=1) - self.counts.max(axis=1))

    def first_use(self, costs: FeatureCosts) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Nodes that use a feature, or a group, first on their path from the root.

        Returns
        -------
        feature_first, group_first : ndarray of bool, shape (n_nodes,)
            False at leaves; `group_first` also where the feature is in no group.
        """
        group = np.append(costs.group, LEAF)[self.trees.feature]  # a leaf's -1 picks the last
        parent = self.parent
        return _first(self.trees.feature, parent), _first(group.astype(np.int32), parent)

    # -- what it does ----------------------------------------------------------------------

    def cost(self, x: NDArray[np.float32], costs: FeatureCosts) -> NDArray[np.float64]:
        """Cost of the paths that each row takes: features and groups once, over all trees.

        Parameters
        ----------
        x : ndarray of float32, shape (n, n_features)

        Returns
        -------
        ndarray of float64, shape (n,)
        """
        return costs.per_instance(self.trees.visited(x))

    def depth(self, x: NDArray[np.float32]) -> NDArray[np.float64]:
        """Inner nodes that each row passes, averaged over the trees, shape (n,)."""
        out = np.zeros(len(x))
        _count_depth(out, *_walk(self.trees, x))
        return out / max(self.n_trees, 1)

    def proba(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        """Averaged leaf distributions, shape (n, n_classes)."""
        return self.trees.margins(x)

    def vote(self, x: NDArray[np.float32]) -> NDArray[np.float64]:
        """Shares of the trees that say each class, shape (n, n_classes).

        A leaf whose classes tie says the lowest of them.
        """
        said = np.zeros_like(self.counts)
        said[np.arange(self.n_nodes), self.counts.argmax(axis=1)] = 1.0
        return Forest.of_counts(self.trees, said).proba(x).astype(np.float64)

    def pruned(self, keep: NDArray[np.bool_]) -> Forest:
        """Turn nodes into leaves.

        Parameters
        ----------
        keep : ndarray of bool, shape (n_nodes,)
            Which inner nodes stay inner nodes; below one that does not, nothing is left.

        Returns
        -------
        Forest
        """
        stays = keep & (self.trees.left >= 0)
        there = _reached(stays, self.parent)
        nodes = np.flatnonzero(there)
        moved = np.full(self.n_nodes + 1, LEAF, np.int64)
        moved[nodes] = np.arange(len(nodes))
        part = self._part(nodes, moved[self.trees.roots].astype(np.int32), stays)
        return Forest(part, self.counts[nodes])

    def _part(
        self,
        nodes: NDArray[np.int64],
        roots: NDArray[np.int32],
        inner: NDArray[np.bool_] | None = None,
    ) -> TreeEnsemble:
        """Some nodes with their children renumbered; those not `inner` become leaves."""
        trees = self.trees
        inner = trees.left >= 0 if inner is None else inner
        moved = np.full(self.n_nodes + 1, LEAF, np.int32)
        moved[nodes] = np.arange(len(nodes), dtype=np.int32)
        here = inner[nodes]
        return TreeEnsemble(
            feature=np.where(here, trees.feature[nodes], LEAF).astype(np.int32),
            threshold=np.where(here, trees.threshold[nodes], 0).astype(np.float32),
            left=np.where(here, moved[trees.left[nodes]], LEAF).astype(np.int32),
            right=np.where(here, moved[trees.right[nodes]], LEAF).astype(np.int32),
            nan_left=np.where(here, trees.nan_left[nodes], False),
            value=trees.value[nodes],
            roots=roots,
            output=np.full(len(roots), -1, np.int32),
            base=trees.base,
            n_features=trees.n_features,
        )


def _parents(trees: TreeEnsemble) -> NDArray[np.int32]:
    parent = np.full(trees.n_nodes, LEAF, np.int32)
    inner = np.flatnonzero(trees.left >= 0).astype(np.int32)
    parent[trees.left[inner]] = inner
    parent[trees.right[inner]] = inner
    return parent


def _walk(trees: TreeEnsemble, x: NDArray[np.float32]) -> Any:
    """What the kernels need to walk."""
    x = np.ascontiguousarray(x, np.float32)
    return (x, trees.feature, trees.threshold, trees.left, trees.right, trees.nan_left, trees.roots)


@numba.njit(cache=True, nogil=True)
def _first(good: Any, parent: Any) -> Any:
    """Whether no node above uses the same good (-1: none)."""
    first = np.zeros(len(good), np.bool_)
    for h in range(len(good)):
        if good[h] >= 0:
            above = parent[h]
            while above >= 0 and good[above] != good[h]:
                above = parent[above]
            first[h] = above < 0
    return first


@numba.njit(cache=True, nogil=True)
def _reached(stays: Any, parent: Any) -> Any:
    there = np.zeros(len(stays), np.bool_)
    for h in range(len(stays)):  # a parent's index is below its child's
        there[h] = parent[h] < 0 or (there[parent[h]] and stays[parent[h]])
    return there


@numba.njit(cache=True, nogil=True)
def _count(
    y: Any, weight: Any, counts: Any,
    x: Any, feature: Any, threshold: Any, left: Any, right: Any, nan_left: Any, roots: Any,
) -> None:  # fmt: skip
    for i in range(len(x)):
        for t in range(len(roots)):
            node = roots[t]
            counts[node, y[i]] += weight[i]
            while feature[node] >= 0:
                v = x[i, feature[node]]
                if v <= threshold[node] or (np.isnan(v) and nan_left[node]):
                    node = left[node]
                else:
                    node = right[node]
                counts[node, y[i]] += weight[i]


@numba.njit(cache=True, nogil=True)
def _count_depth(
    out: Any,
    x: Any, feature: Any, threshold: Any, left: Any, right: Any, nan_left: Any, roots: Any,
) -> None:  # fmt: skip
    for i in range(len(x)):
        for t in range(len(roots)):
            node = roots[t]
            while feature[node] >= 0:
                out[i] += 1.0
                v = x[i, feature[node]]
                if v <= threshold[node] or (np.isnan(v) and nan_left[node]):
                    node = left[node]
                else:
                    node = right[node]
