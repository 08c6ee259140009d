"""OutcomeCascade: thresholds between systems, learned from a table of their outcomes."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Self

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils import check_random_state

from gatewise.decision import exit_stages
from gatewise.errors import InputError
from gatewise.formats import plural
from gatewise.formats import threshold as threshold_text
from gatewise.operating_point import OperatingPoint
from gatewise_training.operating_points.candidate_points import CalibrationRecords
from gatewise_training.operating_points.frontier import DEFAULT_SLACK, Frontier
from gatewise_training.operating_points.group_losses import with_group_errors
from gatewise_training.operating_points.guarantee import Promise, certify
from gatewise_training.operating_points.promise_check import MeasuredFigure
from gatewise_training.operating_points.thresholds import frontier_points
from gatewise_training.outcomes.outcome_table import Outcomes, stage_scores

#: Smallest number of rows: half may choose thresholds, the other half measure them.
MIN_ROWS = 40
#: Default bound on the loss, as a share of the largest loss.
DEFAULT_LOSS = 0.01
#: Largest number of thresholds that are tried on one score.
N_THRESHOLDS = 200


@dataclass(eq=False, kw_only=True)
class OutcomeCascade:
    """Thresholds on the scores of small systems; rows with lower scores go to the big system.

    They are called systems, not low-cost and high-cost models, because only their outcomes are
    known: each may consist of several models, services or people.

    A single threshold with a guarantee is tested on all rows. They also measure it, so that its
    losses are slightly too low; the guarantee allows for the choice. Otherwise half of the rows,
    the validation rows, choose the thresholds. The other half, the calibration rows, measure or
    certify them, which makes the figures valid for new rows.

    Parameters
    ----------
    budget : float, optional
        Largest mean cost of a row. The thresholds with the smallest loss within it are chosen.
    max_loss : float, optional
        Largest difference of the mean loss to the big system, in the unit of the losses. The
        cheapest thresholds within it are chosen. The default is a hundredth of the largest possible
        loss.
    offload_rate : float, optional
        Largest share of rows that the big system answers.
    guarantee : float or None, default 0.95
        Confidence with which the bound holds for new rows. With None there is no test, and the loss
        on the validation rows keeps a margin of one standard error.
    random_state : int, RandomState or None
        Source of the random split of the rows.

    Attributes
    ----------
    operating_point_ : OperatingPoint
        The thresholds, and their figures on the calibration rows. Its `accuracy` is 1 minus the
        mean loss as a share of the largest loss.
    frontier_ : Frontier
        All useful settings, measured on the same rows.
    loss_, big_loss_, lost_ : MeasuredFigure
        Mean loss of the cascade, mean loss of the big system, and their paired difference, with
        95 % intervals.
    big_cost_ : float
        Mean cost of sending every row to the big system at once.

    Examples
    --------
    A small system that is right less often if its score is low:

    >>> rng = np.random.default_rng(0)
    >>> score = rng.uniform(size=4000)
    >>> table = Outcomes(
    ...     scores=score, small_losses=rng.uniform(size=4000) > 0.6 + 0.6 * score,
    ...     big_losses=rng.uniform(size=4000) > 0.97, small_cost=1.0, big_cost=20.0,
    ... )
    >>> cascade = OutcomeCascade(max_loss=0.03, random_state=0).fit(table)
    >>> cascade.operating_point_.guarantee["method"]
    'exact paired difference'
    >>> bool(cascade.operating_point_.cost < 14)
    True
    >>> cascade.offload([0.1, 0.99]).tolist()
    [True, False]
    """

    budget: float | None = None
    max_loss: float | None = None
    offload_rate: float | None = None
    guarantee: float | None = 0.95
    random_state: Any = None

    def fit(self, outcomes: Outcomes) -> Self:
        """Learn the thresholds.

        Parameters
        ----------
        outcomes : Outcomes
            At least 40 rows that none of the systems was trained on.

        Returns
        -------
        self

        Raises
        ------
        InputError
            If there are too few rows, or no thresholds keep the bound.
        """
        if outcomes.n_rows < MIN_ROWS:
            raise InputError(f"thresholds need at least {MIN_ROWS} rows, not {outcomes.n_rows}")
        self.loss_limit_ = outcomes.loss_limit
        self.big_cost_ = outcomes.big_cost
        record = outcomes.record
        # thresholds that were not chosen by losses can be tested on the same rows
        if record.n_stages == 1 and self.guarantee is not None:
            self._validation_record = record
            self._calibration_record = record
        else:
            ordered_rows = record.splitter.order(check_random_state(self.random_state))
            validation_rows, calibration_rows = record.splitter.cut(ordered_rows, 1, 2)
            self._validation_record = outcomes.take(validation_rows).record
            self._calibration_record = outcomes.take(calibration_rows).record
        # find the frontier on the validation rows, and measure its settings on the calibration rows
        self._points = frontier_points(self._validation_record, n_thresholds=N_THRESHOLDS)
        tuned_frontier = Frontier.from_points(
            self._points, reference_accuracy=self._validation_record.reference_effective_accuracy()
        )
        tuned_frontier = tuned_frontier.with_less_offload(self._points)
        max_loss = self._goal().get("max_loss", DEFAULT_LOSS)
        self._tuned_frontier = with_group_errors(
            tuned_frontier, self._points, [self._validation_record], max_loss
        )
        measured_points = [
            self._calibration_record.measure(point.thresholds)
            for point in self._tuned_frontier.points
        ]
        self.frontier_ = Frontier.from_points(
            measured_points,
            reference_accuracy=self._calibration_record.reference_effective_accuracy(),
        )
        self._activate(self._choose_thresholds(self._goal()))
        return self

    def at(
        self,
        *,
        budget: float | None = None,
        max_loss: float | None = None,
        offload_rate: float | None = None,
    ) -> OutcomeCascade:
        """Get the same systems at another bound, tested as in :meth:`fit`.

        Parameters
        ----------
        budget, max_loss, offload_rate : float, optional
            One of them, as in the class.

        Returns
        -------
        OutcomeCascade
        """
        cascade = copy(self)
        cascade.budget = budget
        cascade.max_loss = max_loss
        cascade.offload_rate = offload_rate
        cascade._activate(cascade._choose_thresholds(cascade._goal()))
        return cascade

    def offload(self, scores: ArrayLike) -> NDArray[np.bool_]:
        """Find the rows that go to the big system.

        Parameters
        ----------
        scores : array-like of shape (n,) or (n, n_small)
            As in :class:`Outcomes`.

        Returns
        -------
        ndarray of bool, shape (n,)
        """
        scores_by_stage = stage_scores(scores)
        n_stages = len(self.operating_point_.thresholds)
        if len(scores_by_stage) != n_stages:
            raise InputError(
                f"scores must be of {plural(n_stages, 'system')}, not {len(scores_by_stage)}"
            )
        exits = exit_stages(list(scores_by_stage), self.operating_point_.thresholds)
        is_offloaded: NDArray[np.bool_] = exits == n_stages
        return is_offloaded

    def to_dict(self) -> dict[str, Any]:
        """Get thresholds, figures and guarantee as plain values for JSON."""
        point = self.operating_point_
        guarantee = None if point.guarantee is None else dict(point.guarantee)
        if guarantee is not None and guarantee["kind"] == "max_loss":
            guarantee["bound"] *= self.loss_limit_
        measured_figures = {"loss": self.loss_, "big_loss": self.big_loss_, "lost": self.lost_}
        return {
            "thresholds": list(point.thresholds),
            "cost": point.cost,
            "big_cost": self.big_cost_,
            "offload_rate": point.offload_rate,
            **{name: figure.value for name, figure in measured_figures.items()},
            **{f"{name}_interval": figure.ends() for name, figure in measured_figures.items()},
            "rows": len(self._calibration_record.weights),
            "guarantee": guarantee,
            "frontier": [
                {
                    "thresholds": list(point.thresholds),
                    "cost": point.cost,
                    "loss": (1.0 - point.accuracy) * self.loss_limit_,
                    "offload_rate": point.offload_rate,
                }
                for point in self.frontier_.points
            ],
        }

    def summary(self) -> str:
        """Write thresholds, figures and guarantee in a few lines."""
        point = self.operating_point_
        n_rows = len(self._calibration_record.weights)
        saved_share = 1.0 - point.cost / self.big_cost_ if self.big_cost_ else 0.0
        comparison = f"{abs(saved_share):.1%} {'less' if saved_share >= 0 else 'more'}"
        answered_rows = ", ".join(
            _describe_answered_rows(threshold) for threshold in point.thresholds
        )
        lines = [
            f"a small system answers {answered_rows}; the other rows go to the next system",
            f"cost {point.cost:.4g} per row, {comparison} than the big system alone, to which "
            f"{point.offload_rate:.1%} of the rows go",
            f"loss {self.loss_.text(n_rows)}; of the big system {self.big_loss_.text(n_rows)}",
            f"loss above the big system's {self.lost_.text(n_rows)}, on {plural(n_rows, 'row')}",
        ]
        terms = self.to_dict()["guarantee"]
        if terms is not None:
            lines.append(
                f"guaranteed with confidence {terms['confidence']:g}: {terms['kind']} of at most "
                f"{terms['bound']:g} ({terms['method']})"
            )
        return "\n".join(lines)

    # -- choice ----------------------------------------------------------------------------

    def _goal(self) -> dict[str, Any]:
        """Get the bound that is set; a loss becomes a share of the largest loss."""
        settings = {
            "budget": self.budget,
            "max_loss": self.max_loss,
            "offload_rate": self.offload_rate,
        }
        goal: dict[str, Any] = {
            name: float(bound) for name, bound in settings.items() if bound is not None
        }
        if len(goal) > 1:
            raise InputError("give one of budget, max_loss and offload_rate, not several")
        if "max_loss" in goal:
            goal["max_loss"] /= self.loss_limit_
        return goal or {"max_loss": DEFAULT_LOSS}

    def _choose_thresholds(self, goal: dict[str, Any]) -> Sequence[float | None]:
        """Choose thresholds, which must pass the tests of a guarantee if there is one."""
        if self.guarantee is None:
            return self._tuned_frontier.choose(None, slack=DEFAULT_SLACK, **goal).point.thresholds
        if "budget" in goal and self._calibration_record.exit_costs.ndim == 2:
            raise InputError(
                "a budget cannot be guaranteed if costs differ between rows, because new rows "
                "may cost more: give one cost for all rows, or no guarantee "
                "(guarantee=None, --guarantee 0)"
            )
        if self._calibration_record.n_stages > 1:
            records = CalibrationRecords(
                (self._validation_record,), (self._calibration_record,), self.guarantee
            )
            point = records.certify_point(self._tuned_frontier, **goal)
        else:
            point = self._certify_threshold(goal)
        self._guarantee_terms = point.guarantee
        return point.thresholds

    def _certify_threshold(self, goal: dict[str, Any]) -> OperatingPoint:
        """Certify a threshold on all rows; raise InputError if no threshold passes.

        The thresholds are quantiles of the scores, which do not depend on losses. They are tested
        in order, the safest first. All thresholds that pass are certified together, and the best of
        them may be used.
        """
        assert self.guarantee is not None
        promise = Promise.from_bounds(self.guarantee, **goal)
        is_loss = promise.kind == "max_loss"
        # the safest first: for a loss all rows go to the big system, and for a rate none; a router
        # may save costs by the big system
        boldness = attrgetter("cost" if promise.kind == "budget" else "offload_rate")
        candidates = sorted(self._points, key=boldness, reverse=is_loss)
        boldest_point = certify(self._calibration_record, candidates, promise)
        if boldest_point is None:
            row_text = plural(
                self._calibration_record.n_independent_units,
                "row" if self._calibration_record.splitter.n_groups is None else "group",
            )
            raise InputError(
                f"{promise.kind}={promise.bound:g} cannot be guaranteed at {self.guarantee:g} with "
                f"{row_text}: give more data or a looser bound"
            )
        if is_loss:
            return boldest_point
        # the boldest is not always the best, so choose the most accurate of all that pass
        passing_points = [
            point for point in candidates if boldness(point) <= boldness(boldest_point)
        ]
        best_point = max(passing_points, key=lambda point: (point.effective_accuracy, -point.cost))
        return msgspec.structs.replace(best_point, guarantee=boldest_point.guarantee)

    def _activate(self, thresholds: Sequence[float | None]) -> None:
        """Set the operating point and the losses, measured on the calibration rows."""
        record = self._calibration_record
        point = record.measure(thresholds)
        exits = record.exits(thresholds)
        # 1 - loss / limit of the answer of each row
        correctness = record.correctness[exits, np.arange(len(exits))]
        self.loss_ = self._measure_mean_loss(correctness)
        self.big_loss_ = self._measure_mean_loss(record.correctness[-1])
        loss_over_big = MeasuredFigure.loss(
            record.correctness[-1] - correctness, record.weights, record.splitter
        )
        self.lost_ = self._convert_to_loss_unit(loss_over_big)
        interval = (
            1.0 - self.loss_.high / self.loss_limit_,
            1.0 - self.loss_.low / self.loss_limit_,
        )
        terms = None if self.guarantee is None else self._guarantee_terms
        self.operating_point_: OperatingPoint = msgspec.structs.replace(
            point, interval=interval, guarantee=terms
        )

    def _measure_mean_loss(self, correctness: NDArray[np.float64]) -> MeasuredFigure:
        record = self._calibration_record
        losses = 1.0 - correctness
        if np.isin(losses, (0, 1)).all():
            return self._convert_to_loss_unit(
                MeasuredFigure.share(losses == 1, record.weights, record.splitter)
            )
        mean_loss = MeasuredFigure.mean(losses, record.weights, record.splitter)
        return self._convert_to_loss_unit(mean_loss.clipped(0.0, 1.0))

    def _convert_to_loss_unit(self, figure: MeasuredFigure) -> MeasuredFigure:
        """Convert a share of the largest loss to the unit of the losses."""
        return MeasuredFigure(*(self.loss_limit_ * value for value in figure))


def _describe_answered_rows(threshold: float | None) -> str:
    """Write which rows a small system with this threshold answers.

    >>> _describe_answered_rows(0.25), _describe_answered_rows(None)
    ('rows with a score of at least 0.25', 'no rows')
    """
    text = threshold_text(threshold, 6)
    return {"always": "all rows", "never": "no rows"}.get(
        text, f"rows with a score of at least {text}"
    )
