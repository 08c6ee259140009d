"""Lay out a cascade for C: memory per instance, packed trees and threshold codes.

A *slot* holds one feature that a stage may acquire.

Trees: an inner node stores a slot, a threshold and the number of inner nodes in its left subtree.
The left subtree follows the node, and the right subtree follows the left one. A leaf is stored as
an empty subtree. A tree of n inner nodes has n + 1 leaves, so leaves need no links. An inner node
takes 3 to 8 bytes in all but huge forests; a node of the flat arrays takes 21.

Codes: the sorted distinct thresholds of a slot are its *edges*. The code of a value is the number
of edges below it, so ``value <= edges[i]`` exactly if ``code <= i``. A value is coded once, when it
is acquired. Nodes store the rank i in one or two bytes instead of the threshold.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from gatewise.decision import Score
from gatewise.models.graph_model import GraphModel
from gatewise.models.kernel_machine import KernelModel
from gatewise.models.leaf_tables import LeafTables, leaf_rows, pack_leaves
from gatewise.models.linear import LinearModel
from gatewise.models.trees import TreeEnsemble
from gatewise_export.bundle.errors import ConversionError
from gatewise_export.c99.c_text import unsigned_type
from gatewise_export.c99.cascade import Cascade

CodeBits = Literal[8, 16]
#: Form of thresholds in C.
ThresholdForm = CodeBits | Literal["float"]

#: Bytes of stack for calls; `make test-c` measures the real use with several compilers.
CALL_STACK_BYTES = 512


@dataclass(frozen=True, eq=False)
class PackedTrees:
    """An ensemble's trees, packed for C.

    Attributes
    ----------
    start : ndarray of shape (n_trees + 1,)
        The first inner node of each tree; the last element is the number of inner nodes.
    slot, threshold, code : ndarray of shape (n_inner,)
        The slot that each node tests, its threshold, and the threshold's code if coded.
    nan_left : ndarray of bool, shape (n_inner,)
        Whether NaN goes to the left; False if NaN is not a value.
    skip : ndarray of shape (n_inner,)
        Number of inner nodes in the left subtree.
    leaves : LeafTables
        Leaves in depth-first order; the first leaf of tree t is ``start[t] + t``.
    output : ndarray of shape (n_trees,) or None
        The output that each tree adds to; None if every tree adds to all outputs.
    base : ndarray of shape (n_outputs,)
        The margins of an ensemble without trees; sums add it last.
    """

    start: NDArray[np.int64]
    slot: NDArray[np.int64]
    threshold: NDArray[np.float32]
    nan_left: NDArray[np.bool_]
    skip: NDArray[np.int64]
    leaves: LeafTables
    output: NDArray[np.int64] | None
    base: NDArray[np.float32]
    code: NDArray[np.int64] | None = None


def pack_trees(
    trees: TreeEnsemble, slots: NDArray[np.int64], *, takes_missing: bool
) -> PackedTrees:
    """Pack an ensemble; margins keep their bits, because the order of the sums stays.

    `slots`, shape (n_features,), maps each column to its slot.

    >>> tree = TreeEnsemble(
    ...     feature=np.array([3, -1, 0, -1, -1]), threshold=np.array([0.5, 0, 2, 0, 0], np.float32),
    ...     left=np.array([1, -1, 3, -1, -1]), right=np.array([2, -1, 4, -1, -1]),
    ...     nan_left=np.zeros(5, bool), value=np.array([[0], [-1], [0], [1], [2]], np.float32),
    ...     roots=np.array([0]), output=np.array([0]), base=np.zeros(1, np.float32), n_features=4)
    >>> packed = pack_trees(tree, np.arange(4), takes_missing=False)
    >>> packed.slot.tolist(), packed.skip.tolist()
    ([3, 0], [0, 0])
    """
    trees = trees.in_canonical_order()
    is_inner = trees.feature >= 0
    n_inner_before: NDArray[np.int64] = np.cumsum(is_inner) - is_inner
    leaf_values, output = leaf_rows(trees)
    return PackedTrees(
        start=np.append(n_inner_before[trees.roots], is_inner.sum()),
        slot=slots[trees.feature[is_inner]].astype(np.int64),
        threshold=trees.threshold[is_inner],
        nan_left=trees.nan_left[is_inner] & takes_missing,
        skip=n_inner_before[trees.right[is_inner]] - n_inner_before[is_inner] - 1,
        leaves=pack_leaves(leaf_values),
        output=output,
        base=trees.base,
    )


@dataclass(frozen=True, eq=False)
class StageLayout:
    """One stage of the layout.

    Attributes
    ----------
    slots : ndarray of int
        Slots of its inputs, in input order.
    model : LinearModel, KernelModel, PackedTrees or None
        None if the stage only acquires features.
    n_margins : int
    is_lazy : bool
        Whether the stage acquires features node by node.
    score : str or None
        Name of the rule of its stop score; None if the stage never stops.
    """

    slots: NDArray[np.int64]
    model: LinearModel | KernelModel | PackedTrees | None
    n_margins: int
    is_lazy: bool
    score: Score | None


@dataclass(frozen=True, eq=False)
class Layout:
    """The layout of a cascade in C: slots, stages, codes, and sizes in bytes.

    Attributes
    ----------
    columns : ndarray of shape (n_slots,)
        The feature of each slot, ascending.
    stages : tuple of StageLayout
    n_outputs : int
        Largest number of outputs of a stage.
    code_bits : {8, 16} or None
        Bits of a threshold's code; None for thresholds in float32.
    edges : tuple of ndarray
        Distinct thresholds of each slot, ascending; empty if they are not coded.
    """

    columns: NDArray[np.int64]
    stages: tuple[StageLayout, ...]
    n_outputs: int
    code_bits: CodeBits | None = None
    edges: tuple[NDArray[np.float32], ...] = ()

    @property
    def n_slots(self) -> int:
        """Number of features that the stages may acquire."""
        return len(self.columns)

    @property
    def n_values(self) -> int:
        """Length of an instance's value array; at least 1, because C has no empty arrays."""
        return max(self.n_slots, 1)

    @property
    def forests(self) -> tuple[PackedTrees, ...]:
        """Packed trees of all stages, in stage order."""
        return tuple(stage.model for stage in self.stages if isinstance(stage.model, PackedTrees))

    @property
    def nan_flag(self) -> int:
        """Bit of a node's slot number that sends NaN to the left; 0 if no node does."""
        if not any(forest.nan_left.any() for forest in self.forests):
            return 0
        # the highest bit of the smallest type that holds a slot and this bit
        return 1 << next(bit for bit in (7, 15, 31) if self.n_values <= 1 << bit)

    @property
    def nan_code(self) -> int:
        """The code of NaN, which is larger than all other codes."""
        return (1 << (self.code_bits or 0)) - 1

    @property
    def types(self) -> dict[str, str]:
        """The smallest C type of each kind of number that fits the tables of all stages."""
        forests = self.forests
        code_type = f"uint{self.code_bits or 8}_t"

        def largest_element(array_name: str) -> int:
            arrays = (getattr(forest, array_name) for forest in forests)
            return max(
                (int(array.max(initial=0)) for array in arrays if array is not None), default=0
            )

        index_widths = [forest.leaves.index_widths for forest in forests]
        row_bytes, bound_bytes, _, pick_bytes = np.max(
            [(1, 1, 1, 1), *index_widths], axis=0
        ).tolist()
        return {
            "column_type": unsigned_type(int(self.columns.max(initial=0))),
            "list_type": unsigned_type(self.n_values - 1),
            "slot_type": unsigned_type(self.nan_flag or self.n_values - 1),
            "code_type": code_type,
            "key_type": "float" if self.code_bits is None else code_type,
            "skip_type": unsigned_type(largest_element("skip")),
            "start_type": unsigned_type(largest_element("start")),
            "row_type": f"uint{8 * row_bytes}_t",
            "bound_type": f"uint{8 * bound_bytes}_t",
            "pick_type": f"uint{8 * pick_bytes}_t",
            "output_type": unsigned_type(self.n_outputs - 1),
            "edge_start_type": unsigned_type(sum(map(len, self.edges))),
        }

    @property
    def n_flags(self) -> int:
        """Number of flags per instance, padded to a whole word of 4 bytes."""
        return self.n_values + -(self._code_bytes + self.n_values) % 4

    @property
    def instance_bytes(self) -> int:
        """Bytes of the caller's instance struct: values, outputs, codes and flags."""
        # 4 bytes per value, per output and for the refused feature, then the codes and the flags
        n_words = self.n_values + self.n_outputs + 1
        return 4 * n_words + self._code_bytes + self.n_flags

    @property
    def _code_bytes(self) -> int:
        return 0 if self.code_bits is None else self.n_values * self.code_bits // 8

    @property
    def stack_bytes(self) -> int:
        """Upper bound on the stack of all calls, without the callback and the instance."""
        return CALL_STACK_BYTES + 4 * self.widest_kernel

    @property
    def widest_kernel(self) -> int:
        """Largest number of inputs of a kernel machine."""
        n_inputs = [
            len(stage.slots) for stage in self.stages if isinstance(stage.model, KernelModel)
        ]
        return max(n_inputs, default=0)


