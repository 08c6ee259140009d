"""The fit of budgeted classifiers: from rows to fitted stages, thresholds and the frontier.

:func:`fit_system` lists the steps. A method adds one: its `_fit_candidates` fits candidate
cascades (:class:`.FittedStages`) for a :class:`.Problem`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils import check_random_state
from threadpoolctl import threadpool_limits

from gatewise.acquisition import Acquired
from gatewise.console import Progress, progress
from gatewise.costs import CloudPrices
from gatewise.decision import labels, probabilities, split
from gatewise.errors import TooLargeError
from gatewise.models.stage import Stage
from gatewise.operating_point import OperatingPoint
from gatewise_training.cascades.budgeted_model import MAX_LOSS
from gatewise_training.cascades.fit_problem import FittedStages, Problem, acquired_by
from gatewise_training.data.calibration_rows import hold_back
from gatewise_training.data.input_checks import Table, Validation, check_training
from gatewise_training.data.neighbouring_rows import warn_of_similar_neighbours
from gatewise_training.data.row_splitter import RowSplitter
from gatewise_training.data.validation_split import ValidationSplit
from gatewise_training.operating_points.candidate_points import CalibrationRecords
from gatewise_training.operating_points.cascade_parts import stages_within, stages_within_cost
from gatewise_training.operating_points.class_figures import (
    ClassBounds,
    ExitAnswers,
    class_weights,
    emphases,
)
from gatewise_training.operating_points.cost_cap import cost_too_low, points_within_cost
from gatewise_training.operating_points.frontier import Frontier
from gatewise_training.operating_points.group_losses import with_group_errors
from gatewise_training.operating_points.guarantee import Promise
from gatewise_training.operating_points.packed_size import packed_sizes
from gatewise_training.operating_points.recall_check import warn_of_recall
from gatewise_training.operating_points.thresholds import CascadeRecord, frontier_points


class GivenRows(NamedTuple):
    """Arguments of a `fit`."""

    X: ArrayLike
    y: ArrayLike
    sample_weight: ArrayLike | None = None
    validation: Validation | None = None
    high_cost_predictions: ArrayLike | None = None
    groups: ArrayLike | None = None
    time: ArrayLike | None = None


class LabelledRows(NamedTuple):
    """Rows that a cascade is measured on.

    Shapes: `y` (n,) class indices, `weight` (n,), `reference` (n,) class indices of the high-cost
    model, or of the last stage; `probabilities` (n, n_classes) of the same model, or None.
    """

    y: NDArray[np.int64]
    weight: NDArray[np.float64]
    reference: NDArray[np.int64]
    probabilities: NDArray[np.float64] | None = None
    splitter: RowSplitter | None = None


def fit_system(system: Any, given: GivenRows) -> None:
    """Fit a budgeted classifier, step by step."""
    system._check_settings()
    table = read_table(system, given)
    seed = int(check_random_state(system.random_state).randint(2**31 - 1))
    table, calibration = set_calibration_rows_aside(system, table, seed)
    # one thread per fit, because more would mostly wait for each other; joblib spreads the work
    with threadpool_limits(1), progress(f"fit {type(system).__name__}") as report:
        problem = pose_problem(system, table, calibration, seed, report)
        problem = system._with_high_cost_model(problem, table)
        set_high_cost_model(system, problem)
        candidates = system._fit_candidates(problem)
        candidates = within_cost(system, candidates)
        candidates = within_bytes(system, problem, candidates)
        report(1, 1, "thresholds")
        find_frontier(system, problem, candidates)
        system._keep_candidates(candidates)
        system._activate(system._pick())
    warn_of_recall(system)


# -- rows ----------------------------------------------------------------------------------


def read_table(system: Any, given: GivenRows) -> Table:
    """Check the rows; set classes, prices and bounds of the system."""
    system._take_blocks(given.X)
    table = check_training(
        system,
        given.X,
        given.y,
        given.sample_weight,
        given.validation,
        high_cost_predictions=given.high_cost_predictions,
        groups=given.groups,
        time=given.time,
    )
    if table.validation is None and table.splitter.is_random:
        stage_columns, _ = read_columns(system)
        warn_of_similar_neighbours(table.x[:, stage_columns], table.y, stacklevel=4)
    system.classes_ = table.classes
    system._measure_ranges(table.x, given.X)
    system._check_costs()
    read_bounds(system)
    system.class_weights_ = class_weights(system.class_weight, table.y, table.classes)
    prices = system.cloud_prices or CloudPrices()
    if system._reads_windows:
        size = np.dtype(system.signal_input_.dtype).itemsize
        prices = msgspec.structs.replace(prices, item_size=size)
    system.cloud_prices_ = prices
    return table


def read_columns(system: Any) -> tuple[slice, slice]:
    """Get the columns of the stages and the columns of the high-cost model."""
    if not system._reads_windows:
        return slice(None), slice(None)
    n_features = len(system.signal_input_.graph.feature_names)
    return slice(n_features), slice(n_features, None)


def read_bounds(system: Any) -> None:
    """Read the settings' bounds on bytes, on an instance's cost and on classes."""
    system.max_bytes_ = system.max_bytes
    system.max_instance_cost_ = system.max_instance_cost
    system.class_bounds_ = ClassBounds.from_mappings(
        system.classes_.tolist(), system.min_recall, system.min_precision, system._losses()[1]
    )


def set_calibration_rows_aside(system: Any, table: Table, seed: int) -> tuple[Table, Table | None]:
    """Set calibration rows aside where a guarantee is wanted."""
    if system.guarantee is None:
        return table, None
    table, calibration = hold_back(table, system.guarantee, seed)
    check_guarantee(system, calibration.y, calibration.splitter)
    return table, calibration


def check_guarantee(system: Any, truth: NDArray[np.int64], splitter: RowSplitter) -> None:
    """Refuse a guarantee that calibration rows of classes `truth` cannot show."""
    if system.guarantee is not None:
        bounds = system.class_bounds_
        promise = Promise.from_bounds(system.guarantee, by_class=bounds, **system._goal())
        promise.check_rows(truth, splitter)


def pose_problem(
    system: Any, table: Table, calibration: Table | None, seed: int, report: Progress
) -> Problem:
    """Split the rows into folds, and the columns between stages and cloud."""
    whole = ValidationSplit.choose(
        table.x,
        table.y,
        table.weight,
        validation=table.validation,
        seed=seed,
        splitter=table.splitter,
    )
    if system.class_weights_ is not None:
        whole = whole.with_class_weights(system.class_weights_)
    stage_columns, cloud_columns = read_columns(system)
    cloud_calibration = None
    if calibration is not None:
        cloud_calibration = calibration.x[:, cloud_columns]
        calibration = replace(calibration, x=calibration.x[:, stage_columns])
    costs = system.signal_input_.graph.costs() if system._reads_windows else system.feature_costs_
    return Problem(
        plan=whole.with_columns(stage_columns),
        cloud_plan=whole.with_columns(cloud_columns),
        n_classes=len(table.classes),
        costs=costs,
        seed=seed,
        report=report,
        calibration=calibration,
        cloud_calibration=cloud_calibration,
    )


def set_high_cost_model(system: Any, problem: Problem) -> None:
    """Keep the high-cost model, its features counted among all columns."""
    system.high_cost_model_ = None
    if problem.high_cost is not None:
        first_column = read_columns(system)[1].start or 0
        system.high_cost_model_ = problem.high_cost.model.shifted(first_column)


# -- records -------------------------------------------------------------------------------


def cascade_record(
    system: Any,
    stages: Sequence[Stage],
    outputs: Sequence[NDArray[np.float32]],
    acquired: Sequence[Acquired],
    rows: LabelledRows,
    offload: Acquired | None = None,
) -> CascadeRecord:
    """Record the scores, right answers and costs of stages on labelled rows."""
    margins_and_scores = [
        split(out, stage.score) for stage, out in zip(stages, outputs, strict=True)
    ]
    answers = [*(labels(margins) for margins, _ in margins_and_scores), rows.reference]
    of_stages = [
        probabilities(margins, stage.link)
        for (margins, _), stage in zip(margins_and_scores, stages, strict=True)
    ]
    weights = system.class_weights_
    return CascadeRecord(
        scores=np.stack([score for _, score in margins_and_scores]),
        correct=np.stack([answer == rows.y for answer in answers]).astype(np.float64),
        agrees=np.stack([answer == rows.reference for answer in answers]),
        exit_costs=system._exit_costs(acquired, offload=offload),
        cost_limits=system._exit_limits(stages),
        weights=rows.weight / rows.weight.mean(),
        has_cloud=system.high_cost_model_ is not None,
        trees=tuple(stage.n_trees for stage in stages),
        nbytes=tuple(stage.nbytes for stage in stages),
        packed=packed_sizes(stages),
        class_weights=None if weights is None else weights[rows.y],
        answers=ExitAnswers.scored(
            rows.y, np.stack(answers), len(system.classes_), [*of_stages, rows.probabilities]
        ),
        given_splitter=rows.splitter,
    )


def validation_records(
    system: Any, problem: Problem, candidates: Sequence[FittedStages]
) -> list[CascadeRecord]:
    """Record the candidates on the validation rows.

    Without a high-cost model the reference is the last stage of the last candidate.
    """
    plan = problem.plan
    rows = plan.validation_rows
    y = plan.y[rows]
    weight = _row_weights(system, plan)
    splitter = plan.splitter.take(rows)
    if problem.high_cost is not None:
        answers = problem.high_cost.labels, problem.high_cost.probabilities
        labelled = LabelledRows(y, weight, *answers, splitter)
    else:
        final = candidates[-1]
        reference = labels(split(final.outputs[-1], final.stages[-1].score)[0])
        labelled = LabelledRows(y, weight, reference, None, splitter)
    x = plan.x[rows]
    n_features = system.n_features_in_
    offload = system._offload_acquired(x)
    records = []
    for c in candidates:
        acquired = c.acquired_on(x, n_features)
        record = cascade_record(system, c.stages, c.outputs, acquired, labelled, offload)
        if c.evaluation is not None:
            costs = record.exit_costs.reshape(len(record.exit_costs), -1) + c.evaluation
            record = replace(record, exit_costs=costs)
        records.append(record)
    return records


def _row_weights(system: Any, plan: ValidationSplit) -> NDArray[np.float64]:
    """Get weights of the validation rows without class weights, for costs and rates."""
    rows = plan.validation_rows
    weight = plan.weight[rows]
    if system.class_weights_ is None:
        return weight
    unweighted: NDArray[np.float64] = weight / system.class_weights_[plan.y[rows]]
    return unweighted


def calibration_records(
    system: Any, problem: Problem, candidates: Sequence[FittedStages]
) -> list[CascadeRecord]:
    """Record the stages of the candidates on the calibration rows."""
    table = problem.calibration
    assert table is not None
    x = table.x
    high_cost = problem.high_cost
    # the reference: the last stage, the user's predictions, or the high-cost model
    chances = None
    if high_cost is None:
        reference = labels(candidates[-1].stages[-1].run(x)[0])
    elif high_cost.calibration_labels is not None:
        reference = high_cost.calibration_labels
    else:
        assert problem.cloud_calibration is not None
        reference, chances = high_cost.model.answers(problem.cloud_calibration)
    labelled = LabelledRows(table.y, table.weight, reference, chances, table.splitter)
    return [
        cascade_record(
            system,
            candidate.stages,
            [stage.margins(x) for stage in candidate.stages],
            acquired_by(candidate.stages, x, system.n_features_in_),
            labelled,
            system._offload_acquired(x),
        )
        for candidate in candidates
    ]


# -- bounds on candidates ------------------------------------------------------------------


def within_cost(system: Any, candidates: Sequence[FittedStages]) -> Sequence[FittedStages]:
    """Take the parts of the candidates in which no instance costs above `max_instance_cost`."""
    max_cost = system.max_instance_cost
    if max_cost is None:
        return candidates
    affordable: list[FittedStages] = []
    lowest = math.inf
    for candidate in candidates:
        limits = partial(_limits_of_part, system, candidate.stages)
        n_stages = len(candidate.stages)
        lowest = min(lowest, *(float(limits([s])[0]) for s in range(n_stages)))
        affordable += map(candidate.part, stages_within_cost(limits, n_stages, max_cost))
    if not affordable:
        raise cost_too_low(max_cost, lowest)
    return list({candidate.stages: candidate for candidate in affordable}.values())


def _limits_of_part(
    system: Any, stages: Sequence[Stage], numbers: Sequence[int]
) -> NDArray[np.float64]:
    limits: NDArray[np.float64] = system._exit_limits([stages[s] for s in numbers])
    return limits


def within_bytes(
    system: Any, problem: Problem, candidates: Sequence[FittedStages]
) -> Sequence[FittedStages]:
    """Take the parts of the candidates of which a device keeps no more than `max_bytes`."""
    max_bytes = system.max_bytes
    if max_bytes is None:
        return candidates
    records = validation_records(system, problem, candidates)
    small_enough = [
        candidate.part(numbers)
        for candidate, record in zip(candidates, records, strict=True)
        for numbers in stages_within(record, max_bytes)
    ]
    if not small_enough:
        smallest = min(r.packed.kept(()) for r in records if r.packed is not None)
        raise TooLargeError("no stage", max_bytes, smallest, "allow more")
    return list({candidate.stages: candidate for candidate in small_enough}.values())


# -- operating points ----------------------------------------------------------------------


def find_frontier(system: Any, problem: Problem, candidates: Sequence[FittedStages]) -> None:
    """Tune the thresholds of every candidate; keep the candidates that reach the frontier."""
    records = validation_records(system, problem, candidates)
    bounds = system.class_bounds_
    weight = _row_weights(system, problem.plan)
    y = problem.plan.y[problem.plan.validation_rows]
    # tune for accuracy and, for rare or bounded classes, under other weights
    shares = np.bincount(y, weight, minlength=problem.n_classes) / weight.sum()
    emphasis = emphases(shares, bounds)
    points = tuned_points(system, records, seed=problem.seed, emphases=emphasis)
    frontier = Frontier.from_points(points, **reference_fields(system, records[-1]))
    # add points that serve classes, small devices or low offload rates
    if emphasis:
        frontier = frontier.with_others(points, bounds)
    if system.max_bytes is not None:
        frontier = frontier.with_small(points)
    if problem.high_cost is not None:
        frontier = frontier.with_less_offload(points)
    max_loss = system._goal().get("max_loss", MAX_LOSS)
    frontier = with_group_errors(frontier, points, records, max_loss)
    # with a guarantee any of the candidates may be needed later
    certified = problem.calibration is not None
    system._keep([c.stages for c in candidates], frontier, every=certified)
    system.calibration_ = None
    if certified:
        unseen = calibration_records(system, problem, candidates)
        system.calibration_ = CalibrationRecords(tuple(records), tuple(unseen), system.guarantee)


def tuned_points(
    system: Any, records: Sequence[CascadeRecord], **settings: Any
) -> list[OperatingPoint]:
    """Tune the thresholds of candidates within `max_instance_cost`; list their points."""
    max_cost = system.max_instance_cost
    points = [
        point
        for number, record in enumerate(records)
        for point in frontier_points(record.within_cost(max_cost), chain=number, **settings)
    ]
    return points if max_cost is None else points_within_cost(points, max_cost)


def reference_fields(system: Any, record: CascadeRecord) -> dict[str, Any]:
    """Fields of a frontier about the reference, the last exit of a record, and the classes."""
    answers = record.answers
    assert answers is not None
    last_exits = np.full(len(record.weights), record.n_stages)
    return {
        "reference_accuracy": float(np.average(record.correct[-1], weights=record.weights)),
        "classes": tuple(system.classes_.tolist()),
        "class_rows": answers.class_rows(),
        "reference_weighted_accuracy": None if record.class_weights is None else record.merit(),
        "reference_recall": answers.figures(last_exits, record.weights)["recall"],
    }
