"""Forward selection: nested feature sets, grown by the error reduction per unit of cost.

Each step adds the feature, or the group of features acquired together, with the largest reduction
of the error per unit of cost. Errors are leave-one-out errors of a small kernel machine, which have
a closed form, so that hundreds of candidates take seconds. Forward selection finds a single cheap
feature or group that a penalised booster misses.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gatewise.costs import FeatureCosts
from gatewise_training.cascades.fit_problem import Problem
from gatewise_training.learners.kernel_fitting import left_out_error

MAX_COST_SHARE = 0.75
"""Cost at which the selection stops, as a share of the cost of all features. More features may harm
the small machine although they would help the larger model of a stage."""

MAX_ROWS = 1200
"""Largest number of rows for the comparison of candidates."""

MAX_TRIALS = 12
"""Largest number of candidates that a step tries; the first step tries all."""


def acquisition_units(costs: FeatureCosts) -> list[NDArray[np.intp]]:
    """List what can be acquired: single features, and groups of otherwise free members.

    >>> costs = FeatureCosts([1, 0, 0], group=[None, "a", "a"], shared={"a": 2.0})
    >>> [p.tolist() for p in acquisition_units(costs)]
    [[0], [1, 2]]
    """
    acquisitions: list[NDArray[np.intp]] = []
    is_listed = np.zeros(costs.n_features, bool)
    for k in range(costs.n_features):
        if is_listed[k]:
            continue
        members = costs.members(k)
        unit = members[costs.own[members] == 0] if costs.own[k] == 0 else np.array([k])
        is_listed[unit] = True
        acquisitions.append(unit)
    return acquisitions


def come_in_blocks(costs: FeatureCosts) -> bool:
    """Whether most features are free together with others, as features of one signal are.

    Examples
    --------
    >>> come_in_blocks(FeatureCosts([0, 0, 0], group=["a", "a", "a"], shared={"a": 2.0}))
    True
    """
    return 2 * len(acquisition_units(costs)) <= costs.n_features


def forward_sets(
    problem: Problem, *, n_stages: int, limit: float | None = None
) -> list[NDArray[np.intp]]:
    """Find nested sets by forward selection; arguments as for :func:`.nested_sets`.

    No value may be missing.
    """
    plan = problem.plan
    costs = problem.costs
    n_classes = problem.n_classes
    acquisitions = acquisition_units(costs)
    rows = np.random.default_rng(problem.seed).permutation(plan.fit_rows)[:MAX_ROWS]
    x = plan.x[rows]
    y = plan.y[rows]
    weight = plan.weight[rows]
    blocks = plan.splitter.take(rows).blocks(problem.seed)
    acquired = np.zeros(costs.n_features, bool)
    error = left_out_error(x[:, acquired], y, n_classes, weight, blocks=blocks)
    # reduction of the error per cost at the last trial, which bounds the current one (lazy greedy)
    gains_per_cost = np.full(len(acquisitions), np.inf)
    path: list[NDArray[np.bool_]] = []
    max_cost = MAX_COST_SHARE * costs.total if limit is None else limit
    while np.any(gains_per_cost > -np.inf) and costs.price(acquired) < max_cost:
        problem.report(len(path), 2 * len(acquisitions), "choosing features")
        # try the most promising acquisition until it remains the most promising
        errors: dict[int, float] = {}
        while (best_unit := int(np.argmax(gains_per_cost))) not in errors:
            unit_mask = costs.mask(acquisitions[best_unit])
            errors[best_unit] = left_out_error(
                x[:, acquired | unit_mask], y, n_classes, weight, blocks=blocks
            )
            price = max(costs.price(unit_mask, acquired=acquired), 1e-9)
            gains_per_cost[best_unit] = (error - errors[best_unit]) / price
            if path and len(errors) >= MAX_TRIALS:
                best_unit = max(errors, key=lambda p: float(gains_per_cost[p]))
                break
        # add the best acquisition, unless it would exceed the limit
        gains_per_cost[best_unit] = -np.inf
        acquired_with_unit = acquired | costs.mask(acquisitions[best_unit])
        if limit is None or costs.price(acquired_with_unit) <= limit:
            error = errors[best_unit]
            acquired = acquired_with_unit
            path.append(acquired)
    return spread(path, costs, n_stages)


def spread(
    path: list[NDArray[np.bool_]], costs: FeatureCosts, n_stages: int
) -> list[NDArray[np.intp]]:
    """Pick `n_stages` sets with geometrically spaced costs, including the first and the last."""
    price = np.array([costs.price(features) for features in path])
    if len(path) > n_stages:
        targets = np.geomspace(max(price[0], 1e-9), max(price[-1], 1e-9), n_stages)
        numbers = sorted({int(np.argmin(np.abs(price - w))) for w in targets})
        path = [path[i] for i in numbers]
    return [np.flatnonzero(features) for features in path]
