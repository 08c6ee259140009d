"""Adapt-LIN: linear gate and low-cost model with a shared group-lasso penalty.

Nan & Saligrama, NIPS 2017, Algorithm 1: alternate the q-step and the M-step until the
objective stops falling (:mod:`.alternation`). The sweep runs from the highest penalty, where no
feature is chosen, to the lowest, each fit starting from the last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.utils._param_validation import Interval

from gatewise.models.linear import LinearModel
from gatewise.models.stage import Stage
from gatewise_training.adapt.alternation import (
    KKT_FACTOR,
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

REFIT_STEPS = 30
"""Most alternations of a refit, which need not end at rest."""

START_KKT = 1e-3
"""KKT residual at which a start's M-step may end."""

START_STEPS = 30
"""Most steps of a start's M-step."""

Array = NDArray[np.float64]


@dataclass(eq=False, repr=False, kw_only=True)
class AdaptLin(Adapt):
    """Linear gate and low-cost model, learned together under a group-lasso penalty.

    Nan & Saligrama, "Adaptive classification for prediction under a budget", NIPS 2017,
    algorithm 1.

    Further parameters: :class:`.CascadeClassifier` and, for windows, :class:`.WindowSettings`.

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
    accounting : {"union", "paths"}, default "union"
        As for :class:`AdaptGBRT`.
    refit : bool, default True
        Whether f1 and g are fitted again, together, on the features that the penalty chose:
        it also shrinks weights, which costs accuracy. False leaves the paper's solution.
    n_starts : int, default 2
        Further starts of the alternation for each P_full: gates on one feature each
        (:func:`gatewise_training.adapt.alternation.best_starts`). OPT is not convex, and from
        constant models the alternation ends where an L1 penalty does on data like the paper's
        Synthetic-2. 0 takes the usual start alone.
    max_alternations : int, default 300
        Most alternations for each setting; one is a q-step and a Newton step of the M-step.
    tol : float, default 1e-4
        Decrease of the objective that ends the alternation, once the M-step's KKT residual is
        below 10 times it.

    Notes
    -----
    Features are standardised; linear models take no NaN. For M > 2 classes f1 has
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
        models = fit_path(sample, self, p_full, shared)
        return [Stage.from_model(model, link_of(sample.n_classes), "column") for model in models]


class FittedPair(NamedTuple):
    """The pair of one penalty, the objective that it reached, and the pair after the refit."""

    pair: LinearPair
    objective: float
    model: LinearPair


def fit_path(
    sample: Sample, method: AdaptLin, p_full: float, starts: Sequence[Start] = ()
) -> list[LinearModel]:
    """Fit gate and low-cost model for each penalty, the highest first, then from each start."""
    distance = method._distance
    posed = pose(sample, distance.curvature_bound)
    featureless, critical = featureless_pair(
        posed.problem, posed.start, sample.f0_loss, p_full, distance
    )
    path = _Path(posed.problem, sample.f0_loss, method, p_full, critical)
    usual = path.run(featureless)
    models = [fit.model for fit in usual]
    for start in starts:
        models += path.run_from(start, featureless, usual)
    return [_flat(model, posed.mean, posed.scale) for model in models]


class _Path:
    """The fits of one sample under all penalties."""

    def __init__(
        self, problem: MStep, f0_loss: Array, method: AdaptLin, p_full: float, critical: float
    ) -> None:
        self._problem = problem
        self._f0_loss = f0_loss
        self._method = method
        self._p_full = p_full
        self._refit_gamma = REFIT * critical
        self._gammas = [share * critical for share in sorted(method.penalties, reverse=True)]

    def run(self, pair: LinearPair) -> list[FittedPair]:
        """Fit all penalties, each from the pair of the penalty before."""
        refits: dict[bytes, LinearPair] = {}
        fits = []
        for gamma in self._gammas:
            problem = replace(self._problem, gamma=gamma)
            pair, objective = self._alternate(problem, pair, self._method.max_alternations)
            fits.append(FittedPair(pair, objective, self._refit(pair, gamma, refits)))
        return fits

    def run_from(
        self, start: Start, pair: LinearPair, usual: Sequence[FittedPair]
    ) -> list[LinearPair]:
        """Fit every third penalty from a start; where the usual fit is reached, take its model."""
        method = self._method
        problem = self._problem
        q = start.offload(problem.z[:, start.feature], problem.weight, self._p_full)
        free = method._distance.with_probabilities(q)
        refits: dict[bytes, LinearPair] = {}
        models = []
        for i in range((len(self._gammas) - 1) % 3, len(self._gammas), 3):
            posed = replace(problem, gamma=self._gammas[i])
            pair = solve(posed.with_q(free), pair, tol=START_KKT, max_iter=START_STEPS)
            fitted, objective = self._alternate(posed, pair, method.max_alternations)
            has_same_features = np.array_equal(
                fitted.weights.any(axis=1), usual[i].pair.weights.any(axis=1)
            )
            has_same_value = abs(objective - usual[i].objective) < KKT_FACTOR * method.tol
            if has_same_features and has_same_value:
                models.append(usual[i].model)
            else:
                models.append(self._refit(fitted, self._gammas[i], refits))
        return models

    def _alternate(
        self, problem: MStep, start: LinearPair, max_steps: int
    ) -> tuple[LinearPair, float]:
        pair, objectives = alternate(
            problem,
            self._f0_loss,
            self._p_full,
            start,
            tol=self._method.tol,
            max_steps=max_steps,
            distance=self._method._distance,
        )
        return pair, objectives[-1]

    def _refit(self, pair: LinearPair, gamma: float, refits: dict[bytes, LinearPair]) -> LinearPair:
        """Fit a pair again on its features; `refits` holds the path's by their features."""
        if not self._method.refit or gamma <= self._refit_gamma:
            return pair
        has_weight = pair.weights.any(axis=1)
        key = has_weight.tobytes()
        if key not in refits:
            masked = replace(self._problem, gamma=self._refit_gamma, z=self._problem.z * has_weight)
            steps = min(self._method.max_alternations, REFIT_STEPS)
            refits[key], _ = self._alternate(masked, pair, steps)
        return refits[key]


def _flat(pair: LinearPair, mean: NDArray[np.float32], scale: NDArray[np.float32]) -> LinearModel:
    """f1's margins, and -g as the stop score, in float32."""
    sign = np.ones(pair.weights.shape[1])
    sign[-1] = -1.0
    weights = (pair.weights * sign).astype(np.float32)
    return LinearModel(mean, scale, weights, (pair.bias * sign).astype(np.float32))
