"""A bounded queue of requests that forms batches, fair to devices, with expiry and duplicates.

A batch holds requests of one model up to a number of instances that may differ from model to model,
and waits for more only where the model's plan says so.

Devices take turns by rows (start-time fair queueing, Goyal, Vin and Cheng 1997): a request starts,
in virtual time, when its device's last one ends, which is as many units later as that has rows; the
request that starts first goes first. A device that sends little is served as if it were alone, one
that sends much waits for itself. Of the queue a device may take as much as it leaves free, so that
however many are noisy there is room for others.

Pure: the clock is an argument, so a simulator runs this very code in virtual time. Not thread-safe:
its owner holds a lock.
"""

from __future__ import annotations

import heapq
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gatewise_edge.link.message_forms import CBOR, MessageForm
from gatewise_edge.link.messages import AuditMark

ModelKey = tuple[str, str]
"""Name and version of a model."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Ticket:
    """A request in the worker.

    `digest`: of the payload: an id that comes again with other content is not a duplicate. `model`:
    name and version. `rows`, shape (n, k): all tickets of one model have the same k. `arrived`,
    `expires`: seconds on the owner's monotonic clock. The time to live counts from the arrival
    here: devices' clocks drift. `audit`: of a request that audits an answer. `form`: how the
    request was written; its response is written alike.
    """

    device: str
    id: bytes
    digest: bytes
    model: ModelKey
    rows: NDArray[np.float32]
    arrived: float
    expires: float
    audit: AuditMark | None = None
    form: MessageForm = CBOR

    @property
    def key(self) -> tuple[str, bytes, bytes]:
        """Identity of the request."""
        return self.device, self.id, self.digest


class Verdict(Enum):
    """Outcome of offering a request."""

    QUEUED = "queued"
    BUSY = "busy"
    """The queue is full, or the device's share of it."""
    DUPLICATE = "duplicate"
    """The same request is queued or running."""
    REPEATED = "repeated"
    """The same request was answered before."""


class Offer(NamedTuple):
    """Outcome of :meth:`Batcher.offer`; `answer` only for :attr:`Verdict.REPEATED`."""

    verdict: Verdict
    answer: bytes | None = None


