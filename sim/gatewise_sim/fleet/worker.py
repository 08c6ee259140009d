"""The cloud in virtual time: broker, workers and outages.

The real :class:`.Batcher` of a worker decides whether a request is queued, refused, expired or
answered from memory, and in which batch it runs. Only the duration of a run is a formula::

    run of n instances from m requests = run_us + n * instance_us + m * message_us

During an outage of the **link**, TCP retransmits a lost packet
(:class:`~gatewise_sim.fleet.link.Direction`). A device detects the outage after
:data:`DETECT_SECONDS`. If the link is up again by then, every message arrives late. Otherwise the
connection is lost with its bytes, and the device starts a new one :data:`RECONNECT_SECONDS` after
the outage, with the handshakes of :meth:`~gatewise_sim.fleet.link.VirtualLink.session`.

An outage of the **broker** breaks every connection at once. During an outage of the **cloud** all
workers are down, and during an outage of **workers** some of them. A broker without a subscriber
drops requests.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

import numpy as np

from gatewise_cloud.worker.batcher import Batch, Batcher, Ticket
from gatewise_cloud.worker.fleet_audit import FleetAudit
from gatewise_edge.link.messages import AuditMark
from gatewise_sim.fleet.clock import Clock
from gatewise_sim.fleet.outages import Outages
from gatewise_sim.fleet.workload import Arrivals
from gatewise_sim.scenario import Scenario
from gatewise_sim.timings import Timings

#: Seconds after which a device detects an outage of the link (TCP_USER_TIMEOUT is 3 s).
DETECT_SECONDS: Final = 3.5
#: Seconds from the end of an outage until a device starts a new connection.
RECONNECT_SECONDS: Final = 1.0

_ONE_ROW: Final = np.zeros((1, 0), np.float32)


class Requester(Protocol):
    """The device's side of a request."""

    def reply(self, error: str | None, worker_us: int, wait_ms: int = 0) -> None:
        """Receive the worker's response; `error` is the code of an error, or None for an answer."""


@dataclass(slots=True, eq=False, kw_only=True)
class VirtualTicket(Ticket):
    """A ticket with its requester.

    `label` is the class index of the high-cost model, if the request audits an answer.
    """

    requester: Requester
    label: int = -1


@dataclass(slots=True)
class WorkerCounts:
    """Counters of requests, runs (`batches`) and seconds, summed over the workers.

    `lost` requests were queued or running when their worker went down. `unsubscribed` requests
    arrived while no worker was up. `audit_instances` counts audited and skipped instances, and
    `audit_weighted` estimates on how many of them device and high-cost model disagree.
    """

    received: int = 0
    answered: int = 0
    audits: int = 0
    audits_disagreed: int = 0
    audit_instances: int = 0
    audit_weighted: float = 0.0
    busy: int = 0
    expired: int = 0
    duplicates: int = 0
    repeated: int = 0
    lost: int = 0
    unsubscribed: int = 0
    batches: int = 0
    busy_seconds: float = 0.0
    queued_seconds: float = 0.0


@dataclass(slots=True)
class WorkerModel:
    """Settings and counters that the workers of a run share.

    `payload` is a response of typical length, which workers remember. `promised` is the bound on
    the share of answers that differ from the high-cost model's; without it audits are not tested.
    """

    timings: Timings
    scenario: Scenario
    payload: bytes
    promised: float | None = None
    counts: WorkerCounts = field(default_factory=WorkerCounts)
    #: Number of instances that each test had observed when it raised an alarm.
    alarms: list[int] = field(default_factory=list)

    def run_seconds(self, n_instances: int, n_requests: int) -> float:
        """Compute the duration of a run in s."""
        timings = self.timings
        return 1e-6 * (
            timings.run_us + n_instances * timings.instance_us + n_requests * timings.message_us
        )


