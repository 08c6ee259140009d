"""The trial of a new version: its first answers decide whether it stays."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Literal

from gatewise.errors import InputError
from gatewise_edge.device.answer import Answer
from gatewise_edge.errors import SensorError

__all__ = ["Trial", "Verdict"]

Verdict = Literal["passed", "failed"]


class Trial:
    """Check the first answers of a version.

    It fails at the first answer past its deadline or unexpected error, or if none of the first
    instances was answered. A :class:`SensorError` or a row that does not fit counts neither for a
    model nor against it. With 0 answers every version passes. `decided` is called once, as
    ``decided(verdict, why)``, on the thread of the answer that decides.
    """

    def __init__(
        self,
        answers: int,
        decided: Callable[[Verdict, str], None],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._answers = answers
        self._decided = decided
        self._clock = clock
        self._lock = threading.Lock()
        self._running = False
        self._seen = self._good = 0
        self._since = self._deadline = 0.0

    def begin(self, deadline_ms: float) -> None:
        """Count from now on; an instance begun before is another version's."""
        with self._lock:
            self._running, self._seen, self._good = self._answers > 0, 0, 0
            self._since, self._deadline = self._clock(), deadline_ms
        if self._answers <= 0:
            self._decided("passed", "no trial is configured")

    def end(self) -> None:
        """Count no more."""
        with self._lock:
            self._running = False

    def observe(self, end: Answer | Exception) -> None:
        """Count an instance's answer or error, on any thread."""
        if not self._running:
            return
        with self._lock:
            if not self._running:
                return
            verdict, why = self._verdict(end)
            self._running = verdict is None
        if verdict is not None:
            self._decided(verdict, why)

    def _verdict(self, end: Answer | Exception) -> tuple[Verdict | None, str]:
        if isinstance(end, Answer):
            if self._clock() - end.latency_ms / 1000.0 < self._since:
                return None, ""
            if end.latency_ms > self._deadline:
                late = end.latency_ms - self._deadline
                return "failed", f"an answer came {late:.1f} ms past its deadline"
            self._good += 1
        elif not isinstance(end, SensorError | InputError):
            return "failed", f"{type(end).__name__}: {end}"
        self._seen += 1
        if self._seen < self._answers:
            return None, ""
        if not self._good:
            return "failed", f"no answer to its first {self._seen} instances"
        return "passed", f"{self._good} answers in time"
