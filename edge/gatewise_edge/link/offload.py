"""Requests in flight: their deadlines, at most one retry each, and their outcomes.

This is pure bookkeeping without clock, thread or socket: the caller passes the times, in seconds
on any monotonic clock. A simulator in virtual time therefore runs the same code as a device::

    offload = table.open(id, ..., now=now)    # None if too many are in flight
    ...                                       # send offload.payload over the link
    table.poll(offload, now)                  # whether to send the payload again
    table.receive(response, now)              # the request that this response settles, or None

The states of a request::

    sent ──(`retry_at`)──────────────────────────────> resent
     └──(busy or no-model, while a retry fits)──> refused-once ──(`retry_at`)──> resent

    any of these ──(an answer)──> answered
                 ──(an error, and no copy or retry is left)──> refused
                 ──(the deadline)──> timeout
    sent ──(the link refuses it)──> unsent
    resent ──(the link refuses it)──> sent, or refused if no copy is left

A retry is needed because a broker may acknowledge a request and lose it, and because the requests
of a killed worker are lost. There is at most one retry, with the same bytes. Workers remember
recent requests by id and content, and compute a slow request only once.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Literal

from gatewise_edge.link.messages import Response

#: Shortest wait before a retry, in seconds. The time in a worker may vary by as much.
_MIN_RETRY_S: Final = 0.02
#: Largest factor by which the wait before a retry grows after ambiguous responses.
_MAX_BACKOFF: Final = 4
#: Longest time for which a busy worker can keep a device from sending, in seconds. Without a bound
#: a faulty worker could keep it silent for a day.
_MAX_PAUSE_S: Final = 30.0
#: Largest number of audits in flight, in addition to the bound on requests. So few audits hardly
#: delay live requests.
_MAX_AUDITS: Final = 4

OffloadOutcome = Literal["answered", "refused", "timeout", "unsent"]
OffloadState = Literal["sent", "refused-once", "resent", "answered", "refused", "timeout", "unsent"]


@dataclass(slots=True, eq=False)
class Offload:
    """One request, from its first copy to its outcome.

    Attributes
    ----------
    id : bytes
    model, version : str
    n_rows : int
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
    is_first_refused : bool
        Whether the first copy was refused before the second one was sent.
    response : Response or None
        The answer, or the last error.
    settled_at : float
        Time of the outcome; NaN while the request is open.
    on_answer : callable or None
        Function to call with the answer to an audit or a late request. Such requests get no retry.
    """

    id: bytes
    model: str
    version: str
    n_rows: int
    payload: bytes
    sent_at: float
    deadline: float
    state: OffloadState = "sent"
    retry_at: float = math.inf
    resent_at: float = math.nan
    n_copies_out: int = 1
    is_first_refused: bool = False
    response: Response | None = None
    settled_at: float = math.nan
    on_answer: Callable[[Response], None] | None = None

    @property
    def is_settled(self) -> bool:
        """Whether the request has its outcome."""
        return self.settled_at == self.settled_at  # not NaN

    @property
    def is_resent(self) -> bool:
        """Whether the second copy was sent."""
        return self.resent_at == self.resent_at

    @property
    def wake_at(self) -> float:
        """Time at which to poll the request unless a response arrives before."""
        return self.settled_at if self.is_settled else min(self.retry_at, self.deadline)


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
        Responses to a request that has ended without an answer.
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
    too late after the retry to answer the second copy, it measures the time since the first copy.
    Otherwise it measures nothing (Karn's rule), but the next retry waits longer. Because of this, a
    link that has become slower is measured before retries flood it.
    """

    smoothed_s: float | None = None
    deviation_s: float = 0.0
    backoff: int = 1

    def expected_s(self, time_left_s: float) -> float:
        """Expected round-trip time; before the first measurement, a quarter of the time left.

        The retry is then due after half of the time, and leaves the other half for its response.
        """
        return time_left_s / 4 if self.smoothed_s is None else self.smoothed_s

    def retry_delay_s(self, time_left_s: float) -> float:
        """Seconds to wait for a response before a retry."""
        expected_s = self.expected_s(time_left_s)
        delay_s = max(2 * expected_s, expected_s + 4 * self.deviation_s, _MIN_RETRY_S)
        return self.backoff * delay_s

    def add_round_trip(self, round_trip_s: float) -> None:
        """Update the estimate with one measured round trip."""
        self.backoff = 1
        if self.smoothed_s is None:
            # RFC 6298, section 2.2: SRTT = R and RTTVAR = R / 2.
            self.smoothed_s = round_trip_s
            self.deviation_s = round_trip_s / 2
        else:
            # RFC 6298, section 2.3, with beta = 1/4 and alpha = 1/8:
            # RTTVAR += (|R - SRTT| - RTTVAR) / 4, then SRTT += (R - SRTT) / 8.
            self.deviation_s += (abs(round_trip_s - self.smoothed_s) - self.deviation_s) / 4
            self.smoothed_s += (round_trip_s - self.smoothed_s) / 8

    def add_retried_round_trip(self, since_first_s: float, since_retry_s: float) -> None:
        """Update the estimate with the response to a request that was sent twice."""
        if self.smoothed_s is None:
            self.add_round_trip(since_first_s)
            return
        # The response to the second copy takes from half of the usual round trip to the wait before
        # a retry.
        earliest_s = self.smoothed_s / 2
        latest_s = max(2 * self.smoothed_s, self.smoothed_s + 4 * self.deviation_s)
        if earliest_s <= since_retry_s <= latest_s:
            # The response may answer either copy.
            self.backoff = min(2 * self.backoff, _MAX_BACKOFF)
        else:
            self.add_round_trip(since_first_s)


