"""Fit of classifiers that keep to a cost budget.

A fit trains candidate cascades, tunes their thresholds, and keeps the operating points that no
other point beats in both accuracy and cost: the frontier. :meth:`ClassifierFit._fit_rows` lists the
steps. Each subclass is a training method and implements `_fit_candidates`, which fits candidate
cascades (:class:`.FittedStages`) for a :class:`.FitProblem`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal, Self

import msgspec
import numpy as np
from numpy.typing import NDArray
from sklearn.utils import check_random_state
from threadpoolctl import threadpool_limits

from gatewise.console import Progress, progress
from gatewise.costs import CloudPrices
from gatewise.errors import InputError, TooLargeError
from gatewise.models.stage import Stage
from gatewise.operating_point import OperatingPoint
from gatewise_training.cascades.budgeted_model import MAX_LOSS
from gatewise_training.cascades.fit_problem import FitProblem, FittedStages
from gatewise_training.cascades.recording import RecordingModel
from gatewise_training.data.input_checks import FitArguments, TrainingTable, check_training
from gatewise_training.data.neighbouring_rows import warn_of_similar_neighbours
from gatewise_training.data.row_splitter import RowSplitter
from gatewise_training.data.validation_split import ValidationSplit
from gatewise_training.operating_points.candidate_points import CalibrationRecords
from gatewise_training.operating_points.cascade_parts import stages_within_bytes, stages_within_cost
from gatewise_training.operating_points.cascade_record import CascadeRecord
from gatewise_training.operating_points.class_figures import (
    ClassBounds,
    class_weights,
    tuning_class_weights,
)
from gatewise_training.operating_points.cost_cap import cost_too_low, points_within_cost
from gatewise_training.operating_points.frontier import Frontier
from gatewise_training.operating_points.group_losses import with_group_errors
from gatewise_training.operating_points.guarantee import Promise
from gatewise_training.operating_points.recall_check import warn_of_recall
from gatewise_training.operating_points.thresholds import frontier_points

#: Number of parts of the training rows; one part becomes the calibration rows.
N_TRAINING_PARTS = 5


class ClassifierFit(RecordingModel):
    """Steps of the fit of a classifier: rows, candidates, thresholds, frontier.

    :class:`.BudgetedModel` has the goal, the costs of exits and the windows, and
    :class:`.RecordingModel` the records of the candidates. Each subclass has its settings as
    fields.
    """

    # defaults of settings that some subclasses do not have
    high_cost_model: Any = None
    cloud_prices: CloudPrices | None = None
    min_recall: Mapping[Any, float] | None = None
    min_precision: Mapping[Any, float] | None = None
    class_weight: Mapping[Any, float] | Literal["balanced"] | None = None
    guarantee: float | None = None
    max_bytes: int | None = None
    max_instance_cost: float | None = None

    _high_cost_model: Any  # the setting; a booster is wrapped as a classifier
    calibration_: CalibrationRecords | None
    class_bounds_: ClassBounds
    max_bytes_: int | None = None

    # -- steps of a method ---------------------------------------------------------------------

    def _fit_candidates(self, problem: FitProblem) -> Sequence[FittedStages]:
        """Fit the method's candidate cascades, the unpenalised one last."""
        raise NotImplementedError

    def _with_high_cost_model(self, problem: FitProblem, table: TrainingTable) -> FitProblem:
        """Add a high-cost model and its answers to the problem, if the subclass has one."""
        return problem

    def _store_candidates(self, candidates: Sequence[FittedStages]) -> None:
        """Store data of the candidates that the method needs in addition to their stages."""

    def _activate(self, point: OperatingPoint) -> None:
        """Make a point the active one."""
        raise NotImplementedError

    # -- all steps -----------------------------------------------------------------------------

    def _fit_rows(self, arguments: FitArguments) -> Self:
        """Fit all models and find the frontier."""
        self._check_settings()
        table = self._check_and_store_table(arguments)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        table, calibration = self._split_off_calibration_rows(table, seed)
        # one thread per fit, because more threads would wait for each other; joblib runs fits in
        # parallel
        with threadpool_limits(1), progress(f"fit {type(self).__name__}") as report_progress:
            problem = self._make_problem(table, calibration, seed, report_progress)
            problem = self._with_high_cost_model(problem, table)
            self._set_high_cost_model(problem)
            candidates = self._fit_candidates(problem)
            candidates = self._split_by_cost(candidates)
            candidates = self._split_by_bytes(problem, candidates)
            report_progress(1, 1, "thresholds")
            self._find_frontier(problem, candidates)
            self._store_candidates(candidates)
            self._activate(self._choose_by_settings())
        warn_of_recall(self)
        return self

    # -- rows ----------------------------------------------------------------------------------

    def _check_and_store_table(self, arguments: FitArguments) -> TrainingTable:
        """Check the rows, and set the classes, ranges, prices and bounds of the classifier."""
        self._read_blocks(arguments.X)
        table = check_training(self, arguments)
        if table.validation is None and table.splitter.is_random:
            stage_columns, _ = self._stage_and_cloud_columns()
            warn_of_similar_neighbours(table.x[:, stage_columns], table.y)
        self.classes_ = table.classes
        self._measure_ranges(table.x, arguments.X)
        self._check_costs()
        self._set_bounds()
        self.class_weights_ = class_weights(self.class_weight, table.y, table.classes)
        cloud_prices = self.cloud_prices or CloudPrices()
        if self._cloud_reads_windows:
            item_size = np.dtype(self.signal_input_.dtype).itemsize
            cloud_prices = msgspec.structs.replace(cloud_prices, item_size=item_size)
        self.cloud_prices_ = cloud_prices
        return table

    def _stage_and_cloud_columns(self) -> tuple[slice, slice]:
        """Get the columns that stages read, and the columns that the high-cost model reads."""
        if not self._cloud_reads_windows:
            return slice(None), slice(None)
        n_features = len(self.signal_input_.graph.feature_names)
        return slice(n_features), slice(n_features, None)

    def _set_bounds(self) -> None:
        """Set the bounds on bytes, on an instance's cost and on classes from the settings."""
        self.max_bytes_ = self.max_bytes
        self.max_instance_cost_ = self.max_instance_cost
        self.class_bounds_ = ClassBounds.from_mappings(
            self.classes_.tolist(), self.min_recall, self.min_precision, self._split_max_loss()[1]
        )

    def _split_off_calibration_rows(
        self, table: TrainingTable, seed: int
    ) -> tuple[TrainingTable, TrainingTable | None]:
        """Split calibration rows off the table if there is a guarantee."""
        if self.guarantee is None:
            return table, None
        table, calibration = split_calibration_rows(table, self.guarantee, seed)
        self._check_guarantee(calibration.y, calibration.splitter)
        return table, calibration

    def _check_guarantee(self, truth: NDArray[np.int64], splitter: RowSplitter) -> None:
        """Raise InputError if calibration rows of classes `truth` cannot certify the guarantee."""
        if self.guarantee is not None:
            bounds = self.class_bounds_
            promise = Promise.from_bounds(self.guarantee, by_class=bounds, **self._goal())
            promise.check_rows(truth, splitter)

    def _make_problem(
        self,
        table: TrainingTable,
        calibration: TrainingTable | None,
        seed: int,
        report_progress: Progress,
    ) -> FitProblem:
        """Split the rows into folds, and the columns between the stages and the cloud."""
        split = ValidationSplit.choose(
            table.x,
            table.y,
            table.weight,
            validation=table.validation,
            seed=seed,
            splitter=table.splitter,
        )
        if self.class_weights_ is not None:
            split = split.with_class_weights(self.class_weights_)
        stage_columns, cloud_columns = self._stage_and_cloud_columns()
        cloud_calibration = None
        if calibration is not None:
            cloud_calibration = calibration.x[:, cloud_columns]
            calibration = replace(calibration, x=calibration.x[:, stage_columns])
        costs = (
            self.signal_input_.graph.costs() if self._cloud_reads_windows else self.feature_costs_
        )
        return FitProblem(
            split=split.with_columns(stage_columns),
            cloud_split=split.with_columns(cloud_columns),
            n_classes=len(table.classes),
            costs=costs,
            seed=seed,
            report_progress=report_progress,
            calibration=calibration,
            cloud_calibration=cloud_calibration,
        )

    def _set_high_cost_model(self, problem: FitProblem) -> None:
        """Set the high-cost model, with its features numbered among all columns."""
        self.high_cost_model_ = None
        if problem.high_cost is not None:
            first_column = self._stage_and_cloud_columns()[1].start or 0
            self.high_cost_model_ = problem.high_cost.model.shifted(first_column)

    # -- bounds on candidates ------------------------------------------------------------------

    def _split_by_cost(self, candidates: Sequence[FittedStages]) -> Sequence[FittedStages]:
        """Split candidates into parts in which no instance costs more than `max_instance_cost`."""
        max_cost = self.max_instance_cost
        if max_cost is None:
            return candidates
        affordable_candidates: list[FittedStages] = []
        lowest_cap = math.inf
        for candidate in candidates:
            n_stages = len(candidate.stages)
            exit_limits = partial(self._exit_limits_of_part, candidate.stages)
            lowest_cap = min(
                lowest_cap,
                *(float(exit_limits([stage_number])[0]) for stage_number in range(n_stages)),
            )
            affordable_candidates += map(
                candidate.select_stages, stages_within_cost(exit_limits, n_stages, max_cost)
            )
        if not affordable_candidates:
            raise cost_too_low(max_cost, lowest_cap)
        return list({candidate.stages: candidate for candidate in affordable_candidates}.values())

    def _exit_limits_of_part(
        self, stages: Sequence[Stage], stage_numbers: Sequence[int]
    ) -> NDArray[np.float64]:
        """Get the largest cost at each exit of a cascade of some of the stages."""
        return self._exit_limits([stages[stage_number] for stage_number in stage_numbers])

    def _split_by_bytes(
        self, problem: FitProblem, candidates: Sequence[FittedStages]
    ) -> Sequence[FittedStages]:
        """Split candidates into parts that take at most `max_bytes` on a device."""
        max_bytes = self.max_bytes
        if max_bytes is None:
            return candidates
        records = self._record_validation(problem, candidates)
        small_candidates = [
            candidate.select_stages(stage_numbers)
            for candidate, record in zip(candidates, records, strict=True)
            for stage_numbers in stages_within_bytes(record, max_bytes)
        ]
        if not small_candidates:
            smallest_bytes = min(
                record.packed_sizes.bytes_on_device(())
                for record in records
                if record.packed_sizes is not None
            )
            raise TooLargeError("no stage", max_bytes, smallest_bytes, "allow more")
        return list({candidate.stages: candidate for candidate in small_candidates}.values())

    # -- operating points ----------------------------------------------------------------------

    def _find_frontier(self, problem: FitProblem, candidates: Sequence[FittedStages]) -> None:
        """Tune the thresholds of all candidates; keep the candidates on the frontier."""
        records = self._record_validation(problem, candidates)
        bounds = self.class_bounds_
        rows = problem.split.validation_rows
        weights = problem.split.row_weight[rows]
        y = problem.split.y[rows]
        # tune for accuracy and, for rare or bounded classes, under other weights
        class_shares = np.bincount(y, weights, minlength=problem.n_classes) / weights.sum()
        extra_class_weights = tuning_class_weights(class_shares, bounds)
        points = self._tune_points(
            records, seed=problem.seed, extra_class_weights=extra_class_weights
        )
        frontier = Frontier.from_points(points, **self._make_reference_fields(records[-1]))
        # add points with good rates by class, with small stages, or with low offload rates
        if extra_class_weights:
            frontier = frontier.with_class_points(points, bounds)
        if self.max_bytes is not None:
            frontier = frontier.with_small_points(points)
        if problem.high_cost is not None:
            frontier = frontier.with_less_offload(points)
        max_loss = self._goal().get("max_loss", MAX_LOSS)
        frontier = with_group_errors(frontier, points, records, max_loss)
        # with a guarantee, `at` may certify a point of a candidate that is not on the frontier
        self._set_frontier(
            [candidate.stages for candidate in candidates],
            frontier,
            keeps_all=self.guarantee is not None,
        )
        self.calibration_ = None
        if self.guarantee is not None:
            self.calibration_ = CalibrationRecords(
                tuning_records=tuple(records),
                certifying_records=tuple(self._record_calibration(problem, candidates)),
                confidence=self.guarantee,
            )

    def _tune_points(
        self, records: Sequence[CascadeRecord], **settings: Any
    ) -> list[OperatingPoint]:
        """Tune the thresholds of candidates within `max_instance_cost`; list their points."""
        max_cost = self.max_instance_cost
        points = [
            point
            for candidate_index, record in enumerate(records)
            for point in frontier_points(
                record.within_cost(max_cost), chain=candidate_index, **settings
            )
        ]
        return points if max_cost is None else points_within_cost(points, max_cost)


