"""Bases of the budgeted classifiers: operating points, prediction and cost.

:class:`.CascadeClassifier` adds the high-cost model in the cloud.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Self, get_args

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import ClassifierMixin
from sklearn.utils.validation import check_is_fitted

from gatewise.acquisition import select_exit_costs
from gatewise.decision import labels, probabilities, stop_mask
from gatewise.errors import InputError, TooLargeError
from gatewise.models.stage import Stage
from gatewise.operating_point import OperatingPoint
from gatewise_training.cascades.fitting import ClassifierFit
from gatewise_training.data.input_checks import FitArguments, Validation
from gatewise_training.learners.high_cost_model import (
    Accounting,
    acquired_by_high_cost,
    acquired_by_system,
)
from gatewise_training.operating_points.candidate_points import CalibrationRecords
from gatewise_training.operating_points.class_figures import ClassBounds, split_loss
from gatewise_training.operating_points.frontier import Frontier
from gatewise_training.operating_points.packed_size import stages_on_device
from gatewise_training.views.explanation import Explanation, explain


class BudgetedClassifier(ClassifierMixin, ClassifierFit):
    """Base of the budgeted classifiers, with or without a high-cost model in the cloud.

    Attributes
    ----------
    classes_ : ndarray, shape (n_classes,)
    cloud_prices_ : CloudPrices
    high_cost_model_ : HighCostModel or None
    calibration_ : CalibrationRecords or None
        Records of the calibration rows, if there is a guarantee.
    class_weights_ : ndarray, shape (n_classes,), or None
        Weight of a row of each class, if `class_weight` was given.
    class_bounds_, max_bytes_, max_instance_cost_
        Bounds that operating points keep, from the settings or from :meth:`at`.
    """

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
            If data, prices or settings cannot be used; the message says which and why. If no
            operating point reaches the goal, the fitted models are kept, and :meth:`at` accepts
            another goal.
        """
        return self._fit_rows(
            FitArguments(X, y, sample_weight, validation, groups=groups, time=time)
        )

    # -- operating points --------------------------------------------------------------------

    def _reference_frontier(self) -> Frontier:
        """Get the frontier with the reference measured on the same rows as the active point."""
        if self.calibration_ is None:
            return self.frontier_
        fields = self._make_reference_fields(self.calibration_.certifying_records[-1])
        return replace(self.frontier_, **fields)

    def _choose(self, **goal: float | None) -> OperatingPoint:
        """Choose a point of the frontier or, with a guarantee, a certified point."""
        if self.calibration_ is None:
            point, self.choice_ = self.frontier_.choose(
                self.class_bounds_, self.max_bytes_, slack=self.slack_, **goal
            )
            return point
        return self._find_certified_point(self.frontier_, self.calibration_, **goal)

    def _find_certified_point(
        self, frontier: Frontier, calibration: CalibrationRecords, **goal: float | None
    ) -> OperatingPoint:
        """Find a certified point for a goal and the bounds, starting from a frontier."""
        self.choice_ = ""  # a certified point states its guarantee
        max_bytes = self.max_bytes_
        if max_bytes is not None:
            frontier = frontier.within_bytes(max_bytes)
        point = calibration.certify_point(
            frontier, self.class_bounds_, self.max_instance_cost_, **goal
        )
        if max_bytes is not None and point.bytes > max_bytes:
            hint = "allow more, or fit with this max_bytes="
            raise TooLargeError("no certified operating point", max_bytes, point.bytes, hint)
        return point

    def _activate(self, point: OperatingPoint) -> None:
        """Make a point the active one.

        With `max_bytes_`, a device does not store stages at which no instance stops. These stages
        are removed, and the cost of features that only they acquire is subtracted.
        """
        chains = self.chains_[: self._n_chains]
        self.chains_ = chains
        self.operating_point_ = point
        if self.max_bytes_ is None:
            return
        stage_numbers = stages_on_device(chains[point.chain], point)
        if len(stage_numbers) < len(point.thresholds):
            stages = tuple(chains[point.chain][stage_number] for stage_number in stage_numbers)
            self.chains_ = (*chains, stages)
            self.operating_point_ = self._restrict_point(point, stage_numbers, stages, len(chains))

    def _restrict_point(
        self,
        point: OperatingPoint,
        stage_numbers: Sequence[int],
        stages: Sequence[Stage],
        chain: int,
    ) -> OperatingPoint:
        """Get the point of the cascade with only some stages; its cost may be an upper bound."""
        all_stages = self.chains_[point.chain]
        exits = [*stage_numbers, len(all_stages)]
        exit_shares = np.array(point.exit_shares)[exits]
        limits_before = self._exit_limits(all_stages)[exits]
        limits_after = self._exit_limits(stages)
        cost = point.cost
        if all(stage.acquisition == "stage" for stage in all_stages):
            cost -= float(exit_shares @ (limits_before - limits_after))
        # an exit that costs more than the point's limit cannot be reached
        is_reachable = limits_before <= (np.inf if point.max_cost is None else point.max_cost)
        return msgspec.structs.replace(
            point,
            thresholds=tuple(point.thresholds[stage_number] for stage_number in stage_numbers),
            cost=cost,
            max_cost=float(limits_after[is_reachable].max()),
            exit_shares=tuple(exit_shares.tolist()),
            chain=chain,
        )

    def _replace_bounds(
        self,
        min_recall: Mapping[Any, float] | None,
        min_precision: Mapping[Any, float] | None,
        class_losses: Mapping[Any, float] | None,
        *,
        loss_is_given: bool,
    ) -> ClassBounds:
        """Replace bounds on classes; a new loss of all rows removes the losses by class."""
        bounds = self.class_bounds_
        new_bounds = ClassBounds.from_mappings(
            bounds.classes, min_recall, min_precision, class_losses
        )
        if min_recall is not None:
            bounds = replace(bounds, min_recall=new_bounds.min_recall)
        if min_precision is not None:
            bounds = replace(bounds, min_precision=new_bounds.min_precision)
        if loss_is_given:
            bounds = replace(bounds, max_loss=new_bounds.max_loss)
        return bounds

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
        slack: float | None = None,
    ) -> Self:
        """Get the same fitted models at another operating point; nothing is refitted.

        Give at most one of `budget`, `max_loss` and `offload_rate`. The default is the setting of
        the fit.

        Parameters
        ----------
        budget : float, optional
            Mean cost per instance that may be spent, in the unit of the feature costs.
        max_loss : float, or mapping of class label to float, optional
            Accuracy, or recall of classes, that may be lost. A single number removes the bounds by
            class.
        offload_rate : float, optional
            Share of the instances that may go to the cloud.
        min_recall, min_precision : mapping of class label to float, optional
            Bounds that replace those of the settings; an empty dict removes them.
        max_bytes : int, optional
            Largest number of bytes on a device. Stages at which no instance stops are then left
            out.
        max_instance_cost : float, optional
            Exclude operating points at which an instance can cost more.
        slack : float, optional
            Standard errors between a figure and its bound, for `max_loss` and bounds on classes;
            1 by default.

        Returns
        -------
        estimator
            A copy that shares the models.

        Raises
        ------
        InputError
            If no operating point keeps the bounds, or if several of the three goals are given. For
            `max_instance_cost` the message names the lowest possible value.
        TooLargeError
            If no point is as small as `max_bytes`; `smallest_bytes` is the smallest possible size.
        """
        check_is_fitted(self, "frontier_")
        estimator = copy.copy(self)
        # the bounds of the copy
        if max_bytes is not None:
            estimator.max_bytes_ = max_bytes
        if slack is not None:
            estimator.slack_ = float(slack)
        if max_instance_cost is not None:
            estimator._cap_cost(max_instance_cost)
        has_other_goal = budget is not None or offload_rate is not None
        total_loss, class_losses = split_loss(max_loss, has_other_goal=has_other_goal)
        estimator.class_bounds_ = self._replace_bounds(
            min_recall, min_precision, class_losses, loss_is_given=max_loss is not None
        )
        # without a goal, use the goal of the settings under the bounds
        goal = {"budget": budget, "max_loss": total_loss, "offload_rate": offload_rate}
        has_goal = any(bound is not None for bound in goal.values())
        bound_settings = (min_recall, min_precision, max_bytes, max_instance_cost, slack)
        has_bound = any(setting is not None for setting in bound_settings)
        if has_bound and not has_goal:
            point = estimator._choose_by_settings()
        else:  # without a goal and a bound, `_choose` raises InputError
            point = estimator._choose(**goal)
        estimator._activate(point)
        return estimator

    def _cap_cost(self, max_cost: float) -> None:
        """Remove the operating points at which an instance can cost more than `max_cost`."""
        self.frontier_ = self.frontier_.within_cost(max_cost)
        self.max_instance_cost_ = float(max_cost)

    # -- the fitted system -----------------------------------------------------------------

    def exit_stage(self, X: ArrayLike) -> NDArray[np.int64]:
        """Get the stage that answers each row; `n_stages` marks an offloaded row.

        Parameters
        ----------
        X : array-like of shape (n, n_features)

        Returns
        -------
        ndarray of int64, shape (n,)
        """
        return self._find_exits(self._rows(X))

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Predict the labels by the stage that answers, or by the high-cost model.

        Parameters
        ----------
        X : array-like of shape (n, n_features)

        Returns
        -------
        ndarray of shape (n,)
        """
        x = self._rows(X)
        class_indices = np.zeros(len(x), np.int64)
        high_cost_model = self.high_cost_model_
        for stage_number, rows, margins in self._route(x):
            if stage_number < len(self.stages_):
                class_indices[rows] = labels(margins)
            elif high_cost_model is not None:
                class_indices[rows] = high_cost_model.labels(x[rows])
        return self.classes_[class_indices]

    def predict_proba(self, X: ArrayLike) -> NDArray[np.float64]:
        """Predict class probabilities by the model that answers, in the order of sorted classes.

        Parameters
        ----------
        X : array-like of shape (n, n_features)

        Returns
        -------
        ndarray of float64, shape (n, n_classes)
        """
        x = self._rows(X)
        class_probabilities = np.zeros((len(x), len(self.classes_)))
        high_cost_model = self.high_cost_model_
        for stage_number, rows, margins in self._route(x):
            if stage_number < len(self.stages_):
                class_probabilities[rows] = probabilities(margins, self.stages_[stage_number].link)
            elif high_cost_model is not None:
                class_probabilities[rows] = high_cost_model.predict_proba(x[rows])
        return class_probabilities

    def cost(self, X: ArrayLike, accounting: Accounting | None = None) -> NDArray[np.float64]:
        """Compute the cost of each row, in the unit of the feature costs.

        Parameters
        ----------
        X : array-like of shape (n, n_features)
        accounting : {"union", "paper", "paths", "paper-paths"}, optional
            Features that an offloaded row pays for. With "union", the default, these are the
            features that its stages acquire and the features that the high-cost model reads. With
            "paper" they are only the features of the high-cost model. "paths", the default of
            methods that are fitted with it, differs from "union" for some high-cost models: a
            forest pays for the features on the row's paths, and a fitted cascade for the features
            that it acquires for the row. "paper-paths" is "paths" without the features of the
            stages.

        Returns
        -------
        ndarray of float64, shape (n,)

        Raises
        ------
        InputError
            If `accounting` is not one of these.
        """
        accounting = self._accounting if accounting is None else accounting
        if accounting not in get_args(Accounting):
            names = ", ".join(get_args(Accounting))
            raise InputError(f"accounting must be one of {names}, not {accounting!r}")
        x = self._rows(X)
        acquired_features = [stage.acquired(x) for stage in self.stages_]
        offload_features = None
        if accounting.endswith("paths") and self.high_cost_model_ is not None:
            offload_features = acquired_by_high_cost(self.high_cost_model_, x)
        exit_costs = self._exit_costs(
            acquired_features,
            pays_for_stages=not accounting.startswith("paper"),
            offload_features=offload_features,
        )
        return select_exit_costs(exit_costs, self._find_exits(x))

    def acquired(self, X: ArrayLike) -> NDArray[np.bool_]:
        """Mark the features that each row acquires.

        An offloaded row also has the features that the high-cost model acquires.

        Parameters
        ----------
        X : array-like of shape (n, n_features)

        Returns
        -------
        ndarray of bool, shape (n, n_features)
        """
        x = self._rows(X)
        return acquired_by_system(self, x, paths=self._accounting == "paths")

    @property
    def _accounting(self) -> Accounting:
        """The accounting of offloaded rows in the frontier."""
        return "union"

    def explain(self, x: Any) -> Explanation:
        """Explain the answer to one instance by the features and the stop decision of each stage.

        Parameters
        ----------
        x : array-like of shape (n_features,), mapping or Series by feature name, or a table of one
            row

        Returns
        -------
        Explanation
            Its text has one line per stage, and its attributes have the same content.

        Raises
        ------
        InputError
            If `x` is not one instance, or does not match the columns of the system.
        """
        check_is_fitted(self, "operating_point_")
        return explain(self, x)

    def _find_exits(self, x: NDArray[np.float32]) -> NDArray[np.int64]:
        exits = np.empty(len(x), np.int64)
        for stage_number, rows, _ in self._route(x):
            exits[rows] = stage_number
        return exits

    def _route(
        self, x: NDArray[np.float32]
    ) -> Iterator[tuple[int, NDArray[np.intp], NDArray[np.float32]]]:
        """Yield number, rows and margins of each exit; offloaded rows are last, without margins."""
        last_exit = self.last_exit_
        open_rows = np.arange(len(x))
        for stage_number, threshold in enumerate(self.operating_point_.thresholds[: last_exit + 1]):
            if not len(open_rows) or (threshold is None and stage_number < last_exit):
                continue
            stage = self.stages_[stage_number]
            margins, score = stage.run(x[open_rows])
            is_answered = (
                stop_mask(score, threshold)
                if stage_number < last_exit
                else np.ones(len(open_rows), bool)
            )
            yield stage_number, open_rows[is_answered], margins[is_answered]
            open_rows = open_rows[~is_answered]
        if len(open_rows):
            yield len(self.stages_), open_rows, np.empty((len(open_rows), 0), np.float32)
