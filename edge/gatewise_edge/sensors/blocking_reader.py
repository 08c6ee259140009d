"""A thread that reads blocking sensors, so that the caller can give up in time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")


class StillReading(Exception):  # noqa: N818
    """The work is not done; it goes on, and its result will not be used."""


class BlockingReader:
    """Run work on a daemon thread, one piece at a time, each waited for no longer than allowed.

    A thread cannot be stopped. While abandoned work still blocks, the next piece waits for it
    within its own time: nothing piles up, nothing runs twice at a time, and the program can still
    end. The work sets `what` to what it reads, for error messages; `busy` is whether some is under
    way.
    """

    def __init__(self) -> None:
        self.what = ""
        self.busy = False
        self._free = threading.Semaphore(1)
        self._jobs: SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def run(self, work: Callable[[], T], timeout: float) -> T:
        """Return what `work` does, or raise what it does; StillReading after `timeout` seconds."""
        until = time.monotonic() + timeout
        if not self._free.acquire(timeout=max(0.0, timeout)):
            raise StillReading
        future = self._start(work)
        with suppress(TimeoutError):  # of the wait, or raised by the work
            return future.result(max(0.0, until - time.monotonic()))
        if not future.done():
            raise StillReading
        return future.result()

    def begin(self, work: Callable[[], object]) -> None:
        """Begin `work`, without waiting for it, if the thread is free; else leave it undone."""
        if self._free.acquire(blocking=False):
            self._start(work)

    def _start(self, work: Callable[[], T]) -> Future[T]:
        self.busy = True
        if self._thread is None:
            self._thread = threading.Thread(target=self._loop, name="gatewise-sensors", daemon=True)
            self._thread.start()
        future: Future[T] = Future()
        self._jobs.put((work, future))
        return future

    def close(self) -> None:
        """End the thread, waiting for at most a second."""
        if self._thread is not None:
            self._jobs.put(None)
            self._thread.join(timeout=1.0)
            self._thread = None

    def _loop(self) -> None:
        while (job := self._jobs.get()) is not None:
            work, future = job
            try:
                end = partial(future.set_result, work())
            except BaseException as error:
                end = partial(future.set_exception, error)
            self.busy = False
            self._free.release()
            end()
