"""What all budgeted classifiers share: fit, frontier, operating points, prediction, cost.

A method fits candidate cascades (:class:`.FittedStages`); thresholds, frontier, operating points
and prediction are found here, in the shape of a scikit-learn classifier.
:class:`.CascadeClassifier` adds the high-cost model behind the stages.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted
from threadpoolctl import threadpool_limits

from gatewise.acquisition import Acquired, at_exits, exit_costs
from gatewise.console import progress
from gatewise.costs import CloudPrices, FeatureCosts
from gatewise.decision import exit_stages, labels, probabilities, split
from gatewise.errors import InputError
from gatewise.models.stage import Stage
from gatewise.tiers import Tier
from gatewise_training.cascades.fit_problem import FittedStages, Problem
from gatewise_training.data.input_checks import (
    Table,
    check_costs,
    check_rows,
    check_training,
    feature_names,
)
from gatewise_training.data.validation_split import ValidationSplit, hold_back
from gatewise_training.learners.high_cost_model import HighCostModel
from gatewise_training.operating_points.candidate_points import CalibrationRecords
from gatewise_training.operating_points.frontier import SLACK, Frontier, OperatingPoint
from gatewise_training.operating_points.thresholds import CascadeRecord, frontier_points

__all__ = ["BudgetedClassifier"]

MAX_LOSS = 0.01


class BudgetedClassifier(ClassifierMixin, BaseEstimator, ABC):
    """Base of the budgeted classifiers.

    Attributes
    ----------
    classes_ : ndarray, shape (n_classes,)
    n_features_in_ : int
    feature_names_ : tuple of str
        Column names, x0, x1, ... where the table had none.
    feature_costs_ : FeatureCosts
    cloud_prices_ : CloudPrices
    high_cost_model_ : HighCostModel or None
    chains_ : tuple of tuple of Stage
        The stages of each candidate cascade that is on the frontier.
    frontier_ : Frontier
        Operating points, measured on validation rows.
    operating_point_ : OperatingPoint
        The active one.
    calibration_ : CalibrationRecords or None
        Records of the calibration rows, where a guarantee was asked for.
    """

    feature_costs: FeatureCosts | None
    budget: float | None
    max_loss: float | None
    allow_missing: bool
    random_state: Any
    n_jobs: int | None
    verbose: int
    high_cost_model_: HighCostModel | None

    _cross_fits = True  # whether a fit is cheap enough to be done five times on small data

    @abstractmethod
    def _fit_candidates(self, problem: Problem) -> Sequence[FittedStages]:
        """Fit the method's candidate cascades, the unpenalised one last."""

    # -- fit -------------------------------------------------------------------------------

    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        *,
        validation: tuple[ArrayLike, ArrayLike] | None = None,
    ) -> Self:
        """Fit all models and find the whole frontier.

        Shapes: `X` (n, n_features), `y` (n,), `sample_weight` (n,).
        """
        self._check_settings()
        table = check_training(
            self, X, y, sample_weight, validation, allow_missing=self.allow_missing
        )
        self.classes_ = table.classes
        self.feature_names_ = feature_names(self)
        self.feature_costs_ = check_costs(
            self.feature_costs, self.feature_names_, hasattr(self, "feature_names_in_")
        )
        self.cloud_prices_ = getattr(self, "cloud_prices", None) or CloudPrices()
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        confidence: float | None = getattr(self, "guarantee", None)
        calibration = None
        if confidence is not None:
            table, calibration = hold_back(table, confidence, seed)
        plan = ValidationSplit.choose(
            table.x,
            table.y,
            table.weight,
            validation=table.validation,
            seed=seed,
            cross=self._cross_fits,
        )
        title = f"fit {type(self).__name__}"
        # one thread a fit: more would mostly wait for each other, n_jobs is what spreads work
        with threadpool_limits(1), progress(title, quiet=not self.verbose) as report:
            problem = Problem(
                plan, len(table.classes), self.feature_costs_, seed, self.n_jobs, report
            )
            problem = self._with_high_cost_model(problem)
            self.high_cost_model_ = problem.high_cost_model
            candidates = self._fit_candidates(problem)
            report(1, 1, "thresholds")
            self._settle(problem, candidates, calibration)
        return self

    def _with_high_cost_model(self, problem: Problem) -> Problem:
        return problem

    def _settle(
        self, problem: Problem, candidates: Sequence[FittedStages], calibration: Table | None
    ) -> None:
        """Tune the thresholds of every candidate; keep those that reach the frontier."""
        plan, f0 = problem.plan, problem.high_cost_model
        rows = plan.validation_rows
        x, y, weight, reference = (
            plan.x[rows], plan.y[rows], plan.weight[rows], problem.high_cost_labels
        )  # fmt: skip
        if reference is None:  # without a high-cost model, the last candidate's last stage
            final = candidates[-1]
            reference = labels(split(final.outputs[-1], final.stages[-1].score)[0])
        records = [
            self._record(c.stages, c.outputs, c.acquired_on(x), y, weight, reference)
            for c in candidates
        ]
        points = [
            point
            for number, record in enumerate(records)
            for point in frontier_points(record, chain=number, seed=problem.seed)
        ]
        last = records[-1]
        accuracy = float(np.average(last.correct[-1], weights=last.weights))
        frontier = Frontier.from_points(points, reference_accuracy=accuracy)
        kept = sorted({p.chain for p in frontier.points})
        self.calibration_ = None
        if calibration is not None:
            kept = list(range(len(candidates)))  # certifying may come to need any of them
            x, y, weight = calibration.x, calibration.y, calibration.weight
            reference = labels(candidates[-1].stages[-1].run(x)[0]) if f0 is None else f0.labels(x)
            unseen = []
            for candidate in candidates:
                stages = candidate.stages
                outputs = [s.margins(x) for s in stages]
                acquired = [s.acquired(x) for s in stages]
                unseen.append(self._record(stages, outputs, acquired, y, weight, reference))
            self.calibration_ = CalibrationRecords(tuple(records), tuple(unseen), self.guarantee)
        self.chains_ = tuple(candidates[c].stages for c in kept)
        renumbered = tuple(replace(p, chain=kept.index(p.chain)) for p in frontier.points)
        self.frontier_ = replace(frontier, points=renumbered)
        self.operating_point_ = self._pick()

    def _record(
        self,
        stages: Sequence[Stage],
        outputs: Sequence[NDArray[np.float32]],
        acquired: Sequence[Acquired],
        y: NDArray[np.int64],
        weight: NDArray[np.float64],
        reference: NDArray[np.int64],
    ) -> CascadeRecord:
        """Record what stages do on labelled rows, beside the reference's class indices."""
        parts = [split(out, stage.score) for stage, out in zip(stages, outputs, strict=True)]
        answers = [*(labels(margins) for margins, _ in parts), reference]
        tiers = [stage.tier for stage in stages]
        limits = [s.at_most(self.n_features_in_) for s in stages]
        return CascadeRecord(
            scores=np.stack([score for _, score in parts]),
            correct=np.stack([answer == y for answer in answers]).astype(np.float64),
            agrees=np.stack([answer == reference for answer in answers]),
            exit_costs=self._exit_costs(acquired, tiers=tiers),
            cost_limits=self._exit_costs(limits, tiers=tiers),
            weights=weight / weight.mean(),
            has_cloud=self.high_cost_model_ is not None,
            trees=tuple(stage.n_trees if stage.on_device else 0 for stage in stages),
            nbytes=tuple(stage.nbytes if stage.on_device else 0 for stage in stages),
        )

    def _check_settings(self) -> None:
        for name in ("budget", "max_loss", "offload_rate"):
            value = getattr(self, name, None)
            if value is not None and not (np.isfinite(value) and value >= 0):
                raise InputError(f"{name} must be a number of at least 0, not {value!r}")

    def _pick(self) -> OperatingPoint:
        if self.budget is not None:
            return self._choose(budget=self.budget)
        return self._choose(max_loss=MAX_LOSS if self.max_loss is None else self.max_loss)

    def _choose(self, **wanted: float | None) -> OperatingPoint:
        """Take a point of the frontier, or with a guarantee a certified one."""
        if self.calibration_ is None:
            return self.frontier_.at(**wanted, slack=SLACK)
        return self.calibration_.certify(self.frontier_, **wanted)

    def _exit_costs(
        self,
        acquired: Sequence[Acquired],
        accounting: str = "union",
        *,
        tiers: Sequence[Tier] = (),
    ) -> NDArray[np.float64]:
        """Cost of leaving at each stage and, last, of leaving none."""
        return exit_costs(self.feature_costs_, acquired)

    # -- the fitted system -----------------------------------------------------------------

    @property
    def stages_(self) -> tuple[Stage, ...]:
        """Stages of the active operating point."""
        check_is_fitted(self, "operating_point_")
        return self.chains_[self.operating_point_.chain]

    @property
    def operating_points_(self) -> tuple[OperatingPoint, ...]:
        """The frontier's points and, if it is none of them, the active one; by cost."""
        check_is_fitted(self, "operating_point_")
        points = set(self.frontier_.points) | {self.operating_point_}
        return tuple(sorted(points, key=lambda p: (p.cost, p.accuracy)))

    @property
    def missing_(self) -> dict[str, Literal["allowed", "refused"]]:
        """Whether NaN is a value to the stages and to the high-cost model."""
        check_is_fitted(self, "operating_point_")
        word: Literal["allowed", "refused"] = "allowed" if self.allow_missing else "refused"
        return {"stages": word, "cloud": word}

    def exit_stage(self, X: ArrayLike) -> NDArray[np.int64]:
        """Stage at which each row is answered, shape (n,); the number of stages: offloaded."""
        return self._route(self._rows(X))[0]

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Labels, shape (n,): of the stage that answers, or of the high-cost model."""
        x = self._rows(X)
        exits, outputs = self._route(x)
        index = np.zeros(len(x), np.int64)
        for s, stage in enumerate(self.stages_):
            index[exits == s] = labels(split(outputs[s][exits == s], stage.score)[0])
        sent = exits == len(self.stages_)
        if self.high_cost_model_ is not None and sent.any():
            index[sent] = self.high_cost_model_.labels(x[sent])
        return self.classes_[index]

    def predict_proba(self, X: ArrayLike) -> NDArray[np.float64]:
        """Class probabilities of the model that answers, shape (n, n_classes)."""
        x = self._rows(X)
        exits, outputs = self._route(x)
        proba = np.zeros((len(x), len(self.classes_)))
        for s, stage in enumerate(self.stages_):
            here = exits == s
            proba[here] = probabilities(split(outputs[s][here], stage.score)[0], stage.link)
        sent = exits == len(self.stages_)
        if self.high_cost_model_ is not None and sent.any():
            proba[sent] = self.high_cost_model_.predict_proba(x[sent])
        return proba

    def cost(
        self, X: ArrayLike, accounting: Literal["union", "paper"] = "union"
    ) -> NDArray[np.float64]:
        """Cost of each row, in the unit of the feature costs.

        Shapes: `X` (n, n_features); returns (n,).
        """
        if accounting not in ("union", "paper"):
            raise InputError(f"accounting must be 'union' or 'paper', not {accounting!r}")
        x = self._rows(X)
        acquired = [stage.acquired(x) for stage in self.stages_]
        tiers = [stage.tier for stage in self.stages_]
        return at_exits(self._exit_costs(acquired, accounting, tiers=tiers), self._route(x)[0])

    def at(self, *, budget: float | None = None, max_loss: float | None = None) -> Self:
        """Get the same fitted models at another operating point; nothing is refitted."""
        return self._moved(budget=budget, max_loss=max_loss)

    def _moved(self, **wanted: float | None) -> Self:
        check_is_fitted(self, "operating_point_")
        other = copy.copy(self)
        other.operating_point_ = self._choose(**wanted)
        return other

    def _rows(self, X: ArrayLike) -> NDArray[np.float32]:
        check_is_fitted(self, "operating_point_")
        rows: NDArray[np.float32] = check_rows(self, X, allow_missing=self.allow_missing)
        return rows

    def _route(self, x: NDArray[np.float32]) -> tuple[NDArray[np.int64], list[NDArray[np.float32]]]:
        outputs = [stage.margins(x) for stage in self.stages_]
        scores = [split(o, s.score)[1] for o, s in zip(outputs, self.stages_, strict=True)]
        exits = exit_stages(scores, self.operating_point_.thresholds)
        if self.high_cost_model_ is None:
            exits = np.minimum(exits, len(self.stages_) - 1)
        return exits, outputs

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = self.allow_missing
        return tags
