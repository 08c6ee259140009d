"""One thread that works many devices: begins instances when they are due, ends them when it can.

A device of its own would handle one instance after the other; here an instance begins when it is
due, whatever else is under way (:meth:`.Device.begin`), and advances (:meth:`.Device.advance`)
when its request's time has come or its link has delivered.
"""

from __future__ import annotations

import heapq
import queue
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gatewise.errors import GatewiseError
from gatewise_edge.device.answer import Answer
from gatewise_edge.device.device import Device
from gatewise_edge.device.installed import InstalledBundle
from gatewise_edge.device.pending import Pending
from gatewise_export.bundle.bundle import Bundle
from gatewise_sim.live.metered import AnswerBox, InstanceTraffic, LiveAnswer, MeteredLink

Deliveries = queue.SimpleQueue[int]
"""Where links leave the index of the device that they delivered to."""


class LogicalDevice(Device):
    """A device that shares its loaded stages with the others of its process."""

    def __init__(self, shared: InstalledBundle, **options: object) -> None:
        self._shared = shared
        super().__init__(shared.bundle, check=False, **options)  # type: ignore[arg-type]

    def _load(self, bundle: Bundle, *, check: bool) -> InstalledBundle:
        return self._shared


@dataclass(frozen=True, slots=True)
class DeviceSlot:
    """A device at work, with its name and link."""

    name: str
    device: Device
    link: MeteredLink | None


@dataclass(frozen=True, eq=False)
class Schedule:
    """The instances of a process's devices, arrays of shape (n,).

    `number` counts in the whole run, `device` among the process's. `time` is in seconds since the
    run began, rising; None: a device begins with one when it has answered the one before, in this
    order, after a `pause` (s).
    """

    number: NDArray[np.int64]
    device: NDArray[np.int64]
    row: NDArray[np.int64]
    time: NDArray[np.float64] | None
    pause: float = 0.0


@dataclass(slots=True, eq=False)
class _Open:
    """An instance without an answer so far; `came` is when, `started` when the device began."""

    at: int
    slot: int
    traffic: InstanceTraffic
    came: float
    started: float
    pending: Pending | None = None
    wake_at: float = 0.0
    over: bool = False


@dataclass(eq=False)
class Scheduler:
    """Works the devices of a process through a schedule; the answers go to `box`.

    `behind` is how much later than due each instance began (s): this machine's doing, and not part
    of the latency that a device measures.
    """

    slots: Sequence[DeviceSlot]
    rows: NDArray[np.float32]
    box: AnswerBox
    deliveries: Deliveries
    clock: Callable[[], float] = time.monotonic
    behind: list[float] = field(default_factory=list)

    def run(self, schedule: Schedule, began: float) -> None:
        """Return when every instance has its answer.

        The schedule's times count from `began` on the clock, which may lie ahead.
        """
        self._schedule, self._began = schedule, began
        self._due: list[tuple[float, int, int | _Open]] = []
        self._order = count()
        self._open: list[list[_Open]] = [[] for _ in self.slots]
        self._turns = [self._turn(slot) for slot in range(len(self.slots))]
        self._arrivals = iter(range(len(schedule.number)))
        self._left = len(schedule.number)
        if schedule.time is not None:
            self._next_arrival()
        else:
            for slot in range(len(self.slots)):
                self._next_turn(slot, began)
        while self._left:
            when, _, event = self._due[0]
            try:
                # Deliveries come first: an answer should not wait for a beginning.
                index = self.deliveries.get(timeout=max(0.0, when - self.clock()))
                for instance in tuple(self._open[index]):
                    self._advance(instance)
                continue
            except queue.Empty:
                if self.clock() < when:
                    continue
            heapq.heappop(self._due)
            if isinstance(event, _Open):
                event.wake_at = 0.0
                self._advance(event)
            else:
                self._begin(event, when)

    # -- instances that come -----------------------------------------------------------------

    def _push(self, when: float, event: int | _Open) -> None:
        heapq.heappush(self._due, (when, next(self._order), event))

    def _next_arrival(self) -> None:
        at = next(self._arrivals, None)
        if at is not None:
            assert self._schedule.time is not None
            self._push(self._began + float(self._schedule.time[at]), at)

    def _turn(self, slot: int) -> Iterator[int]:
        yield from np.flatnonzero(self._schedule.device == slot).tolist()

    def _next_turn(self, slot: int, when: float) -> None:
        at = next(self._turns[slot], None)
        if at is not None:
            self._push(when, at)

    def _begin(self, at: int, due: float) -> None:
        schedule = self._schedule
        if schedule.time is not None:
            self._next_arrival()
        now = self.clock()
        self.behind.append(now - due)
        index = int(schedule.device[at])
        slot = self.slots[index]
        instance = _Open(
            at,
            index,
            InstanceTraffic(int(schedule.number[at])),
            came=now if schedule.time is None else due,
            started=now,
        )
        self._work(instance, lambda: slot.device.begin(self.rows[schedule.row[at]]))

    # -- instances that are out --------------------------------------------------------------

    def _advance(self, instance: _Open) -> None:
        pending = instance.pending
        if not instance.over and pending is not None:
            device = self.slots[instance.slot].device
            self._work(instance, lambda: device.advance(pending))

    def _work(self, instance: _Open, work: Callable[[], Answer | Pending]) -> None:
        """Have the device work on an instance, until it answers or waits for its cloud."""
        slot = self.slots[instance.slot]
        try:
            if slot.link is not None:
                slot.link.current = instance.traffic
            step = work()
        except GatewiseError as error:
            self._end(instance, _error(error, 1000.0 * (self.clock() - instance.started)))
            return
        if isinstance(step, Answer):
            self._end(instance, _answered(step, instance.pending))
            return
        if instance.pending is None:
            self._open[instance.slot].append(instance)
        instance.pending, instance.started = step, step.started
        if instance.wake_at != step.wake_at:
            instance.wake_at = step.wake_at
            self._push(step.wake_at, instance)

    def _end(self, instance: _Open, found: dict[str, Any]) -> None:
        instance.over = True
        if instance.pending is not None:
            self._open[instance.slot].remove(instance)
        self._left -= 1
        answer = LiveAnswer(
            number=instance.traffic.number,
            time=instance.came - self._began,
            **found,
        )
        self.box.add(answer, instance.traffic)
        if self._schedule.time is None:
            self._next_turn(instance.slot, self.clock() + self._schedule.pause)


def _answered(answer: Answer, pending: Pending | None) -> dict[str, Any]:
    """What a live answer takes from the device's, and how its latency divides."""
    device_ms, cloud_ms = answer.latency_ms, 0.0
    if pending is not None and pending.request is not None:
        request = pending.request
        device_ms = 1000.0 * (request.sent_at - pending.started)
        if answer.route == "cloud" and request.response is not None:
            cloud_ms = request.response.worker_us / 1000.0
    same = ("route", "stage", "cost", "feature_cost", "latency_ms", "reason")
    return {
        **{name: getattr(answer, name) for name in same},
        "label": answer.class_index,
        "device_ms": device_ms,
        "cloud_ms": cloud_ms,
        "held": pending is None and answer.reason == "cloud:busy",
    }


def _error(error: GatewiseError, latency_ms: float) -> dict[str, Any]:
    """Fields of a live answer in the place of which there is an error."""
    times = {"latency_ms": latency_ms, "device_ms": latency_ms}
    return {"route": "error", "stage": -1, "label": -1, "reason": str(error), **times}
