"""Input and output of a cascade's fit: rows, prices and seed in, fitted stages out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import joblib
import numpy as np
from numpy.typing import NDArray

from gatewise.acquisition import Acquired
from gatewise.console import Progress
from gatewise.costs import FeatureCosts
from gatewise.models.stage import Stage
from gatewise_training.data.input_checks import Table
from gatewise_training.data.validation_split import Rows, ValidationSplit
from gatewise_training.learners.high_cost_model import HighCostModel
from gatewise_training.learners.stage_bounds import TreeShape

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
    calibration: Table | None = None  # calibration rows, where a guarantee is asked for
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
    # (n, n_columns): rows as the high-cost model reads them; None: those of the plan
    high_cost_rows: NDArray[np.float32] | None = None
    # what boosted trees are best on these rows and columns, where the high-cost model's fit has it
    tree_shape: TreeShape | None = None

    def answered(
        self,
        labels: NDArray[np.int64],
        probabilities: NDArray[np.float64],
        *,
        rows: NDArray[np.float64] | None = None,
        calibration: NDArray[np.int64] | None = None,
    ) -> Problem:
        """Get the problem with the high-cost model's answers; shapes as of its fields."""
        return replace(
            self,
            high_cost_labels=labels,
            high_cost_probabilities=probabilities,
            row_probabilities=rows,
            calibration_labels=calibration,
        )

    def high_cost_chances(self) -> NDArray[np.float64]:
        """Get the high-cost model's probabilities of all rows, shape (n, n_classes)."""
        if self.row_probabilities is not None:
            return self.row_probabilities
        assert self.high_cost_model is not None
        rows = self.plan.x if self.high_cost_rows is None else self.high_cost_rows
        return self.high_cost_model.predict_proba(rows)

    def of_high_cost_model(self, first: int) -> Problem:
        """Get the problem of a high-cost model that reads the columns from `first` on."""
        return self._with_columns(slice(first, None))

    def with_high_cost_model(self, found: Problem, first: int) -> Problem:
        """Get this problem with the high-cost model, and answers, found on columns from `first`."""
        assert found.high_cost_model is not None
        f0 = replace(found.high_cost_model, features=found.high_cost_model.features + first)
        plan, costs, aside = self.plan, self.costs, self.calibration
        own = replace(found, plan=plan, costs=costs, calibration=aside, high_cost_model=f0)
        return replace(own, tree_shape=None) if first else own

    def of_stages(self, upto: int, costs: FeatureCosts) -> Problem:
        """Get the problem of stages that read the columns up to `upto`, of these prices."""
        part = self._with_columns(slice(upto))
        return replace(part, costs=costs, high_cost_rows=self.plan.x)

    def _with_columns(self, columns: slice) -> Problem:
        plan, aside = self.plan, self.calibration
        if aside is not None:
            aside = replace(aside, x=aside.x[:, columns])
        x = np.ascontiguousarray(plan.x[:, columns])
        return replace(self, plan=replace(plan, x=x), calibration=aside)


@dataclass(frozen=True, eq=False)
class FittedStages:
    """A candidate cascade: its stages and their out-of-fold outputs on the validation rows."""

    stages: tuple[Stage, ...]
    outputs: tuple[NDArray[np.float32], ...]  # (n_validation, n_outputs) of each stage
    # features that the models behind `outputs` acquired on the validation rows; None: what the
    # stages themselves acquire there, which is the same where all rows acquire alike
    acquired: tuple[Acquired, ...] | None = None

    def part(self, kept: Sequence[int]) -> FittedStages:
        """Get the candidate with some of its stages alone."""
        acquired = self.acquired
        return FittedStages(
            tuple(self.stages[s] for s in kept),
            tuple(self.outputs[s] for s in kept),
            None if acquired is None else tuple(acquired[s] for s in kept),
        )

    def acquired_on(self, x: NDArray[np.float32]) -> Sequence[Acquired]:
        """Features that each stage acquires on the validation rows `x`, of all columns."""
        if self.acquired is None:
            return [stage.acquired(x) for stage in self.stages]
        n = x.shape[1]  # columns that only the high-cost model reads stand behind the others
        return [np.pad(m, [*[(0, 0)] * (m.ndim - 1), (0, n - m.shape[-1])]) for m in self.acquired]


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
