"""The first answers of a new version, and whether it stays."""

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
    """Counts the first answers of a version.

    It fails at the first answer that came past its deadline, or unexpected error in place of one;
    or if none of the first answers was one. A :class:`SensorError` or a row that does not fit is
    no fault of a model, and no merit.

    Parameters
    ----------
    answers : int
        Outcomes to look at; with 0 every version passes.
    decided : callable
        Called once, as ``decided(verdict, why)``, on the thread of the answer that decides.
    clock : callable, default time.monotonic
        Seconds.
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
            self._decided("passed", "no trial is asked for")

    def end(self) -> None:
        """Count no more."""
        with self._lock:
            self._running = False

    def observe(self, told: Answer | Exception) -> None:
        """Take in the outcome of an instance, on any thread."""
        if not self._running:
            return
        with self._lock:
            if not self._running:
                return
            verdict, why = self._judge(told)
            self._running = verdict is None
        if verdict is not None:
            self._decided(verdict, why)

    def _judge(self, told: Answer | Exception) -> tuple[Verdict | None, str]:
        if isinstance(told, Answer):
            if self._clock() - told.latency_ms / 1000.0 < self._since:
                return None, ""
            if told.latency_ms > self._deadline:
                late = told.latency_ms - self._deadline
                return "failed", f"an answer came {late:.1f} ms past its deadline"
            self._good += 1
        elif not isinstance(told, SensorError | InputError):
            return "failed", f"{type(told).__name__}: {told}"
        self._seen += 1
        if self._seen < self._answers:
            return None, ""
        if not self._good:
            return "failed", f"no answer to its first {self._seen} instances"
        return "passed", f"{self._good} answers in time"
