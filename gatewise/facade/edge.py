"""Public names from ``gatewise_edge``."""

from gatewise.errors import not_installed

try:
    from gatewise_edge import Answer, Device, InProcessLink, MqttLink, SensorError, Sensors
except ModuleNotFoundError as error:
    raise not_installed(error, "edge") from error

__all__ = ["Answer", "Device", "InProcessLink", "MqttLink", "SensorError", "Sensors"]
