"""An MQTT client that reports how the broker acknowledges what it sends.

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

from gatewise_cloud.broker.mqtt_client import close_client
from gatewise_edge.errors import LinkError
from gatewise_edge.link.mqtt import Endpoint

# Reason codes of MQTT 5 (section 2.4).
NOBODY: Final = 0x10
DENIED: Final = 0x87
#: MQTT 3.1.1 acknowledges without a reason, or no acknowledgement came.
UNKNOWN: Final = -1

Message = tuple[str, bytes, bool]


class Probe:
    """A connection to the broker; a context manager, LinkError if none comes about.

    `timeout` is how long (s) to wait for an acknowledgement; `reasons` says whether the broker
    gives reasons for it (MQTT 5).
    """

    def __init__(self, endpoint: Endpoint, timeout: float) -> None:
        self._endpoint = endpoint
        self._timeout = timeout
        self.reasons = True
        self._changed = threading.Condition()
        self._connected: bool | None = None
        self._failure = ""
        self._acknowledged: dict[int, int] = {}
        self._granted: dict[int, int] = {}
        self._messages: list[tuple[float, Message]] = []
        self._client = self._make(paho.MQTTv5)

    def __enter__(self) -> Self:
        if not self._open():
            # Perhaps it speaks 3.1.1 only.
            close_client(self._client)
            self.reasons, self._connected = False, None
            self._client = self._make(paho.MQTTv311)
            if not self._open():
                self.__exit__()
                raise LinkError(self._endpoint.url, self._failure or "no answer")
        return self

    def __exit__(self, *_: object) -> None:
        close_client(self._client)

    def _make(self, protocol: Any) -> paho.Client:
        options: dict[str, Any] = {} if protocol == paho.MQTTv5 else {"clean_session": True}
        client = paho.Client(
            CallbackAPIVersion.VERSION2,
            client_id=f"gw-doctor-{secrets.token_hex(6)}",
            protocol=protocol,
            reconnect_on_failure=False,
            **options,
        )
        client.on_socket_open = _no_delay
        client.on_connect = self._on_connect
        client.on_disconnect = self._on_disconnect
        client.on_publish = lambda _c, _u, mid, reason, _p: self._keep(
            self._acknowledged, mid, reason
        )
        client.on_subscribe = lambda _c, _u, mid, reasons, _p: self._keep(
            self._granted, mid, reasons[0]
        )
        client.on_message = self._on_message
        self._endpoint.prepare(client)
        return client

    def _open(self) -> bool:
        try:
            self._client.connect(self._endpoint.host, self._endpoint.port, keepalive=10)
        except OSError as error:
            self._failure = error.strerror or str(error)
            return False
        self._client.loop_start()
        with self._changed:
            self._changed.wait_for(lambda: self._connected is not None, self._timeout)
            return bool(self._connected)

    def lost_within(self, seconds: float) -> bool:
        """Whether the broker ends the connection, or has ended it, within some seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: self._connected is False, seconds)

    # -- sending ---------------------------------------------------------------------------

    def subscribe(self, topic: str) -> int:
        """Subscribe at QoS 1: the granted QoS, or a failure's code (128 and more)."""
        _, mid = self._client.subscribe(topic, qos=1)
        return UNKNOWN if mid is None else self._reply(self._granted, mid)

    def unsubscribe(self, topic: str) -> None:
        """Unsubscribe, without waiting."""
        self._client.unsubscribe(topic)

    def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> int:
        """Publish at QoS 1; returns how it was acknowledged, a code above or UNKNOWN."""
        info = self._client.publish(topic, payload, qos=1, retain=retain)
        code = self._reply(self._acknowledged, info.mid)
        return code if self.reasons else UNKNOWN

    def _reply(self, codes: dict[int, int], mid: int) -> int:
        """Wait for the code of a message's acknowledgement."""
        with self._changed:
            self._changed.wait_for(lambda: mid in codes, self._timeout)
            return codes.get(mid, UNKNOWN)

    def send(self, topic: str, payload: bytes) -> float:
        """Publish at QoS 0: the moment, on the clock of :meth:`wait`."""
        sent = time.perf_counter()
        self._client.publish(topic, payload, qos=0)
        return sent

    def wait(
        self, wanted: Callable[[str, bytes, bool], bool], seconds: float
    ) -> tuple[float, bytes] | None:
        """Wait for a message (topic, payload, whether retained): its moment and payload.

        Messages that are not wanted are dropped.
        """
        end = time.monotonic() + seconds
        with self._changed:
            while True:
                while self._messages:
                    moment, (topic, payload, retained) = self._messages.pop(0)
                    if wanted(topic, payload, retained):
                        return moment, payload
                left = end - time.monotonic()
                if left <= 0 or self._connected is False:
                    return None
                self._changed.wait(left)

    # -- callbacks, on paho's thread -------------------------------------------------------

    def _on_connect(self, _c: Any, _u: Any, _f: Any, reason: Any, _p: Any) -> None:
        with self._changed:
            self._connected = not reason.is_failure
            self._failure = str(reason)
            self._changed.notify_all()

    def _on_disconnect(self, _c: Any, _u: Any, _f: Any, reason: Any, _p: Any) -> None:
        with self._changed:
            self._connected = False
            self._failure = self._failure or str(reason)
            self._changed.notify_all()

    def _keep(self, codes: dict[int, int], mid: int, reason: Any) -> None:
        with self._changed:
            codes[mid] = int(reason.value)
            self._changed.notify_all()

    def _on_message(self, _c: Any, _u: Any, message: paho.MQTTMessage) -> None:
        came = message.topic, bytes(message.payload), bool(message.retain)
        with self._changed:
            self._messages.append((time.perf_counter(), came))
            self._changed.notify_all()


def _no_delay(_client: Any, _userdata: Any, sock: Any) -> None:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
