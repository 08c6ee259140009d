"""The alternation of Adapt with linear models (NIPS 2017, Algorithm 1), for any distance.

Each alternation is a q-step, exact, and one proximal Newton step of the M-step: while q still
moves, solving the M-step to the end would be wasted. Neither step can raise the objective.
The alternation ends where both are at rest: q is optimal for the pair, and the M-step's KKT
residual at that q is small.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from gatewise.models.linear import LinearModel
from gatewise.models.losses import one_hot, prior_margins
from gatewise_training.adapt.base import Sample
from gatewise_training.adapt.distance import Distance, Free, KullbackLeibler
from gatewise_training.adapt.group_lasso import smallest_zero_penalty
from gatewise_training.adapt.m_step import LinearPair, MStep, Place, curvature_bound
from gatewise_training.adapt.prox_newton import newton_step
from gatewise_training.adapt.starts import Start

__all__ = ["alternate", "fit_path", "nothing_bought", "pose", "standardisation"]

Array = NDArray[np.float64]

REFIT = 0.003
"""Penalty of a refit, as a share of the critical one: enough to keep separable classes apart."""

REFIT_MOST = 30
"""Alternations of a refit at most: it need not end at rest."""

START_KKT, START_MOST = 1e-3, 30
"""KKT residual at which a start's M-step may end, and its steps at most."""

KKT = 10.0
"""Times `tol`: KKT residual of the M-step below which an alternation may end."""


def fit_path(
    sample: Sample,
    p_full: float,
    shares: Sequence[float],
    distance: Distance,
    *,
    tol: float,
    most: int,
    refit: bool,
    starts: Sequence[Start] = (),
) -> list[LinearModel]:
    """Fit gate and low-cost model for each penalty, dear to cheap, each from the last.

    Then once more from each of the starts.

    Parameters
    ----------
    sample : Sample
    p_full : float
    shares : sequence of float
        Penalties, as shares of the critical one at which nothing is bought.
    distance : Distance
    tol, most
        As for :func:`alternate`.
    refit : bool
        Whether to fit each pair again on the features that it uses, with hardly any penalty.
    starts : sequence of Start
        Where to start beside the pair that buys nothing: at every other penalty, the smallest
        among them, the alternation starts from the pair that is best for the start's offload
        probabilities.

    Returns
    -------
    list of LinearModel
        Margins of f1 and, last, the stop score -g, in the order of falling shares: first those
        of the path from nothing, then those of each start.
    """
    problem, pair, mean, scale = pose(sample, distance.curvature_bound)
    bare, critical = nothing_bought(problem, pair, sample.f0_loss, p_full, distance)
    gammas = [share * critical for share in sorted(shares, reverse=True)]

    def run(problem: MStep, start: LinearPair, most: int) -> tuple[LinearPair, float]:
        pair, reached = alternate(
            problem, sample.f0_loss, p_full, start, tol=tol, most=most, distance=distance
        )
        return pair, reached[-1]

    def again(pair: LinearPair, gamma: float) -> LinearPair:
        if not refit or gamma <= REFIT * critical:
            return pair
        only = problem.z * pair.weights.any(axis=1)
        return run(replace(problem, gamma=REFIT * critical, z=only), pair, min(most, REFIT_MOST))[0]

    pair, usual = bare, []
    for gamma in gammas:
        pair, reached = run(replace(problem, gamma=gamma), pair, most)
        usual.append((pair, reached, again(pair, gamma)))
    models = [kept for _, _, kept in usual]
    other = (len(gammas) - 1) % 2
    for start in starts:
        there = bare
        free = distance.given(start.offload(problem.z[:, start.feature], problem.weight, p_full))
        for gamma, (known, best, kept) in list(zip(gammas, usual, strict=True))[other:][::2]:
            posed = replace(problem, gamma=gamma)
            there = posed.at(free).solve(there, tol=START_KKT, max_iter=START_MOST)
            pair, reached = run(posed, there, most)
            same = np.array_equal(pair.weights.any(axis=1), known.weights.any(axis=1))
            arrived = same and abs(reached - best) < KKT * tol  # where the usual start led, too
            models.append(kept if arrived else again(pair, gamma))
    return [_flat(pair, mean, scale) for pair in models]


