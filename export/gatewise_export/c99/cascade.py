"""The cascade of a system or a bundle at its operating point, from which C code is written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gatewise.decision import ALWAYS_STOP, exit_stages, labels, split_outputs
from gatewise.models.stage import Stage
from gatewise_signals.signal_input import SignalInput

Matrix = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class ExpectedAnswers:
    """The answers to n rows that the C code must give.

    Attributes
    ----------
    outputs : tuple of ndarray, each of shape (n, n_outputs)
        Outputs of each stage; zero columns for a stage whose model is left out.
    exits : ndarray of shape (n,)
        The stage that stops; the number of stages for a row that is offloaded.
    labels : ndarray of shape (n,)
        Class indices. If no stage stops, the label of the last stage with a model, or -1 if no
        stage has one.
    is_acquired : ndarray of bool, shape (n, n_features)
        Features that the stages acquired up to the exit.
    """

    outputs: tuple[Matrix, ...]
    exits: NDArray[np.int64]
    labels: NDArray[np.int64]
    is_acquired: NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Cascade:
    """The stages that a device runs in turn, at the active operating point.

    Attributes
    ----------
    title : str
        Name of a system's class, or name and version of a bundle.
    stages : tuple of Stage
    thresholds : tuple of float or None
        Stop threshold of each stage; None if the stage never stops.
    feature_names : tuple of str
    classes : tuple
    takes_missing, cloud_takes_missing : bool
        Whether the stages, and the cloud, accept NaN as a value.
    offloads : bool
        Whether an instance goes to the cloud if no stage stops.
    rows : ndarray of shape (n, n_features)
        Sample rows for the self-test.
    is_lean : bool
        Whether to leave out the models of stages that never stop, and blocks that are needed only
        for requests.
    request_features : ndarray of int or None
        Features that a request holds; None for all.
    signal : SignalInput or None
        Blocks that compute the features from windows, if any.
    windows : ndarray or None
        The sample's windows.
    name : str
        Name of the bundle; ``model`` for a system.
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
    is_lean: bool = False
    request_features: NDArray[np.int64] | None = None
    signal: SignalInput | None = None
    windows: NDArray[Any] | None = None
    name: str = "model"

    def without_unreachable_stages(self) -> Cascade:
        """Leave out the stages that no instance reaches, because an earlier one always stops.

        If the float32 sums overflow in a stage that always stops, the score is NaN, and the stage
        does not stop. Python then runs the next stage, but the C code offloads, or answers if the
        cascade does not offload.
        """
        always_stopping_stages = (
            stage_index
            for stage_index, threshold in enumerate(self.thresholds)
            if threshold is not None and threshold <= ALWAYS_STOP
        )
        n_stages = next(always_stopping_stages, len(self.stages)) + 1
        return replace(self, stages=self.stages[:n_stages], thresholds=self.thresholds[:n_stages])

    @property
    def never_offloads(self) -> bool:
        """Whether no instance is offloaded, unless the sums of the last stage overflow."""
        threshold = self.thresholds[-1]
        return not self.offloads or (threshold is not None and threshold <= ALWAYS_STOP)

    @property
    def needed_features(self) -> set[int]:
        """Features that stages read, and the features of a request if one may be sent."""
        features = {int(feature) for stage in self.stages for feature in stage.features}
        if self.never_offloads or self.is_lean:
            return features
        all_features = range(len(self.feature_names))
        return features.union(
            all_features if self.request_features is None else self.request_features.tolist()
        )

    @property
    def stage_has_model(self) -> tuple[bool, ...]:
        """Whether the C code has each stage's model; without it a stage only acquires features."""
        # in a cascade that does not offload, the last stage answers all remaining instances
        answering_stage = -1 if self.offloads else len(self.stages) - 1
        return tuple(
            not self.is_lean
            or threshold is not None
            or stage.acquisition == "node"  # its trees decide which features it acquires
            or stage_index == answering_stage
            for stage_index, (stage, threshold) in enumerate(
                zip(self.stages, self.thresholds, strict=True)
            )
        )

    @property
    def stage_n_outputs(self) -> tuple[int, ...]:
        """Number of outputs of each stage; 0 if its model is left out."""
        return tuple(
            stage.model.n_outputs if is_included else 0
            for stage, is_included in zip(self.stages, self.stage_has_model, strict=True)
        )

    def expected_answers(self, rows: Matrix) -> ExpectedAnswers:
        """Compute the answers that the C code must give to `rows`, shape (n, n_features)."""
        with np.errstate(over="ignore", invalid="ignore"):  # extreme values also overflow in C
            outputs = tuple(stage.margins(rows) for stage in self.stages)
            margins_and_scores = [
                split_outputs(outputs_of_stage, stage.score)
                for outputs_of_stage, stage in zip(outputs, self.stages, strict=True)
            ]
        exits = exit_stages([score for _, score in margins_and_scores], self.thresholds)
        last_stage = np.minimum(exits, len(self.stages) - 1)
        return ExpectedAnswers(
            outputs=tuple(
                outputs_of_stage[:, :n_outputs]
                for outputs_of_stage, n_outputs in zip(outputs, self.stage_n_outputs, strict=True)
            ),
            exits=exits if self.offloads else last_stage,
            labels=self._find_labels([margins for margins, _ in margins_and_scores], last_stage),
            is_acquired=self._find_acquired(rows, last_stage),
        )

    def without_refused_rows(self) -> Cascade:
        """Leave out the rows of which a stage acquires a value that the C code refuses.

        The self-test runs every stage for each row, also after a stage that stops.
        """
        is_refused = np.isinf(self.rows) if self.takes_missing else ~np.isfinite(self.rows)
        if not is_refused.any():
            return self
        is_acquired = self._find_acquired(self.rows, np.full(len(self.rows), len(self.stages)))
        return replace(self, rows=self.rows[~(is_refused & is_acquired).any(axis=1)])

    def _find_labels(
        self, stage_margins: Sequence[NDArray[Any]], last_stage: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Find the label of each row's last stage that has a model; -1 if none has."""
        row_labels = np.full(len(last_stage), -1)
        for stage_index, margins in enumerate(stage_margins):
            if self.stage_has_model[stage_index]:
                row_labels = np.where(last_stage >= stage_index, labels(margins), row_labels)
        return row_labels

    def _find_acquired(self, rows: Matrix, last_stage: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Find the features that the stages up to each row's last stage acquire."""
        is_acquired = np.zeros(rows.shape, np.bool_)
        for stage_index, stage in enumerate(self.stages):
            is_acquired |= (
                np.broadcast_to(stage.acquired(rows), rows.shape)
                & (last_stage >= stage_index)[:, None]
            )
        return is_acquired
