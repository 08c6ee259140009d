"""The state of an instance that a device has begun but not yet answered."""

from __future__ import annotations

from typing import Any

import msgspec
from numpy.typing import NDArray

from gatewise_edge.device.installation import Installation
from gatewise_edge.device.stages import StageOutput
from gatewise_edge.errors import SensorError
from gatewise_edge.link.offload import Offload
from gatewise_edge.sensors.feature_reader import Reading


class PendingInstance(msgspec.Struct, eq=False):
    """An instance without an answer. Times are in seconds on the device's clock.

    Attributes
    ----------
    installation : Installation
        The installed bundle that answers the instance.
    reading : Reading
        The features acquired so far.
    started_at, deadline : float
        Time of the call, and time by which the answer must be given.
    outputs : list of StageOutput
        Outputs of the finished stages.
    group : list of PendingInstance or None
        Instances that share a request; None if the instance has its own request.
    error : SensorError or None
        Failure of a feature, after which no further stage runs.
    reason : str
        Reason for the offload.
    values : ndarray or None
        The instance's row in the request.
    offload : Offload or None
        The request with this instance.
    row : int
        Index of the instance's row in the request.
    """

    installation: Installation
    reading: Reading
    started_at: float
    deadline: float
    outputs: list[StageOutput]
    group: list[PendingInstance] | None = None
    error: SensorError | None = None
    reason: str = ""
    values: NDArray[Any] | None = None
    offload: Offload | None = None
    row: int = 0

    def acquire_request_values(self) -> NDArray[Any]:
        """Acquire the request's row; SensorError if the cloud needs a failed feature."""
        installation = self.installation
        takes_nan = installation.cloud_takes_nan
        values = self.reading.acquire(
            installation.request_inputs, allow_missing=takes_nan, allow_failure=takes_nan
        )
        return installation.cast_for_request(values)

    @property
    def wake_at(self) -> float:
        """Time at which to call :meth:`.Device.advance` unless a response arrives before."""
        offload = self.offload
        return self.deadline if offload is None else min(offload.wake_at, self.deadline)
