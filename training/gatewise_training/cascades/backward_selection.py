"""Backward elimination: nested feature sets, from all of them down to the cheapest useful one.

The counterpart of a penalty: a boosted model is fitted on what is left, and the features or
groups with the least gain for their price go. It keeps features that only work together, which a
penalty on first uses, growing from nothing, may never find.
"""

from __future__ import annotations

import lightgbm as lgb
import numpy as np
from numpy.typing import NDArray

from gatewise.costs import FeatureCosts
from gatewise_training.cascades.fit_problem import Problem
from gatewise_training.cascades.forward_selection import LARGEST_SHARE, acquisition_units, spread
from gatewise_training.learners.boosting import COARSE_BINS, log_loss_params, tree_params

ROWS = 20_000
"""Rows used to choose features: a choice needs fewer than a model."""

STEP = 0.2
"""Share of the price that goes at a time, at least one feature or group."""

MANY_SETS = 16
"""So many sets come of about a hundred features or groups."""


def backward_sequences(
    problem: Problem, *, n_stages: int, limit: float | None = None
) -> list[list[NDArray[np.intp]]]:
    """Find nested sets by backward elimination; arguments as those of :func:`.nested_sets`.

    Where features are so many that the sets' costs are far apart, there is a second sequence: cheap
    sets that lie between. A budget between the costs of two sets may allow much better ones.
    """
    costs = problem.costs
    most = LARGEST_SHARE * costs.total if limit is None else limit
    rows = np.random.default_rng(problem.seed).permutation(problem.plan.fit_rows)[:ROWS]
    units = acquisition_units(costs)
    by_price = np.argsort(costs.alone, kind="stable")
    left = np.ones(costs.n_features, bool)
    path: list[NDArray[np.bool_]] = []
    while costs.price(left) > 0:  # free features stay: nothing is saved without them
        dropped = len(units) - sum(bool(left[unit].any()) for unit in units)
        problem.report(dropped, 2 * len(units), "choosing features")
        # of equal columns the booster splits on the first: let it be the cheapest
        gain = _gains(problem, rows, by_price[left[by_price]])
        left = _without_least(gain, left, units, costs)
        if left.any() and costs.price(left) <= most:
            path.append(left)
    path = path[::-1]
    wide = spread(path, costs, n_stages)
    if len(path) < MANY_SETS:
        return [wide]
    sizes, most = {len(chosen) for chosen in wide}, costs.price(wide[len(wide) // 2])
    between = [s for s in path if s.sum() not in sizes and costs.price(s) < most]
    return [wide, spread(between, costs, n_stages)]


def _gains(
    problem: Problem, rows: NDArray[np.intp], columns: NDArray[np.intp]
) -> NDArray[np.float64]:
    """What each column takes off a boosted model's loss, shape (n_features,)."""
    plan, n_classes = problem.plan, problem.n_classes
    few = {"num_leaves": 31, "learning_rate": 0.2, "max_bin": COARSE_BINS}
    settings = tree_params(problem.seed) | few | log_loss_params(n_classes)
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


def _without_least(
    gain: NDArray[np.float64],
    left: NDArray[np.bool_],
    units: list[NDArray[np.intp]],
    costs: FeatureCosts,
) -> NDArray[np.bool_]:
    """Drop what brings nothing, then the least gain for its price until a step is done."""
    left = left.copy()
    before = costs.price(left)
    while left.any():
        worth = {}
        for number, unit in enumerate(units):
            if left[unit].any():
                rest = left.copy()
                rest[unit] = False
                saved = max(costs.price(left) - costs.price(rest), 1e-12)
                worth[number] = float(gain[unit].sum()) / saved
        least = min(worth, key=lambda number: worth[number])
        if costs.price(left) <= (1 - STEP) * before and worth[least] > 0:
            break
        left[units[least]] = False
        if costs.price(left) < before and len(worth) <= 1 / STEP:
            break  # of the last few, one at a time
    return left
