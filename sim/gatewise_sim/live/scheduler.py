"""One thread that works many devices: begins instances when they are due, ends them when it can.

A device of its own would look at one instance after the other; here an instance begins when it is
due, whatever else is under way (:meth:`.Device.begin`), and is looked after
(:meth:`.Device.advance`) when its request's time has come or its link has
delivered.
"""

from __future__ import annotations

import heapq
import queue
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count

import numpy as np
from numpy.typing import NDArray

from gatewise.errors import GatewiseError
from gatewise_edge.device.answer import Answer
from gatewise_edge.device.device import Device
from gatewise_edge.device.installed import Installed
from gatewise_edge.device.pending import Pending
from gatewise_export.bundle.bundle import Bundle
from gatewise_sim.live.metered import Desk, MeteredLink, Traffic
from gatewise_sim.live.outcome import Outcome

__all__ = ["Bell", "LogicalDevice", "Schedule", "Scheduler", "Seat"]

Bell = queue.SimpleQueue[int]
"""Where links leave the index of the device that they delivered to."""


class LogicalDevice(Device):
    """A device that shares its loaded stages with the others of its process.

    Parameters
    ----------
    shared : Installed
    **options
        As of :class:`gatewise_edge.device.device.Device`.
    """

    def __init__(self, shared: Installed, **options: object) -> None:
        self._shared = shared
        super().__init__(shared.bundle, check=False, **options)  # type: ignore[arg-type]

    def _load(self, bundle: Bundle, *, check: bool) -> Installed:
        return self._shared


@dataclass(frozen=True, slots=True)
class Seat:
    """A device at work.

    Attributes
    ----------
    name : str
    device : Device
    link : MeteredLink or None
    """

    name: str
    device: Device
    link: MeteredLink | None


@dataclass(frozen=True, slots=True, eq=False)
class Schedule:
    """The instances of a process's devices in one pass.

    Attributes
    ----------
    number, device, row : ndarray of int, shape (n,)
        Which instance of the whole pass, which of the process's devices, which row.
    time : ndarray of float64, shape (n,), or None
        When each comes, in seconds since the pass began, rising; None: a device begins with one
        when it has answered the one before, in this order.
    pause : float
        Seconds between the two.
    """

    number: NDArray[np.int64]
    device: NDArray[np.int64]
    row: NDArray[np.int64]
    time: NDArray[np.float64] | None
    pause: float = 0.0


@dataclass(slots=True, eq=False)
class _Flight:
    """An instance whose answer is not there yet."""

    at: int
    seat: int
    pending: Pending
    traffic: Traffic
    came: float
    wake_at: float = 0.0
    over: bool = False


