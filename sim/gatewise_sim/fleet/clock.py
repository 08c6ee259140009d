"""Virtual time: one heap of events, one clock. Simultaneous events happen in the order entered."""

from __future__ import annotations

import math
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any


class Clock:
    """Seconds that pass only from one event to the next.

    >>> clock, done = Clock(), []
    >>> clock.at(2.0, done.append, "b")
    >>> clock.at(1.0, done.append, "a")
    >>> clock.at(2.0, done.append, "c")
    >>> clock.run()
    >>> done, clock.now, clock.events
    (['a', 'b', 'c'], 2.0, 3)
    """

    def __init__(self) -> None:
        self.now = 0.0
        #: Number of events that have happened.
        self.events = 0
        self._heap: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []
        self._entries = 0

    def at(self, when: float, action: Callable[..., object], *args: Any) -> None:
        """Schedule an event; one in the past happens now, after the events that are due."""
        self._entries += 1
        now = self.now
        heappush(self._heap, (when if when > now else now, self._entries, action, args))

    def run(self, until: float = math.inf) -> None:
        """Let all events before `until` (s) happen."""
        heap = self._heap
        while heap and heap[0][0] < until:
            self.now, _, action, args = heappop(heap)
            self.events += 1
            action(*args)
        if until < math.inf:
            self.now = max(self.now, until)
