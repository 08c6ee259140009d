"""The cloud in virtual time: workers, a broker that deals requests out, and what is up.

:class:`.Batcher`, the worker's own, decides which request is queued, refused, expired, computed
once or answered again, and in which batch; only how long a run takes is a formula here.

In an outage of the **link** TCP sends again and again what does not come through
(:class:`~gatewise_sim.fleet.network.link.Direction`). The device notices after
:data:`DETECT_SECONDS`; if the link is back by then, all is delivered late, else the connection is
gone with what was in it, and the device begins a new one :data:`RECONNECT_SECONDS` after the end,
which takes the handshakes of :meth:`~gatewise_sim.fleet.network.link.VirtualLink.session`.
When the **broker** goes down every connection breaks at once. In an outage of the **cloud** all
workers are down, in one of **workers** some; a broker drops requests without a subscriber.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal, Protocol, Self

import numpy as np

from gatewise.errors import InputError
from gatewise_cloud.worker.batcher import Batch, Batcher, ModelKey, Ticket
from gatewise_cloud.worker.fleet_audit import DisagreementTest, FleetAudit
from gatewise_sim.fleet.clock import Clock
from gatewise_sim.fleet.network.outages import Outages

DETECT_SECONDS: Final = 3.5
"""Silence of the link that a device notices after so long (TCP_USER_TIMEOUT of 3 s)."""
RECONNECT_SECONDS: Final = 1.0
"""From the end of an outage until a device begins a new connection."""


@dataclass(frozen=True, slots=True)
class ServiceTime:
    """How long a worker takes for a run of n instances: `base` plus `each` times n, in seconds.

    `message` is what a request takes beside the model (reading, checking, writing); with `spread`
    ``exponential`` times are drawn with that mean. InputError if a time is negative, or all are 0.

    >>> ServiceTime(80e-6, 20e-6).mean(4, 4)
    0.00016
    """

    base: float
    each: float
    message: float = 0.0
    spread: Literal["fixed", "exponential"] = "fixed"

    def __post_init__(self) -> None:
        times = (self.base, self.each, self.message)
        if min(times) < 0 or not 0 < sum(times) < float("inf"):
            raise InputError(f"service time {times}: give seconds, not all of them 0")

    @classmethod
    def from_timing(cls, timing: Mapping[int, float]) -> Self:
        """Fit a line to `timing`: seconds of a run by its instances."""
        if not timing:
            raise InputError("no run of the cloud model was timed")
        sizes = np.array(list(timing), np.float64)
        taken = np.array(list(timing.values()), np.float64)
        if len(sizes) == 1:
            return cls(0.0, float(taken[0] / sizes[0]))
        # Relative errors count: a run of one must come out as well as a run of 32.
        lines = np.column_stack([np.ones_like(sizes), sizes]) / taken[:, None]
        (base, each), *_ = np.linalg.lstsq(lines, np.ones_like(taken))
        if base < 0 or each < 0:
            base, each = 0.0, float(np.mean(taken / sizes))
        return cls(float(base), float(each))

    def mean(self, instances: int, requests: int) -> float:
        """Seconds of a run of so many `instances` from `requests`, on average."""
        return self.base + self.each * instances + self.message * requests

    def draw(self, instances: int, requests: int, rng: random.Random) -> float:
        """Seconds of one run of so many `instances` from `requests`, drawn by `rng`."""
        mean = self.mean(instances, requests)
        return mean if self.spread == "fixed" else rng.expovariate(1.0 / mean)


@dataclass(slots=True)
class WorkerCounts:
    """Counters of a worker: requests, runs (`batches`), seconds in runs and seconds of waiting.

    `audits` are among those answered. `lost` are requests queued or running when it went down;
    only answered ones count as waiting.
    """

    received: int = 0
    answered: int = 0
    audits: int = 0
    busy: int = 0
    expired: int = 0
    duplicates: int = 0
    repeated: int = 0
    lost: int = 0
    batches: int = 0
    busy_seconds: float = 0.0
    queued_seconds: float = 0.0


class DeviceSide(Protocol):
    """The device's side of a request."""

    def reply(self, error: str | None, worker_us: int, *, wait_ms: int = 0) -> None:
        """Take the worker's response: an error's code, or None for an answer.

        `wait_ms`: with ``busy``, until the next request.
        """


@dataclass(slots=True, eq=False, kw_only=True)
class VirtualTicket(Ticket):
    """A ticket with the device's side of its request.

    `label`: of a request that audits an answer, the high-cost model's class index.
    """

    requester: DeviceSide
    label: int = -1


