"""Requests in flight: their deadlines, at most one retry each, and their outcomes.

Pure bookkeeping without clock, thread or socket. The caller passes the times, in seconds on any
monotonic clock, so that a device and a simulator in virtual time run the same code::

    flight = offloads.open(id, ..., now=now)   # None if too many are in flight
    ...                                        # send flight.payload over the link
    offloads.poll(flight, now)                 # whether to send the payload again
    offloads.receive(response, now)            # the request that this response settles, or None

The states of a request::

    sent ──(`retry_at`)──────────────────────────────> resent
     └──(busy or no-model, while a retry fits)──> refused-once ──(`retry_at`)──> resent

    any of these ──(an answer)──> answered
                 ──(an error, and no copy or retry is left)──> refused
                 ──(the deadline)──> timeout
    sent ──(the link refuses it)──> unsent

A retry is needed because a broker may acknowledge a request and lose it, and because the requests
of a killed worker are lost. There is at most one retry, with the same bytes. Workers remember
recent requests by id and content, so that they compute a slow request only once.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Literal

from gatewise_edge.link.messages import Response

#: Shortest wait before a retry in seconds, because a worker's own time may vary by as much.
_MIN_RETRY_SECONDS: Final = 0.02
_MAX_BACKOFF: Final = 4
#: Longest time for which a busy worker can stop a device from sending, in seconds.
_MAX_HOLD_SECONDS: Final = 30.0
#: Largest number of audits in flight; audits do not count against the bound on requests.
_MAX_AUDITS: Final = 4

Outcome = Literal["answered", "refused", "timeout", "unsent"]
State = Literal["sent", "refused-once", "resent", "answered", "refused", "timeout", "unsent"]


@dataclass(slots=True, eq=False)
class InFlight:
    """One request, from its first copy to its outcome.

    Attributes
    ----------
    id, model, version, n_rows
        Fields of the request, which a response must match.
    payload : bytes
        The encoded request; empty once it is settled.
    sent_at, deadline : float
        Time of the first copy, and time at which the request ends as a timeout.
    state : str
        One of the states that the module's docstring shows.
    retry_at : float
        Time at which the second copy is due; infinite without a planned retry.
    resent_at : float
        Time of the second copy; NaN if it was not sent.
    n_copies_out : int
        Number of copies without an error response.
    response : Response or None
        The answer, or the last error.
    settled_at : float
        Time of the outcome; NaN while the request is open.
    on_answer : callable or None
        Of an audit or a late request, the function to call with the answer. Such a request gets no
        retry.
    """

    id: bytes
    model: str
    version: str
    n_rows: int
    payload: bytes
    sent_at: float
    deadline: float
    state: State = "sent"
    retry_at: float = math.inf
    resent_at: float = math.nan
    n_copies_out: int = 1
    response: Response | None = None
    settled_at: float = math.nan
    on_answer: Callable[[Response], None] | None = None

    @property
    def settled(self) -> bool:
        """Whether the request has its outcome."""
        return self.settled_at == self.settled_at  # not NaN

    @property
    def resent(self) -> bool:
        """Whether the second copy was sent."""
        return self.resent_at == self.resent_at

    @property
    def wake_at(self) -> float:
        """Time of the next poll if no response arrives before."""
        return self.settled_at if self.settled else min(self.retry_at, self.deadline)


@dataclass(slots=True)
class OffloadCounts:
    """Counts of requests and responses.

    Attributes
    ----------
    sent : int
        Requests opened. Once no request is in flight, the outcomes sum to it.
    retries : int
        Requests that were sent twice.
    answered, refused, timeouts, unsent : int
        Outcomes of requests.
    full : int
        Requests that were not opened because too many were in flight.
    late : int
        Responses after the deadline.
    duplicates : int
        Further responses to an answered request.
    unknown : int
        Responses that match no request.
    mismatched : int
        Responses with another model, version or row count.
    invalid : int
        Responses that cannot be decoded.
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
    """Smoothed round-trip time in seconds, and the time to wait before a retry.

    Jacobson's estimator with the gains of RFC 6298. A retry is due after twice the smoothed time,
    or after the smoothed time plus four deviations if that is longer.

    The response to a request that was sent twice may answer either copy. If it arrives too soon or
    too late after the retry to answer the second copy, the time since the first copy is measured.
    Otherwise no time is measured (Karn's rule), but the next retry waits longer, so that a link
    that became slower is measured before retries flood it.
    """

    smoothed: float | None = None
    deviation: float = 0.0
    backoff: int = 1

    def expected(self, budget: float) -> float:
        """Expected round-trip time; before the first measurement a quarter of the `budget`."""
        return budget / 4 if self.smoothed is None else self.smoothed

    def patience(self, budget: float) -> float:
        """Seconds to wait for a response before a retry."""
        expected = self.expected(budget)
        wait = max(2 * expected, expected + 4 * self.deviation, _MIN_RETRY_SECONDS)
        return self.backoff * wait

    def update(self, seconds: float) -> None:
        """Update the estimate with one measured round trip."""
        self.backoff = 1
        if self.smoothed is None:
            self.smoothed = seconds
            self.deviation = seconds / 2
        else:
            # RFC 6298, section 2.3, with beta = 1/4 and alpha = 1/8.
            self.deviation += (abs(seconds - self.smoothed) - self.deviation) / 4
            self.smoothed += (seconds - self.smoothed) / 8

    def update_retried(self, since_first: float, since_retry: float) -> None:
        """Update the estimate with the response to a request that was sent twice."""
        if self.smoothed is None:
            self.update(since_first)
            return
        earliest = self.smoothed / 2
        latest = max(2 * self.smoothed, self.smoothed + 4 * self.deviation)
        if earliest <= since_retry <= latest:
            # The response may answer either copy.
            self.backoff = min(2 * self.backoff, _MAX_BACKOFF)
        else:
            self.update(since_first)


