"""Run a bundle on a device: sensors, stages, answers in time, and the cloud over MQTT."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gatewise_training._lazy import lazy_names

if TYPE_CHECKING:
    from gatewise_edge.errors import LinkError, SelfTestError, SensorError, WireError
    from gatewise_edge.wire import Request, Response

__all__ = [
    "LinkError",
    "Request",
    "Response",
    "SelfTestError",
    "SensorError",
    "WireError",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "LinkError": "errors",
        "Request": "wire",
        "Response": "wire",
        "SelfTestError": "errors",
        "SensorError": "errors",
        "WireError": "errors",
    },
)
