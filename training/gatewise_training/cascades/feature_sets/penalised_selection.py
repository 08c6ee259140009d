"""Penalised selection: nested feature sets of boosted models under a first-use penalty.

A boosted model chooses each set under a first-use penalty (CEGB, NIPS 2017, section 3), from which
the features of the previous set are exempt. Bisection finds the penalty that reaches a target cost,
and the targets grow geometrically. Because the sets are nested, a stage can use every feature that
earlier stages have acquired.
"""

from __future__ import annotations

import math

import lightgbm as lgb
import numpy as np
from numpy.typing import NDArray

from gatewise_training.cascades.fit_problem import FitProblem
from gatewise_training.learners.boosting import COARSE_BINS, log_loss_params, tree_params

#: Cost of the largest set, as a share of the cost of all features.
MAX_SELECTED_COST_SHARE = 0.6

#: Largest number of rows for the selection of features, which needs fewer rows than a model.
MAX_ROWS = 20_000


def nested_sets(
    problem: FitProblem, *, n_stages: int, max_set_cost: float | None = None
) -> list[NDArray[np.intp]]:
    """Find nested sets of geometrically growing costs, up to `max_set_cost`."""
    costs = problem.costs
    search = _PenaltySearch(problem, max_set_cost)
    smallest_price = float(costs.standalone_prices.min())
    max_cost = MAX_SELECTED_COST_SHARE * costs.total if max_set_cost is None else max_set_cost
    free_features = np.flatnonzero(costs.standalone_prices == 0)
    sets: list[NDArray[np.intp]] = [free_features] if len(free_features) else []
    if max_cost <= 0:
        return sets
    # the first set costs at least one feature, and about 2 % of all features
    first_target = min(max(smallest_price, 0.02 * costs.total), max_cost)
    is_paid = np.zeros(costs.n_features, bool)
    is_paid[free_features] = True
    # reach each target cost from the set before
    for set_number, target in enumerate(np.geomspace(first_target, max_cost, n_stages)):
        # the fits of stages are the second half of the progress
        problem.report_progress(set_number, 2 * n_stages, "choosing features")
        if costs.price(is_paid) >= 0.95 * target:  # the set before is near enough
            continue
        is_paid = search.find_closest_set(is_paid, float(target))
        features = np.flatnonzero(is_paid)
        if len(features) and (not sets or len(features) > len(sets[-1])):
            sets.append(features)
    # if models use no feature, or only too costly ones, all features remain to be tried; the
    # limits of the exits refuse a stage that costs too much for an instance
    return sets or [np.arange(costs.n_features)]


class _PenaltySearch:
    """Search for feature sets by boosted models, with bisection of the penalty."""

    def __init__(self, problem: FitProblem, max_set_cost: float | None) -> None:
        self._max_set_cost = math.inf if max_set_cost is None else max_set_cost
        split = problem.split
        seed = problem.seed
        n_classes = problem.n_classes
        rows = split.fit_rows
        if len(rows) > MAX_ROWS:
            rows = np.random.default_rng(seed).choice(rows, MAX_ROWS, replace=False)
        self._costs = costs = problem.costs
        prices = np.append(costs.own, costs.shared)
        # a cost nearer to the target than half of the smallest price may not exist
        self._cost_tolerance = 0.5 * float(prices[prices > 0].min(initial=np.inf))
        coarse_params = {"num_leaves": 8, "learning_rate": 0.3, "max_bin": COARSE_BINS}
        self._params = tree_params(seed) | coarse_params | log_loss_params(n_classes)
        self._n_rounds = 40 if n_classes > 2 else 60  # with more classes, a round has more trees
        self._dataset = lgb.Dataset(  # binned once, for all penalties
            split.x[rows], split.y[rows], weight=split.weight[rows], params=self._params
        )

    def find_closest_set(self, is_paid: NDArray[np.bool_], target: float) -> NDArray[np.bool_]:
        """Find the superset of `is_paid` with the cost closest to `target` on a log scale."""
        lowest_strength = 1e-3  # in units of the summed loss per mean feature price
        highest_strength = 1e5
        best_mask = is_paid
        smallest_gap = math.inf
        # bisection of the penalty, on a log scale: nine steps divide the range of 1e8 into factors
        # of 1e8^(1 / 2^9) = 1.04
        for _ in range(9):
            strength = (lowest_strength * highest_strength) ** 0.5
            is_used = self._select_under_penalty(is_paid, strength)
            cost = self._costs.price(is_used)
            gap = abs(math.log(max(cost, 1e-12) / target))
            if gap < smallest_gap and cost <= self._max_set_cost:
                best_mask = is_used
                smallest_gap = gap
            if abs(cost - target) <= max(0.03 * target, self._cost_tolerance):
                break
            lowest_strength, highest_strength = (
                (strength, highest_strength) if cost > target else (lowest_strength, strength)
            )
        return best_mask

    def _select_under_penalty(
        self, is_paid: NDArray[np.bool_], strength: float
    ) -> NDArray[np.bool_]:
        """Add the features that a model uses under a penalty on unpaid features."""
        mean_price = self._costs.total / self._costs.n_features
        penalty = strength / max(mean_price, 1e-12) * self._costs.additional_prices(is_paid)
        params = self._params | {
            "cegb_tradeoff": 1.0,
            "cegb_penalty_feature_coupled": penalty.tolist(),
        }
        booster = lgb.train(params, self._dataset, self._n_rounds, keep_training_booster=True)
        is_used: NDArray[np.bool_] = booster.feature_importance("split") > 0
        return self._with_free_members(is_paid | is_used)

    def _with_free_members(self, is_used: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Add the features that are free once the groups of `is_used` are paid."""
        for group in np.unique(self._costs.group[is_used]):
            if group >= 0:
                is_used = is_used | ((self._costs.group == group) & (self._costs.own == 0))
        return is_used