def nothing_bought(
    problem: MStep, pair: LinearPair, f0_loss: Array, p_full: float, distance: Distance
) -> tuple[LinearPair, float]:
    """Find the best pair that buys nothing, and the penalty from which on it is optimal.

    Returns
    -------
    pair : LinearPair
        Weights of features without a price may be there.
    critical : float
        ``gamma``.
    """
    prohibitive = replace(problem, gamma=1e9 / max(problem.costs.total, 1e-12))
    pair, _ = alternate(prohibitive, f0_loss, p_full, pair, tol=1e-7, most=100, distance=distance)
    place = problem.place(pair)
    free = distance.q_step(place.f1_loss, f0_loss, place.gate, p_full, problem.weight)
    gradient = problem.at(free).gradient(pair).weights
    return pair, smallest_zero_penalty(gradient, problem.costs)


def pose(
    sample: Sample, gate_curvature: float = 0.0
) -> tuple[MStep, LinearPair, NDArray[np.float32], NDArray[np.float32]]:
    """Pose the problem of a sample without a penalty and with every row kept.

    Returns
    -------
    problem : MStep
    pair : LinearPair
        The best that buys nothing, the gate undecided.
    mean, scale : ndarray of float32, shape (n_features,)
        How the features were standardised.
    """
    mean, scale = standardisation(sample.x)
    z = ((sample.x - mean) * scale).astype(np.float64)
    target = one_hot(sample.y, sample.n_classes)
    n_margins = target.shape[1]
    problem = MStep(
        z=z,
        target=target,
        q=np.zeros(len(z)),
        weight=sample.weight,
        costs=sample.costs,
        gamma=0.0,
        lipschitz=curvature_bound(z, sample.weight, n_margins, gate_curvature),
    )
    start = np.append(prior_margins(target, sample.weight), 0.0)
    return problem, LinearPair(np.zeros((z.shape[1], n_margins + 1)), start), mean, scale


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

    Parameters
    ----------
    problem : MStep
        Its q is replaced.
    f0_loss : ndarray of float64, shape (n,)
        ``-log p(y | x; f0)``.
    p_full : float
    start : LinearPair
    tol : float
        Fall of the objective below which to stop, once the KKT residual of the M-step is
        below 10 times it.
    most : int
        Alternations at most.
    distance : Distance, optional
        Kullback-Leibler by default.

    Returns
    -------
    pair : LinearPair
    objectives : list of float
        Of OPT after each q-step; never rises.
    """
    distance = KullbackLeibler() if distance is None else distance
    weight = problem.weight

    def value(place: Place, free: Free) -> float:
        rest = np.average(free.q * f0_loss + free.rest, weights=weight)
        return problem.at(free).objective_at(place) + float(rest)

    def q_step(place: Place) -> tuple[Free, float]:
        free = distance.q_step(place.f1_loss, f0_loss, place.gate, p_full, weight)
        return free, value(place, free)

    place = before = problem.place(start)
    free, reached = q_step(place)
    objectives, momentum = [reached], 1.0
    for _ in range(most - 1):
        posed = problem.at(free)
        view = posed.view(place)
        resting = len(objectives) > 1 and objectives[-2] - objectives[-1] < tol
        if resting and view.residual < KKT * tol:
            break
        after = newton_step(posed, place, view)
        known = value(after, free)
        grown = 0.5 * (1.0 + np.sqrt(1.0 + 4.0 * momentum**2))
        place = after.beyond(before, (momentum - 1.0) / grown)
        found, reached = q_step(place)
        if reached > known and momentum > 1.0:  # momentum led too far
            grown, place = 1.0, after
            found, reached = q_step(place)
        if reached > known:  # a distance that is not convex in q: the old one is better
            found, reached = free, known
        free, before, momentum = found, after, grown
        objectives.append(reached)
    return place.pair, objectives


def standardisation(x: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Mean and reciprocal deviation of each column, float32; 0 for a constant column."""
    mean = x.mean(axis=0, dtype=np.float64)
    spread = x.std(axis=0, dtype=np.float64)
    scale = np.divide(1.0, spread, out=np.zeros_like(spread), where=spread > 0)
    return mean.astype(np.float32), scale.astype(np.float32)


def _flat(pair: LinearPair, mean: NDArray[np.float32], scale: NDArray[np.float32]) -> LinearModel:
    """f1's margins, and -g as the stop score, in float32."""
    sign = np.ones(pair.weights.shape[1])
    sign[-1] = -1.0
    weights = (pair.weights * sign).astype(np.float32)
    return LinearModel(mean, scale, weights, (pair.bias * sign).astype(np.float32))
