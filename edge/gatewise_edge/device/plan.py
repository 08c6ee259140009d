"""The plan of a bundle's stages: which run on the device, and what a request to the cloud holds."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from gatewise.prices import request_bytes
from gatewise.tiers import Tier, on_device
from gatewise_export.bundle.manifest import Manifest

_FLOAT32: Final = np.dtype(np.float32)


@dataclass(frozen=True, slots=True, eq=False)
class StagePlan:
    """What the manifest fixes for all instances, at the active operating point.

    The first `n_here` of `n_stages` stages run on the device and may acquire `stage_inputs`;
    `has_cloud` says whether an instance may leave it. The manifest's cap on the cost of an instance
    ends its way at `last_exit`, which may leave out stages of the device and all that is behind it.
    A request carries `request_inputs`, in this order. ``*_take*_nan`` say whether NaN is a value
    there. Prices are what an offload costs beside its features: `offload_price` if the high-cost
    model answered, `gateway_price` if a stage beyond the device did, `request_price` without an
    answer (:func:`gatewise.tiers.cascade_costs`). A request's values are of type `dtype`.
    """

    model: str
    version: str
    names: tuple[str, ...]
    classes: tuple[Hashable, ...]
    n_stages: int
    n_here: int
    tiers: tuple[Tier, ...]
    stage_inputs: NDArray[np.intp]
    request_inputs: NDArray[np.intp]
    has_cloud: bool
    last_exit: int
    stages_take_nan: bool
    cloud_takes_nan: bool
    offload_price: float
    gateway_price: float
    request_price: float
    dtype: np.dtype[Any] = _FLOAT32

    @classmethod
    def from_manifest(cls, manifest: Manifest) -> Self:
        """Read it from a manifest."""
        device: Tier = "device"
        tiers = (device,) * len(manifest.stages)
        every, last = on_device(tiers), manifest.last_exit
        here = min(every, last + 1)
        prices, inputs = manifest.cloud_prices(), manifest.cloud_inputs()
        gateway = prices.gateway if "gateway" in tiers else 0.0
        offload_price = prices.of_offload(len(inputs)) + gateway
        gateway_price = prices.of_message(len(inputs)) + gateway
        stages_take_nan = manifest.missing.stages == "allowed"
        return cls(
            model=manifest.name,
            version=manifest.version,
            names=manifest.feature_names,
            classes=manifest.classes,
            n_stages=len(tiers),
            n_here=here,
            tiers=tiers,
            stage_inputs=np.flatnonzero(
                np.any([manifest.acquired(s) for s in range(here)], axis=0)
            ),
            request_inputs=inputs,
            has_cloud=last >= every,
            last_exit=last,
            stages_take_nan=stages_take_nan,
            cloud_takes_nan=manifest.missing.cloud == "allowed"
            and (stages_take_nan or every == len(tiers)),
            offload_price=offload_price if last == len(tiers) else gateway_price,
            gateway_price=gateway_price,
            request_price=prices.of_message(len(inputs)),
            dtype=manifest.request_dtype,
        )

    @property
    def request_bytes(self) -> int:
        """Bytes of a request with one instance, before compression."""
        return request_bytes(len(self.request_inputs), item_size=self.dtype.itemsize)

    def typed(self, x: NDArray[np.float32]) -> NDArray[Any]:
        """Get values in the type of the bundle's instances or windows, if all are of it."""
        if self.dtype == x.dtype:
            return x
        with np.errstate(all="ignore"):
            as_given = x.astype(self.dtype)
        return as_given if np.array_equal(as_given, x) else x
