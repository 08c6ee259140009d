"""All that the devices of a simulated fleet share, and the two ways in which instances come."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from gatewise_cloud.batcher import Plan
from gatewise_edge.breaker import Breaker, BreakerCounts
from gatewise_edge.messages import Request, Response
from gatewise_edge.offload import OffloadCounts, RoundTrip
from gatewise_edge.pacer import Pace, Pacer
from gatewise_edge.wire import request_topic, response_topic
from gatewise_sim.clock import Clock
from gatewise_sim.fleet.answers import REASON, Answers
from gatewise_sim.fleet.device import VirtualDevice
from gatewise_sim.fleet.net import Broker, Weather
from gatewise_sim.fleet.routing import NO_LABEL, Routes
from gatewise_sim.fleet.settings import FleetSettings
from gatewise_sim.fleet.worker import VirtualWorker
from gatewise_sim.live.outcome import publish_bytes
from gatewise_sim.network.direction import VirtualLink
from gatewise_training.errors import InputError

__all__ = ["World", "device_rng"]

_GUARD: Final = 0.005  # as the device keeps before its deadline
_NAME: Final = "0" * 8
_TRIPS: Final = 32
Message = TypeVar("Message", Request, Response)


class World:
    """All that the devices of a run share.

    Parameters
    ----------
    routes : Routes
    settings : FleetSettings
    """

    def __init__(self, routes: Routes, settings: FleetSettings) -> None:
        self.routes, self.settings, self.sizes = routes, settings, routes.sizes
        self.clock = Clock()
        self.cloud_only = settings.policy == "cloud-only"
        if self.cloud_only and not routes.plan.has_cloud:
            raise InputError("policy cloud-only: the bundle has no cloud model")
        self.askable = routes.cloud_label != NO_LABEL
        self.sends = {
            "system": routes.offload,
            "edge-only": np.zeros(len(routes), bool),
            "cloud-only": self.askable,
        }[settings.policy]
        self.cloud_price = routes.cloud_price
        self.edge_seconds = _edge_seconds(routes, settings.edge_ms)
        self.limit = settings.deadline_ms / 1000.0
        self.guard = min(_GUARD, settings.deadline_ms / 1e4)

        service_rng = random.Random(f"{settings.seed}/service")
        self.workers = [
            VirtualWorker(
                self.clock,
                settings.service,
                capacity=settings.queue,
                plan=Plan(settings.max_batch, settings.wait_ms / 1000.0),
                parallel=settings.parallel,
                payload=bytes(self.sizes.response(1000)),
                rng=service_rng,
            )
            for _ in range(settings.workers)
        ]
        self.weather = Weather(self.clock, settings.outages, self.workers, seconds=settings.seconds)
        self.broker = Broker(
            self.clock,
            self.weather,
            self.workers,
            message=settings.broker_us / 1e6,
            hop=settings.hop_ms / 1000.0,
        )
        plan = routes.plan
        columns = max(len(plan.request_inputs), 1)
        self._request = Request(
            id=bytes(16),
            model=plan.model,
            version=plan.version,
            ttl_ms=0,
            X=np.zeros((1, columns), np.float32),
        )
        self._answer = Response(
            id=bytes(16),
            model=plan.model,
            version=plan.version,
            labels=np.zeros(1, np.int64),
            probabilities=np.zeros((1, max(len(plan.classes), 2)), np.float32),
        )
        self._heads: dict[tuple[bool, int], int] = {}
        self._usual = self._usual_trip() if settings.primed else RoundTrip()
        # One for all devices: their sums are what is asked for.
        self.offload_counts, self._breaker_counts = OffloadCounts(), BreakerCounts()
        self._ids = 0
        self._devices: dict[int, VirtualDevice] = {}

    # -- what devices ask for ----------------------------------------------------------------

    def new_id(self) -> bytes:
        """Give the next request's id: numbers, so that every run has the same."""
        self._ids += 1
        return self._ids.to_bytes(16, "big")

    def new_request(self) -> Request:
        """Make a request; what it carries is in the routes."""
        return _renamed(self._request, self.new_id())

    def response(self, id: bytes, error: str | None) -> Response:  # noqa: A002
        """Make what a worker says to a request."""
        if error is None:
            return _renamed(self._answer, id)
        plan = self.routes.plan
        return Response(id=id, model=plan.model, version=plan.version, error=error)

    def request_head(self, payload: int) -> int:
        """Bytes of a request's packet beside its payload."""
        return self._head(True, payload)

    def response_head(self, payload: int) -> int:
        """Bytes of a response's packet beside its payload."""
        return self._head(False, payload)

    def _head(self, up: bool, payload: int) -> int:
        if (up, payload) not in self._heads:
            topic = request_topic(_NAME) if up else response_topic(_NAME)
            self._heads[up, payload] = publish_bytes(topic, payload) - payload
        return self._heads[up, payload]

    def answer_here(self, answers: Answers, which: Any) -> None:
        """Fill in answers that the devices' own stages give."""
        routes, rows = self.routes, answers.row[which]
        answers.route[which] = route = routes.local_route[rows]
        answers.stage[which] = routes.exit[rows]
        answers.label[which] = routes.local_label[rows]
        answers.cost[which] = answers.feature_cost[which] = routes.local_cost[rows]
        answers.latency_ms[which] = 1000.0 * self.edge_seconds[rows]
        here = np.where(routes.offload[rows], REASON["edge-only"], REASON["stopped"])
        answers.reason[which] = np.where(route > 0, REASON["value"], here)

    def device(self, index: int) -> VirtualDevice:
        """Get a device; it is made when it is first needed."""
        device = self._devices.get(index)
        if device is None:
            settings = self.settings
            rng = device_rng(settings.seed, index)
            device = self._devices[index] = VirtualDevice(
                self,
                index,
                VirtualLink(settings.link, rng, settings.outages or None),
                Breaker(draw=rng.random, counts=self._breaker_counts) if settings.breaker else None,
                None if settings.pace is None else self._pace(settings.pace),
            )
            device.offloads.round_trip = replace(self._usual)
        return device

    def _usual_trip(self) -> RoundTrip:
        """What a device has learnt from requests that met no others."""
        settings, sizes = self.settings, self.sizes
        way = VirtualLink(settings.link, random.Random(f"{settings.seed}/usual"))
        between = 2 * settings.broker_us / 1e6 + 2 * settings.hop_ms / 1e3
        between += settings.service.mean(1, 1)
        up, down = sizes.request(int(settings.deadline_ms)), sizes.response(1000)
        trip = RoundTrip()
        for k in range(_TRIPS):
            begin = 1000.0 * (k + 1)
            there = way.send(begin, up + self.request_head(up), True) + between
            trip.update(way.send(there, down + self.response_head(down), False) - begin)
        return trip

    def _pace(self, budget: str) -> Pace:
        routes, plan = self.routes, self.routes.plan
        at_gate = ~np.isnan(routes.score)
        return Pacer.parse(budget).attach(
            f"{plan.model}/{plan.version}",
            threshold=routes.threshold,
            local=float(routes.local_cost[at_gate].mean()) if at_gate.any() else 0.0,
            offload=float((routes.asked_cost + self.cloud_price)[at_gate].mean())
            if at_gate.any()
            else 1.0,
            bytes=float(self.sizes.request(1000) + self.sizes.response(1000)),
        )

    @property
    def device_counts(self) -> dict[str, int]:
        """What the devices counted, all together."""
        return asdict(self.offload_counts) | asdict(self._breaker_counts)

    # -- two ways in which instances come ---------------------------------------------------

    def run_open(self) -> list[Answers]:
        """Instances come when they come."""
        settings, clock = self.settings, self.clock
        parts = []
        for times, device, row in settings.chunks(len(self.routes)):
            answers = Answers.empty(times, device, row)
            parts.append(answers)
            if settings.pace is None:
                stepped = np.flatnonzero(self.sends[answers.row])
                self.answer_here(answers, np.flatnonzero(~self.sends[answers.row]))
            else:
                stepped = np.arange(len(answers))
            before = 0.0 if self.cloud_only else self.edge_seconds[answers.row[stepped]]
            due = answers.time[stepped] + before
            for i, index, when in zip(
                stepped.tolist(), answers.device[stepped].tolist(), due.tolist(), strict=True
            ):
                clock.at(when, self.device(index).take, answers, i)
            if len(times):
                clock.run(float(times[-1]))
        clock.run()
        return parts

    def run_in_turn(self) -> list[Answers]:
        """Each device begins with a row when it has answered the one before."""
        assert self.settings.in_turn is not None
        parts = []
        for index, rows in enumerate(self.settings.in_turn):
            which = np.asarray(rows, np.int64)
            parts.append(Answers.empty(np.zeros(len(which)), np.full(len(which), index), which))
            self._go_on(self.device(index), parts[-1], 0)
        self.clock.run()
        return parts

    def _go_on(self, device: VirtualDevice, answers: Answers, i: int) -> None:
        now, pause = self.clock.now, self.settings.pause_ms / 1000.0
        if i:
            now += pause
        while i < len(answers):
            row = int(answers.row[i])
            answers.time[i] = now
            takes = float(self.edge_seconds[row])
            if self.sends[row] or self.settings.pace is not None:
                before = 0.0 if self.cloud_only else takes
                then = partial(self._go_on, device, answers, i + 1)
                self.clock.at(now + before, device.take, answers, i, then)
                return
            self.answer_here(answers, i)
            now += takes + pause
            i += 1


def device_rng(seed: int, index: int) -> random.Random:
    """Give a device's own randomness: for its link and its breaker."""
    return random.Random((seed << 32) + index)


def _renamed(message: Message, id: bytes) -> Message:  # noqa: A002
    """Copy a message with another id: its fields need no second check, which takes longer."""
    twin: Message = object.__new__(type(message))
    for field_ in type(message).__slots__:
        object.__setattr__(twin, field_, getattr(message, field_))
    object.__setattr__(twin, "id", id)
    return twin


def _edge_seconds(routes: Routes, edge_ms: float | Sequence[float]) -> NDArray[np.float64]:
    """How long each row keeps its device, in seconds, shape (n,)."""
    n_here = routes.plan.n_here
    by_stage = np.broadcast_to(np.asarray(edge_ms, np.float64), (n_here,)) / 1000.0
    if not (np.isfinite(by_stage) & (by_stage >= 0)).all():
        raise InputError(f"edge_ms {edge_ms}: give milliseconds")
    return by_stage[np.maximum(routes.exit, 0)]
