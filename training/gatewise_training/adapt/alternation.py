"""The alternation of Adapt with linear models (NIPS 2017, Algorithm 1), for any distance.

Each alternation is a q-step, exact, and one proximal Newton step of the M-step: while q still
moves, solving the M-step to the end would be wasted. Neither step can raise the objective.
The alternation ends where both are at rest: q is optimal for the pair, and the M-step's KKT
residual at that q is small.

OPT is convex in the models for fixed q and in q for fixed models, not in all of them (section
3). From constant models the alternation first takes the features that separate the classes on
all rows, as an L1 penalty would; a feature that separates only the rows that are kept, and also
decides which those are, has no slope there. The paper's Synthetic-2 is of that kind. So the
alternation is also started (:class:`Start`) from free offload probabilities that send away the
rows above, or below, a quantile of one feature.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from gatewise.models.linear import standard_scores
from gatewise_training.adapt.group_lasso import GroupLasso, smallest_zero_penalty
from gatewise_training.adapt.m_step import LinearPair, MStep, Place, curvature_bound
from gatewise_training.adapt.prox_newton import newton_step
from gatewise_training.adapt.qstep import Distance, KullbackLeibler
from gatewise_training.adapt.sample import Sample
from gatewise_training.learners.losses import one_hot, prior_margins

Array = NDArray[np.float64]

KKT = 10.0
"""Times `tol`: KKT residual of the M-step below which an alternation may end."""

SURE = 0.98
"""Offload probability of a row that a start sends away; of the others, one minus it."""

SCREENED = 2000
"""Rows at most that features are compared on."""


def alternate(
    problem: MStep,
    f0_loss: Array,
    p_full: float,
    start: LinearPair,
    *,
    tol: float,
    most: int,
    distance: Distance | None = None,
) -> tuple[LinearPair, list[float]]:
    """Alternate q-steps and steps of the M-step.

    Shapes: `f0_loss` (n,).
    """
    distance = KullbackLeibler() if distance is None else distance
    weight, share = problem.weight, problem.weight / problem.weight.sum()

    def q_step(place: Place) -> tuple[MStep, float, float]:
        """The M-step's problem at the best q, its objective, and the rest, of f0 and q alone."""
        free = distance.q_step(place.f1_loss, f0_loss, place.gate, p_full, weight)
        posed = problem.at(free)
        rest = float(share @ (free.q * f0_loss + free.rest))
        return posed, posed.objective_at(place), rest

    place = before = problem.place(start)
    posed, value, rest = q_step(place)
    objectives, momentum = [value + rest], 1.0
    for _ in range(most - 1):
        view = posed.view(place)
        resting = len(objectives) > 1 and objectives[-2] - objectives[-1] < tol
        if resting and view.residual < KKT * tol:
            break
        after, value = newton_step(posed, place, view, value)
        known = value + rest
        grown = 0.5 * (1.0 + np.sqrt(1.0 + 4.0 * momentum**2))
        place = after.beyond(before, (momentum - 1.0) / grown)
        found = q_step(place)
        if sum(found[1:]) > known and momentum > 1.0:  # momentum led too far
            grown, place = 1.0, after
            found = q_step(place)
        if sum(found[1:]) <= known:  # else, by a distance that is not convex in q, it is worse
            posed, value, rest = found
        before, momentum = after, grown
        objectives.append(value + rest)
    return place.pair, objectives


def pose(
    sample: Sample, gate_curvature: float = 0.0
) -> tuple[MStep, LinearPair, NDArray[np.float32], NDArray[np.float32]]:
    """Pose the problem of a sample without a penalty and with every row kept.

    Shapes: returns `mean, scale` (n_features,).
    """
    mean, scale = standard_scores(sample.x)
    z = ((sample.x - mean) * scale).astype(np.float64)
    target = one_hot(sample.y, sample.n_classes)
    n_margins = target.shape[1]
    problem = MStep(
        z=z,
        target=target,
        q=np.zeros(len(z)),
        weight=sample.weight,
        penalty=GroupLasso.priced(sample.costs),
        gamma=0.0,
        lipschitz=curvature_bound(z, sample.weight, n_margins, gate_curvature),
    )
    start = np.append(prior_margins(target, sample.weight), 0.0)
    return problem, LinearPair(np.zeros((z.shape[1], n_margins + 1)), start), mean, scale


def featureless_pair(
    problem: MStep, pair: LinearPair, f0_loss: Array, p_full: float, distance: Distance
) -> tuple[LinearPair, float]:
    """Find the best pair without priced features, and the penalty from which on it is optimal."""
    total = problem.penalty.own.sum() + problem.penalty.shared.sum()
    prohibitive = replace(problem, gamma=1e9 / max(total, 1e-12))
    pair, _ = alternate(prohibitive, f0_loss, p_full, pair, tol=1e-7, most=100, distance=distance)
    place = problem.place(pair)
    free = distance.q_step(place.f1_loss, f0_loss, place.gate, p_full, problem.weight)
    gradient = problem.at(free).gradient(pair).weights
    return pair, smallest_zero_penalty(gradient, problem.penalty)


@dataclass(frozen=True)
class Start:
    """Send away the rows at one end of one feature."""

    feature: int
    upper: bool  # whether the upper end is sent away, or the lower one

    def offload(self, column: NDArray[np.floating], weight: Array, p_full: float) -> Array:
        """Offload probabilities of rows, (n,): near 1 for a share `p_full` of their weight."""
        order = np.argsort(-column if self.upper else column, kind="stable")
        behind = np.cumsum(weight[order]) - 0.5 * weight[order]
        q = np.empty(len(column))
        q[order] = np.where(behind <= p_full * weight.sum(), SURE, 1.0 - SURE)
        return q


def best_starts(sample: Sample, p_full: float, how_many: int) -> list[Start]:
    """Find the features on which a gate and a low-cost model alone do best for their price.

    They are compared by least squares: the squares that remain of the classes' indicators,
    fitted on the rows that are kept by the feature that keeps them, against those that remain
    when as many rows are kept at random and fitted by nothing. At most `how_many` starts of
    different features, the best first; features without a price are no starts, since all models
    have them.
    """
    price = sample.costs.alone
    priced = np.flatnonzero(price > 0)
    if not how_many or not len(priced):
        return []
    rows = np.random.default_rng(0).permutation(len(sample.x))[:SCREENED]
    x, weight = sample.x[rows].astype(np.float64), sample.weight[rows]
    target = one_hot(sample.y[rows], sample.n_classes)
    nothing = (1.0 - p_full) * _squares(np.zeros(len(rows)), target, weight)
    found = []
    for k in priced:
        column = x[:, k] - x[:, k].mean()
        left = []
        for upper in (True, False):
            kept = Start(int(k), upper).offload(column, weight, p_full) < 0.5
            left.append(_squares(column[kept], target[kept], weight[kept]))
        gain = max(nothing - min(left), 0.0) / price[k]
        found.append((gain, Start(int(k), left[0] <= left[1])))
    found.sort(key=lambda entry: -entry[0])
    return [start for _, start in found[:how_many]]


def _squares(column: Array, target: Array, weight: Array) -> float:
    """Weighted sum of squares that a line through one feature leaves of the targets."""
    total = weight.sum()
    if total <= 0.0:
        return 0.0
    z = column - weight @ column / total
    t = target - weight @ target / total
    spread, shared = float(weight @ z**2), (weight * z) @ t
    left = float(weight @ (t**2).sum(axis=1))
    return left - float(shared @ shared) / spread if spread > 1e-12 else left
