"""Adapt-LIN: linear gate and low-cost model with a shared group-lasso penalty.

Nan & Saligrama, NIPS 2017, Algorithm 1: alternate the q-step and the M-step until the
objective stops falling. The sweep runs from the dear penalty, where nothing is bought, to the
cheap one, each fit starting from the last.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gatewise.costs import CloudPrices, FeatureCosts
from gatewise.errors import InputError
from gatewise.models.stage import Stage
from gatewise_training.adapt.alternation import alternate, fit_path
from gatewise_training.adapt.base import Adapt, Sample
from gatewise_training.adapt.distance import Distance, KullbackLeibler
from gatewise_training.adapt.starts import Start, best_starts
from gatewise_training.learners.boosting import link_of

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
    penalties : sequence of float, default 10 values from 0.9 to 0.002
        ``gamma`` as shares of the critical one for the P_full, from which on nothing is
        bought; swept.
    refit : bool, default True
        Whether f1 and g are fitted again, together, on the features that the penalty chose:
        it also shrinks weights, which costs accuracy. False leaves the paper's solution.
    n_starts : int, default 2
        Starts of the alternation beside the usual one, for each P_full: gates on one feature
        each (:func:`gatewise_training.adapt.starts.best_starts`). OPT is not convex, and from
        models that know nothing it ends where an L1 penalty does on data like the paper's
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
        penalties: Sequence[float] = (0.9, 0.65, 0.45, 0.3, 0.2, 0.12, 0.06, 0.025, 0.008, 0.002),
        refit: bool = True,
        n_starts: int = 2,
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
        self.refit = refit
        self.n_starts = n_starts
        self.max_alternations = max_alternations
        self.tol = tol
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.verbose = verbose

    def _starts(self, sample: Sample, p_full: float) -> Sequence[Start]:
        return best_starts(sample, p_full, self.n_starts)

    def _fit_path(
        self, sample: Sample, p_full: float, seed: int, starts: Sequence[Start] = ()
    ) -> list[Stage]:
        models = fit_path(
            sample,
            p_full,
            self.penalties,
            self._distance,
            tol=self.tol,
            most=self.max_alternations,
            refit=self.refit,
            starts=starts,
        )
        return [Stage.of(model, link_of(sample.n_classes), "column") for model in models]

    def _check_settings(self) -> None:
        super()._check_settings()
        if self.n_starts < 0:
            raise InputError(f"n_starts must be at least 0, not {self.n_starts}")
