"""The trial of a new release: its first answers decide whether the device continues to run it."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final, Literal

from gatewise_edge.device.answer import Answer

#: Number of the previous release's latest answers that a new release is compared with.
_MAX_PREVIOUS: Final = 200
#: Smallest number of bad answers with which a trial fails.
_MIN_BAD: Final = 3
#: Share of bad answers that a release may always have.
_TOLERATED_SHARE: Final = 0.2
#: A release fails only if its share of bad answers is this many times the previous release's.
_TOLERATED_RATIO: Final = 1.5


class Trial:
    """Count the first answers of a release, and decide whether it passes.

    Late answers and errors are bad. A release passes after `answers` answers in time and `seconds`
    of running time, summed over restarts. It fails when it has at least three bad answers, they are
    more than a fifth of its answers, and their share is more than 1.5 times the share of the
    previous release, if that one was observed.

    An answer is late if it took more than `deadline_ms`.
    """

    def __init__(
        self, answers: int, seconds: float, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._min_answers = answers
        self._min_seconds = seconds
        self._clock = clock
        self._lock = threading.Lock()
        #: Whether each of the latest answers of the previous release was bad.
        self._previous: deque[bool] = deque(maxlen=_MAX_PREVIOUS)
        self._began_at = 0.0
        self._seconds_before = 0.0
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
        """Begin a trial, or continue one with the counts of an earlier start (:attr:`counts`).

        Instances whose answering began before now are not counted. `before` replaces
        :attr:`before`, which a restart has lost.
        """
        with self._lock:
            if before is not None:
                n_bad, n_answers = before
                self._previous.clear()
                self._previous.extend(i < n_bad for i in range(n_answers))
            self.running = True
            self._began_at = self._clock()
            self._seconds_before = seconds
            self.good = good
            self.bad = bad

    def end(self) -> None:
        """Stop counting answers."""
        with self._lock:
            self.running = False

    @property
    def before(self) -> tuple[int, int]:
        """Numbers of bad and of all answers among the latest of the previous release."""
        with self._lock:
            return sum(self._previous), len(self._previous)

    @property
    def seconds(self) -> float:
        """Running time so far."""
        return self._seconds_before + (self._clock() - self._began_at if self.running else 0.0)

    @property
    def counts(self) -> dict[str, float]:
        """Counts with which :meth:`begin` can continue the trial after a restart."""
        return {"good": self.good, "bad": self.bad, "seconds": self.seconds}

    def observe(self, outcome: Answer | Exception) -> bool:
        """Count an answer or an error; return whether the updater should act on it.

        The updater acts on the first good answer and on a verdict.
        """
        with self._lock:
            is_bad = not isinstance(outcome, Answer) or outcome.latency_ms > self.deadline_ms
            if not self.running:
                self._previous.append(is_bad)
                return False
            if isinstance(outcome, Answer):
                asked_at = self._clock() - outcome.latency_ms / 1e3
                if asked_at < self._began_at:
                    return False
            self.good += not is_bad
            self.bad += is_bad
            return self.good == 1 or self.verdict is not None

    @property
    def verdict(self) -> Literal["passed", "failed"] | None:
        """Outcome of the trial; None before it is decided, and after :meth:`end`."""
        if not self.running:
            return None
        n_answers = self.good + self.bad
        previous_share = sum(self._previous) / len(self._previous) if self._previous else 0.0
        tolerated_share = max(_TOLERATED_SHARE, _TOLERATED_RATIO * previous_share)
        if self.bad >= _MIN_BAD and self.bad > tolerated_share * n_answers:
            return "failed"
        if self.good >= self._min_answers and self.seconds >= self._min_seconds:
            return "passed"
        return None