def _no_log(model: ModelKey, test: DisagreementTest) -> None:
    """Leave it at the test's own record of its alarm."""


class VirtualWorker:
    """One worker, with at most `capacity` requests queued and `parallel` runs at a time.

    A run has at most `max_batch` instances, and a request waits at most `wait` seconds for others
    to share it; `payload` is an answer of the usual length, to be remembered. `promised` is the
    share of instances that audits may find to be answered otherwise than by the high-cost model;
    with None they are not tested.
    """

    def __init__(
        self,
        clock: Clock,
        service: ServiceTime,
        *,
        capacity: int,
        max_batch: int,
        wait: float,
        parallel: int,
        payload: bytes,
        rng: random.Random,
        promised: float | None = None,
    ) -> None:
        self.up = True
        self.counts = WorkerCounts()
        self._clock = clock
        self._service = service
        self._new_batcher = partial(
            Batcher, capacity=capacity, max_batch=max_batch, wait=wait, parallel=parallel
        )
        self._rng = rng
        self._payload = payload
        self._promised = promised
        self._running: set[Batch] = set()
        self._wakes: float | None = None
        self._begin()

    def _begin(self) -> None:
        """Begin with nothing queued, running or remembered."""
        self._batcher = self._new_batcher()
        self.audits = FleetAudit(_no_log)
        self._running.clear()

    def receive(self, ticket: VirtualTicket) -> None:
        """Queue a request, refuse it, or answer it again, as a real worker does."""
        self.counts.received += 1
        offer = self._batcher.offer(ticket, self._clock.now)
        if offer.counter is not None:
            setattr(self.counts, offer.counter, getattr(self.counts, offer.counter) + 1)
        if offer.answer is not None:
            ticket.requester.reply(None, 0)
        if offer.wait_ms:
            self.counts.busy += 1
            ticket.requester.reply("busy", 0, wait_ms=offer.wait_ms)
        if offer.queued:
            self._serve()

    def fail(self) -> None:
        """Go down; all that is queued, running or remembered is lost."""
        if self.up:
            self.up = False
            self.counts.lost += len(self._batcher) + sum(len(b.tickets) for b in self._running)
            self._begin()

    def _serve(self, *_: Any) -> None:
        """Begin the runs that can begin, as the serving threads of the worker do."""
        batcher, now = self._batcher, self._clock.now
        while len(batcher) and len(self._running) < batcher.parallel:
            pause = batcher.pause(now)
            if pause > 0:
                if self._wakes is None or not now < self._wakes <= now + pause:
                    self._wakes = now + pause
                    self._clock.at(self._wakes, self._serve)
                return
            batch, expired = batcher.take(now)
            self.counts.expired += len(expired)
            if batch is not None:
                tickets = batch.tickets
                self.counts.queued_seconds += sum(now - t.arrived for t in tickets)
                rows = sum(len(ticket.rows) for ticket in tickets)
                seconds = self._service.draw(rows, len(tickets), self._rng)
                self.counts.batches += 1
                self.counts.busy_seconds += seconds
                self._running.add(batch)
                self._clock.at(now + seconds, self._finish, batch, rows, seconds)

    def _finish(self, batch: Batch, rows: int, seconds: float) -> None:
        if batch not in self._running:  # the worker was down in between
            return
        self._running.discard(batch)
        self._batcher.ran(batch.model, rows, seconds)
        for ticket in batch.tickets:
            assert isinstance(ticket, VirtualTicket)
            self._conclude(ticket)
        self._serve()

    def _conclude(self, ticket: VirtualTicket) -> None:
        """Answer a request after its run."""
        self._answer(ticket)
        if ticket.audit is not None:
            self.counts.audits += 1
            self.audits.observe(ticket.model, ticket.audit, ticket.label, self._promised)

    def _answer(self, ticket: VirtualTicket) -> None:
        """Answer a request and remember the answer."""
        now = self._clock.now
        self._batcher.finish(ticket, self._payload, now)
        self.counts.answered += 1
        ticket.requester.reply(None, int(1e6 * (now - ticket.arrived)))


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
            for when in outages.changes(seconds):
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

    def return_response(self, do: Callable[..., object], *args: Any) -> None:
        """Take a worker's response; then do what follows."""
        self._hop_over(self.handle, do, *args)

    def _hop_over(self, do: Callable[..., object], *args: Any) -> None:
        if self._hop:
            self._clock.at(self._clock.now + self._hop, do, *args)
        else:
            do(*args)
