"""Tree ensembles as flat node arrays: one form for training, ONNX, the walker and C.

Every grower's trees (LightGBM's, scikit-learn's forests, our own) are converted into
:class:`TreeEnsemble`. Its margins are float32 sums in tree order, the order in which
onnxruntime's ``TreeEnsembleRegressor`` adds them, so that both give the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from gatewise.errors import InputError

__all__ = ["NODE_BYTES", "TreeEnsemble", "float32_below"]

LEAF = -1
NODE_BYTES = 21
"""Bytes of a node with one value in the flat arrays: five of 4 bytes and a flag."""


@dataclass(frozen=True, eq=False)
class TreeEnsemble:
    """Trees one after another in flat arrays; a node is an index into all of them.

    Attributes
    ----------
    feature : ndarray of int32, shape (n_nodes,)
        Column of the input that the node tests; -1 at a leaf.
    threshold : ndarray of float32, shape (n_nodes,)
        A row goes left where ``x <= threshold``.
    left, right : ndarray of int32, shape (n_nodes,)
        Children; -1 at a leaf. A child's index is above its parent's.
    nan_left : ndarray of bool, shape (n_nodes,)
        Where NaN goes.
    value : ndarray of float32, shape (n_nodes, 1) or (n_nodes, n_outputs)
        What a leaf adds: to one output (`output` >= 0) or a row to all (`output` == -1).
    roots : ndarray of int32, shape (n_trees,)
    output : ndarray of int32, shape (n_trees,)
        Which output a tree adds to, -1 for all.
    base : ndarray of float32, shape (n_outputs,)
        Added last.
    n_features : int
        Columns of the input.
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
        """Number of margins a row gets."""
        return len(self.base)

    @property
    def nbytes(self) -> int:
        """Bytes of the flat arrays."""
        return self.n_nodes * (NODE_BYTES - 4) + self.value.nbytes

    def margins(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        """Sum the leaves that each row reaches, in tree order, in float32.

        Parameters
        ----------
        x : ndarray of float32, shape (n, n_features)

        Returns
        -------
        ndarray of float32, shape (n, n_outputs)
        """
        x = np.ascontiguousarray(x, np.float32)
        out = np.zeros((len(x), self.n_outputs), np.float32)
        _add_leaves(
            x, self.feature, self.threshold, self.left, self.right, self.nan_left,
            self.value, self.roots, self.output, self.base, out,
        )  # fmt: skip
        return out

    def visited(self, x: NDArray[np.float32]) -> NDArray[np.bool_]:
        """Which columns lie on the paths that each row takes: what it buys node by node.

        Parameters
        ----------
        x : ndarray of float32, shape (n, n_features)

        Returns
        -------
        ndarray of bool, shape (n, n_features)
            True where some tree tests the column at a node that the row passes. A value that
            turns out to be NaN has been asked for like any other.
        """
        x = np.ascontiguousarray(x, np.float32)
        out = np.zeros((len(x), self.n_features), np.bool_)
        _mark_paths(
            x, self.feature, self.threshold, self.left, self.right, self.nan_left, self.roots, out
        )
        return out

    def used(self) -> NDArray[np.intp]:
        """Columns that some node tests, ascending."""
        return np.unique(self.feature[self.feature >= 0]).astype(np.intp)

    def compact(self) -> tuple[TreeEnsemble, NDArray[np.intp]]:
        """Renumber the columns to those in use.

        Returns
        -------
        ensemble : TreeEnsemble
            Reads a matrix of the used columns only.
        used : ndarray of intp
            Which columns those are.
        """
        used = self.used()
        lookup = np.full(self.n_features + 1, LEAF, np.int32)
        lookup[used] = np.arange(len(used))
        feature = lookup[self.feature]  # -1 picks the last entry, which is -1
        return replace(self, feature=feature, n_features=len(used)), used

    def select_outputs(self, outputs: Sequence[int]) -> TreeEnsemble:
        """Keep the trees of some outputs, renumbered in the order given."""
        if (self.output < 0).any():
            raise InputError("trees that add to all outputs cannot be parted by output")
        lookup = np.full(self.n_outputs, -1, np.int32)
        lookup[list(outputs)] = np.arange(len(outputs))
        keep = np.flatnonzero(lookup[self.output] >= 0)
        ends = np.append(self.roots[1:], self.n_nodes)
        nodes = np.concatenate(
            [np.arange(self.roots[t], ends[t]) for t in keep] or [np.zeros(0, np.int64)]
        )
        moved = np.full(self.n_nodes + 1, -1, np.int32)
        moved[nodes] = np.arange(len(nodes))
        return TreeEnsemble(
            feature=self.feature[nodes],
            threshold=self.threshold[nodes],
            left=moved[self.left[nodes]],
            right=moved[self.right[nodes]],
            nan_left=self.nan_left[nodes],
            value=self.value[nodes],
            roots=moved[self.roots[keep]],
            output=lookup[self.output[keep]],
            base=self.base[list(outputs)],
            n_features=self.n_features,
        )

    @classmethod
    def from_lightgbm(
        cls, booster: Any, *, num_iteration: int | None = None, start_iteration: int = 0
    ) -> TreeEnsemble:
        """Convert a LightGBM booster.

        Parameters
        ----------
        booster : lightgbm.Booster
        num_iteration : int, optional
            Boosting rounds to keep; the best iteration, if any, by default.
        start_iteration : int, default 0
            First round to keep.

        Raises
        ------
        InputError
            For categorical splits, linear leaves, averaged output (``boosting="rf"``) and
            zeros taken as missing: none of them has a form here.
        """
        text = booster.model_to_string(num_iteration=num_iteration, start_iteration=start_iteration)
        head, *blocks = text.split("\nTree=")
        if "average_output" in head.split("\n"):
            raise InputError('LightGBM boosting="rf" is not supported; use a forest')
        header = dict(line.split("=", 1) for line in head.splitlines() if "=" in line)
        n_outputs = int(header["num_tree_per_iteration"])
        trees = [_lightgbm_tree(block) for block in blocks]
        output = np.arange(len(trees)) % n_outputs
        return _join(trees, output, np.zeros(n_outputs), int(header["max_feature_idx"]) + 1)

    @classmethod
    def from_forest(cls, forest: Any) -> TreeEnsemble:
        """Convert a fitted scikit-learn forest classifier.

        A leaf adds its class distribution divided by the number of trees, so the margins are
        the averaged leaf distributions that ``predict_proba`` returns.
        """
        trees = []
        for estimator in forest.estimators_:
            tree = estimator.tree_
            counts = tree.value[:, 0, :]
            share = counts / counts.sum(axis=1, keepdims=True) / len(forest.estimators_)
            trees.append(
                _Tree(
                    feature=np.where(tree.children_left < 0, LEAF, tree.feature),
                    threshold=float32_below(np.where(tree.children_left < 0, 0, tree.threshold)),
                    left=tree.children_left,
                    right=tree.children_right,
                    nan_left=tree.missing_go_to_left.astype(bool),
                    value=share,
                )
            )
        n_classes = len(forest.classes_)
        output = np.full(len(trees), -1)
        return _join(trees, output, np.zeros(n_classes), forest.n_features_in_)


@dataclass
class _Tree:
    """One tree with node indices of its own."""

    feature: NDArray[Any]
    threshold: NDArray[np.float32]
    left: NDArray[Any]
    right: NDArray[Any]
    nan_left: NDArray[np.bool_]
    value: NDArray[Any]


def float32_below(threshold: NDArray[np.float64]) -> NDArray[np.float32]:
    """Round to the largest float32 that is not above.

    For float32 rows ``x <= t`` and ``x <= float32_below(t)`` are then the same question.
    """
    with np.errstate(over="ignore"):
        rounded = np.asarray(threshold, np.float64).astype(np.float32)
        above = rounded.astype(np.float64) > threshold
        return np.where(above, np.nextafter(rounded, np.float32(-np.inf)), rounded)


def _lightgbm_tree(block: str) -> _Tree:
    fields = dict(line.split("=", 1) for line in block.splitlines() if "=" in line)
    if int(fields.get("num_cat", 0)):
        raise InputError("LightGBM's categorical splits are not supported; encode the categories")
    if int(fields.get("is_linear", 0)):
        raise InputError("LightGBM's linear leaves are not supported; train with linear_tree=False")

    def numbers(key: str, kind: type) -> NDArray[Any]:
        return np.array(fields.get(key, "").split(), dtype=kind)

    n_splits = int(fields["num_leaves"]) - 1
    leaves = numbers("leaf_value", np.float64)
    n = n_splits + len(leaves)
    kinds = numbers("decision_type", np.int64)
    missing = kinds >> 2 & 3
    if (missing == 1).any():
        raise InputError("LightGBM's zero_as_missing is not supported; train without it")
    threshold = numbers("threshold", np.float64)
    # missing type None (0) treats NaN as the number 0; type NaN (2) has a default side
    nan_left = np.where(missing == 2, kinds & 2, threshold >= 0).astype(bool)

    def children(key: str) -> NDArray[np.int64]:
        side = numbers(key, np.int64)
        return np.where(side < 0, n_splits + ~side, side)

    def padded(array: NDArray[Any], fill: float) -> NDArray[Any]:
        return np.concatenate([array, np.full(n - len(array), fill, array.dtype)])

    return _Tree(
        feature=padded(numbers("split_feature", np.int64), LEAF),
        threshold=padded(float32_below(threshold), 0),
        left=padded(children("left_child"), LEAF),
        right=padded(children("right_child"), LEAF),
        nan_left=padded(nan_left, False),
        value=np.concatenate([np.zeros(n_splits), leaves])[:, None],
    )


def _join(
    trees: Sequence[_Tree], output: NDArray[Any], base: NDArray[Any], n_features: int
) -> TreeEnsemble:
    sizes = [len(t.feature) for t in trees]
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]]) if sizes else np.zeros(0)

    def stack(parts: list[NDArray[Any]], dtype: Any, width: int = 0) -> NDArray[Any]:
        if not parts:
            return np.zeros((0, width) if width else 0, dtype)
        return np.ascontiguousarray(np.concatenate(parts), dtype)

    def moved(side: str) -> list[NDArray[Any]]:
        return [
            np.where(getattr(t, side) < 0, LEAF, getattr(t, side) + start)
            for t, start in zip(trees, starts, strict=True)
        ]

    return TreeEnsemble(
        feature=stack([t.feature for t in trees], np.int32),
        threshold=stack([t.threshold for t in trees], np.float32),
        left=stack(moved("left"), np.int32),
        right=stack(moved("right"), np.int32),
        nan_left=stack([t.nan_left for t in trees], np.bool_),
        value=stack([t.value for t in trees], np.float32, width=1),
        roots=starts.astype(np.int32),
        output=output.astype(np.int32),
        base=base.astype(np.float32),
        n_features=n_features,
    )


