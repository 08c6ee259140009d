"""MQTT client of ``gatewise doctor``, which reports the reason codes of the broker's replies.

It uses MQTT 5 if the broker supports it, because only MQTT 5 has reason codes in every reply. With
MQTT 3.1.1 the code of an acknowledged message is :data:`UNKNOWN`.
"""

from __future__ import annotations

import secrets
import socket
import threading
import time
from collections.abc import Callable
from typing import Any, Final, NamedTuple, Self

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion

from gatewise_edge.errors import LinkError
from gatewise_edge.link.endpoint import Endpoint

# Reason codes of MQTT 5 (section 2.4).
NO_SUBSCRIBER: Final = 0x10
DENIED: Final = 0x87
SESSION_TAKEN: Final = 0x8E
PACKET_TOO_LARGE: Final = 0x95
_UNSUPPORTED_PROTOCOL: Final = 0x84
_PROTOCOLS: Final = (paho.MQTTv5, paho.MQTTv311)
#: Code if the acknowledgement has no reason code (MQTT 3.1.1) or does not come.
UNKNOWN: Final = -1
#: Keepalive of devices.
_KEEPALIVE_SECONDS: Final = 10
#: Smallest code of a failure.
FAILURE: Final = 0x80


class ReceivedMessage(NamedTuple):
    """A message, and its time of arrival by :func:`time.perf_counter`."""

    arrival: float
    topic: str
    payload: bytes
    is_retained: bool


