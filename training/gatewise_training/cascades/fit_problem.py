"""Input and output of a cascade's fit: rows, prices and seed in, fitted stages out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import joblib
import numpy as np
from numpy.typing import NDArray

from gatewise.acquisition import Acquired
from gatewise.console import Progress
from gatewise.costs import FeatureCosts
from gatewise.models.stage import Stage
from gatewise_training.data.validation_split import Rows, ValidationSplit
from gatewise_training.learners.high_cost_model import HighCostModel

__all__ = ["FittedStages", "Problem", "sweep"]

SettingsFit = Callable[[Rows], list[Stage]]
"""Fits of one stage for each of several settings that start from one another."""


@dataclass(frozen=True, eq=False)
class Problem:
    """What a method gets to fit its candidate cascades."""

    plan: ValidationSplit  # rows, labels, weights, and which of them are validation rows
    n_classes: int
    costs: FeatureCosts
    seed: int
    n_jobs: int | None
    report: Progress  # called as ``report(done, total, what)``
    high_cost_model: HighCostModel | None = None
    # (n_validation,): its class indices there, from models that have not seen the rows
    high_cost_labels: NDArray[np.int64] | None = None
    # (n_validation, n_classes): its probabilities there, likewise
    high_cost_probabilities: NDArray[np.float64] | None = None
    # (n, n_classes): its probabilities of all rows of the plan, those of training rows from models
    # that have not seen them; None: by the model itself
    row_probabilities: NDArray[np.float64] | None = None
    # (n_calibration,): as `high_cost_labels`, of the calibration rows; None: by the model itself
    calibration_labels: NDArray[np.int64] | None = None


@dataclass(frozen=True, eq=False)
class FittedStages:
    """A candidate cascade: its stages and their out-of-fold outputs on the validation rows."""

    stages: tuple[Stage, ...]
    outputs: tuple[NDArray[np.float32], ...]  # (n_validation, n_outputs) of each stage
    # features that the models behind `outputs` acquired on the validation rows; None: what the
    # stages themselves acquire there, which is the same where all rows acquire alike
    acquired: tuple[Acquired, ...] | None = None

    def acquired_on(self, x: NDArray[np.float32]) -> Sequence[Acquired]:
        """Features that each stage acquires on the validation rows `x`."""
        return self.acquired or [stage.acquired(x) for stage in self.stages]


def sweep(problem: Problem, fits: Sequence[SettingsFit], what: str) -> list[FittedStages]:
    """Cross-fit stages over a grid of settings, in parallel.

    `fits` map row indices to fitted stages, the same number whatever the rows, and can be pickled.
    There is one candidate of one stage for each of them, in their order; `what` is for the report.
    """
    plan = problem.plan
    parts = [rows for rows, _ in plan.folds]
    if len(parts) > 1:
        parts.append(plan.fit_rows)
    jobs = [joblib.delayed(fit)(rows) for fit in fits for rows in parts]
    fitted: list[list[Stage]] = []
    for stages in joblib.Parallel(n_jobs=problem.n_jobs, return_as="generator")(jobs):
        fitted.append(stages)
        problem.report(len(fitted), len(jobs), what)
    candidates = []
    for first in range(0, len(fitted), len(parts)):
        folds = fitted[first : first + len(plan.folds)]
        for i, stage in enumerate(fitted[first + len(parts) - 1]):
            outputs = [
                stages[i].margins(plan.x[rows])
                for stages, (_, rows) in zip(folds, plan.folds, strict=True)
            ]
            candidates.append(FittedStages((stage,), (np.concatenate(outputs),)))
    return candidates
