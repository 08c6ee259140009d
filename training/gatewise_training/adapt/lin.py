"""Adapt-LIN: linear gate and low-cost model with a shared group-lasso penalty.

Nan & Saligrama, NIPS 2017, Algorithm 1: alternate the q-step and the M-step until the
objective stops falling. The sweep runs from the dear penalty, where nothing is bought, to the
cheap one, each fit starting from the last.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gatewise_training.adapt.alternation import alternate, fit_path
from gatewise_training.adapt.base import Adapt, Sample
from gatewise_training.adapt.distance import Distance, KullbackLeibler
from gatewise_training.boosting import link_of
from gatewise_training.costs import CloudPrices, FeatureCosts
from gatewise_training.stage import Stage

__all__ = ["AdaptLin", "alternate"]


class AdaptLin(Adapt):
    """Linear gate and low-cost model, learned together under a group-lasso penalty.

    Parameters
    ----------
    high_cost_model, feature_costs, cloud_prices, budget, max_loss, offload_rate, guarantee,
    random_state, n_jobs, verbose
        As for :class:`StagedCascade`.
    p_full : sequence of float, default (0.1, 0.3, 0.5, 0.7, 0.9)
        Bounds on the mean offload probability, swept.
    penalties : sequence of float, default 8 values from 0.7 to 0.001
        ``gamma`` as shares of the critical one, at which nothing is bought; swept.
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
    _distance: Distance = KullbackLeibler()

    def __init__(
        self,
        high_cost_model: Any = None,
        feature_costs: FeatureCosts | None = None,
        *,
        cloud_prices: CloudPrices | None = None,
        budget: float | None = None,
        max_loss: float | None = 0.01,
        offload_rate: float | None = None,
        guarantee: float | None = None,
        p_full: Sequence[float] = (0.1, 0.3, 0.5, 0.7, 0.9),
        penalties: Sequence[float] = (0.7, 0.4, 0.2, 0.1, 0.04, 0.015, 0.004, 0.001),
        max_alternations: int = 300,
        tol: float = 1e-4,
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
        self.guarantee = guarantee
        self.p_full = p_full
        self.penalties = penalties
        self.max_alternations = max_alternations
        self.tol = tol
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.verbose = verbose

    def _fit_path(self, sample: Sample, p_full: float, seed: int) -> list[Stage]:
        models = fit_path(
            sample,
            p_full,
            self.penalties,
            self._distance,
            tol=self.tol,
            most=self.max_alternations,
        )
        return [Stage.of(model, link_of(sample.n_classes), "column") for model in models]
