"""The processes of a run: cloud workers, and the devices that answer pass after pass."""

from __future__ import annotations

import queue
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from gatewise_cloud.child_process import ChildProcess, close_all
from gatewise_cloud.service.worker_process import WorkerProcess
from gatewise_sim.errors import RunError
from gatewise_sim.live.outcome import Outcome
from gatewise_sim.live.scheduler import Schedule

__all__ = ["Fleet", "Pass", "failed", "start_workers"]

_READY_SECONDS: Final = 60.0
#: A device process speaks several times a second while it works; silence for so long is its end.
_SILENCE_SECONDS: Final = 30.0
#: From the word to the beginning, so that all begin together.
_LEAD_SECONDS: Final = 0.1
_TICK_SECONDS: Final = 0.25


@dataclass(frozen=True)
class _Event:
    """Something that a child said; None that it will say no more."""

    child: ChildProcess
    document: Mapping[str, Any] | None


def failed(child: ChildProcess) -> RunError:
    """Give the error of a child that ended by itself, with what it reported."""
    return RunError(child.name, child.failure())


# -- the cloud -----------------------------------------------------------------------------


def start_workers(stack: ExitStack, count: int, options: Mapping[str, Any]) -> list[WorkerProcess]:
    """Start cloud workers that end with `stack`, and wait until they take requests.

    Parameters
    ----------
    stack : ExitStack
    count : int
    options : mapping
        See :func:`gatewise_cloud.service.worker_process.make_worker`.

    Raises
    ------
    RunError
        If one ends instead.
    """
    workers = []
    for i in range(count):
        name = f"cloud worker {i + 1}"
        workers.append(WorkerProcess(options, name=name, keep_errors=True))
        stack.callback(workers[-1].close)
    deadline = time.monotonic() + _READY_SECONDS
    for worker in workers:
        if not worker.wait_ready(deadline - time.monotonic()):
            if time.monotonic() < deadline:
                raise failed(worker)
            raise RunError(worker.name, "no sign of life; giving up")
    return workers


# -- the devices ---------------------------------------------------------------------------


@dataclass(eq=False)
class Pass:
    """What the devices have said in one pass, so far.

    Attributes
    ----------
    outcomes : dict of int to Outcome
        By the instance's number.
    counters : Counter
        Sums over the devices of :attr:`gatewise_edge.device.device.Device.counters`.
    out, up : int
        Instances begun and not answered, and links that stand, by the processes' last words.
    figures : list of dict
        Of each process that ended the pass: ``behind_ms`` (median, 99 % and longest delay of an
        instance's beginning), ``cpu_s``, ``peak_mb``.
    seconds : float
        Wall time of the pass.
    """

    outcomes: dict[int, Outcome] = field(default_factory=dict)
    counters: Counter[str] = field(default_factory=Counter)
    figures: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0
    _states: dict[ChildProcess, tuple[int, int]] = field(default_factory=dict)

    @property
    def out(self) -> int:
        """See above."""
        return sum(out for out, _ in self._states.values())

    @property
    def up(self) -> int:
        """See above."""
        return sum(up for _, up in self._states.values())

    def take(self, child: ChildProcess, document: Mapping[str, Any]) -> list[Outcome]:
        """Take in some answers; those that are new."""
        self._states[child] = document["out"], document["up"]
        taken = [Outcome(*fields) for fields in document["answers"]]
        for outcome in taken:
            if outcome.number in self.outcomes:
                raise RunError(child.name, f"instance {outcome.number} was answered twice")
            self.outcomes[outcome.number] = outcome
        for number, (up, down, payload_up, payload_down) in document["late"]:
            before = self.outcomes[number]
            self.outcomes[number] = before._replace(
                up=before.up + up,
                down=before.down + down,
                payload_up=before.payload_up + payload_up,
                payload_down=before.payload_down + payload_down,
            )
        return taken

    def gone(self, child: ChildProcess) -> None:
        """Forget what a process that ended was about to do."""
        self._states.pop(child, None)


Hear = Callable[[Pass, list[Outcome]], None]
Tick = Callable[[float], float]
"""Called with the seconds since the pass began; gives those at which to be called again."""


