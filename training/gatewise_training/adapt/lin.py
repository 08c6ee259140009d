"""Adapt-LIN: linear gate and low-cost model with a shared group-lasso penalty.

Nan & Saligrama, NIPS 2017, Algorithm 1: alternate the q-step and the M-step until the
objective stops falling. The sweep runs from the dear penalty, where nothing is bought, to the
cheap one, each fit starting from the last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gatewise_training.adapt.base import Adapt, Sample
from gatewise_training.adapt.group_lasso import smallest_zero_penalty
from gatewise_training.adapt.m_step import LinearPair, MStep, curvature_bound
from gatewise_training.adapt.qstep import entropy, q_step
from gatewise_training.boosting import link_of
from gatewise_training.costs import CloudPrices, FeatureCosts
from gatewise_training.linear import LinearModel
from gatewise_training.losses import log_loss, one_hot, softplus
from gatewise_training.stage import Stage

__all__ = ["AdaptLin", "alternate"]

Array = NDArray[np.float64]


class AdaptLin(Adapt):
    """Linear gate and low-cost model, learned together under a group-lasso penalty.

    Parameters
    ----------
    high_cost_model, feature_costs, cloud_prices, budget, max_loss, offload_rate,
    random_state, n_jobs, verbose
        As for :class:`StagedCascade`.
    p_full : sequence of float, default (0.1, 0.3, 0.5, 0.7, 0.9)
        Bounds on the mean offload probability, swept.
    penalties : sequence of float, default 8 values from 0.7 to 0.001
        ``gamma`` as shares of the critical one, at which nothing is bought; swept.
    max_alternations : int, default 50
        q-steps and M-steps at most for each setting.
    tol : float, default 1e-5
        Fall of the objective that ends the alternation.

    Notes
    -----
    Features are standardised; NaN is not a value to a linear model. For M > 2 classes f1 has
    M columns and the penalty's rows M + 1.
    """

    allow_missing = False

    def __init__(
        self,
        high_cost_model: Any = None,
        feature_costs: FeatureCosts | None = None,
        *,
        cloud_prices: CloudPrices | None = None,
        budget: float | None = None,
        max_loss: float | None = 0.01,
        offload_rate: float | None = None,
        p_full: Sequence[float] = (0.1, 0.3, 0.5, 0.7, 0.9),
        penalties: Sequence[float] = (0.7, 0.4, 0.2, 0.1, 0.04, 0.015, 0.004, 0.001),
        max_alternations: int = 50,
        tol: float = 1e-5,
        random_state: Any = None,
        n_jobs: int | None = None,
        verbose: int = 0,
    ) -> None:
        self.high_cost_model = high_cost_model
        self.feature_costs = feature_costs
        self.cloud_prices = cloud_prices
        self.budget = budget
        self.max_loss = max_loss
        self.offload_rate = offload_rate
        self.p_full = p_full
        self.penalties = penalties
        self.max_alternations = max_alternations
        self.tol = tol
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.verbose = verbose

    def _fit_path(self, sample: Sample, p_full: float, seed: int) -> list[Stage]:
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
            lipschitz=curvature_bound(z, sample.weight, n_margins),
        )
        pair = _intercepts(problem, n_margins)
        critical = smallest_zero_penalty(problem.gradient(pair).weights, sample.costs)
        stages = []
        for share in sorted(self.penalties, reverse=True):
            posed = replace(problem, gamma=share * critical)
            pair, _ = alternate(
                posed, sample.f0_loss, p_full, pair, tol=self.tol, most=self.max_alternations
            )
            stages.append(_as_stage(pair, mean, scale, sample.n_classes))
        return stages


def alternate(
    problem: MStep, f0_loss: Array, p_full: float, start: LinearPair, *, tol: float, most: int
) -> tuple[LinearPair, list[float]]:
    """Alternate q-step and M-step (Algorithm 1).

    Parameters
    ----------
    problem : MStep
        Its q is replaced.
    f0_loss : ndarray of float64, shape (n,)
        ``-log p(y | x; f0)``.
    p_full : float
    start : LinearPair
    tol : float
        Fall of the objective below which to stop.
    most : int
        Alternations at most.

    Returns
    -------
    pair : LinearPair
    objectives : list of float
        Of OPT after each alternation; never rises.
    """
    pair, objectives = start, [np.inf]
    for _ in range(most):
        q = _best_q(problem, pair, f0_loss, p_full)
        posed = problem.at(q)
        pair = posed.solve(pair, tol=max(0.01 * tol, 1e-9), max_iter=200)
        outside = np.average(q * f0_loss - entropy(q), weights=problem.weight)
        objectives.append(posed.objective(pair) + float(outside))
        if objectives[-2] - objectives[-1] < tol:
            break
    return pair, objectives[1:]


def standardisation(x: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Mean and reciprocal deviation of each column, float32; 0 for a constant column."""
    mean = x.mean(axis=0, dtype=np.float64)
    spread = x.std(axis=0, dtype=np.float64)
    scale = np.divide(1.0, spread, out=np.zeros_like(spread), where=spread > 0)
    return mean.astype(np.float32), scale.astype(np.float32)


def _best_q(problem: MStep, pair: LinearPair, f0_loss: Array, p_full: float) -> Array:
    out = pair.outputs(problem.z)
    f1, g = out[:, :-1], out[:, -1]
    keep = log_loss(f1, problem.target) + softplus(g)
    return q_step(keep, f0_loss + softplus(-g), p_full, problem.weight)


def _intercepts(problem: MStep, n_margins: int) -> LinearPair:
    """The best pair that buys nothing, with every row kept and the gate undecided."""
    weights = np.zeros((problem.z.shape[1], n_margins + 1))
    share = np.average(problem.target, weights=problem.weight, axis=0)
    share = np.clip(share, 1e-12, 1.0 - 1e-12)
    bias = np.log(share / (1.0 - share)) if n_margins == 1 else np.log(share)
    return LinearPair(weights, np.append(bias, 0.0))


def _as_stage(
    pair: LinearPair, mean: NDArray[np.float32], scale: NDArray[np.float32], n_classes: int
) -> Stage:
    """f1's margins, and -g as the stop score, in float32."""
    sign = np.ones(pair.weights.shape[1])
    sign[-1] = -1.0
    weights = (pair.weights * sign).astype(np.float32)
    bias = (pair.bias * sign).astype(np.float32)
    return Stage.of(LinearModel(mean, scale, weights, bias), link_of(n_classes), "column")
