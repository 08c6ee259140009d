"""Workers in virtual time.

The real :class:`.Batcher` of a worker decides whether a request is queued, refused, expired or
answered from memory, and in which batch it runs. Only the duration of a run is a formula::

    run of n instances from m requests = run_us + n * instance_us + m * message_us
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Protocol

import numpy as np

from gatewise_cloud.worker.batcher import Batch, Batcher, Ticket
from gatewise_cloud.worker.fleet_audit import FleetAudit
from gatewise_edge.link.messages import AuditMark
from gatewise_sim.fleet.clock import Clock
from gatewise_sim.fleet.workload import Arrivals
from gatewise_sim.timings import Timings

#: The instance of each request. It has no values, because the queue only counts instances.
ONE_ROW: Final = np.zeros((1, 0), np.float32)
#: Wait in ms that a refusal of a sampled worker asks for, because its queue is not simulated.
_SAMPLED_WAIT_MS: Final = 1000


class QueueSettings(Protocol):
    """The settings of a scenario that a worker uses."""

    @property
    def queue(self) -> int: ...
    @property
    def max_batch(self) -> int: ...
    @property
    def wait_ms(self) -> float: ...
    @property
    def parallel(self) -> int: ...


class Requester(Protocol):
    """The device's side of a request."""

    def reply(self, error_code: str | None, worker_us: int, wait_ms: int = 0) -> None:
        """Receive the worker's response; `error_code` is None for an answer."""


@dataclass(slots=True, eq=False, kw_only=True)
class VirtualTicket(Ticket):
    """A ticket with its requester.

    `cloud_label` is the class index of the high-cost model, if the request audits an answer.
    """

    requester: Requester
    cloud_label: int = -1


@dataclass(slots=True)
class WorkerCounts:
    """Counters of requests, runs (`batches`) and seconds, summed over the workers.

    `lost` requests were queued or running when their worker went down. `audit_instances` counts
    offloads, and estimates the number of the devices' own answers; `audit_weighted` estimates on
    how many of these the high-cost model disagrees.
    """

    received: int = 0
    answered: int = 0
    audits: int = 0
    audits_disagreed: int = 0
    audit_instances: float = 0.0
    audit_weighted: float = 0.0
    busy: int = 0
    expired: int = 0
    duplicates: int = 0
    repeated: int = 0
    lost: int = 0
    batches: int = 0
    busy_seconds: float = 0.0
    queued_seconds: float = 0.0


@dataclass(slots=True)
class WorkerContext:
    """Settings and counters that the workers of a run share.

    `response_payload` is a response of typical length, which workers remember. `max_disagreement`
    is the bound on the share of answers that differ from those of the high-cost model. Without it
    audits are not tested.
    """

    timings: Timings
    settings: QueueSettings
    response_payload: bytes
    max_disagreement: float | None = None
    counts: WorkerCounts = field(default_factory=WorkerCounts)
    #: Number of instances that each test had observed when it raised an alarm.
    instances_at_alarms: list[int] = field(default_factory=list)

    def run_seconds(self, n_instances: int, n_requests: int) -> float:
        """Compute the duration of a run in s."""
        timings = self.timings
        return 1e-6 * (
            timings.run_us + n_instances * timings.instance_us + n_requests * timings.message_us
        )


class VirtualWorker:
    """One worker, with the real queue and runs of computed duration."""

    def __init__(self, clock: Clock, worker_context: WorkerContext) -> None:
        self.is_up = True
        self._clock = clock
        self._worker_context = worker_context
        self._running_batches: set[Batch] = set()
        self._wake_at: float | None = None
        self._reset()

    def _reset(self) -> None:
        """Start with an empty queue, without runs and remembered responses."""
        settings = self._worker_context.settings
        self._batcher = Batcher(
            capacity=settings.queue,
            max_batch=settings.max_batch,
            wait_seconds=settings.wait_ms / 1000.0,
            n_parallel=settings.parallel,
        )
        self._fleet_audit = FleetAudit(
            lambda _, test: self._worker_context.instances_at_alarms.append(round(test.n_instances))
        )
        self._running_batches.clear()

    def receive(self, ticket: VirtualTicket) -> None:
        """Queue, answer or refuse a request, like a real worker."""
        if not self.is_up:
            return
        counts = self._worker_context.counts
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
        self._worker_context.counts.busy += 1
        ticket.requester.reply("busy", 0, wait_ms)

    def fail(self) -> None:
        """Go down, and lose every request that is queued, running or remembered."""
        if self.is_up:
            self.is_up = False
            n_running = sum(len(batch.tickets) for batch in self._running_batches)
            self._worker_context.counts.lost += len(self._batcher) + n_running
            self._reset()

    def _serve(self) -> None:
        """Start the runs that can start, like the serving threads of a real worker."""
        batcher = self._batcher
        clock = self._clock
        counts = self._worker_context.counts
        now = clock.now
        while len(batcher) and len(self._running_batches) < self._batcher.n_parallel:
            wait_seconds = batcher.seconds_to_batch(now)
            if wait_seconds > 0:
                if self._wake_at is None or not now < self._wake_at <= now + wait_seconds:
                    self._wake_at = now + wait_seconds
                    clock.call_at(self._wake_at, self._serve)
                return
            batch, expired_tickets = batcher.take_batch(now)
            counts.expired += len(expired_tickets)
            if batch is not None:
                # Each request has one instance.
                n_requests = len(batch.tickets)
                run_seconds = self._worker_context.run_seconds(n_requests, n_requests)
                counts.queued_seconds += sum(now - ticket.arrived_at for ticket in batch.tickets)
                counts.batches += 1
                counts.busy_seconds += run_seconds
                self._running_batches.add(batch)
                clock.call_at(now + run_seconds, self._finish_batch, batch, run_seconds)

    def _finish_batch(self, batch: Batch, run_seconds: float) -> None:
        # The worker may have gone down during the run.
        if batch not in self._running_batches:
            return
        self._running_batches.discard(batch)
        self._batcher.observe_run(batch.model, len(batch.tickets), run_seconds)
        now = self._clock.now
        counts = self._worker_context.counts
        for ticket in batch.tickets:
            assert isinstance(ticket, VirtualTicket)
            self._batcher.finish(ticket, self._worker_context.response_payload, now)
            counts.answered += 1
            ticket.requester.reply(None, int(1e6 * (now - ticket.arrived_at)))
            if ticket.audit is None:
                counts.audit_instances += 1
                self._fleet_audit.offload(ticket.model, 1)
            else:
                self._observe_audit(ticket, ticket.audit)
        self._serve()

    def _observe_audit(self, ticket: VirtualTicket, mark: AuditMark) -> None:
        """Count an audit, and pass it to the worker's test."""
        counts = self._worker_context.counts
        counts.audits += 1
        counts.audit_instances += 1.0 / mark.probability
        if mark.class_index != ticket.cloud_label:
            counts.audits_disagreed += 1
            counts.audit_weighted += 1.0 / mark.probability
        self._fleet_audit.observe(
            ticket.model, mark, ticket.cloud_label, self._worker_context.max_disagreement
        )


