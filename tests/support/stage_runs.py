"""All stages of a bundle on many instances, and where each of these stops."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gatewise.decision import exit_stages
from gatewise_edge.device.stage_output import StageOutput
from gatewise_edge.device.stages import StageRunner


def run_all(runner: StageRunner, X: NDArray[np.float32]) -> tuple[StageOutput, ...]:
    """Run every stage on whole instances `X`, float32 (n, n_features)."""
    return tuple(
        runner.run(s, np.ascontiguousarray(X[:, columns]))
        for s, columns in enumerate(runner.inputs)
    )


def exits(runner: StageRunner, outputs: Sequence[StageOutput]) -> NDArray[np.int64]:
    """First stage that stops by `outputs`, shape (n,); the number of stages where none does."""
    return exit_stages([o.score for o in outputs], runner.thresholds)
