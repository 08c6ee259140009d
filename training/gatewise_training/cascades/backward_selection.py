"""Backward elimination: nested feature sets, from all of them down to the cheapest useful one.

Each step fits a boosted model on the remaining features, and drops the features or groups with the
least gain for their price. This keeps features that are useful only together. A penalty on first
uses may never find them, because it starts from no features.
"""

from __future__ import annotations

import lightgbm as lgb
import numpy as np
from numpy.typing import NDArray

from gatewise.costs import FeatureCosts
from gatewise_training.cascades.fit_problem import Problem
from gatewise_training.cascades.forward_selection import LARGEST_SHARE, acquisition_units, spread
from gatewise_training.learners.boosting import (
    COARSE_BINS,
    log_loss_params,
    tree_params,
)

ROWS = 20_000
"""Largest number of rows for a choice of features, which needs fewer than a model."""

STEP = 0.2
"""Share of the price that one step drops, at least one feature or group."""

MANY_SETS = 16
"""Length from which on a path also gives a second sequence; 100 features give about 16 sets."""


def backward_sequences(
    problem: Problem, *, n_stages: int, limit: float | None = None
) -> list[list[NDArray[np.intp]]]:
    """Find nested sets by backward elimination; arguments as for :func:`.nested_sets`.

    From many features there is a second sequence, of cheap sets between the first ones.
    """
    costs = problem.costs
    max_cost = LARGEST_SHARE * costs.total if limit is None else limit
    rows = np.random.default_rng(problem.seed).permutation(problem.plan.fit_rows)[:ROWS]
    units = acquisition_units(costs)
    by_price = np.argsort(costs.alone, kind="stable")
    is_left = np.ones(costs.n_features, bool)
    path: list[NDArray[np.bool_]] = []
    while costs.price(is_left) > 0:  # free features save nothing, and stay
        n_dropped = len(units) - sum(bool(is_left[unit].any()) for unit in units)
        problem.report(n_dropped, 2 * len(units), "choosing features")
        # cheapest columns first: among equal columns the booster splits on the first
        gain = boosted_gains(problem, rows, by_price[is_left[by_price]])
        is_left = _drop_least_useful(gain, is_left, units, costs)
        if is_left.any() and costs.price(is_left) <= max_cost:
            path.append(is_left)
    path = path[::-1]
    # sets over the whole path and, if it is long, cheap sets between them
    wide_sets = spread(path, costs, n_stages)
    if len(path) < MANY_SETS:
        return [wide_sets]
    sizes = {len(features) for features in wide_sets}
    max_cost = costs.price(wide_sets[len(wide_sets) // 2])
    cheap_sets = [s for s in path if s.sum() not in sizes and costs.price(s) < max_cost]
    return [wide_sets, spread(cheap_sets, costs, n_stages)]


def boosted_gains(
    problem: Problem, rows: NDArray[np.intp], columns: NDArray[np.intp]
) -> NDArray[np.float64]:
    """Gain of each column in a boosted model, shape (n_features,)."""
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
    is_left: NDArray[np.bool_],
    units: list[NDArray[np.intp]],
    costs: FeatureCosts,
) -> NDArray[np.bool_]:
    """Drop all units without gain, then the units with the least gain for their price."""
    is_left = is_left.copy()
    cost_before = costs.price(is_left)
    # gain per saved price of each unit that is left
    worth = np.full(len(units), np.inf)
    for u, unit in enumerate(units):
        if is_left[unit].any():
            worth[u] = _worth(gain, unit, is_left, costs)
    group_of = np.array([costs.group[unit[0]] for unit in units])
    while is_left.any():
        worst_unit = int(worth.argmin())
        if worth[worst_unit] > 0 and costs.price(is_left) <= (1 - STEP) * cost_before:
            break
        drops_singly = np.isfinite(worth).sum() <= 1 / STEP
        is_left[units[worst_unit]] = False
        worth[worst_unit] = np.inf
        if drops_singly and costs.price(is_left) < cost_before:
            break  # the last few are dropped one by one
        # units of the same group may save more now
        in_same_group = (group_of == group_of[worst_unit]) & (group_of >= 0)
        changed = np.isfinite(worth) & (in_same_group | bool(costs.prerequisites))
        for u in np.flatnonzero(changed).tolist():
            worth[u] = _worth(gain, units[u], is_left, costs)
    return is_left


def _worth(
    gain: NDArray[np.float64],
    unit: NDArray[np.intp],
    is_left: NDArray[np.bool_],
    costs: FeatureCosts,
) -> float:
    """Gain of a unit divided by the price that dropping it saves."""
    g = int(costs.group[unit[0]])
    if g < 0:
        price_saved = float(costs.own[unit[is_left[unit]]].sum())
    else:
        is_left_without = is_left.copy()
        is_left_without[unit] = False
        price_saved = costs.price(is_left) - costs.price(is_left_without)
    return float(gain[unit].sum()) / max(price_saved, 1e-12)
