"""A device in virtual time: the real bookkeeping of requests, breaker and pacer, on a virtual link.

Follows :class:`.OffloadFlow` and :class:`.Uplink` step by step;
what the stages and the cloud say comes from :class:`~gatewise_sim.fleet.routes.Routes`. Each row
is a request of its own (no coalescing), and a device looks at several instances at a time.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import numpy as np

from gatewise_edge.device.pacer import Pace
from gatewise_edge.link.offload import InFlight, Offloads
from gatewise_sim.fleet.answers import REASON, Answers
from gatewise_sim.fleet.complete_answers import answer_here, fill_in
from gatewise_sim.fleet.flight import Flight, Then
from gatewise_sim.fleet.lazy_breaker import LazyBreaker
from gatewise_sim.fleet.network.direction import VirtualLink

if TYPE_CHECKING:
    from gatewise_sim.fleet.state import World

__all__ = ["VirtualDevice"]

_EDGE: Final = 0
_CLOUD: Final = 1
_FALLBACK: Final = 2
_ERROR: Final = 3


class VirtualDevice:
    """One device.

    Parameters
    ----------
    world : World
        All that devices share.
    index : int
    way : VirtualLink
        Its link.
    breaker : LazyBreaker or None
    pace : Pace or None
        Its pacer at work on the bundle's gate.
    """

    __slots__ = ("_breaker", "_pace", "name", "offloads", "way", "world")

    def __init__(
        self,
        world: World,
        index: int,
        way: VirtualLink,
        breaker: LazyBreaker | None,
        pace: Pace | None,
    ) -> None:
        self.name = f"{index:08d}"
        self.offloads = Offloads(
            limit=world.settings.outstanding,
            counts=world.offload_counts,
            on_outcome=self._settled,
        )
        self.world = world
        self.way = way
        self._breaker = breaker
        self._pace = pace

    def take(self, answers: Answers, i: int, row: int, then: Then | None = None) -> None:
        """Decide about an instance whose stages have just ended, and see to its answer.

        Parameters
        ----------
        answers : Answers
        i : int
            Which of them is to be filled in: route, reason, latency and bytes, and all of an answer
            that stays here; :func:`gatewise_sim.fleet.complete_answers.fill_in` does the rest.
        row : int
            Which row it is.
        then : callable, optional
            Called once it is.
        """
        world = self.world
        sends = world.sends_row[row]
        if self._pace is not None and self._pace.moved:
            score = world.routes.score[row]
            if not math.isnan(score):
                threshold = self._pace.threshold()
                sends = threshold is None or not bool(score >= np.float32(threshold))
                sends = sends and bool(world.askable[row])
                answers.paced[i] = True
        if sends:
            self._ask(answers, i, row, then)
        else:
            answer_here(world, answers, i)
            self._observe(answers, i, row, asked=False)
            if then is not None:
                then()

    def _ask(self, answers: Answers, i: int, row: int, then: Then | None) -> None:
        world = self.world
        now = world.clock.now
        deadline = answers.time.item(i) + world.limit - world.guard
        why = self._admit(now, deadline)
        item: InFlight | None = None
        if why is None:
            ttl_ms = math.floor(1000.0 * (deadline - now))
            if ttl_ms <= 0:
                why = "deadline"
                if self._breaker is not None:
                    self._breaker.release(now)
            else:
                item = world.messages.request(deadline)
                if not self.offloads.open(item, now):
                    item = None
        if item is None:
            self._fall_back(answers, i, row, why or "full", then)
            return
        flight = Flight(self, item, answers, i, row, ttl_ms / 1000.0, then)
        flight.transmit(world.sizes.request(ttl_ms))
        world.clock.at(item.wake_at, flight.wake)

    def _admit(self, now: float, deadline: float) -> str | None:
        """See :meth:`gatewise_edge.link.uplink.Uplink.admit`."""
        if not (self.world.calm or self.world.weather.ready):
            return "link-down"
        if len(self.offloads) >= self.offloads.limit:
            self.offloads.counts.full += 1
            return "full"
        if self._breaker is not None and not self._breaker.admit(now, deadline):
            return "breaker-open"
        return None

    def _settled(self, item: InFlight, now: float) -> None:
        if self._breaker is not None and item.outcome is not None:
            replied = item.outcome.response is not None
            self._breaker.record(replied, asked=item.opened, now=now)

    def conclude(self, flight: Flight) -> None:
        """End a request, see :meth:`gatewise_edge.device.offload_flow.OffloadFlow.proceed`."""
        outcome = flight.item.outcome
        assert outcome is not None
        flight.over = True
        flight.enter_bytes()
        answers, i, row = flight.answers, flight.i, flight.row
        if outcome.kind != "answered":
            error = None if outcome.response is None else outcome.response.error
            why = "timeout" if error is None else f"cloud:{error}"
            self._fall_back(answers, i, row, why, flight.then, asked=True)
            return
        answers.route[i] = _CLOUD
        answers.reason[i] = self.world.answered_reason
        answers.cloud_ms[i] = flight.worker_us / 1000.0
        self._end(answers, i, row, 0.0, flight.then, asked=True)

    def _fall_back(
        self,
        answers: Answers,
        i: int,
        row: int,
        why: str,
        then: Then | None,
        *,
        asked: bool = False,
    ) -> None:
        world = self.world
        answers.route[i] = _ERROR if world.mute[row] else _FALLBACK
        answers.reason[i] = REASON[why]
        # A device that asks first runs its stages only now.
        late = float(world.edge_seconds[row]) if world.cloud_only else 0.0
        self._end(answers, i, row, late, then, asked=asked)

    def _end(
        self, answers: Answers, i: int, row: int, late: float, then: Then | None, *, asked: bool
    ) -> None:
        answers.latency_ms[i] = 1000.0 * (self.world.clock.now + late - answers.time.item(i))
        self._observe(answers, i, row, asked=asked)
        if then is not None:
            then()

    def _observe(self, answers: Answers, i: int, row: int, *, asked: bool) -> None:
        """See :meth:`gatewise_edge.device.device_stats.DeviceStats.answered`."""
        if self._pace is None:
            return
        world, used = self.world, None
        if asked or answers.route[i] == _EDGE:
            one = answers.take(np.array([i]))
            fill_in(world, one)
            size = float(one.payload_up[0] + one.payload_down[0])
            used = self._pace.used(sent=asked, size=size, cost=float(one.cost[0]))
        score = float(world.routes.score[row])
        self._pace.observe(None if math.isnan(score) else score, used, world.clock.now)
