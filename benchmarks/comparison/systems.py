"""Operating points of this project's cascades and budgeted models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.comparison.record import Point
from benchmarks.data.folds import Fold, Truth
from gatewise.acquisition import exit_costs, select_exit_costs
from gatewise.decision import ALWAYS_STOP, exit_stages, labels, probabilities
from gatewise_training.operating_points.packed_size import packed_bytes


def system_points(system: Any, fold: Fold) -> list[Point]:
    """Measure every operating point of a fitted system on test rows.

    The stages run only once for all points. A test checks that the figures equal those of
    ``predict`` and ``cost`` of ``system.at(...)``. A ranking is also measured on validation rows,
    because the frontier has only the accuracy of classes. The labels are class indices.
    """
    row_sets = [(fold.test[0], fold.test_truth)]
    if fold.queries is not None:
        assert fold.validation is not None
        row_sets.append((fold.validation[0], fold.validation_truth))
    cloud_answers = [_answer_in_cloud(system, rows, truth) for rows, truth in row_sets]
    points: list[Point] = []
    for chain_number, stages in enumerate(system.chains_):
        runs = [
            _StageRun.on_rows(system, stages, rows, truth, answers)
            for (rows, truth), answers in zip(row_sets, cloud_answers, strict=True)
        ]
        costs = _compute_exit_costs(system, stages, fold.test[0])
        # size of the stages up to and including each one
        bytes_up_to_stage = [
            packed_bytes(stages[:n_stages]) for n_stages in range(1, len(stages) + 1)
        ]
        for point in system.frontier_.points:
            if point.chain != chain_number:
                continue
            exits = runs[0].exits(point.thresholds)
            # a device needs no model after a stage that answers every row
            last_stage = next(
                (
                    stage_number
                    for stage_number, threshold in enumerate(point.thresholds)
                    if threshold is not None and threshold <= ALWAYS_STOP
                ),
                len(stages) - 1,
            )
            points.append(
                Point(
                    val_accuracy=runs[1].score(point.thresholds) if runs[1:] else point.accuracy,
                    val_cost=point.cost,
                    accuracy=runs[0].score(point.thresholds),
                    cost=float(select_exit_costs(costs, exits).mean()),
                    offload_rate=float((exits == len(stages)).mean()),
                    nbytes=int(bytes_up_to_stage[last_stage]),
                )
            )
    return points


def own_choice(system: Any, fold: Fold, max_loss: float) -> Point:
    """Measure the point that ``system.at(max_loss=...)`` chooses."""
    test_rows = fold.test[0]
    chosen_system = system.at(max_loss=max_loss)
    point = chosen_system.operating_point_

    def score(rows: NDArray[np.float32], truth: Truth) -> float:
        return truth.score(
            truth.model_answers(chosen_system.predict, chosen_system.predict_proba, rows)
        )

    validation_accuracy = point.accuracy
    if fold.queries is not None:
        assert fold.validation is not None
        validation_accuracy = score(fold.validation[0], fold.validation_truth)
    return Point(
        val_accuracy=validation_accuracy,
        val_cost=point.cost,
        accuracy=score(test_rows, fold.test_truth),
        cost=float(chosen_system.cost(test_rows).mean()),
        offload_rate=float(
            np.mean(chosen_system.exit_stage(test_rows) == len(chosen_system.stages_))
        ),
        nbytes=packed_bytes(chosen_system.stages_),
    )


@dataclass(frozen=True, eq=False)
class _StageRun:
    """Outputs of the stages of a cascade on some rows."""

    scores: list[NDArray[np.float32]]  # stop scores of each stage
    answers: NDArray[Any]  # shape (n_stages + 1, n); the last row has the answers of the cloud
    truth: Truth
    has_cloud: bool  # False: the last row repeats the last stage

    @classmethod
    def on_rows(
        cls,
        system: Any,
        stages: Any,
        rows: NDArray[np.float32],
        truth: Truth,
        cloud_answers: NDArray[Any] | None,
    ) -> _StageRun:
        outputs = [stage.run(rows) for stage in stages]
        answers: list[NDArray[Any]] = [
            system.classes_[labels(margins)]
            if truth.qid is None
            else truth.to_answers(probabilities(margins, stage.link))
            for (margins, _), stage in zip(outputs, stages, strict=True)
        ]
        final_answers = answers[-1] if cloud_answers is None else cloud_answers
        scores = [score for _, score in outputs]
        return cls(scores, np.stack([*answers, final_answers]), truth, cloud_answers is not None)

    def exits(self, thresholds: Any) -> NDArray[np.int64]:
        """Find the stage that answers each row, or the number of stages for offloaded rows."""
        exits = exit_stages(self.scores, thresholds)
        return exits if self.has_cloud else np.minimum(exits, len(self.scores) - 1)

    def score(self, thresholds: Any) -> float:
        """Compute the accuracy or AP@5 at an operating point."""
        exits = self.exits(thresholds)
        return self.truth.score(self.answers[exits, np.arange(len(exits))])


def _answer_in_cloud(system: Any, rows: NDArray[np.float32], truth: Truth) -> NDArray[Any] | None:
    """Answer rows with the high-cost model; return None if the system has none."""
    model = system.high_cost_model_
    if model is None:
        return None
    return truth.model_answers(
        lambda x: system.classes_[model.labels(x)], model.predict_proba, rows
    )


def _compute_exit_costs(system: Any, stages: Any, rows: NDArray[np.float32]) -> NDArray[np.float64]:
    """Compute the costs of all exits.

    The costs are per row if a stage acquires features node by node.
    """
    costs, high_cost_model = system.feature_costs_, system.high_cost_model_
    acquired_by_stage = [stage.acquired(rows) for stage in stages]
    if high_cost_model is None:
        return exit_costs(costs, acquired_by_stage)
    return exit_costs(
        costs,
        acquired_by_stage,
        costs.mask(high_cost_model.features),
        request_price=system.cloud_prices_.offload_price(len(high_cost_model.features)),
    )
