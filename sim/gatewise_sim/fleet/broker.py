"""The broker in virtual time, and outages of link, broker and workers.

During an outage of the **link**, TCP retransmits a lost packet
(:class:`~gatewise_sim.fleet.link.Direction`). A device detects the outage after
:data:`DETECT_SECONDS`. If the link is up again by then, every message arrives late. Otherwise the
connection is lost with its bytes, and the device starts a new one :data:`RECONNECT_SECONDS` after
the outage, with the handshakes of :meth:`~gatewise_sim.fleet.link.VirtualLink.open_session`.

An outage of the **broker** breaks every connection at once. During an outage of the **cloud** all
workers are down, and during an outage of **workers** some of them. A broker without a subscriber
drops requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gatewise_sim.fleet.clock import Clock
from gatewise_sim.fleet.outages import Outages
from gatewise_sim.fleet.worker import VirtualTicket, VirtualWorker, WorkerContext

#: Seconds after which a device detects an outage of the link: TCP_USER_TIMEOUT is 3 s, and it
#: counts from the first packet without an acknowledgement.
DETECT_SECONDS: Final = 3.5
#: Mean seconds from the end of an outage until a device starts a new connection.
RECONNECT_SECONDS: Final = 1.0


class Availability:
    """State of link, broker and workers according to the schedule of outages."""

    def __init__(self, clock: Clock, outages: Outages, workers: Sequence[VirtualWorker]) -> None:
        #: Time (s) at which devices start their latest connection.
        self.reconnect_at = 0.0
        #: Whether the run has no outages.
        self.is_always_up = not outages
        self._clock = clock
        self._outages = outages
        self._workers = workers
        self._link_down_at = 0.0
        self._link_up_at = 0.0
        self._broker_up_at = 0.0
        if outages:
            self._apply_outages()
            for time in outages.change_times():
                clock.call_at(time, self._apply_outages)

    def _apply_outages(self) -> None:
        now = self._clock.now
        recovery_time = self._outages.recovery_time("link", now)
        if recovery_time is not None and recovery_time > self._link_up_at:
            if now >= self._link_up_at:
                self._link_down_at = now
            self._link_up_at = recovery_time
            if recovery_time - self._link_down_at > DETECT_SECONDS:
                self.reconnect_at = max(self.reconnect_at, recovery_time + RECONNECT_SECONDS)
        recovery_time = self._outages.recovery_time("broker", now)
        if recovery_time is not None:
            self._broker_up_at = recovery_time
            self.reconnect_at = max(self.reconnect_at, recovery_time + RECONNECT_SECONDS)
        is_all_down = any(
            (self._outages.recovery_time(component, now) or 0.0) > now
            for component in ("cloud", "broker")
        )
        n_down = self._outages.n_workers_down(now)
        for worker_index, worker in enumerate(self._workers):
            if is_all_down or worker_index < n_down:
                worker.fail()
            else:
                worker.is_up = True

    @property
    def is_broker_up(self) -> bool:
        """Whether the broker is up."""
        return self._clock.now >= self._broker_up_at

    @property
    def is_connected(self) -> bool:
        """Whether a device has a connection, or has not yet detected its loss."""
        now = self._clock.now
        if now >= self.reconnect_at:
            return True
        # Devices still use a connection until they detect the outage of the link.
        return self.is_broker_up and self._link_down_at <= now < self._link_down_at + DETECT_SECONDS

    @property
    def link_delivers(self) -> bool:
        """Whether bytes sent over a link now are delivered, perhaps late."""
        if self.is_always_up:
            return True
        now = self._clock.now
        if now < self._broker_up_at:
            return False
        is_down = self._link_down_at <= now < self._link_up_at
        return not is_down or self._link_up_at - self._link_down_at <= DETECT_SECONDS


class VirtualBroker:
    """Broker that sends requests to the workers in turn.

    It handles one request and one response at a time.
    """

    def __init__(
        self,
        clock: Clock,
        availability: Availability,
        workers: Sequence[VirtualWorker],
        worker_context: WorkerContext,
    ) -> None:
        self._clock = clock
        self._availability = availability
        self._workers = workers
        self._message_seconds = worker_context.timings.broker_us / 1e6
        self._hop_seconds = worker_context.timings.hop_ms / 1000.0
        # Times (s) at which the broker is free for the next request, and for the next response.
        self._request_free_at = 0.0
        self._response_free_at = 0.0
        self._next_worker_index = 0

    def deliver(self, ticket: VirtualTicket, ttl_s: float) -> None:
        """Send a request with a time to live `ttl_s` to the next worker."""
        worker = self._choose_worker()
        if worker is None:
            return
        now = self._clock.now
        self._request_free_at = max(now, self._request_free_at) + self._message_seconds
        arrival = self._request_free_at + self._hop_seconds
        ticket.arrived_at = arrival
        ticket.expires_at = arrival + ttl_s
        self._clock.call_at(arrival, worker.receive, ticket)

    def _choose_worker(self) -> VirtualWorker | None:
        n_workers = len(self._workers)
        for offset in range(n_workers):
            worker_index = (self._next_worker_index + offset) % n_workers
            if self._workers[worker_index].is_up:
                self._next_worker_index = (worker_index + 1) % n_workers
                return self._workers[worker_index]
        return None

    def send_response(self) -> float:
        """Pass a response that a worker sends now; return the time (s) at which it departs."""
        arrival = self._clock.now + self._hop_seconds
        self._response_free_at = max(arrival, self._response_free_at) + self._message_seconds
        return self._response_free_at