@numba.njit(cache=True, nogil=True)
def _add_leaves(
    x: Any, feature: Any, threshold: Any, left: Any, right: Any, nan_left: Any,
    value: Any, roots: Any, output: Any, base: Any, out: Any,
) -> None:  # fmt: skip
    for i in range(len(x)):
        for t in range(len(roots)):
            node = roots[t]
            while feature[node] >= 0:
                v = x[i, feature[node]]
                if v <= threshold[node] or (np.isnan(v) and nan_left[node]):
                    node = left[node]
                else:
                    node = right[node]
            if output[t] >= 0:
                out[i, output[t]] += value[node, 0]
            else:
                for m in range(len(base)):
                    out[i, m] += value[node, m]
        for m in range(len(base)):
            out[i, m] += base[m]


@numba.njit(cache=True, nogil=True)
def _mark_paths(
    x: Any, feature: Any, threshold: Any, left: Any, right: Any, nan_left: Any,
    roots: Any, out: Any,
) -> None:  # fmt: skip
    for i in range(len(x)):
        for t in range(len(roots)):
            node = roots[t]
            while feature[node] >= 0:
                out[i, feature[node]] = True
                v = x[i, feature[node]]
                if v <= threshold[node] or (np.isnan(v) and nan_left[node]):
                    node = left[node]
                else:
                    node = right[node]
