"""A thread that reads blocking sensors, so that its caller can stop waiting in time."""

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
    """A job of the reader's thread, which makes one call.

    The call sets `label` to the name of the sensor that it reads, for error messages. `abandoned`
    is True once the caller has given up and another thread will replace this one.
    """

    call: Callable[[ReaderCall], Any]
    future: Future[Any] = field(default_factory=Future)
    label: str = ""
    finished: bool = False
    abandoned: bool = False


class StillReading(Exception):  # noqa: N818
    """A call that did not return in time; its result will not be used.

    `label` is the name of the blocking sensor. `abandoned` is True if another thread will
    replace the thread of the call.
    """

    def __init__(self, job: ReaderCall) -> None:
        super().__init__(job.label)
        self.label = job.label
        self.abandoned = job.abandoned


class BlockingReader:
    """A daemon thread that makes one call at a time, and is replaced if a call hangs.

    Python cannot stop a thread. If a call does not return in time, its thread is abandoned and ends
    when the call returns. At most `max_hung` threads are abandoned at a time. While that many hang,
    a further call first waits, within its own timeout, for the call before it.
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
        """Whether the next call would have to wait for a running one."""
        return self._current is not None

    def run(self, call: Callable[[ReaderCall], T], timeout: float) -> T:
        """Return the result of `call`, or raise its error; StillReading after `timeout` seconds."""
        deadline = time.monotonic() + timeout
        if not self._free.acquire(timeout=max(0.0, timeout)):
            raise StillReading(self._current or ReaderCall(call))
        job = self._start(call)
        with suppress(TimeoutError):  # raised by the wait or by the call
            return cast(T, job.future.result(max(0.0, deadline - time.monotonic())))
        if self._give_up(job):
            raise StillReading(job)
        return cast(T, job.future.result())

    def begin(self, call: Callable[[ReaderCall], object]) -> None:
        """Start `call` without waiting for it; do nothing if another call is running."""
        if self._free.acquire(blocking=False):
            self._start(call)

    def close(self) -> None:
        """End the thread; wait at most a second for a running call."""
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
        """Abandon a job and its thread, unless too many hang; return False if it has finished."""
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
                set_outcome = partial(job.future.set_result, job.call(job))
            except BaseException as error:
                set_outcome = partial(job.future.set_exception, error)
            with self._lock:
                job.finished = True
                if job.abandoned:
                    self._n_hung -= 1
                    return
                self._release()
            set_outcome()  # last, so that the reader is free when the caller resumes
