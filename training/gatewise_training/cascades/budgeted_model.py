"""Base of all estimators: settings, costs, operating points, summary and plots."""

from __future__ import annotations

import copy
from abc import ABC
from collections.abc import Mapping, Sequence
from dataclasses import replace
from numbers import Real
from typing import Any, ClassVar, Literal, Self

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.utils._param_validation import (
    InvalidParameterError,
    StrOptions,
    validate_parameter_constraints,
)
from sklearn.utils.validation import check_is_fitted

from gatewise.acquisition import AcquiredMask, exit_costs, last_exit_within
from gatewise.columns.value_ranges import TrainingRanges
from gatewise.costs import CloudPrices, CostsLike, FeatureCosts
from gatewise.errors import InputError
from gatewise.models.stage import Stage
from gatewise.operating_point import OperatingPoint
from gatewise_signals.signal_input import SignalInput
from gatewise_training.data.input_checks import (
    NOT_NEGATIVE,
    UNIT_INTERVAL,
    Constraints,
    check_costs,
    check_rows,
    feature_names,
)
from gatewise_training.operating_points.class_figures import split_loss
from gatewise_training.operating_points.frontier import DEFAULT_SLACK, Frontier, LossError
from gatewise_training.views.frontier_display import FrontierDisplay
from gatewise_training.views.summary import summary_text

#: Loss of the goal if the settings have neither a budget nor a largest loss.
MAX_LOSS = 0.01


