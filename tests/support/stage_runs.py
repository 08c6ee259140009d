"""Runs of all stages of a bundle on many instances, and their exit stages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gatewise.decision import answers, exit_stages, split_outputs
from gatewise_edge.device.stages import DeviceStage


class StageRun(NamedTuple):
    """Outputs of a stage for n instances, and the margins, scores and labels computed from them."""

    outputs: NDArray[np.float32]
    margins: NDArray[np.float32]
    scores: NDArray[np.float32]
    labels: NDArray[Any]


def run_all(stages: Sequence[DeviceStage], X: NDArray[np.float32]) -> tuple[StageRun, ...]:
    """Run every stage on whole instances `X`, float32 (n, n_features)."""
    runs = []
    for stage in stages:
        outputs = stage.run(np.ascontiguousarray(X[:, stage.inputs]))
        margins, scores = split_outputs(outputs, stage.spec.score)
        runs.append(StageRun(outputs, margins, scores, answers(margins, stage.spec.link)))
    return tuple(runs)


def exit_indices(stages: Sequence[DeviceStage], runs: Sequence[StageRun]) -> NDArray[np.int64]:
    """Compute the first stage that stops, shape (n,); the number of stages if no stage stops."""
    return exit_stages([run.scores for run in runs], [stage.threshold for stage in stages])