_QUEUED: Final = Offer(Verdict.QUEUED)


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Requests of one model that run together."""

    model: ModelKey
    tickets: tuple[Ticket, ...]

    @property
    def rows(self) -> NDArray[np.float32]:
        """All instances, in the order of the tickets: float32, shape (n, k)."""
        if len(self.tickets) == 1:
            return self.tickets[0].rows
        return np.concatenate([ticket.rows for ticket in self.tickets])


class Plan(NamedTuple):
    """How requests of a model are put together."""

    max_batch: int
    """Instances in one run at most. A request with more instances runs alone."""
    wait: float = 0.0
    """Seconds that a request waits for company, at most, while a run is not full."""


class Taken(NamedTuple):
    """Outcome of :meth:`Batcher.take`."""

    batch: Batch | None
    expired: list[Ticket]


class Batcher:
    """The worker's queue, and the responses that it remembers for duplicates.

    A `ticket` of its methods is a request, and `now` is on that request's clock, in seconds.

    At most `capacity` requests are queued, a further one is told that the worker is busy; of one
    device at most `device_rows` instances, or else one request. Instances have at most
    `queue_bytes` in all, of which a device may take as many as it leaves free. A run takes at most
    `max_batch` instances, or what the :class:`Plan` of its model says, which `plan` gives; a
    request with more runs alone. At most `memory` answers are remembered, of `memory_bytes` of
    payload, for `memory_seconds`.

    A request that was offered stays known until :meth:`finish` or :meth:`forget`, or until it
    expires. Only answers are remembered: what was refused, or expired, may be tried again.
    """

    def __init__(
        self,
        *,
        capacity: int = 1024,
        device_rows: int = 4096,
        queue_bytes: int = 256 << 20,
        max_batch: int = 16,
        plan: Callable[[ModelKey], Plan] | None = None,
        memory: int = 4096,
        memory_bytes: int = 16 << 20,
        memory_seconds: float = 60.0,
    ) -> None:
        self.capacity = capacity
        self.device_rows = device_rows
        self.queue_bytes = queue_bytes
        self.plan = plan if plan is not None else lambda model: Plan(max_batch)
        self.memory = memory
        self.memory_bytes = memory_bytes
        self.memory_seconds = memory_seconds
        # Heaps by virtual start, then by arrival.
        self._queues: dict[ModelKey, list[tuple[int, int, Ticket]]] = {}
        self._arrivals = 0
        self._queued = 0
        self._now = 0  # virtual time: the start of the request taken last
        self._ends: dict[str, int] = {}  # by device: virtual end of its last request
        self._device_requests: Counter[str] = Counter()  # queued
        self._device_rows: Counter[str] = Counter()
        self._bytes = 0  # of instances queued
        self._device_bytes: Counter[str] = Counter()
        self._open: set[tuple[str, bytes, bytes]] = set()
        self._pending: Counter[ModelKey] = Counter()
        self._rows: Counter[ModelKey] = Counter()  # instances queued
        self._answers: OrderedDict[tuple[str, bytes, bytes], tuple[float, bytes]] = OrderedDict()
        self._answer_bytes = 0

    def __len__(self) -> int:
        """Requests queued."""
        return self._queued

    @property
    def rows(self) -> int:
        """Instances queued."""
        return self._rows.total()

    @property
    def remembered(self) -> int:
        """Answers in memory."""
        return len(self._answers)

    def offer(self, ticket: Ticket, now: float) -> Offer:
        """Queue `ticket` at `now`, unless it is known or the queue is full."""
        offer = self.foresee(ticket, now)
        if offer.verdict is Verdict.QUEUED:
            self._open.add(ticket.key)
            self._pending[ticket.model] += 1
            self._push(ticket)
        return offer

    def foresee(self, ticket: Ticket, now: float) -> Offer:
        """What :meth:`offer` would say of `ticket` at `now`."""
        self._trim(now)
        if ticket.key in self._open:
            return Offer(Verdict.DUPLICATE)
        known = self._answers.get(ticket.key)
        if known is not None:
            return Offer(Verdict.REPEATED, known[1])
        if not self._fits_queue(ticket):
            return Offer(Verdict.BUSY)
        return _QUEUED

    def _fits_queue(self, ticket: Ticket) -> bool:
        """Whether the queue and the device's share of it take one more."""
        requests = self._device_requests[ticket.device]
        free = self.capacity - self._queued
        free_bytes = self.queue_bytes - self._bytes - ticket.rows.nbytes
        if requests and self._device_bytes[ticket.device] > free_bytes:
            return False
        rows = self._device_rows[ticket.device] + len(ticket.rows)
        fits = free > 0 and requests <= free and (free_bytes >= 0 or not self._queued)
        return fits and (not requests or rows <= self.device_rows)

    def _push(self, ticket: Ticket) -> None:
        device, rows = ticket.device, len(ticket.rows)
        start = max(self._now, self._ends.get(device, 0))
        self._ends[device] = start + rows
        if len(self._ends) > 2 * self.capacity:  # devices that have nothing queued any more
            self._ends = {d: self._ends[d] for d in self._device_requests if d in self._ends}
            self._ends[device] = start + rows
        entry = start, self._arrivals, ticket
        heapq.heappush(self._queues.setdefault(ticket.model, []), entry)
        self._arrivals += 1
        self._queued += 1
        self._rows[ticket.model] += rows
        self._device_requests[device] += 1
        self._device_rows[device] += rows
        self._bytes += ticket.rows.nbytes
        self._device_bytes[device] += ticket.rows.nbytes

    def pending(self, model: ModelKey) -> int:
        """Requests for `model` that are queued, or taken and not finished."""
        return self._pending[model]

    def pause(self, now: float) -> float:
        """Seconds from `now` until a batch should be taken, if nothing else is queued; 0: at once.

        More than 0 only if every model with queued requests waits for company.
        """
        pause = float("inf") if self._queues else 0.0
        for model, queue in self._queues.items():
            plan = self.plan(model)
            if plan.wait <= 0 or self._rows[model] >= plan.max_batch:
                return 0.0
            for _, _, ticket in queue:
                pause = min(pause, ticket.arrived + plan.wait - now, ticket.expires - now)
        return max(0.0, pause)

    def take(self, now: float) -> Taken:
        """Take at `now` the next batch: the request that starts first, and what fits with it.

        Requests that expired are taken out and forgotten.
        """
        expired: list[Ticket] = []
        for model in list(self._queues):
            self._drop_expired(model, now, expired)
        if not self._queues:
            return Taken(None, expired)
        model = min(self._queues, key=lambda m: self._queues[m][0][:2])
        tickets: list[Ticket] = []
        rows, max_batch = 0, self.plan(model).max_batch
        while model in self._queues:
            ticket = self._queues[model][0][2]
            rows += len(ticket.rows)
            if tickets and rows > max_batch:
                break
            tickets.append(ticket)
            self._pop(model)
            self._drop_expired(model, now, expired)
        return Taken(Batch(model, tuple(tickets)), expired)

    def _drop_expired(self, model: ModelKey, now: float, expired: list[Ticket]) -> None:
        """Drop what expired from the front of a model's queue."""
        while model in self._queues and self._queues[model][0][2].expires <= now:
            expired.append(self._queues[model][0][2])
            self._close(expired[-1])
            self._pop(model)

    def _pop(self, model: ModelKey) -> None:
        queue = self._queues[model]
        start, _, ticket = heapq.heappop(queue)
        self._now = max(self._now, start)
        self._queued -= 1
        self._rows[model] -= len(ticket.rows)
        self._device_requests[ticket.device] -= 1
        self._device_rows[ticket.device] -= len(ticket.rows)
        self._bytes -= ticket.rows.nbytes
        self._device_bytes[ticket.device] -= ticket.rows.nbytes
        if not self._device_requests[ticket.device]:
            for counts in (self._device_requests, self._device_rows, self._device_bytes):
                counts.pop(ticket.device)  # in C, as a Counter's own deletion is not
        if not queue:
            del self._queues[model]
            self._rows.pop(model)

    def _close(self, ticket: Ticket) -> None:
        if ticket.key in self._open:
            self._open.discard(ticket.key)
            self._pending[ticket.model] -= 1
            if not self._pending[ticket.model]:
                self._pending.pop(ticket.model)

    def finish(self, ticket: Ticket, answer: bytes, now: float) -> None:
        """Remember at `now` the `answer`, a payload, of a `ticket` that was taken."""
        self._close(ticket)
        self._answers[ticket.key] = (now, answer)
        self._answer_bytes += len(answer)
        self._trim(now)

    def forget(self, ticket: Ticket) -> None:
        """Let go of a `ticket` that was taken and could not be answered: it may come again."""
        self._close(ticket)

    def _trim(self, now: float) -> None:
        """Forget the oldest answers until number, bytes and age are within bounds."""
        while self._answers:
            answered, answer = next(iter(self._answers.values()))
            if (
                len(self._answers) <= self.memory
                and self._answer_bytes <= self.memory_bytes
                and now - answered < self.memory_seconds
            ):
                return
            self._answers.popitem(last=False)
            self._answer_bytes -= len(answer)