@dataclass(slots=True)
class Offloads:
    """The requests in flight, and the latest settled requests.

    Parameters
    ----------
    limit : int, default 32
        Largest number of requests in flight; audits are not counted.
    remember : int, default 256
        Number of settled requests to remember, so that a late response is not taken for an unknown
        one.
    round_trip : RoundTrip
        Measured round-trip time.
    counts : OffloadCounts
        Counts so far.
    on_outcome : callable, optional
        Called with each request when it is settled, and with the time.
    hold_until : float
        Time before which no request should be sent, because the workers are busy.
    """

    limit: int = 32
    remember: int = 256
    round_trip: RoundTrip = field(default_factory=RoundTrip)
    counts: OffloadCounts = field(default_factory=OffloadCounts)
    on_outcome: Callable[[InFlight, float], None] | None = None
    hold_until: float = -math.inf
    _unsettled: dict[bytes, InFlight] = field(default_factory=dict)
    _settled: OrderedDict[bytes, InFlight] = field(default_factory=OrderedDict)

    def __len__(self) -> int:
        return sum(flight.on_answer is None for flight in self._unsettled.values())

    def open(
        self,
        id: bytes,  # noqa: A002
        model: str,
        version: str,
        *,
        now: float,
        deadline: float,
        n_rows: int = 1,
        payload: bytes = b"",
        on_answer: Callable[[Response], None] | None = None,
    ) -> InFlight | None:
        """Register a request that is about to be sent; return None if `limit` are in flight."""
        if on_answer is None and len(self) >= self.limit:
            self.counts.full += 1
            return None
        flight = InFlight(
            id, model, version, n_rows, payload, sent_at=now, deadline=deadline, on_answer=on_answer
        )
        self._plan_retry(flight, now + self.round_trip.patience(deadline - now))
        self._unsettled[id] = flight
        self.counts.sent += 1
        return flight

    def admit_audit(self, now: float) -> bool:
        """Settle audits that are past their deadline; return whether another may be sent."""
        audits = [flight for flight in self._unsettled.values() if flight.on_answer is not None]
        for flight in audits:
            self.poll(flight, now)
        n_out = sum(not flight.settled for flight in audits)
        return n_out < _MAX_AUDITS and now >= self.hold_until

    def poll(self, flight: InFlight, now: float) -> bool:
        """End a request at its deadline; return whether its second copy must be sent now."""
        if not flight.settled and now >= flight.deadline:
            self._settle(flight, "timeout", now)
        if flight.settled or now < flight.retry_at:
            return False
        flight.retry_at = math.inf
        flight.state = "resent"
        flight.resent_at = now
        flight.n_copies_out += 1
        self.counts.retries += 1
        return True

    def receive(self, response: Response, now: float) -> InFlight | None:
        """Match a response with its request; return the request if the response settles it.

        Returns None if the response matches no open request, or if another copy of the request may
        still get an answer.
        """
        flight = self._unsettled.get(response.id)
        if flight is None:
            self._count_stray(response, now)
            return None
        if not _matches(response, flight):
            self.counts.mismatched += 1
            return None
        if now >= flight.deadline:
            self._settle(flight, "timeout", now)
            self._count_stray(response, now)
            return flight
        if response.error is None:
            self._measure(flight, now)
            flight.response = response
            self._settle(flight, "answered", now)
            return flight
        flight.response = response
        flight.n_copies_out -= 1
        if response.retryable and self._await_other_copy(flight, response, now):
            return None
        self._settle(flight, "refused", now)
        return flight

    def abandon(self, flight: InFlight, now: float) -> None:
        """Settle a request that the link refused."""
        if not flight.settled:
            self._settle(flight, "unsent", now)

    def _await_other_copy(self, flight: InFlight, refusal: Response, now: float) -> bool:
        """Plan a retry if no copy is out; return whether another copy may still get an answer."""
        wait = min(refusal.wait_ms / 1000.0, _MAX_HOLD_SECONDS)
        if wait > 0:
            self.hold_until = max(self.hold_until, now + wait)
        if flight.n_copies_out == 0 and not flight.resent:
            pause = self.round_trip.expected(flight.deadline - flight.sent_at)
            flight.state = "refused-once"
            self._plan_retry(flight, now + max(pause, wait))
        return flight.n_copies_out > 0 or flight.retry_at < math.inf

    def _plan_retry(self, flight: InFlight, when: float) -> None:
        expected = self.round_trip.expected(flight.deadline - flight.sent_at)
        fits = flight.on_answer is None and when + expected <= flight.deadline
        flight.retry_at = when if fits else math.inf

    def _measure(self, flight: InFlight, now: float) -> None:
        """Update the round trip with an answer; `flight.response` is still the last error."""
        if not flight.resent:
            self.round_trip.update(now - flight.sent_at)
        elif flight.response is not None and flight.response.error is not None:
            # The first copy was refused, so that this answers the second copy.
            self.round_trip.update(now - flight.resent_at)
        else:
            self.round_trip.update_retried(now - flight.sent_at, now - flight.resent_at)

    def _settle(self, flight: InFlight, outcome: Outcome, now: float) -> None:
        flight.state = outcome
        flight.settled_at = now
        flight.retry_at = math.inf
        flight.payload = b""
        counter = "timeouts" if outcome == "timeout" else outcome
        setattr(self.counts, counter, getattr(self.counts, counter) + 1)
        del self._unsettled[flight.id]
        self._settled[flight.id] = flight
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
        elif flight.state == "answered":
            self.counts.duplicates += 1
        else:
            self.counts.late += 1
            if response.error is None:
                # Measure it, because otherwise a link slower than the deadline is never measured.
                self._measure(flight, now)


def _matches(response: Response, flight: InFlight) -> bool:
    """Whether model, version and row count match; an error may lack the model."""
    if response.error is not None and not response.model:
        return True
    if (response.model, response.version) != (flight.model, flight.version):
        return False
    return response.error is not None or response.rows == flight.n_rows
