"""Bases of the budgeted classifiers: operating points, prediction, cost; models without a cloud.

:class:`.CascadeClassifier` adds the high-cost model in the cloud.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self, get_args

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import ClassifierMixin
from sklearn.utils.validation import check_is_fitted

from gatewise.acquisition import select_exit_costs
from gatewise.costs import CostsLike
from gatewise.decision import labels, probabilities, split, stops
from gatewise.errors import InputError, TooLargeError
from gatewise.models.stage import Stage
from gatewise.operating_point import OperatingPoint
from gatewise_training.cascades.fitting import ClassifierFit
from gatewise_training.data.input_checks import GivenRows, Validation
from gatewise_training.learners.row_acquisitions import (
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
        Records of the calibration rows, where a guarantee was asked for.
    class_weights_ : ndarray, shape (n_classes,), or None
        Weight of a row of each class, where `class_weight` was given.
    class_bounds_, max_bytes_, max_instance_cost_
        Bounds that operating points keep, of the settings or given to :meth:`at`.
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
            For data, prices or settings that cannot be used; it says which and why. If no operating
            point reaches the goal, the fitted models are kept, and :meth:`at` takes another goal.
        """
        return self._fit_rows(GivenRows(X, y, sample_weight, validation, groups=groups, time=time))

    # -- operating points --------------------------------------------------------------------

    def _reference_frontier(self) -> Frontier:
        """Get the frontier, its reference measured on the rows that the active point was."""
        if self.calibration_ is None:
            return self.frontier_
        fields = self._reference_fields(self.calibration_.certifying[-1])
        return replace(self.frontier_, **fields)

    def _choose(self, **goal: float | None) -> OperatingPoint:
        """Pick a point of the frontier, or with a guarantee a certified one."""
        if self.calibration_ is None:
            point, self.choice_ = self.frontier_.choose(
                self.class_bounds_, self.max_bytes_, slack=self.slack_, **goal
            )
            return point
        return self._certified_point(self.frontier_, self.calibration_, **goal)

    def _certified_point(
        self, frontier: Frontier, calibration: CalibrationRecords, **goal: float | None
    ) -> OperatingPoint:
        """Certify a goal and the bounds by the points of a frontier."""
        self.choice_ = ""  # a certified point states its guarantee
        max_bytes = self.max_bytes_
        if max_bytes is not None:
            frontier = frontier.within_bytes(max_bytes)
        point = calibration.certify(frontier, self.class_bounds_, self.max_instance_cost_, **goal)
        if max_bytes is not None and point.bytes > max_bytes:
            hint = "allow more, or fit with this max_bytes="
            raise TooLargeError("no certified operating point", max_bytes, point.bytes, hint)
        return point

    def _activate(self, point: OperatingPoint) -> None:
        """Make a point the active one.

        With `max_bytes_`, a device does not keep stages at which no instance stops. They leave the
        cascade, and features that were acquired for them alone leave the cost.
        """
        chains = self.chains_[: self._n_chains]
        self.chains_ = chains
        self.operating_point_ = point
        if self.max_bytes_ is None:
            return
        numbers = stages_on_device(chains[point.chain], point)
        if len(numbers) < len(point.thresholds):
            stages = tuple(chains[point.chain][s] for s in numbers)
            self.chains_ = (*chains, stages)
            self.operating_point_ = self._without_stages(point, numbers, stages, len(chains))

    def _without_stages(
        self, point: OperatingPoint, numbers: Sequence[int], stages: Sequence[Stage], chain: int
    ) -> OperatingPoint:
        """Get the same cascade's point with some stages alone; its cost may be an upper bound."""
        all_stages = self.chains_[point.chain]
        exits = [*numbers, len(all_stages)]
        shares = np.array(point.exit_shares)[exits]
        limits_before = self._exit_limits(all_stages)[exits]
        limits_after = self._exit_limits(stages)
        cost = point.cost
        if all(stage.acquisition == "stage" for stage in all_stages):
            cost -= float(shares @ (limits_before - limits_after))
        # an exit that costs more than the point's limit cannot be reached
        is_reachable = limits_before <= (np.inf if point.max_cost is None else point.max_cost)
        return msgspec.structs.replace(
            point,
            thresholds=tuple(point.thresholds[s] for s in numbers),
            cost=cost,
            max_cost=float(limits_after[is_reachable].max()),
            exit_shares=tuple(shares.tolist()),
            chain=chain,
        )

    def _changed_bounds(
        self,
        min_recall: Mapping[Any, float] | None,
        min_precision: Mapping[Any, float] | None,
        losses: Mapping[Any, float] | None,
        *,
        loss_is_given: bool,
    ) -> ClassBounds:
        """Replace the given bounds on classes; a loss of all rows lifts losses by class."""
        bounds = self.class_bounds_
        changed = ClassBounds.from_mappings(bounds.classes, min_recall, min_precision, losses)
        if min_recall is not None:
            bounds = replace(bounds, min_recall=changed.min_recall)
        if min_precision is not None:
            bounds = replace(bounds, min_precision=changed.min_precision)
        if loss_is_given:
            bounds = replace(bounds, max_loss=changed.max_loss)
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

        Give at most one of `budget`, `max_loss` and `offload_rate`; by default the fit's setting.

        Parameters
        ----------
        budget : float, optional
            Mean cost per instance that may be spent, in the unit of the feature costs.
        max_loss : float, or mapping of class label to float, optional
            Accuracy, or recall of classes, that may be lost; one number lifts those by class.
        offload_rate : float, optional
            Share of the instances that may go to the cloud.
        min_recall, min_precision : mapping of class label to float, optional
            Replace the bounds of the settings; an empty dict lifts them.
        max_bytes : int, optional
            Largest number of bytes on a device: stages that never stop are then left out.
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
            If none is as small as `max_bytes`; its `smallest` says how small they get.
        """
        check_is_fitted(self, "frontier_")
        moved = copy.copy(self)
        # the bounds of the copy
        if max_bytes is not None:
            moved.max_bytes_ = max_bytes
        if slack is not None:
            moved.slack_ = float(slack)
        if max_instance_cost is not None:
            moved._cap_cost(max_instance_cost)
        has_other_goal = budget is not None or offload_rate is not None
        total_loss, losses = split_loss(max_loss, has_other_goal=has_other_goal)
        moved.class_bounds_ = self._changed_bounds(
            min_recall, min_precision, losses, loss_is_given=max_loss is not None
        )
        # without a goal, the goal of the settings holds under the bounds
        goal = {"budget": budget, "max_loss": total_loss, "offload_rate": offload_rate}
        has_goal = any(value is not None for value in goal.values())
        bounds = (min_recall, min_precision, max_bytes, max_instance_cost, slack)
        has_bound = any(value is not None for value in bounds)
        moved._activate(moved._choose(**goal) if has_goal or not has_bound else moved._pick())
        return moved

    def _cap_cost(self, max_cost: float) -> None:
        """Drop the operating points at which an instance can cost more than `max_cost`."""
        self.frontier_ = self.frontier_.within_cost(max_cost)
        self.max_instance_cost_ = float(max_cost)

    # -- the fitted system -----------------------------------------------------------------

    def exit_stage(self, X: ArrayLike) -> NDArray[np.int64]:
        """Stage at which each row is answered; the number of stages: offloaded.

        Parameters
        ----------
        X : array-like of shape (n, n_features)

        Returns
        -------
        ndarray of int64, shape (n,)
        """
        return self._exits(self._rows(X))

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Labels of the stage that answers, or of the high-cost model.

        Parameters
        ----------
        X : array-like of shape (n, n_features)

        Returns
        -------
        ndarray of shape (n,)
        """
        x = self._rows(X)
        index = np.zeros(len(x), np.int64)
        f0 = self.high_cost_model_
        for s, rows, margins in self._route(x):
            if s < len(self.stages_):
                index[rows] = labels(margins)
            elif f0 is not None:
                index[rows] = f0.labels(x[rows])
        return self.classes_[index]

    def predict_proba(self, X: ArrayLike) -> NDArray[np.float64]:
        """Class probabilities of the model that answers, by sorted class.

        Parameters
        ----------
        X : array-like of shape (n, n_features)

        Returns
        -------
        ndarray of float64, shape (n, n_classes)
        """
        x = self._rows(X)
        proba = np.zeros((len(x), len(self.classes_)))
        f0 = self.high_cost_model_
        for s, rows, margins in self._route(x):
            if s < len(self.stages_):
                proba[rows] = probabilities(margins, self.stages_[s].link)
            elif f0 is not None:
                proba[rows] = f0.predict_proba(x[rows])
        return proba

    def cost(self, X: ArrayLike, accounting: Accounting | None = None) -> NDArray[np.float64]:
        """Cost of each row, in the unit of the feature costs.

        Parameters
        ----------
        X : array-like of shape (n, n_features)
        accounting : {"union", "paper", "paths", "paper-paths"}, optional
            Features that an offloaded row pays for. "union", the default: the features that its
            stages acquire and the features that the high-cost model reads. "paper": the features of
            the high-cost model alone. "paths", the default of methods that are fitted with it: as
            "union", but a forest as the high-cost model pays for the features on the row's paths,
            and a fitted cascade for the features that it acquires for the row. "paper-paths": as
            "paths", without the features of the stages.

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
        acquired = [stage.acquired(x) for stage in self.stages_]
        offload = None
        if accounting.endswith("paths") and self.high_cost_model_ is not None:
            offload = acquired_by_high_cost(self.high_cost_model_, x)
        union = not accounting.startswith("paper")
        by_exit = self._exit_costs(acquired, union=union, offload=offload)
        return select_exit_costs(by_exit, self._exits(x))

    def acquired(self, X: ArrayLike) -> NDArray[np.bool_]:
        """Features that each row acquires; the mean over rows is how often each one is used.

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
        """Accounting of offloaded rows in the frontier."""
        return "union"

    def explain(self, x: Any) -> Explanation:
        """Explain the answer to one instance: the features of each stage, and why it stopped.

        Parameters
        ----------
        x : array-like of shape (n_features,), mapping or Series by feature name, or a table of one
            row

        Returns
        -------
        Explanation
            Prints one line per stage; its attributes hold the same.

        Raises
        ------
        InputError
            If it is not one instance, or does not fit the system.
        """
        check_is_fitted(self, "operating_point_")
        return explain(self, x)

    def _exits(self, x: NDArray[np.float32]) -> NDArray[np.int64]:
        exits = np.empty(len(x), np.int64)
        for s, rows, _ in self._route(x):
            exits[rows] = s
        return exits

    def _route(
        self, x: NDArray[np.float32]
    ) -> Iterator[tuple[int, NDArray[np.intp], NDArray[np.float32]]]:
        """Yield each exit's number, rows and margins; offloaded rows come last, without margins."""
        last_exit = self.last_exit_
        waiting = np.arange(len(x))
        for s, threshold in enumerate(self.operating_point_.thresholds[: last_exit + 1]):
            if not len(waiting) or (threshold is None and s < last_exit):
                continue
            stage = self.stages_[s]
            margins, score = split(stage.margins(x[waiting]), stage.score)
            is_answered = stops(score, threshold) if s < last_exit else np.ones(len(waiting), bool)
            yield s, waiting[is_answered], margins[is_answered]
            waiting = waiting[~is_answered]
        if len(waiting):
            yield len(self.stages_), waiting, np.empty((len(waiting), 0), np.float32)


@dataclass(eq=False, repr=False, kw_only=True)
class SingleModel(BudgetedClassifier):
    """Settings of models without a cloud.

    Parameters
    ----------
    feature_costs, budget, min_recall, min_precision, class_weight, guarantee
        As for :class:`.CascadeClassifier`.
    max_loss : float, default 0.01
        Without a budget: the cheapest operating point within this accuracy loss of the last
        candidate, the unpenalised model.
    allow_missing : bool, default False
        Whether NaN is a value.
    random_state : int, RandomState or None
        Source of the random choices; an int makes a fit repeatable.
    """

    feature_costs: CostsLike | None = field(default=None, kw_only=False)
    budget: float | None = None
    max_loss: float | None = 0.01
    min_recall: Mapping[Any, float] | None = None
    min_precision: Mapping[Any, float] | None = None
    class_weight: Mapping[Any, float] | Literal["balanced"] | None = None
    guarantee: float | None = None
    allow_missing: bool = False
    random_state: Any = None
