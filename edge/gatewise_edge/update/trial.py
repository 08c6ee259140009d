"""The trial of a new release on a device, decided by the release's first answers."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final, Literal

from gatewise_edge.device.answer import Answer

#: Number of the previous release's latest answers that a new release is compared with.
_MAX_PREVIOUS_ANSWERS: Final = 200
#: Smallest number of bad answers of a failed trial. One or two answers may be late by chance, such
#: as at the start of a process.
_MIN_BAD_ANSWERS: Final = 3
#: Tolerated share of bad answers. The few answers of a trial cannot prove a smaller share.
_TOLERATED_BAD_SHARE: Final = 0.2
#: Tolerated ratio of the shares of bad answers of the new and of the previous release. A slow
#: device or a failing sensor makes both shares large.
_TOLERATED_RATIO: Final = 1.5


class Trial:
    """Count the first answers of a release, and decide whether it passes.

    Bad answers are errors and answers that took more than `deadline_ms`. A release passes after
    `min_answers` good answers and `min_seconds` of running time, summed over restarts. It fails
    when it has at least three bad answers, if their share is above a fifth and above 1.5 times the
    share of the previous release.
    """

    def __init__(
        self, min_answers: int, min_seconds: float, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._min_answers = min_answers
        self._min_seconds = min_seconds
        self._clock = clock
        self._lock = threading.Lock()
        #: Whether each of the latest answers of the previous release was bad.
        self._previous_bad_flags: deque[bool] = deque(maxlen=_MAX_PREVIOUS_ANSWERS)
        self._began_at = 0.0
        self._seconds_of_earlier_starts = 0.0
        self.deadline_ms = float("inf")
        self.is_running = False
        self.n_good = 0
        self.n_bad = 0

    def begin(
        self,
        *,
        n_good: int = 0,
        n_bad: int = 0,
        trial_seconds: float = 0.0,
        previous_counts: tuple[int, int] | None = None,
    ) -> None:
        """Begin a trial, or continue one with the :attr:`counts` of an earlier start.

        Answers to instances that the device began before this call are not counted. Errors are,
        because they do not state when their instance began. `previous_counts` restores
        :attr:`previous_counts` after a restart.
        """
        with self._lock:
            if previous_counts is not None:
                n_bad_before, n_answers = previous_counts
                self._previous_bad_flags.clear()
                # the order was not saved, so count the bad answers as the oldest
                self._previous_bad_flags.extend(
                    position < n_bad_before for position in range(n_answers)
                )
            self.is_running = True
            self._began_at = self._clock()
            self._seconds_of_earlier_starts = trial_seconds
            self.n_good = n_good
            self.n_bad = n_bad

    def end(self) -> None:
        """Stop counting answers."""
        with self._lock:
            self.is_running = False

    @property
    def previous_counts(self) -> tuple[int, int]:
        """Numbers of bad and of all answers among the latest of the previous release."""
        with self._lock:
            return sum(self._previous_bad_flags), len(self._previous_bad_flags)

    @property
    def seconds(self) -> float:
        """Running time (s) so far; after :meth:`end`, the time of earlier starts only."""
        return self._seconds_of_earlier_starts + (
            self._clock() - self._began_at if self.is_running else 0.0
        )

    @property
    def counts(self) -> dict[str, float]:
        """Counts with which :meth:`begin` can continue the trial after a restart."""
        return {"n_good": self.n_good, "n_bad": self.n_bad, "trial_seconds": self.seconds}

    def __str__(self) -> str:
        return f"{self.n_bad} of {self.n_good + self.n_bad} answers were errors or late"

    def observe(self, outcome: Answer | Exception) -> bool:
        """Count an answer or an error; return whether the updater must act on it.

        It must act on a verdict, and on the first good answer, which proves that the release starts
        on this device.
        """
        with self._lock:
            is_bad = not isinstance(outcome, Answer) or outcome.latency_ms > self.deadline_ms
            if not self.is_running:
                self._previous_bad_flags.append(is_bad)
                return False
            if isinstance(outcome, Answer):
                # The previous release may still answer an instance that began before the trial.
                instance_began_at = self._clock() - outcome.latency_ms / 1e3
                if instance_began_at < self._began_at:
                    return False
            self.n_good += not is_bad
            self.n_bad += is_bad
            return self.n_good == 1 or self.verdict is not None

    @property
    def verdict(self) -> Literal["passed", "failed"] | None:
        """Outcome of the trial; None before it is decided, and after :meth:`end`."""
        # no lock, because observe() calls this while it holds the lock
        if not self.is_running:
            return None
        n_answers = self.n_good + self.n_bad
        previous_bad_share = sum(self._previous_bad_flags) / max(1, len(self._previous_bad_flags))
        tolerated_bad_share = max(_TOLERATED_BAD_SHARE, _TOLERATED_RATIO * previous_bad_share)
        if self.n_bad >= _MIN_BAD_ANSWERS and self.n_bad > tolerated_bad_share * n_answers:
            return "failed"
        if self.n_good >= self._min_answers and self.seconds >= self._min_seconds:
            return "passed"
        return None
