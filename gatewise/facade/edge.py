"""Names of ``gatewise_edge`` in the facade."""

from gatewise_edge import Answer, Device, InProcessLink, MqttLink, SensorError, Sensors

__all__ = ["Answer", "Device", "InProcessLink", "MqttLink", "SensorError", "Sensors"]
