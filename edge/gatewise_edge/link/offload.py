"""Requests from their first row to their outcome: shared rows, deadlines, at most one retry.

Pure bookkeeping: no clock, no thread, no socket. Times are seconds on any steady clock and are
passed in, so that a device on a real link and a simulator in virtual time run the same code::

    flight, due = offloads.join(x, ...)   # a row's request; those to be sent now
    offloads.open(flight, now)            # False: too many are in flight already
    ... hand flight.payload to the link ...
    offloads.poll(flight, now)            # whether to hand the payload over once more
    offloads.receive(response, now)       # the request that this response settles, if any

Rows that come within a short wait share a request: one id, one time to live (the smallest of its
rows) and one outcome for all; whether that came in time is decided for each row.

A retry is needed because a broker may acknowledge a request and lose it, and a killed worker takes
its unanswered requests with it. There is only one, with the same bytes: workers remember recent
requests by id and content, so a request that was merely slow is answered twice but computed once.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from numpy.typing import NDArray

from gatewise_edge.link.messages import AuditMark, Response

#: A retry waits at least this long, in seconds: below it, a worker's own time is the noise.
_SHORTEST_RETRY: Final = 0.02
_LARGEST_BACKOFF: Final = 4
#: Seconds for which a busy worker may keep a device from sending.
_LONGEST_HOLD: Final = 30.0
#: A wait for more rows takes at most this part of what is left until a row's deadline.
_PART: Final = 0.25
#: Audits in flight at a time, at most, beside the requests.
_MOST_AUDITS: Final = 4

#: ``full`` and ``deadline`` are requests that were never opened.
OutcomeKind = Literal["answered", "refused", "timeout", "unsent", "full", "deadline"]


@dataclass(frozen=True, slots=True)
class OffloadOutcome:
    """How a request ended: with the response or last error, so many seconds after its opening."""

    kind: OutcomeKind
    response: Response | None
    seconds: float


@dataclass(slots=True, eq=False)
class InFlight:
    """One request from its first row to its outcome.

    `jpeg` is a file in place of `values`. `deadline` is the latest of its rows', `earliest` the
    earliest. While it gathers rows, at most `most`, they wait until `flush_at`. `id` and `payload`
    are empty until it is sent; `opened` is when its first row came, then when it was sent. Nobody
    waits for an `audit`: `on_response` is called with a response, on the link's thread.

    `content` goes behind the payload, in parts, to the worker that accepts it: `transfers` times
    so far, and `part_bytes` of payloads. `accepted` is whether one has since the last copy.
    """

    model: str
    version: str
    deadline: float
    rows: int = 1
    id: bytes = b""
    payload: bytes = b""
    opened: float = math.nan
    values: list[NDArray[Any]] = field(default_factory=list)
    jpeg: bytes | None = None
    earliest: float = math.inf
    flush_at: float = math.inf
    most: int = 1
    retry_at: float = math.inf
    retries: int = 0
    resent: float = math.nan
    copies: int = 1
    received: int = 0
    content: bytes = b""
    accepted: bool = False
    transfers: int = 0
    part_bytes: int = 0
    error: Response | None = None
    audit: AuditMark | None = None
    on_response: Callable[[Response], None] | None = None
    outcome: OffloadOutcome | None = None

    @property
    def wake_at(self) -> float:
        """When to poll next, if nothing comes before."""
        return min(self.flush_at, self.retry_at, self.deadline)

    @property
    def bytes_per_row(self) -> float:
        """Payload bytes, up and down, of one of its rows."""
        sent = len(self.payload) * (1 + self.retries) + self.part_bytes
        return (sent + self.received) / self.rows

    def outcome_of_row(self, deadline: float, now: float) -> OffloadOutcome | None:
        """Outcome for a row with a deadline of its own; None while it is open."""
        if self.outcome is not None:
            settled = self.opened + self.outcome.seconds
            if self.outcome.kind == "answered" and settled >= deadline:
                return OffloadOutcome("timeout", None, self.outcome.seconds)
            return self.outcome
        return OffloadOutcome("timeout", self.error, now - self.opened) if now >= deadline else None


@dataclass(frozen=True, slots=True)
class SettledRequest:
    """What late responses need of a settled request; its data, up to 4 MB, is not kept."""

    kind: OutcomeKind
    model: str
    version: str
    rows: int
    opened: float
    retries: int
    resent: float
    error: Response | None


@dataclass(slots=True)
class OffloadCounts:
    """What became of requests and responses.

    `sent`, `retries`: requests opened and handed to the link, and how many of them a second time.
    `answered`, `refused`, `timeouts`, `unsent`: outcomes; they sum to `sent` once nothing is out
    (an unsent one was opened in vain). `full`: requests not opened since too many were in flight.
    `late`, `duplicates`, `unknown`, `mismatched`, `invalid`: responses not used: after the
    deadline; to a request answered already; to no request; with another model, version or row
    count; unreadable.
    """

    sent: int = 0
    retries: int = 0
    answered: int = 0
    refused: int = 0
    timeouts: int = 0
    unsent: int = 0
    full: int = 0
    late: int = 0
    duplicates: int = 0
    unknown: int = 0
    mismatched: int = 0
    invalid: int = 0


@dataclass(slots=True)
class RoundTrip:
    """Smoothed round-trip time in seconds, and how long to wait before a retry.

    Jacobson's estimator with the gains of RFC 6298. A retry waits twice the round trip, or for
    the mean plus four deviations where the link (or a busy machine) varies by more than that.

    The response to a retried request may be to either copy. One that comes too soon or too late
    after the retry to be the retry's is the first one's, and measures from there. Any other
    is no evidence (Karn), but the next retry waits longer: a link that became slower is measured
    before it drowns in retries.
    """

    smoothed: float | None = None
    deviation: float = 0.0
    backoff: int = 1

    def expected(self, budget: float) -> float:
        """Seconds that a round trip is expected to take; a quarter of `budget` at first."""
        return budget / 4 if self.smoothed is None else self.smoothed

    def patience(self, budget: float) -> float:
        """Seconds to wait for a response before a retry."""
        expected = self.expected(budget)
        longest = max(2 * expected, expected + 4 * self.deviation, _SHORTEST_RETRY)
        return self.backoff * longest

    def update(self, seconds: float) -> None:
        """Update with one round trip."""
        self.backoff = 1
        if self.smoothed is None:
            self.smoothed, self.deviation = seconds, seconds / 2
        else:
            self.deviation += (abs(seconds - self.smoothed) - self.deviation) / 4
            self.smoothed += (seconds - self.smoothed) / 8

    def update_retried(self, since_first: float, since_retry: float) -> None:
        """Update with the response to a request that was sent twice."""
        usual = self.smoothed
        if usual is None or not usual / 2 <= since_retry <= max(
            2 * usual, usual + 4 * self.deviation
        ):
            self.update(since_first)
        else:
            self.backoff = min(2 * self.backoff, _LARGEST_BACKOFF)


@dataclass(slots=True)
class Offloads:
    """Requests in flight, at most `limit`, and the one that waits `share_wait` seconds for rows.

    Audits are in flight beside them: they take no request's place.

    `remember` settled requests are kept, to distinguish a late response from an unknown one.
    `on_outcome` gets each request as it is settled, and the time. Until `hold_until` no request
    should be made: the workers said that they are busy so long.
    """

    limit: int = 32
    share_wait: float = 0.0
    remember: int = 256
    round_trip: RoundTrip = field(default_factory=RoundTrip)
    counts: OffloadCounts = field(default_factory=OffloadCounts)
    on_outcome: Callable[[InFlight, float], None] | None = None
    hold_until: float = -math.inf
    _gathering: InFlight | None = None
    _out: dict[bytes, InFlight] = field(default_factory=dict)
    _settled: OrderedDict[bytes, SettledRequest] = field(default_factory=OrderedDict)

    def __len__(self) -> int:
        return sum(flight.audit is None for flight in self._out.values())

    def join(
        self,
        x: NDArray[Any],
        *,
        model: str,
        version: str,
        most: int,
        now: float,
        deadline: float,
        hold: bool = False,
    ) -> tuple[InFlight, list[InFlight]]:
        """Put a row into a request, as its last one so far; also the requests to be sent now.

        Rows for different models or versions never share a request; `most` rows fit one. With
        `hold` it waits for more rows in any case, for a quarter of the time at most: the caller is
        about to bring them, and to call :meth:`take`.
        """
        wait = math.inf if hold else self.share_wait
        if wait == 0:
            flight = InFlight(model, version, deadline, opened=now, values=[x], earliest=deadline)
            return flight, [flight]
        due: list[InFlight] = []
        shared = self._gathering
        if shared is not None:
            other = (shared.model, shared.version) != (model, version)
            if other or shared.flush_at < now:  # or one that its rows' caller has left
                due, shared = self.take(), None
        if shared is None:
            shared = self._gathering = InFlight(model, version, deadline, opened=now, most=most)
        shared.values.append(x)
        shared.rows = len(shared.values)
        shared.earliest = min(shared.earliest, deadline)
        shared.deadline = max(shared.deadline, deadline)
        shared.flush_at = min(shared.flush_at, now + min(wait, _PART * (deadline - now)))
        return shared, due + (self.take() if shared.rows >= shared.most else [])

    def take(self, flight: InFlight | None = None) -> list[InFlight]:
        """Close the request that waits for rows, or only `flight` if it is that one."""
        taken = self._gathering
        if taken is None or flight not in (None, taken):
            return []
        self._gathering = None
        taken.flush_at = math.inf
        return [taken]

    def open(self, flight: InFlight, now: float) -> bool:
        """Enter a request that is about to be sent; False if `limit` are in flight."""
        if flight.audit is None and len(self) >= self.limit:
            self.counts.full += 1
            return False
        flight.opened = now
        self._plan_retry(flight, now + self.round_trip.patience(flight.deadline - now))
        self._out[flight.id] = flight
        self.counts.sent += 1
        return True

    def admit_audit(self, now: float) -> bool:
        """Settle audits that have no time left; return whether another may be sent."""
        audits = [flight for flight in self._out.values() if flight.audit is not None]
        for flight in audits:
            self.poll(flight, now)
        out = sum(flight.outcome is None for flight in audits)
        return out < _MOST_AUDITS and now >= self.hold_until

    def poll(self, flight: InFlight, now: float) -> bool:
        """End a request at its deadline; return whether it is to be sent once more now."""
        if flight.outcome is None and now >= flight.deadline:
            self._settle(flight, "timeout", flight.error, now)
        if flight.outcome is not None or now < flight.retry_at:
            return False
        flight.retry_at = math.inf
        flight.resent = now
        flight.retries += 1
        flight.copies += 1
        flight.accepted = False
        self.counts.retries += 1
        return True

    def receive(self, response: Response, now: float) -> InFlight | None:
        """Match a response with its request, and return that if this settles it.

        None if the response was counted and not used, or if a retry may still do better.
        """
        flight = self._out.get(response.id)
        if flight is None:
            self._count_stray(response, now)
            return None
        if not _matches(response, flight):
            self.counts.mismatched += 1
            return None
        if now >= flight.deadline:
            self._settle(flight, "timeout", flight.error, now)
            self._count_stray(response, now)
            return flight
        if response.error is None:
            self._measure(flight, now)
            self._settle(flight, "answered", response, now)
            return flight
        flight.error = response
        flight.copies -= 1
        if response.retryable:
            wait = min(response.wait_ms / 1000.0, _LONGEST_HOLD)
            if wait > 0:
                self.hold_until = max(self.hold_until, now + wait)
            if flight.copies == 0 and flight.retries == 0:
                pause = self.round_trip.expected(flight.deadline - flight.opened)
                self._plan_retry(flight, now + max(pause, wait))
            if flight.copies > 0 or flight.retry_at < math.inf:
                return None
        self._settle(flight, "refused", response, now)
        return flight

    def accept(self, response: Response, now: float) -> InFlight | None:
        """Match a worker's acceptance with the request in parts that it is for.

        None if there is none, or another worker has it: one that accepts a second copy goes on
        only where the first copy was not accepted, or not answered.
        """
        flight = self._out.get(response.id)
        if flight is None and response.id not in self._settled:
            self.counts.unknown += 1
        elif flight is None or now >= flight.deadline:
            self.counts.late += 1
        elif not flight.content or not _same_model(response, flight):
            self.counts.mismatched += 1
        elif not flight.accepted:
            flight.accepted = True
            flight.transfers += 1
            self.sent_part(flight, 0, now)
            return flight
        return None

    def sent_part(self, flight: InFlight, size: int, now: float) -> None:
        """Count a part; the retry waits anew."""
        flight.part_bytes += size
        if flight.retries == 0 and flight.audit is None:
            self._plan_retry(flight, now + self.round_trip.patience(flight.deadline - now))

    def abandon(self, flight: InFlight, now: float) -> None:
        """Settle a request that the link did not take."""
        if flight.outcome is None:
            self._settle(flight, "unsent", None, now)

    def _plan_retry(self, flight: InFlight, at: float) -> None:
        expected = self.round_trip.expected(flight.deadline - flight.opened)
        may = flight.audit is None and at + expected <= flight.deadline  # no instance waits for one
        flight.retry_at = at if may else math.inf

    def _measure(self, flight: InFlight | SettledRequest, now: float) -> None:
        if flight.retries == 0:
            self.round_trip.update(now - flight.opened)
        elif flight.error is not None:
            # The first copy was refused, so this is the second one's.
            self.round_trip.update(now - flight.resent)
        else:
            self.round_trip.update_retried(now - flight.opened, now - flight.resent)

    def _settle(
        self,
        flight: InFlight,
        kind: Literal["answered", "refused", "timeout", "unsent"],
        response: Response | None,
        now: float,
    ) -> None:
        flight.outcome = OffloadOutcome(kind, response, now - flight.opened)
        flight.retry_at = math.inf
        name = "timeouts" if kind == "timeout" else kind
        setattr(self.counts, name, getattr(self.counts, name) + 1)
        del self._out[flight.id]
        self._settled[flight.id] = SettledRequest(
            kind, flight.model, flight.version, flight.rows, flight.opened, flight.retries,
            flight.resent, flight.error,
        )  # fmt: skip
        while len(self._settled) > self.remember:
            self._settled.popitem(last=False)
        if self.on_outcome is not None:
            self.on_outcome(flight, now)

    def _count_stray(self, response: Response, now: float) -> None:
        flight = self._settled.get(response.id)
        if flight is None:
            self.counts.unknown += 1
        elif not _matches(response, flight):
            self.counts.mismatched += 1
        elif flight.kind == "answered":
            self.counts.duplicates += 1
        else:
            self.counts.late += 1
            if response.error is None:
                # Without this a link slower than the deadline would never be measured.
                self._measure(flight, now)


def _matches(response: Response, flight: InFlight | SettledRequest) -> bool:
    """Whether model, version and row count agree; an error may lack the model."""
    if response.error is not None and not response.model:
        return True
    if not _same_model(response, flight):
        return False
    return response.error is not None or response.rows == flight.rows


def _same_model(response: Response, flight: InFlight | SettledRequest) -> bool:
    return (response.model, response.version) == (flight.model, flight.version)
