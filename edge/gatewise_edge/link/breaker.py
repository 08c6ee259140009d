"""The circuit breaker, which blocks requests while the cloud does not reply.

While it is open, hard instances get a fallback at once, and the device does not acquire features
that only the cloud reads. Times are in seconds on any monotonic clock.

::

    closed ──(too many requests without any reply)──> open ──(the pause is over)──> half-open
      ^                                                ^                                │
      └──────────────(a reply, even an error)──────────┼──── one real request, a probe ─┤
                                                       └──── no reply: a longer pause ──┘

A request fails only if it gets no reply by its deadline or the link refuses it. An error such as
``busy``, ``no-model`` or ``failed`` is a reply, because a worker that is busy now may have room for
the next request. Pauses grow. They are drawn at random, because the devices of a fleet must not
send their probes all at once.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

#: Number of requests in a row without a reply that opens the breaker.
MAX_FAILURES: Final = 5
#: Number of latest requests, and the share of them without a reply that also opens it.
N_RECENT: Final = 20
MAX_SILENT_SHARE: Final = 0.8
#: Mean lengths of the first and of the longest pause, in seconds.
_FIRST_PAUSE_S: Final = 1.0
_MAX_PAUSE_S: Final = 30.0


@dataclass(slots=True)
class BreakerCounts:
    """Counts of a breaker.

    Attributes
    ----------
    breaker_opened : int
        Changes from closed to open.
    breaker_probes : int
        Requests admitted to test whether the cloud replies again.
    breaker_blocked : int
        Blocked requests.
    """

    breaker_opened: int = 0
    breaker_probes: int = 0
    breaker_blocked: int = 0


class Breaker:
    """A circuit breaker, which decides whether a request may be sent.

    :data:`MAX_FAILURES` requests in a row without a reply open it, and so does a share of
    :data:`MAX_SILENT_SHARE` of the latest :data:`N_RECENT` requests. Each pause is twice as long as
    the last, up to a bound: ``mean * (0.5 + draw())`` seconds. `draw` draws from [0, 1). `counts`
    are the counts so far.

    >>> breaker = Breaker(draw=lambda: 0.5)
    >>> for now in range(MAX_FAILURES):
    ...     breaker.record(False, sent_at=now - 0.5, now=now)
    >>> breaker.state, breaker.admit(4.5, probe_deadline=5.0)
    ('open', False)
    >>> breaker.admit(5.0, probe_deadline=5.5)
    True
    >>> breaker.record(True, sent_at=5.0, now=5.2)
    >>> breaker.state
    'closed'
    """

    def __init__(
        self,
        *,
        draw: Callable[[], float] = random.random,
        counts: BreakerCounts | None = None,
    ) -> None:
        self.draw = draw
        self.counts = BreakerCounts() if counts is None else counts
        self.state: Literal["closed", "open", "half-open"] = "closed"
        self._silences: deque[bool] = deque(maxlen=N_RECENT)
        self._n_silent_in_a_row = 0
        self._n_openings = 0
        self._paused_until = -math.inf
        #: Time of the last change of the state. Earlier requests do not count.
        self._changed_at = -math.inf

    def admit(self, now: float, probe_deadline: float) -> bool:
        """Return whether a request may be sent at `now`.

        A probe blocks other requests until its outcome is known, at most until `probe_deadline`.
        """
        if self.state == "closed":
            return True
        if now < self._paused_until:
            self.counts.breaker_blocked += 1
            return False
        if self.state == "open":
            self.state = "half-open"
            self._changed_at = now
        self._paused_until = probe_deadline
        self.counts.breaker_probes += 1
        return True

    def release(self, now: float) -> None:
        """Undo, at `now`, the admission of a request that was not sent."""
        if self.state == "half-open":
            self.counts.breaker_probes -= 1
            self._paused_until = now

    def record(self, has_reply: bool, *, sent_at: float, now: float) -> None:
        """Record whether a request `has_reply`; an error is a reply.

        `sent_at` is the time of the request, and `now` the time of the reply or of the deadline.
        """
        if has_reply:
            # The reply shows that the cloud works now, whenever the request was sent.
            self._n_silent_in_a_row = 0
            self._silences.append(False)
            if self.state != "closed":
                self._close(now)
            return
        if self.state == "closed":
            if sent_at < self._changed_at:
                return
            self._n_silent_in_a_row += 1
            self._silences.append(True)
            is_full = len(self._silences) == N_RECENT
            is_mostly_silent = is_full and sum(self._silences) >= MAX_SILENT_SHARE * N_RECENT
            if self._n_silent_in_a_row >= MAX_FAILURES or is_mostly_silent:
                self.counts.breaker_opened += 1
                self._open(now)
        elif self.state == "half-open" and sent_at >= self._changed_at:
            self._open(now)

    def _open(self, now: float) -> None:
        # The bound on the exponent keeps the power a finite number.
        mean_pause_s = min(_MAX_PAUSE_S, _FIRST_PAUSE_S * 2.0 ** min(self._n_openings, 60))
        self._n_openings += 1
        self.state = "open"
        self._changed_at = now
        self._paused_until = now + mean_pause_s * (0.5 + self.draw())

    def _close(self, now: float) -> None:
        self.state = "closed"
        self._changed_at = now
        self._n_openings = self._n_silent_in_a_row = 0
        self._silences.clear()