@dataclass(eq=False)
class Scheduler:
    """Works the devices of a process through a pass.

    Parameters
    ----------
    seats : sequence of Seat
    rows : ndarray of float32, shape (n_rows, n_features)
    desk : Desk
        Gets the outcomes.
    bell : Bell
        Rung by the links.
    clock : callable, default time.monotonic

    Attributes
    ----------
    out : int
        Instances begun and not answered.
    behind : list of float
        How late each instance began, in seconds: what this thread adds to it. It is not part of
        the latency that a device measures.
    """

    seats: Sequence[Seat]
    rows: NDArray[np.float32]
    desk: Desk
    bell: Bell
    clock: Callable[[], float] = time.monotonic
    out: int = 0
    behind: list[float] = field(default_factory=list)

    def run(self, schedule: Schedule, began: float) -> None:
        """Return when every instance has its answer.

        Parameters
        ----------
        schedule : Schedule
        began : float
            On the clock: where the schedule's times count from. It may lie ahead.
        """
        self._schedule, self._began = schedule, began
        self._due: list[tuple[float, int, int | _Flight]] = []
        self._order = count()
        self._flights: list[list[_Flight]] = [[] for _ in self.seats]
        self._turns = [self._turn(seat) for seat in range(len(self.seats))]
        self._arrivals = iter(range(len(schedule.number)))
        self._left = len(schedule.number)
        if schedule.time is not None:
            self._next_arrival()
        else:
            for seat in range(len(self.seats)):
                self._next_turn(seat, began)
        while self._left:
            when, _, event = self._due[0]
            try:
                # What has come is looked at first: an answer should not wait for a beginning.
                self._delivered(self.bell.get(timeout=max(0.0, when - self.clock())))
                continue
            except queue.Empty:
                if self.clock() < when:
                    continue
            heapq.heappop(self._due)
            if isinstance(event, _Flight):
                event.wake_at = 0.0
                self._look_after(event)
            else:
                self._begin(event, when)

    # -- instances that come -----------------------------------------------------------------

    def _push(self, when: float, event: int | _Flight) -> None:
        heapq.heappush(self._due, (when, next(self._order), event))

    def _next_arrival(self) -> None:
        at = next(self._arrivals, None)
        if at is not None:
            assert self._schedule.time is not None
            self._push(self._began + float(self._schedule.time[at]), at)

    def _turn(self, seat: int) -> Iterator[int]:
        yield from np.flatnonzero(self._schedule.device == seat).tolist()

    def _next_turn(self, seat: int, when: float) -> None:
        at = next(self._turns[seat], None)
        if at is not None:
            self._push(when, at)

    def _begin(self, at: int, due: float) -> None:
        schedule = self._schedule
        if schedule.time is not None:
            self._next_arrival()
        now = self.clock()
        self.behind.append(now - due)
        self.out += 1
        index = int(schedule.device[at])
        seat = self.seats[index]
        traffic = Traffic(int(schedule.number[at]))
        came = now if schedule.time is None else due
        try:
            if seat.link is not None:
                seat.link.current = traffic
            step = seat.device.begin(self.rows[schedule.row[at]])
        except GatewiseError as error:
            self._end(at, index, traffic, came, _error(error, 1000.0 * (self.clock() - now)))
            return
        if isinstance(step, Answer):
            self._end(at, index, traffic, came, _outcome(step, None))
            return
        flight = _Flight(at, index, step, traffic, came)
        self._flights[index].append(flight)
        self._watch(flight)

    # -- instances that are out --------------------------------------------------------------

    def _watch(self, flight: _Flight) -> None:
        if flight.wake_at != flight.pending.wake_at:
            flight.wake_at = flight.pending.wake_at
            self._push(flight.wake_at, flight)

    def _delivered(self, index: int) -> None:
        for flight in tuple(self._flights[index]):
            self._look_after(flight)

    def _look_after(self, flight: _Flight) -> None:
        if flight.over:
            return
        seat = self.seats[flight.seat]
        try:
            if seat.link is not None:
                seat.link.current = flight.traffic
            step = seat.device.advance(flight.pending)
        except GatewiseError as error:
            spent = 1000.0 * (self.clock() - flight.pending.started)
            outcome = _error(error, spent)
        else:
            if isinstance(step, Pending):
                self._watch(flight)
                return
            outcome = _outcome(step, flight.pending)
        flight.over = True
        self._flights[flight.seat].remove(flight)
        self._end(flight.at, flight.seat, flight.traffic, flight.came, outcome)

    def _end(self, at: int, index: int, traffic: Traffic, came: float, outcome: Outcome) -> None:
        self.out -= 1
        self._left -= 1
        made = outcome._replace(
            row=int(self._schedule.row[at]),
            device=self.seats[index].name,
            number=traffic.number,
            time=came - self._began,
        )
        self.desk.hand_in(made, traffic)
        if self._schedule.time is None:
            self._next_turn(index, self.clock() + self._schedule.pause)


def _outcome(answer: Answer, pending: Pending | None) -> Outcome:
    device_ms, cloud_ms = answer.latency_ms, 0.0
    if pending is not None and pending.request is not None and pending.request.id:
        item = pending.request
        device_ms = 1000.0 * (item.opened - pending.started)
        response = None if item.outcome is None else item.outcome.response
        if answer.route == "cloud" and response is not None:
            cloud_ms = response.worker_us / 1000.0
    return Outcome(
        row=-1,
        route=answer.route,
        stage=answer.stage,
        label=answer.class_index,
        cost=answer.cost,
        feature_cost=answer.feature_cost,
        latency_ms=answer.latency_ms,
        up=0,
        down=0,
        payload_up=0,
        payload_down=0,
        device="",
        reason=answer.reason,
        device_ms=device_ms,
        cloud_ms=cloud_ms,
        paced=answer.paced,
    )


def _error(error: GatewiseError, latency_ms: float) -> Outcome:
    return Outcome(
        -1, "error", -1, -1, 0.0, 0.0, latency_ms, 0, 0, 0, 0, "", str(error), device_ms=latency_ms
    )
