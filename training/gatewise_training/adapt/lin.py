"""Adapt-LIN: linear gate and low-cost model with a shared group-lasso penalty.

Nan & Saligrama, NIPS 2017, Algorithm 1: alternate the q-step and the M-step until the
objective stops falling (:mod:`.alternation`). The sweep runs from the highest penalty, where no
feature is chosen, to the lowest, each fit starting from the last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from sklearn.utils._param_validation import Interval

from gatewise.models.linear import LinearModel
from gatewise.models.stage import Stage
from gatewise_training.adapt.alternation import (
    KKT,
    Start,
    alternate,
    best_starts,
    featureless_pair,
    pose,
)
from gatewise_training.adapt.base import Adapt
from gatewise_training.adapt.m_step import LinearPair, MStep
from gatewise_training.adapt.prox_newton import solve
from gatewise_training.adapt.qstep import Distance, KullbackLeibler
from gatewise_training.adapt.sample import Sample
from gatewise_training.data.input_checks import Constraints
from gatewise_training.learners.boosting import link_of

REFIT = 0.003
"""Penalty of a refit, as a share of the critical one: enough to keep separable classes apart."""

REFIT_MOST = 30
"""Alternations of a refit at most: it need not end at rest."""

START_KKT, START_MOST = 1e-3, 30
"""KKT residual at which a start's M-step may end, and its steps at most."""


@dataclass(eq=False, repr=False, kw_only=True)
class AdaptLin(Adapt):
    """Linear gate and low-cost model, learned together under a group-lasso penalty.

    Nan & Saligrama, "Adaptive classification for prediction under a budget", NIPS 2017,
    algorithm 1.

    Further parameters are those of all cascades (:class:`.CascadeClassifier`) and of those on
    windows (:class:`.WindowSettings`).

    Parameters
    ----------
    p_full : sequence of float, optional
        Bounds on the mean offload probability, swept: by default 0.1, 0.3, 0.7 and 0.9, and on
        more than 5,000 training rows 0.5 as well.
    penalties : sequence of float, default 10 values from 0.9 to 0.002
        ``gamma`` as shares of the critical one for the P_full, from which on no feature is
        chosen; swept.
    stop : {"auto", "gate", "margin"}, default "auto"
        As for :class:`AdaptGBRT`.
    refit : bool, default True
        Whether f1 and g are fitted again, together, on the features that the penalty chose:
        it also shrinks weights, which costs accuracy. False leaves the paper's solution.
    n_starts : int, default 2
        Starts of the alternation beside the usual one, for each P_full: gates on one feature
        each (:func:`gatewise_training.adapt.alternation.best_starts`). OPT is not convex, and
        from constant models it ends where an L1 penalty does on data like the paper's
        Synthetic-2. 0 takes the usual start alone.
    max_alternations : int, default 300
        Alternations at most for each setting: a q-step and a Newton step of the M-step.
    tol : float, default 1e-4
        Fall of the objective that ends the alternation, once the M-step's KKT residual is
        below 10 times it.

    Notes
    -----
    Features are standardised; NaN is not a value to a linear model. For M > 2 classes f1 has
    M columns and the penalty's rows M + 1.
    """

    allow_missing = False
    _family = "linear"
    _distance: ClassVar[Distance] = KullbackLeibler()
    _bounds = (0.1, 0.3, 0.7, 0.9), (0.1, 0.3, 0.5, 0.7, 0.9)

    penalties: Sequence[float] = (0.9, 0.65, 0.45, 0.3, 0.2, 0.12, 0.06, 0.025, 0.008, 0.002)
    refit: bool = True
    n_starts: int = 2
    max_alternations: int = 300
    tol: float = 1e-4

    _parameter_constraints: ClassVar[Constraints] = {
        "n_starts": [Interval(Integral, 0, None, closed="left")]
    }

    def _shared(self, sample: Sample, p_full: float) -> Sequence[Start]:
        return best_starts(sample, p_full, self.n_starts)

    def _fit_path(
        self, sample: Sample, p_full: float, seed: int, shared: Sequence[Start] = ()
    ) -> list[Stage]:
        models = fit_path(
            sample,
            p_full,
            self.penalties,
            self._distance,
            tol=self.tol,
            most=self.max_alternations,
            refit=self.refit,
            starts=shared,
        )
        return [Stage.from_model(model, link_of(sample.n_classes), "column") for model in models]


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
    """Fit gate and low-cost model for each penalty, the highest first, each from the last.

    Then once more from each of the starts.
    """
    problem, pair, mean, scale = pose(sample, distance.curvature_bound)
    bare, critical = featureless_pair(problem, pair, sample.f0_loss, p_full, distance)
    gammas = [share * critical for share in sorted(shares, reverse=True)]

    def run(problem: MStep, start: LinearPair, most: int) -> tuple[LinearPair, float]:
        pair, reached = alternate(
            problem, sample.f0_loss, p_full, start, tol=tol, most=most, distance=distance
        )
        return pair, reached[-1]

    refits: dict[bytes, LinearPair] = {}  # of the path that is followed, by features

    def again(pair: LinearPair, gamma: float) -> LinearPair:
        if not refit or gamma <= REFIT * critical:
            return pair
        chosen = pair.weights.any(axis=1)
        if (key := chosen.tobytes()) not in refits:
            only = replace(problem, gamma=REFIT * critical, z=problem.z * chosen)
            refits[key], _ = run(only, pair, min(most, REFIT_MOST))
        return refits[key]

    pair, usual = bare, []
    for gamma in gammas:
        pair, reached = run(replace(problem, gamma=gamma), pair, most)
        usual.append((pair, reached, again(pair, gamma)))
    models = [kept for _, _, kept in usual]
    some = slice((len(gammas) - 1) % 3, None, 3)
    for start in starts:
        refits.clear()
        there = bare
        free = distance.given(start.offload(problem.z[:, start.feature], problem.weight, p_full))
        for gamma, (known, best, kept) in list(zip(gammas, usual, strict=True))[some]:
            posed = replace(problem, gamma=gamma)
            there = solve(posed.at(free), there, tol=START_KKT, max_iter=START_MOST)
            pair, reached = run(posed, there, most)
            same = np.array_equal(pair.weights.any(axis=1), known.weights.any(axis=1))
            arrived = same and abs(reached - best) < KKT * tol  # where the usual start led, too
            models.append(kept if arrived else again(pair, gamma))
    return [_flat(pair, mean, scale) for pair in models]


def _flat(pair: LinearPair, mean: NDArray[np.float32], scale: NDArray[np.float32]) -> LinearModel:
    """f1's margins, and -g as the stop score, in float32."""
    sign = np.ones(pair.weights.shape[1])
    sign[-1] = -1.0
    weights = (pair.weights * sign).astype(np.float32)
    return LinearModel(mean, scale, weights, (pair.bias * sign).astype(np.float32))
