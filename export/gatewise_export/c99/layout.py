"""Memory of an instance, and codes of values.

A *slot* holds a feature that some stage may acquire.

Codes (rank coding): the distinct thresholds of a slot, sorted, are its *edges*; a value's code is
the number of edges below it, so ``value <= edges[i]`` and ``code <= i`` are the same question,
exactly. A value is coded once, on acquisition; nodes then hold a byte or two, not a float.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from gatewise.decision import Score
from gatewise.models.graph_model import GraphModel
from gatewise.models.kernel_machine import KernelModel
from gatewise.models.linear import LinearModel
from gatewise.models.trees import TreeEnsemble
from gatewise_export.bundle.errors import ConversionError
from gatewise_export.c99.c_text import smallest
from gatewise_export.c99.cascade import Cascade
from gatewise_export.c99.trees import PackedTrees, pack_trees

Coded = Literal[8, 16]
#: How C holds thresholds.
Form = Coded | Literal["float"]

#: Bytes of stack that calls may take; `make test-c` measures the use of real compilers.
FRAMES = 512


@dataclass(frozen=True, eq=False)
class StageLayout:
    """A stage's slots in the order of its inputs, and its model; None: it only acquires features.

    `lazy`: it acquires node by node. `score`: rule of its stop score, if it stops.
    """

    slots: NDArray[np.int64]
    model: LinearModel | KernelModel | PackedTrees | None
    n_margins: int
    lazy: bool
    score: Score | None


@dataclass(frozen=True, eq=False)
class Layout:
    """The memory of an instance, and its sizes in bytes.

    `columns`, (n_slots,), ascending: the feature that each slot holds. `n_outputs`: the largest
    number of outputs of a stage. `edges`: the thresholds of each slot; empty if not coded.
    """

    columns: NDArray[np.int64]
    stages: tuple[StageLayout, ...]
    n_outputs: int
    coded: Coded | None
    edges: tuple[NDArray[np.float32], ...]

    @property
    def n_slots(self) -> int:
        """Features that some stage may acquire."""
        return len(self.columns)

    @property
    def n_values(self) -> int:
        """Length of an instance's arrays of values: C has no empty arrays."""
        return max(self.n_slots, 1)

    @property
    def code_type(self) -> str:
        """C's type of a code."""
        return "uint8_t" if self.coded == 8 else "uint16_t"

    @property
    def forests(self) -> tuple[PackedTrees, ...]:
        """All trees, stage by stage."""
        return tuple(stage.model for stage in self.stages if isinstance(stage.model, PackedTrees))

    @property
    def nan_flag(self) -> int:
        """Bit of a test that sends NaN to the left; 0 if none does."""
        if not any(forest.nan_left.any() for forest in self.forests):
            return 0
        # the highest bit of the smallest type that holds a slot and this bit
        return 1 << next(b for b in (7, 15, 31) if self.n_values <= 1 << b)

    @property
    def slot_type(self) -> str:
        """C's type of a test."""
        return smallest(self.nan_flag or self.n_values - 1)

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
        """Bytes of the struct that the caller holds: values, outputs, codes, and flags."""
        # 4 bytes per value, per output and for the refused feature; then codes and a flag per value
        words = self.n_values + self.n_outputs + 1
        codes = 0 if self.coded is None else self.n_values * self.coded // 8
        return 4 * words + -(-(codes + self.n_values) // 4) * 4

    @property
    def stack_bytes(self) -> int:
        """Largest use of the stack by all calls, without the callback and the instance."""
        return FRAMES + 4 * self.widest_kernel

    @property
    def widest_kernel(self) -> int:
        """Most inputs of a kernel machine."""
        widest = [len(s.slots) for s in self.stages if isinstance(s.model, KernelModel)]
        return max(widest, default=0)


def lay_out(cascade: Cascade, coded: Coded | None) -> Layout:
    """Give every feature its slot, and with `coded` every threshold its code."""
    columns = np.unique(np.concatenate([stage.features for stage in cascade.stages]))
    slot_of = {int(c): i for i, c in enumerate(columns)}
    stages = []
    for s, stage in enumerate(cascade.stages):
        slots = np.array([slot_of[int(c)] for c in stage.features], np.int64)
        if not cascade.holds[s]:
            stages.append(StageLayout(slots, None, 0, lazy=False, score=None))
            continue
        model = stage.model
        assert not isinstance(model, GraphModel)  # refused where the stages were read
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
                lazy=stage.acquisition == "node",
                score=None if cascade.thresholds[s] is None else stage.score,
            )
        )
    layout = Layout(
        columns=columns,
        stages=tuple(stages),
        n_outputs=max(*cascade.outputs, 1),
        coded=None,
        edges=(),
    )
    n_tests = sum(len(forest.slot) for forest in layout.forests)
    return layout if coded is None or not n_tests else _with_codes(layout, cascade, coded)


def _with_codes(layout: Layout, cascade: Cascade, coded: Coded) -> Layout:
    """Collect every slot's thresholds, and replace them by their ranks."""
    thresholds: list[list[NDArray[np.float32]]] = [[] for _ in layout.columns]
    for forest in layout.forests:
        for i in np.unique(forest.slot).tolist():
            thresholds[i].append(forest.threshold[forest.slot == i])
    empty = np.zeros(0, np.float32)
    edges = tuple(np.unique(np.concatenate([empty, *of_slot])) for of_slot in thresholds)
    for i, slot_edges in enumerate(edges):
        _check_width(i, len(slot_edges), layout, cascade, coded)

    def with_codes(forest: PackedTrees) -> PackedTrees:
        code = np.zeros(len(forest.slot), np.int64)
        for i in np.unique(forest.slot).tolist():
            tests = forest.slot == i
            # value <= edges[i] exactly where code(value) <= i
            code[tests] = np.searchsorted(edges[i], forest.threshold[tests])
        return replace(forest, code=code)

    stages = tuple(
        replace(s, model=with_codes(s.model) if isinstance(s.model, PackedTrees) else s.model)
        for s in layout.stages
    )
    return replace(layout, stages=stages, coded=coded, edges=edges)


def _check_width(slot: int, count: int, layout: Layout, cascade: Cascade, coded: Coded) -> None:
    """Refuse more edges than codes: n edges have n + 1 codes, and NaN has the largest of all."""
    most = (1 << coded) - (2 if cascade.takes_missing else 1)
    if count > most:
        name = cascade.feature_names[int(layout.columns[slot])]
        better = "coded=16, or coded='float'" if coded == 8 else "coded='float'"
        raise ConversionError(
            f"feature {name!r} has {count} distinct thresholds, {coded}-bit codes tell {most} "
            f"apart: use {better}"
        )
