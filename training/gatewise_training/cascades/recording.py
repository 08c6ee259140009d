"""Records of candidate cascades on labelled rows, from which thresholds are tuned.

:class:`.CascadeRecord` is the format. Class weights are part of the rows' weights in a fit, but not
in a record, where costs and rates must not depend on them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gatewise.acquisition import AcquiredMask
from gatewise.decision import labels, probabilities, split_outputs
from gatewise.models.stage import Stage
from gatewise_training.cascades.budgeted_model import BudgetedModel
from gatewise_training.cascades.fit_problem import FitProblem, FittedStages, features_acquired_by
from gatewise_training.data.row_splitter import RowSplitter
from gatewise_training.learners.high_cost_model import HighCostModel
from gatewise_training.operating_points.cascade_record import CascadeRecord
from gatewise_training.operating_points.class_figures import ExitAnswers
from gatewise_training.operating_points.packed_size import packed_sizes


class LabelledRows(NamedTuple):
    """Rows that a cascade is measured on."""

    y: NDArray[np.int64]  # (n,): class indices
    weight: NDArray[np.float64]  # (n,)
    reference_labels: NDArray[np.int64]  # (n,): answers of the high-cost model or the last stage
    splitter: RowSplitter
    reference_probabilities: NDArray[np.float64] | None = None  # (n, n_classes), of the same model


class RecordingModel(BudgetedModel):
    """Part of a classifier that records its candidate cascades."""

    classes_: NDArray[Any]
    high_cost_model_: HighCostModel | None
    class_weights_: NDArray[np.float64] | None  # (n_classes,)

    def _record_cascade(
        self,
        stages: Sequence[Stage],
        outputs: Sequence[NDArray[np.float32]],
        acquired_features: Sequence[AcquiredMask],
        rows: LabelledRows,
        offload_features: AcquiredMask | None = None,
    ) -> CascadeRecord:
        """Record the scores, right answers and costs of stages on labelled rows."""
        margins_and_scores = [
            split_outputs(stage_outputs, stage.score)
            for stage, stage_outputs in zip(stages, outputs, strict=True)
        ]
        # the exits are the stages and, last, the reference
        stage_labels = [labels(margins) for margins, _ in margins_and_scores]
        labels_by_exit = np.stack([*stage_labels, rows.reference_labels])
        stage_probabilities = [
            probabilities(margins, stage.link)
            for (margins, _), stage in zip(margins_and_scores, stages, strict=True)
        ]
        class_weights = self.class_weights_
        return CascadeRecord(
            scores=np.stack([score for _, score in margins_and_scores]),
            correctness=(labels_by_exit == rows.y).astype(np.float64),
            agrees_with_reference=labels_by_exit == rows.reference_labels,
            exit_costs=self._exit_costs(acquired_features, offload_features=offload_features),
            cost_limits=self._exit_limits(stages),
            weights=rows.weight / rows.weight.mean(),
            has_cloud=self.high_cost_model_ is not None,
            tree_counts=tuple(stage.n_trees for stage in stages),
            model_bytes=tuple(stage.nbytes for stage in stages),
            packed_sizes=packed_sizes(stages),
            class_weights=None if class_weights is None else class_weights[rows.y],
            exit_answers=ExitAnswers.from_probabilities(
                rows.y,
                labels_by_exit,
                len(self.classes_),
                [*stage_probabilities, rows.reference_probabilities],
            ),
            splitter=rows.splitter,
        )

    def _record_validation(
        self, problem: FitProblem, candidates: Sequence[FittedStages]
    ) -> list[CascadeRecord]:
        """Record the candidates on the validation rows.

        Without a cloud, the reference is the last stage of the last candidate, which is the
        unpenalised one.
        """
        split = problem.split
        rows = split.validation_rows
        y = split.y[rows]
        weights = split.row_weight[rows]
        splitter = split.splitter.take(rows)
        if problem.high_cost is not None:
            reference_labels = problem.high_cost.labels
            reference_probabilities = problem.high_cost.probabilities
        else:
            last_candidate = candidates[-1]
            margins, _ = split_outputs(last_candidate.outputs[-1], last_candidate.stages[-1].score)
            reference_labels = labels(margins)
            reference_probabilities = None
        labelled_rows = LabelledRows(
            y, weights, reference_labels, splitter, reference_probabilities
        )
        x = split.x[rows]
        n_features = self.n_features_in_
        offload_features = self._features_of_offload(x)
        records = []
        for candidate in candidates:
            acquired_features = candidate.acquired_on(x, n_features)
            record = self._record_cascade(
                candidate.stages,
                candidate.outputs,
                acquired_features,
                labelled_rows,
                offload_features,
            )
            if candidate.evaluation_costs is not None:
                exit_costs = (
                    record.exit_costs.reshape(len(record.exit_costs), -1)
                    + candidate.evaluation_costs
                )
                record = replace(record, exit_costs=exit_costs)
            records.append(record)
        return records

    def _record_calibration(
        self, problem: FitProblem, candidates: Sequence[FittedStages]
    ) -> list[CascadeRecord]:
        """Record the stages of the candidates on the calibration rows."""
        table = problem.calibration
        assert table is not None
        x = table.x
        high_cost = problem.high_cost
        # the reference is the last stage, the user's predictions, or the high-cost model
        reference_probabilities = None
        if high_cost is None:
            reference_labels = labels(candidates[-1].stages[-1].run(x)[0])
        elif high_cost.calibration_labels is not None:
            reference_labels = high_cost.calibration_labels
        else:
            assert problem.cloud_calibration is not None
            reference_labels, reference_probabilities = high_cost.model.answers(
                problem.cloud_calibration
            )
        labelled_rows = LabelledRows(
            table.y, table.weight, reference_labels, table.splitter, reference_probabilities
        )
        return [
            self._record_cascade(
                candidate.stages,
                [stage.margins(x) for stage in candidate.stages],
                features_acquired_by(candidate.stages, x, self.n_features_in_),
                labelled_rows,
                self._features_of_offload(x),
            )
            for candidate in candidates
        ]

    def _make_reference_fields(self, record: CascadeRecord) -> dict[str, Any]:
        """Compute the fields of a frontier that describe the classes and the reference.

        The reference is the last exit of `record`.
        """
        answers = record.exit_answers
        assert answers is not None
        last_exits = np.full(len(record.weights), record.n_stages)
        return {
            "reference_accuracy": float(np.average(record.correctness[-1], weights=record.weights)),
            "classes": tuple(self.classes_.tolist()),
            "class_rows": answers.class_rows(),
            "reference_weighted_accuracy": None
            if record.class_weights is None
            else record.reference_effective_accuracy(),
            "reference_recall": answers.figures(last_exits, record.weights)["recall"],
        }
