"""Load for a cloud worker, from a bare paho client in this process: one at a time, many, or paced.

No Gatewise code sends or receives here but for the requests' bytes, which are encoded before the
clock starts: what is measured is the worker and the broker, as far as two processes on the same
cores can be told apart.
"""

from __future__ import annotations

import queue
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import paho.mqtt.client as paho
from numpy.typing import NDArray
from paho.mqtt.enums import CallbackAPIVersion

from gatewise_edge.link import wire

_PATIENCE = 60.0


def payloads(X: NDArray[np.float32], rows: int, count: int, *, model: str) -> list[bytes]:
    """Encode `count` requests of `rows` instances each, with ids of their own."""
    out = []
    for i in range(count):
        rows_of_request = np.arange(i * rows, (i + 1) * rows) % len(X)
        request = wire.Request(
            id=wire.new_id(), model=model, version="1", ttl_ms=60_000, X=X[rows_of_request]
        )
        out.append(wire.encode_request(request))
    return out


class Asker:
    """A device reduced to its socket."""

    def __init__(self, client: paho.Client, device: str) -> None:
        self.client = client
        self.device = device
        self.came: queue.Queue[tuple[float, bytes]] = queue.Queue()
        self._topic = wire.request_topic(device)
        self._echo = f"gw/v1/{device}/echo"

    def send(self, payload: bytes) -> None:
        """Publish a request at QoS 1."""
        self.client.publish(self._topic, payload, qos=1)

    def echoes(self, payload: bytes, count: int) -> list[float]:
        """Seconds of messages to a topic of this client's own, one at a time."""
        return [self._turn(self._echo, payload) for _ in range(count)]

    def turns(self, messages: list[bytes]) -> list[float]:
        """Seconds of requests, one at a time."""
        return [self._turn(self._topic, payload) for payload in messages]

    def _turn(self, topic: str, payload: bytes) -> float:
        started = time.perf_counter()
        self.client.publish(topic, payload, qos=1)
        came, _ = self.came.get(timeout=_PATIENCE)
        return came - started

    def flood(self, messages: list[bytes], window: int) -> float:
        """Send all, `window` unanswered at a time; seconds until the last answer."""
        started = time.perf_counter()
        for i, payload in enumerate(messages):
            if i >= window:
                self.came.get(timeout=_PATIENCE)
            self.send(payload)
        last_time = started
        for _ in range(min(window, len(messages))):
            last_time, _ = self.came.get(timeout=_PATIENCE)
        return last_time - started

    def paced(self, messages: list[bytes], rate: float) -> list[float]:
        """Send at random moments, `rate` a second on average; seconds of each answer."""
        pauses = np.random.default_rng(0).exponential(1.0 / rate, len(messages))
        due = time.perf_counter() + np.cumsum(pauses)
        send_times: dict[bytes, float] = {}
        for due_time, payload in zip(due, messages, strict=True):
            while (left := due_time - time.perf_counter()) > 0:
                time.sleep(left)
            # From when it was due: a sender that lags must not hide the wait.
            send_times[_id_of(payload)] = float(due_time)
            self.send(payload)
        took = []
        for _ in messages:
            came, payload = self.came.get(timeout=_PATIENCE)
            took.append(came - send_times[_id_of(payload)])
        return took


def _id_of(payload: bytes) -> bytes:
    # A map whose second entry is the text "id" and 16 bytes; see docs/wire.md.
    start = payload.index(b"bid\x50") + 4
    return payload[start : start + 16]


def bare_client(name: str) -> paho.Client:
    """Make a paho client that sends at once."""
    client = paho.Client(CallbackAPIVersion.VERSION2, client_id=name, protocol=paho.MQTTv311)

    def at_once(_client: Any, _userdata: Any, sock: Any) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    client.on_socket_open = at_once
    return client


@contextmanager
def connected(port: int) -> Iterator[Asker]:
    """Connect a device that asks, for the time of a block."""
    device = f"bench-{secrets.token_hex(4)}"
    client = bare_client(device)
    client.max_inflight_messages_set(1000)
    asker = Asker(client, device)
    ready = threading.Event()

    def take(_client: Any, _userdata: Any, message: paho.MQTTMessage) -> None:
        asker.came.put((time.perf_counter(), bytes(message.payload)))

    client.on_connect = lambda c, *_: c.subscribe([(f"gw/v1/{device}/rsp", 1), (asker._echo, 1)])
    client.on_subscribe = lambda *_: ready.set()
    client.on_message = take
    client.connect("127.0.0.1", port)
    client.loop_start()
    try:
        if not ready.wait(10):
            raise TimeoutError("the broker grants no subscription")
        yield asker
    finally:
        client.disconnect()
        client.loop_stop()
