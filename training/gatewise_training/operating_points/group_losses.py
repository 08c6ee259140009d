"""Upper bounds on the loss of operating points in new groups, from the validation groups.

Because groups are few, their mean loss and its standard error alone promise too much:

- Gains do not make up for losses. The validation answers of the high-cost model come from its
  out-of-fold clones, and a cheap stage gains in a group in which they fail. The final model has
  seen more groups and may not fail there. A gain of a group therefore counts 0, except for the part
  of it that chance explains. The bound is
  ``mean + t * standard error`` of these losses. If gains are large and common, the bound on the
  mean of losses and gains may be lower, even at a higher confidence, and replaces it.
- Cheaper points must be safe as well. A point may look safe by chance, or lose its safety because
  the scores of the final model differ from the folds' scores. Therefore all points that cost at
  least a share of its cost must also be within the bound. The share is chosen on random halves of
  the groups, so that a point that is chosen on one half keeps its loss on the other half nine times
  in ten.

The candidates are the points of the frontier and safer points. The latter are needed if stages are
more often right than the high-cost model. The frontier then ends at the stages, although they lose
in some groups. If no point is safe enough, all instances go to the high-cost model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec
import numpy as np
from numpy.typing import NDArray
from scipy import stats

from gatewise.operating_point import OperatingPoint
from gatewise_training.operating_points.cascade_record import CascadeRecord
from gatewise_training.operating_points.frontier import Frontier
from gatewise_training.operating_points.guarantee import Promise, row_losses

#: Confidence of the bound on the mean loss of new groups. It is lower than NET_LOSS_LEVEL, because
#: this bound leaves out the gains.
LOSS_LEVEL = 0.8

#: Confidence of the bound on the mean of losses and gains.
NET_LOSS_LEVEL = 0.95

#: Shares of a point's cost. Points that cost at least that share must also be within the bound.
COST_SHARES = (1.0, 0.9, 0.8)

#: Share of the random halves of the groups on which a choice must keep the loss.
MIN_SHARE_OF_HALVES = 0.9

#: Points that are measured at once. Each takes one number per row, so this bounds the memory.
POINTS_PER_STEP = 128

#: Number of random splits of the groups into halves, enough to tell nine of ten from fewer.
N_SPLITS = 40


def loss_bounds(
    loss_sums: NDArray[np.float64],
    weights: NDArray[np.float64],
    variance: NDArray[np.float64] | float,
) -> NDArray[np.float64]:
    """Bound the mean loss of new groups by the losses of seen groups.

    `loss_sums` has the sums over the rows of each group, shape (..., n_groups). `weights` has shape
    (n_groups,). `variance` is that of the loss of a row, shape (...,). The bounds have the same
    shape, and are 1 for a single group. The loss of a group is estimated by shrinking its mean
    towards the mean of all rows, by the variance between groups (DerSimonian & Laird 1986).
    """
    n = len(weights)
    if n < 2:
        return np.ones(loss_sums.shape[:-1])
    weight_shares = weights / weights.sum()
    group_means = loss_sums / weights
    mean = (group_means @ weight_shares)[..., np.newaxis]
    chance_variance = np.asarray(variance)[..., np.newaxis] / weights  # variance of a group's mean
    between_variance = np.maximum(
        ((group_means - mean) ** 2 - chance_variance) @ weight_shares, 0.0
    )[..., np.newaxis]
    total_variance = between_variance + chance_variance
    # shrinkage: mean + between / (between + chance) (group mean - mean)
    shrinkage = np.divide(
        between_variance, total_variance, out=np.ones_like(group_means), where=total_variance > 0
    )
    shrunken_means = mean + shrinkage * (group_means - mean)
    # a gain counts 0, except for the part that chance explains
    loss_mean = (group_means + np.maximum(-shrunken_means, 0.0)) @ weight_shares
    # bound by standard errors: sqrt(n / (n - 1) sum (weight share * deviation)^2)
    group_losses = np.maximum(group_means, 0.0)
    loss_margin = stats.t.ppf(LOSS_LEVEL, n - 1) * _estimate_errors(group_losses, weight_shares)
    # the bound on the mean of losses and gains, at a higher confidence
    net_margin = stats.t.ppf(NET_LOSS_LEVEL, n - 1) * _estimate_errors(group_means, weight_shares)
    bounds: NDArray[np.float64] = np.minimum(loss_mean + loss_margin, mean[..., 0] + net_margin)
    return bounds


def _estimate_errors(
    group_means: NDArray[np.float64], weight_shares: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Compute the standard errors of means over groups, of shape (...,)."""
    n = len(weight_shares)
    deviations = group_means - (group_means @ weight_shares)[..., np.newaxis]
    standard_errors: NDArray[np.float64] = np.sqrt(
        n / (n - 1) * ((weight_shares * deviations) ** 2).sum(axis=-1)
    )
    return standard_errors


