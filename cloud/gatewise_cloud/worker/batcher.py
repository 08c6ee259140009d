"""Bounded queue of a worker's requests, which forms batches and is fair to devices.

The clock is an argument, because the simulator runs this code in virtual time. The queue is not
thread-safe: its owner holds a lock.

A batch contains requests for one model, up to a number of instances. By default no request waits
for others to join its batch, because requests collect in the queue anyway while a worker is busy.

Devices take turns by rows, as in start-time fair queueing (Goyal, Vin and Cheng 1997). A request
begins, in virtual time, when the previous request of its device ends, and it lasts one unit for
each of its rows. The request that begins first is taken first. A device that sends little is
therefore served as if it were alone, and a device that sends much delays only its own requests. A
device gets another place in the queue only while at least as many places are free as it has. One
device alone thus takes about half of the queue.
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
#: Weight of the last run in the smoothed time per row; it is small because single runs vary.
_SMOOTHING: Final = 0.1

#: Name and version of a model.
ModelKey = tuple[str, str]

#: Identity of a request: its device, its id, and the digest of its payload.
RequestKey = tuple[str, bytes, bytes]


@dataclass(slots=True, eq=False, kw_only=True)  # a frozen dataclass takes three times as long
class Ticket:
    """A request in a worker.

    `digest` is the hash of the payload, because the same id with other content is not a duplicate.
    `rows` has shape (n, k) and the dtype of the message; all tickets for one model have the same k.
    `arrived_at` and `expires_at` are seconds on the owner's monotonic clock. The time to live
    begins at the arrival, because devices' clocks drift.

    `audit` is the mark of a request that audits an answer. The rows of an `is_private` request are
    never stored. If `late_s` is not 0, the device gave its own answer that many seconds before it
    sent the request. `form` is the encoding of the request and of its response.
    """

    device: str
    id: bytes
    digest: bytes
    model: ModelKey
    rows: NDArray[Any]
    arrived_at: float
    expires_at: float
    audit: AuditMark | None = None
    is_private: bool = False
    late_s: int = 0
    form: MessageForm = CBOR

    @property
    def key(self) -> RequestKey:
        """Identity of the request."""
        return self.device, self.id, self.digest


class Admission(NamedTuple):
    """Decision of a worker on a request."""

    #: Whether the request is queued for a run.
    is_queued: bool = False
    #: Counter to increase; see :data:`gatewise_cloud.worker.counters.COUNTS`.
    counter_name: str | None = None
    #: Payload to send now: the remembered answer to the same request.
    answer_payload: bytes | None = None
    #: Time for which the device should wait if the request is refused with ``busy``, otherwise 0.
    wait_ms: int = 0


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


class _RememberedAnswer(NamedTuple):
    """Payload of an answer, and its time (s)."""

    time: float
    payload: bytes


@dataclass(slots=True)
class _DeviceLoad:
    """Requests, rows and bytes of one device in the queue."""

    n_requests: int = 0
    n_rows: int = 0
    n_bytes: int = 0


class Batcher:
    """Queue of a worker, and the answers that it remembers for repeated requests.

    Methods take the time `now` in seconds, on the clock of the tickets.

    The queue holds up to `capacity` requests and `queue_bytes` of instances; further requests are
    refused as busy. One device may have up to `device_rows` instances in the queue, or one request
    with more. It gets another place only while at least as many requests
    and bytes are free as it has. A run takes up to `max_batch` instances; a request with more
    instances runs alone. While a run is not full, a request waits up to `wait_seconds` seconds, and
    at most half of its time, for others. Up to `n_parallel` runs take place at the same time. Up to
    `max_answers` answers, with `max_answer_bytes` of payload, are remembered for
    `max_answer_seconds`.

    A repetition of a request that is queued or running is a duplicate, until :meth:`finish` or
    :meth:`forget` is called or the request expires. Only answers are remembered, so a device may
    repeat a request that was refused or has expired.
    """

    def __init__(
        self,
        *,
        capacity: int = 1024,
        device_rows: int = 4096,
        queue_bytes: int = 256 << 20,
        max_batch: int = 16,
        wait_seconds: float = 0.0,
        n_parallel: int = 1,
        max_answers: int = 4096,
        max_answer_bytes: int = 16 << 20,
        max_answer_seconds: float = 60.0,
    ) -> None:
        self.capacity = capacity
        self.device_rows = device_rows
        self.queue_bytes = queue_bytes
        self.max_batch = max_batch
        self.wait_seconds = wait_seconds
        self.n_parallel = n_parallel
        self.max_answers = max_answers
        self.max_answer_bytes = max_answer_bytes
        self.max_answer_seconds = max_answer_seconds
        # a heap for each model, sorted by virtual start and then by arrival
        self._queues: dict[ModelKey, list[tuple[int, int, Ticket]]] = {}
        self._n_arrivals = 0
        self._n_queued = 0
        self._virtual_time = 0  # virtual start of the request that was taken last
        self._virtual_ends: dict[str, int] = {}  # virtual end of the last request of each device
        self._device_loads: dict[str, _DeviceLoad] = {}  # devices that have queued requests
        self._queued_bytes = 0  # bytes of queued instances
        self._open_requests: dict[RequestKey, ModelKey] = {}  # requests that are queued or running
        self._n_rows_by_model: Counter[ModelKey] = Counter()  # number of queued instances
        self._remembered_answers: OrderedDict[RequestKey, _RememberedAnswer] = OrderedDict()
        self._answer_bytes = 0
        self._row_seconds: dict[ModelKey, float] = {}  # smoothed time per row

    def __len__(self) -> int:
        return self._n_queued

    def observe_run(self, model: ModelKey, n_rows: int, seconds: float) -> None:
        """Update the time per instance of `model` after a run of `n_rows` rows in `seconds`."""
        row_seconds = self._row_seconds.get(model, seconds / n_rows)
        self._row_seconds[model] = row_seconds + _SMOOTHING * (seconds / n_rows - row_seconds)

    def expected_seconds(self, model: ModelKey, n_rows: int) -> float:
        """Estimate the time of a run of `n_rows` instances; infinite before `model` has run."""
        return n_rows * self._row_seconds.get(model, math.inf)

    @property
    def wait_ms(self) -> int:
        """Estimated time in ms until all queued requests have run; at least 1."""
        run_seconds = sum(
            n_rows * self._row_seconds.get(model, 0.0)
            for model, n_rows in self._n_rows_by_model.items()
        )
        seconds = run_seconds / self.n_parallel
        return min(max(1, math.ceil(1000.0 * seconds)), _MAX_WAIT_MS)

    def admit(self, ticket: Ticket, now: float) -> Admission:
        """Decide on `ticket` at the time `now`, and queue it if it is new and fits."""
        self._trim_answers(now)
        if ticket.key in self._open_requests:  # the first request will be answered
            return Admission(counter_name="duplicates")
        remembered_answer = self._remembered_answers.get(ticket.key)
        if remembered_answer is not None:
            return Admission(counter_name="repeated", answer_payload=remembered_answer.payload)
        if not self._fits_queue(ticket):
            return Admission(wait_ms=self.wait_ms)
        self._open_requests[ticket.key] = ticket.model
        self._push(ticket)
        return Admission(is_queued=True)

    def _fits_queue(self, ticket: Ticket) -> bool:
        """Return whether the queue and the device's share of it have space for a request."""
        n_free = self.capacity - self._n_queued
        free_bytes = self.queue_bytes - self._queued_bytes - ticket.rows.nbytes
        if n_free <= 0 or (free_bytes < 0 and self._n_queued):
            return False
        device_load = self._device_loads.get(ticket.device)
        return device_load is None or (
            device_load.n_requests <= n_free
            and device_load.n_bytes <= free_bytes
            and device_load.n_rows + len(ticket.rows) <= self.device_rows
        )

    def _push(self, ticket: Ticket) -> None:
        """Add a request to the queue of its model."""
        device = ticket.device
        n_rows = len(ticket.rows)
        n_bytes = ticket.rows.nbytes
        # Start-time fair queueing with virtual time V, start S and end F of a request:
        # S = max(V, F of the device's last request), F = S + rows.
        virtual_start = max(self._virtual_time, self._virtual_ends.get(device, 0))
        device_load = self._device_loads.setdefault(device, _DeviceLoad())
        device_load.n_requests += 1
        device_load.n_rows += n_rows
        device_load.n_bytes += n_bytes
        self._virtual_ends[device] = virtual_start + n_rows
        # forget devices without queued requests; at most the rows of their last requests are lost
        if len(self._virtual_ends) > 2 * self.capacity:
            self._virtual_ends = {
                device: self._virtual_ends[device] for device in self._device_loads
            }
        # the arrival number breaks ties, so that tickets are never compared
        ranked_ticket = virtual_start, self._n_arrivals, ticket
        heapq.heappush(self._queues.setdefault(ticket.model, []), ranked_ticket)
        self._n_arrivals += 1
        self._n_queued += 1
        self._n_rows_by_model[ticket.model] += n_rows
        self._queued_bytes += n_bytes

    def count_requests(self, model: ModelKey) -> int:
        """Count the requests for `model` that are queued or running."""
        return sum(open_model == model for open_model in self._open_requests.values())

    def seconds_to_batch(self, now: float) -> float:
        """Compute the time in seconds from `now` until a batch should be taken; 0 if it is due.

        The time is above 0 only if no model has enough queued instances for a full batch.
        """
        if self.wait_seconds <= 0 or not self._queues:
            return 0.0
        seconds_to_batch = math.inf
        for model, queue in self._queues.items():
            if self._n_rows_by_model[model] >= self.max_batch:
                return 0.0
            for _, _, ticket in queue:
                # the other half of its time is for the run and the response
                half_time = (ticket.expires_at - ticket.arrived_at) / 2
                due_at = ticket.arrived_at + min(self.wait_seconds, half_time)
                seconds_to_batch = min(seconds_to_batch, due_at - now)
        return max(0.0, seconds_to_batch)

    def take_batch(self, now: float) -> tuple[Batch | None, list[Ticket]]:
        """Take the next batch at `now`: the request that begins first, and others that fit with it.

        Also returns the requests that have expired, which the queue forgets.
        """
        expired_tickets: list[Ticket] = []
        for model in list(self._queues):
            self._drop_expired(model, now, expired_tickets)
        if not self._queues:
            return None, expired_tickets
        model = min(self._queues, key=lambda model: self._queues[model][0][:2])
        tickets: list[Ticket] = []
        n_rows = 0
        while model in self._queues:
            ticket = self._queues[model][0][2]
            n_rows += len(ticket.rows)
            if tickets and n_rows > self.max_batch:
                break
            tickets.append(ticket)
            self._pop(model)
            self._drop_expired(model, now, expired_tickets)
        return Batch(model, tuple(tickets)), expired_tickets

    def _drop_expired(self, model: ModelKey, now: float, expired_tickets: list[Ticket]) -> None:
        """Drop expired requests from the front of a model's queue."""
        while model in self._queues and self._queues[model][0][2].expires_at <= now:
            expired_tickets.append(self._queues[model][0][2])
            self.forget(expired_tickets[-1])
            self._pop(model)

    def _pop(self, model: ModelKey) -> None:
        """Remove the first request of a model's queue."""
        queue = self._queues[model]
        virtual_start, _, ticket = heapq.heappop(queue)
        n_rows = len(ticket.rows)
        n_bytes = ticket.rows.nbytes
        self._virtual_time = max(self._virtual_time, virtual_start)
        self._n_queued -= 1
        self._n_rows_by_model[model] -= n_rows
        self._queued_bytes -= n_bytes
        device_load = self._device_loads[ticket.device]
        device_load.n_requests -= 1
        device_load.n_rows -= n_rows
        device_load.n_bytes -= n_bytes
        if not device_load.n_requests:
            del self._device_loads[ticket.device]
        if not queue:
            del self._queues[model]
            self._n_rows_by_model.pop(model)

    def finish(self, ticket: Ticket, answer_payload: bytes, now: float) -> None:
        """Remember at `now` the `answer_payload` to a `ticket` that was taken."""
        self.forget(ticket)
        self._remembered_answers[ticket.key] = _RememberedAnswer(now, answer_payload)
        self._answer_bytes += len(answer_payload)
        self._trim_answers(now)

    def forget(self, ticket: Ticket) -> None:
        """Forget a `ticket` that could not be answered, so that the device can send it again."""
        self._open_requests.pop(ticket.key, None)

    def _trim_answers(self, now: float) -> None:
        """Forget the oldest answers until number, size and age are within bounds."""
        while self._remembered_answers:
            oldest_answer = next(iter(self._remembered_answers.values()))
            if (
                len(self._remembered_answers) <= self.max_answers
                and self._answer_bytes <= self.max_answer_bytes
                and now - oldest_answer.time < self.max_answer_seconds
            ):
                return
            self._remembered_answers.popitem(last=False)
            self._answer_bytes -= len(oldest_answer.payload)
