"""Backward elimination: nested feature sets, from all features down to the cheapest useful set.

Each step fits a boosted model on the remaining features, and drops the features or groups with the
least gain for their price. This keeps features that are useful only together. A penalty on first
uses may never find such features, because it starts from no features.
"""

from __future__ import annotations

import lightgbm as lgb
import numpy as np
from numpy.typing import NDArray

from gatewise.costs import FeatureCosts
from gatewise_training.cascades.fit_problem import Problem
from gatewise_training.cascades.forward_selection import MAX_COST_SHARE, acquisition_units, spread
from gatewise_training.learners.boosting import (
    COARSE_BINS,
    log_loss_params,
    tree_params,
)

MAX_ROWS = 20_000
"""Largest number of rows for the selection of features, which needs fewer rows than a model."""

DROPPED_PRICE_SHARE = 0.2
"""Share of the price that one step drops; it drops at least one feature or group."""

MIN_SETS_FOR_TWO = 16
"""Smallest number of sets on a path for a second sequence; 100 features give about 16 sets."""


def backward_sequences(
    problem: Problem, *, n_stages: int, limit: float | None = None
) -> list[list[NDArray[np.intp]]]:
    """Find nested sets by backward elimination; arguments as for :func:`.nested_sets`.

    If there are many features, a second sequence has cheap sets between those of the first.
    """
    costs = problem.costs
    max_cost = MAX_COST_SHARE * costs.total if limit is None else limit
    rows = np.random.default_rng(problem.seed).permutation(problem.plan.fit_rows)[:MAX_ROWS]
    acquisitions = acquisition_units(costs)
    by_price = np.argsort(costs.standalone_prices, kind="stable")
    is_remaining = np.ones(costs.n_features, bool)
    path: list[NDArray[np.bool_]] = []
    while costs.price(is_remaining) > 0:  # dropping free features would save nothing
        n_dropped = len(acquisitions) - sum(bool(is_remaining[unit].any()) for unit in acquisitions)
        problem.report(n_dropped, 2 * len(acquisitions), "choosing features")
        # the cheapest columns first, because the booster splits on the first of equal columns
        gain = boosted_gains(problem, rows, by_price[is_remaining[by_price]])
        is_remaining = _drop_least_useful(gain, is_remaining, acquisitions, costs)
        if is_remaining.any() and costs.price(is_remaining) <= max_cost:
            path.append(is_remaining)
    path = path[::-1]
    # choose sets over the whole path and, if it is long, cheap sets between them
    wide_sets = spread(path, costs, n_stages)
    if len(path) < MIN_SETS_FOR_TWO:
        return [wide_sets]
    sizes = {len(features) for features in wide_sets}
    max_cost = costs.price(wide_sets[len(wide_sets) // 2])
    cheap_sets = [s for s in path if s.sum() not in sizes and costs.price(s) < max_cost]
    return [wide_sets, spread(cheap_sets, costs, n_stages)]


def boosted_gains(
    problem: Problem, rows: NDArray[np.intp], columns: NDArray[np.intp]
) -> NDArray[np.float64]:
    """Compute the gain of each column in a boosted model, shape (n_features,)."""
    plan = problem.plan
    n_classes = problem.n_classes
    coarse = {"num_leaves": 31, "learning_rate": 0.2, "max_bin": COARSE_BINS}
    settings = tree_params(problem.seed) | coarse | log_loss_params(n_classes)
    data = lgb.Dataset(
        np.ascontiguousarray(plan.x[np.ix_(rows, columns)]),
        plan.y[rows],
        weight=plan.weight[rows],
        params=settings,
    )
    rounds = 60 if n_classes == 2 else 25
    booster = lgb.train(settings, data, rounds, keep_training_booster=True)
    gain = np.zeros(plan.x.shape[1])
    gain[columns] = booster.feature_importance("gain")
    return gain


def _drop_least_useful(
    gain: NDArray[np.float64],
    is_remaining: NDArray[np.bool_],
    acquisitions: list[NDArray[np.intp]],
    costs: FeatureCosts,
) -> NDArray[np.bool_]:
    """Drop all acquisitions without gain, then those with the least gain for their price."""
    is_remaining = is_remaining.copy()
    cost_before = costs.price(is_remaining)
    # gain per saved price of each remaining acquisition
    gains_per_cost = np.full(len(acquisitions), np.inf)
    for u, unit in enumerate(acquisitions):
        if is_remaining[unit].any():
            gains_per_cost[u] = _gain_per_cost(gain, unit, is_remaining, costs)
    group_of = np.array([costs.group[unit[0]] for unit in acquisitions])
    while is_remaining.any():
        worst = int(gains_per_cost.argmin())
        if (
            gains_per_cost[worst] > 0
            and costs.price(is_remaining) <= (1 - DROPPED_PRICE_SHARE) * cost_before
        ):
            break
        drops_one_by_one = np.isfinite(gains_per_cost).sum() <= 1 / DROPPED_PRICE_SHARE
        is_remaining[acquisitions[worst]] = False
        gains_per_cost[worst] = np.inf
        if drops_one_by_one and costs.price(is_remaining) < cost_before:
            break  # the last few are dropped one by one
        # other acquisitions of the same group may save more now
        in_same_group = (group_of == group_of[worst]) & (group_of >= 0)
        changed = np.isfinite(gains_per_cost) & (in_same_group | bool(costs.prerequisites))
        for u in np.flatnonzero(changed).tolist():
            gains_per_cost[u] = _gain_per_cost(gain, acquisitions[u], is_remaining, costs)
    return is_remaining


def _gain_per_cost(
    gain: NDArray[np.float64],
    unit: NDArray[np.intp],
    is_remaining: NDArray[np.bool_],
    costs: FeatureCosts,
) -> float:
    """Compute the gain of an acquisition divided by the price that dropping it saves."""
    g = int(costs.group[unit[0]])
    if g < 0:
        price_saved = float(costs.own[unit[is_remaining[unit]]].sum())
    else:
        is_remaining_without = is_remaining.copy()
        is_remaining_without[unit] = False
        price_saved = costs.price(is_remaining) - costs.price(is_remaining_without)
    return float(gain[unit].sum()) / max(price_saved, 1e-12)