@dataclass(frozen=True, eq=False)
class GroupLosses:
    """Losses of points in each group of the validation rows; points are in order of rising cost."""

    costs: NDArray[np.float64]  # (n_points,)
    loss_sums: NDArray[np.float64]  # (n_points, n_groups): weighted sums of row losses
    weights: NDArray[np.float64]  # (n_groups,): sums of answer weights
    variance: NDArray[np.float64]  # (n_points,): of a row's loss
    optimism: NDArray[np.float64]  # (n_points,): loss that tuning on the same rows hides

    @classmethod
    def from_points(
        cls,
        points: Sequence[OperatingPoint],
        records: Sequence[CascadeRecord],
        reference_accuracy: float,
    ) -> GroupLosses:
        """Sum each group's losses against the last exit, of accuracy `reference_accuracy`."""
        reference_record = records[-1]
        answer_weights = reference_record.answer_weights
        group_sums = reference_record.splitter.group_sums
        weights = group_sums(answer_weights)
        loss_sums = []
        square_sums = []
        for index in range(0, len(points), POINTS_PER_STEP):
            losses_by_point = []
            for point in points[index : index + POINTS_PER_STEP]:
                record = records[point.chain]
                exits = record.exits(point.thresholds)
                losses_by_point.append(row_losses(record, reference_record, exits))
            losses = np.stack(losses_by_point)
            loss_sums.append(group_sums(answer_weights * losses))
            square_sums.append(losses**2 @ answer_weights)
        group_loss_sums = np.concatenate(loss_sums)
        mean_loss = group_loss_sums.sum(axis=1) / weights.sum()
        variance = np.concatenate(square_sums) / weights.sum() - mean_loss**2
        optimism = (
            np.array([reference_accuracy - point.effective_accuracy for point in points])
            - mean_loss
        )
        costs = np.array([point.cost for point in points])
        return cls(costs, group_loss_sums, weights, variance, np.maximum(optimism, 0.0))

    def select_points(self, point_indices: Sequence[int]) -> GroupLosses:
        """Get the losses of some of the points, by their indices."""
        arrays = (self.costs, self.loss_sums, self.variance, self.optimism)
        costs, loss_sums, variance, optimism = (values[point_indices] for values in arrays)
        return GroupLosses(costs, loss_sums, self.weights, variance, optimism)

    def bounds(self, groups: NDArray[np.intp] | None = None) -> NDArray[np.float64]:
        """Bound each point's loss in new groups, (n_points,), by all groups or some of them."""
        selected_groups = slice(None) if groups is None else groups
        loss_sums = self.loss_sums[:, selected_groups]
        weights = self.weights[selected_groups]
        return loss_bounds(loss_sums, weights, self.variance) + self.optimism

    def choose_cost_share(self, max_loss: float) -> float:
        """Choose the share of a point's cost above which cheaper points must be within the loss."""
        rng = np.random.default_rng(0)
        # choose on one half of the groups, check the loss on the other
        splits = [np.array_split(rng.permutation(len(self.weights)), 2) for _ in range(N_SPLITS)]
        for cost_share in COST_SHARES[:-1]:
            n_halves_within_loss = 0
            for choosing_groups, checking_groups in splits:
                bounds = self.largest_nearby_bounds(self.bounds(choosing_groups), cost_share)
                safe_points = np.flatnonzero(bounds <= max_loss)
                if not len(safe_points):  # all instances go to the high-cost model, without a loss
                    n_halves_within_loss += 1
                    continue
                loss_sum = self.loss_sums[safe_points[0], checking_groups].sum()
                loss = loss_sum / self.weights[checking_groups].sum()
                n_halves_within_loss += bool(loss <= max_loss)
            if n_halves_within_loss >= MIN_SHARE_OF_HALVES * N_SPLITS:
                return cost_share
        return COST_SHARES[-1]  # the safest, even if it is not safe enough on the halves

    def largest_nearby_bounds(
        self, bounds: NDArray[np.float64], cost_share: float
    ) -> NDArray[np.float64]:
        """Get the largest bound among each point and the points of at least a share of its cost."""
        # 1 - 1e-9, so that rounding excludes no point of exactly that cost
        first_indices = np.searchsorted(self.costs, cost_share * self.costs * (1 - 1e-9))
        return np.array(
            [
                bounds[min(first_index, index) : index + 1].max()
                for index, first_index in enumerate(first_indices)
            ]
        )


