"""Between devices and workers in virtual time: what is up, and the broker that deals out requests.

In an outage of the **link** TCP sends again and again what does not come through
(:class:`~gatewise_sim.fleet.network.link.Direction`). The device notices after
:data:`DETECT_SECONDS`; if the link is back by then, all is delivered late, else the connection is
gone with what was in it, and the device begins a new one :data:`RECONNECT_SECONDS` after the end,
which takes the handshakes of :meth:`~gatewise_sim.fleet.network.link.VirtualLink.session`.
When the **broker** goes down every connection breaks at once. In an outage of the **cloud** all
workers are down, in one of **workers** some; a broker drops requests without a subscriber.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from gatewise_sim.fleet.clock import Clock
from gatewise_sim.fleet.network.outages import Outages
from gatewise_sim.fleet.worker import VirtualTicket, VirtualWorker

DETECT_SECONDS: Final = 3.5
"""Silence of the link that a device notices after so long (TCP_USER_TIMEOUT of 3 s)."""
RECONNECT_SECONDS: Final = 1.0
"""From the end of an outage until a device begins a new connection."""


class Availability:
    """What is up now, by a schedule of outages before `seconds`."""

    def __init__(
        self, clock: Clock, outages: Outages, workers: Sequence[VirtualWorker], *, seconds: float
    ) -> None:
        self.connected_at = 0.0
        """When (s) devices began, or will begin, their latest connection."""
        self._clock = clock
        self._outages = outages
        self._workers = workers
        self._link_since = self._link_until = self._broker_until = 0.0
        if outages:
            self._change()
            for when in sorted({when for when, _ in outages.changes(seconds)}):
                clock.at(when, self._change)

    def _change(self) -> None:
        now = self._clock.now
        until = self._outages.down("link", now)
        if until is not None and until > self._link_until:
            if now >= self._link_until:
                self._link_since = now
            self._link_until = until
            if until - self._link_since > DETECT_SECONDS:
                self.connected_at = max(self.connected_at, until + RECONNECT_SECONDS)
        until = self._outages.down("broker", now)
        if until is not None:
            self._broker_until = until
            self.connected_at = max(self.connected_at, until + RECONNECT_SECONDS)
        everyone = max(self._outages.down(what, now) or 0.0 for what in ("cloud", "broker")) > now
        some = self._outages.workers_down(now)
        for i, worker in enumerate(self._workers):
            if everyone or i < some:
                worker.fail()
            else:
                worker.up = True

    @property
    def workers_up(self) -> int:
        return sum(worker.up for worker in self._workers)

    @property
    def broker_up(self) -> bool:
        return self._clock.now >= self._broker_until

    @property
    def connected(self) -> bool:
        """Whether a device believes that it is connected, or begins a new connection."""
        now = self._clock.now
        if now >= self.connected_at:
            return True
        # The link has been down too short a time to be noticed.
        return self.broker_up and self._link_since <= now < self._link_since + DETECT_SECONDS

    @property
    def link_delivers(self) -> bool:
        """Whether bytes that enter a link now will come out, however late."""
        now = self._clock.now
        if now < self._broker_until:
            return False
        down = self._link_since <= now < self._link_until
        return not down or self._link_until - self._link_since <= DETECT_SECONDS


class VirtualBroker:
    """Deals requests out to the workers in turn, one message after another.

    A message takes `message` seconds of the broker's time, and `hop` seconds to a worker or back.
    `unsubscribed` counts requests dropped since no worker was there.
    """

    def __init__(
        self,
        clock: Clock,
        availability: Availability,
        workers: Sequence[VirtualWorker],
        *,
        message: float,
        hop: float,
    ) -> None:
        self.unsubscribed = 0
        self._clock = clock
        self._availability = availability
        self._workers = workers
        self._message = message
        self._hop = hop
        self._free = 0.0
        self._turn = 0

    def handle(self, do: Callable[..., object], *args: Any) -> None:
        """Handle a message as soon as those before it are done; then do what follows."""
        if self._message == 0.0:
            do(*args)
            return
        self._free = max(self._clock.now, self._free) + self._message
        self._clock.at(self._free, do, *args)

    def deliver(self, make_ticket: Callable[[float], VirtualTicket]) -> None:
        """Give a request to the worker that is next, as a ticket made when it gets there."""
        if not self._availability.broker_up:
            return
        workers, turn = self._workers, self._turn
        for i in range(len(workers)):
            worker = workers[(turn + i) % len(workers)]
            if worker.up:
                self._turn = (turn + i + 1) % len(workers)
                self._hop_over(self._hand, worker, make_ticket)
                return
        self.unsubscribed += 1

    def _hand(self, worker: VirtualWorker, make_ticket: Callable[[float], VirtualTicket]) -> None:
        if worker.up:
            worker.receive(make_ticket(self._clock.now))

    def pass_on(self, worker: VirtualWorker, ticket: VirtualTicket, index: int) -> None:
        """Give a part to the worker that accepted its request."""
        if self._availability.broker_up:
            self._clock.at(self._clock.now + self._hop, worker.receive_part, ticket, index)

    def return_response(self, do: Callable[..., object], *args: Any) -> None:
        """Take a worker's response; then do what follows."""
        self._hop_over(self.handle, do, *args)

    def _hop_over(self, do: Callable[..., object], *args: Any) -> None:
        if self._hop:
            self._clock.at(self._clock.now + self._hop, do, *args)
        else:
            do(*args)
