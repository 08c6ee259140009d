"""A fitted system or a bundle at its active operating point: the form that C is written from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gatewise.decision import exit_stages, labels, split
from gatewise.models.stage import Stage
from gatewise_signals.signal_input import SignalInput

Matrix = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Expected:
    """What C must answer to n rows; stages are counted on the device.

    `outputs`: (n, outputs) of each stage, no columns where its model is left out. `exits`, (n,):
    the stage that stops, or the number of stages where none does and a cloud follows. `labels`,
    (n,): class indices, of the last stage with a model where none stops; -1 without any.
    `acquired`, (n, n_features): features acquired until then.
    """

    outputs: tuple[Matrix, ...]
    exits: NDArray[np.int64]
    labels: NDArray[np.int64]
    acquired: NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Cascade:
    """The stages that a device runs, one after another: the first ones of the active point's chain.

    `takes_missing`: whether NaN is a value to them; `offloads`: whether the cloud answers an
    instance that no stage stops for, `cloud_takes_missing`: whether NaN is a value to the cloud,
    and `request`: the features of a request, None for all. `rows`, (n, n_features), and the
    `windows` that they were computed from by `signal` are for the self-test. `lean`: models of
    stages that never stop are left out.
    """

    title: str
    stages: tuple[Stage, ...]
    thresholds: tuple[float | None, ...]
    feature_names: tuple[str, ...]
    classes: tuple[Any, ...]
    takes_missing: bool
    offloads: bool
    cloud_takes_missing: bool
    rows: Matrix
    lean: bool = False
    request: NDArray[np.int64] | None = None
    signal: SignalInput | None = None
    windows: NDArray[Any] | None = None

    @property
    def holds(self) -> tuple[bool, ...]:
        """Whether the C has a stage's model; without it the stage only acquires its features."""
        last = len(self.stages) - 1
        return tuple(
            not self.lean
            or threshold is not None
            or stage.acquisition == "node"  # its trees decide which features it acquires
            or (s == last and not self.offloads)
            for s, (stage, threshold) in enumerate(zip(self.stages, self.thresholds, strict=True))
        )

    @property
    def outputs(self) -> tuple[int, ...]:
        """Number of outputs of each stage; 0 where its model is left out."""
        return tuple(
            stage.model.n_outputs if has_model else 0
            for stage, has_model in zip(self.stages, self.holds, strict=True)
        )

    def expected(self, x: Matrix) -> Expected:
        """Compute in Python what C must answer to the rows `x`, shape (n, n_features)."""
        outputs = tuple(stage.margins(x) for stage in self.stages)
        split_outputs = [split(o, s.score) for o, s in zip(outputs, self.stages, strict=True)]
        exits = exit_stages([score for _, score in split_outputs], self.thresholds)
        last = np.minimum(exits, len(self.stages) - 1)
        answers = np.full((len(self.stages) + 1, len(x)), -1)
        # row s + 1: the label of the last stage up to s that has a model; row 0: none, -1
        for s, (margins, _) in enumerate(split_outputs):
            answers[s + 1] = labels(margins) if self.holds[s] else answers[s]
        acquired = np.zeros(x.shape, np.bool_)
        for s, stage in enumerate(self.stages):
            acquired |= np.broadcast_to(stage.acquired(x), x.shape) & (last >= s)[:, None]
        return Expected(
            outputs=tuple(o[:, :k] for o, k in zip(outputs, self.outputs, strict=True)),
            exits=exits if self.offloads else last,
            labels=answers[last + 1, np.arange(len(x))],
            acquired=acquired,
        )
