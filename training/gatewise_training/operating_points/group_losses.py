"""Bounds on the loss of new groups at operating points, by the losses of the validation groups.

Groups are few, so that their mean loss and its standard error alone promise too much:

- Gains do not make up for losses. A cheap stage gains where the high-cost model's out-of-fold
  clones fail on a group, but the final model has seen more groups and may not fail there. A group
  that gains therefore counts 0, as far as groups differ by more than chance explains. The
  bound is ``mean + t * standard error`` of these losses. Where gains are large and common, the
  bound of a higher confidence on the mean of losses and gains may be lower and replaces it.
- Cheaper points must be safe as well. A point may look safe by chance, or lose its safety because
  the scores of the final model differ from the folds' scores. Points that are cheaper by a share of
  the cost must therefore also keep the bound. The share is chosen on random halves of the groups,
  so that a point that is chosen on one half keeps its loss on the other half nine times in ten.

The candidates are the points of the frontier and safer points. If stages are more often right than
the high-cost model, the frontier has no points between the two, although some groups lose. If no
point is safe enough, all instances go to the high-cost model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec
import numpy as np
from numpy.typing import NDArray
from scipy import stats

from gatewise.operating_point import OperatingPoint
from gatewise_training.operating_points.frontier import Frontier
from gatewise_training.operating_points.guarantee import Promise, lost_rows
from gatewise_training.operating_points.thresholds import CascadeRecord

LOSS_LEVEL = 0.8
"""Confidence of the bound on the mean loss of new groups."""

BALANCE_LEVEL = 0.95
"""Confidence of the bound on the mean of losses and gains."""

COST_SHARES = (1.0, 0.9, 0.8)
"""Shares of a point's cost. Cheaper points down to that cost must also keep the bound."""

MIN_SHARE_OF_HALVES = 0.9
"""Share of the random halves of the groups on which a choice must keep the loss."""

POINTS_PER_STEP = 128
"""Points that are measured at once. Each takes one number per row, so this bounds the memory."""

N_SPLITS = 40
"""Number of random splits of the groups into halves."""


def loss_bounds(
    lost: NDArray[np.float64],
    weights: NDArray[np.float64],
    variance: NDArray[np.float64] | float,
    level: float = LOSS_LEVEL,
) -> NDArray[np.float64]:
    """Bound the mean loss of new groups by the losses of seen groups.

    `lost` has the sums over the rows of each group, shape (..., n_groups). `weights` has shape
    (n_groups,), and `variance` of a row's loss has shape (...,). The bounds have shape (...,), and
    are 1 for a single group. The loss of a group is estimated by shrinking its mean towards the
    mean of all rows, by the variance between groups (DerSimonian & Laird 1986).
    """
    n = len(weights)
    if n < 2:
        return np.ones(lost.shape[:-1])
    share = weights / weights.sum()
    group_mean = lost / weights
    mean = (group_mean @ share)[..., np.newaxis]
    chance = np.asarray(variance)[..., np.newaxis] / weights  # variance of a group's mean
    between_variance = np.maximum(((group_mean - mean) ** 2 - chance) @ share, 0.0)[..., np.newaxis]
    total = between_variance + chance
    # shrinkage: mean + between / (between + chance) (group mean - mean)
    trust = np.divide(between_variance, total, out=np.ones_like(group_mean), where=total > 0)
    shrunken = mean + trust * (group_mean - mean)
    # a gain counts 0, except for the part that chance explains
    means = (group_mean + np.maximum(-shrunken, 0.0)) @ share
    # bound by standard errors: sqrt(n / (n - 1) sum (share * deviation)^2)
    losing = np.maximum(group_mean, 0.0)
    losses_alone = means + stats.t.ppf(level, n - 1) * _errors(losing, share)
    # the bound on the mean of losses and gains, at a higher confidence
    balance = mean[..., 0] + stats.t.ppf(max(level, BALANCE_LEVEL), n - 1) * _errors(
        group_mean, share
    )
    bounds: NDArray[np.float64] = np.minimum(losses_alone, balance)
    return bounds


def _errors(group_mean: NDArray[np.float64], share: NDArray[np.float64]) -> NDArray[np.float64]:
    """Compute the standard errors of means over groups, of shape (...,)."""
    n = len(share)
    deviation = group_mean - (group_mean @ share)[..., np.newaxis]
    errors: NDArray[np.float64] = np.sqrt(n / (n - 1) * ((share * deviation) ** 2).sum(axis=-1))
    return errors


