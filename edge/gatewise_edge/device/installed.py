"""A bundle ready to run on this device: what depends on it, as one object that never changes.

Each instance holds the object that it began with. So a device takes over a new bundle by putting
another object in place, and an instance under way ends with the stages, prices, sensors and the
model version that it began with.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gatewise.costs import request_bytes
from gatewise.errors import InputError
from gatewise.tiers import Tier, on_device
from gatewise_edge.link.wire import MAX_PAYLOAD
from gatewise_edge.sensors.sensors import Meter, Row, Sensors, Source
from gatewise_edge.stages.stage_models import Runner
from gatewise_edge.stages.stages import StageRunner, self_test
from gatewise_export.bundle.bundle import Bundle
from gatewise_export.bundle.manifest import Manifest

if TYPE_CHECKING:
    from gatewise_edge.device.gate import Gate

__all__ = ["Installed", "Plan"]


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """What the manifest settles once for all instances.

    Attributes
    ----------
    model, version : str
        Named by every request.
    names : tuple of str
        Of the features.
    classes : tuple
    n_stages, n_here : int
        Stages of the chain in force, and how many of them, the first ones, run on the device.
    tiers : tuple of str
        Where each stage runs.
    stage_inputs, request_inputs : ndarray of intp
        Features that the device's stages may buy, and those that a request carries, in its order.
    has_cloud : bool
    stages_take_nan, cloud_takes_nan : bool
        Whether NaN is a value for the device's stages, and in a request.
    offload_price, gateway_price, request_price : float
        What an offload costs beside its features: one that the high-cost model answered, one that
        a stage beyond the device answered, one that nobody answered
        (:func:`gatewise.tiers.cascade_costs`).
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
    stages_take_nan: bool
    cloud_takes_nan: bool
    offload_price: float
    gateway_price: float
    request_price: float

    @classmethod
    def of(cls, manifest: Manifest) -> Self:
        """Draw it from a manifest at the operating point in force."""
        tiers = manifest.tiers
        here = on_device(tiers)
        prices, inputs = manifest.cloud_prices(), manifest.request_inputs()
        gateway = prices.gateway if "gateway" in tiers else 0.0
        stages_take_nan = manifest.missing["stages"] == "allowed"
        return cls(
            model=manifest.name,
            version=manifest.version,
            names=manifest.feature_names,
            classes=manifest.classes,
            n_stages=len(tiers),
            n_here=here,
            tiers=tiers,
            stage_inputs=np.unique(np.concatenate([manifest.stage_inputs(s) for s in range(here)])),
            request_inputs=inputs,
            has_cloud=manifest.cloud is not None,
            stages_take_nan=stages_take_nan,
            cloud_takes_nan=manifest.missing["cloud"] == "allowed"
            and (stages_take_nan or here == len(tiers)),
            offload_price=prices.of_offload(len(inputs)) + gateway,
            gateway_price=prices.of_message(len(inputs)) + gateway,
            request_price=prices.of_message(len(inputs)),
        )


@dataclass(frozen=True, slots=True, eq=False)
class Installed:
    """A bundle with all that is made of it.

    Attributes
    ----------
    bundle : Bundle
    runner : StageRunner
    plan : Plan
    meter : Meter
    source : Source or None
        The device's sensors, matched with the bundle's features.
    gate : Gate or None
        Of the stage before an instance leaves the device, where one may.
    """

    bundle: Bundle
    runner: StageRunner
    plan: Plan
    meter: Meter
    source: Source | None
    gate: Gate | None = None

    @classmethod
    def of(
        cls,
        bundle: Bundle,
        *,
        sensors: Sensors | None,
        asks_cloud: bool,
        check: bool = True,
        runner: Runner = "auto",
    ) -> Self:
        """Load a bundle and prove that it computes here what it computed where it was packed.

        Parameters
        ----------
        bundle : Bundle
        sensors : Sensors or None
        asks_cloud : bool
            Whether instances may leave the device: then what a request carries needs a sensor,
            and must fit a message.
        check : bool, default True
            Run the self-test.
        runner : {"auto", "onnxruntime", "numpy"}, default "auto"
            What runs graphs.

        Raises
        ------
        BundleError
            If it cannot be read or run.
        SelfTestError
            If it computes otherwise here.
        InputError
            If the sensors do not fit it, or a request would be too large.
        """
        stages = StageRunner(bundle, runner=runner)
        plan = Plan.of(bundle.manifest)
        carried = plan.request_inputs if asks_cloud else plan.request_inputs[:0]
        if request_bytes(len(carried)) > MAX_PAYLOAD:
            raise InputError(
                f"a request carries {len(carried)} features, more than a message of "
                f"{MAX_PAYLOAD} bytes can hold"
            )
        if check:
            self_test(bundle, stages)
        costs = bundle.manifest.feature_costs()
        source = None
        if sensors is not None:
            source = sensors.bind(costs, [*plan.stage_inputs, *carried])
        return cls(bundle, stages, plan, Meter(costs), source)

    def source_of(self, row: ArrayLike | None) -> Source:
        """Where an instance comes from: the row given, else the sensors.

        Raises
        ------
        InputError
            If the row does not fit the bundle, or there are neither a row nor sensors.
        """
        if row is not None:
            return Row(row, len(self.plan.names))
        if self.source is None:
            raise InputError("no instance: give a row, or give the device sensors")
        return self.source
