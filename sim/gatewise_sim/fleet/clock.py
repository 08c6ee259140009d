"""Virtual time: a clock with a heap of events.

Simultaneous events happen in the order in which they were scheduled.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any


class Clock:
    """Clock that shows the time of the latest event, or of the end of a run, in s.

    >>> clock = Clock()
    >>> letters = []
    >>> clock.call_at(2.0, letters.append, "b")
    >>> clock.call_at(1.0, letters.append, "a")
    >>> clock.call_at(2.0, letters.append, "c")
    >>> clock.run()
    >>> letters, clock.now
    (['a', 'b', 'c'], 2.0)
    """

    def __init__(self) -> None:
        self.now = 0.0
        #: Time, number, action and arguments of each event to come.
        self._heap: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []
        self._n_scheduled = 0

    def call_at(self, time: float, action: Callable[..., object], *args: Any) -> None:
        """Schedule an event at `time` (s), or now if that time is past."""
        self._n_scheduled += 1
        now = self.now
        # A comparison takes less time than a call of max().
        event_time = time if time > now else now
        heappush(self._heap, (event_time, self._n_scheduled, action, args))

    def run(self, until: float = math.inf) -> None:
        """Run all events before the time `until`, in s; move the clock to a finite `until`."""
        heap = self._heap
        while heap and heap[0][0] < until:
            self.now, _, action, args = heappop(heap)
            action(*args)
        if until < math.inf:
            self.now = max(self.now, until)