@dataclass(slots=True)
class OffloadTable:
    """The requests in flight, and the latest settled requests.

    Parameters
    ----------
    max_in_flight : int, default 32
        Largest number of requests in flight; audits are not counted.
    n_remembered : int, default 256
        Number of settled requests to remember, with which late responses are recognised.
    round_trip : RoundTrip
        Measured round-trip time.
    counts : OffloadCounts
        Counts so far.
    on_outcome : callable, optional
        Called with each request when it is settled, and with the time.
    pause_until : float
        Time before which no request should be sent, because the workers are busy.
    """

    max_in_flight: int = 32
    n_remembered: int = 256
    round_trip: RoundTrip = field(default_factory=RoundTrip)
    counts: OffloadCounts = field(default_factory=OffloadCounts)
    on_outcome: Callable[[Offload, float], None] | None = None
    pause_until: float = -math.inf
    _open_offloads: dict[bytes, Offload] = field(default_factory=dict)
    _settled_offloads: OrderedDict[bytes, Offload] = field(default_factory=OrderedDict)

    def __len__(self) -> int:
        return sum(offload.on_answer is None for offload in self._open_offloads.values())

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
    ) -> Offload | None:
        """Register a request before it is sent; return None if too many are in flight."""
        if on_answer is None and len(self) >= self.max_in_flight:
            self.counts.full += 1
            return None
        offload = Offload(
            id, model, version, n_rows, payload, sent_at=now, deadline=deadline, on_answer=on_answer
        )
        self._plan_retry(offload, now + self.round_trip.retry_delay_s(deadline - now))
        self._open_offloads[id] = offload
        self.counts.sent += 1
        return offload

    def admit_audit(self, now: float) -> bool:
        """Settle audits that are past their deadline; return whether another audit may be sent."""
        audits = [
            offload for offload in self._open_offloads.values() if offload.on_answer is not None
        ]
        for offload in audits:
            self.poll(offload, now)
        n_open_audits = sum(not offload.is_settled for offload in audits)
        return n_open_audits < _MAX_AUDITS and now >= self.pause_until

    def poll(self, offload: Offload, now: float) -> bool:
        """End a request at its deadline; return whether its second copy must be sent now."""
        if not offload.is_settled and now >= offload.deadline:
            self._settle(offload, "timeout", now)
        if offload.is_settled or now < offload.retry_at:
            return False
        offload.retry_at = math.inf
        offload.state = "resent"
        offload.resent_at = now
        offload.n_copies_out += 1
        self.counts.retries += 1
        return True

    def receive(self, response: Response, now: float) -> Offload | None:
        """Match a response with its request; return the request if the response settles it.

        Returns None if the response matches no open request, or if it is an error and another copy
        of the request may still get an answer.
        """
        offload = self._open_offloads.get(response.id)
        if offload is None:
            self._count_stray(response, now)
            return None
        if not _matches(response, offload):
            self.counts.mismatched += 1
            return None
        if now >= offload.deadline:
            self._settle(offload, "timeout", now)
            self._count_stray(response, now)
            return offload
        if response.error is None:
            self._measure_round_trip(offload, now)
            offload.response = response
            self._settle(offload, "answered", now)
            return offload
        offload.response = response
        offload.n_copies_out -= 1
        if response.is_retryable and self._await_other_copy(offload, response, now):
            return None
        self._settle(offload, "refused", now)
        return offload

    def withdraw_retry(self, offload: Offload, now: float) -> None:
        """Take back a second copy that the link refused; end the request if no copy is out."""
        self.counts.retries -= 1
        offload.resent_at = math.nan
        offload.n_copies_out -= 1
        if offload.is_settled:
            return
        if offload.n_copies_out:
            offload.state = "sent"
        else:
            self._settle(offload, "refused", now)

    def abandon(self, offload: Offload, now: float) -> None:
        """Settle a request that the link refused."""
        if not offload.is_settled:
            self._settle(offload, "unsent", now)

    def _await_other_copy(self, offload: Offload, refusal: Response, now: float) -> bool:
        """Plan a retry if no copy is out; return whether another copy may still get an answer."""
        wait_s = min(refusal.wait_ms / 1000.0, _MAX_PAUSE_S)
        if wait_s > 0:
            self.pause_until = max(self.pause_until, now + wait_s)
        if offload.n_copies_out == 0 and not offload.is_resent:
            pause_s = self.round_trip.expected_s(offload.deadline - offload.sent_at)
            offload.state = "refused-once"
            offload.is_first_refused = True
            self._plan_retry(offload, now + max(pause_s, wait_s))
        return offload.n_copies_out > 0 or offload.retry_at < math.inf

    def _plan_retry(self, offload: Offload, retry_at: float) -> None:
        expected_s = self.round_trip.expected_s(offload.deadline - offload.sent_at)
        is_in_time = offload.on_answer is None and retry_at + expected_s <= offload.deadline
        offload.retry_at = retry_at if is_in_time else math.inf

    def _measure_round_trip(self, offload: Offload, now: float) -> None:
        """Update the round trip with the answer to a request."""
        if not offload.is_resent:
            self.round_trip.add_round_trip(now - offload.sent_at)
        elif offload.is_first_refused:  # so this answers the second copy
            self.round_trip.add_round_trip(now - offload.resent_at)
        else:
            self.round_trip.add_retried_round_trip(now - offload.sent_at, now - offload.resent_at)

    def _settle(self, offload: Offload, outcome: OffloadOutcome, now: float) -> None:
        """Record the outcome of a request, count it, and forget the oldest settled request."""
        offload.state = outcome
        offload.settled_at = now
        offload.retry_at = math.inf
        offload.payload = b""
        count_name = "timeouts" if outcome == "timeout" else outcome
        setattr(self.counts, count_name, getattr(self.counts, count_name) + 1)
        del self._open_offloads[offload.id]
        self._settled_offloads[offload.id] = offload
        while len(self._settled_offloads) > self.n_remembered:
            self._settled_offloads.popitem(last=False)
        if self.on_outcome is not None:
            self.on_outcome(offload, now)

    def _count_stray(self, response: Response, now: float) -> None:
        """Count a response that settles no request."""
        offload = self._settled_offloads.get(response.id)
        if offload is None:
            self.counts.unknown += 1
        elif not _matches(response, offload):
            self.counts.mismatched += 1
        elif offload.state == "answered":
            self.counts.duplicates += 1
        else:
            self.counts.late += 1
            if response.error is None:
                # Measure it, because a link slower than the deadline would never be measured.
                self._measure_round_trip(offload, now)


def _matches(response: Response, offload: Offload) -> bool:
    """Whether model, version and row count match; an error may lack the model."""
    if response.error is not None and not response.model:
        return True
    if (response.model, response.version) != (offload.model, offload.version):
        return False
    return response.error is not None or response.n_rows == offload.n_rows
