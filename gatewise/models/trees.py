"""Tree ensembles as flat node arrays: the one form of trees, and their evaluation.

Growers fill :class:`TreeEnsemble` (LightGBM's and scikit-learn's trees are converted into it),
pruning annotates its nodes, ``stage_<i>.npz`` is read into it, and ONNX, C and the walker of a
device are made of it. Margins are float32 sums in tree order, the base last: the order in which
onnxruntime's ``TreeEnsembleRegressor`` adds them, so that all give the same bits.

Rows are evaluated in two ways that agree to the last bit. Training compiles the walk
(:mod:`gatewise.models.compiled`), some ten times as fast as numpy. A device has no compiler:
:meth:`TreeEnsemble.run` needs numpy alone. (A device that acquires features one by one walks one
row in plain Python: ``gatewise_edge.device.walker``.)
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
    lightgbm_nodes,
    places,
)

if TYPE_CHECKING:
    from gatewise.models.booster_sources import Boosted

__all__ = ["LEAF", "NODE_BYTES", "TreeEnsemble"]

NODE_BYTES = 21
"""Bytes of a node with one value in the flat arrays: five of 4 bytes and a flag."""


def byte_leaves(value: NDArray[np.float32]) -> tuple[NDArray[np.int8], np.float32] | None:
    """Leaves as whole numbers of 8 bits and their step, a power of two; None if they do not fit.

    The product of number and step is the leaf, exactly.
    """
    step = _step(value)
    if not 0 < step < np.inf:
        return None
    number = value / step
    whole = number.astype(np.int8) if (np.abs(number) <= 127).all() else None
    return None if whole is None or (whole != number).any() else (whole, step)


def _step(value: NDArray[np.float32]) -> np.float32:
    """The power of two of which the largest value is 64 to 128; 0 or infinite beyond float32."""
    largest = np.abs(value).max(initial=0)
    return np.ldexp(np.float32(1), int(np.frexp(largest)[1]) - 7) if largest > 0 else np.float32(1)


@dataclass(frozen=True, eq=False)
class TreeEnsemble:
    """Trees one after another in flat arrays; a node is an index into all of them.

    Nodes, (n_nodes,): `feature`, the column that it tests, -1 at a leaf; `threshold`, a row goes
    left where ``x <= threshold``; the children `left` and `right`, -1 at a leaf, above their
    parent's index; `nan_left`, whether NaN goes left; `value`, (n_nodes, 1) or (n_nodes,
    n_outputs), added by a leaf to one output (`output` >= 0) or to all of them (-1). Trees,
    (n_trees,): `roots` and `output`. `base`, (n_outputs,), is added last.
    """

    feature: NDArray[np.int32]
    threshold: NDArray[np.float32]
    left: NDArray[np.int32]
    right: NDArray[np.int32]
    nan_left: NDArray[np.bool_]
    value: NDArray[np.float32]
    roots: NDArray[np.int32]
    output: NDArray[np.int32]
    base: NDArray[np.float32]
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
        """Number of nodes, leaves included."""
        return len(self.feature)

    @property
    def n_outputs(self) -> int:
        """Number of margins per row."""
        return len(self.base)

    @property
    def nbytes(self) -> int:
        """Bytes of the flat arrays."""
        return self.n_nodes * (NODE_BYTES - 4) + self.value.nbytes

    @property
    def parent(self) -> NDArray[np.int32]:
        """Parent of each node, shape (n_nodes,); -1 at roots."""
        parent = np.full(self.n_nodes, LEAF, np.int32)
        inner = np.flatnonzero(self.left >= 0).astype(np.int32)
        parent[self.left[inner]] = inner
        parent[self.right[inner]] = inner
        return parent

    def used(self) -> NDArray[np.intp]:
        """Columns that some node tests, ascending."""
        return np.unique(self.feature[self.feature >= 0]).astype(np.intp)

    # -- evaluation ------------------------------------------------------------------------

    def margins(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        """Sum the leaves that each row reaches, in tree order, in float32 (compiled).

        Shapes: `x` (n, n_features); returns (n, n_outputs).
        """
        try:
            from gatewise.models.compiled import add_leaves
        except ModuleNotFoundError:  # devices do not install numba
            return self.run(x)
        out = np.zeros((len(x), self.n_outputs), np.float32)
        self._walk(add_leaves, x, self.value, self.output, self.base, out)
        return out

    def visited(self, x: NDArray[np.float32]) -> NDArray[np.bool_]:
        """Columns on the paths that each row takes, to be acquired node by node (compiled).

        Shapes: `x` (n, n_features); returns (n, n_features).
        """
        try:
            from gatewise.models.compiled import mark_paths
        except ModuleNotFoundError:
            return self.run_and_visit(x)[1]
        out = np.zeros((len(x), self.n_features), np.bool_)
        self._walk(mark_paths, x, out)
        return out

    def first_visits(self, x: NDArray[np.float32]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Leaf of each row in each tree, and the first tree that tests each column (compiled).

        Shapes: `x` (n, n_features); returns `leaf` (n_trees, n), `first` (n, n_features).
        """
        from gatewise.models.compiled import find_leaves

        leaf = np.empty((self.n_trees, len(x)), np.int32)
        first_tree = np.full((len(x), self.n_features), np.iinfo(np.int32).max, np.int32)
        self._walk(find_leaves, x, leaf, first_tree)
        return leaf, first_tree

    def splits_passed(self, x: NDArray[np.float32]) -> NDArray[np.int64]:
        """Splits that each row passes on its paths through all trees, shape (n,).

        Exact up to 2**24 splits per row.
        """
        depth = np.zeros(self.n_nodes, np.float32)
        level = self.roots
        while len(level := level[self.feature[level] >= 0]):
            children = np.concatenate([self.left[level], self.right[level]])
            depth[children] = np.tile(depth[level] + 1, 2)
            level = children
        counting = replace(
            self,
            value=depth[:, None],
            output=np.zeros(self.n_trees, np.int32),
            base=np.zeros(1, np.float32),
        )
        return counting.margins(x)[:, 0].astype(np.int64)

    def _walk(self, kernel: Any, x: NDArray[np.float32], *more: NDArray[Any]) -> None:
        """Run a compiled kernel on rows and the arrays that lead them to their leaves."""
        paths = (self.feature, self.threshold, self.left, self.right, self.nan_left, self.roots)
        # kernels are compiled for writable arrays; those read from a file are copied
        writable = (np.require(array, requirements="W") for array in (*paths, *more))
        kernel(np.ascontiguousarray(x, np.float32), *writable)

    def run(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        """Compute the same bits as :meth:`margins` with numpy alone."""
        return self.run_and_visit(x)[0]

    def run_and_visit(
        self, x: NDArray[np.float32]
    ) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """Margins and visited columns in numpy alone: each level of a tree for all rows at once.

        Shapes: `x` (n, n_features); returns `margins` (n, n_outputs), `visited` (n, n_features).
        """
        margins = np.zeros((len(x), self.n_outputs), np.float32)
        visited = np.zeros((len(x), self.n_features), np.bool_)
        for root, output in zip(self.roots.tolist(), self.output.tolist(), strict=True):
            leaf = self._run_tree(x, root, visited)
            if output < 0:
                margins += self.value[leaf]
            else:
                margins[:, output] += self.value[leaf, 0]
        margins += self.base
        return margins, visited

    def _run_tree(
        self, x: NDArray[np.float32], root: int, visited: NDArray[np.bool_]
    ) -> NDArray[np.int32]:
        """Leaf of each row in one tree."""
        node = np.full(len(x), root, np.int32)
        rows = np.arange(
            len(x) if self.feature[root] >= 0 else 0
        )  # rows that have not reached a leaf
        while len(rows):
            nodes_of_rows = node[rows]
            column = self.feature[nodes_of_rows]
            visited[rows, column] = True
            v = x[rows, column]
            goes_left = (v <= self.threshold[nodes_of_rows]) | (
                np.isnan(v) & self.nan_left[nodes_of_rows]
            )
            nodes_of_rows = np.where(goes_left, self.left[nodes_of_rows], self.right[nodes_of_rows])
            node[rows] = nodes_of_rows
            rows = rows[self.feature[nodes_of_rows] >= 0]
        return node

    # -- parts -----------------------------------------------------------------------------

    def canonical(self) -> TreeEnsemble:
        """Put the nodes into the order of a walk to the left, and clear entries that no walk reads.

        The left child of a node is then the next node. Margins keep their bits. Infinite thresholds
        (scikit-learn tests so whether a value is missing) become float32's largest number.
        """
        nodes = self._walk_order()
        inner = self.feature[nodes] >= 0
        width = self.value.shape[1] if (self.output < 0).any() else 1
        ordered = self.take_nodes(nodes)
        return replace(
            ordered,
            threshold=np.minimum(ordered.threshold, FLOAT32_MAX),
            value=np.where(inner[:, None], np.float32(0), ordered.value[:, :width]),
            base=self.base + np.float32(0),  # -0 becomes 0, as in a sum that begins with 0
        )

    def _walk_order(self) -> NDArray[np.intp]:
        """Nodes in the order in which a walk to the left first meets them, tree after tree."""
        left = self.left.tolist()
        right = self.right.tolist()
        inner = np.flatnonzero(self.feature >= 0).tolist()
        # A node's place is its parent's plus 1 (left), or plus 1 and the left side's size (right).
        sizes = [1] * self.n_nodes  # nodes at and below each node
        for node in reversed(inner):  # children stand behind their parents
            sizes[node] += sizes[left[node]] + sizes[right[node]]
        position = [0] * self.n_nodes
        start = 0
        for root in self.roots.tolist():
            position[root] = start
            start += sizes[root]
        for node in inner:
            position[left[node]] = position[node] + 1
            position[right[node]] = position[node] + 1 + sizes[left[node]]
        return np.argsort(np.array(position, np.intp))

    def compact(self) -> tuple[TreeEnsemble, NDArray[np.intp]]:
        """Renumber the columns to those in use."""
        used = self.used()
        # old column -> new column
        lookup = np.full(self.n_features + 1, LEAF, np.int32)
        lookup[used] = np.arange(len(used))
        feature = lookup[self.feature]  # -1 picks the last entry, which is -1
        return replace(self, feature=feature, n_features=len(used)), used

    def select_trees(
        self, trees: Sequence[int] | NDArray[np.intp]
    ) -> tuple[TreeEnsemble, NDArray[np.intp]]:
        """Select trees, in the order of `trees`; get the ensemble and its nodes' old indices."""
        indices = np.asarray(trees, np.intp)
        sizes = np.diff(self.roots, append=self.n_nodes)[indices].astype(np.int64)
        nodes = np.repeat(self.roots[indices], sizes) + places(sizes)
        return self.take_nodes(nodes, indices), nodes

    def without_last_output(self) -> TreeEnsemble:
        """Drop the last output with its trees; the bits of the others stay."""
        ensemble, _ = self.select_trees(np.flatnonzero(self.output != self.n_outputs - 1))
        return replace(ensemble, base=self.base[:-1])

    def centred(self) -> TreeEnsemble:
        """Move the middle of each tree's leaves into `base`, so that leaves are small.

        LightGBM adds the classes' prior to the leaves of the first trees. Trees that add to all
        outputs stay as they are.
        """
        if not self.n_trees:
            return self
        leaf = self.feature == LEAF
        tree = np.repeat(np.arange(self.n_trees), np.diff(self.roots, append=self.n_nodes))[leaf]
        low = np.full(self.n_trees, np.inf)
        high = np.full(self.n_trees, -np.inf)
        np.minimum.at(low, tree, self.value[leaf, 0])
        np.maximum.at(high, tree, self.value[leaf, 0])
        # margins stay: leaf - middle of its tree, base + sum of the middles
        middle = np.where(self.output >= 0, (low + high) / 2, 0.0)
        value = self.value.astype(np.float64)
        base = self.base.astype(np.float64)
        value[leaf] -= middle[tree, None]
        np.add.at(base, self.output[self.output >= 0], middle[self.output >= 0])
        return replace(self, value=value.astype(np.float32), base=base.astype(np.float32))

    def with_byte_leaves(self) -> TreeEnsemble:
        """Round the leaves to multiples of a power of two that take 8 bits each.

        The step is at most 1/64 of the largest leaf. A leaf changes by at most half a step, or by
        less than a whole step if it is among the largest; a margin by the sum of its trees'
        changes.
        """
        # leaf -> step * round(leaf / step), within 8 bits
        step = _step(self.value[self.feature == LEAF])
        if not 0 < step < np.inf:
            return self
        return replace(self, value=np.clip(np.rint(self.value / step), -127, 127) * step)

    def take_nodes(
        self,
        nodes: NDArray[np.intp],
        trees: NDArray[np.intp] | slice = slice(None),
        inner: NDArray[np.bool_] | None = None,
    ) -> TreeEnsemble:
        """Keep some nodes, renumbered; nodes that are not `inner` become leaves.

        Shapes: `inner` (n_nodes,).
        """
        stays_inner = (self.left >= 0 if inner is None else inner)[nodes]
        # old node -> new node; -1 picks the last entry, which is -1
        moved = np.full(self.n_nodes + 1, LEAF, np.int32)
        moved[nodes] = np.arange(len(nodes), dtype=np.int32)
        return replace(
            self,
            feature=np.where(stays_inner, self.feature[nodes], LEAF).astype(np.int32),
            threshold=np.where(stays_inner, self.threshold[nodes], 0).astype(np.float32),
            left=np.where(stays_inner, moved[self.left[nodes]], LEAF).astype(np.int32),
            right=np.where(stays_inner, moved[self.right[nodes]], LEAF).astype(np.int32),
            nan_left=np.where(stays_inner, self.nan_left[nodes], False),
            value=self.value[nodes],
            roots=moved[self.roots[trees]],
            output=self.output[trees],
        )

    # -- conversions ---------------------------------------------------------------------------

    @classmethod
    def from_lightgbm(
        cls, booster: Any, *, num_iteration: int | None = None, start_iteration: int = 0
    ) -> TreeEnsemble:
        """Convert a LightGBM booster."""
        text = booster.model_to_string(num_iteration=num_iteration, start_iteration=start_iteration)
        nodes, roots, n_outputs, n_features = lightgbm_nodes(text)
        output = np.arange(len(roots), dtype=np.int32) % n_outputs
        base = np.zeros(n_outputs, np.float32)
        return cls(**vars(nodes), roots=roots, output=output, base=base, n_features=n_features)

    @classmethod
    def from_forest(cls, forest: Any) -> TreeEnsemble:
        """Convert a fitted scikit-learn forest classifier, or a single tree.

        A leaf adds its class distribution divided by the number of trees, so the margins are
        the averaged leaf distributions that ``predict_proba`` returns.
        """
        estimators = getattr(forest, "estimators_", [forest])
        trees = [
            replace(
                nodes, value=nodes.value / nodes.value.sum(axis=1, keepdims=True) / len(estimators)
            )
            for nodes in forest_nodes(estimators)
        ]
        n_classes = len(forest.classes_)
        return cls._of_nodes(trees, np.full(len(trees), -1), n_classes, forest.n_features_in_)

    @classmethod
    def from_boosted(cls, boosted: Boosted) -> TreeEnsemble:
        """Convert the trees of another library's boosted classifier."""
        ensemble = cls._of_nodes(
            boosted.trees, boosted.output, len(boosted.base), boosted.n_features
        )
        return replace(ensemble, base=boosted.base)

    @classmethod
    def join(
        cls, parts: Sequence[TreeEnsemble], base: NDArray[np.float32], n_features: int
    ) -> TreeEnsemble:
        """Put the trees of several ensembles one after another."""
        sizes = np.array([part.n_nodes for part in parts], np.int64)
        starts = (np.cumsum(sizes) - sizes).tolist()

        def moved(name: str) -> list[NDArray[Any]]:
            sides = [getattr(part, name) for part in parts]
            return [
                np.where(s < 0, LEAF, s + start) for s, start in zip(sides, starts, strict=True)
            ]

        def stack(arrays: list[NDArray[Any]], dtype: Any, *width: int) -> NDArray[Any]:
            return np.ascontiguousarray(np.concatenate(arrays or [np.zeros((0, *width))]), dtype)

        return cls(
            feature=stack([part.feature for part in parts], np.int32),
            threshold=stack([part.threshold for part in parts], np.float32),
            left=stack(moved("left"), np.int32),
            right=stack(moved("right"), np.int32),
            nan_left=stack([part.nan_left for part in parts], np.bool_),
            value=stack([part.value for part in parts], np.float32, 1),
            roots=stack(moved("roots"), np.int32),
            output=stack([part.output for part in parts], np.int32),
            base=base,
            n_features=n_features,
        )

    @classmethod
    def _of_nodes(
        cls, trees: Sequence[Nodes], output: NDArray[Any], n_outputs: int, n_features: int
    ) -> TreeEnsemble:
        """Trees with node indices of their own, and the output of each; the base is 0."""
        base = np.zeros(n_outputs, np.float32)
        root = np.zeros(1, np.int32)
        ensembles = [
            cls(**vars(tree), roots=root, output=output[t : t + 1], base=base, n_features=0)
            for t, tree in enumerate(trees)
        ]
        return cls.join(ensembles, base, n_features)