# -- a worker under the load of a larger fleet ---------------------------------------------------


@dataclass(frozen=True)
class QueueSample:
    """Outcomes of requests at a worker under the load of the whole fleet.

    `answer_seconds` are the times from arrival to answer, NaN for expired requests and -1 for
    refused ones. `utilisation` is the share of time in runs, and `mean_batch` the mean number of
    requests per run. `mean_wait_s` is the mean time of an answered request in the queue.
    """

    answer_seconds: list[float]
    utilisation: float
    mean_batch: float
    mean_wait_s: float


class _SampledRequester:
    """Requester that remembers the outcome of its request."""

    __slots__ = ("answer_seconds",)

    def __init__(self) -> None:
        self.answer_seconds = float("nan")

    def reply(self, error_code: str | None, worker_us: int, wait_ms: int = 0) -> None:
        self.answer_seconds = worker_us / 1e6 if error_code is None else -1.0


def sample_queue(worker_context: WorkerContext, arrivals: Arrivals, ttl_s: float) -> QueueSample:
    """Simulate one worker with requests of the whole fleet and a time to live of `ttl_s`.

    `answer_seconds` leaves out the first fifth of the time, in which the queue is not yet in its
    steady state.
    """
    clock = Clock()
    sampled_context = WorkerContext(
        worker_context.timings, worker_context.settings, worker_context.response_payload
    )
    worker = VirtualWorker(clock, sampled_context)
    requesters = []
    for request_number, (time, device) in enumerate(
        zip(arrivals.time, arrivals.device, strict=True)
    ):
        clock.run(float(time))
        requester = _SampledRequester()
        requesters.append(requester)
        worker.receive(
            VirtualTicket(
                device=str(device),
                id=request_number.to_bytes(16, "big"),
                digest=b"",
                model=("", ""),
                rows=ONE_ROW,
                arrived_at=clock.now,
                expires_at=clock.now + ttl_s,
                requester=requester,
            )
        )
    clock.run()
    n_warm_up = np.searchsorted(arrivals.time, arrivals.time[-1] / 5)
    counts = sampled_context.counts
    return QueueSample(
        answer_seconds=[requester.answer_seconds for requester in requesters[n_warm_up:]],
        utilisation=min(1.0, counts.busy_seconds / (clock.now * worker_context.settings.parallel)),
        mean_batch=counts.answered / max(counts.batches, 1),
        mean_wait_s=counts.queued_seconds / max(counts.answered, 1),
    )


class SampledWorker(VirtualWorker):
    """A worker for a part of a fleet, with outcomes drawn from a simulation under full load.

    The real queue recognises duplicates. Only the time to the answer is drawn, from the outcomes
    that `sample_at` returns for a time (s).
    """

    def __init__(
        self,
        clock: Clock,
        worker_context: WorkerContext,
        sample_at: Callable[[float], QueueSample],
        rng: random.Random,
    ) -> None:
        super().__init__(clock, worker_context)
        self._sample_at = sample_at
        self._rng = rng

    def _serve(self) -> None:
        """Draw the outcome of the latest request in the queue."""
        now = self._clock.now
        batch, _ = self._batcher.take_batch(now)
        if batch is None:
            return
        (ticket,) = batch.tickets
        assert isinstance(ticket, VirtualTicket)
        sample = self._sample_at(now)
        answer_seconds = sample.answer_seconds[int(self._rng.random() * len(sample.answer_seconds))]
        if answer_seconds < 0:
            self._batcher.forget(ticket)
            self._refuse(ticket, _SAMPLED_WAIT_MS)
        elif math.isnan(answer_seconds) or now + answer_seconds >= ticket.expires_at:
            self._worker_context.counts.expired += 1
            self._batcher.forget(ticket)
        else:
            self._running_batches.add(batch)
            self._clock.call_at(now + answer_seconds, self._finish_batch, batch, answer_seconds)
