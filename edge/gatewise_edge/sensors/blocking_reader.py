"""A thread that reads blocking sensors, which lets its caller stop waiting at a deadline."""

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

Result = TypeVar("Result")


@dataclass(slots=True, eq=False)
class ReadTask:
    """A call of a function on the reader's thread.

    The function sets `sensor_name` to the sensor that it reads, for error messages. `is_abandoned`
    is True once the caller has stopped waiting and another thread replaces the thread of the task.
    """

    function: Callable[[ReadTask], Any]
    future: Future[Any] = field(default_factory=Future)
    sensor_name: str = ""
    is_finished: bool = False
    is_abandoned: bool = False


class ReadTimeoutError(Exception):
    """A call that did not return in time.

    `sensor_name` is the name of the blocking sensor. `is_abandoned` is True if another thread
    replaces the thread of the call.
    """

    def __init__(self, task: ReadTask) -> None:
        super().__init__(task.sensor_name)
        self.sensor_name = task.sensor_name
        self.is_abandoned = task.is_abandoned


class BlockingReader:
    """A daemon thread that makes one call at a time, and is replaced if a call hangs.

    Python cannot stop a thread. If a call does not return in time, its thread is abandoned, and
    ends when the call returns. At most `max_hung_threads` threads are abandoned at a time. While
    that many hang, the next call waits for the last one within its own timeout.
    """

    def __init__(self, max_hung_threads: int = 0) -> None:
        self._max_hung_threads = max_hung_threads
        self._n_hung_threads = 0
        #: Protects `is_finished` and `is_abandoned` of a task, which the caller and the thread
        #: decide against each other, and the number of hung threads.
        self._lock = threading.Lock()
        #: Held by the call that runs on the thread, from its start to its end or abandonment. Only
        #: this call and :meth:`close` change `_thread`, and only this call `_running_task`.
        self._thread_permit = threading.Semaphore(1)
        self._tasks: SimpleQueue[ReadTask | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._running_task: ReadTask | None = None

    @property
    def is_busy(self) -> bool:
        """Whether the next call would have to wait for a running one."""
        return self._running_task is not None

    def run(self, function: Callable[[ReadTask], Result], timeout_s: float) -> Result:
        """Return the result of `function`, or raise its error; ReadTimeoutError if it is late."""
        deadline = time.monotonic() + timeout_s
        if not self._thread_permit.acquire(timeout=max(0.0, timeout_s)):
            raise ReadTimeoutError(self._running_task or ReadTask(function))
        task = self._submit(function)
        with suppress(TimeoutError):  # raised by the wait or by the call
            return cast(Result, task.future.result(max(0.0, deadline - time.monotonic())))
        if self._abandon(task):
            raise ReadTimeoutError(task)
        return cast(Result, task.future.result())

    def start(self, function: Callable[[ReadTask], object]) -> None:
        """Start `function` without waiting for it; do nothing if another call is running."""
        if self._thread_permit.acquire(blocking=False):
            self._submit(function)

    def close(self) -> None:
        """End the thread; wait at most a second for a running call."""
        thread = self._thread  # another thread's call may abandon it at the same time
        if thread is not None:
            self._tasks.put(None)
            thread.join(timeout=1.0)
            self._thread = None

    def _submit(self, function: Callable[[ReadTask], Result]) -> ReadTask:
        """Give a task to the thread, and start the thread if there is none."""
        task = ReadTask(function)
        self._running_task = task
        if self._thread is None:
            self._tasks = SimpleQueue()
            self._thread = threading.Thread(
                target=self._run_tasks, args=(self._tasks,), name="gatewise-sensors", daemon=True
            )
            self._thread.start()
        self._tasks.put(task)
        return task

    def _abandon(self, task: ReadTask) -> bool:
        """Abandon a task and its thread, unless too many hang; return False if it has finished."""
        with self._lock:
            if task.is_finished:
                return False
            if self._n_hung_threads < self._max_hung_threads:
                self._n_hung_threads += 1
                task.is_abandoned = True
                self._thread = None
                self._free_thread()
        return True

    def _free_thread(self) -> None:
        self._running_task = None
        self._thread_permit.release()

    def _run_tasks(self, tasks: SimpleQueue[ReadTask | None]) -> None:
        """Run tasks on a thread until None arrives, or until its task was abandoned."""
        while (task := tasks.get()) is not None:
            try:
                set_outcome = partial(task.future.set_result, task.function(task))
            except BaseException as error:
                set_outcome = partial(task.future.set_exception, error)
            with self._lock:
                task.is_finished = True
                if task.is_abandoned:
                    self._n_hung_threads -= 1
                    return
                self._free_thread()
            set_outcome()  # last, because the caller may start another call at once
