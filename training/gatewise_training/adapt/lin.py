"""Adapt-LIN: linear gate and low-cost model with a shared group-lasso penalty.

Nan & Saligrama, NIPS 2017, Algorithm 1: alternate the q-step and the M-step until the objective
stops falling (:mod:`.alternation`). The sweep starts at the highest penalty, where no feature is
chosen, and ends at the lowest. Each fit starts from the fit before it.
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
    MAX_KKT_RATIO,
    Start,
    alternate,
    best_starts,
    featureless_pair,
    set_up_m_step,
)
from gatewise_training.adapt.base import Adapt
from gatewise_training.adapt.m_step import LinearPair, MStep
from gatewise_training.adapt.prox_newton import solve
from gatewise_training.adapt.qstep import Distance, KullbackLeibler
from gatewise_training.adapt.sample import Sample
from gatewise_training.data.input_checks import Constraints
from gatewise_training.learners.boosting import link_of

#: Largest number of alternations per setting. Each is a q-step and a Newton step of the M-step.
MAX_ALTERNATIONS = 300

#: Decrease of the objective below which the alternation ends, if the KKT residual of the M-step is
#: below MAX_KKT_RATIO times as much.
TOLERANCE = 1e-4

#: Penalty of a refit, as a share of the critical one. It bounds the weights on separable data.
REFIT_PENALTY_SHARE = 0.003

#: Largest number of alternations of a refit, which need not converge.
MAX_REFIT_STEPS = 30

#: Largest KKT residual at which the M-step of a start may end.
MAX_START_KKT = 1e-3

#: Largest number of steps in the M-step of a start.
MAX_START_STEPS = 30

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
        Bounds on the mean offload probability to sweep. The default is 0.1, 0.3, 0.7 and 0.9, and
        on more than 5,000 training rows also 0.5.
    penalties : sequence of float, default 10 values from 0.9 to 0.002
        Values of ``gamma`` to sweep, as shares of the critical value of each `p_full`. At the
        critical value and above, no feature is chosen. The cheapest useful feature sets this value.
        If others cost more than a hundred times as much, give lower shares as well, because these
        features would not be chosen.
    stop : {"auto", "gate", "margin"}, default "auto"
        As for :class:`AdaptGBRT`.
    accounting : {"union", "paths"}, default "union"
        As for :class:`AdaptGBRT`.
    refit : bool, default True
        Whether f1 and g are fitted again, together, on the features that the penalty chose. The
        penalty also shrinks weights, which costs accuracy. False keeps the solution of the paper.
    n_starts : int, default 2
        Number of further starts of the alternation for each `p_full`. Each is a gate on one
        feature (:func:`gatewise_training.adapt.alternation.best_starts`). They are needed because
        OPT is not convex: on data such as the paper's Synthetic-2, the alternation from constant
        models ends at the features of an L1 penalty. With 0 it only starts from constant models.

    Notes
    -----
    Features are standardised, and linear models take no NaN. For M > 2 classes, f1 has M columns
    and the rows of the penalty have M + 1 entries.
    """

    allow_missing = False
    _family = "linear"
    _distance: ClassVar[Distance] = KullbackLeibler()
    _p_full_on_few_rows = (0.1, 0.3, 0.7, 0.9)
    _p_full_on_many_rows = (0.1, 0.3, 0.5, 0.7, 0.9)

    penalties: Sequence[float] = (0.9, 0.65, 0.45, 0.3, 0.2, 0.12, 0.06, 0.025, 0.008, 0.002)
    refit: bool = True
    n_starts: int = 2

    _parameter_constraints: ClassVar[Constraints] = {
        "n_starts": [Interval(Integral, 0, None, closed="left")],
        "refit": ["boolean"],
    }

    def _find_shared_settings(self, sample: Sample, p_full: float) -> Sequence[Start]:
        return best_starts(sample, p_full, self.n_starts)

    def _fit_path(
        self, sample: Sample, p_full: float, seed: int, shared_settings: Sequence[Start]
    ) -> list[Stage]:
        models = fit_path(sample, self, p_full, shared_settings)
        return [Stage.from_model(model, link_of(sample.n_classes), "column") for model in models]


class FittedPair(NamedTuple):
    """The pair of one penalty, its objective, and the pair after the refit."""

    pair: LinearPair
    objective: float
    model: LinearPair


