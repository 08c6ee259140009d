"""The circuit breaker, which blocks requests while the cloud does not reply.

While it is open, hard instances get a fallback at once, and the features that only the cloud reads
are not acquired. Pure logic without clock or thread; times are seconds on any monotonic clock.

::

    closed ──(too many requests without any reply)──> open ──(the pause is over)──> half-open
      ^                                                ^                                │
      └──────────────(a reply, even an error)──────────┼──── one real request, a probe ─┤
                                                       └──── no reply: a longer pause ──┘

A request fails only if it gets no reply by its deadline or the link refuses it. An error such as
``busy``, ``no-model`` or ``failed`` is a reply, because a worker that is busy now may have room for
the next request. Pauses grow and are drawn at random, so that the devices of a fleet do not send
their probes all at once.
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
    """Decide whether a request may be sent.

    Parameters
    ----------
    failures : int, default 5
        Number of requests in a row without a reply that opens the breaker.
    share : float, default 0.8
        The breaker also opens when this share of the latest `window` requests got no reply.
    window : int, default 20
        Number of the latest requests that `share` refers to.
    pause : float, default 1
        Mean length of the first pause in seconds. Each further pause is twice as long.
    longest : float, default 30
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
    >>> breaker = Breaker(failures=2, pause=1.0, draw=lambda: 0.5)
    >>> for now in (1.0, 2.0):
    ...     breaker.record(False, sent=now - 0.5, now=now)
    >>> breaker.state, breaker.admit(2.5, until=3.0), breaker.admit(3.0, until=3.5)
    ('open', False, True)
    >>> breaker.record(True, sent=3.0, now=3.2)
    >>> breaker.state
    'closed'
    """

    failures: int = 5
    share: float = 0.8
    window: int = 20
    pause: float = 1.0
    longest: float = 30.0
    draw: Callable[[], float] = random.random
    counts: BreakerCounts = field(default_factory=BreakerCounts)
    state: Literal["closed", "open", "half-open"] = field(default="closed", init=False)
    _silent: deque[bool] = field(default_factory=deque, init=False)
    _n_silent_in_a_row: int = field(default=0, init=False)
    _n_openings: int = field(default=0, init=False)
    _paused_until: float = field(default=-math.inf, init=False)
    #: Requests sent before the state last changed do not count.
    _changed_at: float = field(default=-math.inf, init=False)

    def __post_init__(self) -> None:
        for name in ("failures", "window"):
            if getattr(self, name) < 1:
                raise InputError(f"breaker: {name} is {getattr(self, name)}; it must be at least 1")
        if not 0 < self.share <= 1:
            raise InputError(f"breaker: share is {self.share}; it must lie in (0, 1]")
        if not 0 < self.pause <= self.longest < math.inf:
            raise InputError(
                f"breaker: pause {self.pause} and longest {self.longest} must be positive seconds, "
                "and longest must not be below pause"
            )
        self._silent = deque(maxlen=self.window)

    def admit(self, now: float, until: float) -> bool:
        """Return whether a request may be sent at `now`.

        A probe blocks other requests `until` its outcome is known at the latest.
        """
        if self.state == "closed":
            return True
        if now < self._paused_until:
            self.counts.breaker_blocked += 1
            return False
        if self.state == "open":
            self.state = "half-open"
            self._changed_at = now
        self._paused_until = until
        self.counts.breaker_probes += 1
        return True

    def release(self, now: float) -> None:
        """Undo, at `now`, the admission of a request that was not sent."""
        if self.state == "half-open":
            self.counts.breaker_probes -= 1
            self._paused_until = now

    def record(self, replied: bool, *, sent: float, now: float) -> None:
        """Record whether a request was `replied` to; an error is a reply.

        `sent` is the time of the request, and `now` the time of the reply or of the deadline.
        """
        if replied:
            # The reply shows that the cloud works now, even if the request is old.
            self._n_silent_in_a_row = 0
            self._silent.append(False)
            if self.state != "closed":
                self._close(now)
            return
        if self.state == "closed":
            if sent < self._changed_at:
                return
            self._n_silent_in_a_row += 1
            self._silent.append(True)
            is_full = len(self._silent) == self.window
            is_mostly_silent = is_full and sum(self._silent) >= self.share * self.window
            if self._n_silent_in_a_row >= self.failures or is_mostly_silent:
                self.counts.breaker_opened += 1
                self._open(now)
        elif self.state == "half-open" and sent >= self._changed_at:
            self._open(now)

    def _open(self, now: float) -> None:
        mean = min(self.longest, self.pause * 2.0 ** min(self._n_openings, 60))
        self._n_openings += 1
        self.state = "open"
        self._changed_at = now
        self._paused_until = now + mean * (0.5 + self.draw())

    def _close(self, now: float) -> None:
        self.state = "closed"
        self._changed_at = now
        self._n_openings = self._n_silent_in_a_row = 0
        self._silent.clear()