def with_group_errors(
    frontier: Frontier,
    points: Sequence[OperatingPoint],
    records: Sequence[CascadeRecord],
    max_loss: float,
) -> Frontier:
    """Set each point's error by its bound in new groups, and add safer points off the curve.

    The error of a point is the bound on the loss of new groups minus the loss of the validation
    groups. `points` are all measured points. :meth:`GroupLosses.choose_cost_share` chooses a share
    for `max_loss`. A safer point has a lower bound than all cheaper points. The point that never
    loses is among the safer points. Without groups the frontier does not change.
    """
    if records[-1].splitter.n_groups is None:
        return frontier
    reference_accuracy = frontier.reference_effective_accuracy
    certain_promise = Promise("max_loss", 0.0, LOSS_LEVEL)
    chains = {point.chain for point in frontier.points}
    curve_points = set(frontier.points)
    points = [point for point in points if point.chain in chains]
    points.sort(key=lambda point: (point.cost, -point.effective_accuracy))
    certain_point = next(
        (point for point in points if certain_promise.is_certain(records, point)), None
    )
    losses = GroupLosses.from_points(points, records, reference_accuracy)
    bounds = losses.bounds()
    is_safer = bounds < np.minimum.accumulate(np.append(np.inf, bounds[:-1]))
    candidate_indices = [
        index
        for index, point in enumerate(points)
        if point in curve_points or (is_safer[index] and point != certain_point)
    ]
    # bounds of the candidates, each over the candidates down to a share of its cost
    candidate_losses = losses.select_points(candidate_indices)
    candidate_bounds = candidate_losses.largest_nearby_bounds(
        bounds[candidate_indices], candidate_losses.choose_cost_share(max_loss)
    )
    candidates = [points[index] for index in candidate_indices]
    bounded_points = _set_errors(candidates, candidate_bounds, reference_accuracy)
    safer_points = [
        bounded_point
        for point, bounded_point in bounded_points.items()
        if point not in curve_points
    ]
    if certain_point is not None and certain_point not in curve_points:
        safer_points.append(certain_point)
    other_points = [
        point
        for point in frontier.off_curve_points
        if point not in bounded_points and point != certain_point
    ]
    return replace(
        frontier,
        points=tuple(bounded_points[point] for point in frontier.points),
        off_curve_points=(
            *_bound_each_alone(other_points, records, reference_accuracy),
            *safer_points,
        ),
    )


def _bound_each_alone(
    points: Sequence[OperatingPoint], records: Sequence[CascadeRecord], reference_accuracy: float
) -> list[OperatingPoint]:
    """Set each point's error by its own bound, without regard to cheaper points."""
    if not points:
        return []
    losses = GroupLosses.from_points(points, records, reference_accuracy)
    return list(_set_errors(points, losses.bounds(), reference_accuracy).values())


def _set_errors(
    points: Sequence[OperatingPoint], bounds: NDArray[np.float64], reference_accuracy: float
) -> dict[OperatingPoint, OperatingPoint]:
    """Map each point to a copy that has the bound minus the point's loss as its error."""
    accuracies = [point.effective_accuracy for point in points]
    errors = np.maximum(bounds - reference_accuracy + accuracies, 0.0)
    pairs = zip(points, errors.tolist(), strict=True)
    return {point: msgspec.structs.replace(point, accuracy_error=error) for point, error in pairs}
