"""Links that count the bytes of each instance: those sent, and those of responses however late.

A request's bytes belong to the instance that the device is at work on, a response's to the one
with a request of the same id.
"""

from __future__ import annotations

import operator
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from gatewise_edge.link.link import Link, Receive
from gatewise_edge.link.wire import request_topic, response_topic
from gatewise_sim.fleet.messages import PUBACK_BYTES, publish_bytes

#: Requests of a device whose responses can still be told apart, as many as the device remembers.
_REMEMBERED: Final = 256
#: Two entries of every message, as the wire writes them: ``v`` 1, and ``id``, 16 bytes. Only the
#: three of an audit's mark come before them.
_ID: Final = b"\x61v\x01\x62id\x50"
_ID_WITHIN: Final = 48  # bytes


class ByteCounts(NamedTuple):
    """Bytes of messages by :data:`.BYTES_FORMULA`, and the payloads' share of them."""

    up: int = 0
    down: int = 0
    payload_up: int = 0
    payload_down: int = 0

    def plus(self, other: Iterable[int]) -> ByteCounts:
        """Sum of both."""
        return ByteCounts(*map(operator.add, self, other))


class LiveAnswer(NamedTuple):
    """One answered instance, as a device process reports it."""

    number: int
    """Which instance of the run it is."""
    time: float
    """When it came, in seconds since the run began."""
    route: str
    """One of :data:`.ROUTES`; ``error`` if a sensor's trouble took the place of an answer."""
    stage: int
    label: int
    """The stage that answered (the number of stages: the cloud) and class index; -1 of an error."""
    reason: str
    """An error's message."""
    latency_ms: float
    device_ms: float
    cloud_ms: float = 0.0
    """Of the latency, until its request went out (all of it without one), and what the worker took
    by the response that was used.
    """
    cost: float = 0.0
    feature_cost: float = 0.0
    """Full cost that the device metered, in the unit of the feature costs; the features' part."""
    held: bool = False
    """As of :class:`gatewise_sim.fleet.answers.Answers`."""
    bytes: ByteCounts = ByteCounts()
    """Those of late responses, too."""


class InstanceTraffic:
    """Bytes about one instance; once `reported` with its answer, what comes is late."""

    __slots__ = ("bytes", "number", "reported")

    def __init__(self, number: int) -> None:
        self.number = number
        self.bytes = ByteCounts()
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
                traffic.bytes = traffic.bytes.plus(counts)

    def add(self, answer: LiveAnswer, traffic: InstanceTraffic) -> None:
        """Enter an answer, with the bytes so far."""
        with self._lock:
            traffic.reported = True
            self._answers.append(answer._replace(bytes=traffic.bytes))

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
                self._box.add_bytes(traffic, ByteCounts(PUBACK_BYTES, size, 0, len(payload)))
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
            self._box.add_bytes(traffic, ByteCounts(size, PUBACK_BYTES, len(payload), 0))
            self._sent += 1
        return sent

    def close(self) -> None:
        """See :class:`gatewise_edge.link.link.Link`."""
        self._inner.close()


def _id_of(payload: bytes) -> bytes:
    """The id of a message, read in place as the wire writes it; empty of another payload."""
    at = payload.find(_ID, 0, _ID_WITHIN)
    return b"" if at < 0 else payload[at + len(_ID) : at + len(_ID) + 16]
