"""The fit of budgeted classifiers: from rows to fitted stages, thresholds and the frontier.

:meth:`ClassifierFit._fit_rows` lists the steps. Each method implements `_fit_candidates`, which
fits candidate cascades (:class:`.FittedStages`) for a :class:`.Problem`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple, Self

import msgspec
import numpy as np
from numpy.typing import NDArray
from sklearn.utils import check_random_state
from threadpoolctl import threadpool_limits

from gatewise.acquisition import AcquiredMask
from gatewise.console import Progress, progress
from gatewise.costs import CloudPrices
from gatewise.decision import labels, probabilities, split_outputs
from gatewise.errors import TooLargeError
from gatewise.models.stage import Stage
from gatewise.operating_point import OperatingPoint
from gatewise_training.cascades.budgeted_model import MAX_LOSS, BudgetedModel
from gatewise_training.cascades.fit_problem import FittedStages, Problem, features_acquired_by
from gatewise_training.data.calibration_rows import split_calibration_rows
from gatewise_training.data.input_checks import FitArguments, Table, check_training
from gatewise_training.data.neighbouring_rows import warn_of_similar_neighbours
from gatewise_training.data.row_splitter import RowSplitter
from gatewise_training.data.validation_split import ValidationSplit
from gatewise_training.learners.high_cost_model import HighCostModel
from gatewise_training.operating_points.candidate_points import CalibrationRecords
from gatewise_training.operating_points.cascade_parts import stages_within_bytes, stages_within_cost
from gatewise_training.operating_points.cascade_record import CascadeRecord
from gatewise_training.operating_points.class_figures import (
    ClassBounds,
    ExitAnswers,
    class_weights,
    tuning_class_weights,
)
from gatewise_training.operating_points.cost_cap import cost_too_low, points_within_cost
from gatewise_training.operating_points.frontier import Frontier
from gatewise_training.operating_points.group_losses import with_group_errors
from gatewise_training.operating_points.guarantee import Promise
from gatewise_training.operating_points.packed_size import packed_sizes
from gatewise_training.operating_points.recall_check import warn_of_recall
from gatewise_training.operating_points.thresholds import frontier_points


class LabelledRows(NamedTuple):
    """Rows that a cascade is measured on."""

    y: NDArray[np.int64]  # (n,): class indices
    weight: NDArray[np.float64]  # (n,)
    reference_labels: NDArray[np.int64]  # (n,): answers of the high-cost model or the last stage
    splitter: RowSplitter
    reference_probabilities: NDArray[np.float64] | None = None  # (n, n_classes), of the same model


class ClassifierFit(BudgetedModel):
    """Steps of the fit of a classifier: rows, candidates, thresholds, frontier."""

    # defaults of settings that some methods do not have
    high_cost_model: Any = None
    cloud_prices: CloudPrices | None = None
    min_recall: Mapping[Any, float] | None = None
    min_precision: Mapping[Any, float] | None = None
    class_weight: Mapping[Any, float] | Literal["balanced"] | None = None
    guarantee: float | None = None
    max_bytes: int | None = None
    max_instance_cost: float | None = None

    _high_cost_model: Any  # the setting; a booster is wrapped as a classifier
    classes_: NDArray[Any]
    high_cost_model_: HighCostModel | None
    calibration_: CalibrationRecords | None
    class_weights_: NDArray[np.float64] | None
    class_bounds_: ClassBounds
    max_bytes_: int | None = None

    # -- steps of a method ---------------------------------------------------------------------

    def _fit_candidates(self, problem: Problem) -> Sequence[FittedStages]:
        """Fit the method's candidate cascades, the unpenalised one last."""
        raise NotImplementedError

    def _with_high_cost_model(self, problem: Problem, table: Table) -> Problem:
        """Get the problem with a high-cost model and its answers, if the method has one."""
        return problem

    def _keep_candidates(self, candidates: Sequence[FittedStages]) -> None:
        """Keep what a method needs of the candidates, in addition to their stages."""

    def _activate(self, point: OperatingPoint) -> None:
        """Make a point the active one."""
        raise NotImplementedError

    # -- all steps -----------------------------------------------------------------------------

    def _fit_rows(self, rows: FitArguments) -> Self:
        """Fit all models and find the frontier."""
        self._check_settings()
        table = self._read_table(rows)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        table, calibration = self._set_calibration_rows_aside(table, seed)
        # one thread per fit, because more threads would wait for each other; joblib runs fits in
        # parallel
        with threadpool_limits(1), progress(f"fit {type(self).__name__}") as report:
            problem = self._pose_problem(table, calibration, seed, report)
            problem = self._with_high_cost_model(problem, table)
            self._set_high_cost_model(problem)
            candidates = self._fit_candidates(problem)
            candidates = self._split_by_cost(candidates)
            candidates = self._split_by_bytes(problem, candidates)
            report(1, 1, "thresholds")
            self._find_frontier(problem, candidates)
            self._keep_candidates(candidates)
            self._activate(self._choose_by_settings())
        warn_of_recall(self)
        return self

    # -- rows ----------------------------------------------------------------------------------

    def _read_table(self, rows: FitArguments) -> Table:
        """Check the rows, and set the classes, prices and bounds of the system."""
        self._read_blocks(rows.X)
        table = check_training(
            self,
            rows.X,
            rows.y,
            rows.sample_weight,
            rows.validation,
            high_cost_predictions=rows.high_cost_predictions,
            groups=rows.groups,
            time=rows.time,
        )
        if table.validation is None and table.splitter.is_random:
            stage_columns, _ = self._read_columns()
            warn_of_similar_neighbours(table.x[:, stage_columns], table.y, stacklevel=4)
        self.classes_ = table.classes
        self._measure_ranges(table.x, rows.X)
        self._check_costs()
        self._read_bounds()
        self.class_weights_ = class_weights(self.class_weight, table.y, table.classes)
        cloud_prices = self.cloud_prices or CloudPrices()
        if self._reads_windows:
            item_size = np.dtype(self.signal_input_.dtype).itemsize
            cloud_prices = msgspec.structs.replace(cloud_prices, item_size=item_size)
        self.cloud_prices_ = cloud_prices
        return table

    def _read_columns(self) -> tuple[slice, slice]:
        """Get the columns of the stages and the columns of the high-cost model."""
        if not self._reads_windows:
            return slice(None), slice(None)
        n_features = len(self.signal_input_.graph.feature_names)
        return slice(n_features), slice(n_features, None)

    def _read_bounds(self) -> None:
        """Set the bounds on bytes, on an instance's cost and on classes from the settings."""
        self.max_bytes_ = self.max_bytes
        self.max_instance_cost_ = self.max_instance_cost
        self.class_bounds_ = ClassBounds.from_mappings(
            self.classes_.tolist(), self.min_recall, self.min_precision, self._split_max_loss()[1]
        )

    def _set_calibration_rows_aside(self, table: Table, seed: int) -> tuple[Table, Table | None]:
        """Set calibration rows aside if there is a guarantee."""
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

    def _pose_problem(
        self, table: Table, calibration: Table | None, seed: int, report: Progress
    ) -> Problem:
        """Split the rows into folds, and the columns into those of the stages and of the cloud."""
        plan = ValidationSplit.choose(
            table.x,
            table.y,
            table.weight,
            validation=table.validation,
            seed=seed,
            splitter=table.splitter,
        )
        if self.class_weights_ is not None:
            plan = plan.with_class_weights(self.class_weights_)
        stage_columns, cloud_columns = self._read_columns()
        cloud_calibration = None
        if calibration is not None:
            cloud_calibration = calibration.x[:, cloud_columns]
            calibration = replace(calibration, x=calibration.x[:, stage_columns])
        costs = self.signal_input_.graph.costs() if self._reads_windows else self.feature_costs_
        return Problem(
            plan=plan.with_columns(stage_columns),
            cloud_plan=plan.with_columns(cloud_columns),
            n_classes=len(table.classes),
            costs=costs,
            seed=seed,
            report=report,
            calibration=calibration,
            cloud_calibration=cloud_calibration,
        )

    def _set_high_cost_model(self, problem: Problem) -> None:
        """Set the high-cost model, with its features numbered among all columns."""
        self.high_cost_model_ = None
        if problem.high_cost is not None:
            first_column = self._read_columns()[1].start or 0
            self.high_cost_model_ = problem.high_cost.model.shifted(first_column)

    # -- records -------------------------------------------------------------------------------

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
            nbytes=tuple(stage.nbytes for stage in stages),
            packed_sizes=packed_sizes(stages),
            class_weights=None if class_weights is None else class_weights[rows.y],
            answers=ExitAnswers.from_probabilities(
                rows.y,
                labels_by_exit,
                len(self.classes_),
                [*stage_probabilities, rows.reference_probabilities],
            ),
            splitter=rows.splitter,
        )

    def _record_validation(
        self, problem: Problem, candidates: Sequence[FittedStages]
    ) -> list[CascadeRecord]:
        """Record the candidates on the validation rows.

        Without a cloud, the reference is the last stage of the last candidate.
        """
        plan = problem.plan
        rows = plan.validation_rows
        y = plan.y[rows]
        weights = self._get_row_weights(plan)
        splitter = plan.splitter.take(rows)
        if problem.high_cost is not None:
            high_cost = problem.high_cost
            labelled_rows = LabelledRows(
                y, weights, high_cost.labels, splitter, high_cost.probabilities
            )
        else:
            last_candidate = candidates[-1]
            reference_labels = labels(
                split_outputs(last_candidate.outputs[-1], last_candidate.stages[-1].score)[0]
            )
            labelled_rows = LabelledRows(y, weights, reference_labels, splitter)
        x = plan.x[rows]
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
                costs = (
                    record.exit_costs.reshape(len(record.exit_costs), -1)
                    + candidate.evaluation_costs
                )
                record = replace(record, exit_costs=costs)
            records.append(record)
        return records

    def _get_row_weights(self, plan: ValidationSplit) -> NDArray[np.float64]:
        """Get the weights of the validation rows for costs and rates, without class weights."""
        rows = plan.validation_rows
        weights = plan.weight[rows]
        if self.class_weights_ is None:
            return weights
        unweighted: NDArray[np.float64] = weights / self.class_weights_[plan.y[rows]]
        return unweighted

    def _record_calibration(
        self, problem: Problem, candidates: Sequence[FittedStages]
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

            def exit_limits(
                stage_numbers: Sequence[int], stages: Sequence[Stage] = candidate.stages
            ) -> NDArray[np.float64]:
                return self._exit_limits([stages[stage_number] for stage_number in stage_numbers])

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

    def _split_by_bytes(
        self, problem: Problem, candidates: Sequence[FittedStages]
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

    def _find_frontier(self, problem: Problem, candidates: Sequence[FittedStages]) -> None:
        """Tune the thresholds of all candidates; keep the candidates on the frontier."""
        records = self._record_validation(problem, candidates)
        bounds = self.class_bounds_
        weights = self._get_row_weights(problem.plan)
        y = problem.plan.y[problem.plan.validation_rows]
        # tune for accuracy and, for rare or bounded classes, under other weights
        class_shares = np.bincount(y, weights, minlength=problem.n_classes) / weights.sum()
        extra_class_weights = tuning_class_weights(class_shares, bounds)
        points = self._tune_points(
            records, seed=problem.seed, extra_class_weights=extra_class_weights
        )
        frontier = Frontier.from_points(points, **self._make_reference_fields(records[-1]))
        # add points that serve classes, small devices or low offload rates
        if extra_class_weights:
            frontier = frontier.with_class_points(points, bounds)
        if self.max_bytes is not None:
            frontier = frontier.with_small_points(points)
        if problem.high_cost is not None:
            frontier = frontier.with_less_offload(points)
        max_loss = self._goal().get("max_loss", MAX_LOSS)
        frontier = with_group_errors(frontier, points, records, max_loss)
        # with a guarantee, any candidate may be needed later
        is_certified = self.guarantee is not None
        self._set_frontier(
            [candidate.stages for candidate in candidates], frontier, keeps_all=is_certified
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
            for chain, record in enumerate(records)
            for point in frontier_points(record.within_cost(max_cost), chain=chain, **settings)
        ]
        return points if max_cost is None else points_within_cost(points, max_cost)

    def _make_reference_fields(self, record: CascadeRecord) -> dict[str, Any]:
        """Get a frontier's fields about the classes and the reference, the record's last exit."""
        answers = record.answers
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
