"""MQTT client that reports the broker's acknowledgements, and its reason to disconnect.

It speaks MQTT 5 where the broker does, for the reason codes of its acknowledgements, and 3.1.1
elsewhere; then a code is never better than :data:`UNKNOWN`.
"""

from __future__ import annotations

import secrets
import socket
import threading
import time
from collections.abc import Callable
from typing import Any, Final, Self

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion

from gatewise_edge.errors import LinkError
from gatewise_edge.link.broker_url import Endpoint

# Reason codes of MQTT 5 (section 2.4).
NO_SUBSCRIBER: Final = 0x10
DENIED: Final = 0x87
SESSION_TAKEN: Final = 0x8E
PACKET_TOO_LARGE: Final = 0x95
_UNSUPPORTED_PROTOCOL: Final = 0x84
_PROTOCOLS: Final = (paho.MQTTv5, paho.MQTTv311)
#: MQTT 3.1.1 acknowledges without a reason, or no acknowledgement came.
UNKNOWN: Final = -1
#: Codes from here on are failures.
FAILURE: Final = 0x80


class Probe:
    """Connection to the broker; a context manager that raises LinkError if none comes about.

    An acknowledgement may take `timeout` s. `refusal` is the reason code of a refused CONNECT;
    `lost` the broker's reason to end the connection, UNKNOWN without one, None while it holds;
    `largest_packet` the largest that the broker takes, in bytes, where it says so.
    """

    def __init__(self, endpoint: Endpoint, timeout: float) -> None:
        self._endpoint = endpoint
        self._timeout = timeout
        self.refusal: int | None = None
        self.lost: int | None = None
        self.largest_packet: int | None = None
        self._reasons = True  # only MQTT 5 gives any
        self._changed = threading.Condition()
        self._connected = False
        self._codes: dict[int, int] = {}
        self._messages: list[tuple[float, str, bytes, bool]] = []

    def __enter__(self) -> Self:
        for protocol in _PROTOCOLS:
            self._reasons = protocol == paho.MQTTv5
            self.refusal = self.lost = None
            self._client = self._make_client(protocol)
            if self._open():
                return self
            self._close()
            if self.refusal not in (None, _UNSUPPORTED_PROTOCOL):
                break
        raise LinkError(self._endpoint.url, "no answer to CONNECT")

    def __exit__(self, *_: object) -> None:
        self._close()

    def _close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()
        # The socket pair that wakes paho's thread stays open otherwise.
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
        client.on_publish = lambda _c, _u, mid, reason, _p: self._acknowledge(mid, reason)
        client.on_subscribe = lambda _c, _u, mid, reasons, _p: self._acknowledge(mid, reasons[0])
        client.on_message = self._on_message
        self._endpoint.prepare(client)
        return client

    def _open(self) -> bool:
        try:
            self._client.connect(self._endpoint.host, self._endpoint.port, keepalive=10)
        except OSError:
            return False
        self._client.loop_start()
        with self._changed:
            self._changed.wait_for(
                lambda: self._connected or self.refusal is not None or self.lost is not None,
                self._timeout,
            )
            return self._connected

    def subscribe(self, topic: str) -> int:
        """Subscribe at QoS 1: the granted QoS, or the code of a failure."""
        _, mid = self._client.subscribe(topic, qos=1)
        return UNKNOWN if mid is None else self._await_code(mid)

    def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> int:
        """Publish at QoS 1: the code of the acknowledgement, or UNKNOWN."""
        code = self._await_code(self._client.publish(topic, payload, qos=1, retain=retain).mid)
        return code if self._reasons else UNKNOWN

    def _await_code(self, mid: int) -> int:
        with self._changed:
            self._changed.wait_for(
                lambda: mid in self._codes or self.lost is not None, self._timeout
            )
            return self._codes.get(mid, UNKNOWN)

    def wait(
        self, wanted: Callable[[str, bytes, bool], bool], seconds: float
    ) -> tuple[float, bytes] | None:
        """Wait for a message (topic, payload, whether retained): its time and payload.

        The time is that of :func:`time.perf_counter`. Messages that are not wanted are dropped.
        """
        end = time.monotonic() + seconds
        with self._changed:
            while True:
                while self._messages:
                    came, topic, payload, retained = self._messages.pop(0)
                    if wanted(topic, payload, retained):
                        return came, payload
                left = end - time.monotonic()
                if left <= 0 or self.lost is not None:
                    return None
                self._changed.wait(left)

    def echoes(self, topic: str, seconds: float) -> bool:
        """Whether a message on `topic` comes back to its sender."""
        mark = b"gatewise doctor " + secrets.token_bytes(8)
        if self.subscribe(topic) >= FAILURE:
            return False
        self.publish(topic, mark)
        came = self.wait(lambda where, what, _: where == topic and what == mark, seconds)
        self._client.unsubscribe(topic)
        return came is not None

    # -- callbacks, on paho's thread -------------------------------------------------------

    def _on_connect(self, _c: Any, _u: Any, _f: Any, reason: Any, properties: Any) -> None:
        with self._changed:
            self._connected = not reason.is_failure
            if reason.is_failure:
                self.refusal = int(reason.value)
            self.largest_packet = getattr(properties, "MaximumPacketSize", None)
            self._changed.notify_all()

    def _on_disconnect(self, _c: Any, _u: Any, flags: Any, reason: Any, _p: Any) -> None:
        with self._changed:
            has_reason = flags.is_disconnect_packet_from_server
            self.lost = int(reason.value) if has_reason else UNKNOWN
            self._changed.notify_all()

    def _acknowledge(self, mid: int, reason: Any) -> None:
        with self._changed:
            self._codes[mid] = int(reason.value)
            self._changed.notify_all()

    def _on_message(self, _c: Any, _u: Any, message: paho.MQTTMessage) -> None:
        with self._changed:
            self._messages.append(
                (time.perf_counter(), message.topic, bytes(message.payload), bool(message.retain))
            )
            self._changed.notify_all()


def _set_no_delay(_client: Any, _userdata: Any, sock: Any) -> None:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
