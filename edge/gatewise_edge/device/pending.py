"""An instance on its way through a device, until its answer."""

from __future__ import annotations

import msgspec

from gatewise_edge.device.installed import InstalledBundle
from gatewise_edge.device.stages import StageOutput
from gatewise_edge.errors import SensorError
from gatewise_edge.link.messages import Instances
from gatewise_edge.link.offload import InFlight
from gatewise_edge.sensors.feature_reader import Reading


class Pending(msgspec.Struct, eq=False):
    """An instance without an answer. Times in seconds on the device's clock.

    `installed` is the bundle that it began with, `outputs` come from its finished stages, and
    `error` is that of the feature that ended the stages. `reason`: why it is offloaded. With a
    `group` its values wait in `values` for a request of many rows.
    It was sent in `request`, as row `row`.
    """

    installed: InstalledBundle
    reading: Reading
    started: float
    deadline: float
    outputs: list[StageOutput]
    group: list[Pending] | None = None
    error: SensorError | None = None
    reason: str = ""
    values: Instances | None = None
    request: InFlight | None = None
    row: int = 0

    @property
    def wake_at(self) -> float:
        """When to advance next if no response comes before, in seconds on the device's clock."""
        request = self.request
        return self.deadline if request is None else min(request.wake_at, self.deadline)