class BrokerProbe:
    """Context manager that connects to the broker, or raises LinkError.

    paho's thread sets the attributes. Each is valid once the method that causes the reply has
    returned.

    Parameters
    ----------
    endpoint : Endpoint
        Address of the broker.
    timeout_s : float
        Seconds to wait for an acknowledgement.

    Attributes
    ----------
    refusal : int or None
        Reason code of a refused CONNECT.
    disconnect_code : int or None
        Reason code with which the broker ended the connection, or UNKNOWN. None while connected.
    max_packet_bytes : int or None
        Largest packet that the broker accepts, in bytes, if it announces a limit.
    """

    def __init__(self, endpoint: Endpoint, timeout_s: float) -> None:
        self._endpoint = endpoint
        self._timeout_s = timeout_s
        self.refusal: int | None = None
        self.disconnect_code: int | None = None
        self.max_packet_bytes: int | None = None
        self._has_reason_codes = True
        self._condition = threading.Condition()
        self._is_connected = False
        self._code_by_message_id: dict[int, int] = {}
        #: Messages that were not read yet.
        self._messages: list[ReceivedMessage] = []

    def __enter__(self) -> Self:
        for protocol in _PROTOCOLS:
            self._has_reason_codes = protocol == paho.MQTTv5
            self.refusal = self.disconnect_code = None
            self._client = self._make_client(protocol)
            if self._open():
                return self
            self._close()
            if self.refusal not in (None, _UNSUPPORTED_PROTOCOL):
                break
        problem = "no answer to CONNECT"
        if self.refusal is not None:
            problem = f"CONNECT was refused with the reason code {self.refusal}"
        raise LinkError(self._endpoint.url, problem)

    def __exit__(self, *_: object) -> None:
        self._close()

    def _close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()
        # Close the socket pair with which paho wakes its thread.
        self._client.reinitialise()

    def _make_client(self, protocol: Any) -> paho.Client:
        options: dict[str, Any] = {} if protocol == paho.MQTTv5 else {"clean_session": True}
        client = paho.Client(
            CallbackAPIVersion.VERSION2,
            client_id=f"gw-doctor-{secrets.token_hex(6)}",
            protocol=protocol,
            reconnect_on_failure=False,
            **options,
        )
        client.on_socket_open = _set_no_delay
        client.on_connect = self._on_connect
        client.on_disconnect = self._on_disconnect
        client.on_publish = self._on_publish
        client.on_subscribe = self._on_subscribe
        client.on_message = self._on_message
        self._endpoint.prepare(client)
        return client

    def _open(self) -> bool:
        try:
            self._client.connect(
                self._endpoint.host, self._endpoint.port, keepalive=_KEEPALIVE_SECONDS
            )
        except OSError:
            return False
        self._client.loop_start()
        with self._condition:
            self._condition.wait_for(
                lambda: (
                    self._is_connected
                    or self.refusal is not None
                    or self.disconnect_code is not None
                ),
                self._timeout_s,
            )
            return self._is_connected

    def subscribe(self, topic: str) -> int:
        """Subscribe at QoS 1; return the granted QoS, the code of a failure, or UNKNOWN."""
        _, message_id = self._client.subscribe(topic, qos=1)
        return UNKNOWN if message_id is None else self._await_code(message_id)

    def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> int:
        """Publish at QoS 1; return the code of the acknowledgement, or UNKNOWN."""
        code = self._await_code(self._client.publish(topic, payload, qos=1, retain=retain).mid)
        return code if self._has_reason_codes else UNKNOWN

    def _await_code(self, message_id: int) -> int:
        with self._condition:
            self._condition.wait_for(
                lambda: message_id in self._code_by_message_id or self.disconnect_code is not None,
                self._timeout_s,
            )
            return self._code_by_message_id.get(message_id, UNKNOWN)

    def wait_for_message(
        self, is_expected: Callable[[ReceivedMessage], bool], seconds: float
    ) -> ReceivedMessage | None:
        """Wait for the first expected message, and drop the others; None if none comes in time."""
        deadline = time.monotonic() + seconds
        with self._condition:
            while True:
                while self._messages:
                    message = self._messages.pop(0)
                    if is_expected(message):
                        return message
                remaining_seconds = deadline - time.monotonic()
                if remaining_seconds <= 0 or self.disconnect_code is not None:
                    return None
                self._condition.wait(remaining_seconds)

    def receives_own_message(self, topic: str, seconds: float) -> bool:
        """Publish on `topic` while subscribed to it; return whether the message comes back."""
        own_payload = b"gatewise doctor " + secrets.token_bytes(8)
        if self.subscribe(topic) >= FAILURE:
            return False
        # without an acknowledgement the subscription may still work, and the message decides
        self.publish(topic, own_payload)
        echo = self.wait_for_message(
            lambda message: (message.topic, message.payload) == (topic, own_payload), seconds
        )
        self._client.unsubscribe(topic)
        return echo is not None

    # -- callbacks, on paho's thread -------------------------------------------------------

    def _on_connect(
        self, _client: Any, _userdata: Any, _flags: Any, reason: Any, properties: Any
    ) -> None:
        with self._condition:
            self._is_connected = not reason.is_failure
            if reason.is_failure:
                self.refusal = int(reason.value)
            self.max_packet_bytes = getattr(properties, "MaximumPacketSize", None)
            self._condition.notify_all()

    def _on_disconnect(
        self, _client: Any, _userdata: Any, flags: Any, reason: Any, _properties: Any
    ) -> None:
        with self._condition:
            has_reason = flags.is_disconnect_packet_from_server
            self.disconnect_code = int(reason.value) if has_reason else UNKNOWN
            self._condition.notify_all()

    def _on_publish(
        self, _client: Any, _userdata: Any, message_id: int, reason: Any, _properties: Any
    ) -> None:
        self._acknowledge(message_id, reason)

    def _on_subscribe(
        self, _client: Any, _userdata: Any, message_id: int, reasons: Any, _properties: Any
    ) -> None:
        self._acknowledge(message_id, reasons[0])  # the SUBSCRIBE has one topic

    def _acknowledge(self, message_id: int, reason: Any) -> None:
        with self._condition:
            self._code_by_message_id[message_id] = int(reason.value)
            self._condition.notify_all()

    def _on_message(self, _client: Any, _userdata: Any, message: paho.MQTTMessage) -> None:
        with self._condition:
            self._messages.append(
                ReceivedMessage(
                    time.perf_counter(), message.topic, bytes(message.payload), bool(message.retain)
                )
            )
            self._condition.notify_all()


def _set_no_delay(_client: Any, _userdata: Any, connection: Any) -> None:
    """Send small packets at once, because round trips are measured."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
