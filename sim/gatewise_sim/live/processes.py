"""The processes of a run: cloud workers, and the devices that answer pass after pass."""

from __future__ import annotations

import queue
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, TypeVar

from gatewise_sim.errors import RunError
from gatewise_sim.live.children import Child
from gatewise_sim.live.outcome import Outcome
from gatewise_sim.report.legs import POLICIES, Leg
from gatewise_training.console import Progress

__all__ = ["Fleet", "Worker", "deal", "start_workers"]

_READY_SECONDS = 60.0
_SILENCE_SECONDS = 30.0
_MOST_PROCESSES = 4

_Word = TypeVar("_Word")


@dataclass(frozen=True)
class _Event:
    """Something that a child said; None that it will say no more."""

    child: Child
    document: Mapping[str, Any] | None


# -- the cloud -----------------------------------------------------------------------------


class Worker:
    """A cloud worker: ``gatewise cloud`` in a process of its own."""

    def __init__(self, name: str, arguments: Sequence[str]) -> None:
        self._said: queue.SimpleQueue[Mapping[str, Any] | None] = queue.SimpleQueue()
        self.child = Child(name, "gatewise_sim.live.tether", self._hear)
        # Not on the command line, where everyone on the machine could read a password.
        self.child.tell({"arguments": list(arguments)})

    def _hear(self, child: Child, document: Mapping[str, Any] | None) -> None:
        self._said.put(document)

    def wait_ready(self, deadline: float) -> None:
        """Wait for its first word.

        Raises
        ------
        RunError
            If it ends instead, or says nothing until `deadline` (monotonic seconds).
        """
        if _heard(self._said, deadline, self.child) is None:
            raise self.child.failure()

    def stop(self, troubles: list[str]) -> dict[str, Any]:
        """End it in good order; its counters, empty if it ended before by itself."""
        if self.child.ended:
            troubles.append(str(self.child.failure()))
        self.child.close()
        last: dict[str, Any] = {}
        while (document := self._said.get()) is not None:
            last = dict(document)
        return last


def start_workers(stack: ExitStack, count: int, arguments: Sequence[str]) -> list[Worker]:
    """Start cloud workers that end with `stack`, and wait until they take requests.

    Raises
    ------
    RunError
        If one ends instead.
    """
    workers = []
    for i in range(count):
        workers.append(Worker(f"cloud worker {i + 1}", arguments))
        stack.callback(workers[-1].child.close)
    deadline = time.monotonic() + _READY_SECONDS
    for worker in workers:
        worker.wait_ready(deadline)
    return workers


def deal(devices: Sequence[str], rows: int) -> list[dict[str, list[int]]]:
    """Deal rows out to the devices in turn, and the devices to a few processes.

    Examples
    --------
    >>> deal(["a", "b"], 5)
    [{'a': [0, 2, 4]}, {'b': [1, 3]}]
    """
    dealt = {name: list(range(i, rows, len(devices))) for i, name in enumerate(devices)}
    processes = min(len(devices), _MOST_PROCESSES)
    return [{name: dealt[name] for name in devices[p::processes]} for p in range(processes)]


class Fleet:
    """The device processes, which end with `stack`, and what they say.

    Parameters
    ----------
    stack : ExitStack
    jobs : sequence of mapping
        One a process, see :mod:`gatewise_sim.live.device_process`.
    rows : int
        Rows in all of them together.
    report : Progress
    """

    def __init__(
        self, stack: ExitStack, jobs: Sequence[Mapping[str, Any]], rows: int, report: Progress
    ) -> None:
        self._events: queue.SimpleQueue[_Event] = queue.SimpleQueue()
        self._silence = _SILENCE_SECONDS + max(job["deadline_ms"] for job in jobs) / 1e3
        self._rows = rows
        self._report = report
        self._answers = 0
        self.troubles: list[str] = []
        self._alive: list[Child] = []
        for i, job in enumerate(jobs):
            child = Child(f"device process {i + 1}", "gatewise_sim.live.device_process", self._hear)
            self._alive.append(stack.enter_context(child))
            child.tell(job)

    def run_pass(self, policy: str) -> Leg:
        """Let every device answer its rows once.

        Raises
        ------
        RunError
            If a process does not get ready, or none says anything for longer than an answer
            may take. One that ends on the way only loses its rows.
        """
        for child in self._alive:
            child.tell({"policy": policy})
        waiting = set(self._alive)
        deadline = time.monotonic() + _READY_SECONDS
        while waiting:
            event = _heard(self._events, deadline, *waiting)
            if event.document is None:
                raise event.child.failure()
            waiting.discard(event.child)
        started = time.monotonic()
        for child in self._alive:
            child.tell({"go": True})
        outcomes: list[Outcome] = []
        counts = {"late": 0, "retries": 0}
        running = set(self._alive)
        while running:
            event = _heard(self._events, time.monotonic() + self._silence, *running)
            document = event.document
            if document is None:
                # Its rows are lost; the others go on.
                self._alive.remove(event.child)
                running.discard(event.child)
                self.troubles.append(str(event.child.failure()))
            elif document["event"] == "answer":
                outcomes.append(Outcome(*document["answer"]))
                self._answers += 1
                self._report(self._answers, len(POLICIES) * self._rows, policy)
            elif document["event"] == "failed":
                self.troubles.append(f"row {document['row']}: {document['message']}")
            else:
                running.discard(event.child)
                for name in counts:
                    counts[name] += document[name]
        seconds = time.monotonic() - started
        return Leg(outcomes, self._rows, counts["late"], counts["retries"], seconds)

    def _hear(self, child: Child, document: Mapping[str, Any] | None) -> None:
        self._events.put(_Event(child, document))


def _heard(said: queue.SimpleQueue[_Word], deadline: float, *silent: Child) -> _Word:
    """Wait for the next word until `deadline`; name those it should have come from."""
    try:
        return said.get(timeout=max(0.0, deadline - time.monotonic()))
    except queue.Empty:
        names = " and ".join(sorted(child.name for child in silent))
        raise RunError(names, "no sign of life; giving up") from None
