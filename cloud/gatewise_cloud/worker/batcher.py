"""Bounded queue of a worker's requests, which forms batches and is fair to devices.

The clock is an argument, so that a simulator can run this code in virtual time. The queue is not
thread-safe: its owner holds a lock.

A batch contains requests for one model, up to a number of instances. By default no request waits
for others to join its batch, because requests collect in the queue anyway while a worker is busy.

Devices take turns by rows, as in start-time fair queueing (Goyal, Vin and Cheng 1997). A request
begins, in virtual time, when the last request of its device ends. It ends one unit later for each
of its rows. The request that begins first is taken first. A device that sends little is therefore
served as if it were alone, and a device that sends much delays only its own requests. No device may
use more of the queue than it leaves free, so that other devices always find space.
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

#: Longest wait in a response that refuses a request.
_MAX_WAIT_MS: Final = 30_000
#: Weight of the last run in the smoothed time per row.
_SMOOTHING: Final = 0.1

ModelKey = tuple[str, str]
"""Name and version of a model."""

RequestKey = tuple[str, bytes, bytes]
"""Identity of a request: its device, its id, and the digest of its payload."""


@dataclass(slots=True, eq=False, kw_only=True)  # a frozen dataclass takes three times as long
class Ticket:
    """A request in a worker.

    `digest` is the hash of the payload, because the same id with other content is not a duplicate.
    `rows` has shape (n, k) and the dtype of the message; all tickets for one model have the same k.
    `arrived` and `expires` are seconds on the owner's monotonic clock. The time to live begins at
    the arrival, because devices' clocks drift.

    `audit` is the mark of a request that audits an answer. The rows of a `private` request are
    never stored. A request with `late_s` arrives that many seconds after the device has answered.
    `form` is the encoding of the request and of its response.
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
    """Decision of a worker on a request."""

    queued: bool = False
    """Whether the request is queued for a run."""
    counter: str | None = None
    """Counter to increase; see :data:`gatewise_cloud.worker.counters.COUNTS`."""
    answer: bytes | None = None
    """Payload to send now: the remembered answer to the same request."""
    wait_ms: int = 0
    """If not 0, refuse the request with ``busy``; the device should wait that long."""


@dataclass(slots=True, eq=False)
class Batch:
    """Requests for one model that run together."""

    model: ModelKey
    tickets: tuple[Ticket, ...]

    @property
    def rows(self) -> NDArray[np.float32]:
        """All instances, in the order of the tickets: float32, shape (n, k)."""
        if len(self.tickets) == 1:
            return self.tickets[0].rows.astype(np.float32, copy=False)
        return np.concatenate([ticket.rows for ticket in self.tickets], dtype=np.float32)


@dataclass(slots=True)
class _DeviceShare:
    """Requests, rows and bytes of one device in the queue."""

    requests: int = 0
    rows: int = 0
    bytes: int = 0


