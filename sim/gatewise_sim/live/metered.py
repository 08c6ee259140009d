"""Links that count the bytes of each instance: those sent, and those of responses however late.

A request's bytes belong to the instance that the device is at work on, a response's to the one
with a request of the same id.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, NamedTuple

from gatewise_edge.link.link import Link, Receive
from gatewise_edge.link.wire import request_topic, response_topic
from gatewise_sim.fleet.messages import PUBACK_BYTES, publish_bytes

__all__ = ["AnswerBox", "InstanceTraffic", "LiveAnswer", "MeteredLink"]

#: Requests of a device whose responses can still be told apart, as many as the device remembers.
_REMEMBERED: Final = 256
#: How every message begins: a map whose first entries are ``v`` 1 and ``id``, 16 bytes.
_ID: Final = b"\x61v\x01\x62id\x50"

ByteCounts = tuple[int, int, int, int]
"""Bytes up and down, payload up and down."""


class LiveAnswer(NamedTuple):
    """One answered instance, as a device process reports it.

    Attributes
    ----------
    row, number : int
        Index of the row that the instance is, and which instance of the run it is.
    route : str
        "edge", "cloud" or "fallback"; "error" if a sensor's trouble took the place of an answer.
    stage, label : int
        The stage that answered (the number of stages: the cloud) and class index; -1 of an error.
    cost, feature_cost : float
        Full cost that the device metered, in the unit of the feature costs; the features' part.
    up, down, payload_up, payload_down : int
        Bytes by :data:`.BYTES_FORMULA`, and the payloads' share; late responses count, too.
    reason : str
        An error's message.
    time : float
        When it came, in seconds since the run began.
    device_ms, cloud_ms : float
        Of the latency, until its request went out (all of it without one), and what the worker took
        by the response that was used.
    """

    row: int
    route: str
    stage: int
    label: int
    cost: float
    feature_cost: float
    latency_ms: float
    up: int
    down: int
    payload_up: int
    payload_down: int
    device: str
    reason: str
    number: int = -1
    time: float = 0.0
    device_ms: float = 0.0
    cloud_ms: float = 0.0
    paced: bool = False


class InstanceTraffic:
    """Bytes about one instance; once `reported` with its answer, what comes is late."""

    __slots__ = ("bytes", "number", "reported")

    def __init__(self, number: int) -> None:
        self.number = number
        self.bytes: ByteCounts = (0, 0, 0, 0)
        self.reported = False


class AnswerBox:
    """Where the devices of a process leave their answers. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._answers: list[LiveAnswer] = []
        self._late: list[tuple[int, ByteCounts]] = []

    def add_bytes(self, traffic: InstanceTraffic, counts: ByteCounts) -> None:
        """Add bytes to an instance's."""
        with self._lock:
            if traffic.reported:
                self._late.append((traffic.number, counts))
            else:
                a, b = traffic.bytes, counts
                traffic.bytes = (a[0] + b[0], a[1] + b[1], a[2] + b[2], a[3] + b[3])

    def add(self, answer: LiveAnswer, traffic: InstanceTraffic) -> None:
        """Enter an answer, with the bytes so far."""
        with self._lock:
            traffic.reported = True
            up, down, payload_up, payload_down = traffic.bytes
            self._answers.append(
                answer._replace(up=up, down=down, payload_up=payload_up, payload_down=payload_down)
            )

    def take(self) -> tuple[list[LiveAnswer], list[tuple[int, ByteCounts]]]:
        """Answers, and late bytes of instances taken before."""
        with self._lock:
            taken = self._answers, self._late
            self._answers, self._late = [], []
        return taken


class MeteredLink:
    """A link that counts the bytes of another one's messages.

    `wake` is called after each delivery, on the inner link's thread. The device's scheduler sets
    `current` to the instance that the device is at work on.
    """

    def __init__(self, inner: Link, device: str, box: AnswerBox, wake: Callable[[], None]) -> None:
        self.current: InstanceTraffic | None = None
        self._sent = 0  # counted on the thread that sends, and the responses on the link's
        self._responses = 0
        self._inner = inner
        self._box = box
        self._wake = wake
        self._topics = request_topic(device), response_topic(device)
        self._by_id: OrderedDict[bytes, InstanceTraffic] = OrderedDict()

    @property
    def ready(self) -> bool:
        """See :class:`gatewise_edge.link.link.Link`."""
        return self._inner.ready

    @property
    def awaited(self) -> int:
        """Requests, copies included, that no response has come to."""
        return self._sent - self._responses

    def open(self, receive: Receive) -> None:
        """See :class:`gatewise_edge.link.link.Link`."""

        def count(payload: bytes) -> None:
            traffic = self._by_id.get(_id_of(payload))
            if traffic is not None:
                self._responses += 1
                size = publish_bytes(self._topics[1], len(payload))
                self._box.add_bytes(traffic, (PUBACK_BYTES, size, 0, len(payload)))
            receive(payload)
            self._wake()

        self._inner.open(count)

    def send(self, payload: bytes) -> bool:
        """See :class:`gatewise_edge.link.link.Link`."""
        traffic = self.current
        if traffic is None:
            return self._inner.send(payload)
        # Before it is sent: the response may be quicker than this thread.
        self._by_id[_id_of(payload)] = traffic
        while len(self._by_id) > _REMEMBERED:
            self._by_id.popitem(last=False)
        sent = self._inner.send(payload)
        if sent:
            size = publish_bytes(self._topics[0], len(payload))
            self._box.add_bytes(traffic, (size, PUBACK_BYTES, len(payload), 0))
            self._sent += 1
        return sent

    def close(self) -> None:
        """See :class:`gatewise_edge.link.link.Link`."""
        self._inner.close()


def _id_of(payload: bytes) -> bytes:
    """The id of a message, read in place as the wire writes it; empty of another payload."""
    return payload[8:24] if payload[1:8] == _ID else b""
