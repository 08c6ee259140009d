"""Tree ensembles as flat node arrays, and their evaluation.

Gatewise's own growers make trees in this form, and the trees of LightGBM and scikit-learn are
converted to it. A bundle contains these arrays, from which ONNX and C99 are written. Margins are
float32 sums in tree order, to which the base is added last. onnxruntime's ``TreeEnsembleRegressor``
adds in the same order, and all evaluations compute the same bits. Training uses compiled loops
(:mod:`gatewise.models.compiled`). A device, which has no compiler, uses :meth:`TreeEnsemble.run`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from gatewise.models.flat_arrays import ArraySpecs
from gatewise.models.tree_sources import (
    FLOAT32_MAX,
    LEAF,
    Nodes,
    forest_nodes,
    read_lightgbm,
    run_positions,
)

if TYPE_CHECKING:
    from gatewise.models.booster_sources import BoostedTrees

__all__ = ["LEAF", "NODE_BYTES", "TreeEnsemble"]

#: Size of a node with one value in the flat arrays: five numbers of 4 bytes, and a flag.
NODE_BYTES = 21


def byte_leaves(value: NDArray[np.float32]) -> tuple[NDArray[np.int8], np.float32] | None:
    """Write leaves as products of 8-bit integers and a common step, which is a power of two.

    Returns None unless the products are exactly the leaves.
    """
    step = _find_step(value)
    if not 0 < step < np.inf:
        return None
    multiples = value / step
    if not (np.abs(multiples) <= 127).all():
        return None
    integers = multiples.astype(np.int8)
    return (integers, step) if (integers == multiples).all() else None


def _find_step(value: NDArray[np.float32]) -> np.float32:
    """Compute the power of two between 1/128 and 1/64 of the largest value.

    It is 0 or infinite if float32 cannot represent it.
    """
    largest = np.abs(value).max(initial=0)
    return np.ldexp(np.float32(1), int(np.frexp(largest)[1]) - 7) if largest > 0 else np.float32(1)


@dataclass(frozen=True, eq=False)
class TreeEnsemble:
    """Trees in flat arrays; a node is an index into the arrays of nodes."""

    feature: NDArray[np.int32]  # (n_nodes,): column that the node tests; -1 at a leaf
    threshold: NDArray[np.float32]  # (n_nodes,): a row goes left if x <= threshold
    left: NDArray[np.int32]  # (n_nodes,): child, whose index is above its parent's; -1 at a leaf
    right: NDArray[np.int32]  # (n_nodes,): the other child
    nan_left: NDArray[np.bool_]  # (n_nodes,): whether NaN goes left
    value: NDArray[np.float32]  # (n_nodes, 1) or (n_nodes, n_outputs): value that a leaf adds
    roots: NDArray[np.int32]  # (n_trees,)
    output: NDArray[np.int32]  # (n_trees,): output that the tree adds to; -1 for all outputs
    base: NDArray[np.float32]  # (n_outputs,): added last
    n_features: int

    ARRAYS: ClassVar[ArraySpecs] = {
        "feature": (np.int32, ("nodes",)),
        "threshold": (np.float32, ("nodes",)),
        "left": (np.int32, ("nodes",)),
        "right": (np.int32, ("nodes",)),
        "nan_left": (np.bool_, ("nodes",)),
        "value": (np.float32, ("nodes", "values")),
        "roots": (np.int32, ("trees",)),
        "output": (np.int32, ("trees",)),
        "base": (np.float32, ("outputs",)),
    }

    @property
    def n_trees(self) -> int:
        """Number of trees."""
        return len(self.roots)

    @property
    def n_nodes(self) -> int:
        """Number of nodes, including leaves."""
        return len(self.feature)

    @property
    def n_outputs(self) -> int:
        """Number of margins per row."""
        return len(self.base)

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays of nodes, without `roots`, `output` and `base`."""
        return self.n_nodes * (NODE_BYTES - 4) + self.value.nbytes

    @property
    def parent(self) -> NDArray[np.int32]:
        """Parent of each node, (n_nodes,); -1 for roots."""
        parent = np.full(self.n_nodes, LEAF, np.int32)
        inner_nodes = np.flatnonzero(self.left >= 0).astype(np.int32)
        parent[self.left[inner_nodes]] = inner_nodes
        parent[self.right[inner_nodes]] = inner_nodes
        return parent

    def used_features(self) -> NDArray[np.intp]:
        """List the columns that the nodes test, in ascending order."""
        return np.unique(self.feature[self.feature >= 0]).astype(np.intp)

    # -- evaluation ------------------------------------------------------------------------

    def margins(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        """Sum the leaves that each row reaches.

        Shapes: `x` (n, n_features); returns (n, n_outputs).
        """
        try:
            from gatewise.models.compiled import add_leaves
        except ModuleNotFoundError:  # devices have no numba
            return self.run(x)
        margins = np.zeros((len(x), self.n_outputs), np.float32)
        self._run_kernel(add_leaves, x, self.value, self.output, self.base, margins)
        return margins

    def visited_features(self, x: NDArray[np.float32]) -> NDArray[np.bool_]:
        """Compute the mask of the columns that are tested on each row's paths.

        Shapes: `x` (n, n_features); returns (n, n_features).
        """
        try:
            from gatewise.models.compiled import mark_paths
        except ModuleNotFoundError:
            return self.run_and_visit(x)[1]
        is_visited = np.zeros((len(x), self.n_features), np.bool_)
        self._run_kernel(mark_paths, x, is_visited)
        return is_visited

    def first_visits(self, x: NDArray[np.float32]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Find the leaf of each row in each tree, and the first tree that tests each column.

        Shapes: `x` (n, n_features); returns leaves (n_trees, n) and first trees (n, n_features).
        """
        from gatewise.models.compiled import find_leaves

        leaf = np.empty((self.n_trees, len(x)), np.int32)
        first_tree = np.full((len(x), self.n_features), np.iinfo(np.int32).max, np.int32)
        self._run_kernel(find_leaves, x, leaf, first_tree)
        return leaf, first_tree

    def splits_passed(self, x: NDArray[np.float32]) -> NDArray[np.int64]:
        """Count the splits on the paths of each row, shape (n,); exact up to 2**24."""
        # evaluate copies of the trees whose leaves hold their depth
        depth = np.zeros(self.n_nodes, np.float32)
        level = self.roots
        while len(level := level[self.feature[level] >= 0]):
            children = np.concatenate([self.left[level], self.right[level]])
            depth[children] = np.tile(depth[level] + 1, 2)
            level = children
        depth_trees = replace(
            self,
            value=depth[:, None],
            output=np.zeros(self.n_trees, np.int32),
            base=np.zeros(1, np.float32),
        )
        return depth_trees.margins(x)[:, 0].astype(np.int64)

    def _run_kernel(self, kernel: Any, x: NDArray[np.float32], *arguments: NDArray[Any]) -> None:
        """Run a compiled kernel on rows, the arrays of nodes, and further arguments."""
        nodes = (self.feature, self.threshold, self.left, self.right, self.nan_left, self.roots)
        # kernels are compiled for writable arrays, so read-only arrays of a file are copied
        writable_arrays = (np.require(array, requirements="W") for array in (*nodes, *arguments))
        kernel(np.ascontiguousarray(x, np.float32), *writable_arrays)

    def run(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        """Compute the same bits as :meth:`margins` without compiled code."""
        return self.run_and_visit(x)[0]

    def run_and_visit(
        self, x: NDArray[np.float32]
    ) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """Compute :meth:`margins` and :meth:`visited_features` without compiled code."""
        margins = np.zeros((len(x), self.n_outputs), np.float32)
        is_visited = np.zeros((len(x), self.n_features), np.bool_)
        for root, output in zip(self.roots.tolist(), self.output.tolist(), strict=True):
            leaf = self._run_tree(x, root, is_visited)
            if output < 0:
                margins += self.value[leaf]
            else:
                margins[:, output] += self.value[leaf, 0]
        margins += self.base
        return margins, is_visited

    def _run_tree(
        self, x: NDArray[np.float32], root: int, is_visited: NDArray[np.bool_]
    ) -> NDArray[np.int32]:
        """Find the leaf of each row in one tree, and mark the tested columns in `is_visited`."""
        node_of_row = np.full(len(x), root, np.int32)
        # `rows` are at inner nodes; in each step all of them descend one level
        rows = np.arange(len(x) if self.feature[root] >= 0 else 0)
        while len(rows):
            nodes = node_of_row[rows]
            columns = self.feature[nodes]
            is_visited[rows, columns] = True
            values = x[rows, columns]
            goes_left = (values <= self.threshold[nodes]) | (
                np.isnan(values) & self.nan_left[nodes]
            )
            nodes = np.where(goes_left, self.left[nodes], self.right[nodes])
            node_of_row[rows] = nodes
            rows = rows[self.feature[nodes] >= 0]
        return node_of_row

    # -- parts -----------------------------------------------------------------------------

    def in_canonical_order(self) -> TreeEnsemble:
        """Return a copy in depth-first order, where the left child of a node is the next node.

        Entries that no evaluation reads become 0. Infinite thresholds, with which scikit-learn
        tests for missing values, become the largest float32 number. Margins keep their bits.
        """
        nodes = self._order_depth_first()
        is_inner = self.feature[nodes] >= 0
        width = self.value.shape[1] if (self.output < 0).any() else 1
        ordered_trees = self.take_nodes(nodes)
        return replace(
            ordered_trees,
            threshold=np.minimum(ordered_trees.threshold, FLOAT32_MAX),
            value=np.where(is_inner[:, None], np.float32(0), ordered_trees.value[:, :width]),
            base=self.base + np.float32(0),  # -0 becomes 0, as in a sum that starts at 0
        )

    def _order_depth_first(self) -> NDArray[np.intp]:
        """List the nodes in depth-first order, left children first."""
        left_children = self.left.tolist()
        right_children = self.right.tolist()
        inner_nodes = np.flatnonzero(self.feature >= 0).tolist()
        # position of a left child = parent's + 1, of a right child = parent's + 1 + left size
        sizes = [1] * self.n_nodes  # nodes of the subtree below each node
        for node in reversed(inner_nodes):  # children come after their parents
            sizes[node] += sizes[left_children[node]] + sizes[right_children[node]]
        position_of_node = [0] * self.n_nodes
        position = 0
        for root in self.roots.tolist():
            position_of_node[root] = position
            position += sizes[root]
        for node in inner_nodes:
            position_of_node[left_children[node]] = position_of_node[node] + 1
            position_of_node[right_children[node]] = (
                position_of_node[node] + 1 + sizes[left_children[node]]
            )
        return np.argsort(np.array(position_of_node, np.intp))

    def compact(self) -> tuple[TreeEnsemble, NDArray[np.intp]]:
        """Return a copy that reads only the columns in use, and the indices of these columns."""
        used_features = self.used_features()
        new_index = np.full(self.n_features + 1, LEAF, np.int32)
        new_index[used_features] = np.arange(len(used_features))
        feature = new_index[self.feature]  # index -1 selects the last entry, which is -1
        return replace(self, feature=feature, n_features=len(used_features)), used_features

    def select_trees(
        self, trees: Sequence[int] | NDArray[np.intp]
    ) -> tuple[TreeEnsemble, NDArray[np.intp]]:
        """Return an ensemble of these trees, in this order, and the old indices of its nodes."""
        indices = np.asarray(trees, np.intp)
        sizes = np.diff(self.roots, append=self.n_nodes)[indices].astype(np.int64)
        nodes = np.repeat(self.roots[indices], sizes) + run_positions(sizes)
        return self.take_nodes(nodes, indices), nodes

    def without_last_output(self) -> TreeEnsemble:
        """Return a copy without the last output and its trees."""
        ensemble, _ = self.select_trees(np.flatnonzero(self.output != self.n_outputs - 1))
        return replace(ensemble, base=self.base[:-1])

    def with_centred_leaves(self) -> TreeEnsemble:
        """Return a copy that moves the midrange of each tree's leaves to `base`.

        The leaves then have small values. LightGBM adds the prior of the classes to the leaves of
        the first trees, which makes these large. Trees that add to all outputs do not change.
        """
        if not self.n_trees:
            return self
        is_leaf = self.feature == LEAF
        tree_of_leaf = np.repeat(np.arange(self.n_trees), np.diff(self.roots, append=self.n_nodes))[
            is_leaf
        ]
        lowest_leaf = np.full(self.n_trees, np.inf)
        highest_leaf = np.full(self.n_trees, -np.inf)
        np.minimum.at(lowest_leaf, tree_of_leaf, self.value[is_leaf, 0])
        np.maximum.at(highest_leaf, tree_of_leaf, self.value[is_leaf, 0])
        # subtract each tree's midrange from its leaves and add it to the base: equal margins
        midrange = np.where(self.output >= 0, (lowest_leaf + highest_leaf) / 2, 0.0)
        value = self.value.astype(np.float64)
        base = self.base.astype(np.float64)
        value[is_leaf] -= midrange[tree_of_leaf, None]
        np.add.at(base, self.output[self.output >= 0], midrange[self.output >= 0])
        return replace(self, value=value.astype(np.float32), base=base.astype(np.float32))

    def with_byte_leaves(self) -> TreeEnsemble:
        """Return a copy with leaves that are 8-bit multiples of a step, a power of two.

        The step is at most 1/64 of the largest leaf, and a leaf changes by less than one step.
        """
        # new leaf = step * round(leaf / step), limited to 8 bits
        step = _find_step(self.value[self.feature == LEAF])
        if not 0 < step < np.inf:
            return self
        return replace(self, value=np.clip(np.rint(self.value / step), -127, 127) * step)

    def take_nodes(
        self,
        nodes: NDArray[np.intp],
        trees: NDArray[np.intp] | slice = slice(None),
        is_inner: NDArray[np.bool_] | None = None,
    ) -> TreeEnsemble:
        """Return an ensemble of these nodes; nodes outside the mask `is_inner` become leaves."""
        stays_inner = (self.left >= 0 if is_inner is None else is_inner)[nodes]
        # new index of each node; index -1 selects the last entry, which is -1
        new_index = np.full(self.n_nodes + 1, LEAF, np.int32)
        new_index[nodes] = np.arange(len(nodes), dtype=np.int32)
        return replace(
            self,
            feature=np.where(stays_inner, self.feature[nodes], LEAF).astype(np.int32),
            threshold=np.where(stays_inner, self.threshold[nodes], 0).astype(np.float32),
            left=np.where(stays_inner, new_index[self.left[nodes]], LEAF).astype(np.int32),
            right=np.where(stays_inner, new_index[self.right[nodes]], LEAF).astype(np.int32),
            nan_left=np.where(stays_inner, self.nan_left[nodes], False),
            value=self.value[nodes],
            roots=new_index[self.roots[trees]],
            output=self.output[trees],
        )

    # -- conversions ---------------------------------------------------------------------------

    @classmethod
    def from_lightgbm(
        cls, booster: Any, *, num_iteration: int | None = None, start_iteration: int = 0
    ) -> TreeEnsemble:
        """Convert a LightGBM booster."""
        text = booster.model_to_string(num_iteration=num_iteration, start_iteration=start_iteration)
        trees = read_lightgbm(text)
        return cls(
            **vars(trees.nodes),
            roots=trees.roots,
            output=np.arange(len(trees.roots), dtype=np.int32) % trees.n_outputs,
            base=np.zeros(trees.n_outputs, np.float32),
            n_features=trees.n_features,
        )

    @classmethod
    def from_forest(cls, forest: Any) -> TreeEnsemble:
        """Convert a fitted scikit-learn forest classifier, or a single tree.

        The margins are the averaged leaf distributions that ``predict_proba`` returns.
        """
        estimators = getattr(forest, "estimators_", [forest])
        trees = []
        for nodes in forest_nodes(estimators):
            shares = nodes.value / nodes.value.sum(axis=1, keepdims=True)
            trees.append(replace(nodes, value=shares / len(estimators)))
        n_classes = len(forest.classes_)
        return cls._of_nodes(trees, np.full(len(trees), -1), n_classes, forest.n_features_in_)

    @classmethod
    def from_boosted(cls, boosted: BoostedTrees) -> TreeEnsemble:
        """Convert the trees of another library's boosted classifier."""
        n_outputs = len(boosted.base)
        ensemble = cls._of_nodes(boosted.trees, boosted.output, n_outputs, boosted.n_features)
        return replace(ensemble, base=boosted.base)

    @classmethod
    def join(
        cls, ensembles: Sequence[TreeEnsemble], base: NDArray[np.float32], n_features: int
    ) -> TreeEnsemble:
        """Concatenate the trees of several ensembles."""
        sizes = np.array([ensemble.n_nodes for ensemble in ensembles], np.int64)
        starts = (np.cumsum(sizes) - sizes).tolist()

        def shift_nodes(name: str) -> list[NDArray[Any]]:
            arrays = [getattr(ensemble, name) for ensemble in ensembles]
            return [
                np.where(nodes < 0, LEAF, nodes + start)
                for nodes, start in zip(arrays, starts, strict=True)
            ]

        def stack(arrays: list[NDArray[Any]], dtype: Any, *width: int) -> NDArray[Any]:
            return np.ascontiguousarray(np.concatenate(arrays or [np.zeros((0, *width))]), dtype)

        return cls(
            feature=stack([ensemble.feature for ensemble in ensembles], np.int32),
            threshold=stack([ensemble.threshold for ensemble in ensembles], np.float32),
            left=stack(shift_nodes("left"), np.int32),
            right=stack(shift_nodes("right"), np.int32),
            nan_left=stack([ensemble.nan_left for ensemble in ensembles], np.bool_),
            value=stack([ensemble.value for ensemble in ensembles], np.float32, 1),
            roots=stack(shift_nodes("roots"), np.int32),
            output=stack([ensemble.output for ensemble in ensembles], np.int32),
            base=base,
            n_features=n_features,
        )

    @classmethod
    def _of_nodes(
        cls, trees: Sequence[Nodes], output: NDArray[Any], n_outputs: int, n_features: int
    ) -> TreeEnsemble:
        """Join single trees, each of which adds to its output, with a base of 0."""
        base = np.zeros(n_outputs, np.float32)
        root = np.zeros(1, np.int32)
        ensembles = [
            cls(**vars(tree), roots=root, output=output[index : index + 1], base=base, n_features=0)
            for index, tree in enumerate(trees)
        ]
        return cls.join(ensembles, base, n_features)
