"""Jobs in processes of their own, several at a time; none outlives its owner.

A process runs one job after another, so that libraries are loaded once. A job that raises fails
alone, and so does one that takes its process with it (out of memory, say): another one is started.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing as mp
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Final, NoReturn, Protocol

from gatewise.console import plain
from gatewise.errors import GatewiseError

__all__ = ["Outcome", "Runnable", "run_jobs"]

_CLOSE_SECONDS: Final = 10.0


class Runnable(Protocol):
    """What a point is: a value that can be pickled and run."""

    def run(self) -> dict[str, Any]:
        """Make its report."""


@dataclass(frozen=True)
class Outcome:
    """What became of a job.

    Attributes
    ----------
    report : dict or None
        None if it failed.
    error : str
        Why, in one line; empty if it did not.
    """

    report: dict[str, Any] | None
    error: str = ""


def run_jobs(
    jobs: Sequence[Runnable], processes: int, done: Callable[[int, Outcome], None]
) -> None:
    """Run jobs, and say of each as soon as it ends what became of it.

    Parameters
    ----------
    jobs : sequence of Runnable
        Begun in this order.
    processes : int
        At most so many at a time.
    done : callable
        ``done(i, outcome)``, called in the order in which jobs end, on the caller's thread.

    Raises
    ------
    KeyboardInterrupt
        On Ctrl-C; every process has ended by then.
    """
    waiting = list(range(len(jobs)))[::-1]
    team: list[_Worker] = []
    try:
        while waiting or any(worker.job is not None for worker in team):
            team = [worker for worker in team if not worker.ended]
            while waiting and len(team) < processes and all(w.job is not None for w in team):
                team.append(_Worker.start())
                team[-1].begin(waiting[-1], jobs[waiting.pop()])
            ready = wait([worker.pipe for worker in team])
            for worker in team:
                if worker.pipe not in ready:
                    continue
                job, outcome = worker.job, worker.finish()
                assert job is not None  # idle ones are closed at once
                if waiting and not worker.ended:
                    worker.begin(waiting[-1], jobs[waiting.pop()])
                elif not worker.ended:
                    worker.dismiss()
                done(job, outcome)
    finally:
        for worker in team:
            worker.process.terminate()
        for worker in team:
            worker.close()


@dataclass
class _Worker:
    """A process, as its owner sees it."""

    process: BaseProcess
    pipe: Connection
    job: int | None = None
    ended: bool = field(default=False)

    @classmethod
    def start(cls) -> _Worker:
        here, there = mp.get_context("spawn").Pipe()
        process = mp.get_context("spawn").Process(target=_serve, args=(there,), daemon=False)
        # Ctrl-C goes to every process of a terminal. Children hear of it from their owner only,
        # also while they are still loading; a blocked signal stays blocked in a new process.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        try:
            process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        there.close()
        return cls(process, here)

    def begin(self, number: int, job: Runnable) -> None:
        self.job = number
        with contextlib.suppress(BrokenPipeError):  # finish() says what happened to it
            self.pipe.send(job)

    def finish(self) -> Outcome:
        """Take what it says of its job, or that it is gone."""
        self.job = None
        try:
            kind, text = self.pipe.recv()
        except (EOFError, OSError):
            self.close()
            return Outcome(None, _death(self.process.exitcode))
        return Outcome(json.loads(text)) if kind == "report" else Outcome(None, text)

    def dismiss(self) -> None:
        """Let it end: there is nothing more to do."""
        self.pipe.send(None)
        self.close()

    def close(self) -> None:
        self.ended = True
        self.process.join(_CLOSE_SECONDS)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self.pipe.close()


def _death(status: int | None) -> str:
    if status is not None and status < 0:
        name = signal.Signals(-status).name
        hint = " (out of memory?)" if -status == signal.SIGKILL else ""
        return f"its process was ended by {name}{hint}"
    return f"its process ended with status {status}"


# -- within the process --------------------------------------------------------------------


def _serve(pipe: Connection) -> None:
    """Run jobs until None comes or the owner is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _leave)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    os.dup2(sys.stderr.fileno(), 1)  # what is printed must not get between the owner's results
    threading.Thread(target=_follow_owner, name="tether", daemon=True).start()
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while (job := pipe.recv()) is not None:
            pipe.send(_attempt(job))


def _attempt(job: Runnable) -> tuple[str, str]:
    try:
        return "report", json.dumps(plain(job.run()), allow_nan=False)
    except GatewiseError as error:
        return "error", " ".join(str(error).split())
    except Exception as error:
        text = " ".join(str(error).split())
        return "error", f"unexpected {type(error).__name__}: {text}".rstrip(": ")


def _leave(number: int, frame: object) -> NoReturn:
    # What runs in the job (workers, a broker) ends as the stack unwinds.
    raise SystemExit(128 + number)


def _follow_owner() -> None:
    """End when the owner has ended, however that was: first in good order, then at once."""
    owner = mp.parent_process()
    assert owner is not None
    wait([owner.sentinel])
    os.kill(os.getpid(), signal.SIGTERM)
    threading.Event().wait(_CLOSE_SECONDS)
    os._exit(1)
