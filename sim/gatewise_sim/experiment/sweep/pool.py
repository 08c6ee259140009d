"""Run jobs in a pool of processes; a job that takes its process with it fails alone."""

from __future__ import annotations

import multiprocessing as mp
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import wait
from typing import Any, Final, NoReturn

from gatewise.console import plain
from gatewise.errors import GatewiseError

_CLOSE_SECONDS: Final = 10.0


Work = Callable[[], dict[str, Any]]
"""Makes a report; can be pickled."""
ReportDocument = dict[str, Any] | None
"""A report as JSON has it; None of a job that failed."""
Done = Callable[[int, ReportDocument, str], None]
"""Takes a job's number and its report, or None and why it failed, in a line."""


def run_jobs(jobs: Sequence[Work], processes: int, done: Done) -> None:
    """Run jobs and report each as soon as it ends."""
    left = dict(enumerate(jobs))
    while left:
        left = _run_pool(left, processes, done)
        # A process died, and with it the pool. The job that did it is among those begun, and
        # jobs begin in order (one more than there are processes is handed out): each goes alone.
        for number in list(left)[: processes + 1]:
            if _run_pool({number: left.pop(number)}, 1, done):
                done(number, None, "its process ended suddenly (out of memory?)")


def _run_pool(jobs: Mapping[int, Work], processes: int, done: Done) -> dict[int, Work]:
    """Run jobs in one pool; returns those unfinished when a process died."""
    left = dict(jobs)
    pool = ProcessPoolExecutor(
        min(processes, len(jobs)), mp_context=mp.get_context("spawn"), initializer=_prepare_process
    )
    try:
        # Ctrl-C reaches every process of a terminal; these learn of it from their parent alone,
        # also while they are still loading: a blocked signal stays blocked in a new process.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        try:
            futures = {pool.submit(_run_job, job): number for number, job in jobs.items()}
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        for future in as_completed(futures):
            try:
                result = future.result()
            except BrokenProcessPool:
                return left
            del left[futures[future]]
            done(futures[future], *result)
    except BaseException:
        for child in mp.active_children():
            child.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)
    return left


# -- within a process of the pool ----------------------------------------------------------


def _run_job(job: Work) -> tuple[ReportDocument, str]:
    try:
        return plain(job()), ""
    except GatewiseError as error:
        return None, " ".join(str(error).split())
    except Exception as error:
        text = " ".join(str(error).split())
        return None, f"unexpected {type(error).__name__}: {text}".rstrip(": ")


def _prepare_process() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _end_in_order)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    os.dup2(sys.stderr.fileno(), 1)  # what a job prints must not mix with the command's output
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_in_order(number: int, frame: object) -> NoReturn:
    # What the job has started (workers, a broker) ends as the stack unwinds.
    raise SystemExit(128 + number)


def _end_with_parent() -> None:
    """End when the parent has ended, however it did: first in good order, then at once."""
    parent = mp.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os.kill(os.getpid(), signal.SIGTERM)
    threading.Event().wait(_CLOSE_SECONDS)
    os._exit(1)
