"""An instance in a device: the answer to it, and its state until then."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from gatewise_edge.device.installed import Installed
from gatewise_edge.errors import SensorError
from gatewise_edge.link.offload import InFlight
from gatewise_edge.sensors.feature_reader import Reading
from gatewise_edge.stages.stages import StageOutput

__all__ = ["Answer", "Pending", "Policy", "Route"]

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
        sensor, was needed and failed, and the last finished stage answers instead.
    stage : int
        The stage that gave the answer; the number of stages for the high-cost model's.
    cost : float
        Features acquired, and the price of the offload if one was made.
    feature_cost : float
        Features acquired alone.
    latency_ms : float
        From the call to the answer, in milliseconds.
    reason : str
        Why this route. edge: ``stopped``, ``last-stage``, ``edge-only``. cloud: ``offloaded``,
        ``gateway`` (a stage there answered), ``missing``, ``cloud-only``, or a failed sensor
        (below). fallback: ``no-link``, ``link-down``, ``breaker-open``, ``full``, ``unsent``,
        ``deadline``, ``timeout``, ``cloud:<error code>``, or a feature's failure as
        ``missing:<name>``, ``infinite:<name>``, ``sensor:<name>``, ``sensor-late:<name>``.
    acquired : tuple of int
        Features acquired, as indices.
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
class Pending:
    """An instance without an answer yet. Times in seconds on the device's clock.

    Attributes
    ----------
    installed : Installed
        The bundle that it began with.
    reading : Reading
    started, deadline : float
    hold : bool
        Whether its request may wait for those of the rows behind it.
    finished : StageOutput or None
        Of the last finished stage, which is `stage`.
    error : SensorError or None
        Of the feature that ended the stages.
    reason : str
        Why it is offloaded.
    score : float or None
        The stop score at the gate.
    offloads_as_packed : bool
        Whether the manifest's threshold would send it on from the gate.
    paced : bool
        Whether the pacer's threshold decided.
    offloaded : bool
        Whether a request was made.
    request : InFlight or None
        The request, and its `row` there.
    """

    installed: Installed
    reading: Reading
    started: float
    deadline: float
    hold: bool = False
    finished: StageOutput | None = None
    stage: int = -1
    error: SensorError | None = None
    reason: str = ""
    score: float | None = None
    offloads_as_packed: bool = False
    paced: bool = False
    offloaded: bool = False
    request: InFlight | None = None
    row: int = 0

    @property
    def wake_at(self) -> float:
        """When to advance next if no response comes before, in seconds on the device's clock."""
        request = self.request
        if request is None:
            return self.deadline
        if request.outcome is not None:
            return request.opened + request.outcome.seconds
        return min(request.wake_at, self.deadline)
