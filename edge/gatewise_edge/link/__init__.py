"""Requests to the cloud over MQTT: messages, connections, retries and the circuit breaker."""
