"""Penalised selection: nested feature sets of boosted models under a first-use penalty.

A boosted model chooses each set under a first-use penalty (CEGB, NIPS 2017, section 3); the
features of the set before are free for it. Bisection finds the penalty that reaches a target cost,
and the targets grow geometrically. Sets are nested, so that later stages use all features that are
paid.
"""

from __future__ import annotations

import math

import lightgbm as lgb
import numpy as np
from numpy.typing import NDArray

from gatewise_training.cascades.fit_problem import Problem
from gatewise_training.learners.boosting import COARSE_BINS, log_loss_params, tree_params

MAX_COST_SHARE = 0.6
"""Cost of the largest set, as a share of the cost of all features."""

MAX_ROWS = 20_000
"""Largest number of rows for the selection of features, which needs fewer rows than a model."""


def nested_sets(
    problem: Problem, *, n_stages: int, limit: float | None = None
) -> list[NDArray[np.intp]]:
    """Find nested sets of geometrically growing costs, up to `limit`."""
    costs = problem.costs
    search = _SetSearch(problem, limit)
    cheapest = float(costs.standalone_prices.min())
    max_cost = MAX_COST_SHARE * costs.total if limit is None else limit
    free = np.flatnonzero(costs.standalone_prices == 0)
    sets: list[NDArray[np.intp]] = [free] if len(free) else []
    if max_cost <= 0:
        return sets
    start = min(max(cheapest, 0.02 * costs.total), max_cost)
    paid = np.zeros(costs.n_features, bool)
    paid[free] = True
    # reach each target cost from the set before
    for number, target in enumerate(np.geomspace(start, max_cost, n_stages)):
        problem.report(number, 2 * n_stages, "choosing features")
        if costs.price(paid) >= 0.95 * target:
            continue
        paid = search.closest(paid, float(target))
        features = np.flatnonzero(paid)
        if len(features) and (not sets or len(features) > len(sets[-1])):
            sets.append(features)
    return sets or [np.arange(costs.n_features)]


class _SetSearch:
    """Search for feature sets by boosted models, with bisection of the penalty."""

    def __init__(self, problem: Problem, limit: float | None) -> None:
        self._limit = math.inf if limit is None else limit
        plan = problem.plan
        seed = problem.seed
        n_classes = problem.n_classes
        rows = plan.fit_rows
        if len(rows) > MAX_ROWS:
            rows = np.random.default_rng(seed).choice(rows, MAX_ROWS, replace=False)
        self._costs = costs = problem.costs
        prices = np.append(costs.own, costs.shared)
        self._cost_tolerance = 0.5 * float(prices[prices > 0].min(initial=np.inf))
        coarse = {"num_leaves": 8, "learning_rate": 0.3, "max_bin": COARSE_BINS}
        self._params = tree_params(seed) | coarse | log_loss_params(n_classes)
        self._rounds = 40 if n_classes > 2 else 60
        self._data = lgb.Dataset(  # binned once, for all penalties
            plan.x[rows], plan.y[rows], weight=plan.weight[rows], params=self._params
        )

    def closest(self, paid: NDArray[np.bool_], target: float) -> NDArray[np.bool_]:
        """Find the superset of `paid` with the cost closest to `target` on a log scale."""
        low = 1e-3  # in units of the summed loss per mean feature price
        high = 1e5
        best_features = paid
        smallest_gap = math.inf
        # bisection of the penalty, on a log scale
        for _ in range(9):
            middle = (low * high) ** 0.5
            features = self._choose(paid, middle)
            cost = self._costs.price(features)
            if self._gap(features, target) < smallest_gap and cost <= self._limit:
                best_features = features
                smallest_gap = self._gap(features, target)
            if abs(cost - target) <= max(0.03 * target, self._cost_tolerance):
                break
            low, high = (middle, high) if cost > target else (low, middle)
        return best_features

    def _gap(self, features: NDArray[np.bool_], target: float) -> float:
        return abs(math.log(max(self._costs.price(features), 1e-12) / target))

    def _choose(self, paid: NDArray[np.bool_], strength: float) -> NDArray[np.bool_]:
        unit = self._costs.total / self._costs.n_features
        penalty = strength / max(unit, 1e-12) * self._costs.additional_prices(paid)
        settings = self._params | {
            "cegb_tradeoff": 1.0,
            "cegb_penalty_feature_coupled": penalty.tolist(),
        }
        booster = lgb.train(settings, self._data, self._rounds, keep_training_booster=True)
        used: NDArray[np.bool_] = booster.feature_importance("split") > 0
        return self._with_free_members(paid | used)

    def _with_free_members(self, features: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Add the features that are free once the groups of `features` are paid."""
        for g in np.unique(self._costs.group[features]):
            if g >= 0:
                features = features | ((self._costs.group == g) & (self._costs.own == 0))
        return features
