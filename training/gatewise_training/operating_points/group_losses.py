"""What new groups lose at operating points, at most, by what the validation groups lose.

Groups are few, and neither their mean loss nor its standard error says enough about new ones:

- Where the high-cost model's out-of-fold clones fail on a group, a cheap stage gains. The model
  that is kept has seen more groups and may not fail so. Gains of some groups do not pay for the
  losses of others, therefore: a group that gains counts 0, as far as groups differ by more than
  the chance of their rows (rows that are groups of their own never do). The bound is the mean of
  these losses and Student's quantile of the standard error of what groups lose.
- A point may look safe by chance, or stop to be so where the scores of the model that is kept
  differ from those of the folds' models. So a choice has a share of the cost in hand: points that
  are cheaper by that share must keep the bound, too. How large the share is to be is found on
  random halves of the groups: a point is chosen on one half, and is to keep its loss on the other
  nine times in ten.

Candidates are the frontier's points and, beside them, safer ones: where stages are more often
right than the high-cost model, the frontier has nothing between them and it, though some groups
lose by that. Where no point is safe enough, the one that is certain is left: all to the high-cost
model.
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

LEVEL = 0.8
"""Confidence of the bound on the mean loss of new groups."""

IN_HAND = (1.0, 0.9, 0.8)
"""Costs, as parts of a point's, down to which other points must keep the bound too."""

KEPT = 0.9
"""Halves of the groups, of all, on which a choice must keep the loss."""

AT_ONCE = 128
"""Points that are counted at once: each takes a number for every row."""

HALVES = 40
"""Times that the groups are parted into halves."""


def loss_bounds(
    lost: NDArray[np.float64],
    weights: NDArray[np.float64],
    variance: NDArray[np.float64] | float,
    level: float = LEVEL,
) -> NDArray[np.float64]:
    """Bound the mean loss of new groups by the sums over seen ones.

    Shapes: `lost` (..., n_groups), `weights` (n_groups,), `variance` of a row's loss (...,);
    returns (...), 1 by one group alone. A group's own loss is estimated by shrinking its mean
    towards all rows', by the variance between groups (DerSimonian & Laird 1986).
    """
    n = len(weights)
    if n < 2:
        return np.ones(lost.shape[:-1])
    share = weights / weights.sum()
    own = lost / weights
    mean = (own @ share)[..., np.newaxis]
    chance = np.asarray(variance)[..., np.newaxis] / weights
    between = np.maximum(((own - mean) ** 2 - chance) @ share, 0.0)[..., np.newaxis]
    total = between + chance
    likely = mean + np.divide(between, total, out=np.ones_like(own), where=total > 0) * (own - mean)
    means = (own + np.maximum(-likely, 0.0)) @ share
    losing = np.maximum(own, 0.0)
    off = losing - (losing @ share)[..., np.newaxis]
    errors = np.sqrt(n / (n - 1) * ((share * off) ** 2).sum(axis=-1))
    bounds: NDArray[np.float64] = means + stats.t.ppf(level, n - 1) * errors
    return bounds


