"""What all budgeted classifiers share: operating points, prediction and cost.

:class:`.TrainedClassifier` adds the fit of stages, :class:`.CascadeClassifier` the high-cost model
behind them.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, Self

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import ClassifierMixin
from sklearn.utils.validation import check_is_fitted

from gatewise.acquisition import Acquired, at_exits
from gatewise.costs import CloudPrices
from gatewise.decision import labels, probabilities, split, stops
from gatewise.errors import InputError, TooLargeError
from gatewise.models.stage import Stage
from gatewise.operating_point import OperatingPoint
from gatewise_training.cascades.budgeted_model import BudgetedModel
from gatewise_training.data.row_splitter import RowSplitter
from gatewise_training.graphs.packed_size import packed_sizes
from gatewise_training.learners.high_cost_model import HighCostModel
from gatewise_training.operating_points.class_figures import ClassBounds, ExitAnswers, split_loss
from gatewise_training.operating_points.frontier import SLACK, Frontier
from gatewise_training.operating_points.guarantee import Promise
from gatewise_training.operating_points.operating_point import points_within_cost
from gatewise_training.operating_points.thresholds import CascadeRecord, frontier_points
from gatewise_training.views.explanation import Explanation, explain


class BudgetedClassifier(ClassifierMixin, BudgetedModel):
    """Base of the budgeted classifiers.

    Attributes
    ----------
    classes_ : ndarray, shape (n_classes,)
    cloud_prices_ : CloudPrices
    high_cost_model_ : HighCostModel or None
    calibration_ : CalibrationRecords or None
        Records of the calibration rows, where a guarantee was asked for.
    class_weights_ : ndarray, shape (n_classes,), or None
        What a row of each class counts, where `class_weight` was given.
    class_bounds_, max_bytes_, max_instance_cost_
        Bounds that operating points keep, of the settings or given to :meth:`at`.
    """

    # settings that a method need not have
    cloud_prices: CloudPrices | None = None
    min_recall: Mapping[Any, float] | None = None
    min_precision: Mapping[Any, float] | None = None
    class_weight: Mapping[Any, float] | Literal["balanced"] | None = None
    guarantee: float | None = None
    max_bytes: int | None = None
    max_instance_cost: float | None = None

    classes_: NDArray[Any]
    high_cost_model_: HighCostModel | None
    calibration_: Any
    class_weights_: NDArray[np.float64] | None
    class_bounds_: ClassBounds
    max_bytes_: int | None = None

    # -- fits ------------------------------------------------------------------------------

    def _take_bounds(self) -> None:
        """Read the settings' bounds on bytes, on an instance's cost and on classes."""
        self.max_bytes_, self.max_instance_cost_ = self.max_bytes, self.max_instance_cost
        self.class_bounds_ = ClassBounds.from_mappings(
            self.classes_.tolist(), self.min_recall, self.min_precision, self._losses()[1]
        )

    def _check_guarantee(self, truth: NDArray[np.int64], splitter: RowSplitter) -> None:
        """Refuse a guarantee that calibration rows of classes `truth` cannot show."""
        if self.guarantee is not None:
            goal: dict[str, Any] = self._goal()
            promise = Promise.from_bounds(self.guarantee, by_class=self.class_bounds_, **goal)
            promise.check_rows(truth, splitter)

    def _tuned_points(self, records: Sequence[CascadeRecord], **how: Any) -> list[OperatingPoint]:
        """Tune the thresholds of candidates within `max_instance_cost`; list their points."""
        most = self.max_instance_cost
        points = [
            point
            for number, record in enumerate(records)
            for point in frontier_points(record.within_cost(most), chain=number, **how)
        ]
        return points if most is None else points_within_cost(points, most)

    def _reference(self, record: CascadeRecord) -> dict[str, Any]:
        """Fields of a frontier about the reference, the last exit of a record, and the classes."""
        answers = record.answers
        assert answers is not None
        last = np.full(len(record.weights), record.n_stages)
        return {
            "reference_accuracy": float(np.average(record.correct[-1], weights=record.weights)),
            "classes": tuple(self.classes_.tolist()),
            "class_rows": answers.class_rows(),
            "reference_weighted_accuracy": None if record.class_weights is None else record.merit(),
            "reference_recall": answers.figures(last, record.weights)["recall"],
        }

    # -- operating points ------------------------------------------------------------------

    def _reference_frontier(self) -> Frontier:
        """Get the frontier, its reference measured on the rows that the active point was."""
        if self.calibration_ is None:
            return self.frontier_
        return replace(self.frontier_, **self._reference(self.calibration_.certifying[-1]))

    def _record(
        self,
        stages: Sequence[Stage],
        outputs: Sequence[NDArray[np.float32]],
        acquired: Sequence[Acquired],
        y: NDArray[np.int64],
        weight: NDArray[np.float64],
        reference: NDArray[np.int64],
        chances: NDArray[np.float64] | None = None,
        splitter: RowSplitter | None = None,
    ) -> CascadeRecord:
        """Record what stages do on labelled rows, beside the reference's indices and chances."""
        parts = [split(out, stage.score) for stage, out in zip(stages, outputs, strict=True)]
        answers = [*(labels(margins) for margins, _ in parts), reference]
        weights, n_classes = self.class_weights_, len(self.classes_)
        of_stages = [probabilities(p[0], s.link) for p, s in zip(parts, stages, strict=True)]
        return CascadeRecord(
            scores=np.stack([score for _, score in parts]),
            correct=np.stack([answer == y for answer in answers]).astype(np.float64),
            agrees=np.stack([answer == reference for answer in answers]),
            exit_costs=self._exit_costs(acquired),
            cost_limits=self._exit_limits(stages),
            weights=weight / weight.mean(),
            has_cloud=self.high_cost_model_ is not None,
            trees=tuple(stage.n_trees for stage in stages),
            nbytes=tuple(stage.nbytes for stage in stages),
            packed=packed_sizes(stages),
            class_weights=None if weights is None else weights[y],
            answers=ExitAnswers.scored(y, np.stack(answers), n_classes, [*of_stages, chances]),
            given_splitter=splitter,
        )

    def _choose(self, **wanted: float | None) -> OperatingPoint:
        """Take a point of the frontier, or with a guarantee a certified one."""
        bounds = self.class_bounds_
        if self.calibration_ is None:
            return self.frontier_.pick(bounds, self.max_bytes_, slack=SLACK, **wanted)
        frontier, most = self.frontier_, self.max_bytes_
        if most is not None:
            frontier = frontier.within_bytes(most)
        point: OperatingPoint = self.calibration_.certify(
            frontier, bounds, self.max_instance_cost_, **wanted
        )
        if most is not None and point.bytes > most:
            hint = "allow more, or fit with this max_bytes="
            raise TooLargeError("no certified operating point", most, point.bytes, hint)
        return point

    def _take(self, point: OperatingPoint) -> None:
        """Make a point the active one; with `max_bytes_` its chain has no stage that never stops.

        Devices keep none of those then. What the instances acquired for them alone falls away;
        where stages acquire node by node, the cost stays as an upper bound.
        """
        chains = self.chains_[: self._n_chains]
        stages = chains[point.chain]
        self.chains_, self.operating_point_ = chains, point
        if self.max_bytes_ is None:
            return
        sizes = packed_sizes(stages).alone
        kept = [s for s, t in enumerate(point.thresholds) if t is not None]
        if any(sizes) and not any(sizes[s] for s in kept):  # one answers when the cloud does not
            smallest = min(filter(None, sizes))
            kept = sorted([*kept, sizes.index(smallest)])
        if len(kept) == len(stages):
            return
        left = tuple(stages[s] for s in kept)
        exits = [*kept, len(stages)]
        shares = np.array(point.exit_shares)[exits]
        before, after, cost = self._exit_limits(stages), self._exit_limits(left), point.cost
        # node by node a row may acquire less than a stage can: what it saves is not known here
        if all(stage.acquisition == "stage" for stage in stages):
            cost -= float(shares @ (before[exits] - after))
        # exits that instances can reach cost no more than the point's limit, rarely others
        reached = before[exits] <= (np.inf if point.max_cost is None else point.max_cost)
        self.chains_ = (*chains, left)
        self.operating_point_ = msgspec.structs.replace(
            point,
            thresholds=tuple(point.thresholds[s] for s in kept),
            cost=cost,
            max_cost=float(after[reached].max()),
            exit_shares=tuple(shares.tolist()),
            chain=len(chains),
        )

    def _moved_within(
        self,
        min_recall: Mapping[Any, float] | None = None,
        min_precision: Mapping[Any, float] | None = None,
        max_bytes: int | None = None,
        max_instance_cost: float | None = None,
        *,
        max_loss: float | Mapping[Any, float] | None = None,
        **wanted: float | None,
    ) -> Self:
        check_is_fitted(self, "frontier_")
        other, classes = copy.copy(self), self.classes_.tolist()
        if max_bytes is not None:
            other.max_bytes_ = max_bytes
        if max_instance_cost is not None:
            other._cap_cost(max_instance_cost)
        bounds = (min_recall, min_precision, max_bytes, max_instance_cost)
        beside = any(bound is not None for bound in bounds)
        goal = any(value is not None for value in wanted.values())
        wanted["max_loss"], losses = split_loss(max_loss, beside=goal)
        goal = goal or wanted["max_loss"] is not None
        changed = {
            "min_recall": min_recall is not None,
            "min_precision": min_precision is not None,
            # a loss of all rows takes the place of losses by class
            "max_loss": max_loss is not None and bool(losses or self.class_bounds_.max_loss),
        }
        if any(changed.values()):
            given = ClassBounds.from_mappings(classes, min_recall, min_precision, losses)
            new = {name: getattr(given, name) for name, is_new in changed.items() if is_new}
            other.class_bounds_ = replace(self.class_bounds_, **new)
        other._take(other._choose(**wanted) if goal or not beside else other._pick())
        return other

    def at(
        self,
        *,
        budget: float | None = None,
        max_loss: float | Mapping[Any, float] | None = None,
        min_recall: Mapping[Any, float] | None = None,
        min_precision: Mapping[Any, float] | None = None,
    ) -> Self:
        """Get the same fitted models at another operating point; nothing is refitted.

        Parameters
        ----------
        budget, max_loss, min_recall, min_precision
            As for :meth:`StagedCascade.at`.

        Returns
        -------
        estimator
            A copy that shares the models.
        """
        return self._moved_within(min_recall, min_precision, budget=budget, max_loss=max_loss)

    def _cap_cost(self, most: float) -> None:
        """Keep the operating points at which no instance can cost more."""
        self.frontier_ = self.frontier_.within_cost(most)
        self.max_instance_cost_ = float(most)

    # -- the fitted system -----------------------------------------------------------------

    def exit_stage(self, X: ArrayLike) -> NDArray[np.int64]:
        """Stage at which each row is answered.

        Parameters
        ----------
        X : array-like of shape (n, n_features)

        Returns
        -------
        ndarray of int64, shape (n,)
            The number of stages: offloaded.
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
        index, f0 = np.zeros(len(x), np.int64), self.high_cost_model_
        for s, rows, margins in self._route(x):
            if s < len(self.stages_):
                index[rows] = labels(margins)
            elif f0 is not None:
                index[rows] = f0.labels(x[rows])
        return self.classes_[index]

    def predict_proba(self, X: ArrayLike) -> NDArray[np.float64]:
        """Class probabilities of the model that answers.

        Parameters
        ----------
        X : array-like of shape (n, n_features)

        Returns
        -------
        ndarray of float64, shape (n, n_classes)
            Columns by sorted class.
        """
        x = self._rows(X)
        proba, f0 = np.zeros((len(x), len(self.classes_))), self.high_cost_model_
        for s, rows, margins in self._route(x):
            if s < len(self.stages_):
                proba[rows] = probabilities(margins, self.stages_[s].link)
            elif f0 is not None:
                proba[rows] = f0.predict_proba(x[rows])
        return proba

    def cost(
        self, X: ArrayLike, accounting: Literal["union", "paper"] = "union"
    ) -> NDArray[np.float64]:
        """Cost of each row.

        Parameters
        ----------
        X : array-like of shape (n, n_features)
        accounting : {"union", "paper"}, default "union"
            What an offloaded row pays: what its stages acquired and what else the high-cost model
            reads, or as in the papers the high-cost model's features alone.

        Returns
        -------
        ndarray of float64, shape (n,)
            In the unit of the feature costs.

        Raises
        ------
        InputError
            If `accounting` is neither.
        """
        if accounting not in ("union", "paper"):
            raise InputError(f"accounting must be 'union' or 'paper', not {accounting!r}")
        x = self._rows(X)
        acquired = [stage.acquired(x) for stage in self.stages_]
        by_exit = self._exit_costs(acquired, union=accounting == "union")
        return at_exits(by_exit, self._exits(x))

    def explain(self, x: Any) -> Explanation:
        """Explain the answer to one instance: what each stage acquired, and why it ended there.

        Parameters
        ----------
        x : array-like of shape (n_features,), mapping or Series by feature name, or a table of one
            row

        Returns
        -------
        Explanation
            Prints as a line a stage; its attributes hold the same.

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
        """Yield stages with the rows that they answer and their margins; last the offloaded rows.

        These have the number of stages, and no margins.
        """
        last, waiting = self.last_exit_, np.arange(len(x))
        for s, threshold in enumerate(self.operating_point_.thresholds[: last + 1]):
            if not len(waiting) or (threshold is None and s < last):
                continue
            stage = self.stages_[s]
            margins, score = split(stage.margins(x[waiting]), stage.score)
            leave = stops(score, threshold) if s < last else np.ones(len(waiting), bool)
            yield s, waiting[leave], margins[leave]
            waiting = waiting[~leave]
        if len(waiting):
            yield len(self.stages_), waiting, np.empty((len(waiting), 0), np.float32)
