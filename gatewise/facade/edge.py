"""Names of ``gatewise_edge`` in the facade."""

from gatewise_edge import Answer, Audit, Device, InProcessLink, MqttLink, SensorError, Sensors

__all__ = ["Answer", "Audit", "Device", "InProcessLink", "MqttLink", "SensorError", "Sensors"]