class VirtualWorker:
    """One worker, with the real queue and runs of computed duration."""

    def __init__(self, clock: Clock, model: WorkerModel) -> None:
        self.up = True
        self._clock = clock
        self._model = model
        self._parallel = model.scenario.parallel
        self._running: set[Batch] = set()
        self._wake_at: float | None = None
        self._reset()

    def _reset(self) -> None:
        """Start with an empty queue, without runs and remembered responses."""
        scenario = self._model.scenario
        self._batcher = Batcher(
            capacity=scenario.queue,
            max_batch=scenario.max_batch,
            wait_seconds=scenario.wait_ms / 1000.0,
            n_parallel=scenario.parallel,
        )
        self._audit = FleetAudit(lambda _, test: self._model.alarms.append(test.n_instances))
        self._running.clear()

    def receive(self, ticket: VirtualTicket) -> None:
        """Queue, answer or refuse a request, like a real worker."""
        if not self.up:
            return
        counts = self._model.counts
        counts.received += 1
        admission = self._batcher.admit(ticket, self._clock.now)
        if admission.counter_name is not None:
            setattr(counts, admission.counter_name, getattr(counts, admission.counter_name) + 1)
        if admission.answer_payload is not None:
            ticket.requester.reply(None, 0)
        if admission.wait_ms:
            self._refuse(ticket, admission.wait_ms)
        if admission.is_queued:
            self._serve()

    def _refuse(self, ticket: VirtualTicket, wait_ms: int) -> None:
        self._model.counts.busy += 1
        ticket.requester.reply("busy", 0, wait_ms)

    def fail(self) -> None:
        """Go down, and lose every request that is queued, running or remembered."""
        if self.up:
            self.up = False
            n_running = sum(len(batch.tickets) for batch in self._running)
            self._model.counts.lost += len(self._batcher) + n_running
            self._reset()

    def _serve(self) -> None:
        """Start the runs that can start, like the serving threads of a real worker."""
        batcher = self._batcher
        clock = self._clock
        counts = self._model.counts
        now = clock.now
        while len(batcher) and len(self._running) < self._parallel:
            wait_seconds = batcher.seconds_to_batch(now)
            if wait_seconds > 0:
                if self._wake_at is None or not now < self._wake_at <= now + wait_seconds:
                    self._wake_at = now + wait_seconds
                    clock.at(self._wake_at, self._serve)
                return
            batch, expired = batcher.take_batch(now)
            counts.expired += len(expired)
            if batch is not None:
                # Each request has one instance.
                n_requests = len(batch.tickets)
                seconds = self._model.run_seconds(n_requests, n_requests)
                counts.queued_seconds += sum(now - ticket.arrived_at for ticket in batch.tickets)
                counts.batches += 1
                counts.busy_seconds += seconds
                self._running.add(batch)
                clock.at(now + seconds, self._finish, batch, seconds)

    def _finish(self, batch: Batch, seconds: float) -> None:
        # The worker may have gone down during the run.
        if batch not in self._running:
            return
        self._running.discard(batch)
        self._batcher.observe_run(batch.model, len(batch.tickets), seconds)
        now = self._clock.now
        counts = self._model.counts
        for ticket in batch.tickets:
            assert isinstance(ticket, VirtualTicket)
            self._batcher.finish(ticket, self._model.payload, now)
            counts.answered += 1
            ticket.requester.reply(None, int(1e6 * (now - ticket.arrived_at)))
            if ticket.audit is not None:
                self._observe_audit(ticket, ticket.audit)
        self._serve()

    def _observe_audit(self, ticket: VirtualTicket, mark: AuditMark) -> None:
        """Count an audit, and pass it to the worker's test."""
        counts = self._model.counts
        counts.audits += 1
        counts.audit_instances += mark.n_skipped + 1
        if mark.class_index != ticket.label:
            counts.audits_disagreed += 1
            counts.audit_weighted += 1.0 / mark.probability
        self._audit.observe(ticket.model, mark, ticket.label, self._model.promised)


# -- outages ----------------------------------------------------------------------------------


class Availability:
    """State of link, broker and workers, from the schedule of outages."""

    def __init__(self, clock: Clock, outages: Outages, workers: Sequence[VirtualWorker]) -> None:
        #: Time (s) at which devices start their latest connection.
        self.connected_at = 0.0
        #: Whether the run has no outages.
        self.quiet = not outages
        self._clock = clock
        self._outages = outages
        self._workers = workers
        self._link_since = 0.0
        self._link_until = 0.0
        self._broker_until = 0.0
        if outages:
            self._update()
            for time in outages.changes():
                clock.at(time, self._update)

    def _update(self) -> None:
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
        all_down = any((self._outages.down(name, now) or 0.0) > now for name in ("cloud", "broker"))
        n_down = self._outages.workers_down(now)
        for number, worker in enumerate(self._workers):
            if all_down or number < n_down:
                worker.fail()
            else:
                worker.up = True

    @property
    def broker_up(self) -> bool:
        """Whether the broker is up."""
        return self._clock.now >= self._broker_until

    @property
    def connected(self) -> bool:
        """Whether a device has a connection, or has not yet detected its loss."""
        now = self._clock.now
        if now >= self.connected_at:
            return True
        # A device has not yet detected the outage of the link.
        return self.broker_up and self._link_since <= now < self._link_since + DETECT_SECONDS

    @property
    def link_delivers(self) -> bool:
        """Whether bytes sent over a link now are delivered, perhaps late."""
        if self.quiet:
            return True
        now = self._clock.now
        if now < self._broker_until:
            return False
        is_down = self._link_since <= now < self._link_until
        return not is_down or self._link_until - self._link_since <= DETECT_SECONDS


# -- the broker --------------------------------------------------------------------------------


