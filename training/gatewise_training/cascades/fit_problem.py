"""Input and output of the fit of a cascade's stages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import joblib
import numpy as np
from numpy.typing import NDArray

from gatewise.acquisition import AcquiredMask
from gatewise.console import Progress
from gatewise.costs import FeatureCosts
from gatewise.models.stage import Stage
from gatewise_training.data.input_checks import TrainingTable
from gatewise_training.data.parallel_fits import parallel_results
from gatewise_training.data.validation_split import Rows, ValidationSplit
from gatewise_training.learners.high_cost_model import HighCostModel
from gatewise_training.learners.stage_bounds import TreeShape

#: Function from row indices to fitted stages, one per setting.
SettingsFit = Callable[[Rows], list[Stage]]


@dataclass(frozen=True, eq=False)
class UnseenAnswers:
    """A high-cost model, and answers of models that have not seen the rows."""

    model: HighCostModel  # its features are columns of the problem's `cloud_split`
    labels: NDArray[np.int64]  # (n_validation,)
    probabilities: NDArray[np.float64]  # (n_validation, n_classes)
    # (n, n_classes): probabilities of all rows of the split, or None if the model computes them
    row_probabilities: NDArray[np.float64] | None = None
    # (n_calibration,): labels of the calibration rows, or None if the model computes them
    calibration_labels: NDArray[np.int64] | None = None
    tree_shape: TreeShape | None = None  # best shape of trees on these columns, if it was searched


@dataclass(frozen=True, eq=False)
class FitProblem:
    """Rows, prices and a high-cost model, for which a method fits candidate cascades."""

    split: ValidationSplit  # rows with the columns that stages read, and their split into folds
    # the same rows with the columns of the high-cost model, which may be values of raw windows
    cloud_split: ValidationSplit
    n_classes: int
    costs: FeatureCosts  # of the columns of `split`
    seed: int
    report_progress: Progress  # called as ``report_progress(n_done, n_total, step_name)``
    calibration: TrainingTable | None = None  # with the columns of `split`, if there is a guarantee
    cloud_calibration: NDArray[np.float32] | None = None  # the same rows for `cloud_split`
    high_cost: UnseenAnswers | None = None
    tree_shape: TreeShape | None = None  # best shape of trees on the columns of `split`, if known

    def high_cost_probabilities(self) -> NDArray[np.float64]:
        """Get the high-cost model's probabilities of all rows, shape (n, n_classes)."""
        assert self.high_cost is not None
        if self.high_cost.row_probabilities is not None:
            return self.high_cost.row_probabilities
        return self.high_cost.model.predict_proba(self.cloud_split.x)


@dataclass(frozen=True, eq=False)
class FittedStages:
    """A candidate cascade: its stages and their out-of-fold outputs on the validation rows."""

    stages: tuple[Stage, ...]
    outputs: tuple[NDArray[np.float32], ...]  # (n_validation, n_outputs) each
    # features that the models of `outputs` acquired on the validation rows, or None if all rows
    # acquire the features of the stages
    acquired_features: tuple[AcquiredMask, ...] | None = None
    # (n_validation,): price of the evaluation of the model, in addition to the features
    evaluation_costs: NDArray[np.float64] | None = None

    def select_stages(self, stage_numbers: Sequence[int]) -> FittedStages:
        """Get the candidate with only some of its stages."""
        acquired_features = self.acquired_features
        return FittedStages(
            tuple(self.stages[stage_number] for stage_number in stage_numbers),
            tuple(self.outputs[stage_number] for stage_number in stage_numbers),
            None
            if acquired_features is None
            else tuple(acquired_features[stage_number] for stage_number in stage_numbers),
        )

    def acquired_on(self, x: NDArray[np.float32], n_features: int) -> Sequence[AcquiredMask]:
        """Get the features that each stage acquires on rows `x`, out of `n_features`."""
        if self.acquired_features is not None:
            return self.acquired_features
        return features_acquired_by(self.stages, x, n_features)


def features_acquired_by(
    stages: Sequence[Stage], x: NDArray[np.float32], n_features: int
) -> list[AcquiredMask]:
    """Get the features that stages acquire, with a mask for each row if rows differ."""
    return [
        stage.acquired(x) if stage.acquisition == "node" else stage.feature_mask(n_features)
        for stage in stages
    ]


def cross_fit_settings(
    problem: FitProblem, fits: Sequence[SettingsFit], step_name: str
) -> list[FittedStages]:
    """Cross-fit stages over a grid of settings, in parallel.

    Parameters
    ----------
    problem : FitProblem
    fits : sequence of callable
        Functions that can be pickled. Each maps row indices to fitted stages, and their number
        does not depend on the rows.
    step_name : str
        Name of the step in the progress report.

    Returns
    -------
    list of FittedStages
        One candidate with one stage for each stage of each fit, in this order.
    """
    split = problem.split
    training_rows = split.rows_of_all_fits
    jobs = [
        joblib.delayed(_fit_setting)(fit_number, rows)
        for fit_number in range(len(fits))
        for rows in training_rows
    ]
    fitted_stages: list[list[Stage]] = []
    for stages in parallel_results(jobs, shared_data=fits):
        fitted_stages.append(stages)
        problem.report_progress(len(fitted_stages), len(jobs), step_name)
    candidates = []
    for fit_number in range(0, len(fitted_stages), len(training_rows)):
        fold_stages = fitted_stages[fit_number : fit_number + len(split.folds)]
        for stage_index, stage in enumerate(fitted_stages[fit_number + len(training_rows) - 1]):
            outputs = [
                stages[stage_index].margins(split.x[rows])
                for stages, (_, rows) in zip(fold_stages, split.folds, strict=True)
            ]
            candidates.append(FittedStages((stage,), (np.concatenate(outputs),)))
    return candidates


def _fit_setting(fits: Sequence[SettingsFit], fit_number: int, rows: Rows) -> list[Stage]:
    return fits[fit_number](rows)