def lay_out(cascade: Cascade, code_bits: CodeBits | None) -> Layout:
    """Assign a slot to every feature and, with `code_bits`, a code to every threshold."""
    columns = np.unique(np.concatenate([stage.features for stage in cascade.stages]))
    stages = []
    for stage_index, stage in enumerate(cascade.stages):
        slots = np.searchsorted(columns, stage.features).astype(np.int64)
        if not cascade.stage_has_model[stage_index]:
            stages.append(StageLayout(slots, None, 0, is_lazy=False, score=None))
            continue
        model = stage.model
        assert not isinstance(model, GraphModel)  # `cascade_of` refuses graphs
        packed_model = (
            pack_trees(model, slots, takes_missing=cascade.takes_missing)
            if isinstance(model, TreeEnsemble)
            else model
        )
        stages.append(
            StageLayout(
                slots=slots,
                model=packed_model,
                n_margins=stage.n_margins,
                is_lazy=stage.acquisition == "node",
                score=None if cascade.thresholds[stage_index] is None else stage.score,
            )
        )
    layout = Layout(columns, tuple(stages), n_outputs=max(*cascade.stage_n_outputs, 1))
    return layout if code_bits is None else with_codes(layout, cascade, code_bits)


def with_codes(layout: Layout, cascade: Cascade, code_bits: CodeBits) -> Layout:
    """Assign a code to every threshold; a layout without thresholds is returned unchanged."""
    if not sum(len(forest.slot) for forest in layout.forests):
        return layout
    slots = np.concatenate([forest.slot for forest in layout.forests])
    thresholds = np.concatenate([forest.threshold for forest in layout.forests])
    edges = tuple(np.unique(thresholds[slots == slot]) for slot in range(layout.n_slots))
    # n edges need n + 1 codes, and NaN takes the largest code
    max_thresholds = (1 << code_bits) - (2 if cascade.takes_missing else 1)
    for column, slot_edges in zip(layout.columns.tolist(), edges, strict=True):
        if len(slot_edges) > max_thresholds:
            remedy = "coded=16, or coded='float'" if code_bits == 8 else "coded='float'"
            raise ConversionError(
                f"feature {cascade.feature_names[column]!r} has {len(slot_edges)} distinct "
                f"thresholds, but {code_bits}-bit codes distinguish only {max_thresholds}: "
                f"use {remedy}"
            )

    def with_ranks(forest: PackedTrees) -> PackedTrees:
        code = np.zeros(len(forest.slot), np.int64)
        for slot in np.unique(forest.slot).tolist():
            is_test = forest.slot == slot
            # value <= edges[i] exactly if code(value) <= i
            code[is_test] = np.searchsorted(edges[slot], forest.threshold[is_test])
        return replace(forest, code=code)

    stages = tuple(
        replace(
            stage,
            model=with_ranks(stage.model) if isinstance(stage.model, PackedTrees) else stage.model,
        )
        for stage in layout.stages
    )
    return replace(layout, stages=stages, code_bits=code_bits, edges=edges)
