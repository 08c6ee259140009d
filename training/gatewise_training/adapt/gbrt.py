"""Adapt-GBRT: gate and low-cost model as boosted trees that share their features.

Nan & Saligrama, NIPS 2017, Algorithm 2. One LightGBM booster grows both: its first outputs
are f1's margins, its last is g, so that a feature is charged the first time any tree of
either uses it. Instead of the paper's alternation between long fits, q is renewed before each
round; the objective is the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from gatewise_training.adapt.base import Adapt, Sample
from gatewise_training.adapt.qstep import q_step
from gatewise_training.boosting import CoupledBooster, link_of
from gatewise_training.costs import CloudPrices, FeatureCosts
from gatewise_training.losses import (
    log_loss,
    log_loss_gradient,
    log_loss_hessian,
    one_hot,
    softplus,
)
from gatewise_training.stage import Stage
from gatewise_training.trees import TreeEnsemble

__all__ = ["AdaptGBRT"]

HESSIAN_FLOOR = 1e-7


class AdaptGBRT(Adapt):
    """Boosted gate and low-cost model, learned together under a feature penalty.

    Parameters
    ----------
    high_cost_model, feature_costs, cloud_prices, budget, max_loss, offload_rate,
    allow_missing, random_state, n_jobs, verbose
        As for :class:`StagedCascade`.
    p_full : sequence of float, default (0.1, 0.3, 0.5, 0.7)
        Bounds on the mean offload probability, swept.
    penalties : sequence of float, default 6 values from 0.1 to 1e-4
        ``gamma``: nats of mean loss that a feature of mean price must save, swept.
    n_rounds : int, default 100
        Boosting rounds; each grows a tree for every output.
    warm_up : int, default 20
        First rounds with q = 0 and the gate at rest (the paper starts f1 by GreedyMiser).
    num_leaves : int, default 31
    learning_rate : float, default 0.1
    newton : bool, default True
        Second-order steps; False gives the paper's first-order ones.

    Notes
    -----
    With ``q`` fixed, f1's gradient is ``(1 - q)(p - y)`` and the gate's ``sigmoid(g) - q``.
    A mean loss plus ``gamma * cost`` over n rows is a LightGBM penalty of ``2 n gamma``, since
    its gain has no factor 1/2. With a group's shared price, all trees of one round may each
    pay it once: the price falls for the next round.
    """

    def __init__(
        self,
        high_cost_model: Any = None,
        feature_costs: FeatureCosts | None = None,
        *,
        cloud_prices: CloudPrices | None = None,
        budget: float | None = None,
        max_loss: float | None = 0.01,
        offload_rate: float | None = None,
        p_full: Sequence[float] = (0.1, 0.3, 0.5, 0.7),
        penalties: Sequence[float] = (0.1, 0.025, 0.0063, 0.0016, 0.0004, 0.0001),
        n_rounds: int = 100,
        warm_up: int = 20,
        num_leaves: int = 31,
        learning_rate: float = 0.1,
        newton: bool = True,
        allow_missing: bool = False,
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
        self.n_rounds = n_rounds
        self.warm_up = warm_up
        self.num_leaves = num_leaves
        self.learning_rate = learning_rate
        self.newton = newton
        self.allow_missing = allow_missing
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.verbose = verbose

    def _fit_path(self, sample: Sample, p_full: float, seed: int) -> list[Stage]:
        return [self._fit_one(sample, p_full, gamma, seed) for gamma in self.penalties]

    def _fit_one(self, sample: Sample, p_full: float, gamma: float, seed: int) -> Stage:
        target = one_hot(sample.y, sample.n_classes)
        unit = max(sample.costs.total / sample.costs.n_features, 1e-12)
        booster = CoupledBooster(
            sample.x,
            target.shape[1] + 1,
            costs=sample.costs,
            strength=2.0 * len(sample.x) * gamma / unit,
            seed=seed,
            params={"num_leaves": self.num_leaves, "learning_rate": self.learning_rate},
        )
        for done in range(self.n_rounds):
            step = _Derivatives(sample, target, p_full, warm=done >= self.warm_up)
            if not booster.update(step if self.newton else step.first_order):
                break
        return as_stage(TreeEnsemble.from_lightgbm(booster.booster), sample.n_classes)


class _Derivatives:
    """Gradient and hessian of the M-step's loss at the q that is best for the current models.

    Before the system is `warm`, q is 0 and the gate rests: f1 learns from every row.
    """

    def __init__(
        self, sample: Sample, target: NDArray[np.float64], p_full: float, *, warm: bool
    ) -> None:
        self._sample, self._target, self._warm = sample, target, warm
        self._p_full = p_full if warm else 0.0

    def __call__(
        self, scores: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        sample, target = self._sample, self._target
        f1, g = scores[:, :-1], scores[:, -1]
        q = q_step(
            log_loss(f1, target) + softplus(g),
            sample.f0_loss + softplus(-g),
            self._p_full,
            sample.weight,
        )
        kept = ((1.0 - q) * sample.weight)[:, None]
        gate = expit(g)
        gradient = np.empty_like(scores)
        hessian = np.empty_like(scores)
        gradient[:, :-1] = kept * log_loss_gradient(f1, target)
        hessian[:, :-1] = kept * log_loss_hessian(f1)
        gradient[:, -1] = sample.weight * (gate - q) * self._warm
        hessian[:, -1] = sample.weight * gate * (1.0 - gate)
        return gradient, np.maximum(hessian, HESSIAN_FLOOR)

    def first_order(
        self, scores: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The paper's steps: trees fitted to the negative gradient by least squares."""
        gradient, _ = self(scores)
        return gradient, np.ones_like(gradient)


def as_stage(trees: TreeEnsemble, n_classes: int) -> Stage:
    """Turn outputs (f1..., g) into a stage whose last column, the stop score, is -g."""
    gate = trees.output == trees.n_outputs - 1
    ends = np.append(trees.roots[1:], trees.n_nodes)
    value = trees.value.copy()
    for t in np.flatnonzero(gate):
        value[trees.roots[t] : ends[t]] *= -1
    return Stage.of(replace(trees, value=value), link_of(n_classes), "column")
