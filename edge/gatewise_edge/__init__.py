"""Run a bundle on a device: sensors, stages, answers in time, and the cloud over MQTT.

Importing this package loads nothing but the standard library; its names load what they need.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gatewise_training._lazy import lazy_names

if TYPE_CHECKING:
    from gatewise_edge.answer import Answer
    from gatewise_edge.breaker import Breaker
    from gatewise_edge.device import Device
    from gatewise_edge.errors import LinkError, SelfTestError, SensorError, WireError
    from gatewise_edge.link import InProcessLink, Link
    from gatewise_edge.mqtt import MqttLink
    from gatewise_edge.pacer import Pacer
    from gatewise_edge.sensors import Sensors
    from gatewise_edge.stages import StageRunner, self_test
    from gatewise_edge.wire import Request, Response

__all__ = [
    "Answer",
    "Breaker",
    "Device",
    "InProcessLink",
    "Link",
    "LinkError",
    "MqttLink",
    "Pacer",
    "Request",
    "Response",
    "SelfTestError",
    "SensorError",
    "Sensors",
    "StageRunner",
    "WireError",
    "self_test",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "Answer": "answer",
        "Breaker": "breaker",
        "Device": "device",
        "InProcessLink": "link",
        "Link": "link",
        "LinkError": "errors",
        "MqttLink": "mqtt",
        "Pacer": "pacer",
        "Request": "wire",
        "Response": "wire",
        "SelfTestError": "errors",
        "SensorError": "errors",
        "Sensors": "sensors",
        "StageRunner": "stages",
        "WireError": "errors",
        "self_test": "stages",
    },
)
