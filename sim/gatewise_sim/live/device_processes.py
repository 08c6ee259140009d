"""The device processes of a run, and what they report."""

from __future__ import annotations

import queue
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Final

from gatewise.console import plain
from gatewise_cloud.child_process import ChildProcess, close_all
from gatewise_sim.errors import RunError
from gatewise_sim.live.metered import ByteCounts, LiveAnswer
from gatewise_sim.live.scheduler import Schedule

_READY_SECONDS: Final = 60.0
#: A device process reports several times a second while it works; silence for so long is its end.
_SILENCE_SECONDS: Final = 30.0
#: From the word to the beginning, so that all begin together.
_LEAD_SECONDS: Final = 0.1
_TICK_SECONDS: Final = 0.25

_Event = tuple[ChildProcess, Mapping[str, Any] | None]
"""A child's message; None: there will be no more."""


class DeviceProcesses:
    """The device processes, which end with `stack`: a team of named devices and a schedule each.

    `job` is what they have in common (:mod:`gatewise_sim.live.device_process`). What they have
    reported so far: `answers` by the instance's number,
    `counters`, sums over the devices of :attr:`.Device.counters`, `gauges` by device at its end,
    and `figures` of each process that ended in good order: ``behind_ms`` (median, 99 % and longest
    delay of an instance's beginning), ``cpu_s``, ``peak_mb``. `troubles` are processes that ended
    on the way.
    """

    def __init__(
        self,
        stack: ExitStack,
        job: Mapping[str, Any],
        teams: Sequence[Sequence[str]],
        schedules: Sequence[Schedule],
    ) -> None:
        self.answers: dict[int, LiveAnswer] = {}
        self.counters: Counter[str] = Counter()
        self.gauges: dict[str, dict[str, float]] = {}
        self.figures: list[dict[str, Any]] = []
        self.troubles: list[str] = []
        self._events: queue.SimpleQueue[_Event] = queue.SimpleQueue()
        self._alive: dict[ChildProcess, Schedule] = {}
        self._devices = sum(len(team) for team in teams)
        stack.callback(close_all, self._alive)
        for i, schedule in enumerate(schedules):
            child = ChildProcess(
                f"device process {i + 1}",
                [sys.executable, "-m", "gatewise_sim.live.device_process"],
                on_message=lambda child, document: self._events.put((child, document)),
            )
            self._alive[child] = schedule
        for (child, schedule), team in zip(self._alive.items(), teams, strict=True):
            child.send({**job, "devices": list(team), "schedule": plain(vars(schedule))})

    def wait_ready(self) -> None:
        """Wait until all devices are connected; RunError if a process ends instead, or hangs."""
        waiting = set(self._alive)
        # Each device that connects takes its time, on a slow link above all.
        deadline = time.monotonic() + _READY_SECONDS + 0.2 * self._devices
        while waiting:
            try:
                child, document = self._events.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                names = " and ".join(sorted(child.name for child in waiting))
                raise RunError(names, "no sign of life; giving up") from None
            if document is None:
                raise RunError(child.name, child.failure())
            waiting.discard(child)

    def run(
        self,
        *,
        limit: float,
        on_begin: Callable[[float], None],
        on_answers: Callable[[list[LiveAnswer]], None],
        tick: Callable[[float], float],
    ) -> float:
        """Let the devices answer their instances; a process that ends loses its own only.

        One that has not ended after `limit` seconds is ended. `on_begin` gets the time (monotonic)
        at which all begin, shortly before; `on_answers` the answers that are new; `tick` the
        seconds since the begin, and returns those at which to be called again. Returns the seconds
        that it took.
        """
        began = time.monotonic() + _LEAD_SECONDS
        on_begin(began)
        for child in self._alive:
            child.send({"go": began})
        last_report = dict.fromkeys(self._alive, began)
        again = began
        while last_report:
            now = time.monotonic()
            if now >= again:
                again = began + tick(now - began)
            for child in [c for c, when in last_report.items() if now > when + _SILENCE_SECONDS]:
                self._give_up(child, "says nothing any more")
                del last_report[child]
            if now > began + limit:
                for child in last_report:
                    self._give_up(child, "did not come to an end in time")
                break
            try:
                wait = min(again, now + _TICK_SECONDS) - now
                child, document = self._events.get(timeout=max(0.0, wait))
            except queue.Empty:
                continue
            if child not in last_report:
                continue  # one that was given up
            last_report[child] = time.monotonic()
            if document is None:
                del last_report[child]
                self._give_up(child, "")
            elif document["event"] == "answers":
                on_answers(self._add(child, document))
            else:
                del last_report[child]
                self.counters.update(document["counters"])
                self.gauges.update(document["gauges"])
                self.figures.append(document["figures"])
        return time.monotonic() - began

    def _add(self, child: ChildProcess, document: Mapping[str, Any]) -> list[LiveAnswer]:
        """Add a process's report; the answers that are new."""
        new = [LiveAnswer._make((*found, ByteCounts(*c))) for *found, c in document["answers"]]
        for answer in new:
            if answer.number in self.answers:
                raise RunError(child.name, f"instance {answer.number} was answered twice")
            self.answers[answer.number] = answer
        for number, late in document["late"]:
            before = self.answers[number]
            self.answers[number] = before._replace(bytes=before.bytes.plus(late))
        return new

    def _give_up(self, child: ChildProcess, why: str) -> None:
        """End a process: instances that it has not answered are lost, the others go on."""
        if why:
            child.kill()
        error = RunError(child.name, why or child.failure())
        numbers = self._alive.pop(child).number
        lost = sum(number not in self.answers for number in numbers.tolist())
        self.troubles.append(f"{error}; {lost} of its {len(numbers)} instances are lost")
        child.close()
