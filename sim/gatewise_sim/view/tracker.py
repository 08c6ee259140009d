"""The watch that an engine is given: keeps the state, for whoever wants to see it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from gatewise_sim.fleet.progress import Snapshot
from gatewise_sim.view.state import Picture, State

__all__ = ["Tracker"]


class Tracker:
    """Takes news in one thread and gives pictures to others.

    Parameters
    ----------
    clock : callable, optional
        Gives seconds that never go back; the process's by default.
    news : callable, optional
        Called after every piece of news with (picture, clock's reading), in the engine's thread.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.monotonic,
        news: Callable[[Picture, float], None] | None = None,
    ) -> None:
        self._clock, self._news = clock, news
        self._state = State()
        self._lock = threading.Lock()

    def picture(self) -> Picture:
        """Show how all stands now."""
        with self._lock:
            return self._state.picture(self._clock())

    def begin(self, title: str, seconds: float, expected: int | None) -> None:
        """As :meth:`gatewise_sim.fleet.progress.ProgressListener.begin`."""
        with self._lock:
            self._state.begin(title, seconds, expected, self._clock())
        self._told()

    def policy(self, key: str, name: str) -> None:
        """As :meth:`gatewise_sim.fleet.progress.ProgressListener.policy`."""
        with self._lock:
            self._state.leg(key, name, self._clock())
        self._told()

    def advance(self, snapshot: Snapshot) -> None:
        """As :meth:`gatewise_sim.fleet.progress.ProgressListener.advance`."""
        with self._lock:
            self._state.update(snapshot, self._clock())
        self._told()

    def fault(self, what: str, up: bool, at: float) -> None:
        """As :meth:`gatewise_sim.fleet.progress.ProgressListener.fault`."""
        with self._lock:
            self._state.fault(what, up, at)
        self._told()

    def end(self, text: str) -> None:
        """As :meth:`gatewise_sim.fleet.progress.ProgressListener.end`."""
        with self._lock:
            self._state.end(text, self._clock())
        self._told()

    def _told(self) -> None:
        if self._news is not None:
            self._news(self.picture(), self._clock())
