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

from gatewise_training.adapt.base import Sample, prior_margins
from gatewise_training.adapt.distance import Distance, Free, KullbackLeibler
from gatewise_training.adapt.group_lasso import smallest_zero_penalty
from gatewise_training.adapt.m_step import LinearPair, MStep, Place, curvature_bound
from gatewise_training.adapt.prox_newton import newton_step
from gatewise_training.linear import LinearModel
from gatewise_training.losses import one_hot

__all__ = ["alternate", "fit_path", "pose", "standardisation"]

Array = NDArray[np.float64]

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
) -> list[LinearModel]:
    """Fit gate and low-cost model for each penalty, dear to cheap, each from the last.

    Parameters
    ----------
    sample : Sample
    p_full : float
    shares : sequence of float
        Penalties, as shares of the critical one at which nothing is bought.
    distance : Distance
    tol, most
        As for :func:`alternate`.

    Returns
    -------
    list of LinearModel
        Margins of f1 and, last, the stop score -g, in the order of falling shares.
    """
    problem, pair, mean, scale = pose(sample, distance.curvature_bound)
    critical = smallest_zero_penalty(problem.gradient(pair).weights, sample.costs)
    models = []
    for share in sorted(shares, reverse=True):
        posed = replace(problem, gamma=share * critical)
        pair, _ = alternate(
            posed, sample.f0_loss, p_full, pair, tol=tol, most=most, distance=distance
        )
        models.append(_flat(pair, mean, scale))
    return models


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
