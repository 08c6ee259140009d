"""Virtual time: one heap, one clock. What is due first happens first; ties in the order entered."""

from __future__ import annotations

import math
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any


class Clock:
    """Seconds that pass only from one event to the next, and the number of events so far.

    >>> clock, done = Clock(), []
    >>> clock.at(2.0, done.append, "b")
    >>> clock.at(1.0, done.append, "a")
    >>> clock.at(2.0, done.append, "c")
    >>> clock.run()
    >>> done, clock.now, clock.events
    (['a', 'b', 'c'], 2.0, 3)
    """

    def __init__(self, now: float = 0.0) -> None:
        self.now = now
        self.events = 0
        self._heap: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []
        self._entered = 0

    def __call__(self) -> float:
        """Time in seconds, for code that takes a clock as an argument."""
        return self.now

    def at(self, when: float, do: Callable[..., object], *args: Any) -> None:
        """Schedule an event; one in the past happens at once, after those that are due already."""
        self._entered += 1
        now = self.now
        heappush(self._heap, (when if when > now else now, self._entered, do, args))

    def run(self, until: float = math.inf) -> None:
        """Let all events before `until` (s) happen."""
        heap, events = self._heap, 0
        try:
            while heap and heap[0][0] < until:
                self.now, _, do, args = heappop(heap)
                events += 1
                do(*args)
        finally:
            self.events += events
        if until < math.inf:
            self.now = max(self.now, until)
