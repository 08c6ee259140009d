"""The requests that a device has out: deadlines, one retry, exactly one outcome each.

Pure bookkeeping: no clock, no thread, no socket. Times are seconds on any steady clock and are
passed in, so that a device on a real link and a simulator in virtual time run the same code::

    item = offloads.open(request, payload, now, deadline)    # None: too many are out already
    ... hand item.payload to the link ...
    offloads.poll(item, now)           # DONE, RESEND (hand the payload over once more) or WAIT
    offloads.receive(response, now)    # the item that this response settles, if any

Why the device retries at all: a broker may acknowledge a request and lose it, and a worker that
is killed takes its unanswered requests with it. Why only once, with the very same bytes: workers
remember recent requests by id and content, so a request that was merely slow is answered twice
but computed once.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Literal

from gatewise_edge.link.wire import Request, Response

__all__ = [
    "DONE",
    "RESEND",
    "WAIT",
    "OffloadCounts",
    "Offloads",
    "Outcome",
    "OutcomeKind",
    "Outstanding",
    "RoundTrip",
]

Step = Literal["done", "resend", "wait"]
DONE: Final[Step] = "done"
RESEND: Final[Step] = "resend"
WAIT: Final[Step] = "wait"

#: A retry waits at least this long, in seconds: below it, a worker's own time is the noise.
_SHORTEST_RETRY: Final = 0.02
_LARGEST_BACKOFF: Final = 4


#: ``full`` and ``deadline`` are requests that were never opened.
OutcomeKind = Literal["answered", "refused", "timeout", "unsent", "full", "deadline"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a request ended.

    Attributes
    ----------
    kind : {"answered", "refused", "timeout", "unsent", "full", "deadline"}
    response : Response or None
        The answer, or the last error.
    seconds : float
        From opening to the outcome.
    """

    kind: OutcomeKind
    response: Response | None
    seconds: float


@dataclass(slots=True, eq=False)
class Outstanding:
    """One request that is out. Times are in seconds."""

    id: bytes
    model: str
    version: str
    rows: int
    payload: bytes
    opened: float
    deadline: float
    retry_at: float = math.inf
    retries: int = 0
    resent: float = math.nan
    #: Copies on their way that no error has come back for.
    copies: int = 1
    #: Bytes of the response that settled it.
    received: int = 0
    error: Response | None = None
    outcome: Outcome | None = None

    @property
    def wake_at(self) -> float:
        """When to poll next, if nothing comes before."""
        return min(self.retry_at, self.deadline)


