"""What an instance keeps in memory, and how values become codes.

A *slot* holds a feature that some stage may acquire. Behind the slots lie the numbers that a
learned stop score reads beside features: its stage's margins and their stop score.

Codes (rank coding): the distinct thresholds of a slot, sorted, are its *edges*; a value's code is
the number of edges below it, so ``value <= edges[i]`` and ``code <= i`` are the same question,
exactly. A value is coded once, on acquisition; nodes then hold a byte or two, not a float.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from gatewise.models.kernel_machine import KernelModel
from gatewise.models.linear import LinearModel
from gatewise.models.stop_score_model import ScoredModel
from gatewise.models.trees import TreeEnsemble
from gatewise_export.bundle.errors import ConversionError
from gatewise_export.c99.cascade import Cascade
from gatewise_export.c99.tables import smallest
from gatewise_export.c99.trees import PackedTrees, pack_trees

__all__ = ["FRAMES", "Coded", "Forest", "Layout", "StageLayout", "lay_out"]

Coded = Literal[8, 16]

FRAMES = 512
"""Bytes of stack that calls may take; `make test-c` measures what compilers really take."""


@dataclass(frozen=True, eq=False)
class Forest:
    """Trees with their tests in slots, and their thresholds' codes.

    Attributes
    ----------
    trees : PackedTrees
    slot : ndarray of int64, shape (n_inner,)
        What a node tests: a slot, or a number behind them.
    nan_left : ndarray of bool, shape (n_inner,)
        False where the value is never NaN.
    code : ndarray of int64, shape (n_inner,), or None
        Rank of the threshold.
    """

    trees: PackedTrees
    slot: NDArray[np.int64]
    nan_left: NDArray[np.bool_]
    code: NDArray[np.int64] | None


@dataclass(frozen=True, eq=False)
class StageLayout:
    """A stage's place: its slots in the order of its inputs, its trees, the edges of its numbers.

    Attributes
    ----------
    slots : ndarray of int64, shape (n_inputs,)
    model : LinearModel, KernelModel, Forest or None
        None: left out, the stage only acquires its features.
    stop : Forest or None
        Trees of a learned stop score.
    n_margins : int
    first_edges : int
        Index of the edges of the first number behind the slots.
    lazy : bool
        Whether it acquires node by node.
    needs_score : bool
        Whether C must make a stop score of its margins.
    """

    slots: NDArray[np.int64]
    model: LinearModel | KernelModel | Forest | None
    stop: Forest | None
    n_margins: int
    first_edges: int
    lazy: bool
    needs_score: bool

    @property
    def forests(self) -> tuple[Forest, ...]:
        """Its trees, those of the stop score last."""
        return tuple(part for part in (self.model, self.stop) if isinstance(part, Forest))


@dataclass(frozen=True, eq=False)
class Layout:
    """The memory of an instance, and its sizes in bytes.

    Attributes
    ----------
    columns : ndarray of int64, shape (n_slots,)
        The feature that each slot holds, ascending.
    stages : tuple of StageLayout
    n_numbers : int
        Slots and the numbers behind them.
    n_outputs : int
        Most outputs of a stage.
    coded : {8, 16} or None
    edges : tuple of ndarray of float32
        Of each slot, then of the numbers behind them, stage by stage; empty if not coded.
    """

    columns: NDArray[np.int64]
    stages: tuple[StageLayout, ...]
    n_numbers: int
    n_outputs: int
    coded: Coded | None
    edges: tuple[NDArray[np.float32], ...]

    @property
    def n_slots(self) -> int:
        """Features that some stage may acquire."""
        return len(self.columns)

    @property
    def code_type(self) -> str:
        """C's type of a code."""
        return "uint8_t" if self.coded == 8 else "uint16_t"

    @property
    def forests(self) -> tuple[Forest, ...]:
        """All trees, stage by stage."""
        return tuple(forest for stage in self.stages for forest in stage.forests)

    @property
    def nan_flag(self) -> int:
        """Bit of a test that says NaN goes left; 0 if no NaN does."""
        if not any(forest.nan_left.any() for forest in self.forests):
            return 0
        return 1 << next(b for b in (7, 15, 31) if self.n_numbers <= 1 << b)

    @property
    def slot_type(self) -> str:
        """C's type of a test."""
        return smallest(self.nan_flag or max(self.n_numbers - 1, 0))

    @property
    def list_type(self) -> str:
        """C's type of a slot in the list of a stage's inputs."""
        return smallest(max(self.n_slots - 1, 0))

    @property
    def nan_code(self) -> int:
        """The code of NaN, above all others."""
        return 255 if self.coded == 8 else 65535

    @property
    def instance_bytes(self) -> int:
        """Of the struct that the caller holds: values, outputs, codes, and what is known."""
        words = self.n_numbers + self.n_outputs + 1  # and the feature that was refused
        codes = 0 if self.coded is None else self.n_numbers * self.coded // 8
        return 4 * words + -(-(codes + max(self.n_slots, 1)) // 4) * 4

    @property
    def stack_bytes(self) -> int:
        """At most, of all calls together, the callback and the instance apart."""
        return FRAMES + 4 * self.widest_kernel

    @property
    def widest_kernel(self) -> int:
        """Most inputs of a kernel machine."""
        widest = [len(s.slots) for s in self.stages if isinstance(s.model, KernelModel)]
        return max(widest, default=0)


def lay_out(cascade: Cascade, coded: Coded | None) -> Layout:
    """Give every feature its slot, and with `coded` every threshold its code.

    Raises
    ------
    ConversionError
        If a feature has more distinct thresholds than codes of that width can tell apart.
    """
    columns = np.unique(np.concatenate([stage.features for stage in cascade.stages]))
    slot_of = {int(c): i for i, c in enumerate(columns)}
    n, edge = len(columns), len(columns)
    stages = []
    for s, stage in enumerate(cascade.stages):
        slots = np.array([slot_of[int(c)] for c in stage.features], np.int64)
        if not cascade.holds[s]:
            stages.append(StageLayout(slots, None, None, 0, edge, lazy=False, needs_score=False))
            continue
        model, stop = stage.model, None
        if isinstance(model, ScoredModel):
            behind = n + np.arange(model.model.n_outputs + 1)
            stop = _forest(model.stop, np.append(slots, behind), n, cascade.takes_missing)
            model = model.model
        own = (
            _forest(model, slots, n, cascade.takes_missing)
            if isinstance(model, TreeEnsemble)
            else model
        )
        # a gate's score is one of the model's own outputs, a learned one comes behind them
        gated = stage.score == "column" and stop is None
        stages.append(
            StageLayout(
                slots=slots,
                model=own,
                stop=stop,
                n_margins=model.n_outputs - gated,
                first_edges=edge,
                lazy=stage.acquisition == "node",
                needs_score=stop is not None or (not gated and cascade.thresholds[s] is not None),
            )
        )
        edge += 0 if stop is None else model.n_outputs + 1
    most = max((s.n_margins + 1 for s in stages if s.stop is not None), default=0)
    layout = Layout(
        columns=columns,
        stages=tuple(stages),
        n_numbers=max(n + most, 1),
        n_outputs=max(*cascade.outputs, 1),
        coded=None,
        edges=(),
    )
    # without trees there is nothing to code
    return (
        layout if coded is None or not layout.forests else _with_codes(layout, cascade, coded, edge)
    )


def _forest(
    trees: TreeEnsemble, slots: NDArray[np.int64], n_slots: int, takes_missing: bool
) -> Forest:
    packed = pack_trees(trees)
    slot = slots[packed.column] if len(packed.column) else packed.column
    may_be_nan = (slot >= n_slots) | takes_missing
    return Forest(packed, slot, packed.nan_left & may_be_nan, None)


def _with_codes(layout: Layout, cascade: Cascade, coded: Coded, n_edges: int) -> Layout:
    """Collect every slot's thresholds, and replace them by their ranks."""
    found: list[list[NDArray[np.float32]]] = [[] for _ in range(n_edges)]

    def edge_ids(stage: StageLayout, forest: Forest) -> NDArray[np.int64]:
        behind = forest.slot - layout.n_slots
        return np.where(behind < 0, forest.slot, stage.first_edges + behind)

    for stage in layout.stages:
        for forest in stage.forests:
            ids = edge_ids(stage, forest)
            for i in np.unique(ids).tolist():
                found[i].append(forest.trees.threshold[ids == i])
    edges = tuple(np.unique(np.concatenate(f)) if f else np.zeros(0, np.float32) for f in found)
    for i, marks in enumerate(edges):
        _check_width(i, len(marks), layout, cascade, coded)

    def with_codes(stage: StageLayout, forest: Forest) -> Forest:
        ids, code = edge_ids(stage, forest), np.zeros(len(forest.slot), np.int64)
        for i in np.unique(ids).tolist():
            here = ids == i
            code[here] = np.searchsorted(edges[i], forest.trees.threshold[here])
        return replace(forest, code=code)

    stages = tuple(
        replace(
            s,
            model=with_codes(s, s.model) if isinstance(s.model, Forest) else s.model,
            stop=None if s.stop is None else with_codes(s, s.stop),
        )
        for s in layout.stages
    )
    return replace(layout, stages=stages, coded=coded, edges=edges)


def _check_width(edge: int, count: int, layout: Layout, cascade: Cascade, coded: Coded) -> None:
    """A value of n edges has n + 1 codes; NaN has the largest code of all."""
    acquired = edge < layout.n_slots
    most = (1 << coded) - (1 if acquired and not cascade.takes_missing else 2)
    if count > most:
        what = (
            f"feature {cascade.feature_names[int(layout.columns[edge])]!r}"
            if acquired
            else "a learned stop score"
        )
        better = "coded=16, or the float form" if coded == 8 else "the float form (coded=None)"
        raise ConversionError(
            f"{what} has {count} distinct thresholds, {coded}-bit codes tell {most} apart: "
            f"use {better}"
        )