@dataclass(frozen=True, eq=False)
class GroupLosses:
    """Losses of points in each group of the validation rows; points are in order of rising cost."""

    costs: NDArray[np.float64]  # (n_points,)
    lost: NDArray[np.float64]  # (n_points, n_groups): sums of row losses
    weights: NDArray[np.float64]  # (n_groups,): sums of row weights
    variance: NDArray[np.float64]  # (n_points,): of a row's loss
    optimism: NDArray[np.float64]  # (n_points,): loss that tuning on the same rows hides

    @classmethod
    def from_points(
        cls, points: Sequence[OperatingPoint], records: Sequence[CascadeRecord], reference: float
    ) -> GroupLosses:
        """Sum the losses against the last exit, which has the accuracy `reference`."""
        reference_record = records[-1]
        answer_weights = reference_record.answer_weights
        group_sums = reference_record.splitter.group_sums
        weights = group_sums(answer_weights)
        losses = []
        squares = []
        for i in range(0, len(points), POINTS_PER_STEP):
            owners = [(records[p.chain], p.thresholds) for p in points[i : i + POINTS_PER_STEP]]
            row_losses = np.stack(
                [lost_rows(r, reference_record, r.exits(setting)) for r, setting in owners]
            )
            losses.append(group_sums(answer_weights * row_losses))
            squares.append(row_losses**2 @ answer_weights)
        group_losses = np.concatenate(losses)
        mean_loss = group_losses.sum(axis=1) / weights.sum()
        variance = np.concatenate(squares) / weights.sum() - mean_loss**2
        optimism = np.array([reference - p.effective_accuracy for p in points]) - mean_loss
        costs = np.array([p.cost for p in points])
        return cls(costs, group_losses, weights, variance, np.maximum(optimism, 0.0))

    def select(self, points: Sequence[int]) -> GroupLosses:
        """Get the losses of some of the points."""
        arrays = (self.costs, self.lost, self.variance, self.optimism)
        costs, lost, variance, optimism = (values[points] for values in arrays)
        return GroupLosses(costs, lost, self.weights, variance, optimism)

    def bounds(self, groups: NDArray[np.intp] | None = None) -> NDArray[np.float64]:
        """Bound each point's loss in new groups, (n_points,), by all groups or some of them."""
        columns = slice(None) if groups is None else groups
        lost = self.lost[:, columns]
        weights = self.weights[columns]
        return loss_bounds(lost, weights, self.variance) + self.optimism

    def checked_share(self, max_loss: float) -> float:
        """Choose one of COST_SHARES: cheaper points down to it must also keep the loss."""
        rng = np.random.default_rng(0)
        # choose on one half of the groups, check the loss on the other
        halves = [np.array_split(rng.permutation(len(self.weights)), 2) for _ in range(N_SPLITS)]
        for share in COST_SHARES[:-1]:
            n_kept = 0
            for choosing, checking in halves:
                safe = np.flatnonzero(self.nearby(self.bounds(choosing), share) <= max_loss)
                if not len(safe):
                    n_kept += 1
                    continue
                loss = self.lost[safe[0], checking].sum() / self.weights[checking].sum()
                n_kept += bool(loss <= max_loss)
            if n_kept >= MIN_SHARE_OF_HALVES * N_SPLITS:
                return share
        return COST_SHARES[-1]

    def nearby(self, bounds: NDArray[np.float64], share: float) -> NDArray[np.float64]:
        """Get the largest bound among each point and cheaper points down to `share` of its cost."""
        starts = np.searchsorted(self.costs, share * self.costs * (1 - 1e-9))
        return np.array([bounds[min(a, i) : i + 1].max() for i, a in enumerate(starts)])


def with_group_errors(
    frontier: Frontier,
    points: Sequence[OperatingPoint],
    records: Sequence[CascadeRecord],
    max_loss: float,
) -> Frontier:
    """Set the errors of a frontier's points for new groups, and add safer points to its others.

    The error of a point is the bound on the loss of new groups minus the loss of the validation
    groups. `points` are all measured points, and `max_loss` sets
    :meth:`GroupLosses.checked_share`. A safer point has a lower bound than all cheaper points. The
    point that never loses is among the safer points. Without groups the frontier does not change.
    """
    if records[-1].splitter.n_groups is None:
        return frontier
    reference = frontier.reference_effective_accuracy
    certain = Promise("max_loss", 0.0, LOSS_LEVEL)
    chains = {p.chain for p in frontier.points}
    curve = set(frontier.points)
    by_cost = sorted(
        (p for p in points if p.chain in chains), key=lambda p: (p.cost, -p.effective_accuracy)
    )
    certain_point = next((p for p in by_cost if certain.is_certain(records, p)), None)
    losses = GroupLosses.from_points(by_cost, records, reference)
    bounds = losses.bounds()
    is_safer = bounds < np.minimum.accumulate(np.append(np.inf, bounds[:-1]))
    nearby = [
        i for i, p in enumerate(by_cost) if p in curve or (is_safer[i] and p != certain_point)
    ]
    # bounds of the points near the curve, over all points down to a share of their cost
    losses = losses.select(nearby)
    bounds = losses.nearby(bounds[nearby], losses.checked_share(max_loss))
    with_error = dict(_with_errors([by_cost[i] for i in nearby], bounds, reference))
    # the frontier's others need only errors
    others = [p for p in frontier.others if p not in with_error and p != certain_point]
    if others:
        bounds = GroupLosses.from_points(others, records, reference).bounds()
        others = [p for _, p in _with_errors(others, bounds, reference)]
    safer = [p for point, p in with_error.items() if point not in curve]
    certain_one = [] if certain_point is None or certain_point in curve else [certain_point]
    return replace(
        frontier,
        points=tuple(with_error[p] for p in frontier.points),
        others=(*others, *safer, *certain_one),
    )


def _with_errors(
    points: Sequence[OperatingPoint], bounds: NDArray[np.float64], reference: float
) -> list[tuple[OperatingPoint, OperatingPoint]]:
    """Pair each point with a copy that has the bound minus the point's loss as its error."""
    errors = np.maximum(bounds - reference + [p.effective_accuracy for p in points], 0.0)
    pairs = zip(points, errors.tolist(), strict=True)
    return [(p, msgspec.structs.replace(p, accuracy_error=error)) for p, error in pairs]
