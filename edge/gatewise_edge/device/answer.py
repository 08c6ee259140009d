"""An instance on its way through a device: what it is, what is under way, what comes out."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from gatewise_edge.device.installed import Installed
from gatewise_edge.errors import SensorError
from gatewise_edge.link.coalesce import Share
from gatewise_edge.sensors.sensors import Reading
from gatewise_edge.stages.stages import StageOutput

__all__ = ["Answer", "Case", "Pending", "Policy", "Route"]

Policy = Literal["system", "edge-only", "cloud-only"]
Route = Literal["edge", "cloud", "fallback"]


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """The one answer to an instance.

    Attributes
    ----------
    label : int, float, str or bool
        The class, as the user's data names it; of a bundle that answers with values (tasks
        ``regress`` and ``rank``) the value, a float.
    class_index : int
        Its index among the bundle's classes; -1 for a value.
    probabilities : ndarray of float64, shape (n_classes,)
        Empty for a value.
    route : {"edge", "cloud", "fallback"}
        A stage stopped here; the cloud, or a stage beyond the device, answered; the cloud, or a
        sensor, was needed and failed, and the last finished stage stands in.
    stage : int
        The stage whose answer this is; the number of stages for the high-cost model's.
    cost : float
        Features acquired, and the price of the offload if one was made.
    feature_cost : float
        Features acquired alone.
    latency_ms : float
        From the call to the answer, in milliseconds.
    reason : str
        Why this route. edge: ``stopped``, ``last-stage``, ``edge-only``. cloud: ``offloaded``,
        ``gateway`` (a stage there answered), ``missing``, ``cloud-only``, or a failed sensor's
        trouble (below). fallback: ``no-link``, ``link-down``, ``breaker-open``, ``full``,
        ``unsent``, ``deadline``, ``timeout``, ``cloud:<error code>``, or a feature's trouble as
        ``missing:<name>``, ``infinite:<name>``, ``sensor:<name>``, ``sensor-late:<name>``.
    acquired : tuple of int
        Features bought, as indices.
    paced : bool
        Whether a pacer had moved the gate's threshold: then no guarantee of the operating point
        covers this answer.
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
    paced: bool = False


@dataclass(slots=True, eq=False)
class Case:
    """An instance on its way to an answer. Times in seconds on the device's clock."""

    installed: Installed
    reading: Reading
    started: float
    deadline: float
    #: Whether its request may wait for those of the rows behind it.
    hold: bool = False
    finished: StageOutput | None = None
    stage: int = -1
    error: SensorError | None = None
    reason: str = ""
    #: The stop score at the gate; whether the manifest's threshold would send it on from there,
    #: and whether the pacer's decided.
    score: float | None = None
    goes_on: bool = False
    paced: bool = False
    #: Whether a request was made.
    asked: bool = False


@dataclass(slots=True, eq=False)
class Pending:
    """An instance whose request is out, or waits for others; see :meth:`Device.advance`."""

    case: Case
    item: Share

    @property
    def wake_at(self) -> float:
        """When to advance next if no response comes before, in seconds on the device's clock."""
        return self.item.wake_at