class BudgetedModel(BaseEstimator, ABC):
    """Base of all estimators.

    Attributes
    ----------
    n_features_in_ : int
    feature_names_ : tuple of str
        x0, x1, ... if the table had no names.
    feature_costs_ : FeatureCosts
    chains_ : tuple of tuple of Stage
        The stages of each candidate cascade on the frontier.
    frontier_ : Frontier
        Operating points, measured on validation rows.
    operating_point_ : OperatingPoint
        The active operating point.
    training_ranges_ : TrainingRanges
        Ranges of the values in the training rows, by which devices find implausible values.
    signal_input_ : SignalInput
        The blocks with their prices, and the windows that they read; only if there are `blocks`.
    """

    feature_costs_: FeatureCosts
    signal_input_: SignalInput
    training_ranges_: TrainingRanges
    high_cost_model_: Any
    cloud_prices_: CloudPrices
    max_instance_cost_: float | None = None
    choice_: str = ""  # reason for the choice of the active point
    slack_: float = DEFAULT_SLACK  # standard errors between a figure and its bound
    # number of candidates of the fit; `chains_` may also have the active point's stages at its end
    _n_chains: int | None = None

    feature_costs: CostsLike | None
    budget: float | None
    max_loss: float | Mapping[Any, float] | None
    allow_missing: bool
    random_state: Any

    #: Allowed values of each parameter; a class lists only the parameters that it adds.
    _parameter_constraints: ClassVar[Constraints] = {
        "budget": [NOT_NEGATIVE, None],
        "max_loss": [UNIT_INTERVAL, None],
        "offload_rate": [UNIT_INTERVAL, None],
        "penalties": ["array-like", None],
        "min_recall": [Mapping, None],
        "min_precision": [Mapping, None],
        "class_weight": [Mapping, StrOptions({"balanced"}), None],
        "cloud_prices": [CloudPrices, None],
        "guarantee": [Real, None],
        "allow_missing": ["boolean"],
    }

    def _check_settings(self) -> None:
        """Raise InputError for settings that no fit can use."""
        constraints: Constraints = {}
        for parent_class in reversed(type(self).__mro__):
            constraints |= parent_class.__dict__.get("_parameter_constraints", {})
        try:
            validate_parameter_constraints(
                constraints, self.get_params(deep=False), type(self).__name__
            )
        except InvalidParameterError as error:
            raise InputError(str(error)) from None
        # a loss by class is a bound in addition to another goal, but a loss of all rows is a goal
        if (
            self._has_other_goal
            and not isinstance(self.max_loss, Mapping)
            and self.max_loss not in (None, MAX_LOSS)
        ):
            raise InputError(
                f"max_loss={self.max_loss:g} has no effect with a budget or an offload_rate: give "
                "one of them"
            )
        penalties = getattr(self, "penalties", None)
        if penalties is not None and not all(map(NOT_NEGATIVE.is_satisfied_by, penalties)):
            raise InputError(f"penalties must be at least 0, not {list(penalties)}")

    def _read_blocks(self, X: Any) -> None:
        """Set `signal_input_` if there are blocks, which read the rows of X as windows."""
        self.__dict__.pop("signal_input_", None)
        blocks = getattr(self, "blocks", None)
        if blocks is None:
            return
        if self.feature_costs is not None:
            raise InputError(
                "give feature_costs or blocks, not both: each block has its own price "
                "(gatewise_signals.measured)"
            )
        is_raw = getattr(self, "high_cost_input", "features") == "window"
        self.signal_input_ = SignalInput.from_windows(blocks, X, is_raw)

    def _measure_ranges(self, rows: NDArray[np.float32], X: Any) -> None:
        """Measure the ranges of the training rows and, with blocks, of the windows `X`."""
        windows = None
        if hasattr(self, "signal_input_"):
            signal = self.signal_input_
            rows = rows[:, : len(signal.graph.feature_names)]
            windows = signal.split_by_channel(signal.as_checked_array(X))
        self.training_ranges_ = TrainingRanges.of_rows(rows, windows)

    @property
    def _cloud_reads_windows(self) -> bool:
        """Whether the high-cost model reads raw windows, which follow the features in a row."""
        return hasattr(self, "signal_input_") and self.signal_input_.has_window_values

    def _check_costs(self) -> None:
        """Set the names of the columns, and check the prices against them."""
        self.feature_names_ = feature_names(self)
        if hasattr(self, "signal_input_"):
            self.feature_costs_ = self.signal_input_.costs()
            return
        has_names = hasattr(self, "feature_names_in_")
        self.feature_costs_ = check_costs(self.feature_costs, self.feature_names_, has_names)

    def _set_frontier(
        self,
        candidates: Sequence[tuple[Stage, ...]],
        frontier: Frontier,
        *,
        keeps_all: bool = False,
    ) -> list[int]:
        """Set the frontier and its candidates, or all candidates; return their numbers.

        No point is active until one is picked. :meth:`at` therefore works even if no point reaches
        the goal of the settings.
        """
        self.__dict__.pop("operating_point_", None)
        frontier_numbers = {point.chain for point in frontier.all_points}
        numbers_to_keep = [
            number for number in range(len(candidates)) if keeps_all or number in frontier_numbers
        ]
        self.chains_ = tuple(candidates[number] for number in numbers_to_keep)
        self._n_chains = len(numbers_to_keep)
        points, off_curve_points = (
            tuple(
                msgspec.structs.replace(point, chain=numbers_to_keep.index(point.chain))
                for point in old_points
            )
            for old_points in (frontier.points, frontier.off_curve_points)
        )
        self.frontier_ = replace(frontier, points=points, off_curve_points=off_curve_points)
        return numbers_to_keep

    def _goal(self) -> dict[str, float]:
        """Get the goal of the settings: a budget or a largest loss."""
        if self.budget is not None:
            return {"budget": self.budget}
        total_loss = self._split_max_loss()[0]
        return {"max_loss": MAX_LOSS if total_loss is None else total_loss}

    def _split_max_loss(self) -> tuple[float | None, Mapping[Any, float] | None]:
        """Split the `max_loss` of the settings into the loss of all rows and losses by class."""
        return split_loss(self.max_loss, has_other_goal=self._has_other_goal)

    @property
    def _has_other_goal(self) -> bool:
        """Whether the settings have a goal instead of a loss of accuracy."""
        return any(goal is not None for goal in (self.budget, getattr(self, "offload_rate", None)))

    def _choose_by_settings(self) -> OperatingPoint:
        """Pick the operating point of the settings' goal, or the point with the smallest loss."""
        try:
            return self._choose(**self._goal())
        except LossError as error:  # bounds on bytes or cost leave no point within the loss
            point = self._choose(max_loss=error.smallest_loss)
            self.choice_ = f"the most accurate point, because {error}"
            return point

    def _choose(self, **goal: float | None) -> OperatingPoint:
        point, self.choice_ = self.frontier_.choose(None, slack=self.slack_, **goal)
        return point

    @property
    def stages_(self) -> tuple[Stage, ...]:
        """Stages of the active operating point."""
        check_is_fitted(self, "operating_point_")
        return self.chains_[self.operating_point_.chain]

    @property
    def last_exit_(self) -> int:
        """Last exit that an instance with a NaN score may take; `n_stages` is the offload."""
        last_exit = len(self.stages_) - (self.high_cost_model_ is None)
        max_cost = self.max_instance_cost_
        if max_cost is None:
            return last_exit
        return min(last_exit, last_exit_within(self._exit_limits(self.stages_), max_cost))

    def _exit_limits(self, stages: Sequence[Stage]) -> NDArray[np.float64]:
        """Get the largest cost of a row at each exit, shape (n_stages + 1,)."""
        acquired_features = [stage.feature_mask(self.n_features_in_) for stage in stages]
        return self._exit_costs(acquired_features)

    def _features_of_offload(self, x: NDArray[np.float32]) -> AcquiredMask | None:
        """Get the features that the high-cost model acquires for each row, or None for all."""
        return None

    def _exit_costs(
        self,
        acquired_features: Sequence[AcquiredMask],
        *,
        pays_for_stages: bool = True,
        offload_features: AcquiredMask | None = None,
    ) -> NDArray[np.float64]:
        """Get the cost at each exit, which are the stages and, last, the offload.

        Without a high-cost model the last cost is the cost of all stages. `pays_for_stages` says
        whether an offloaded row also pays for the features of the stages. `offload_features` marks
        the features that the high-cost model acquires, by default all that it reads.
        """
        costs = self.feature_costs_
        high_cost_model = self.high_cost_model_
        if high_cost_model is None:
            return exit_costs(costs, acquired_features)
        request_price = self.cloud_prices_.offload_price(len(high_cost_model.features))
        offload_features = (
            costs.mask(high_cost_model.features) if offload_features is None else offload_features
        )
        return exit_costs(
            costs,
            acquired_features,
            offload_features,
            request_price=request_price,
            pays_for_stages=pays_for_stages,
        )

    @property
    def operating_points_(self) -> tuple[OperatingPoint, ...]:
        """All points on and off the curve of the frontier, and the active point, by rising cost."""
        check_is_fitted(self, "operating_point_")
        frontier = self.frontier_
        points = dict.fromkeys((*frontier.all_points, self.operating_point_))
        return tuple(sorted(points, key=lambda point: (point.cost, -point.accuracy)))

    @property
    def missing_(self) -> dict[str, Literal["allowed", "refused"]]:
        """Whether the stages and the high-cost model accept NaN."""
        check_is_fitted(self, "operating_point_")
        rule: Literal["allowed", "refused"] = "allowed" if self.allow_missing else "refused"
        return {"stages": rule, "cloud": rule}

    def at(self, *, budget: float | None = None, max_loss: float | None = None) -> Self:
        """Get the same fitted models at another operating point; nothing is refitted.

        Parameters
        ----------
        budget : float, optional
            Mean feature cost per instance that may be spent, in the unit of the feature costs.
        max_loss : float, optional
            Loss of score against the unpenalised model that is allowed, instead of a budget.

        Returns
        -------
        estimator
            A copy that shares the models.
        """
        check_is_fitted(self, "frontier_")
        estimator = copy.copy(self)
        estimator.operating_point_ = estimator._choose(budget=budget, max_loss=max_loss)
        return estimator

    # -- text and plots --------------------------------------------------------------------

    def summary(self) -> str:
        """Write the stages and the figures of the active operating point as text."""
        check_is_fitted(self, "operating_point_")
        return summary_text(self)

    def plot_frontier(self, *, ax: Any = None) -> Any:
        """Plot accuracy against cost, with a ring around the active operating point.

        Parameters
        ----------
        ax : matplotlib Axes, optional
            Axes of the plot; a new pyplot figure by default.

        Returns
        -------
        matplotlib Axes
        """
        check_is_fitted(self, "operating_point_")
        if ax is None:
            from matplotlib import pyplot  # notebooks show its figures

            _, ax = pyplot.subplots(figsize=(6.4, 4.2), layout="constrained")
        return FrontierDisplay.from_estimator(self, ax=ax).ax_

    def _rows(self, X: ArrayLike) -> NDArray[np.float32]:
        check_is_fitted(self, "operating_point_")
        rows: NDArray[np.float32] = check_rows(self, X)
        return rows

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = self.allow_missing
        return tags
