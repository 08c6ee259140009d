"""Answers of a cascade's stages on labelled rows, from which any setting of thresholds is measured.

A setting has one threshold for each stage.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gatewise.acquisition import select_exit_costs
from gatewise.decision import exit_stages, reachable_exits
from gatewise.errors import InputError
from gatewise.operating_point import OperatingPoint
from gatewise_training.data.row_splitter import RowSplitter
from gatewise_training.operating_points.class_figures import ExitAnswers
from gatewise_training.operating_points.packed_size import PackedSizes


@dataclass(frozen=True, eq=False)
class CascadeRecord:
    """Scores, right answers and costs of a cascade's stages on labelled rows."""

    scores: NDArray[np.float32]  # (n_stages, n): stop scores; NaN never stops
    # (n_stages + 1, n): 1 if a stage's answer is correct, else 0. The last row is the reference
    # for losses: the high-cost model or, without a cloud, a model that answers no row
    correctness: NDArray[np.float64]
    # (n_stages + 1,) or (n_stages + 1, n): cost of a row that leaves at each stage. The last entry
    # is for an offload. Costs differ between rows if features are acquired node by node
    exit_costs: NDArray[np.float64]
    weights: NDArray[np.float64]  # (n,): their mean is 1
    splitter: RowSplitter  # groups and times of the rows
    has_cloud: bool = True
    # (n_stages + 1, n): whether a stage's answer equals the high-cost model's
    agrees_with_reference: NDArray[np.bool_] | None = None
    tree_counts: tuple[int, ...] = ()  # number of trees that each stage evaluates for a row
    model_bytes: tuple[int, ...] = ()  # size of each stage's model
    packed_sizes: PackedSizes | None = None  # sizes of the stages on a device
    # (n_stages + 1,): upper bound on the cost of leaving at each exit, which also holds for new
    # rows; None if unknown, or not needed because `exit_costs` are the same for all rows
    cost_limits: NDArray[np.float64] | None = None
    # (n,): weight of each row's class in the weighted accuracy; costs and rates ignore it
    class_weights: NDArray[np.float64] | None = None
    exit_answers: ExitAnswers | None = None
    is_offload_affordable: bool = True

    @property
    def can_offload(self) -> bool:
        """Whether rows may be sent to a high-cost model."""
        return self.has_cloud and self.is_offload_affordable

    @property
    def n_independent_units(self) -> int:
        """Number of independent observations: the groups if rows have groups, or else the rows."""
        return self.splitter.n_groups or len(self.weights)

    @property
    def n_stages(self) -> int:
        """Number of stages before the high-cost model."""
        return len(self.scores)

    def take(self, rows: NDArray[np.intp] | NDArray[np.bool_]) -> CascadeRecord:
        """Get the record of some of the rows."""
        weights = self.weights[rows]
        costs = self.exit_costs
        return replace(
            self,
            exit_costs=costs[:, rows] if costs.ndim == 2 else costs,
            scores=self.scores[:, rows],
            correctness=self.correctness[:, rows],
            agrees_with_reference=None
            if self.agrees_with_reference is None
            else self.agrees_with_reference[:, rows],
            weights=weights / weights.mean(),
            class_weights=None if self.class_weights is None else self.class_weights[rows],
            exit_answers=None if self.exit_answers is None else self.exit_answers.take(rows),
            splitter=self.splitter.take(rows),
        )

    @property
    def scaled_class_weights(self) -> NDArray[np.float64]:
        """Class weight of each row, shape (n,), scaled to a mean of 1."""
        class_weights = self.class_weights
        if class_weights is None:
            return np.ones(len(self.weights))
        scaled_class_weights: NDArray[np.float64] = class_weights / np.average(
            class_weights, weights=self.weights
        )
        return scaled_class_weights

    @property
    def answer_weights(self) -> NDArray[np.float64]:
        """Weights of right answers, shape (n,): row weights times class weights."""
        return (
            self.weights if self.class_weights is None else self.weights * self.scaled_class_weights
        )

    def reference_effective_accuracy(self) -> float:
        """Compute the accuracy of the reference, weighted by class if classes have weights."""
        return float(np.average(self.correctness[-1], weights=self.answer_weights))

    def exits(self, thresholds: Iterable[float | None]) -> NDArray[np.int64]:
        """Get the stage at which each row leaves, shape (n,)."""
        return exit_stages(list(self.scores), tuple(thresholds))

    def costs(self, exits: NDArray[np.int64]) -> NDArray[np.float64]:
        """Get the cost of each row if the rows leave at `exits`, shape (n,)."""
        return select_exit_costs(self.exit_costs, exits)

    def highest_costs(self) -> NDArray[np.float64]:
        """Get the largest cost of leaving at each exit on any row, shape (n_stages + 1,)."""
        if self.cost_limits is not None:
            return self.cost_limits
        if self.exit_costs.ndim == 2:
            raise InputError("new rows may cost more than these rows; give cost_limits")
        return self.exit_costs

    def reachable_exits(self, thresholds: Sequence[float | None]) -> list[int]:
        """List the exits that a row can take; the last exit is the cloud.

        A stage's score may be NaN on new rows only if it is on one of these rows.
        """
        return reachable_exits(thresholds, lambda stage: bool(np.isnan(self.scores[stage]).any()))

    def within_cost(self, max_cost: float | None) -> CascadeRecord:
        """Return this record, without offloads if one may cost more than `max_cost`."""
        may_offload = max_cost is None or float(self.highest_costs()[-1]) <= max_cost
        return (
            self
            if may_offload == self.is_offload_affordable
            else replace(self, is_offload_affordable=may_offload)
        )

    def lowest_costs(self) -> NDArray[np.float64]:
        """Get the smallest cost of leaving at each exit on any row, shape (n_stages + 1,)."""
        # if costs differ between rows, a new row may cost less than all of these
        return self.exit_costs if self.exit_costs.ndim == 1 else np.zeros(self.n_stages + 1)

    def measure(self, thresholds: Iterable[float | None], chain: int = 0) -> OperatingPoint:
        """Measure a setting of the thresholds as an operating point."""
        thresholds = tuple(thresholds)
        exits = self.exits(thresholds)
        rows = np.arange(len(exits))
        correctness = self.correctness[exits, rows]
        class_figures: dict[str, Any] = {}
        if self.exit_answers is not None:
            class_figures = self.exit_answers.figures(exits, self.weights)
        if self.class_weights is not None:
            class_figures["weighted_accuracy"] = _mean(correctness, self.answer_weights)
        agreement = None
        if self.agrees_with_reference is not None:
            agreement = _mean(self.agrees_with_reference[exits, rows], self.weights)
        used_stages = [stage for stage, threshold in enumerate(thresholds) if threshold is not None]
        # number of trees that a row evaluates until each exit
        trees_until_exit = np.zeros(self.n_stages + 1)
        for stage in used_stages if self.tree_counts else []:
            trees_until_exit[stage:] += self.tree_counts[stage]
        max_cost = None
        if self.cost_limits is not None or self.exit_costs.ndim == 1:
            max_cost = float(self.highest_costs()[self.reachable_exits(thresholds)].max())
        weight_by_exit = np.bincount(exits, self.weights, self.n_stages + 1)
        return OperatingPoint(
            thresholds=thresholds,
            cost=_mean(self.costs(exits), self.weights),
            accuracy=_mean(correctness, self.weights),
            offload_rate=_mean(exits == self.n_stages, self.weights),
            accuracy_error=self._estimate_accuracy_error(correctness),
            agreement=agreement,
            trees=_mean(trees_until_exit[exits], self.weights),
            nbytes=sum(self.model_bytes[stage] for stage in used_stages if self.model_bytes),
            bytes=0
            if self.packed_sizes is None
            else self.packed_sizes.bytes_on_device(used_stages),
            max_cost=max_cost,
            chain=chain,
            exit_shares=tuple((weight_by_exit / weight_by_exit.sum()).tolist()),
            validation_groups=self.splitter.n_groups,
            **class_figures,
        )

    def _estimate_accuracy_error(self, correctness: NDArray[np.float64]) -> float:
        """Estimate the standard error of the gain over the reference, given `correctness`, (n,)."""
        gain = correctness - self.correctness[-1]
        deviations = self.scaled_class_weights * (gain - _mean(gain, self.answer_weights))
        # sqrt(mean((gain - mean gain)^2) / n)
        accuracy_error = math.sqrt(_mean(deviations**2, self.weights) / len(gain))
        if self.splitter.n_groups is None:
            return accuracy_error
        # few groups may agree by chance, so use the larger error
        contributions = self.weights * deviations / self.weights.sum()
        return max(accuracy_error, self.splitter.clustered_error(contributions))


def _mean(values: NDArray[Any], weights: NDArray[np.float64]) -> float:
    """Compute a weighted mean; ``numpy.average`` takes twice as long."""
    return float((values * weights).sum() / weights.sum())