@dataclass(slots=True)
class OffloadCounts:
    """What became of requests and responses.

    Attributes
    ----------
    sent, retries : int
        Requests opened and handed to the link, and how many of them a second time.
    answered, refused, timeouts, unsent : int
        Outcomes; they sum to `sent` once nothing is out (an unsent one was opened in vain).
    full : int
        Requests not opened since too many were out.
    late, duplicates, unknown, mismatched, invalid : int
        Responses not used: after the deadline; to a request answered already; to no request;
        with another model, version or row count; unreadable.
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
    """Smoothed round-trip time in seconds, and how long to wait before asking again.

    Jacobson's estimator with the gains of RFC 6298. A retry waits twice the round trip, or for
    the mean plus four deviations where the link (or a busy machine) varies by more than that.

    The response to a retried request may be to either copy. One that comes too soon or too late
    after the retry to be the retry's is the first one's, and measures from there. Any other
    says nothing (Karn), but the next retry waits longer: a link that became slower is measured
    before it drowns in retries.
    """

    smoothed: float | None = None
    deviation: float = 0.0
    backoff: int = 1

    def expected(self, budget: float) -> float:
        """Seconds that a round trip is expected to take; a quarter of `budget` at first."""
        return budget / 4 if self.smoothed is None else self.smoothed

    def patience(self, budget: float) -> float:
        """Seconds to wait for a response before asking again."""
        expected = self.expected(budget)
        longest = max(2 * expected, expected + 4 * self.deviation, _SHORTEST_RETRY)
        return self.backoff * longest

    def update(self, seconds: float) -> None:
        """Take in one round trip."""
        self.backoff = 1
        if self.smoothed is None:
            self.smoothed, self.deviation = seconds, seconds / 2
        else:
            self.deviation += (abs(seconds - self.smoothed) - self.deviation) / 4
            self.smoothed += (seconds - self.smoothed) / 8

    def update_retried(self, since_first: float, since_retry: float) -> None:
        """Take in the response to a request that was sent twice."""
        usual = self.smoothed
        if usual is None or not usual / 2 <= since_retry <= max(
            2 * usual, usual + 4 * self.deviation
        ):
            self.update(since_first)
        else:
            self.backoff = min(2 * self.backoff, _LARGEST_BACKOFF)


@dataclass(slots=True)
class Offloads:
    """All requests that are out.

    Parameters
    ----------
    limit : int, default 32
        Requests out at a time, at most.
    remember : int, default 256
        Settled ids remembered, to tell a late response from an unknown one.
    on_outcome : callable, optional
        Gets each request as it is settled, and the time.
    """

    limit: int = 32
    remember: int = 256
    round_trip: RoundTrip = field(default_factory=RoundTrip)
    counts: OffloadCounts = field(default_factory=OffloadCounts)
    on_outcome: Callable[[Outstanding, float], None] | None = None
    _out: dict[bytes, Outstanding] = field(default_factory=dict)
    _settled: OrderedDict[bytes, Outstanding] = field(default_factory=OrderedDict)

    def __len__(self) -> int:
        return len(self._out)

    def open(
        self, request: Request, payload: bytes, now: float, deadline: float
    ) -> Outstanding | None:
        """Enter a request that is about to be sent; None if `limit` are out."""
        if len(self._out) >= self.limit:
            self.counts.full += 1
            return None
        item = Outstanding(
            id=request.id,
            model=request.model,
            version=request.version,
            rows=request.rows,
            payload=payload,
            opened=now,
            deadline=deadline,
        )
        self._plan_retry(item, now + self.round_trip.patience(deadline - now))
        self._out[item.id] = item
        self.counts.sent += 1
        return item

    def poll(self, item: Outstanding, now: float) -> Step:
        """Say what to do about `item` at the time `now`."""
        if item.outcome is None and now >= item.deadline:
            self._settle(item, "timeout", item.error, now)
        if item.outcome is not None:
            return DONE
        if now >= item.retry_at:
            item.retry_at = math.inf
            item.resent = now
            item.retries += 1
            item.copies += 1
            self.counts.retries += 1
            return RESEND
        return WAIT

    def receive(self, response: Response, now: float) -> Outstanding | None:
        """Take in a response.

        Returns
        -------
        Outstanding or None
            The request that it settled; None if it was counted and not used, or if a retry
            may still do better.
        """
        item = self._out.get(response.id)
        if item is None:
            self._count_stray(response, now)
            return None
        if not _matches(response, item):
            self.counts.mismatched += 1
            return None
        if now >= item.deadline:
            self._settle(item, "timeout", item.error, now)
            self._count_stray(response, now)
            return item
        if response.error is None:
            self._measure(item, now)
            self._settle(item, "answered", response, now)
            return item
        item.error = response
        item.copies -= 1
        if response.retryable:
            if item.copies == 0 and item.retries == 0:
                pause = self.round_trip.expected(item.deadline - item.opened)
                self._plan_retry(item, now + pause)
            if item.copies > 0 or item.retry_at < math.inf:
                return None
        self._settle(item, "refused", response, now)
        return item

    def abandon(self, item: Outstanding, now: float) -> None:
        """Settle a request that the link did not take."""
        if item.outcome is None:
            self._settle(item, "unsent", None, now)

    def _plan_retry(self, item: Outstanding, at: float) -> None:
        expected = self.round_trip.expected(item.deadline - item.opened)
        item.retry_at = at if at + expected <= item.deadline else math.inf

    def _measure(self, item: Outstanding, now: float) -> None:
        if item.retries == 0:
            self.round_trip.update(now - item.opened)
        elif item.error is not None:
            # The first copy was refused, so this is the second one's.
            self.round_trip.update(now - item.resent)
        else:
            self.round_trip.update_retried(now - item.opened, now - item.resent)

    def _settle(
        self,
        item: Outstanding,
        kind: Literal["answered", "refused", "timeout", "unsent"],
        response: Response | None,
        now: float,
    ) -> None:
        item.outcome = Outcome(kind, response, now - item.opened)
        item.retry_at = math.inf
        name = "timeouts" if kind == "timeout" else kind
        setattr(self.counts, name, getattr(self.counts, name) + 1)
        del self._out[item.id]
        self._settled[item.id] = item
        while len(self._settled) > self.remember:
            self._settled.popitem(last=False)
        if self.on_outcome is not None:
            self.on_outcome(item, now)

    def _count_stray(self, response: Response, now: float) -> None:
        item = self._settled.get(response.id)
        if item is None or item.outcome is None:
            self.counts.unknown += 1
        elif not _matches(response, item):
            self.counts.mismatched += 1
        elif item.outcome.kind == "answered":
            self.counts.duplicates += 1
        else:
            self.counts.late += 1
            if response.error is None:
                # Without this a link slower than the deadline would never be measured.
                self._measure(item, now)


def _matches(response: Response, item: Outstanding) -> bool:
    """Same model, version and row count; an error may not know the model."""
    if response.error is not None and not response.model:
        return True
    if (response.model, response.version) != (item.model, item.version):
        return False
    return response.error is not None or response.rows == item.rows
