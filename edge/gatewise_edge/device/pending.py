"""An instance on its way through a device, until its answer."""

from __future__ import annotations

from dataclasses import dataclass

from gatewise_edge.device.installed import Installed
from gatewise_edge.device.stage_output import RowOutput
from gatewise_edge.errors import SensorError
from gatewise_edge.link.offload import InFlight
from gatewise_edge.sensors.feature_reader import Reading


@dataclass(slots=True, eq=False)
class Pending:
    """An instance without an answer yet. Times in seconds on the device's clock.

    `installed` is the bundle that it began with, `finished` the output of the last finished
    `stage`, `error` that of the feature that ended the stages. `hold`: its request may wait for
    those of the rows behind it. `reason`: why it is offloaded; `score`: the stop score at the gate;
    `offloads_as_packed`: whether the manifest's threshold would send it on from there; `paced`:
    whether the pacer's threshold decided. `request` is what was `offloaded`, with its `row` there.
    """

    installed: Installed
    reading: Reading
    started: float
    deadline: float
    hold: bool = False
    finished: RowOutput | None = None
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
