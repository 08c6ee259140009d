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
from gatewise_training.cascades.feature_sets.forward_selection import (
    MAX_SELECTED_COST_SHARE,
    spaced_sets,
    units_of_acquisition,
)
from gatewise_training.cascades.fit_problem import FitProblem
from gatewise_training.learners.boosting import COARSE_BINS, log_loss_params, tree_params

#: Largest number of rows for the selection of features, which needs fewer rows than a model.
MAX_ROWS = 20_000

#: Share of the price that one step drops. The number of fits therefore grows only with the
#: logarithm of the price. A step drops at least one feature or group.
DROPPED_PRICE_SHARE = 0.2

#: Smallest number of sets on a path for a second sequence; 100 features give about 16 sets.
MIN_SETS_FOR_SECOND_SEQUENCE = 16


def backward_sequences(
    problem: FitProblem, *, n_stages: int, max_set_cost: float | None = None
) -> list[list[NDArray[np.intp]]]:
    """Find nested sets by backward elimination; arguments as for :func:`.nested_sets`.

    If there are many features, a second sequence has cheap sets between those of the first.
    """
    costs = problem.costs
    max_cost = MAX_SELECTED_COST_SHARE * costs.total if max_set_cost is None else max_set_cost
    rows = np.random.default_rng(problem.seed).permutation(problem.split.fit_rows)[:MAX_ROWS]
    units = units_of_acquisition(costs)
    columns_by_price = np.argsort(costs.standalone_prices, kind="stable")
    is_remaining = np.ones(costs.n_features, bool)
    nested_masks: list[NDArray[np.bool_]] = []
    while costs.price(is_remaining) > 0:  # dropping free features would save nothing
        n_dropped = len(units) - sum(bool(is_remaining[unit].any()) for unit in units)
        problem.report_progress(n_dropped, 2 * len(units), "choosing features")
        # the cheapest columns first, because the booster splits on the first of equal columns
        gains = boosted_gains(problem, rows, columns_by_price[is_remaining[columns_by_price]])
        is_remaining = _drop_least_useful(gains, is_remaining, units, costs)
        if is_remaining.any() and costs.price(is_remaining) <= max_cost:
            nested_masks.append(is_remaining)
    nested_masks = nested_masks[::-1]
    # choose sets over the whole path and, if it is long, cheap sets between them
    wide_sets = spaced_sets(nested_masks, costs, n_stages)
    if len(nested_masks) < MIN_SETS_FOR_SECOND_SEQUENCE:
        return [wide_sets]
    wide_set_sizes = {len(columns) for columns in wide_sets}
    max_cost = costs.price(wide_sets[len(wide_sets) // 2])
    cheap_sets = [
        mask
        for mask in nested_masks
        if mask.sum() not in wide_set_sizes and costs.price(mask) < max_cost
    ]
    return [wide_sets, spaced_sets(cheap_sets, costs, n_stages)]


def boosted_gains(
    problem: FitProblem, rows: NDArray[np.intp], columns: NDArray[np.intp]
) -> NDArray[np.float64]:
    """Compute the gain of each column in a boosted model, shape (n_features,)."""
    split = problem.split
    n_classes = problem.n_classes
    coarse_params = {"num_leaves": 31, "learning_rate": 0.2, "max_bin": COARSE_BINS}
    params = tree_params(problem.seed) | coarse_params | log_loss_params(n_classes)
    dataset = lgb.Dataset(
        np.ascontiguousarray(split.x[np.ix_(rows, columns)]),
        split.y[rows],
        weight=split.weight[rows],
        params=params,
    )
    # with more classes, each round has more trees
    n_rounds = 60 if n_classes == 2 else 25
    booster = lgb.train(params, dataset, n_rounds, keep_training_booster=True)
    gains = np.zeros(split.x.shape[1])
    gains[columns] = booster.feature_importance("gain")
    return gains


def _drop_least_useful(
    gains: NDArray[np.float64],
    is_remaining: NDArray[np.bool_],
    units: list[NDArray[np.intp]],
    costs: FeatureCosts,
) -> NDArray[np.bool_]:
    """Drop all units without gain, then the units with the least gain per price."""
    is_remaining = is_remaining.copy()
    cost_before = costs.price(is_remaining)
    # gain per saved price of each remaining unit
    gains_per_price = np.full(len(units), np.inf)
    for unit_index, unit in enumerate(units):
        if is_remaining[unit].any():
            gains_per_price[unit_index] = _compute_gain_per_price(gains, unit, is_remaining, costs)
    unit_groups = np.array([costs.group[unit[0]] for unit in units])
    while is_remaining.any():
        worst_index = int(gains_per_price.argmin())
        if (
            gains_per_price[worst_index] > 0
            and costs.price(is_remaining) <= (1 - DROPPED_PRICE_SHARE) * cost_before
        ):
            break
        has_few_units = np.isfinite(gains_per_price).sum() <= 1 / DROPPED_PRICE_SHARE
        is_remaining[units[worst_index]] = False
        gains_per_price[worst_index] = np.inf
        if has_few_units and costs.price(is_remaining) < cost_before:
            break  # the last few are dropped one by one
        # other units of the same group may save more now
        is_in_same_group = (unit_groups == unit_groups[worst_index]) & (unit_groups >= 0)
        is_changed = np.isfinite(gains_per_price) & (is_in_same_group | bool(costs.prerequisites))
        for unit_index in np.flatnonzero(is_changed).tolist():
            gains_per_price[unit_index] = _compute_gain_per_price(
                gains, units[unit_index], is_remaining, costs
            )
    return is_remaining


def _compute_gain_per_price(
    gains: NDArray[np.float64],
    unit: NDArray[np.intp],
    is_remaining: NDArray[np.bool_],
    costs: FeatureCosts,
) -> float:
    """Compute the gain of a unit divided by the price that dropping it saves."""
    group = int(costs.group[unit[0]])
    if group < 0:
        saved_price = float(costs.own[unit[is_remaining[unit]]].sum())
    else:
        is_remaining_without = is_remaining.copy()
        is_remaining_without[unit] = False
        saved_price = costs.price(is_remaining) - costs.price(is_remaining_without)
    return float(gains[unit].sum()) / max(saved_price, 1e-12)  # dropping it may save nothing
