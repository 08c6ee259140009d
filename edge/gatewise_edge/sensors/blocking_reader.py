"""A thread that reads blocking sensors, so that the caller can give up in time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar, cast

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class ReaderCall:
    """A call on the reader's thread.

    The call writes the name of the sensor that it reads to `label`, for error messages.
    `abandoned` is true once the caller has given up and another thread has taken over.
    """

    call: Callable[[ReaderCall], Any]
    future: Future[Any] = field(default_factory=Future)
    label: str = ""
    finished: bool = False
    abandoned: bool = False


class StillReading(Exception):  # noqa: N818
    """A call that did not return in time; its result will not be used.

    `label` names the sensor that blocks. `abandoned` says whether another thread has taken over.
    """

    def __init__(self, job: ReaderCall) -> None:
        super().__init__(job.label)
        self.label = job.label
        self.abandoned = job.abandoned


class BlockingReader:
    """A daemon thread that makes one call at a time, and a new one where a call hangs.

    A thread cannot be stopped. The first `max_hung` threads whose calls do not return in time are
    left behind, and end when their calls return. While that many hang, the next call waits for the
    one before it within its own time, so that their number is bounded.
    """

    def __init__(self, max_hung: int = 0) -> None:
        self._max_hung = max_hung
        self._n_hung = 0
        self._lock = threading.Lock()
        self._free = threading.Semaphore(1)
        self._jobs: SimpleQueue[ReaderCall | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._current: ReaderCall | None = None

    @property
    def busy(self) -> bool:
        """Whether a call is under way that the next one has to wait for."""
        return self._current is not None

    def run(self, call: Callable[[ReaderCall], T], timeout: float) -> T:
        """Return the result of `call`, or raise its error; StillReading after `timeout` seconds."""
        until = time.monotonic() + timeout
        if not self._free.acquire(timeout=max(0.0, timeout)):
            raise StillReading(self._current or ReaderCall(call))
        job = self._start(call)
        with suppress(TimeoutError):  # of the wait, or raised by the call
            return cast(T, job.future.result(max(0.0, until - time.monotonic())))
        if self._give_up(job):
            raise StillReading(job)
        return cast(T, job.future.result())

    def begin(self, call: Callable[[ReaderCall], object]) -> None:
        """Begin `call` without waiting for it if the thread is free; otherwise do nothing."""
        if self._free.acquire(blocking=False):
            self._start(call)

    def close(self) -> None:
        """End the thread, waiting up to a second for a call under way."""
        if self._thread is not None:
            self._jobs.put(None)
            self._thread.join(timeout=1.0)
            self._thread = None

    def _start(self, call: Callable[[ReaderCall], T]) -> ReaderCall:
        job = ReaderCall(call)
        self._current = job
        if self._thread is None:
            self._jobs = SimpleQueue()
            self._thread = threading.Thread(
                target=self._loop, args=(self._jobs,), name="gatewise-sensors", daemon=True
            )
            self._thread.start()
        self._jobs.put(job)
        return job

    def _give_up(self, job: ReaderCall) -> bool:
        """Leave a job and its thread behind, unless too many hang; False: it has just finished."""
        with self._lock:
            if job.finished:
                return False
            if self._n_hung < self._max_hung:
                self._n_hung += 1
                job.abandoned = True
                self._thread = None
                self._release()
        return True

    def _release(self) -> None:
        self._current = None
        self._free.release()

    def _loop(self, jobs: SimpleQueue[ReaderCall | None]) -> None:
        while (job := jobs.get()) is not None:
            try:
                settle = partial(job.future.set_result, job.call(job))
            except BaseException as error:
                settle = partial(job.future.set_exception, error)
            with self._lock:
                job.finished = True
                if job.abandoned:
                    self._n_hung -= 1
                    return
                self._release()
            settle()