@dataclass(frozen=True, eq=False)
class GroupLosses:
    """Losses of points, by rising cost, in each group of the validation rows."""

    costs: NDArray[np.float64]  # (n_points,)
    lost: NDArray[np.float64]  # (n_points, n_groups): sums over the rows
    weights: NDArray[np.float64]  # (n_groups,): of the rows
    variance: NDArray[np.float64]  # (n_points,): of a row's loss
    optimism: NDArray[np.float64]  # (n_points,): loss that tuning hides

    @classmethod
    def of_points(
        cls, points: Sequence[OperatingPoint], records: Sequence[CascadeRecord], reference: float
    ) -> GroupLosses:
        """Count the losses against the last exit, of accuracy `reference`."""
        last = records[-1]
        merits = last.merits
        sums = last.splitter.group_sums
        weights = sums(merits)
        lost = []
        squares = []
        for i in range(0, len(points), AT_ONCE):
            owners = [(records[p.chain], p.thresholds) for p in points[i : i + AT_ONCE]]
            each = np.stack([lost_rows(r, last, r.exits(setting)) for r, setting in owners])
            lost.append(sums(merits * each))
            squares.append(each**2 @ merits)
        found = np.concatenate(lost)
        seen = found.sum(axis=1) / weights.sum()
        variance = np.concatenate(squares) / weights.sum() - seen**2
        hidden = np.array([reference - p.merit for p in points]) - seen
        costs = np.array([p.cost for p in points])
        return cls(costs, found, weights, variance, np.maximum(hidden, 0.0))

    def take(self, points: Sequence[int]) -> GroupLosses:
        """Get the losses of some of the points."""
        one = (self.costs, self.lost, self.variance, self.optimism)
        costs, lost, variance, optimism = (values[points] for values in one)
        return GroupLosses(costs, lost, self.weights, variance, optimism)

    def bounds(self, groups: NDArray[np.intp] | None = None) -> NDArray[np.float64]:
        """Bound each point's loss in new groups, (n_points,), by all groups or some."""
        chosen = slice(None) if groups is None else groups
        lost = self.lost[:, chosen]
        weights = self.weights[chosen]
        return loss_bounds(lost, weights, self.variance) + self.optimism

    def in_hand(self, max_loss: float) -> float:
        """Find the part of a point's cost down to which others must keep a loss, too."""
        rng = np.random.default_rng(0)
        parted = [np.array_split(rng.permutation(len(self.weights)), 2) for _ in range(HALVES)]
        for part in IN_HAND[:-1]:
            kept = 0
            for seen, new in parted:
                safe = np.flatnonzero(self.nearby(self.bounds(seen), part) <= max_loss)
                if not len(safe):
                    kept += 1
                    continue
                loss = self.lost[safe[0], new].sum() / self.weights[new].sum()
                kept += bool(loss <= max_loss)
            if kept >= KEPT * HALVES:
                return part
        return IN_HAND[-1]

    def nearby(self, bounds: NDArray[np.float64], part: float) -> NDArray[np.float64]:
        """Take the largest of the bounds of points down to a part of each one's cost."""
        first = np.searchsorted(self.costs, part * self.costs * (1 - 1e-9))
        return np.array([bounds[min(a, i) : i + 1].max() for i, a in enumerate(first)])


def with_group_errors(
    frontier: Frontier,
    points: Sequence[OperatingPoint],
    records: Sequence[CascadeRecord],
    max_loss: float,
) -> Frontier:
    """Get the frontier with errors of new groups, and with safer points beside its own.

    An error is what new groups may lose more than the validation groups; `points` are all that were
    measured, and `max_loss` is the loss for which the share of cost in hand is found. Safer points
    send more rows away than the frontier's: their bounds are below those of all cheaper ones. Among
    them is the one that never loses. Without groups the frontier stays as it is.
    """
    if records[-1].splitter.n_groups is None:
        return frontier
    reference = frontier.reference_merit
    certain = Promise("max_loss", 0.0, LEVEL)
    used = {p.chain for p in frontier.points}
    curve = set(frontier.points)
    by_cost = sorted((p for p in points if p.chain in used), key=lambda p: (p.cost, -p.merit))
    sure = next((p for p in by_cost if certain.is_certain(records, p)), None)
    losses = GroupLosses.of_points(by_cost, records, reference)
    bounds = losses.bounds()
    below = bounds < np.minimum.accumulate(np.append(np.inf, bounds[:-1]))
    near = [i for i, p in enumerate(by_cost) if p in curve or (below[i] and p != sure)]
    losses = losses.take(near)
    bounds = losses.nearby(bounds[near], losses.in_hand(max_loss))
    found = dict(_with_errors([by_cost[i] for i in near], bounds, reference))
    further = [p for p in frontier.others if p not in found and p != sure]
    if further:
        bounds = GroupLosses.of_points(further, records, reference).bounds()
        further = [p for _, p in _with_errors(further, bounds, reference)]
    safer = [p for given, p in found.items() if given not in curve]
    certain_one = [] if sure is None or sure in curve else [sure]
    return replace(
        frontier,
        points=tuple(found[p] for p in frontier.points),
        others=(*further, *safer, *certain_one),
    )


def _with_errors(
    points: Sequence[OperatingPoint], bounds: NDArray[np.float64], reference: float
) -> list[tuple[OperatingPoint, OperatingPoint]]:
    """Pair points with themselves, errors being what bounds of their losses leave."""
    errors = np.maximum(bounds - reference + [p.merit for p in points], 0.0)
    pairs = zip(points, errors.tolist(), strict=True)
    return [(p, msgspec.structs.replace(p, accuracy_error=error)) for p, error in pairs]
