"""A cascade at its active operating point: the form that C is written from."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gatewise.decision import ALWAYS_STOP, exit_stages, labels, split
from gatewise.models.stage import Stage
from gatewise_signals.signal_input import SignalInput

Matrix = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Expected:
    """Answers to n rows that C must give.

    Attributes
    ----------
    outputs : tuple of ndarray, each of shape (n, n_outputs)
        Outputs of each stage; without columns where its model is left out.
    exits : ndarray of shape (n,)
        The stage that stops; the number of stages where none stops and the cloud follows.
    labels : ndarray of shape (n,)
        Class indices; where no stage stops, those of the last stage with a model, or else -1.
    acquired : ndarray of bool, shape (n, n_features)
        Features acquired until then.
    """

    outputs: tuple[Matrix, ...]
    exits: NDArray[np.int64]
    labels: NDArray[np.int64]
    acquired: NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Cascade:
    """The stages that a device runs, one after another, at the active operating point.

    Attributes
    ----------
    title : str
    stages : tuple of Stage
    thresholds : tuple of float or None
        Stop threshold of each stage; None for one that never stops.
    feature_names : tuple of str
    classes : tuple
    takes_missing, cloud_takes_missing : bool
        Whether NaN is a value to the stages, and to the cloud.
    offloads : bool
        Whether the cloud answers an instance for which no stage stops.
    rows : ndarray of shape (n, n_features)
        The sample.
    lean : bool
        Whether models of stages that never stop, and blocks that only a request reads, are left
        out.
    request : ndarray of int or None
        Features of a request; None for all.
    signal : SignalInput or None
        Blocks that compute the features from windows.
    windows : ndarray or None
        Windows of the sample.
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

    def within_reach(self) -> Cascade:
        """Leave out the stages after one that always stops, which no instance reaches.

        The score of such a stage is NaN, which does not stop, only where its float32 sums overflow:
        Python then runs the next stage, and C offloads, or answers if nothing is offloaded.
        """
        always = (s for s, t in enumerate(self.thresholds) if t is not None and t <= ALWAYS_STOP)
        n_stages = next(always, len(self.stages)) + 1
        return replace(self, stages=self.stages[:n_stages], thresholds=self.thresholds[:n_stages])

    @property
    def always_stops(self) -> bool:
        """Whether the last stage answers every instance, unless its sums overflow."""
        threshold = self.thresholds[-1]
        return not self.offloads or (threshold is not None and threshold <= ALWAYS_STOP)

    @property
    def needed_features(self) -> set[int]:
        """Features that stages read, and features of a request, if one may be sent."""
        features = {int(f) for stage in self.stages for f in stage.features}
        if self.always_stops or self.lean:
            return features
        everything = range(len(self.feature_names))
        return features.union(everything if self.request is None else self.request.tolist())

    @property
    def holds(self) -> tuple[bool, ...]:
        """Whether the C has a stage's model; without it the stage only acquires its features."""
        answering = -1 if self.offloads else len(self.stages) - 1  # the stage that always answers
        return tuple(
            not self.lean
            or threshold is not None
            or stage.acquisition == "node"  # its trees decide which features it acquires
            or s == answering
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
        with np.errstate(over="ignore", invalid="ignore"):  # extremes may overflow, in C as here
            outputs = tuple(stage.margins(x) for stage in self.stages)
            split_outputs = [split(o, s.score) for o, s in zip(outputs, self.stages, strict=True)]
        exits = exit_stages([score for _, score in split_outputs], self.thresholds)
        last_run = np.minimum(exits, len(self.stages) - 1)
        answers = np.full((len(self.stages) + 1, len(x)), -1)
        # row s + 1: the label of the last stage up to s that has a model; row 0: none, -1
        for s, (margins, _) in enumerate(split_outputs):
            answers[s + 1] = labels(margins) if self.holds[s] else answers[s]
        acquired = np.zeros(x.shape, np.bool_)
        for s, stage in enumerate(self.stages):
            acquired |= np.broadcast_to(stage.acquired(x), x.shape) & (last_run >= s)[:, None]
        return Expected(
            outputs=tuple(o[:, :k] for o, k in zip(outputs, self.outputs, strict=True)),
            exits=exits if self.offloads else last_run,
            labels=answers[last_run + 1, np.arange(len(x))],
            acquired=acquired,
        )
