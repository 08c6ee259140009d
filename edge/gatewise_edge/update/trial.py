"""The trial of a new version: its first answers decide whether it stays."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final, Literal

from gatewise_edge.device.answer import Answer

#: Answers of the version before that a new one is compared with.
_REMEMBERED: Final = 200
#: Number of bad answers from which a trial may fail.
_FEWEST_BAD: Final = 3
#: Share of bad answers that a version may have, whatever the one before had.
_TOLERATED: Final = 0.2


class Trial:
    """Check the first answers of a version.

    It passes after `answers` answers in time and `seconds` of running time, summed over restarts.
    Late answers and errors of any class are bad: from the third on it fails if they are more than
    a fifth of all, and more than half as many again as of the version before, if that one was seen.

    `deadline_ms`: answers that took longer are late.
    """

    def __init__(
        self, answers: int, seconds: float, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._answers = answers
        self._needed = seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._before: deque[bool] = deque(maxlen=_REMEMBERED)
        self._began = 0.0
        self._spent = 0.0
        self.deadline_ms = float("inf")
        self.running = False
        self.good = 0
        self.bad = 0

    def begin(
        self,
        good: int = 0,
        bad: int = 0,
        seconds: float = 0.0,
        before: tuple[int, int] | None = None,
    ) -> None:
        """Begin, or go on from the counts of an earlier start; see :attr:`counts`.

        An instance that was begun before now is not counted. `before` replaces :attr:`before`,
        which a restart has lost.
        """
        with self._lock:
            if before is not None:
                late, n_seen = before
                self._before.clear()
                self._before.extend(i < late for i in range(n_seen))
            self.running = True
            self._began = self._clock()
            self._spent = seconds
            self.good = good
            self.bad = bad

    def end(self) -> None:
        """Stop counting answers."""
        with self._lock:
            self.running = False

    @property
    def before(self) -> tuple[int, int]:
        """Bad answers of the version before, and all of its answers, among the latest."""
        with self._lock:
            return sum(self._before), len(self._before)

    @property
    def seconds(self) -> float:
        """Running time so far."""
        return self._spent + (self._clock() - self._began if self.running else 0.0)

    @property
    def counts(self) -> dict[str, float]:
        """Counts that :meth:`begin` goes on from."""
        return {"good": self.good, "bad": self.bad, "seconds": self.seconds}

    def observe(self, end: Answer | Exception) -> bool:
        """Count an answer, or the error in its place; return whether the verdict may be due."""
        with self._lock:
            bad = not isinstance(end, Answer) or end.latency_ms > self.deadline_ms
            if not self.running:
                self._before.append(bad)
                return False
            if isinstance(end, Answer) and self._clock() - end.latency_ms / 1e3 < self._began:
                return False
            self.good += not bad
            self.bad += bad
            return self.good == 1 or self.verdict is not None

    @property
    def verdict(self) -> Literal["passed", "failed"] | None:
        """Outcome of the trial; None while it is open, and once it has ended."""
        if not self.running:
            return None
        n_seen = self.good + self.bad
        usual = sum(self._before) / len(self._before) if self._before else 0.0
        if self.bad >= _FEWEST_BAD and self.bad > max(_TOLERATED, 1.5 * usual) * n_seen:
            return "failed"
        if self.good >= self._answers and self.seconds >= self._needed:
            return "passed"
        return None
