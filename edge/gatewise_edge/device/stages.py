"""Run a bundle's stages, and test that they compute what they did where it was packed.

A stage's graph, in onnxruntime or in numpy, or its trees give raw margins. One row or many go the
same way.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gatewise.decision import as_float32
from gatewise_edge.device.stage_models import Runner, load_stage_models
from gatewise_edge.device.stage_output import RowOutput, StageOutput
from gatewise_edge.device.walker import Walker
from gatewise_edge.errors import SelfTestError
from gatewise_edge.sensors.feature_reader import Meter, Reading
from gatewise_export.bundle.bundle import Bundle
from gatewise_export.bundle.decisions import unlike_features

Matrix = NDArray[np.float32]

CLOSE = 1e-3
"""Relative and absolute difference of a given graph's margins between machines."""


class StageRunner:
    """The stages of `bundle`: a graph each, or trees to walk.

    A stage acquires all its features and runs; one of kind ``lazy`` is walked tree after tree and
    acquires a feature when a node tests it. `inputs` are each stage's features,
    all that it may acquire, in the order of its model's columns; `thresholds` the active operating
    point's, rounded to float32 as scores are. The `runner` "auto" is onnxruntime, or where that
    cannot be imported numpy alone, slower on large models and with the same bits. Files are
    hash-checked as they are read, and checked before they are run: BundleError if one is not fit to
    be, or has other inputs or outputs than the manifest says; InputError if there is no such runner
    on this machine.
    """

    def __init__(self, bundle: Bundle, *, runner: Runner = "auto") -> None:
        manifest = bundle.manifest
        self.specs = tuple(manifest.stages)
        self.inputs = tuple(manifest.stage_inputs(s) for s in range(len(self.specs)))
        self.thresholds: tuple[float | None, ...] = tuple(
            map(as_float32, manifest.active_point.thresholds)
        )
        self._columns = [columns.tolist() for columns in self.inputs]
        self._models = load_stage_models(bundle, runner)

    def __len__(self) -> int:
        return len(self.specs)

    def visit(self, stage: int, reading: Reading, *, allow_missing: bool) -> RowOutput:
        """Run the stage of index `stage` for one instance; `reading` acquires what it needs.

        `allow_missing` says whether values may be NaN. Raises SensorError if a feature cannot be
        acquired or is refused; what was acquired before it is paid.
        """
        model = self._models[stage]
        if not isinstance(model, Walker):
            x = reading.acquire(self.inputs[stage], allow_missing=allow_missing)
            return RowOutput(model.run_row(x), self.specs[stage])
        value_of = reading.one_by_one(self._columns[stage], allow_missing=allow_missing)
        return RowOutput(model.walk(value_of)[0].tolist(), self.specs[stage])

    def run(self, stage: int, x: Matrix) -> StageOutput:
        """Run the stage of index `stage` on its own inputs `x`, all at hand, float32 (n, k)."""
        return StageOutput(self._models[stage].run(x), self.specs[stage])


def self_test(bundle: Bundle, runner: StageRunner | None = None, *, blocks: bool = True) -> int:
    """Run the sample of `bundle` row by row and compare with packing; returns the number of rows.

    Margins must be equal bit for bit; exits and labels follow from them. A stage that acquires node
    by node must acquire the same features. Of a given graph, whose sums are not Gatewise's, margins
    may be off by :data:`CLOSE` on another kind of machine, and rows where they are may exit
    elsewhere. `runner` is a new one by default. With `blocks` the sample windows' features are
    computed, too. SelfTestError says what differed, and in how many rows; BundleError if the bundle
    has no usable sample.
    """
    sample = bundle.sample()  # read and checked before any graph is opened
    runner = StageRunner(bundle) if runner is None else runner
    X, stages = sample["X"], range(len(runner))
    meter = Meter(bundle.manifest.feature_costs())
    rows = [[_visit(runner, s, Reading(x, meter, lambda: math.inf)) for s in stages] for x in X]
    outputs = [[output for output, _ in row] for row in rows]
    exits = np.array([_exit(runner, row) for row in outputs])
    exits = np.minimum(exits, bundle.manifest.last_exit)
    chosen = np.array(
        [row[min(e, len(row) - 1)].label for row, e in zip(outputs, exits, strict=True)]
    )
    differences, same = {}, np.ones(len(X), np.bool_)
    if blocks:
        differences["features"] = int(unlike_features(bundle.manifest, sample).sum())
    for s, spec in enumerate(runner.specs):
        got, expected = np.array([r[s].outputs for r in outputs], np.float32), sample[f"stage_{s}"]
        unlike = _unlike(got, expected)
        if spec.kind == "graph":
            same &= ~unlike
            unlike &= ~np.isclose(got, expected, rtol=CLOSE, atol=CLOSE, equal_nan=True).all(axis=1)
        differences[f"stage_{s}"] = int(np.count_nonzero(unlike))
    for s in stages:
        if f"bought_{s}" in sample:
            unlike = np.stack([row[s][1] for row in rows]) != sample[f"bought_{s}"]
            differences[f"bought_{s}"] = int(np.count_nonzero(unlike.any(axis=1)))
    differences["exit"] = int(np.count_nonzero((exits != sample["exit"]) & same))
    on_device = (exits < len(runner)) & same
    differences["label"] = int(np.count_nonzero((chosen != sample["label"]) & on_device))
    differences = {name: count for name, count in differences.items() if count}
    if differences:
        found = ", ".join(
            f"{name} in {count} of {len(X)} rows" for name, count in differences.items()
        )
        raise SelfTestError(
            f"bundle {bundle.path} computes otherwise here than where it was packed: {found}",
            differences,
        )
    return len(X)


def _visit(
    runner: StageRunner, stage: int, reading: Reading
) -> tuple[RowOutput, NDArray[np.bool_]]:
    """Run a stage on one instance; its output, and which of its inputs it acquired."""
    output = runner.visit(stage, reading, allow_missing=True)
    return output, reading.acquired[runner.inputs[stage]]


def _exit(runner: StageRunner, outputs: Sequence[RowOutput]) -> int:
    """First stage that stops for one instance; the number of stages if none does."""
    stopped = (s for s, o in enumerate(outputs) if o.stops(runner.thresholds[s]))
    return next(stopped, len(outputs))


def _unlike(got: Matrix, expected: Matrix) -> NDArray[np.bool_]:
    """Mark rows that differ in any bit; one NaN is as good as another."""
    same = (got.view(np.uint32) == expected.view(np.uint32)) | (np.isnan(got) & np.isnan(expected))
    different: NDArray[np.bool_] = ~same.all(axis=1)
    return different
