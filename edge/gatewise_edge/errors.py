"""Errors of the edge package.

::

    GatewiseError
    ├── WireError       a message that cannot be used      (.reason, .id)
    ├── SensorError     a feature that cannot be acquired  (.sensor, .why)
    ├── SelfTestError   a bundle that computes otherwise   (.differences)
    └── LinkError       a cloud that cannot be reached     (.url)

A bundle that cannot be read at all is a :class:`gatewise_export.bundle.bundle.BundleError`.
"""

from __future__ import annotations

from typing import Literal

from gatewise.errors import GatewiseError


class WireError(GatewiseError):
    """A message, a topic or a name that the wire does not allow.

    `reason` is a short code, fit for a counter and for the dead-letter topic: ``size``, ``cbor``,
    ``json``, ``version``, ``id``, ``name``, ``range``, ``type``, ``shape``, ``infinite``,
    ``missing``, ``checksum``, ``hash``. `id` is the message's, where one could be read, so that an
    error can be answered.
    """

    def __init__(self, reason: str, message: str, *, id: bytes | None = None) -> None:  # noqa: A002
        super().__init__(message)
        self.reason = reason
        self.id = id


class SensorError(GatewiseError):
    """A feature that could not be acquired, or a value that is refused.

    Attributes
    ----------
    sensor : str
        Name of the feature, or of the feature group that was read.
    why : {"sensor", "sensor-late", "missing", "infinite"}
        It failed; it blocked until it was too late; its value is NaN where the model allows
        none; its value is infinite or beyond float32.
    """

    def __init__(
        self,
        sensor: str,
        message: str,
        *,
        why: Literal["sensor", "sensor-late", "missing", "infinite"] = "sensor",
    ) -> None:
        super().__init__(message)
        self.sensor = sensor
        self.why = why


class SelfTestError(GatewiseError):
    """A bundle that computes other outputs here than where it was packed.

    `differences`: what differed (an array's name in ``sample.npz``) and in how many rows.
    """

    def __init__(self, message: str, differences: dict[str, int]) -> None:
        super().__init__(message)
        self.differences = differences


class LinkError(GatewiseError):
    """A cloud, or its broker, that cannot be reached; `url` is without user name and password."""

    def __init__(self, url: str, message: str) -> None:
        super().__init__(message)
        self.url = url
