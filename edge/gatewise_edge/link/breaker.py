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
from dataclasses import dataclass, field
from typing import Literal

from gatewise.errors import InputError


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


@dataclass(slots=True)
class Breaker:
    """A circuit breaker, which decides whether a request may be sent.

    Parameters
    ----------
    max_failures : int, default 5
        Number of requests in a row without a reply that opens the breaker.
    max_silent_share : float, default 0.8
        Share of the latest `n_recent` requests without a reply that also opens the breaker.
    n_recent : int, default 20
        Number of latest requests in this share.
    first_pause_s : float, default 1
        Mean length of the first pause in seconds. Each further pause is twice as long.
    max_pause_s : float, default 30
        Mean length of the longest pause in seconds.
    draw : callable, default random.random
        Draws from [0, 1). A pause lasts ``mean * (0.5 + draw())`` seconds.
    counts : BreakerCounts
        Counts so far.

    Raises
    ------
    InputError
        If a setting is out of range.

    Examples
    --------
    >>> breaker = Breaker(max_failures=2, first_pause_s=1.0, draw=lambda: 0.5)
    >>> for now in (1.0, 2.0):
    ...     breaker.record(False, sent_at=now - 0.5, now=now)
    >>> breaker.state, breaker.admit(2.5, probe_deadline=3.0)
    ('open', False)
    >>> breaker.admit(3.0, probe_deadline=3.5)
    True
    >>> breaker.record(True, sent_at=3.0, now=3.2)
    >>> breaker.state
    'closed'
    """

    max_failures: int = 5
    max_silent_share: float = 0.8
    n_recent: int = 20
    first_pause_s: float = 1.0
    max_pause_s: float = 30.0
    draw: Callable[[], float] = random.random
    counts: BreakerCounts = field(default_factory=BreakerCounts)
    state: Literal["closed", "open", "half-open"] = field(default="closed", init=False)
    _silences: deque[bool] = field(default_factory=deque, init=False)
    _n_silent_in_a_row: int = field(default=0, init=False)
    _n_openings: int = field(default=0, init=False)
    _paused_until: float = field(default=-math.inf, init=False)
    #: Time of the last change of the state. Earlier requests do not count.
    _changed_at: float = field(default=-math.inf, init=False)

    def __post_init__(self) -> None:
        for setting_name in ("max_failures", "n_recent"):
            count = getattr(self, setting_name)
            if count < 1:
                raise InputError(f"breaker: {setting_name} is {count}; it must be at least 1")
        if not 0 < self.max_silent_share <= 1:
            raise InputError(f"breaker: share is {self.max_silent_share}; it must lie in (0, 1]")
        if not 0 < self.first_pause_s <= self.max_pause_s < math.inf:
            raise InputError(
                f"breaker: first_pause_s {self.first_pause_s} and max_pause_s {self.max_pause_s} "
                "must be positive, and the first pause must not be longer than the longest"
            )
        self._silences = deque(maxlen=self.n_recent)

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
            is_full = len(self._silences) == self.n_recent
            is_mostly_silent = (
                is_full and sum(self._silences) >= self.max_silent_share * self.n_recent
            )
            if self._n_silent_in_a_row >= self.max_failures or is_mostly_silent:
                self.counts.breaker_opened += 1
                self._open(now)
        elif self.state == "half-open" and sent_at >= self._changed_at:
            self._open(now)

    def _open(self, now: float) -> None:
        # The bound on the exponent keeps the power a finite number.
        mean_pause_s = min(self.max_pause_s, self.first_pause_s * 2.0 ** min(self._n_openings, 60))
        self._n_openings += 1
        self.state = "open"
        self._changed_at = now
        self._paused_until = now + mean_pause_s * (0.5 + self.draw())

    def _close(self, now: float) -> None:
        self.state = "closed"
        self._changed_at = now
        self._n_openings = self._n_silent_in_a_row = 0
        self._silences.clear()
