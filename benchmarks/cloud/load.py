"""Load generator for a cloud worker: requests one at a time, in a window, or at a given rate.

The client is a bare paho client. Gatewise encodes the requests before the clock starts, so the
times are those of the worker, the broker and paho, which share the cores of the machine.
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

#: Time without a response after which the worker is assumed to have stopped.
_RESPONSE_TIMEOUT_S = 60.0


def payloads(X: NDArray[np.float32], n_rows: int, n_requests: int, *, model: str) -> list[bytes]:
    """Encode `n_requests` requests of `n_rows` instances each, with distinct ids."""
    encoded_requests = []
    for i in range(n_requests):
        row_numbers = np.arange(i * n_rows, (i + 1) * n_rows) % len(X)
        request = wire.Request(
            id=wire.new_id(), model=model, version="1", ttl_ms=60_000, X=X[row_numbers]
        )
        encoded_requests.append(wire.encode_request(request))
    return encoded_requests


class LoadClient:
    """Client that sends encoded requests as a device and times the responses."""

    def __init__(self, client: paho.Client, device: str) -> None:
        self.client = client
        self.device = device
        self.arrivals: queue.Queue[tuple[float, bytes]] = queue.Queue()
        self._topic = wire.request_topic(device)
        self._echo_topic = f"gw/v1/{device}/echo"

    def send(self, payload: bytes) -> None:
        """Publish a request at QoS 1."""
        self.client.publish(self._topic, payload, qos=1)

    def time_echoes(self, payload: bytes, n_echoes: int) -> list[float]:
        """Send a payload to this client's own topic, one at a time; return the seconds of each."""
        return [self._round_trip(self._echo_topic, payload) for _ in range(n_echoes)]

    def time_turns(self, messages: list[bytes]) -> list[float]:
        """Send requests one at a time; return the seconds of each round trip."""
        return [self._round_trip(self._topic, payload) for payload in messages]

    def _round_trip(self, topic: str, payload: bytes) -> float:
        start_time = time.perf_counter()
        self.client.publish(topic, payload, qos=1)
        arrival_time, _ = self.arrivals.get(timeout=_RESPONSE_TIMEOUT_S)
        return arrival_time - start_time

    def time_flood(self, messages: list[bytes], max_pending: int) -> float:
        """Send all messages, `max_pending` unanswered at a time; return the seconds of all."""
        start_time = time.perf_counter()
        for i, payload in enumerate(messages):
            if i >= max_pending:
                self.arrivals.get(timeout=_RESPONSE_TIMEOUT_S)
            self.send(payload)
        last_time = start_time
        for _ in range(min(max_pending, len(messages))):
            last_time, _ = self.arrivals.get(timeout=_RESPONSE_TIMEOUT_S)
        return last_time - start_time

    def time_paced(self, messages: list[bytes], rate: float) -> list[float]:
        """Send at random times, `rate` per second on average; return the seconds of each."""
        # exponential pauses make the arrivals of a Poisson process
        pauses_s = np.random.default_rng(0).exponential(1.0 / rate, len(messages))
        due_times = time.perf_counter() + np.cumsum(pauses_s)
        send_times: dict[bytes, float] = {}
        for due_time, payload in zip(due_times, messages, strict=True):
            while (delay_s := due_time - time.perf_counter()) > 0:
                time.sleep(delay_s)
            # Latency counts from the due time, so that a late sender does not hide waiting time.
            send_times[_id_of(payload)] = float(due_time)
            self.send(payload)
        latencies_s = []
        for _ in messages:
            arrival_time, payload = self.arrivals.get(timeout=_RESPONSE_TIMEOUT_S)
            latencies_s.append(arrival_time - send_times[_id_of(payload)])
        return latencies_s


def _id_of(payload: bytes) -> bytes:
    # A map whose second entry is the text "id" and 16 bytes; see docs/wire.md.
    start = payload.index(b"bid\x50") + 4
    return payload[start : start + 16]


def paho_client(name: str) -> paho.Client:
    """Make a paho client with TCP_NODELAY, so that small packets are not delayed."""
    client = paho.Client(CallbackAPIVersion.VERSION2, client_id=name, protocol=paho.MQTTv311)

    def set_no_delay(_client: Any, _userdata: Any, tcp_socket: Any) -> None:
        tcp_socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    client.on_socket_open = set_no_delay
    return client


@contextmanager
def connected(port: int) -> Iterator[LoadClient]:
    """Connect a load client for the duration of a block."""
    device = f"bench-{secrets.token_hex(4)}"
    client = paho_client(device)
    # paho holds back messages beyond 20 unacknowledged ones; the callers bound them instead
    client.max_inflight_messages_set(1000)
    load_client = LoadClient(client, device)
    is_subscribed = threading.Event()

    def note_arrival(_client: Any, _userdata: Any, message: paho.MQTTMessage) -> None:
        load_client.arrivals.put((time.perf_counter(), bytes(message.payload)))

    topics = [(f"gw/v1/{device}/rsp", 1), (load_client._echo_topic, 1)]
    client.on_connect = lambda connected_client, *_: connected_client.subscribe(topics)
    client.on_subscribe = lambda *_: is_subscribed.set()
    client.on_message = note_arrival
    client.connect("127.0.0.1", port)
    client.loop_start()
    try:
        if not is_subscribed.wait(10):
            raise TimeoutError("the broker did not confirm the subscription within 10 s")
        yield load_client
    finally:
        client.disconnect()
        client.loop_stop()