def fit_path(
    sample: Sample, method: AdaptLin, p_full: float, starts: Sequence[Start] = ()
) -> list[LinearModel]:
    """Fit a model for each penalty, the highest first, and then again from each start."""
    distance = method._distance
    setup = set_up_m_step(sample, distance.curvature_bound)
    featureless_fit, critical_penalty = featureless_pair(
        setup.problem, setup.start, sample.f0_loss, p_full, distance
    )
    path = _PenaltyPath(setup.problem, sample.f0_loss, method, p_full, critical_penalty)
    usual_fits = path.fit_all(featureless_fit)
    models = [fit.model for fit in usual_fits]
    for start in starts:
        models += path.fit_from_start(start, featureless_fit, usual_fits)
    return [_make_linear_model(model, setup.mean, setup.scale) for model in models]


class _PenaltyPath:
    """Fits of one sample under all penalties."""

    def __init__(
        self,
        problem: MStep,
        f0_loss: Array,
        method: AdaptLin,
        p_full: float,
        critical_penalty: float,
    ) -> None:
        self._problem = problem
        self._f0_loss = f0_loss
        self._method = method
        self._p_full = p_full
        self._refit_gamma = REFIT_PENALTY_SHARE * critical_penalty
        self._gammas = [
            penalty_share * critical_penalty
            for penalty_share in sorted(method.penalties, reverse=True)
        ]

    def fit_all(self, pair: LinearPair) -> list[FittedPair]:
        """Fit all penalties; each fit starts from the pair of the penalty before."""
        refits: dict[bytes, LinearPair] = {}
        fits = []
        for gamma in self._gammas:
            problem = replace(self._problem, gamma=gamma)
            pair, objective = self._alternate(problem, pair, MAX_ALTERNATIONS)
            fits.append(FittedPair(pair, objective, self._refit(pair, gamma, refits)))
        return fits

    def fit_from_start(
        self, start: Start, pair: LinearPair, usual_fits: Sequence[FittedPair]
    ) -> list[LinearPair]:
        """Fit every third penalty from a start, because fitting all would take too long.

        If a fit ends at the result of the usual fit, the model of the usual fit is used.
        """
        method = self._method
        problem = self._problem
        q = start.offload(problem.z[:, start.feature], problem.weight, self._p_full)
        probabilities = method._distance.with_probabilities(q)
        refits: dict[bytes, LinearPair] = {}
        models = []
        for penalty_index in range((len(self._gammas) - 1) % 3, len(self._gammas), 3):
            penalised_problem = replace(problem, gamma=self._gammas[penalty_index])
            pair = solve(
                penalised_problem.with_q(probabilities),
                pair,
                tol=MAX_START_KKT,
                max_iter=MAX_START_STEPS,
            )
            fitted_pair, objective = self._alternate(penalised_problem, pair, MAX_ALTERNATIONS)
            has_same_features = np.array_equal(
                fitted_pair.weights.any(axis=1), usual_fits[penalty_index].pair.weights.any(axis=1)
            )
            has_same_objective = (
                abs(objective - usual_fits[penalty_index].objective) < MAX_KKT_RATIO * TOLERANCE
            )
            if has_same_features and has_same_objective:
                models.append(usual_fits[penalty_index].model)
            else:
                models.append(self._refit(fitted_pair, self._gammas[penalty_index], refits))
        return models

    def _alternate(
        self, problem: MStep, start: LinearPair, max_steps: int
    ) -> tuple[LinearPair, float]:
        """Alternate the two steps from `start`; get the pair and its objective."""
        pair, objectives = alternate(
            problem,
            self._f0_loss,
            self._p_full,
            start,
            tol=TOLERANCE,
            max_steps=max_steps,
            distance=self._method._distance,
        )
        return pair, objectives[-1]

    def _refit(self, pair: LinearPair, gamma: float, refits: dict[bytes, LinearPair]) -> LinearPair:
        """Fit a pair again on its features; `refits` caches the refits of a path by features."""
        if not self._method.refit or gamma <= self._refit_gamma:
            return pair
        has_weight = pair.weights.any(axis=1)
        feature_key = has_weight.tobytes()
        if feature_key not in refits:
            masked_problem = replace(
                self._problem, gamma=self._refit_gamma, z=self._problem.z * has_weight
            )
            refits[feature_key], _ = self._alternate(masked_problem, pair, MAX_REFIT_STEPS)
        return refits[feature_key]


def _make_linear_model(
    pair: LinearPair, mean: NDArray[np.float32], scale: NDArray[np.float32]
) -> LinearModel:
    """Make a float32 model with the margins of f1 and the stop score -g."""
    output_signs = np.ones(pair.weights.shape[1])
    output_signs[-1] = -1.0
    weights = (pair.weights * output_signs).astype(np.float32)
    return LinearModel(mean, scale, weights, (pair.bias * output_signs).astype(np.float32))
