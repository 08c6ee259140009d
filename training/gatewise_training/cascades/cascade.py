"""Cascades: stages on the device before a high-cost model in the cloud."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils._param_validation import StrOptions

from gatewise.costs import CloudPrices, CostsLike
from gatewise.errors import InputError, one_line
from gatewise.operating_point import OperatingPoint
from gatewise_signals.blocks.block import Block
from gatewise_training.cascades.base import BudgetedClassifier
from gatewise_training.cascades.fit_problem import Problem
from gatewise_training.cascades.fitting import TrainedClassifier
from gatewise_training.data.input_checks import (
    AT_LEAST_1,
    NOT_NEGATIVE,
    SHARE,
    Constraints,
    Table,
    Validation,
    is_fitted,
)
from gatewise_training.learners.given_models.given_model_check import (
    can_be_cloned,
    memorised,
    unseen_answers,
)
from gatewise_training.learners.given_models.packable import check_packable
from gatewise_training.learners.high_cost_model import HighCostModel, is_given
from gatewise_training.learners.high_cost_training import train_high_cost_model


@dataclass(eq=False, repr=False, kw_only=True)
class CascadeClassifier(BudgetedClassifier):
    """Base of the cascades, with their settings; see :class:`StagedCascade`.

    ``high_cost_model_`` is never None, ``offload`` gives the rows that go to it, and an operating
    point may be picked by `offload_rate`.
    """

    high_cost_model: Any = field(default=None, kw_only=False)
    feature_costs: CostsLike | None = field(default=None, kw_only=False)
    cloud_prices: CloudPrices | None = None
    budget: float | None = None
    max_loss: float | Mapping[Any, float] | None = 0.01
    offload_rate: float | None = None
    min_recall: Mapping[Any, float] | None = None
    min_precision: Mapping[Any, float] | None = None
    class_weight: Mapping[Any, float] | Literal["balanced"] | None = None
    guarantee: float | None = None
    max_bytes: int | None = None
    max_instance_cost: float | None = None
    random_state: Any = None
    n_jobs: int | None = None
    verbose: int = 0

    _parameter_constraints: ClassVar[Constraints] = {
        "max_loss": [SHARE, Mapping, None],
        "max_bytes": [AT_LEAST_1, None],
        "max_instance_cost": [NOT_NEGATIVE, None],
    }

    def _check_settings(self) -> None:
        super()._check_settings()
        if self.budget is not None and self.offload_rate is not None:
            raise InputError("give budget or offload_rate, not both")
        if self.high_cost_model is not None:
            check_packable(self.high_cost_model)

    def _goal(self) -> dict[str, float]:
        if self.offload_rate is not None:
            return {"offload_rate": self.offload_rate}
        return super()._goal()

    def offload(self, X: ArrayLike) -> NDArray[np.bool_]:
        """Which rows go to the high-cost model.

        Parameters
        ----------
        X : array-like of shape (n, n_features)

        Returns
        -------
        ndarray of bool, shape (n,)
        """
        return np.equal(self.exit_stage(X), len(self.stages_))

    def at(
        self,
        *,
        budget: float | None = None,
        max_loss: float | Mapping[Any, float] | None = None,
        offload_rate: float | None = None,
        min_recall: Mapping[Any, float] | None = None,
        min_precision: Mapping[Any, float] | None = None,
        max_bytes: int | None = None,
        max_instance_cost: float | None = None,
    ) -> Self:
        """Get the same fitted models at another operating point; nothing is refitted.

        At most one of `budget`, `max_loss` and `offload_rate`; without, the settings' own.

        Parameters
        ----------
        budget : float, optional
            Mean cost per instance that may be spent, in the unit of the feature costs.
        max_loss : float, or mapping of class label to float, optional
            Accuracy, or recall of classes, that may be lost; one number lifts those by class.
        offload_rate : float, optional
            Share of the instances that may go to the cloud.
        min_recall, min_precision : mapping of class label to float, optional
            In the place of those of the settings; an empty dict lifts them.
        max_bytes : int, optional
            Bytes that a device keeps at most: stages that never stop are then left out.
        max_instance_cost : float, optional
            Only operating points are left at which no instance can cost more.

        Returns
        -------
        estimator
            A copy that shares the models.

        Raises
        ------
        InputError
            If no operating point keeps the bounds, or several of the others are given; of a
            `max_instance_cost` it names the lowest possible.
        TooLargeError
            If none is as small as `max_bytes`; its `smallest` says how small they get.
        """
        bounds = (min_recall, min_precision, max_bytes, max_instance_cost)
        return self._moved_within(
            *bounds, max_loss=max_loss, budget=budget, offload_rate=offload_rate
        )


@dataclass(eq=False, repr=False, kw_only=True)
class TrainedCascade(CascadeClassifier, TrainedClassifier):
    """Base of the cascades that fit their stages, before a given or a fitted high-cost model."""

    _may_have_seen = False  # whether a given high-cost model was possibly fitted on the rows

    blocks: Sequence[Block] | None = None
    high_cost_input: Literal["features", "window"] = "features"

    _parameter_constraints: ClassVar[Constraints] = {
        "high_cost_input": [StrOptions({"features", "window"})],
    }

    def _check_settings(self) -> None:
        super()._check_settings()
        if self.high_cost_input != "features" and self.blocks is None:
            raise InputError(
                f"high_cost_input={self.high_cost_input!r} needs blocks: rows are no windows"
            )

    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        *,
        validation: Validation | None = None,
        high_cost_predictions: ArrayLike | None = None,
        groups: ArrayLike | None = None,
        time: ArrayLike | None = None,
    ) -> Self:
        """Fit all models and find the whole frontier.

        A fitted `high_cost_model` may have seen the rows. With `validation`, rows that it has not
        seen, it is measured there; with `high_cost_predictions` by these; else by clones of it,
        fitted without the rows. What cannot be cloned (an ONNX file, a function, a frozen
        classifier) is compared with models of our own on the same rows, and a warning says if only
        memory explains its accuracy. What stays deployed is always the given model.

        scikit-learn's searches, ``GridSearchCV(...).fit(X, y, groups=g)``, pass groups to their
        splitter alone: in each of their fits rows count as alike.

        Parameters
        ----------
        X : array-like of shape (n, n_features)
            Numbers, taken as float32; with `blocks` windows of shape (n, ...).
        y : array-like of shape (n,)
            Class labels.
        sample_weight : array-like of shape (n,), optional
            What each row counts; 1 by default.
        validation : pair (X_val, y_val), or with groups (X_val, y_val, groups_val), optional
            Validation rows; else part of the rows, or on few rows cross-fitting.
        high_cost_predictions : array-like of shape (n, n_classes), optional
            Out-of-fold probabilities of `high_cost_model`, columns by sorted class.
        groups : array-like of shape (n,), optional
            Subject, machine or recording of each row. Whole groups fit or validate wherever
            anything is chosen, `max_loss` keeps two standard errors between groups in hand, a
            guarantee is about new groups. A `high_cost_model` that makes splits of its own, such as
            a grid search, is given no groups.
        time : array-like of shape (n,), optional
            Numbers or dates: the earlier rows fit and the last fifth validates.

        Returns
        -------
        self

        Raises
        ------
        InputError
            For data, prices, settings or a model that cannot be used; it says which and why.
        """
        return self._fit(
            X, y, sample_weight, validation, high_cost_predictions, groups=groups, time=time
        )

    def _with_high_cost_model(self, problem: Problem, table: Table) -> Problem:
        given = self.high_cost_model
        self._may_have_seen = self._is_given_fitted() and table.validation is None
        if problem.calibration is not None and self._may_have_seen:
            self._check_certified_terms(**self._goal())
        if not self._is_given_fitted():
            if table.high_cost is not None:
                raise InputError(
                    "high_cost_predictions are those of a fitted high_cost_model: give it, too"
                )
            problem.report(0, 1, "high-cost model")
            found = train_high_cost_model(
                problem.plan,
                problem.n_classes,
                template=given,
                names=getattr(self, "feature_names_in_", None),
                allow_missing=self.allow_missing,
                seed=problem.seed,
                n_jobs=self.n_jobs,
                report=lambda what: problem.report(0, 1, what),
            )
            problem = replace(problem, high_cost_model=found.model, tree_shape=found.shape)
            return problem.answered(found.labels, found.probabilities)
        names = getattr(self, "feature_names_in_", None)
        n, shape = problem.plan.x.shape[1], None
        if self.high_cost_input == "window":
            shape = self.signal_input_.shape
        f0 = HighCostModel.given(given, self.classes_, n, names, shape)
        return self._examined(replace(problem, high_cost_model=f0), table)

    def _is_given_fitted(self) -> bool:
        """Whether the high-cost model is given with nothing to fit, and may have seen the rows."""
        given = self.high_cost_model
        return given is not None and (is_given(given) or is_fitted(given))

    def _examined(self, problem: Problem, table: Table) -> Problem:
        """Find out what a given model answers on rows that it has not seen."""
        f0, plan, calibration = problem.high_cost_model, problem.plan, problem.calibration
        assert f0 is not None
        rows, n = plan.validation_rows, len(table.x)
        if table.high_cost is not None:
            chances = table.high_cost
            if table.validation is not None:
                found, of_validation = f0.answers(plan.x[n:])
                chances = np.concatenate([chances, of_validation])
            else:
                found = np.asarray(chances[rows].argmax(axis=1), np.int64)
            aside = None
            if calibration is not None and calibration.high_cost is not None:
                aside = np.asarray(calibration.high_cost.argmax(axis=1), np.int64)
            return problem.answered(found, chances[rows], rows=chances, calibration=aside)
        if table.validation is not None:
            return problem.answered(*f0.answers(plan.x[rows]))
        if can_be_cloned(self.high_cost_model):
            return self._examined_by_clones(problem)
        return self._compared(problem)

    def _examined_by_clones(self, problem: Problem) -> Problem:
        plan, calibration = problem.plan, problem.calibration
        if self.class_weights_ is not None:  # the given model was fitted without them
            plan = replace(plan, weight=plan.weight / self.class_weights_[plan.y])
        try:
            found, chances, aside = unseen_answers(
                plan,
                self.high_cost_model,
                self.classes_,
                None if calibration is None else calibration.x,
                n_jobs=self.n_jobs,
                report=lambda what: problem.report(0, 1, what),
            )
        except Exception as error:  # a fit of the user's classifier may raise anything
            return self._compared(problem, f"clones of it cannot be fitted ({one_line(error)})")
        every = None
        if len(plan.folds) > 1:
            every = np.empty_like(chances)
            every[plan.validation_rows] = chances
        return problem.answered(found, chances, rows=every, calibration=aside)

    def _compared(self, problem: Problem, why: str = "it cannot be cloned") -> Problem:
        """Take the model's own answers; warn if they are better than can be on unseen rows."""
        f0, plan = problem.high_cost_model, problem.plan
        assert f0 is not None
        answers, chances = f0.answers(plan.x)
        found = answers[plan.validation_rows]
        problem.report(0, 1, "reference for high_cost_model")
        excess = memorised(plan, found, allow_missing=self.allow_missing, seed=problem.seed)
        if excess is not None:
            warnings.warn(
                f"high_cost_model is right on {excess[0]:.1%} of these rows, the best of our own "
                f"models, on rows that it has not seen, on {excess[1]:.1%}: it may remember "
                f"them, and {why}. Then all accuracies here are too high, and too little is "
                "answered on the device. Give rows that it has not seen, validation=(X_val, "
                "y_val), or its out-of-fold probabilities, high_cost_predictions=",
                UserWarning,
                stacklevel=6,
            )
        return problem.answered(found, chances[plan.validation_rows], rows=chances)

    def _choose(self, **wanted: float | None) -> OperatingPoint:
        if self.calibration_ is not None and self._may_have_seen:
            self._check_certified_terms(**wanted)
        return super()._choose(**wanted)

    def _check_certified_terms(self, **wanted: float | None) -> None:
        """Refuse terms that the deployed model's answers decide, on rows that it may have seen."""
        if wanted.get("max_loss") is not None or self.class_bounds_:
            raise InputError(
                "guarantee: a fitted high_cost_model may have seen the rows that would certify "
                "max_loss, min_recall or min_precision; give validation=(X_val, y_val) with rows "
                "that it has not seen, give the model unfitted, or bound budget or offload_rate"
            )