class Fleet:
    """The device processes, which end with `stack`, and what they say.

    Parameters
    ----------
    stack : ExitStack
    folder : Path
        Where schedules are handed over.
    job : mapping
        What all processes have in common, see :mod:`gatewise_sim.live.device_process`.
    teams : sequence of sequence of str
        The names of each process's devices.

    Attributes
    ----------
    troubles : list of str
        Processes that ended on the way.
    """

    def __init__(
        self, stack: ExitStack, folder: Path, job: Mapping[str, Any], teams: Sequence[Sequence[str]]
    ) -> None:
        self._events: queue.SimpleQueue[_Event] = queue.SimpleQueue()
        self._folder = folder
        self._devices = sum(len(team) for team in teams)
        self.troubles: list[str] = []
        self._alive: dict[ChildProcess, int] = {}
        stack.callback(close_all, self._alive)
        for i, team in enumerate(teams):
            child = ChildProcess(
                f"device process {i + 1}",
                [sys.executable, "-m", "gatewise_sim.live.device_process"],
                on_message=self._hear,
            )
            self._alive[child] = i
            child.send({**job, "devices": list(team)})

    def run_pass(
        self,
        policy: str,
        schedules: Sequence[Schedule],
        *,
        limit: float,
        hear: Hear | None = None,
        go: Callable[[float], None] | None = None,
        tick: Tick | None = None,
    ) -> Pass:
        """Let the devices answer the instances of a schedule each.

        Parameters
        ----------
        policy : str
        schedules : sequence of Schedule
            One a process.
        limit : float
            Seconds after which whoever has not ended is ended.
        hear : callable, optional
            Gets the pass and the answers that are new.
        go : callable, optional
            Gets the time (monotonic) at which all begin, shortly before.
        tick : callable, optional
            See :data:`Tick`.

        Raises
        ------
        RunError
            If a process does not get ready. One that ends on the way only loses its instances.
        """
        self._prepare(policy, schedules)
        began = time.monotonic() + _LEAD_SECONDS
        if go is not None:
            go(began)
        for child in self._alive:
            child.send({"go": began})
        made = Pass()
        heard = dict.fromkeys(self._alive, began)
        again = began
        while heard:
            now = time.monotonic()
            if tick is not None and now >= again:
                again = began + tick(now - began)
            for child in [c for c, when in heard.items() if now > when + _SILENCE_SECONDS]:
                self._lose(child, "says nothing any more", made, schedules)
                del heard[child]
            if now > began + limit:
                for child in heard:
                    self._lose(child, "did not come to an end in time", made, schedules)
                break
            try:
                wait = min(again, now + _TICK_SECONDS) if tick is not None else now + _TICK_SECONDS
                event = self._events.get(timeout=max(0.0, wait - now))
            except queue.Empty:
                continue
            if event.child not in heard:
                continue  # one that was given up
            heard[event.child] = time.monotonic()
            document = event.document
            if document is None:
                del heard[event.child]
                self._lose(event.child, "", made, schedules)
            elif document["event"] == "answers":
                new = made.take(event.child, document)
                if hear is not None:
                    hear(made, new)
            else:
                del heard[event.child]
                made.counters.update(document["counters"])
                made.figures.append(document["figures"])
        made.seconds = time.monotonic() - began
        return made

    def _prepare(self, policy: str, schedules: Sequence[Schedule]) -> None:
        for child, i in self._alive.items():
            path = self._folder / f"schedule-{i}.npz"
            part = schedules[i]
            arrays: dict[str, Any] = {n: getattr(part, n) for n in ("number", "device", "row")}
            if part.time is not None:
                arrays["time"] = part.time
            np.savez(path, **arrays)
            child.send({"policy": policy, "schedule": str(path), "pause_ms": 1000.0 * part.pause})
        waiting = set(self._alive)
        # Each device that connects takes its time, on a slow link above all.
        deadline = time.monotonic() + _READY_SECONDS + 0.2 * self._devices
        while waiting:
            event = _heard(self._events, deadline, waiting)
            if event.child not in self._alive:
                continue  # one that was given up in the pass before
            if event.document is None:
                raise failed(event.child)
            waiting.discard(event.child)

    def _lose(
        self, child: ChildProcess, why: str, made: Pass, schedules: Sequence[Schedule]
    ) -> None:
        """Give up a process: what it has not answered is lost, the others go on."""
        if why:
            child.kill()
            error = RunError(child.name, why)
        else:
            error = failed(child)
        numbers = schedules[self._alive.pop(child)].number
        lost = sum(number not in made.outcomes for number in numbers.tolist())
        self.troubles.append(f"{error}; {lost} of its {len(numbers)} instances are lost")
        made.gone(child)
        child.close()

    def _hear(self, child: ChildProcess, document: Mapping[str, Any] | None) -> None:
        self._events.put(_Event(child, document))


def _heard(
    said: queue.SimpleQueue[_Event], deadline: float, silent: Iterable[ChildProcess]
) -> _Event:
    """Wait for the next word until `deadline`; name those it should have come from."""
    try:
        return said.get(timeout=max(0.0, deadline - time.monotonic()))
    except queue.Empty:
        names = " and ".join(sorted(child.name for child in silent))
        raise RunError(names, "no sign of life; giving up") from None
