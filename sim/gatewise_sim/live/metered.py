"""Links that weigh what goes over them, and book every byte to the instance that it is about.

A request's bytes belong to the instance that the device is at work on, a response's to the one
whose request had the same id: also to one that was answered long before.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from gatewise_edge.link.link import Link, Receive
from gatewise_edge.link.wire import request_topic, response_topic
from gatewise_sim.live.outcome import PUBACK_BYTES, Outcome, publish_bytes

__all__ = ["Desk", "MeteredLink", "Traffic"]

#: Requests of a device whose responses can still be told apart, as many as the device remembers.
_REMEMBERED: Final = 256
#: How every message begins: a map whose first entries are ``v`` 1 and ``id``, 16 bytes.
_ID: Final = b"\x61v\x01\x62id\x50"

Weights = tuple[int, int, int, int]
"""Bytes up and down, payload up and down."""


class Traffic:
    """What was sent and received about one instance.

    Attributes
    ----------
    number : int
        The instance.
    weights : tuple of int
        See :data:`Weights`.
    told : bool
        Whether its outcome was handed in: what comes now is late.
    """

    __slots__ = ("number", "told", "weights")

    def __init__(self, number: int) -> None:
        self.number = number
        self.weights: Weights = (0, 0, 0, 0)
        self.told = False


class Desk:
    """Where the devices of a process hand in what became of their instances. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._outcomes: list[Outcome] = []
        self._late: list[tuple[int, Weights]] = []

    def book(self, traffic: Traffic, weights: Weights) -> None:
        """Add bytes to an instance's."""
        with self._lock:
            if traffic.told:
                self._late.append((traffic.number, weights))
            else:
                a, b = traffic.weights, weights
                traffic.weights = (a[0] + b[0], a[1] + b[1], a[2] + b[2], a[3] + b[3])

    def hand_in(self, outcome: Outcome, traffic: Traffic) -> None:
        """Enter an outcome, with the bytes so far."""
        with self._lock:
            traffic.told = True
            up, down, payload_up, payload_down = traffic.weights
            self._outcomes.append(
                outcome._replace(up=up, down=down, payload_up=payload_up, payload_down=payload_down)
            )

    def take(self) -> tuple[list[Outcome], list[tuple[int, Weights]]]:
        """Outcomes, and bytes of instances whose outcomes were taken before."""
        with self._lock:
            taken = self._outcomes, self._late
            self._outcomes, self._late = [], []
        return taken


class MeteredLink:
    """A link that weighs the messages of another one.

    Parameters
    ----------
    inner : Link
    device : str
        Its id, for the topics' lengths.
    desk : Desk
    wake : callable
        Called after each delivery, on the inner link's thread.

    Attributes
    ----------
    current : Traffic or None
        Of the instance that the device is at work on; set by whoever works it.
    """

    def __init__(self, inner: Link, device: str, desk: Desk, wake: Callable[[], None]) -> None:
        self.current: Traffic | None = None
        self._sent = 0  # counted on the thread that sends, and the responses on the link's
        self._heard = 0
        self._inner = inner
        self._desk = desk
        self._wake = wake
        self._topics = request_topic(device), response_topic(device)
        self._by_id: OrderedDict[bytes, Traffic] = OrderedDict()

    @property
    def ready(self) -> bool:
        """See :class:`gatewise_edge.link.link.Link`."""
        return self._inner.ready

    @property
    def awaited(self) -> int:
        """Requests, copies included, that no response has come to."""
        return self._sent - self._heard

    def open(self, receive: Receive) -> None:
        """See :class:`gatewise_edge.link.link.Link`."""

        def weigh(payload: bytes) -> None:
            traffic = self._by_id.get(_id_of(payload))
            if traffic is not None:
                self._heard += 1
                size = publish_bytes(self._topics[1], len(payload))
                self._desk.book(traffic, (PUBACK_BYTES, size, 0, len(payload)))
            receive(payload)
            self._wake()

        self._inner.open(weigh)

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
            self._desk.book(traffic, (size, PUBACK_BYTES, len(payload), 0))
            self._sent += 1
        return sent

    def close(self) -> None:
        """See :class:`gatewise_edge.link.link.Link`."""
        self._inner.close()


def _id_of(payload: bytes) -> bytes:
    """The id of a message as :mod:`gatewise_edge.link.wire` writes it; empty of another.

    Read in place: the device decodes and checks the whole message itself.
    """
    return payload[8:24] if payload[1:8] == _ID else b""
