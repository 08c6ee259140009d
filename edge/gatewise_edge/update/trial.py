"""The trial of a new release: its first answers decide whether the device continues to run it."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final, Literal

from gatewise_edge.device.answer import Answer

#: Number of the previous release's latest answers that a new release is compared with.
_MAX_PREVIOUS_ANSWERS: Final = 200
#: Smallest number of bad answers with which a trial fails.
#: One or two answers may be late by chance, as at the start of a process.
_MIN_BAD_ANSWERS: Final = 3
#: Share of bad answers that a release may always have, because a few answers cannot show a smaller
#: share.
_TOLERATED_BAD_SHARE: Final = 0.2
#: A release fails only if its share of bad answers is this many times the previous release's, which
#: a slow device or a failing sensor may raise as well.
_TOLERATED_RATIO: Final = 1.5


class Trial:
    """Count the first answers of a release, and decide whether it passes.

    Late answers and errors are bad. A release passes after `min_answers` answers in time and
    `min_seconds` of running time, summed over restarts. It fails when it has at least three bad
    answers, they are more than a fifth of its answers, and their share is more than 1.5 times the
    share of the previous release, if that one was observed.

    An answer is late if it took more than `deadline_ms`.
    """

    def __init__(
        self, min_answers: int, min_seconds: float, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._min_answers = min_answers
        self._min_seconds = min_seconds
        self._clock = clock
        self._lock = threading.Lock()
        #: Whether each of the latest answers of the previous release was bad.
        self._previous_are_bad: deque[bool] = deque(maxlen=_MAX_PREVIOUS_ANSWERS)
        self._began_at = 0.0
        self._seconds_before = 0.0
        self.deadline_ms = float("inf")
        self.is_running = False
        self.n_good = 0
        self.n_bad = 0

    def begin(
        self,
        good: int = 0,
        bad: int = 0,
        seconds: float = 0.0,
        previous_counts: tuple[int, int] | None = None,
    ) -> None:
        """Begin a trial, or continue one with the counts of an earlier start (:attr:`counts`).

        Instances whose answering began before now are not counted. `previous_counts` replaces
        :attr:`previous_counts`, which a restart has lost.
        """
        with self._lock:
            if previous_counts is not None:
                n_bad, n_answers = previous_counts
                self._previous_are_bad.clear()
                self._previous_are_bad.extend(i < n_bad for i in range(n_answers))
            self.is_running = True
            self._began_at = self._clock()
            self._seconds_before = seconds
            self.n_good = good
            self.n_bad = bad

    def end(self) -> None:
        """Stop counting answers."""
        with self._lock:
            self.is_running = False

    @property
    def previous_counts(self) -> tuple[int, int]:
        """Numbers of bad and of all answers among the latest of the previous release."""
        with self._lock:
            return sum(self._previous_are_bad), len(self._previous_are_bad)

    @property
    def seconds(self) -> float:
        """Running time so far."""
        return self._seconds_before + (self._clock() - self._began_at if self.is_running else 0.0)

    @property
    def counts(self) -> dict[str, float]:
        """Counts with which :meth:`begin` can continue the trial after a restart."""
        return {"good": self.n_good, "bad": self.n_bad, "seconds": self.seconds}

    def observe(self, outcome: Answer | Exception) -> bool:
        """Count an answer or an error; return whether the updater should act on it.

        The updater acts on the first good answer, which shows that this start of the release works,
        and on a verdict.
        """
        with self._lock:
            is_bad = not isinstance(outcome, Answer) or outcome.latency_ms > self.deadline_ms
            if not self.is_running:
                self._previous_are_bad.append(is_bad)
                return False
            if isinstance(outcome, Answer):
                # The previous release answered an instance that came before the trial.
                instance_began_at = self._clock() - outcome.latency_ms / 1e3
                if instance_began_at < self._began_at:
                    return False
            self.n_good += not is_bad
            self.n_bad += is_bad
            return self.n_good == 1 or self.verdict is not None

    @property
    def verdict(self) -> Literal["passed", "failed"] | None:
        """Outcome of the trial; None before it is decided, and after :meth:`end`."""
        if not self.is_running:
            return None
        n_answers = self.n_good + self.n_bad
        previous_bad_share = (
            sum(self._previous_are_bad) / len(self._previous_are_bad)
            if self._previous_are_bad
            else 0.0
        )
        tolerated_bad_share = max(_TOLERATED_BAD_SHARE, _TOLERATED_RATIO * previous_bad_share)
        if self.n_bad >= _MIN_BAD_ANSWERS and self.n_bad > tolerated_bad_share * n_answers:
            return "failed"
        if self.n_good >= self._min_answers and self.seconds >= self._min_seconds:
            return "passed"
        return None
