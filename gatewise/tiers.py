"""Tiers that stages run on (device, gateway, cloud), and the costs of leaving the device.

The sensors are the device's, and an instance leaves the device in ONE request, which carries the
features of the high-cost model and of every stage beyond the device: they are acquired on
leaving, whoever answers in the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from gatewise.acquisition import Acquired, exit_costs
from gatewise.costs import FeatureCosts
from gatewise.prices import CloudPrices

Tier = Literal["device", "gateway", "cloud"]
PackedAs = Literal["c99", "onnx"]
"""What a device keeps of stages: ``c99``, the const tables of :func:`gatewise_export.to_c`, in
float form; ``onnx``, their files in a bundle (graphs or, acquired node by node, npz)."""
TIERS: tuple[Tier, ...] = ("device", "gateway", "cloud")


def in_order(tiers: Sequence[Tier]) -> bool:
    """Whether stages start on the device, and none comes back from a gateway or the cloud."""
    ranks = [TIERS.index(tier) for tier in tiers]
    return ranks == sorted(ranks) and (not ranks or ranks[0] == 0)


def on_device(tiers: Sequence[Tier]) -> int:
    """Count the stages, the first ones, that run on the device."""
    return sum(tier == "device" for tier in tiers)


def sent(
    acquired: Sequence[Acquired], tiers: Sequence[Tier], offload: Acquired
) -> NDArray[np.bool_]:
    """Get the features that the one request of an instance carries.

    Shapes: `acquired` (n_features,), `offload` (n_features,); returns (n_features,).
    """
    carried: NDArray[np.bool_] = offload.copy()
    for mask, tier in zip(acquired, tiers, strict=bool(tiers)):
        if tier != "device":
            carried |= mask
    return carried


def cascade_costs(
    costs: FeatureCosts,
    acquired: Sequence[Acquired],
    offload: Acquired,
    prices: CloudPrices,
    tiers: Sequence[Tier] = (),
    *,
    union: bool = True,
) -> NDArray[np.float64]:
    """Get the cost of leaving at each stage and, last, at the high-cost model.

    An instance answered on the device pays for the features of the stages that it visited. Any
    other also pays, on leaving, for the features that its request carries (:func:`sent`), the
    request and its bytes; then a gateway's evaluation if stages run on one, whether it
    answers or passes the instance on; and the cloud's evaluation only if the high-cost model
    answers.

    Shapes: `acquired` (n_features,), `offload` (n_features,); returns (n_stages + 1,).

    Three features at 1; an answer of the stage on the gateway pays no evaluation:

    >>> masks = np.eye(3, dtype=bool)
    >>> prices = CloudPrices(request=10.0, gateway=1.0, evaluation=100.0)
    >>> cascade_costs(FeatureCosts.uniform(3), masks[:2], masks[2], prices, ("device", "gateway"))
    array([  1.,  14., 114.])
    """
    first = on_device(tiers) if tiers else len(acquired)
    carried = sent(acquired, tiers, offload)
    beyond = [carried] * (len(acquired) - first)
    gateway = prices.gateway if "gateway" in tiers else 0.0
    n_sent = int(np.count_nonzero(carried))
    out = exit_costs(
        costs,
        [*acquired[:first], *beyond],
        offload if not union else carried,
        request=prices.of_offload(n_sent) + gateway,
        union=union,
    )
    out[first:-1] += prices.of_message(n_sent) + gateway  # summed as a device does
    return out
