"""Rules for tree ensembles inside ONNX graphs: what a runtime relies on without a check.

A runtime walks from node to node by the numbers that the file gives: a child that does not exist
reads foreign memory, a cycle never ends, a long path uses up the stack. onnx.checker lets all of
these pass. Standard library and numpy alone: a device uses this.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gatewise.models.trees import TreeEnsemble
from gatewise_export.onnx_files.onnx_parts import Node, Tensor
from gatewise_export.onnx_files.protobuf import Malformed

#: Operators, and what their leaves' entries are called
TREE_OPERATORS: Final = {"TreeEnsembleRegressor": "target", "TreeEnsembleClassifier": "class"}
MOST_DEPTH: Final = 1024
"""Nodes on a path: a runtime that builds its trees by calling itself has stack for these."""
MOST_OUTPUTS: Final = 65536
MOST_TREE_NODES: Final = 1 << 21
"""Nodes of all trees of a stage."""

_NODE_ARRAYS: Final = (
    "nodes_treeids", "nodes_nodeids", "nodes_featureids", "nodes_truenodeids",
    "nodes_falsenodeids",
)  # fmt: skip
_MODES: Final = (b"LEAF", b"BRANCH_LEQ")
_MORE_MODES: Final = (b"BRANCH_LT", b"BRANCH_GTE", b"BRANCH_GT", b"BRANCH_EQ", b"BRANCH_NEQ")
_ENUM: Final = {"aggregate_function": b"SUM", "post_transform": b"NONE"}

Ints = NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class Trees:
    """Checked trees; nodes are numbered through all trees, in the file's order.

    Nodes, (n_nodes,): `feature` (-1 at a leaf), `threshold`, the children `left` where the test
    holds and `right` where not (-1 at a leaf), `nan_left`. `roots`: (n_trees,). Entries,
    (n_entries,): `leaf` adds `weight` to the output `target`. `base`: (n_outputs,).
    """

    feature: Ints
    threshold: NDArray[np.float32]
    left: Ints
    right: Ints
    nan_left: NDArray[np.bool_]
    roots: Ints
    leaf: Ints
    target: Ints
    weight: NDArray[np.float32]
    base: NDArray[np.float32]

    def ensemble(self, n_features: int, *, most_values: int | None = None) -> TreeEnsemble:
        """Give leaves a row each: one value where every tree adds to one output, else all.

        Malformed if that table would have more than `most_values` numbers.
        """
        n_nodes, n_trees, n_outputs = len(self.feature), len(self.roots), len(self.base)
        # a weight of 0 changes no sum; graphs hold some for onnxruntime's sake
        kept = np.flatnonzero(self.weight)
        leaf, target = self.leaf[kept], self.target[kept]
        tree = np.searchsorted(self.roots, leaf, side="right") - 1
        least, most = np.full(n_trees, n_outputs, np.int32), np.full(n_trees, -1, np.int32)
        np.minimum.at(least, tree, target)
        np.maximum.at(most, tree, target)
        single = bool((most <= least).all())  # a tree without weights has most -1
        wide = 1 if single else n_outputs
        if most_values is not None and n_nodes * wide > most_values:
            raise Malformed(f"{n_nodes} nodes with {n_outputs} outputs")
        value = np.zeros((n_nodes, wide), np.float32)
        value[leaf, 0 if single else target] = self.weight[kept]
        return TreeEnsemble(
            feature=self.feature,
            threshold=self.threshold,
            left=self.left,
            right=self.right,
            nan_left=self.nan_left,
            value=value,
            roots=self.roots,
            output=np.maximum(most, 0) if single else np.full(n_trees, -1, np.int32),
            base=self.base,
            n_features=n_features,
        )


def read_trees_node(node: Node, *, width: int | None, ordered: bool, most_nodes: int) -> Trees:
    """Read and check a node's trees; its input has `width` columns (None: not known).

    `ordered` demands the form that this package writes: tests of ``<=`` alone, trees and their
    nodes and entries in ascending order, plain sums.
    """
    return _TreeCheck(node, width, ordered).checked(most_nodes)


class _TreeCheck:
    def __init__(self, node: Node, width: int | None, ordered: bool) -> None:
        self.node = node
        self.ordered = ordered
        self.width = MOST_OUTPUTS if width is None else width
        self.entry = TREE_OPERATORS[node.op_type]

    def checked(self, most_nodes: int) -> Trees:
        self.check_lengths(most_nodes)
        n_outputs = self.n_outputs()
        inner = self.inner = self.inner_nodes()
        self.key, self.order = self.keys()
        roots = self.roots()
        left = self.children("nodes_truenodeids")
        right = self.children("nodes_falsenodeids")
        self.check_structure(left, right, roots)
        feature = self.features()
        threshold = self.floats("nodes_values")
        if np.isnan(threshold).any():
            raise Malformed("'nodes_values' holds NaN")
        leaf, target, weight = self.entries(n_outputs)
        return Trees(
            feature=np.where(inner, feature, np.int32(-1)),
            threshold=threshold,
            left=left,
            right=right,
            nan_left=self.missing(),
            roots=roots,
            leaf=leaf,
            target=target,
            weight=weight,
            base=self.base(n_outputs),
        )

    # -- arrays ----------------------------------------------------------------------------

    def check_lengths(self, most_nodes: int) -> None:
        """Compare lengths before anything is read."""
        n = self.n = self.length("nodes_modes")
        if not 0 < n <= most_nodes:
            raise Malformed(f"trees of {n} nodes; 1 to {most_nodes} are allowed")
        for name in (*_NODE_ARRAYS, "nodes_values"):
            if self.length(name) != n:
                raise Malformed(f"{name!r} has {self.length(name)} entries for {n} nodes")
        for name in ("nodes_missing_value_tracks_true", "nodes_hitrates"):
            if self.length(name) not in (0, n):
                raise Malformed(f"{name!r} has {self.length(name)} entries for {n} nodes")
        entries = self.length(f"{self.entry}_ids")
        for part in ("treeids", "nodeids", "weights"):
            if self.length(f"{self.entry}_{part}") != entries:
                raise Malformed(f"'{self.entry}_{part}' and '{self.entry}_ids' differ in length")
        if entries > most_nodes * 64:
            raise Malformed(f"leaves with {entries} entries")

    def length(self, name: str) -> int:
        attributes = self.node.attributes
        if f"{name}_as_tensor" in attributes:
            tensor = attributes[f"{name}_as_tensor"].value
            if name in attributes or not isinstance(tensor, Tensor) or len(tensor.shape) != 1:
                raise Malformed(f"'{name}_as_tensor' is no list of numbers, or stands beside one")
            tensor.check()
            return tensor.size
        if name not in attributes:
            return 0
        wanted = 8 if name == "nodes_modes" else 6 if name.endswith(_FLOAT_ENDS) else 7
        if attributes[name].kind != wanted:
            raise Malformed(f"{name!r} is of the wrong type")
        return len(attributes[name])

    def ints(self, name: str) -> Ints:
        value = self.node.get(name)
        if value is None:
            return np.zeros(0, np.int32)
        if len(value) and not (value.min() >= 0 and value.max() < 1 << 31):
            raise Malformed(f"{name!r} holds a number that is negative or too large")
        return np.asarray(value, np.int32)

    def floats(self, name: str) -> NDArray[np.float32]:
        tensor = self.node.get(f"{name}_as_tensor")
        if isinstance(tensor, Tensor):
            if tensor.kind not in (1, 11):
                raise Malformed(f"'{name}_as_tensor' holds no floating-point numbers")
            with np.errstate(over="ignore"):
                return tensor.array().astype(np.float32)
        value = self.node.get(name)
        return np.zeros(0, np.float32) if value is None else np.asarray(value, np.float32)

    def n_outputs(self) -> int:
        if self.entry == "target":
            n = self.node.get("n_targets", 0)
        else:
            listed = (self.node.attributes.get(f"classlabels_{t}") for t in ("int64s", "strings"))
            n = sum(len(labels) for labels in listed if labels is not None)
        if not isinstance(n, int) or not 0 < n <= MOST_OUTPUTS:
            raise Malformed(f"trees of {n} outputs; 1 to {MOST_OUTPUTS} are allowed")
        if self.ordered:
            for name, wanted in _ENUM.items():
                if self.node.get(name, wanted) != wanted:
                    raise Malformed(f"{name!r} must be {wanted.decode()}")
        return n

    def inner_nodes(self) -> NDArray[np.bool_]:
        modes = self.node.get("nodes_modes")
        allowed = _MODES if self.ordered else _MODES + _MORE_MODES
        strange = next((m for m in set(modes) if m not in allowed), None)
        if strange is not None:
            raise Malformed(f"'nodes_modes' holds {strange[:20]!r}")
        return np.fromiter((m != b"LEAF" for m in modes), np.bool_, len(modes))

    # -- structure -------------------------------------------------------------------------

    def keys(self) -> tuple[NDArray[np.int64], NDArray[np.intp] | None]:
        """One number for tree and node, and the order that sorts them (None: they are)."""
        key = self.ints("nodes_treeids").astype(np.int64) << 31
        key |= self.ints("nodes_nodeids")
        if (key[1:] > key[:-1]).all():
            return key, None
        if self.ordered:
            raise Malformed("'nodes_treeids' and 'nodes_nodeids' must ascend")
        order = np.argsort(key, kind="stable")
        if (key[order[1:]] == key[order[:-1]]).any():
            raise Malformed("'nodes_nodeids' names a node twice")
        return key, order

    def find(self, wanted: NDArray[np.int64]) -> tuple[Ints, NDArray[np.bool_]]:
        """Places of nodes, and whether each is there."""
        place = np.searchsorted(self.key, wanted, sorter=self.order)
        np.minimum(place, self.n - 1, out=place)
        if self.order is not None:
            place = self.order[place]
        return place.astype(np.int32), self.key[place] == wanted

    def roots(self) -> Ints:
        """The first node of each tree; a tree's nodes stand together."""
        tree = self.key >> 31
        first = np.flatnonzero(np.append(True, tree[1:] != tree[:-1]))
        if len(set(tree[first].tolist())) != len(first):
            raise Malformed("'nodes_treeids' mixes the nodes of trees")
        if self.ordered and (self.key[first] != np.arange(len(first), dtype=np.int64) << 31).any():
            raise Malformed("'nodes_treeids' and 'nodes_nodeids' must count from 0")
        return first.astype(np.int32)

    def children(self, name: str) -> Ints:
        number = self.ints(name)
        here = np.flatnonzero(self.inner)
        place, there = self.find((self.key[here] >> 31 << 31) | number[here])
        if not there.all():
            raise Malformed(f"{name!r} points to a child that its tree does not have")
        child = np.full(self.n, -1, np.int32)
        child[here] = place
        return child

    def check_structure(self, left: Ints, right: Ints, roots: Ints) -> None:
        """Every node but a root has one parent, and all are reached from the roots."""
        inner = self.inner
        parents = np.bincount(np.concatenate([left[inner], right[inner]]), minlength=self.n)
        parents[roots] += 1
        if (parents != 1).any():
            raise Malformed("a cyclic tree: nodes have several parents, or none")
        level, reached, depth = roots, 0, 0
        while len(level):
            reached += len(level)
            depth += 1
            if depth > MOST_DEPTH:
                raise Malformed(f"a tree deeper than {MOST_DEPTH} nodes")
            level = level[inner[level]]
            level = np.concatenate([left[level], right[level]])
        if reached != self.n:
            raise Malformed("a cyclic tree: nodes that no root leads to")

    def features(self) -> Ints:
        feature = self.ints("nodes_featureids")
        if (feature >= max(self.width, 1)).any() or (self.inner.any() and not self.width):
            raise Malformed(
                f"'nodes_featureids' holds feature id {feature.max()}, out of range for "
                f"{self.width} columns"
            )
        return feature

    def missing(self) -> NDArray[np.bool_]:
        flags = self.ints("nodes_missing_value_tracks_true")
        if (flags > 1).any():
            raise Malformed("'nodes_missing_value_tracks_true' holds other numbers than 0 and 1")
        return flags.astype(np.bool_) if len(flags) else np.zeros(self.n, np.bool_)

    # -- leaves ----------------------------------------------------------------------------

    def entries(self, n_outputs: int) -> tuple[Ints, Ints, NDArray[np.float32]]:
        wanted = self.ints(f"{self.entry}_treeids").astype(np.int64) << 31
        wanted |= self.ints(f"{self.entry}_nodeids")
        leaf, there = self.find(wanted)
        if not there.all() or self.inner[leaf].any():
            raise Malformed(f"'{self.entry}_nodeids' names a node that is not there, or no leaf")
        target = self.ints(f"{self.entry}_ids")
        if (target >= n_outputs).any():
            raise Malformed(
                f"'{self.entry}_ids' holds {target.max()}, out of range for {n_outputs} outputs"
            )
        filled = np.zeros(self.n, np.bool_)
        filled[leaf] = True
        if not (filled | self.inner).all():
            raise Malformed("a leaf without an entry")
        if self.ordered:
            place = leaf.astype(np.int64) * n_outputs + target
            if not (place[1:] > place[:-1]).all():
                raise Malformed(f"'{self.entry}_nodeids' and '{self.entry}_ids' must ascend")
        weight = self.floats(f"{self.entry}_weights")
        if not np.isfinite(weight).all():
            raise Malformed(f"'{self.entry}_weights' is not finite everywhere")
        return leaf, target, weight

    def base(self, n_outputs: int) -> NDArray[np.float32]:
        base = self.floats("base_values")
        # a binary classifier's may be one for both classes
        if len(base) not in ((0, n_outputs) if self.ordered else (0, 1, n_outputs)):
            raise Malformed(f"'base_values' has {len(base)} entries for {n_outputs} outputs")
        if not np.isfinite(base).all():
            raise Malformed("'base_values' is not finite everywhere")
        return base if len(base) else np.zeros(n_outputs, np.float32)


_FLOAT_ENDS: Final = ("values", "weights", "hitrates")
