"""Forward selection: nested feature sets, grown by the error reduction per unit of cost.

Each step adds the feature, or the group of features acquired together, with the largest reduction
of the error per unit of cost. Errors are leave-one-out errors of a small kernel machine. They have
a closed form, by which hundreds of candidates take only seconds. Forward selection finds a single
cheap feature or group that a penalised booster misses.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gatewise.costs import FeatureCosts
from gatewise_training.cascades.fit_problem import FitProblem
from gatewise_training.learners.kernel_fitting import left_out_error

#: Cost at which the selection stops, as a share of the cost of all features. More features may harm
#: the small machine although they would help the larger model of a stage.
MAX_SELECTED_COST_SHARE = 0.75

#: Largest number of rows for the comparison of candidates, each of which is a kernel machine.
MAX_ROWS = 1200

#: Largest number of candidates that a step tries; the first step tries all.
MAX_TRIALS = 12


def units_of_acquisition(costs: FeatureCosts) -> list[NDArray[np.intp]]:
    """List the units of acquisition: single features, and groups of features without own prices.

    >>> costs = FeatureCosts([1, 0, 0], group=[None, "a", "a"], shared={"a": 2.0})
    >>> [unit.tolist() for unit in units_of_acquisition(costs)]
    [[0], [1, 2]]
    """
    units: list[NDArray[np.intp]] = []
    is_listed = np.zeros(costs.n_features, bool)
    for feature in range(costs.n_features):
        if is_listed[feature]:
            continue
        members = costs.members(feature)
        unit = members[costs.own[members] == 0] if costs.own[feature] == 0 else np.array([feature])
        is_listed[unit] = True
        units.append(unit)
    return units


def has_mostly_groups(costs: FeatureCosts) -> bool:
    """Whether most features are free once another feature of their group is paid.

    Examples
    --------
    >>> has_mostly_groups(FeatureCosts([0, 0, 0], group=["a", "a", "a"], shared={"a": 2.0}))
    True
    """
    return 2 * len(units_of_acquisition(costs)) <= costs.n_features


def forward_sets(
    problem: FitProblem, *, n_stages: int, max_set_cost: float | None = None
) -> list[NDArray[np.intp]]:
    """Find nested sets by forward selection; arguments as for :func:`.nested_sets`.

    No value may be missing.
    """
    split = problem.split
    costs = problem.costs
    n_classes = problem.n_classes
    units = units_of_acquisition(costs)
    rows = np.random.default_rng(problem.seed).permutation(split.fit_rows)[:MAX_ROWS]
    x = split.x[rows]
    y = split.y[rows]
    weights = split.weight[rows]
    fold_of_row = split.splitter.take(rows).inner_folds(problem.seed)
    is_acquired = np.zeros(costs.n_features, bool)
    error = left_out_error(x[:, is_acquired], y, n_classes, weights, fold_of_row=fold_of_row)
    # reduction of the error per cost at the last trial, which bounds the current reduction, so that
    # few acquisitions need another trial (lazy greedy)
    gains_per_price = np.full(len(units), np.inf)
    nested_masks: list[NDArray[np.bool_]] = []
    max_cost = MAX_SELECTED_COST_SHARE * costs.total if max_set_cost is None else max_set_cost
    while np.any(gains_per_price > -np.inf) and costs.price(is_acquired) < max_cost:
        problem.report_progress(len(nested_masks), 2 * len(units), "choosing features")
        # try the most promising unit until it remains the most promising
        errors: dict[int, float] = {}
        while (best_index := int(np.argmax(gains_per_price))) not in errors:
            unit_mask = costs.mask(units[best_index])
            errors[best_index] = left_out_error(
                x[:, is_acquired | unit_mask], y, n_classes, weights, fold_of_row=fold_of_row
            )
            unit_price = max(costs.price(unit_mask, acquired=is_acquired), 1e-9)  # it may be free
            gains_per_price[best_index] = (error - errors[best_index]) / unit_price
            if nested_masks and len(errors) >= MAX_TRIALS:
                best_index = max(errors, key=lambda unit_index: float(gains_per_price[unit_index]))
                break
        # add the best unit, unless it would exceed the limit
        gains_per_price[best_index] = -np.inf
        is_acquired_with_unit = is_acquired | costs.mask(units[best_index])
        if max_set_cost is None or costs.price(is_acquired_with_unit) <= max_set_cost:
            error = errors[best_index]
            is_acquired = is_acquired_with_unit
            nested_masks.append(is_acquired)
    return spaced_sets(nested_masks, costs, n_stages)


def spaced_sets(
    nested_masks: list[NDArray[np.bool_]], costs: FeatureCosts, n_stages: int
) -> list[NDArray[np.intp]]:
    """Pick `n_stages` sets with geometrically spaced costs, including the first and the last."""
    costs_of_sets = np.array([costs.price(mask) for mask in nested_masks])
    if len(nested_masks) > n_stages:
        targets = np.geomspace(max(costs_of_sets[0], 1e-9), max(costs_of_sets[-1], 1e-9), n_stages)
        indices = sorted({int(np.argmin(np.abs(costs_of_sets - target))) for target in targets})
        nested_masks = [nested_masks[index] for index in indices]
    return [np.flatnonzero(mask) for mask in nested_masks]
