"""The devices of a live run: processes of ``gatewise edge``, read line by line."""

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
from gatewise_edge.link.endpoint import Endpoint
from gatewise_edge.link.wire import status_topic
from gatewise_sim.errors import RunError
from gatewise_sim.fleet.workload import Arrivals
from gatewise_sim.live.workers import BROKER_VARIABLE
from gatewise_sim.scenario import Scenario

#: Longest time in which a device starts; all devices load their libraries at the same time.
_READY_SECONDS: Final = 60.0
#: Longest wait for the broker's answer to the subscription to the status of the devices.
_SUBSCRIBE_SECONDS: Final = 10.0
#: Longest time between two checks of the clock and of the devices.
_TICK_SECONDS: Final = 0.25
#: Time after the last deadline at which an unfinished run is stopped. A busy machine may delay
#: answers by seconds.
_GRACE_SECONDS: Final = 20.0
#: Largest number of unanswered instances of a device, so that they rarely wait for each other, as
#: they never do on a virtual device.
_PARALLEL: Final = 16

OutputLine = Mapping[str, Any]


class EdgeProcesses:
    """Processes of the devices.

    Parameters
    ----------
    stack : ExitStack
        Stack that stops the processes when it is closed.
    bundle : Path
        Bundle of the devices.
    scenario : Scenario
        Settings of the devices.
    devices : sequence of str
        Ids of the devices.
    broker : str
        URL of the broker, behind the emulated link.

    Attributes
    ----------
    lines : dict of int to dict
        Output line of each answered instance.
    counters : list of dict
        Counters of each device; empty unless it ended normally.
    send_delays : list of float
        Delay (s) with which each instance was sent to its device.
    troubles : list of str
        Processes that ended during the run.
    """

    def __init__(
        self,
        stack: ExitStack,
        bundle: Path,
        scenario: Scenario,
        devices: Sequence[str],
        broker: str,
    ) -> None:
        self.lines: dict[int, OutputLine] = {}
        self.counters: list[OutputLine] = [{} for _ in devices]
        self.send_delays: list[float] = []
        self.troubles: list[str] = []
        self._devices = devices
        # not a SimpleQueue: its `get` with a timeout can block forever (see tests/test_house.py)
        self._events: queue.Queue[tuple[int, OutputLine | None]] = queue.Queue()
        self._sent_instances: list[list[int]] = [[] for _ in devices]
        self._children: list[ChildProcess] = []
        stack.callback(lambda: close_all(self._children))
        for device_index, device in enumerate(devices):
            child = ChildProcess(
                f"device {device}",
                [
                    sys.executable,
                    "-m",
                    "gatewise",
                    "edge",
                    *_make_arguments(bundle, scenario, device),
                ],
                on_message=partial(self._put_event, device_index),
                environment={BROKER_VARIABLE: broker},
            )
            self._children.append(child)
        self._running_devices = set(range(len(devices)))

    def _put_event(self, device: int, _: ChildProcess, line: OutputLine | None) -> None:
        self._events.put((device, line))

    def wait_ready(self, broker: str) -> None:
        """Wait until every device is online at a broker; RunError if one ends first."""
        online_devices: set[str] = set()

        def receive(message: Any) -> None:
            if message.payload and not message.payload.startswith(b"offline"):
                online_devices.add(message.topic.split("/")[2])

        def are_all_online() -> bool:
            for child in self._children:
                if not child.is_alive:
                    raise RunError(child.name, child.wait_for_failure())
            return len(online_devices) == len(self._devices)

        # Processes that start together load their libraries slowly.
        seconds = _READY_SECONDS + len(self._devices)
        topics = [status_topic(device) for device in self._devices]
        session = subscribed(
            Endpoint(broker), *topics, on_message=receive, timeout_seconds=_SUBSCRIBE_SECONDS
        )
        with session as (client, _):
            if not run_until(client, are_all_online, seconds):
                names = ", ".join(sorted(set(self._devices) - online_devices))
                raise RunError(f"device {names}", "it did not start in time")

    def run(
        self,
        arrivals: Arrivals,
        instances: Sequence[Any],
        deadline: float,
        *,
        start_time: float,
        tick: Callable[[float], float],
    ) -> None:
        """Send each instance to its device at its time of arrival, and read the output.

        Parameters
        ----------
        arrivals : Arrivals
            Instances, with times since `start_time`.
        instances : sequence
            Input of a device for each row, as JSON values.
        deadline : float
            Time to each answer, in s.
        start_time : float
            Start of the run on the monotonic clock.
        tick : callable
            Called with the seconds since `start_time`; returns the time of the next call.
        """
        due_times = (start_time + arrivals.time).tolist()
        stop_time = (due_times[-1] if due_times else start_time) + deadline + _GRACE_SECONDS
        n_sent = 0
        next_tick = start_time
        while n_sent < len(due_times) or self._n_unanswered:
            now = time.monotonic()
            if now >= next_tick:
                next_tick = start_time + tick(now - start_time)
            if now > stop_time or not self._running_devices:
                break
            due_time = due_times[n_sent] if n_sent < len(due_times) else stop_time
            if due_time <= now:
                self._send_instance(n_sent, arrivals, instances)
                self.send_delays.append(now - due_time)
                n_sent += 1
                continue
            self._read_event(min(due_time, next_tick, now + _TICK_SECONDS) - now)

    @property
    def _n_unanswered(self) -> int:
        """Number of unanswered instances at devices that run."""
        return sum(
            instance not in self.lines
            for device in self._running_devices
            for instance in self._sent_instances[device]
        )

    def _send_instance(self, instance: int, arrivals: Arrivals, instances: Sequence[Any]) -> None:
        device = int(arrivals.device[instance])
        if device in self._running_devices:
            self._sent_instances[device].append(instance)
            self._children[device].send(instances[arrivals.row[instance]])

    def _read_event(self, seconds: float) -> None:
        try:
            device, line = self._events.get(timeout=max(0.0, seconds))
        except queue.Empty:
            return
        if line is None:
            self._running_devices.discard(device)
            if not self.counters[device]:
                child = self._children[device]
                self.troubles.append(
                    f"{child.name} ended: {child.wait_for_failure()}; its instances are lost"
                )
        elif "summary" in line:
            self.counters[device] = line["summary"]["counters"]
        elif "row" in line:
            self.lines[self._sent_instances[device][line["row"]]] = line

    def stop(self, seconds: float) -> None:
        """Stop the devices, and read their counters."""
        for child in self._children:
            child.request_end()
        stop_deadline = time.monotonic() + seconds
        while self._running_devices and time.monotonic() < stop_deadline:
            self._read_event(_TICK_SECONDS)
        close_all(self._children)


def _make_arguments(bundle: Path, scenario: Scenario, device: str) -> list[str]:
    arguments = [str(bundle), "--device", device, "--data", "-", "--json"]
    arguments += ["--deadline-ms", str(scenario.deadline_ms), "--policy", scenario.policy]
    arguments += ["--parallel", str(_PARALLEL)]
    if scenario.max_offloads is not None:
        arguments += ["--max-offloads", scenario.max_offloads]
    if scenario.audit is not None:
        arguments += ["--audit", str(scenario.audit)]
    return arguments
