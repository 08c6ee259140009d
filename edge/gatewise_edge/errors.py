"""Errors of the edge package.

::

    GatewiseError
    ├── WireError       an invalid message, topic or name         (.reason, .id)
    ├── SensorError     a feature that cannot be acquired         (.sensor, .cause)
    ├── SelfTestError   a bundle that gives other results here    (.differences)
    └── LinkError       a broker or server that cannot be used    (.url)

A bundle that cannot be read raises :class:`gatewise_export.bundle.errors.BundleError`.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from gatewise.errors import GatewiseError

#: Short code of an invalid message, for counters and for the dead-letter topic.
WireReason: TypeAlias = Literal[
    "size", "checksum", "cbor", "json", "version", "id", "name", "range", "type", "shape",
    "infinite",
]  # fmt: skip


class WireError(GatewiseError):
    """A message, a topic or a name that the protocol does not allow.

    Attributes
    ----------
    reason : WireReason
    id : bytes or None
        Id of the message, with which an error response can be sent; None if it cannot be read.
    """

    def __init__(self, reason: WireReason, message: str, *, id: bytes | None = None) -> None:  # noqa: A002
        super().__init__(message)
        self.reason = reason
        self.id = id


class SensorError(GatewiseError):
    """A feature that could not be acquired, or a value that is refused.

    Attributes
    ----------
    sensor : str
        Name of the feature or of the feature group.
    cause : {"sensor", "sensor-late", "missing", "infinite"}
        - ``sensor``: the sensor failed.
        - ``sensor-late``: the sensor did not return in time.
        - ``missing``: its value is NaN, and the model does not accept missing values.
        - ``infinite``: its value is infinite or beyond float32.
    """

    def __init__(
        self,
        sensor: str,
        message: str,
        *,
        cause: Literal["sensor", "sensor-late", "missing", "infinite"] = "sensor",
    ) -> None:
        super().__init__(message)
        self.sensor = sensor
        self.cause = cause


class SelfTestError(GatewiseError):
    """A bundle with outputs on this machine that differ from those recorded at packing.

    `differences` maps the name of each differing array of ``sample.npz`` to the number of rows that
    differ.
    """

    def __init__(self, message: str, differences: dict[str, int]) -> None:
        super().__init__(message)
        self.differences = differences


class LinkError(GatewiseError):
    """A broker or a server that cannot be reached or used.

    `url` contains no user name and no password.
    """

    def __init__(self, url: str, message: str) -> None:
        super().__init__(message)
        self.url = url
