"""Forward selection: nested feature sets, grown by what a unit of cost buys.

A step adds the feature, or the whole group where features are bought together, that takes most
off the error per unit of cost. Candidates are judged by leave-one-out errors of a small kernel
machine, which have a closed form, so that hundreds of candidates take seconds. Finds the one
cheap feature, or the one cheap group, that a penalised booster steps over.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from gatewise_training.costs import FeatureCosts
from gatewise_training.kernel import left_out_error
from gatewise_training.resampling import Resampling

__all__ = ["forward_sets", "purchases"]

ROWS = 1200
"""Rows that judge candidates."""

MOST_PURCHASES = 32
"""With more to choose from, forward selection is left out."""


def purchases(costs: FeatureCosts) -> list[NDArray[np.intp]]:
    """What can be bought at once: single features, and groups whose members are free then.

    Examples
    --------
    >>> costs = FeatureCosts([1, 0, 0], group=[None, "a", "a"], shared={"a": 2.0})
    >>> [p.tolist() for p in purchases(costs)]
    [[0], [1, 2]]
    """
    bought: list[NDArray[np.intp]] = []
    seen = np.zeros(costs.n_features, bool)
    for k in range(costs.n_features):
        if seen[k]:
            continue
        members = costs.members(k)
        together = members[costs.own[members] == 0] if costs.own[k] == 0 else np.array([k])
        seen[together] = True
        bought.append(together)
    return bought


def forward_sets(
    plan: Resampling,
    costs: FeatureCosts,
    n_classes: int,
    *,
    n_stages: int,
    seed: int = 0,
    report: Callable[[int, int], None] = lambda _done, _total: None,
) -> list[NDArray[np.intp]]:
    """Nested sets by forward selection; none where there is too much to choose from.

    Parameters
    ----------
    plan : Resampling
        Without missing values.
    costs : FeatureCosts
    n_classes : int
    n_stages : int
        Sets at most; their costs spread geometrically.
    seed : int
    report : callable (done, total)

    Returns
    -------
    list of ndarray of intp
        Column indices, each set a superset of the one before.
    """
    open_to_buy = purchases(costs)
    if len(open_to_buy) > MOST_PURCHASES:
        return []
    rows = plan.fit_rows
    rows = np.random.default_rng(seed).permutation(rows)[:ROWS]
    x, y, weight = plan.x[rows], plan.y[rows], plan.weight[rows]
    have = np.zeros(costs.n_features, bool)
    error = left_out_error(x[:, have], y, n_classes, weight)
    path: list[NDArray[np.bool_]] = []
    total = len(open_to_buy)
    while open_to_buy and costs.of(have) < costs.total:
        report(total - len(open_to_buy), total)
        prices = [max(costs.of(p, bought=have), 1e-9) for p in open_to_buy]
        errors = [
            left_out_error(x[:, have | costs.mask(p)], y, n_classes, weight) for p in open_to_buy
        ]
        best = int(
            np.argmax([(error - e) / price for e, price in zip(errors, prices, strict=True)])
        )
        gain, error = error - errors[best], errors[best]
        have = have | costs.mask(open_to_buy.pop(best))
        path.append(have)
        if gain <= 0 and len(path) > 1:
            break
    return _spread(path, costs, n_stages)


def _spread(
    path: list[NDArray[np.bool_]], costs: FeatureCosts, n_stages: int
) -> list[NDArray[np.intp]]:
    """Pick sets whose costs are spread geometrically, the first and the last among them."""
    price = np.array([costs.of(chosen) for chosen in path])
    if len(path) > n_stages:
        wanted = np.geomspace(max(price[0], 1e-9), max(price[-1], 1e-9), n_stages)
        keep = sorted({int(np.argmin(np.abs(price - w))) for w in wanted})
        path = [path[i] for i in keep]
    return [np.flatnonzero(chosen) for chosen in path]
