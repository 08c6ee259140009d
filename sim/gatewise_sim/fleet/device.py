"""A device in virtual time: the real bookkeeping of requests, breaker and pacer, on a virtual link.

Follows :class:`gatewise_edge.course.Course` and :class:`gatewise_edge.uplink.Uplink` step by step;
what the stages and the cloud say comes from :class:`~gatewise_sim.fleet.routing.Routes`. Each row
is a request of its own (no coalescing), and a device looks at several instances at a time.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import numpy as np

from gatewise_edge.breaker import Breaker
from gatewise_edge.offload import RESEND, Offloads, Outstanding
from gatewise_edge.pacer import Pace
from gatewise_edge.wire import Response
from gatewise_sim.fleet.answers import REASON, Answers
from gatewise_sim.fleet.worker import VirtualTicket
from gatewise_sim.live.outcome import PUBACK_BYTES
from gatewise_sim.network.direction import VirtualLink

if TYPE_CHECKING:
    from gatewise_sim.fleet.world import World

__all__ = ["VirtualDevice"]

_EDGE: Final = 0
_CLOUD: Final = 1
_FALLBACK: Final = 2
_ERROR: Final = 3
_ONE_ROW: Final = np.zeros((1, 0), np.float32)

Then = Callable[[], None]


class VirtualDevice:
    """One device.

    Parameters
    ----------
    world : World
        All that devices share.
    index : int
    way : VirtualLink
        Its link.
    breaker : Breaker or None
    pace : Pace or None
        Its pacer at work on the bundle's gate.
    """

    __slots__ = ("_breaker", "_pace", "_way", "_world", "index", "name", "offloads")

    def __init__(
        self, world: World, index: int, way: VirtualLink, breaker: Breaker | None, pace: Pace | None
    ) -> None:
        self.index = index
        self.name = f"{index:08d}"
        self.offloads = Offloads(
            limit=world.settings.outstanding,
            counts=world.offload_counts,
            on_outcome=self._settled,
        )
        self._world = world
        self._way = way
        self._breaker = breaker
        self._pace = pace

    def take(self, answers: Answers, i: int, then: Then | None = None) -> None:
        """Decide about an instance whose stages have just ended, and see to its answer.

        Parameters
        ----------
        answers : Answers
        i : int
            Which of them is to be filled in.
        then : callable, optional
            Called once it is.
        """
        world, routes = self._world, self._world.routes
        row = int(answers.row[i])
        sends = bool(world.sends[row])
        if self._pace is not None and self._pace.moved and not math.isnan(routes.score[row]):
            threshold = self._pace.threshold()
            sends = threshold is None or not bool(routes.score[row] >= np.float32(threshold))
            sends = sends and bool(world.askable[row])
            answers.paced[i] = True
        if sends:
            self._ask(answers, i, row, then)
        else:
            world.answer_here(answers, i)
            self._observe(answers, i, row, asked=False)
            if then is not None:
                then()

    def _ask(self, answers: Answers, i: int, row: int, then: Then | None) -> None:
        world = self._world
        now = world.clock.now
        deadline = float(answers.time[i]) + world.limit - world.guard
        why = self._admit(now, deadline)
        bought = False
        item: Outstanding | None = None
        if why is None:
            bought = True
            ttl_ms = math.floor(1000.0 * (deadline - now))
            if ttl_ms <= 0:
                why = "deadline"
                if self._breaker is not None:
                    self._breaker.release(now)
            else:
                item = self.offloads.open(world.new_request(), b"", now, deadline)
        if item is None:
            self._fall_back(answers, i, row, why or "full", bought=bought, asked=False, then=then)
            return
        flight = _Flight(self, item, answers, i, row, ttl_ms / 1000.0, then)
        flight.transmit(world.sizes.request(ttl_ms))
        world.clock.at(item.wake_at, flight.wake)

    def _admit(self, now: float, deadline: float) -> str | None:
        """See :meth:`gatewise_edge.uplink.Uplink.admit`."""
        if not self._world.weather.ready:
            return "link-down"
        if len(self.offloads) >= self.offloads.limit:
            self.offloads.counts.full += 1
            return "full"
        if self._breaker is not None and not self._breaker.admit(now, deadline):
            return "breaker-open"
        return None

    def _settled(self, item: Outstanding, now: float) -> None:
        if self._breaker is not None and item.outcome is not None:
            replied = item.outcome.response is not None
            self._breaker.record(replied, asked=item.opened, now=now)

    def _conclude(self, flight: _Flight) -> None:
        """See :meth:`gatewise_edge.course.Course.proceed`."""
        outcome = flight.item.outcome
        assert outcome is not None
        flight.over = True
        answers, i, row = flight.answers, flight.i, flight.row
        if outcome.kind != "answered":
            error = None if outcome.response is None else outcome.response.error
            why = "timeout" if error is None else f"cloud:{error}"
            self._fall_back(answers, i, row, why, bought=True, asked=True, then=flight.then)
            return
        world, routes = self._world, self._world.routes
        features = routes.alone_cost if world.cloud_only else float(routes.asked_cost[row])
        answers.route[i] = _CLOUD
        answers.stage[i] = routes.cloud_stage[row]
        answers.label[i] = routes.cloud_label[row]
        answers.feature_cost[i] = features
        answers.cost[i] = features + world.cloud_price[row]
        answers.reason[i] = REASON["cloud-only" if world.cloud_only else "offloaded"]
        self._end(answers, i, row, asked=True, then=flight.then)

    def _fall_back(
        self,
        answers: Answers,
        i: int,
        row: int,
        why: str,
        *,
        bought: bool,
        asked: bool,
        then: Then | None,
    ) -> None:
        routes = self._world.routes
        features = float((routes.asked_cost if bought else routes.local_cost)[row])
        answers.route[i] = _ERROR if routes.local_label[row] < 0 else _FALLBACK
        answers.stage[i] = routes.exit[row]
        answers.label[i] = routes.local_label[row]
        answers.feature_cost[i] = features
        answers.cost[i] = features + (routes.plan.request_price if asked else 0.0)
        answers.reason[i] = REASON[why]
        self._end(answers, i, row, asked=asked, then=then)

    def _end(self, answers: Answers, i: int, row: int, *, asked: bool, then: Then | None) -> None:
        world = self._world
        late = 0.0
        if world.cloud_only and answers.route[i] != _CLOUD:
            late = float(world.edge_seconds[row])  # the stages run only now
        answers.latency_ms[i] = 1000.0 * (world.clock.now + late - float(answers.time[i]))
        self._observe(answers, i, row, asked=asked)
        if then is not None:
            then()

    def _observe(self, answers: Answers, i: int, row: int, *, asked: bool) -> None:
        """See :meth:`gatewise_edge.ledger.Ledger.answered`."""
        if self._pace is None:
            return
        used = None
        if asked or answers.route[i] == _EDGE:
            size = float(answers.payload_up[i] + answers.payload_down[i])
            used = self._pace.used(sent=asked, size=size, cost=float(answers.cost[i]))
        score = float(self._world.routes.score[row])
        self._pace.observe(None if math.isnan(score) else score, used, self._world.clock.now)


class _Flight:
    """One request of a device: what is sent for it, and what comes back."""

    __slots__ = ("answers", "device", "i", "item", "over", "row", "size", "then", "ttl")

    def __init__(
        self,
        device: VirtualDevice,
        item: Outstanding,
        answers: Answers,
        i: int,
        row: int,
        ttl: float,
        then: Then | None,
    ) -> None:
        self.device = device
        self.item = item
        self.answers = answers
        self.i = i
        self.row = row
        self.ttl = ttl
        self.then = then
        self.size = 0
        self.over = False

    def transmit(self, payload: int) -> None:
        """Hand the request to the link."""
        world, answers, i = self.device._world, self.answers, self.i
        self.size = payload
        packet = payload + world.request_head(payload)
        answers.payload_up[i] += payload
        answers.up[i] += packet
        if world.weather.carries:
            due = self.device._way.send(world.clock.now, packet, True)
            world.clock.at(due, self._at_broker)

    def wake(self) -> None:
        """See :meth:`gatewise_edge.uplink.Uplink.poll`."""
        if self.over:
            return
        device, item = self.device, self.item
        step = device.offloads.poll(item, device._world.clock.now)
        if step == RESEND:
            self.transmit(self.size)
        if item.outcome is not None:
            device._conclude(self)
        else:
            device._world.clock.at(item.wake_at, self.wake)

    def _at_broker(self) -> None:
        world = self.device._world
        if not world.weather.broker_up:
            return
        self.answers.down[self.i] += PUBACK_BYTES
        world.broker.pass_on(world.broker.deal, self._ticket)

    def _ticket(self, now: float) -> VirtualTicket:
        plan = self.device._world.routes.plan
        return VirtualTicket(
            device=self.device.name,
            id=self.item.id,
            digest=b"",
            model=(plan.model, plan.version),
            rows=_ONE_ROW,
            arrived=now,
            expires=now + self.ttl,
            flight=self,
        )

    def reply(self, error: str | None, worker_us: int) -> None:
        """See :class:`gatewise_sim.fleet.worker.Flight`."""
        world = self.device._world
        size = world.sizes.busy if error is not None else world.sizes.response(worker_us)
        world.broker.back(self._leave_broker, error, size)

    def _leave_broker(self, error: str | None, size: int) -> None:
        world = self.device._world
        if world.weather.carries:
            packet = size + world.response_head(size)
            due = self.device._way.send(world.clock.now, packet, False)
            world.clock.at(due, self._arrive, error, size, packet)

    def _arrive(self, error: str | None, size: int, packet: int) -> None:
        device, answers, i = self.device, self.answers, self.i
        world = device._world
        answers.payload_down[i] += size
        answers.down[i] += packet
        answers.up[i] += PUBACK_BYTES
        response: Response = world.response(self.item.id, error)
        item = device.offloads.receive(response, world.clock.now)
        if self.over:
            return
        if item is not None and item.outcome is not None:
            device._conclude(self)
        elif self.item.outcome is None:
            # An error may have moved the time of the retry.
            world.clock.at(self.item.wake_at, self.wake)
