"""Fit of budgeted classifiers: a method's candidates, their thresholds, and the frontier.

A method fits candidate cascades (:class:`.FittedStages`); thresholds and frontier are found here.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, Self

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils import check_random_state
from threadpoolctl import threadpool_limits

from gatewise.console import progress
from gatewise.costs import CloudPrices, CostsLike
from gatewise.decision import labels, split
from gatewise.errors import TooLargeError
from gatewise.models.stage import Stage
from gatewise_training.cascades.base import BudgetedClassifier
from gatewise_training.cascades.budgeted_model import MAX_LOSS
from gatewise_training.cascades.fit_problem import FittedStages, Problem
from gatewise_training.data.input_checks import Table, Validation, check_training
from gatewise_training.data.neighbouring_rows import warn_of_similar_neighbours
from gatewise_training.data.validation_split import ValidationSplit, hold_back
from gatewise_training.operating_points.candidate_points import CalibrationRecords
from gatewise_training.operating_points.cascade_parts import stages_within, stages_within_cost
from gatewise_training.operating_points.class_figures import class_weights, emphases
from gatewise_training.operating_points.frontier import Frontier
from gatewise_training.operating_points.group_losses import with_group_errors
from gatewise_training.operating_points.operating_point import cost_too_low
from gatewise_training.operating_points.recall_check import warn_of_recall
from gatewise_training.operating_points.thresholds import CascadeRecord


class TrainedClassifier(BudgetedClassifier):
    """Base of the budgeted classifiers that fit their stages; see :class:`BudgetedClassifier`."""

    @abstractmethod
    def _fit_candidates(self, problem: Problem) -> Sequence[FittedStages]:
        """Fit the method's candidate cascades, the unpenalised one last."""

    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        *,
        validation: Validation | None = None,
        groups: ArrayLike | None = None,
        time: ArrayLike | None = None,
    ) -> Self:
        """Fit all models and find the whole frontier.

        Parameters
        ----------
        X, y, sample_weight, validation, groups, time
            As for :meth:`StagedCascade.fit`.

        Returns
        -------
        self

        Raises
        ------
        InputError
            For data, prices or settings that cannot be used; it says which and why. If no operating
            point reaches the goal, the fitted models are kept, and :meth:`at` takes another goal.
        """
        return self._fit(X, y, sample_weight, validation, groups=groups, time=time)

    def _fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None,
        validation: Validation | None,
        high_cost_predictions: ArrayLike | None = None,
        *,
        groups: ArrayLike | None,
        time: ArrayLike | None,
    ) -> Self:
        self._check_settings()
        self._take_blocks(X)
        first = None  # column of a raw window's first value
        if hasattr(self, "signal_input_") and self.signal_input_.raw:
            first = len(self.signal_input_.graph.feature_names)
        table = check_training(
            self,
            X,
            y,
            sample_weight,
            validation,
            high_cost_predictions=high_cost_predictions,
            groups=groups,
            time=time,
        )
        if table.validation is None and table.splitter.is_random:
            warn_of_similar_neighbours(table.x[:, :first], table.y, stacklevel=3)
        self.classes_ = table.classes
        self._check_costs()
        self._take_bounds()
        weights = class_weights(self.class_weight, table.y, table.classes)
        self.cloud_prices_ = self.cloud_prices or CloudPrices()
        if first is not None:
            size = np.dtype(self.signal_input_.dtype).itemsize
            self.cloud_prices_ = msgspec.structs.replace(self.cloud_prices_, item_size=size)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        calibration = None
        if self.guarantee is not None:
            table, calibration = hold_back(table, self.guarantee, seed)
            self._check_guarantee(calibration.y, calibration.splitter)
        plan = ValidationSplit.choose(
            table.x, table.y, table.weight,
            validation=table.validation, seed=seed, splitter=table.splitter,
        )  # fmt: skip
        self.class_weights_ = weights
        if weights is not None:
            plan = plan.with_class_weights(weights)
        title = f"fit {type(self).__name__}"
        # one thread a fit: more would mostly wait for each other, n_jobs is what spreads work
        with threadpool_limits(1), progress(title, quiet=not self.verbose) as report:
            costs = self.feature_costs_
            problem = Problem(
                plan, len(table.classes), costs, seed, self.n_jobs, report, calibration
            )
            if first is None:
                problem = of_stages = self._with_high_cost_model(problem, table)
            else:  # stages read the columns before, the high-cost model those from there on
                found = self._with_high_cost_model(problem.of_high_cost_model(first), table)
                problem = problem.with_high_cost_model(found, first)
                of_stages = problem.of_stages(first, self.signal_input_.graph.costs())
            self.high_cost_model_ = problem.high_cost_model
            candidates = self._within_cost(self._fit_candidates(of_stages))
            candidates = self._within_bytes(problem, candidates)
            report(1, 1, "thresholds")
            self._settle(problem, candidates)
        warn_of_recall(self)
        return self

    def _with_high_cost_model(self, problem: Problem, table: Table) -> Problem:
        return problem

    def _weight(self, plan: ValidationSplit, rows: NDArray[np.intp]) -> NDArray[np.float64]:
        """Weights without those of the classes: costs and rates are of the rows as they come."""
        weight = plan.weight[rows]
        return weight if self.class_weights_ is None else weight / self.class_weights_[plan.y[rows]]

    def _candidate_records(
        self, problem: Problem, candidates: Sequence[FittedStages], reference: NDArray[np.int64]
    ) -> list[CascadeRecord]:
        """Record what the candidates do on the validation rows."""
        plan, rows = problem.plan, problem.plan.validation_rows
        x, y, weight = plan.x[rows], plan.y[rows], self._weight(plan, rows)
        splitter = plan.splitter.take(rows)
        return [
            self._record(
                c.stages, c.outputs, c.acquired_on(x), y, weight, reference,
                problem.high_cost_probabilities, splitter,
            )
            for c in candidates
        ]  # fmt: skip

    def _within_cost(self, candidates: Sequence[FittedStages]) -> Sequence[FittedStages]:
        """Take those parts of the candidates with which instances keep `max_instance_cost`."""
        most = self.max_instance_cost
        if most is None:
            return candidates
        parts: list[FittedStages] = []
        lowest = math.inf
        for candidate in candidates:
            limits = partial(self._limits_of_part, candidate.stages)
            n_stages = len(candidate.stages)
            lowest = min(lowest, *(float(limits([s])[0]) for s in range(n_stages)))
            choices = stages_within_cost(limits, n_stages, most)
            parts += map(candidate.part, choices)
        if not parts:
            raise cost_too_low(most, lowest)
        return list({part.stages: part for part in parts}.values())

    def _limits_of_part(self, stages: Sequence[Stage], kept: Sequence[int]) -> NDArray[np.float64]:
        return self._exit_limits([stages[s] for s in kept])

    def _within_bytes(
        self, problem: Problem, candidates: Sequence[FittedStages]
    ) -> Sequence[FittedStages]:
        """Take those parts of the candidates of which a device keeps no more than `max_bytes`."""
        most, reference = self.max_bytes, problem.high_cost_labels
        if most is None or reference is None:
            return candidates
        records = self._candidate_records(problem, candidates, reference)
        parts = [
            candidate.part(kept)
            for candidate, record in zip(candidates, records, strict=True)
            for kept in stages_within(record, most)
        ]
        if not parts:
            smallest = min(r.packed.kept(()) for r in records if r.packed is not None)
            raise TooLargeError("no stage", most, smallest, "allow more")
        return list({part.stages: part for part in parts}.values())

    def _settle(self, problem: Problem, candidates: Sequence[FittedStages]) -> None:
        """Tune the thresholds of every candidate; keep those that reach the frontier."""
        plan, f0, calibration = problem.plan, problem.high_cost_model, problem.calibration
        rows = plan.validation_rows
        y, weight, reference = plan.y[rows], self._weight(plan, rows), problem.high_cost_labels
        if reference is None:  # without a high-cost model, the last candidate's last stage
            final = candidates[-1]
            reference = labels(split(final.outputs[-1], final.stages[-1].score)[0])
        records = self._candidate_records(problem, candidates, reference)
        bounds = self.class_bounds_
        shares = np.bincount(y, weight, minlength=len(self.classes_)) / weight.sum()
        further = emphases(shares, bounds)
        points = self._tuned_points(records, seed=problem.seed, emphases=further)
        frontier = Frontier.from_points(points, **self._reference(records[-1]))
        if further:
            frontier = frontier.with_others(points, bounds)
        if self.max_bytes is not None:
            frontier = frontier.with_small(points)
        if f0 is not None:
            frontier = frontier.with_less_offload(points)
        stages = [candidate.stages for candidate in candidates]
        loss = self._goal().get("max_loss", MAX_LOSS)
        frontier = with_group_errors(frontier, points, records, loss)
        # with a guarantee it may come to need any of the candidates
        self._keep(stages, frontier, every=calibration is not None)
        self.calibration_ = None
        if calibration is not None:
            x, y, weight = calibration.x, calibration.y, calibration.weight
            chances = None
            if f0 is None:
                reference = labels(candidates[-1].stages[-1].run(x)[0])
            elif problem.calibration_labels is not None:
                reference = problem.calibration_labels
            else:
                reference, chances = f0.answers(x)
            unseen = []
            for cascade in stages:
                outputs = [s.margins(x) for s in cascade]
                acquired = [s.acquired(x) for s in cascade]
                record = self._record(
                    cascade, outputs, acquired, y, weight, reference, chances, calibration.splitter
                )
                unseen.append(record)
            assert self.guarantee is not None
            self.calibration_ = CalibrationRecords(tuple(records), tuple(unseen), self.guarantee)
        self._take(self._pick())


@dataclass(eq=False, repr=False, kw_only=True)
class SingleModel(TrainedClassifier):
    """Settings of models without a cloud; see :class:`StagedCascade`."""

    feature_costs: CostsLike | None = field(default=None, kw_only=False)
    budget: float | None = None
    max_loss: float | None = 0.01
    min_recall: Mapping[Any, float] | None = None
    min_precision: Mapping[Any, float] | None = None
    class_weight: Mapping[Any, float] | Literal["balanced"] | None = None
    guarantee: float | None = None
    allow_missing: bool = False
    random_state: Any = None
    n_jobs: int | None = None
    verbose: int = 0
