"""Requests queued in a worker: bounded, fair to devices, with expiry, duplicates and batches.

Pure: the clock is an argument, so that a simulator runs this very code in virtual time. Not
thread-safe: its owner holds a lock.

A batch holds requests of one model up to a number of instances. By default no request waits for
others to join its batch: while a worker is busy, requests gather in the queue.

Devices take turns by rows (start-time fair queueing, Goyal, Vin and Cheng 1997): a request starts,
in virtual time, when its device's last one ends, which is as many units later as that has rows; the
request that starts first goes first. A device that sends little is served as if it were alone; one
that sends much delays only its own requests. No device may take more of the queue than it leaves
free, so that there is room for others however many are noisy.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter, OrderedDict
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gatewise_edge.link.message_forms import CBOR, MessageForm
from gatewise_edge.link.messages import AuditMark

#: Longest wait, in ms, in a response that refuses a request.
_LONGEST_WAIT_MS: Final = 30_000
#: Share of the last run in the smoothed time per row.
_GAIN: Final = 0.1

ModelKey = tuple[str, str]
"""Name and version of a model."""

RequestKey = tuple[str, bytes, bytes]
"""Identity of a request: device, id, and the digest of its payload."""


@dataclass(slots=True, eq=False, kw_only=True)  # making a frozen one takes three times as long
class Ticket:
    """A request in the worker.

    `digest` is the hash of the payload: the same id with other content is not a duplicate. `model`
    is name and version. `rows` has shape (n, k) and the dtype of the message; all tickets of one
    model have the same k. `arrived` and `expires` are seconds on the owner's monotonic clock; the
    time to live counts from the arrival here, because devices' clocks drift. `audit` is the mark of
    a request that audits an answer. Nothing is kept of a `private` one; one with `late_s` comes
    that many seconds after its answer. `form` is the form of the request and of its response.
    """

    device: str
    id: bytes
    digest: bytes
    model: ModelKey
    rows: NDArray[Any]
    arrived: float
    expires: float
    audit: AuditMark | None = None
    private: bool = False
    late_s: int = 0
    form: MessageForm = CBOR

    @property
    def key(self) -> RequestKey:
        """Identity of the request."""
        return self.device, self.id, self.digest


class Offer(NamedTuple):
    """Decision on a request that a worker was offered."""

    queued: bool = False
    """Whether the request waits for a run."""
    counter: str | None = None
    """Counter to add one to; see :data:`gatewise_cloud.worker.counters.COUNTS`."""
    answer: bytes | None = None
    """Payload to send at once: the answer that the same request had before."""
    wait_ms: int = 0
    """Refuse the request with ``busy`` and tell the device to wait that long; 0: do not."""


@dataclass(slots=True, eq=False)
class Batch:
    """Requests of one model that run together."""

    model: ModelKey
    tickets: tuple[Ticket, ...]

    @property
    def rows(self) -> NDArray[np.float32]:
        """All instances, in the order of the tickets: float32, shape (n, k)."""
        if len(self.tickets) == 1:
            return self.tickets[0].rows.astype(np.float32, copy=False)
        return np.concatenate([ticket.rows for ticket in self.tickets], dtype=np.float32)


@dataclass(slots=True)
class _Share:
    """Share of one device in the queue."""

    requests: int = 0
    rows: int = 0
    bytes: int = 0


class Batcher:
    """The worker's queue, and the responses that it remembers for duplicates.

    A `ticket` of its methods is a request, and `now` is on that request's clock, in seconds.

    The queue holds up to `capacity` requests and `queue_bytes` of instances; a further request is
    refused as busy. One device may have up to `device_rows` instances in it, or one request with
    more, and no more requests and bytes than it leaves free. A run takes up to `max_batch`
    instances; a request with more runs alone. While a run is not full, a request waits up to `wait`
    seconds for others. `parallel` runs go on at a time. Up to `memory` answers, of `memory_bytes`
    of payload, are remembered for `memory_seconds`.

    A request that was offered stays known until :meth:`finish` or :meth:`forget`, or until it
    expires. Only answers are remembered: a request that was refused, or expired, may come again.
    """

    def __init__(
        self,
        *,
        capacity: int = 1024,
        device_rows: int = 4096,
        queue_bytes: int = 256 << 20,
        max_batch: int = 16,
        wait: float = 0.0,
        parallel: int = 1,
        memory: int = 4096,
        memory_bytes: int = 16 << 20,
        memory_seconds: float = 60.0,
    ) -> None:
        self.capacity = capacity
        self.device_rows = device_rows
        self.queue_bytes = queue_bytes
        self.max_batch = max_batch
        self.wait = wait
        self.parallel = parallel
        self.memory = memory
        self.memory_bytes = memory_bytes
        self.memory_seconds = memory_seconds
        # A heap for each model, by virtual start, then by arrival.
        self._queues: dict[ModelKey, list[tuple[int, int, Ticket]]] = {}
        self._arrivals = 0
        self._queued = 0
        self._now = 0  # virtual time: the start of the request taken last
        self._ends: dict[str, int] = {}  # by device: virtual end of its last request
        self._shares: dict[str, _Share] = {}  # of devices with a request queued
        self._bytes = 0  # of instances queued
        self._open: dict[RequestKey, ModelKey] = {}
        self._rows: Counter[ModelKey] = Counter()  # instances queued
        self._answers: OrderedDict[RequestKey, tuple[float, bytes]] = OrderedDict()
        self._answer_bytes = 0
        self._row_seconds: dict[ModelKey, float] = {}  # of the last runs

    def __len__(self) -> int:
        return self._queued

    @property
    def rows(self) -> int:
        """Number of queued instances."""
        return self._rows.total()

    def ran(self, model: ModelKey, rows: int, seconds: float) -> None:
        """Learn from a run of `rows` instances in `seconds` how long one of `model` takes."""
        before = self._row_seconds.get(model, seconds / rows)
        self._row_seconds[model] = before + _GAIN * (seconds / rows - before)

    def expected_seconds(self, model: ModelKey, rows: int) -> float:
        """Seconds that a run of `rows` instances of `model` takes; infinite before the first."""
        return rows * self._row_seconds.get(model, math.inf)

    @property
    def wait_ms(self) -> int:
        """Milliseconds until all queued requests will have run; at least 1."""
        rows = self._rows.items()
        seconds = sum(n * self._row_seconds.get(model, 0.0) for model, n in rows) / self.parallel
        return min(max(1, math.ceil(1000.0 * seconds)), _LONGEST_WAIT_MS)

    def offer(self, ticket: Ticket, now: float) -> Offer:
        """Decide on `ticket` at `now`, for a real or a simulated worker; queue it if it is new."""
        self._trim(now)
        if ticket.key in self._open:  # its answer will come
            return Offer(counter="duplicates")
        answered = self._answers.get(ticket.key)
        if answered is not None:
            return Offer(counter="repeated", answer=answered[1])
        if not self._fits_queue(ticket):
            return Offer(wait_ms=self.wait_ms)
        self._open[ticket.key] = ticket.model
        self._push(ticket)
        return Offer(queued=True)

    def _fits_queue(self, ticket: Ticket) -> bool:
        """Whether the queue and the device's share of it take one more."""
        free = self.capacity - self._queued
        free_bytes = self.queue_bytes - self._bytes - ticket.rows.nbytes
        if free <= 0 or (free_bytes < 0 and self._queued):
            return False
        share = self._shares.get(ticket.device)
        return share is None or (
            share.requests <= free
            and share.bytes <= free_bytes
            and share.rows + len(ticket.rows) <= self.device_rows
        )

    def _push(self, ticket: Ticket) -> None:
        device = ticket.device
        rows = len(ticket.rows)
        size = ticket.rows.nbytes
        # Start-time fair queueing: S = max(V, F of the device's last request), F = S + rows.
        start = max(self._now, self._ends.get(device, 0))
        share = self._shares.setdefault(device, _Share())
        share.requests += 1
        share.rows += rows
        share.bytes += size
        self._ends[device] = start + rows
        # Only devices with a request in the queue can have an end after the virtual time.
        if len(self._ends) > 2 * self.capacity:
            self._ends = {d: self._ends[d] for d in self._shares if d in self._ends}
        entry = start, self._arrivals, ticket
        heapq.heappush(self._queues.setdefault(ticket.model, []), entry)
        self._arrivals += 1
        self._queued += 1
        self._rows[ticket.model] += rows
        self._bytes += size

    def pending(self, model: ModelKey) -> int:
        """Requests for `model` that are queued, or taken and not finished."""
        return sum(open_model == model for open_model in self._open.values())

    def pause(self, now: float) -> float:
        """Seconds from `now` until a batch should be taken, if nothing else is queued; 0: at once.

        More than 0 only if no model has enough queued instances for a full batch.
        """
        if self.wait <= 0 or not self._queues:
            return 0.0
        pause = math.inf
        for model, queue in self._queues.items():
            if self._rows[model] >= self.max_batch:
                return 0.0
            for _, _, ticket in queue:
                pause = min(pause, ticket.arrived + self.wait - now, ticket.expires - now)
        return max(0.0, pause)

    def take(self, now: float) -> tuple[Batch | None, list[Ticket]]:
        """Take at `now` the next batch: the request that starts first, and others that fit with it.

        Also returns the requests that expired; they are forgotten.
        """
        expired: list[Ticket] = []
        for model in list(self._queues):
            self._drop_expired(model, now, expired)
        if not self._queues:
            return None, expired
        model = min(self._queues, key=lambda m: self._queues[m][0][:2])
        tickets: list[Ticket] = []
        rows = 0
        while model in self._queues:
            ticket = self._queues[model][0][2]
            rows += len(ticket.rows)
            if tickets and rows > self.max_batch:
                break
            tickets.append(ticket)
            self._pop(model)
            self._drop_expired(model, now, expired)
        return Batch(model, tuple(tickets)), expired

    def _drop_expired(self, model: ModelKey, now: float, expired: list[Ticket]) -> None:
        """Drop expired requests from the front of a model's queue."""
        while model in self._queues and self._queues[model][0][2].expires <= now:
            expired.append(self._queues[model][0][2])
            self.forget(expired[-1])
            self._pop(model)

    def _pop(self, model: ModelKey) -> None:
        queue = self._queues[model]
        start, _, ticket = heapq.heappop(queue)
        rows = len(ticket.rows)
        size = ticket.rows.nbytes
        self._now = max(self._now, start)
        self._queued -= 1
        self._rows[model] -= rows
        self._bytes -= size
        share = self._shares[ticket.device]
        share.requests -= 1
        share.rows -= rows
        share.bytes -= size
        if not share.requests:
            del self._shares[ticket.device]
        if not queue:
            del self._queues[model]
            self._rows.pop(model)

    def finish(self, ticket: Ticket, answer: bytes, now: float) -> None:
        """Remember at `now` the `answer`, a payload, of a `ticket` that was taken."""
        self.forget(ticket)
        self._answers[ticket.key] = (now, answer)
        self._answer_bytes += len(answer)
        self._trim(now)

    def forget(self, ticket: Ticket) -> None:
        """Forget a `ticket` that was taken and could not be answered: it may come again."""
        self._open.pop(ticket.key, None)

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