def split_calibration_rows(
    table: TrainingTable, confidence: float, seed: int
) -> tuple[TrainingTable, TrainingTable]:
    """Split calibration rows off the user's validation rows, or else off the training rows."""
    if not 0 < confidence < 1:
        raise InputError(f"guarantee must be between 0 and 1, not {confidence}")
    if np.ptp(table.weight) > 0:
        raise InputError("a guarantee needs rows of equal weight, because its tests count rows")
    n = len(table.x)
    if table.validation is None:
        # a fifth of the training rows
        splitter = table.splitter.take(np.arange(n))
        other_rows, calibration_rows = splitter.hold_out(table.y, N_TRAINING_PARTS, seed)
        training_table = table.take(other_rows)
        calibration_table = table.take(calibration_rows)
    else:
        # half of the user's validation rows
        x, y = table.validation
        splitter = table.splitter.take(n + np.arange(len(x)))
        other_rows, calibration_rows = splitter.hold_out(y, 2, seed)
        all_rows = table.splitter.take(np.concatenate([np.arange(n), n + other_rows]))
        training_table = replace(
            table, validation=(x[other_rows], y[other_rows]), splitter=all_rows
        )
        calibration_table = replace(
            table,
            x=x[calibration_rows],
            y=y[calibration_rows],
            validation=None,
            high_cost_probabilities=None,
            splitter=splitter.take(calibration_rows),
        )
    if len(np.unique(training_table.y)) < len(table.classes) or not len(calibration_rows):
        raise InputError("too few rows to set some aside for a guarantee; give more data")
    return training_table, replace(calibration_table, weight=np.ones(len(calibration_rows)))
