"""State of an instance between its start on a device and its answer."""

from __future__ import annotations

from typing import Any

import msgspec
from numpy.typing import NDArray

from gatewise_edge.device.installed import InstalledBundle
from gatewise_edge.device.stages import StageOutput
from gatewise_edge.errors import SensorError
from gatewise_edge.link.offload import InFlight
from gatewise_edge.sensors.feature_reader import Reading


class Pending(msgspec.Struct, eq=False):
    """An instance without an answer. Times in seconds on the device's clock.

    Attributes
    ----------
    installed : InstalledBundle
        The bundle that it began with.
    reading : Reading
        Its features, as far as they are acquired.
    started, deadline : float
        When it began, and when its answer is due.
    outputs : list of StageOutput
        Outputs of its finished stages.
    group : list of Pending or None
        Instances that share a request; None: it has its own request.
    error : SensorError or None
        Failure of the feature that ended the stages.
    reason : str
        Why it is offloaded.
    values : ndarray or None
        Values of its request.
    request : InFlight or None
        The request that carries it.
    row : int
        Its row in the request.
    """

    installed: InstalledBundle
    reading: Reading
    started: float
    deadline: float
    outputs: list[StageOutput]
    group: list[Pending] | None = None
    error: SensorError | None = None
    reason: str = ""
    values: NDArray[Any] | None = None
    request: InFlight | None = None
    row: int = 0

    @property
    def wake_at(self) -> float:
        """When to advance next if no response comes before, in seconds on the device's clock."""
        request = self.request
        return self.deadline if request is None else min(request.wake_at, self.deadline)