class Batcher:
    """Queue of a worker, and the answers that it remembers for repeated requests.

    In its methods a `ticket` is a request, and `now` is the time on the clock of the tickets, in
    seconds.

    The queue holds up to `capacity` requests and `queue_bytes` of instances; further requests are
    refused as busy. One device may have up to `device_rows` instances in the queue, or one request
    with more. It may not use more requests and bytes than it leaves free. A run takes up to
    `max_batch` instances; a request with more instances runs alone. While a run is not full, a
    request waits up to `wait` seconds for others. Up to `parallel` runs take place at the same
    time. Up to `memory` answers, with `memory_bytes` of payload, are remembered for
    `memory_seconds`.

    The queue knows a request until :meth:`finish` or :meth:`forget` is called, or until the request
    expires. It remembers answers only. A device may send a request again that was refused or has
    expired.
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
        # a heap for each model, sorted by virtual start and then by arrival
        self._queues: dict[ModelKey, list[tuple[int, int, Ticket]]] = {}
        self._n_arrivals = 0
        self._n_queued = 0
        self._virtual_time = 0  # virtual start of the request that was taken last
        self._ends: dict[str, int] = {}  # virtual end of the last request of each device
        self._shares: dict[str, _DeviceShare] = {}  # devices that have queued requests
        self._bytes = 0  # bytes of queued instances
        self._open: dict[RequestKey, ModelKey] = {}  # requests that are queued or running
        self._rows: Counter[ModelKey] = Counter()  # number of queued instances
        self._answers: OrderedDict[RequestKey, tuple[float, bytes]] = OrderedDict()
        self._answer_bytes = 0
        self._row_seconds: dict[ModelKey, float] = {}  # smoothed time per row

    def __len__(self) -> int:
        return self._n_queued

    @property
    def rows(self) -> int:
        """Number of queued instances."""
        return self._rows.total()

    def observe_run(self, model: ModelKey, rows: int, seconds: float) -> None:
        """Update the time per instance of `model` after a run of `rows` instances in `seconds`."""
        smoothed = self._row_seconds.get(model, seconds / rows)
        self._row_seconds[model] = smoothed + _SMOOTHING * (seconds / rows - smoothed)

    def expected_seconds(self, model: ModelKey, rows: int) -> float:
        """Estimate the time of a run of `rows` instances; infinite before `model` has run."""
        return rows * self._row_seconds.get(model, math.inf)

    @property
    def wait_ms(self) -> int:
        """Estimated time in ms until all queued requests have run; at least 1."""
        rows = self._rows.items()
        seconds = sum(n * self._row_seconds.get(model, 0.0) for model, n in rows) / self.parallel
        return min(max(1, math.ceil(1000.0 * seconds)), _MAX_WAIT_MS)

    def offer(self, ticket: Ticket, now: float) -> Offer:
        """Decide on `ticket` at the time `now`, and queue it if it is new and fits."""
        self._trim_answers(now)
        if ticket.key in self._open:  # the first request will be answered
            return Offer(counter="duplicates")
        remembered = self._answers.get(ticket.key)
        if remembered is not None:
            return Offer(counter="repeated", answer=remembered[1])
        if not self._fits_queue(ticket):
            return Offer(wait_ms=self.wait_ms)
        self._open[ticket.key] = ticket.model
        self._push(ticket)
        return Offer(queued=True)

    def _fits_queue(self, ticket: Ticket) -> bool:
        """Whether the queue and the device's share of it have space for a request."""
        n_free = self.capacity - self._n_queued
        free_bytes = self.queue_bytes - self._bytes - ticket.rows.nbytes
        if n_free <= 0 or (free_bytes < 0 and self._n_queued):
            return False
        share = self._shares.get(ticket.device)
        return share is None or (
            share.requests <= n_free
            and share.bytes <= free_bytes
            and share.rows + len(ticket.rows) <= self.device_rows
        )

    def _push(self, ticket: Ticket) -> None:
        device = ticket.device
        rows = len(ticket.rows)
        size = ticket.rows.nbytes
        # Start-time fair queueing with virtual time V, start S and end F of a request:
        # S = max(V, F of the device's last request), F = S + rows.
        start = max(self._virtual_time, self._ends.get(device, 0))
        share = self._shares.setdefault(device, _DeviceShare())
        share.requests += 1
        share.rows += rows
        share.bytes += size
        self._ends[device] = start + rows
        # drop old ends: only devices with queued requests can have an end after the virtual time
        if len(self._ends) > 2 * self.capacity:
            self._ends = {d: self._ends[d] for d in self._shares if d in self._ends}
        entry = start, self._n_arrivals, ticket
        heapq.heappush(self._queues.setdefault(ticket.model, []), entry)
        self._n_arrivals += 1
        self._n_queued += 1
        self._rows[ticket.model] += rows
        self._bytes += size

    def pending(self, model: ModelKey) -> int:
        """Count the requests for `model` that are queued or running."""
        return sum(open_model == model for open_model in self._open.values())

    def pause(self, now: float) -> float:
        """Compute the time in seconds from `now` until a batch should be taken; 0 if it is due.

        The time is above 0 only if no model has enough queued instances for a full batch.
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
        """Take the next batch at `now`: the request that begins first, and others that fit with it.

        Also returns the requests that have expired, which the queue forgets.
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
        self._virtual_time = max(self._virtual_time, start)
        self._n_queued -= 1
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
        """Remember at `now` the `answer`, a payload, to a `ticket` that was taken."""
        self.forget(ticket)
        self._answers[ticket.key] = (now, answer)
        self._answer_bytes += len(answer)
        self._trim_answers(now)

    def forget(self, ticket: Ticket) -> None:
        """Forget a `ticket` that could not be answered, so that the device can send it again."""
        self._open.pop(ticket.key, None)

    def _trim_answers(self, now: float) -> None:
        """Forget the oldest answers until number, size and age are within bounds."""
        while self._answers:
            answer_time, answer = next(iter(self._answers.values()))
            if (
                len(self._answers) <= self.memory
                and self._answer_bytes <= self.memory_bytes
                and now - answer_time < self.memory_seconds
            ):
                return
            self._answers.popitem(last=False)
            self._answer_bytes -= len(answer)
