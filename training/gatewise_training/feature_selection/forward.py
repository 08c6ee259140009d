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

from gatewise.costs import FeatureCosts
from gatewise.models.kernel_machine import left_out_error
from gatewise_training.data.validation_split import ValidationSplit

__all__ = ["forward_sets", "purchases", "spread"]

ROWS = 1200
"""Rows that judge candidates."""

MOST_JUDGED = 12
"""Candidates judged anew for one purchase, the first apart."""


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
    plan: ValidationSplit,
    costs: FeatureCosts,
    n_classes: int,
    *,
    n_stages: int,
    largest: float = 0.75,
    seed: int = 0,
    report: Callable[[int, int], None] = lambda _done, _total: None,
) -> list[NDArray[np.intp]]:
    """Nested sets by forward selection.

    Parameters
    ----------
    plan : ValidationSplit
        Without missing values.
    costs : FeatureCosts
    n_classes : int
    n_stages : int
        Sets at most; their costs spread geometrically.
    largest : float, default 0.75
        Share of the cost of all features at which to stop. A small machine may think that
        more features only hurt; a stage's larger one knows better.
    seed : int
    report : callable (done, total)

    Returns
    -------
    list of ndarray of intp
        Column indices, each set a superset of the one before.
    """
    open_to_buy = purchases(costs)
    rows = np.random.default_rng(seed).permutation(plan.fit_rows)[:ROWS]
    x, y, weight = plan.x[rows], plan.y[rows], plan.weight[rows]
    have = np.zeros(costs.n_features, bool)
    error = left_out_error(x[:, have], y, n_classes, weight)
    # what each was worth when last judged: hardly ever less than it is worth now (lazy greedy)
    worth = np.full(len(open_to_buy), np.inf)
    path: list[NDArray[np.bool_]] = []
    while np.any(worth > -np.inf) and costs.price(have) < largest * costs.total:
        report(len(path), len(open_to_buy))
        judged: dict[int, float] = {}
        while (best := int(np.argmax(worth))) not in judged:
            bought = costs.mask(open_to_buy[best])
            judged[best] = left_out_error(x[:, have | bought], y, n_classes, weight)
            price = max(costs.price(bought, acquired=have), 1e-9)
            worth[best] = (error - judged[best]) / price
            if path and len(judged) >= MOST_JUDGED:
                best = max(judged, key=lambda p: float(worth[p]))
                break
        error, worth[best] = judged[best], -np.inf
        have = have | costs.mask(open_to_buy[best])
        path.append(have)
    return spread(path, costs, n_stages)


def spread(
    path: list[NDArray[np.bool_]], costs: FeatureCosts, n_stages: int
) -> list[NDArray[np.intp]]:
    """Pick sets whose costs are spread geometrically, the first and the last among them."""
    price = np.array([costs.price(chosen) for chosen in path])
    if len(path) > n_stages:
        wanted = np.geomspace(max(price[0], 1e-9), max(price[-1], 1e-9), n_stages)
        keep = sorted({int(np.argmin(np.abs(price - w))) for w in wanted})
        path = [path[i] for i in keep]
    return [np.flatnonzero(chosen) for chosen in path]
