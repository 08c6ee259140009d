"""The circuit breaker: no requests while the cloud does not reply.

While it is open, hard instances are fallbacks at once and the features that only the cloud reads
are not acquired. Pure logic: no clock, no thread; times are seconds on any steady clock.

::

    closed ──(too many requests without any reply)──> open ──(the pause is over)──> half-open
      ^                                                ^                                │
      └──────────────(a reply, even an error)──────────┼──── one real request, a probe ─┤
                                                       └──── no reply: a longer pause ──┘

Only silence counts: a request without a reply by its deadline, or that the link did not take. An
error such as ``busy``, ``no-model`` or ``failed`` is a reply: a worker busy now may have room for
the next request. A slow reply in time is a reply. Pauses grow and are jittered, so that a fleet
does not come back in step.
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
        How often it opened from closed.
    breaker_probes : int
        Requests let through to see whether the cloud is back.
    breaker_blocked : int
        Requests that it blocked.
    """

    breaker_opened: int = 0
    breaker_probes: int = 0
    breaker_blocked: int = 0


@dataclass(slots=True)
class Breaker:
    """Decide whether a request may be made.

    Parameters
    ----------
    failures : int, default 5
        Requests in a row without a reply that open it.
    share, window : float and int, default 0.8 and 20
        It also opens when this share of the latest requests had no reply.
    pause, longest : float, default 1 and 30
        Mean seconds of the first pause, and of the longest; each is twice as long as the one
        before.
    draw : callable, default random.random
        Draws from [0, 1): a pause lasts ``mean * (0.5 + draw())`` seconds.
    counts : BreakerCounts
        Counts of its states.

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
                "the longest not below the first"
            )
        self._silent = deque(maxlen=self.window)

    def admit(self, now: float, until: float) -> bool:
        """Whether a request may be made at `now`. All times are in steady seconds.

        A probe blocks others `until` its outcome is known.
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
        """Take back at `now` an admitted request that was not made after all."""
        if self.state == "half-open":
            self.counts.breaker_probes -= 1
            self._paused_until = now

    def record(self, replied: bool, *, sent: float, now: float) -> None:
        """Record at `now` whether a request `sent` then was `replied` to; an error is a reply."""
        if replied:
            # However old the request is, the reply came now.
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
