"""The devices of a live run: a ``gatewise edge`` each, read line by line."""

from __future__ import annotations

import queue
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Final

from gatewise_cloud.broker.mqtt_client import run_until, subscribed
from gatewise_cloud.child_process import ChildProcess, close_all
from gatewise_edge.link.broker_url import Endpoint
from gatewise_edge.link.wire import status_topic
from gatewise_sim.errors import RunError
from gatewise_sim.fleet.workload import Arrivals
from gatewise_sim.live.deployment import BROKER_VARIABLE
from gatewise_sim.scenario import Scenario

_READY_SECONDS: Final = 60.0
#: Longest time for which nothing is looked at.
_TICK_SECONDS: Final = 0.25
#: From the last deadline until a run that has not ended is ended.
_GRACE_SECONDS: Final = 20.0
#: Instances of a device under way at a time.
_PARALLEL: Final = 16

Line = Mapping[str, Any]


class EdgeProcesses:
    """Processes of the `devices`, which answer with a `bundle` and end with `stack`.

    `broker` is the URL behind the emulated link. `lines` are the devices' by number of the
    instance; `counters` each device's at its end, empty if it did not end in good order; `behind`
    how much later than due each instance was given to its device (s); `troubles` name processes
    that ended on the way.
    """

    def __init__(
        self,
        stack: ExitStack,
        bundle: Path,
        scenario: Scenario,
        devices: Sequence[str],
        broker: str,
    ) -> None:
        self.lines: dict[int, Line] = {}
        self.counters: list[Line] = [{} for _ in devices]
        self.behind: list[float] = []
        self.troubles: list[str] = []
        self._devices = devices
        # Not a SimpleQueue: its `get` with a timeout can wait for ever (see tests/test_house.py).
        self._events: queue.Queue[tuple[int, Line | None]] = queue.Queue()
        self._numbers: list[list[int]] = [[] for _ in devices]
        self._children: list[ChildProcess] = []
        stack.callback(lambda: close_all(self._children))
        for i, device in enumerate(devices):
            child = ChildProcess(
                f"device {device}",
                [sys.executable, "-m", "gatewise", "edge", *_words(bundle, scenario, device)],
                on_message=partial(self._put_event, i),
                environment={BROKER_VARIABLE: broker},
            )
            self._children.append(child)
        self._running = set(range(len(devices)))

    def _put_event(self, device: int, _: ChildProcess, line: Line | None) -> None:
        self._events.put((device, line))

    def wait_ready(self, broker: str) -> None:
        """Wait until every device is online at a broker; RunError if one ends instead."""
        online: set[str] = set()

        def take(message: Any) -> None:
            if message.payload and not message.payload.startswith(b"offline"):
                online.add(message.topic.split("/")[2])

        def done() -> bool:
            ended = next((child for child in self._children if not child.alive), None)
            if ended is not None:
                raise RunError(ended.name, ended.failure())
            return len(online) == len(self._devices)

        # Each process takes its time to load its libraries.
        seconds = _READY_SECONDS + len(self._devices)
        topics = [status_topic(device) for device in self._devices]
        with subscribed(Endpoint(broker), *topics, on_message=take, timeout=10.0) as (client, _):
            if not run_until(client, done, seconds):
                waiting = ", ".join(sorted(set(self._devices) - online))
                raise RunError(f"device {waiting}", "no sign of life; giving up")

    def run(
        self,
        arrivals: Arrivals,
        instances: Sequence[Any],
        deadline: float,
        *,
        began: float,
        tick: Callable[[float], float],
    ) -> None:
        """Give each instance to its device when it is due, and read the lines.

        `instances` are the rows as a device takes them, fit for JSON; an answer has a `deadline`
        (s). Arrivals count from `began`, on the monotonic clock; `tick` gets the seconds since
        then, and returns when to be called again.
        """
        times = (began + arrivals.time).tolist()
        end = (times[-1] if times else began) + deadline + _GRACE_SECONDS
        following, again = 0, began
        while following < len(times) or self._open:
            now = time.monotonic()
            if now >= again:
                again = began + tick(now - began)
            if now > end or not self._running:
                break
            due = times[following] if following < len(times) else end
            if due <= now:
                self._give(following, arrivals, instances)
                self.behind.append(now - due)
                following += 1
                continue
            self._take_event(min(due, again, now + _TICK_SECONDS) - now)

    @property
    def _open(self) -> int:
        """Instances under way at devices that still run."""
        return sum(len(self._numbers[i]) for i in self._running) - sum(
            1 for i in self._running for number in self._numbers[i] if number in self.lines
        )

    def _give(self, number: int, arrivals: Arrivals, instances: Sequence[Any]) -> None:
        device = int(arrivals.device[number])
        if device in self._running:
            self._numbers[device].append(number)
            self._children[device].send(instances[arrivals.row[number]])

    def _take_event(self, seconds: float) -> None:
        try:
            device, line = self._events.get(timeout=max(0.0, seconds))
        except queue.Empty:
            return
        if line is None:
            self._running.discard(device)
            if not self.counters[device]:
                child = self._children[device]
                self.troubles.append(
                    f"{child.name} ended: {child.failure()}; its instances are lost"
                )
        elif "summary" in line:
            self.counters[device] = line["summary"]["counters"]
        elif "row" in line:
            self.lines[self._numbers[device][line["row"]]] = line

    def stop(self, seconds: float) -> None:
        """Let the devices end, and read their counters."""
        for child in self._children:
            child.release()
        end = time.monotonic() + seconds
        while self._running and time.monotonic() < end:
            self._take_event(_TICK_SECONDS)
        close_all(self._children)


def _words(bundle: Path, scenario: Scenario, device: str) -> list[str]:
    words = [str(bundle), "--device", device, "--data", "-", "--json"]
    words += ["--deadline-ms", str(scenario.deadline_ms), "--policy", scenario.policy]
    words += ["--parallel", str(_PARALLEL)]
    if scenario.max_offloads is not None:
        words += ["--max-offloads", scenario.max_offloads]
    if scenario.audit is not None:
        words += ["--audit", str(scenario.audit)]
    return words
