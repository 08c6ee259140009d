"""Cost of the features that each row acquires before it leaves a cascade.

A stage with acquisition "stage" acquires all its features for every row that visits it. A stage
with acquisition "node" (CEGB's lazy acquisition, NIPS 2017, section 3) acquires for each row the
features on the row's paths through the trees. A row pays for the union of the features of the
stages that it visits, and pays the shared price of a group once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from gatewise.costs import FeatureCosts

Acquisition = Literal["stage", "node"]

#: Mask of the features that a stage acquires, (n_features,) or, per row, (n, n_features).
AcquiredMask = NDArray[np.bool_]


def exit_costs(
    costs: FeatureCosts,
    acquired_masks: Sequence[AcquiredMask],
    offload_mask: AcquiredMask | None = None,
    *,
    request_price: float = 0.0,
    pays_for_stages: bool = True,
) -> NDArray[np.float64]:
    """Compute the cost of an instance that leaves the cascade at each stage, or is offloaded.

    Parameters
    ----------
    costs : FeatureCosts
    acquired_masks : sequence of ndarray of bool, shape (n_features,) or (n, n_features)
        Features that each stage acquires.
    offload_mask : ndarray of bool, optional
        Features in a request; None if the cascade never offloads.
    request_price : float, default 0
        Price of an offload without its features.
    pays_for_stages : bool, default True
        Whether an offloaded instance also pays for the features of the stages. Adapt's authors
        charge it only for the features of the high-cost model.

    Returns
    -------
    ndarray of float64, shape (n_stages + 1,) or (n_stages + 1, n)
        One entry per stage, and a last entry with the cost of an offload. In a cascade that never
        offloads, the last entry repeats the cost of the last stage. The axis n exists if a mask has
        it.

    Examples
    --------
    A stage acquires one feature for the first row and two for the second:

    >>> costs = FeatureCosts([1.0, 2.0, 4.0])
    >>> exit_costs(costs, [np.array([[1, 0, 0], [1, 1, 0]], bool)], np.array([0, 1, 1], bool))
    array([[1., 3.],
           [7., 7.]])
    """
    acquired_mask: AcquiredMask = np.zeros(costs.n_features, bool)
    costs_by_exit = []
    for stage_mask in acquired_masks:
        acquired_mask = acquired_mask | stage_mask
        costs_by_exit.append(_price_features(costs, acquired_mask))
    if offload_mask is None:
        costs_by_exit.append(costs_by_exit[-1])
    else:
        paid_mask = acquired_mask | offload_mask if pays_for_stages else offload_mask
        costs_by_exit.append(_price_features(costs, paid_mask) + request_price)
    # some masks may be per row and others not
    return np.stack(np.broadcast_arrays(*costs_by_exit))


def select_exit_costs(
    costs_by_exit: NDArray[np.float64], exits: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Select the cost of each row, shape (n,), from the result of :func:`exit_costs`.

    `exits`, (n,), holds the index of the exit that each row takes.
    """
    if costs_by_exit.ndim == 1:
        return costs_by_exit[exits]
    return costs_by_exit[exits, np.arange(len(exits))]


def last_exit_within(costs_by_exit: NDArray[np.float64], max_cost: float) -> int:
    """Find the last exit that costs at most `max_cost`; return -1 if every exit costs more.

    `costs_by_exit`, (n_exits,), must be in ascending order. The result of :func:`exit_costs` is in
    this order if an offload pays for the stages, because prices are not negative.

    >>> last_exit_within(np.array([1.0, 3.0, 7.0]), 3.0)
    1
    """
    return int(np.searchsorted(costs_by_exit, max_cost, side="right")) - 1


def _price_features(costs: FeatureCosts, acquired_mask: AcquiredMask) -> NDArray[np.float64]:
    """Price the features of a mask, shape (), or of each row's mask, shape (n,)."""
    return np.asarray(
        costs.price(acquired_mask)
        if acquired_mask.ndim == 1
        else costs.instance_costs(acquired_mask)
    )
