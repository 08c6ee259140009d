"""An instance on its way through a device: what is fixed, what is under way, what comes out."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Literal, Self

import numpy as np
from numpy.typing import NDArray

from gatewise_edge.errors import SensorError
from gatewise_edge.offload import Outstanding
from gatewise_edge.sensors import Reading
from gatewise_edge.stages import StageOutput
from gatewise_export.manifest import Manifest
from gatewise_training.costs import request_bytes

__all__ = ["Answer", "Case", "Pending", "Plan", "Policy", "Route"]

Policy = Literal["system", "edge-only", "cloud-only"]
Route = Literal["edge", "cloud", "fallback"]


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """The one answer to an instance.

    Attributes
    ----------
    label : int, float, str or bool
        The class, as the user's data names it.
    class_index : int
        Its index among the bundle's classes.
    probabilities : ndarray of float64, shape (n_classes,)
    route : {"edge", "cloud", "fallback"}
        A stage stopped here; the cloud answered; the cloud, or a sensor, was needed and
        failed, and the last finished stage stands in.
    stage : int
        The stage whose answer this is; the number of stages for the cloud's.
    cost : float
        Features acquired, and the price of the offload if one was made.
    feature_cost : float
        Features acquired alone.
    latency_ms : float
        From the call to the answer, in milliseconds.
    reason : str
        Why this route. edge: ``stopped``, ``last-stage``, ``edge-only``. cloud: ``offloaded``,
        ``missing``, ``cloud-only``. fallback: ``no-link``, ``link-down``, ``full``, ``unsent``,
        ``deadline``, ``timeout``, ``cloud:<error code>``, or a feature's trouble as
        ``missing:<name>``, ``infinite:<name>``, ``sensor:<name>``, ``sensor-late:<name>``.
    acquired : tuple of int
        Features bought, as indices.
    """

    label: Hashable
    class_index: int
    probabilities: NDArray[np.float64]
    route: Route
    stage: int
    cost: float
    feature_cost: float
    latency_ms: float
    reason: str
    acquired: tuple[int, ...]


@dataclass(slots=True, eq=False)
class Case:
    """An instance on its way to an answer. Times in seconds on the device's clock."""

    reading: Reading
    started: float
    deadline: float
    finished: StageOutput | None = None
    stage: int = -1
    error: SensorError | None = None
    reason: str = ""


@dataclass(slots=True, eq=False)
class Pending:
    """An instance whose request is out; see :meth:`Device.advance`."""

    case: Case
    item: Outstanding

    @property
    def wake_at(self) -> float:
        """When to advance next if no response comes before, in seconds on the device's clock."""
        return self.item.wake_at


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """What the manifest settles once for all instances."""

    names: tuple[str, ...]
    classes: tuple[Hashable, ...]
    stage_inputs: NDArray[np.intp]
    cloud_inputs: NDArray[np.intp]
    has_cloud: bool
    stages_take_nan: bool
    cloud_takes_nan: bool
    #: What a completed offload costs beside its features, and one that nobody answered.
    offload_price: float
    request_price: float

    @classmethod
    def of(cls, manifest: Manifest) -> Self:
        """Draw it from a manifest at the operating point in force."""
        prices, inputs = manifest.cloud_prices(), manifest.cloud_inputs()
        stages = [manifest.stage_inputs(s) for s in range(len(manifest.stages))]
        return cls(
            names=manifest.feature_names,
            classes=manifest.classes,
            stage_inputs=np.unique(np.concatenate(stages)),
            cloud_inputs=inputs,
            has_cloud=manifest.cloud is not None,
            stages_take_nan=manifest.missing["stages"] == "allowed",
            cloud_takes_nan=manifest.missing["cloud"] == "allowed",
            offload_price=prices.of_offload(len(inputs)),
            request_price=prices.request + prices.byte * request_bytes(len(inputs)),
        )