class VirtualBroker:
    """Broker that sends requests to the workers in turn.

    In each direction it handles one message at a time.
    """

    def __init__(
        self,
        clock: Clock,
        availability: Availability,
        workers: Sequence[VirtualWorker],
        model: WorkerModel,
    ) -> None:
        self._clock = clock
        self._availability = availability
        self._workers = workers
        self._counts = model.counts
        self._message_seconds = model.timings.broker_us / 1e6
        self._hop_seconds = model.timings.hop_ms / 1000.0
        # Times (s) at which the broker is free for the next request, and for the next response.
        self._free_at = 0.0
        self._response_free_at = 0.0
        self._next_worker_number = 0

    def deliver(self, ticket: VirtualTicket, ttl: float) -> None:
        """Send a request with a time to live `ttl` (s) to the next worker."""
        worker = self._next_worker()
        if worker is None:
            self._counts.unsubscribed += 1
            return
        now = self._clock.now
        self._free_at = max(now, self._free_at) + self._message_seconds
        arrival = self._free_at + self._hop_seconds
        ticket.arrived_at = arrival
        ticket.expires_at = arrival + ttl
        self._clock.at(arrival, worker.receive, ticket)

    def _next_worker(self) -> VirtualWorker | None:
        n_workers = len(self._workers)
        for offset in range(n_workers):
            number = (self._next_worker_number + offset) % n_workers
            if self._workers[number].up:
                self._next_worker_number = (number + 1) % n_workers
                return self._workers[number]
        return None

    def response_departure(self) -> float:
        """Compute the time (s) at which a response that a worker sends now leaves the broker."""
        arrival = self._clock.now + self._hop_seconds
        self._response_free_at = max(arrival, self._response_free_at) + self._message_seconds
        return self._response_free_at


# -- a worker under the load of a larger fleet ---------------------------------------------------


@dataclass(frozen=True)
class QueueSample:
    """Outcomes of requests at a worker under the load of the whole fleet.

    `seconds` are the times from arrival to answer, NaN for expired requests and -1 for refused
    ones. `utilisation` is the share of time in runs, `batch` the mean number of requests per run,
    and `wait` the mean time (s) of an answered request in the queue.
    """

    seconds: list[float]
    utilisation: float
    batch: float
    wait: float


class _SampledRequest:
    """Requester that remembers the outcome of its request."""

    __slots__ = ("seconds",)

    def __init__(self) -> None:
        self.seconds = float("nan")

    def reply(self, error: str | None, worker_us: int, wait_ms: int = 0) -> None:
        self.seconds = worker_us / 1e6 if error is None else -1.0


def sample_queue(model: WorkerModel, arrivals: Arrivals, ttl: float) -> QueueSample:
    """Simulate one worker with requests of the whole fleet and a time to live of `ttl` s.

    The first fifth of the time is left out, because the queue is not yet in its steady state.
    """
    clock = Clock()
    sampled_model = WorkerModel(model.timings, model.scenario, model.payload)
    worker = VirtualWorker(clock, sampled_model)
    requests = []
    for number, (time, device) in enumerate(zip(arrivals.time, arrivals.device, strict=True)):
        clock.run(float(time))
        request = _SampledRequest()
        requests.append(request)
        worker.receive(
            VirtualTicket(
                device=str(device),
                id=number.to_bytes(16, "big"),
                digest=b"",
                model=("", ""),
                rows=_ONE_ROW,
                arrived_at=clock.now,
                expires_at=clock.now + ttl,
                requester=request,
            )
        )
    clock.run()
    first_steady = np.searchsorted(arrivals.time, arrivals.time[-1] / 5)
    counts = sampled_model.counts
    return QueueSample(
        seconds=[request.seconds for request in requests[first_steady:]],
        utilisation=min(1.0, counts.busy_seconds / (clock.now * model.scenario.parallel)),
        batch=counts.answered / max(counts.batches, 1),
        wait=counts.queued_seconds / max(counts.answered, 1),
    )


class SampledWorker(VirtualWorker):
    """A worker for a part of a fleet, with outcomes drawn from a simulation under full load.

    The real queue recognises duplicates. Only the time to the answer is drawn, from the outcomes
    that `sample` returns for a time (s).
    """

    def __init__(
        self,
        clock: Clock,
        model: WorkerModel,
        sample: Callable[[float], QueueSample],
        rng: random.Random,
    ) -> None:
        super().__init__(clock, model)
        self._sample = sample
        self._rng = rng

    def _serve(self) -> None:
        """Draw the outcome of the latest request in the queue."""
        now = self._clock.now
        batch, _ = self._batcher.take_batch(now)
        if batch is None:
            return
        (ticket,) = batch.tickets
        assert isinstance(ticket, VirtualTicket)
        sample = self._sample(now)
        seconds = sample.seconds[int(self._rng.random() * len(sample.seconds))]
        if seconds < 0:
            self._batcher.forget(ticket)
            self._refuse(ticket, 1000)
        elif seconds != seconds or now + seconds >= ticket.expires_at:
            self._model.counts.expired += 1
            self._batcher.forget(ticket)
        else:
            self._running.add(batch)
            self._clock.at(now + seconds, self._finish, batch, seconds)
