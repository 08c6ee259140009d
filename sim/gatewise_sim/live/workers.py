"""Worker processes of a live run, which outages kill and start again."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Final

from gatewise_cloud.child_process import ChildProcess
from gatewise_sim.errors import RunError

#: Longest time in which all workers start; they load their libraries at the same time.
_READY_SECONDS: Final = 60.0
#: Environment variable for the broker's URL, because a password must not be in a command line.
BROKER_VARIABLE: Final = "GATEWISE_BROKER"


class WorkerProcess(ChildProcess):
    """A process of ``gatewise cloud``.

    `counters` is filled when the process ends normally.
    """

    def __init__(self, worker_number: int, arguments: Sequence[str], broker: str) -> None:
        self.counters: dict[str, Any] = {}
        self.is_ready = False
        self._has_reported = threading.Event()
        super().__init__(
            f"worker {worker_number}",
            [sys.executable, "-m", "gatewise", "cloud", *arguments, "--json"],
            on_message=self._receive,
            follows_input=False,
            environment={BROKER_VARIABLE: broker},
        )

    def wait_ready(self, seconds: float) -> None:
        """Wait until the worker serves requests; RunError if it ends first or takes too long."""
        self._has_reported.wait(max(0.0, seconds))
        if not self.is_ready:
            problem = "it did not start in time"
            if self._has_reported.is_set():
                problem = self.wait_for_failure()
            raise RunError(self.name, problem)

    def _receive(self, _: ChildProcess, document: Mapping[str, Any] | None) -> None:
        if document is not None and "ready" in document:
            self.is_ready = True
        elif document is not None:
            self.counters = dict(document)
        self._has_reported.set()


class Workers:
    """All workers of a live run.

    The constructor starts them and waits until they serve requests; it raises RunError if one
    fails. `stack` stops them when it is closed.

    Attributes
    ----------
    troubles : list of str
        Failures that were not scheduled.
    """

    def __init__(
        self, stack: ExitStack, arguments: Sequence[str], broker: str, n_workers: int
    ) -> None:
        self.troubles: list[str] = []
        self._stack = stack
        self._arguments = arguments
        self._broker = broker
        self._processes = [self._start(index) for index in range(n_workers)]
        #: Indices of the workers that are killed, or started again but not yet ready.
        self._unavailable: set[int] = set()
        deadline = time.monotonic() + _READY_SECONDS
        for process in self._processes:
            process.wait_ready(deadline - time.monotonic())

    def __len__(self) -> int:
        return len(self._processes)

    def _start(self, index: int) -> WorkerProcess:
        process = WorkerProcess(index + 1, self._arguments, self._broker)
        self._stack.callback(process.close)
        return process

    @property
    def are_available(self) -> bool:
        """Whether all workers serve requests, unless one failed outside an outage."""
        return not self._unavailable

    def kill_first(self, n_workers: int) -> list[WorkerProcess]:
        """Kill those of the first workers that are available; the caller closes them."""
        killed_processes = []
        for index, process in enumerate(self._processes[:n_workers]):
            if index not in self._unavailable:
                self._check_alive(process)
                process.kill()
                killed_processes.append(process)
                self._unavailable.add(index)
        return killed_processes

    def restart_from(self, first_index: int) -> None:
        """Start the killed workers from an index on again; the broker must be up."""
        for index in range(first_index, len(self._processes)):
            if index in self._unavailable and not self._processes[index].is_alive:
                self._processes[index] = self._start(index)

    def note_ready(self) -> list[str]:
        """Names of the restarted workers that serve requests since the last call."""
        ready_indices = [
            index
            for index in sorted(self._unavailable)
            if self._processes[index].is_ready and self._processes[index].is_alive
        ]
        self._unavailable.difference_update(ready_indices)
        return [self._processes[index].name for index in ready_indices]

    def stop(self) -> dict[str, float]:
        """Stop the workers; return the sums of their counters since their latest start."""
        counter_sums: dict[str, float] = {}
        for index, process in enumerate(self._processes):
            if index not in self._unavailable:
                self._check_alive(process)
            process.close()
            for name, count in _convert_counters(process.counters).items():
                counter_sums[name] = counter_sums.get(name, 0.0) + count
        return counter_sums

    def _check_alive(self, process: WorkerProcess) -> None:
        if not process.is_alive:
            self.troubles.append(f"{process.name}: {process.wait_for_failure()}")


def _convert_counters(counters: Mapping[str, Any]) -> dict[str, float]:
    """Convert a worker's counters to numbers with the names of the virtual engine."""
    numbers: dict[str, float] = {
        name: counter
        for name, counter in counters.items()
        if isinstance(counter, int | float) and not isinstance(counter, bool)
    }
    if "model_us" not in numbers:
        return numbers
    audits = counters.get("audits", {}).values()
    return numbers | {
        "audits": sum(audit_test["audits"] for audit_test in audits),
        "audits_disagreed": sum(audit_test["disagreed"] for audit_test in audits),
        "busy": counters["errors"].get("busy", 0),
        "busy_seconds": numbers["model_us"] / 1e6,
        "queued_seconds": numbers["queue_us"] / 1e6,
    }
