"""A circuit breaker that costs nothing until it has something to do."""

from __future__ import annotations

from collections.abc import Callable

from gatewise_edge.link.breaker import Breaker, BreakerCounts

__all__ = ["LazyBreaker"]


class LazyBreaker:
    """A breaker that is made when a request first goes without a reply: most never are.

    Until then it is closed, and only the number of replies counts.

    Parameters
    ----------
    draw : callable
    counts : BreakerCounts
        As of :class:`gatewise_edge.link.breaker.Breaker`.
    """

    __slots__ = ("_breaker", "_counts", "_draw", "_replies")

    def __init__(self, draw: Callable[[], float], counts: BreakerCounts) -> None:
        self._draw = draw
        self._counts = counts
        self._replies = 0
        self._breaker: Breaker | None = None

    def admit(self, now: float, until: float) -> bool:
        """See :meth:`gatewise_edge.link.breaker.Breaker.admit`."""
        return self._breaker is None or self._breaker.admit(now, until)

    def release(self, now: float) -> None:
        """See :meth:`gatewise_edge.link.breaker.Breaker.release`."""
        if self._breaker is not None:
            self._breaker.release(now)

    def record(self, replied: bool, *, asked: float, now: float) -> None:
        """See :meth:`gatewise_edge.link.breaker.Breaker.record`."""
        breaker = self._breaker
        if breaker is None:
            if replied:
                self._replies += 1
                return
            breaker = self._breaker = Breaker(draw=self._draw, counts=self._counts)
            for _ in range(min(self._replies, breaker.window)):
                breaker.record(True, asked=now, now=now)
        breaker.record(replied, asked=asked, now=now)
