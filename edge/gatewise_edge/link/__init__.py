"""Requests over MQTT: messages, connections and their accounts."""
