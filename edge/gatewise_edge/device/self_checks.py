"""Test that a bundle computes here what it computed where it was packed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gatewise_edge.device.stages import DeviceStage, StageOutput, load_stages
from gatewise_edge.errors import SelfTestError
from gatewise_edge.sensors.feature_reader import Meter, Reading
from gatewise_export.bundle.bundle import Bundle
from gatewise_export.bundle.decisions import unlike_features

#: Relative and absolute difference of a given graph's margins between machines.
CLOSE: Final = 1e-3


def self_test(
    bundle: Bundle, stages: Sequence[DeviceStage] | None = None, *, blocks: bool = True
) -> int:
    """Run the sample of `bundle` row by row and compare with packing; returns the number of rows.

    Margins must be equal bit for bit; exits and labels follow from them. A stage that acquires node
    by node must acquire the same features. Of a given graph, whose sums are not Gatewise's, margins
    may be off by :data:`CLOSE` on another kind of machine, and rows where they are may exit
    elsewhere. `stages` are loaded by default. With `blocks` the sample windows' features are
    computed, too. SelfTestError says what differed, and in how many rows; BundleError if the bundle
    has no usable sample.
    """
    sample = bundle.sample()  # read and checked before any graph is opened
    stages = load_stages(bundle) if stages is None else stages
    X = sample["X"]
    meter = Meter(bundle.manifest.feature_costs())
    rows = [[_visit(stage, reading) for stage in stages] for reading in _readings(X, meter)]
    outputs = [[output for output, _ in row] for row in rows]
    exits = np.array([_exit(stages, row) for row in outputs])
    exits = np.minimum(exits, bundle.manifest.last_exit)
    labels = np.array(
        [row[min(e, len(row) - 1)].label for row, e in zip(outputs, exits, strict=True)]
    )
    differences: dict[str, int] = {}
    same = np.ones(len(X), np.bool_)
    if blocks:
        differences["features"] = int(unlike_features(bundle.manifest, sample).sum())
    for s, stage in enumerate(stages):
        margins = np.array([row[s].outputs for row in outputs], np.float32)
        expected = sample[f"stage_{s}"]
        unlike = _unlike(margins, expected)
        if stage.spec.kind == "graph":
            same &= ~unlike
            close = np.isclose(margins, expected, rtol=CLOSE, atol=CLOSE, equal_nan=True)
            unlike &= ~close.all(axis=1)
        differences[f"stage_{s}"] = int(np.count_nonzero(unlike))
        if f"bought_{s}" in sample:
            unlike = np.stack([row[s][1] for row in rows]) != sample[f"bought_{s}"]
            differences[f"bought_{s}"] = int(np.count_nonzero(unlike.any(axis=1)))
    differences["exit"] = int(np.count_nonzero((exits != sample["exit"]) & same))
    on_device = (exits < len(stages)) & same
    differences["label"] = int(np.count_nonzero((labels != sample["label"]) & on_device))
    differences = {name: count for name, count in differences.items() if count}
    if differences:
        listed = ", ".join(
            f"{name} in {count} of {len(X)} rows" for name, count in differences.items()
        )
        raise SelfTestError(
            f"bundle {bundle.path} computes otherwise here than where it was packed: {listed}",
            differences,
        )
    return len(X)


def _readings(X: NDArray[np.float32], meter: Meter) -> list[Reading]:
    return [Reading(x, meter, lambda: math.inf) for x in X]


def _visit(stage: DeviceStage, reading: Reading) -> tuple[StageOutput, NDArray[np.bool_]]:
    """Run a stage on one instance; its output, and which of its inputs it acquired."""
    output = stage.visit(reading, allow_missing=True)
    return output, reading.acquired[stage.inputs]


def _exit(stages: Sequence[DeviceStage], outputs: Sequence[StageOutput]) -> int:
    """First stage that stops for one instance; the number of stages if none does."""
    stopped = (
        s for s, (stage, output) in enumerate(zip(stages, outputs, strict=True))
        if output.stops(stage.threshold)
    )  # fmt: skip
    return next(stopped, len(outputs))


def _unlike(margins: NDArray[np.float32], expected: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Mark rows that differ in any bit; one NaN is as good as another."""
    same = margins.view(np.uint32) == expected.view(np.uint32)
    same |= np.isnan(margins) & np.isnan(expected)
    different: NDArray[np.bool_] = ~same.all(axis=1)
    return different
