"""All that the devices of a simulated fleet share, and the two ways in which instances come."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gatewise.errors import InputError
from gatewise_cloud.worker.batcher import Plan
from gatewise_edge.device.pacer import Pace, Pacer
from gatewise_edge.link.breaker import BreakerCounts
from gatewise_edge.link.offload import OffloadCounts, RoundTrip
from gatewise_sim.fleet.answers import REASON, Answers
from gatewise_sim.fleet.broker import Broker, Weather
from gatewise_sim.fleet.clock import Clock
from gatewise_sim.fleet.complete_answers import answer_here, fill_in
from gatewise_sim.fleet.device import VirtualDevice
from gatewise_sim.fleet.draws import DeviceDraws
from gatewise_sim.fleet.lazy_breaker import LazyBreaker
from gatewise_sim.fleet.messages import Messages
from gatewise_sim.fleet.network.direction import VirtualLink
from gatewise_sim.fleet.routes import NO_LABEL, Routes
from gatewise_sim.fleet.settings import FleetSettings
from gatewise_sim.fleet.worker import VirtualWorker
from gatewise_sim.live.outcome import PUBACK_BYTES

__all__ = ["Look", "Stayed", "World"]

_GUARD: Final = 0.005  # as the device keeps before its deadline
_TRIPS: Final = 32
_LOOK_EVERY: Final = 500  # instances
Look = Callable[[list[Answers]], object]
Stayed = Callable[[NDArray[np.float64], NDArray[Any]], object]


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
        self.chance = routes.chance if settings.policy == "system" else 0.0
        if self.chance and settings.pace is not None:
            raise InputError("a pacer decides by the gate's score, not by chance")
        self._coin = np.random.default_rng([settings.seed, 4])
        self._owed = float(self._coin.random())
        # Who is sent by chance has been drawn by the time that a device looks at it.
        self.sends_row: list[bool] = (
            self.sends | self.askable if self.chance else self.sends
        ).tolist()
        self.mute: list[bool] = (routes.local_label < 0).tolist()
        self.answered_reason = REASON["cloud-only" if self.cloud_only else "offloaded"]
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
        self.model = (plan.model, plan.version)
        self.calm = not settings.outages
        self.messages = Messages(plan, self.sizes)
        down = settings.outages.windows
        self._breaks = settings.outages if any(w.what == "link" for w in down) else None
        self._usual = self._usual_trip() if settings.primed else RoundTrip()
        # One for all devices: their sums are what is asked for.
        self.offload_counts, self.breaker_counts = OffloadCounts(), BreakerCounts()
        self._devices: dict[int, VirtualDevice] = {}

    # -- what devices ask for ----------------------------------------------------------------

    def answers_here(self) -> Answers:
        """What a device says to each row that it answers by itself, shape (n_rows,)."""
        n = len(self.routes)
        answers = Answers.empty(np.zeros(n), np.zeros(n), np.arange(n))
        answer_here(self, answers, np.arange(n))
        return answers

    def device(self, index: int) -> VirtualDevice:
        """Get a device; it is made when it is first needed."""
        device = self._devices.get(index)
        if device is None:
            settings = self.settings
            draws = DeviceDraws(settings.seed, index)
            device = self._devices[index] = VirtualDevice(
                self,
                index,
                VirtualLink(settings.link, draws, self._breaks, draws),
                LazyBreaker(draws.random, self.breaker_counts) if settings.breaker else None,
                None if settings.pace is None else self._pace(settings.pace),
            )
            usual = self._usual
            device.offloads.round_trip = RoundTrip(usual.smoothed, usual.deviation)
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
            there = way.send(begin, self.messages.request_packet(up), True)
            way.send(there, PUBACK_BYTES, False)  # which the response cannot overtake
            back = way.send(there + between, self.messages.response_packet(down), False)
            trip.update(back - begin)
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
        return asdict(self.offload_counts) | asdict(self.breaker_counts)

    def close(self) -> None:
        """Let go of the devices: they and their world hold each other."""
        for device in self._devices.values():
            device.offloads.on_outcome = None
        self._devices.clear()

    # -- two ways in which instances come ---------------------------------------------------

    def run_open(self, stayed: Stayed | None = None, look: Look | None = None) -> list[Answers]:
        """Instances come when they come.

        Parameters
        ----------
        stayed : callable, optional
            Is given the times and rows of instances that never leave their devices, chunk by
            chunk; then they are not among the answers.
        look : callable, optional
            Is called now and then with the answers so far, chunk by chunk.
        """
        settings, clock = self.settings, self.clock
        parts = []
        for times, device, row in settings.chunks(len(self.routes)):
            sent = self._sent(row)
            if stayed is not None:
                stayed(times[~sent], row[~sent])
                answers = Answers.empty(times[sent], device[sent], row[sent])
                stepped = np.arange(len(answers))
            else:
                answers = Answers.empty(times, device, row)
                stepped = np.flatnonzero(sent)
                answer_here(self, answers, np.flatnonzero(~sent))
            parts.append(answers)
            due = answers.time[stepped] + self.before(answers.row[stepped])
            until = float(times[-1]) if len(times) else clock.now
            seen = None if look is None else partial(look, parts)
            self._feed(answers, stepped, due, until, seen)
        clock.run()
        for part in parts:
            fill_in(self, part)
        return parts

    def before(self, row: NDArray[Any]) -> NDArray[np.float64]:
        """Seconds from the arrival of such rows until a request is made, same shape."""
        return np.zeros(len(row)) if self.cloud_only else self.edge_seconds[row]

    def _sent(self, row: NDArray[Any]) -> NDArray[np.bool_]:
        """Which instances a device is to look at, since they may be sent."""
        if self.settings.pace is not None:
            return np.ones(len(row), bool)
        sent: NDArray[np.bool_] = self.sends[row]
        if self.chance:
            # As many as there should be of those that come together, so that the share is kept
            # even in a short run; which ones is a matter of chance.
            possible = np.flatnonzero(self.askable[row] & ~sent)
            self._owed += self.chance * len(possible)
            count = min(int(self._owed), len(possible))
            self._owed -= count
            sent[self._coin.permutation(possible)[:count]] = True
        return sent

    def _feed(
        self,
        answers: Answers,
        which: NDArray[np.intp],
        due: NDArray[np.float64],
        until: float,
        look: Callable[[], object] | None,
    ) -> None:
        """Have instances decided about when they are `due`, and step on to `until`."""
        clock, run = self.clock, self.clock.run
        order = np.argsort(due, kind="stable")
        due, which = due[order], which[order]
        soon = int(np.searchsorted(due, until))
        device, row = answers.device[which].tolist(), answers.row[which].tolist()
        # Not through the clock's heap, which stays small and quick.
        for first in range(0, soon, _LOOK_EVERY):
            part = slice(first, min(soon, first + _LOOK_EVERY))
            for i, index, its_row, when in zip(
                which[part].tolist(), device[part], row[part], due[part].tolist(), strict=True
            ):
                run(when)
                self.device(index).take(answers, i, its_row)
            clock.events += part.stop - part.start
            if look is not None:
                look()
        for i, index, its_row, when in zip(
            which[soon:].tolist(), device[soon:], row[soon:], due[soon:].tolist(), strict=True
        ):
            clock.at(when, self.device(index).take, answers, i, its_row)
        run(until)

    def run_in_turn(self) -> list[Answers]:
        """Each device begins with a row when it has answered the one before."""
        assert self.settings.in_turn is not None
        parts = []
        for index, rows in enumerate(self.settings.in_turn):
            which = np.asarray(rows, np.int64)
            parts.append(Answers.empty(np.zeros(len(which)), np.full(len(which), index), which))
            self._go_on(self.device(index), parts[-1], 0)
        self.clock.run()
        for part in parts:
            fill_in(self, part)
        return parts

    def _go_on(self, device: VirtualDevice, answers: Answers, i: int) -> None:
        now, pause = self.clock.now, self.settings.pause_ms / 1000.0
        if i:
            now += pause
        while i < len(answers):
            row = int(answers.row[i])
            answers.time[i] = now
            takes = float(self.edge_seconds[row])
            if self._sent(answers.row[i : i + 1])[0]:
                before = 0.0 if self.cloud_only else takes
                then = partial(self._go_on, device, answers, i + 1)
                self.clock.at(now + before, device.take, answers, i, row, then)
                return
            answer_here(self, answers, i)
            now += takes + pause
            i += 1


def _edge_seconds(routes: Routes, edge_ms: float | Sequence[float]) -> NDArray[np.float64]:
    """How long each row keeps its device, in seconds, shape (n,)."""
    n_here = routes.plan.n_here
    by_stage = np.broadcast_to(np.asarray(edge_ms, np.float64), (n_here,)) / 1000.0
    if not (np.isfinite(by_stage) & (by_stage >= 0)).all():
        raise InputError(f"edge_ms {edge_ms}: give milliseconds")
    return by_stage[np.maximum(routes.exit, 0)]
