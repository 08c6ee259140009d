"""A fleet in virtual time: devices, links, a broker, workers and one clock.

Requests are stepped event by event, by the very objects that decide on a device and in a worker
(:mod:`gatewise_sim.fleet.devices.device`, :mod:`gatewise_sim.fleet.worker`). Instances that never
leave their device wait for nothing: they are answered in bulk. The same settings give the same
answers, bit for bit.

Not simulated: that two instances of one device share its processor.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gatewise.errors import InputError
from gatewise_edge.device.audit import AuditSampler
from gatewise_edge.link.offload import RoundTrip
from gatewise_sim.fleet.answer_rules import AnswerRules, exchange_joules
from gatewise_sim.fleet.answers import Answers, FleetRun
from gatewise_sim.fleet.clock import Clock
from gatewise_sim.fleet.devices.audits import audit_seed
from gatewise_sim.fleet.devices.device import FleetState, VirtualDevice
from gatewise_sim.fleet.messages import (
    PUBACK_BYTES,
    Messages,
    request_packet,
    response_packet,
)
from gatewise_sim.fleet.network.link import DeviceDraws, VirtualLink
from gatewise_sim.fleet.routes import NO_LABEL, Routes
from gatewise_sim.fleet.settings import FleetSettings
from gatewise_sim.fleet.worker import Availability, VirtualBroker, VirtualWorker

_GUARD: Final = 0.005  # as the device keeps before its deadline
_TRIPS: Final = 32
_REPORT_EVERY: Final = 500  # instances
OnLocal = Callable[[NDArray[np.float64], NDArray[Any]], object]
OnStep = Callable[[list[Answers]], object]


class VirtualFleet:
    """A fleet that answers its instances in virtual time, once."""

    def __init__(self, routes: Routes, settings: FleetSettings) -> None:
        self._routes, self._settings = routes, settings
        cloud_only = settings.policy == "cloud-only"
        if cloud_only and not routes.plan.has_cloud:
            raise InputError("policy cloud-only: no instance of this bundle leaves its device")
        if callable(settings.policy) != (routes.by_stage is not None):
            raise InputError("a policy of one's own takes routes by stage, and no other does")
        self._can_offload = routes.cloud_label != NO_LABEL
        self._sends = routes.offload  # with a policy of one's own none: it says so later
        if settings.policy == "edge-only":
            self._sends = np.zeros(len(routes), bool)
        elif cloud_only:
            self._sends = self._can_offload
        self._one_by_one = callable(settings.policy)
        self._chance = routes.chance if settings.policy == "system" else 0.0
        audits = settings.policy == "system" and routes.plan.has_cloud
        self._audit = settings.audit if audits else None
        if self._audit is not None and self._chance:
            raise InputError("audits test the gate's decisions; these are drawn by chance")
        if self._audit is not None:
            AuditSampler(self._audit)  # raises what is wrong with the share
        self._chance_rng = np.random.default_rng([settings.seed, 4])
        self._owed = float(self._chance_rng.random())
        clock = Clock()
        options: dict[str, Any] = {
            "capacity": settings.queue,
            "max_batch": settings.max_batch,
            "wait": settings.wait_ms / 1000.0,
            "parallel": settings.parallel,
            "payload": bytes(routes.sizes.response(1000)),
            # All workers of a run draw from one stream.
            "rng": random.Random(f"{settings.seed}/service"),
        }
        bound = routes.disagreement_bound
        self.workers = [
            VirtualWorker(clock, settings.service, promised=bound, **options)
            for _ in range(settings.workers)
        ]
        availability = Availability(clock, settings.outages, self.workers, seconds=settings.seconds)
        self._broker = VirtualBroker(
            clock,
            availability,
            self.workers,
            message=settings.broker_us / 1e6,
            hop=settings.hop_ms / 1000.0,
        )
        # Instances offloaded by chance have been drawn by the time that a device gets them.
        may_send = self._sends | self._can_offload if self._chance else self._sends
        self.state = FleetState(
            settings=settings,
            clock=clock,
            availability=availability,
            broker=self._broker,
            rules=AnswerRules(routes, settings.edge_ms, cloud_only=cloud_only),
            messages=Messages(routes.plan),
            sizes=routes.sizes,
            sends=may_send.tolist(),
            can_offload=self._can_offload.tolist(),
            limit=settings.deadline_ms / 1000.0,
            guard=min(_GUARD, settings.deadline_ms / 1e4),
            model=(routes.plan.model, routes.plan.version),
        )
        breaks = any(window.what == "link" for window in settings.outages.windows)
        self._link_outages = settings.outages if breaks else None
        self._usual_trip = _usual_trip(routes, settings) if settings.primed else RoundTrip()
        self._devices: dict[int, VirtualDevice] = {}

    @property
    def device_counts(self) -> dict[str, float]:
        """Sums of the devices' counters."""
        sums = asdict(self.state.offload_counts) | asdict(self.state.breaker_counts)
        return sums if self._audit is None else sums | asdict(self.state.audit_counts)

    @property
    def unsubscribed(self) -> int:
        """Requests that the broker dropped, without a worker to serve them."""
        return self._broker.unsubscribed

    @property
    def alarms(self) -> list[int] | None:
        """Alarms of the workers' tests up to now; None if there are no audits."""
        if self._audit is None:
            return None
        found = [each for w in self.workers for each in w.audits.snapshot().values()]
        return [each["alarm_at"] for each in found if each["alarm"]]

    def device(self, index: int) -> VirtualDevice:
        """Get a device; it is made when it is first needed."""
        device = self._devices.get(index)
        if device is None:
            settings = self._settings
            draws = DeviceDraws(settings.seed, index)
            device = self._devices[index] = VirtualDevice(
                self.state,
                index,
                VirtualLink(settings.link, draws, self._link_outages, draws),
                draws.random if settings.breaker else None,
                None
                if self._audit is None
                else AuditSampler(self._audit, random.Random(audit_seed(settings.seed, index))),
            )
            usual = self._usual_trip
            device.offloads.round_trip = RoundTrip(usual.smoothed, usual.deviation)
        return device

    def run_open(
        self, on_local: OnLocal | None = None, on_step: OnStep | None = None
    ) -> list[Answers]:
        """Answer instances that come at their own times, chunk by chunk.

        `on_local` gets the times and rows of instances that never leave their devices; then they
        are not among the answers. `on_step` gets the answers so far, now and then.
        """
        rules, clock = self.state.rules, self.state.clock
        parts: list[Answers] = []
        for times, device, row in self._settings.chunks(self._routes.rows):
            until = float(times[-1]) if len(times) else clock.now
            sent = self._sent(row)
            if on_local is not None:
                on_local(times[~sent], row[~sent])
                times, device, row, sent = times[sent], device[sent], row[sent], sent[sent]
            answers = Answers.empty(times, device, row)
            # Auditors take all in, one by one, but what is their devices' own is known.
            known = ~sent if self._audit is None or self._one_by_one else ~self._sends[row]
            rules.answer_locally(answers, np.flatnonzero(known))
            parts.append(answers)
            stepped = np.flatnonzero(sent)
            due = answers.time[stepped] + rules.seconds_before_request(answers.row[stepped])
            report = None if on_step is None else partial(on_step, parts)
            self._step(answers, stepped, due, until, report)
        clock.run()
        for part in parts:
            rules.complete(part)
        return parts

    def joules(self, answers: Answers) -> NDArray[np.float64]:
        """Energy (J) that each instance's messages cost its device's radio, shape (n,)."""
        before = self.state.rules.seconds_before_request(answers.row)
        return exchange_joules(answers, before, self._settings.link.radio)

    def _sent(self, row: NDArray[Any]) -> NDArray[np.bool_]:
        """Which instances a device must step, since they may be offloaded."""
        if self._one_by_one or self._audit is not None:
            return np.ones(len(row), bool)
        sent: NDArray[np.bool_] = self._sends[row]
        if self._chance:
            # As many as there should be of those that come together, so that the share is kept
            # even in a short run; which ones is a matter of chance.
            possible = np.flatnonzero(self._can_offload[row] & ~sent)
            self._owed += self._chance * len(possible)
            count = min(int(self._owed), len(possible))
            self._owed -= count
            sent[self._chance_rng.permutation(possible)[:count]] = True
        return sent

    def _step(
        self,
        answers: Answers,
        which: NDArray[np.intp],
        due: NDArray[np.float64],
        until: float,
        report: Callable[[], object] | None,
    ) -> None:
        """Have instances decided about when they are `due`, and step on to `until`."""
        clock, run = self.state.clock, self.state.clock.run
        order = np.argsort(due, kind="stable")
        due, which = due[order], which[order]
        soon = int(np.searchsorted(due, until))
        device, row = answers.device[which].tolist(), answers.row[which].tolist()
        # Not through the clock's heap, which stays small and quick.
        for first in range(0, soon, _REPORT_EVERY):
            part = slice(first, min(soon, first + _REPORT_EVERY))
            for i, index, its_row, when in zip(
                which[part].tolist(), device[part], row[part], due[part].tolist(), strict=True
            ):
                run(when)
                self.device(index).take(answers, i, its_row)
            clock.events += part.stop - part.start
            if report is not None:
                report()
        for i, index, its_row, when in zip(
            which[soon:].tolist(), device[soon:], row[soon:], due[soon:].tolist(), strict=True
        ):
            clock.at(when, self.device(index).take, answers, i, its_row)
        run(until)

    def run_in_turn(self) -> list[Answers]:
        """Let each device begin with a row when it has answered the one before."""
        assert self._settings.in_turn is not None
        parts = []
        for index, rows in enumerate(self._settings.in_turn):
            which = np.asarray(rows, np.int64)
            parts.append(Answers.empty(np.zeros(len(which)), np.full(len(which), index), which))
            self._next_in_turn(self.device(index), parts[-1], 0)
        self.state.clock.run()
        for part in parts:
            self.state.rules.complete(part)
        return parts

    def _next_in_turn(self, device: VirtualDevice, answers: Answers, i: int) -> None:
        clock, rules = self.state.clock, self.state.rules
        now, pause = clock.now, self._settings.pause_ms / 1000.0
        if i:
            now += pause
        while i < len(answers):
            row = int(answers.row[i])
            answers.time[i] = now
            takes = float(rules.edge_seconds[row])
            if self._sent(answers.row[i : i + 1])[0]:
                before = 0.0 if rules.cloud_only else takes
                then = partial(self._next_in_turn, device, answers, i + 1)
                clock.at(now + before, device.take, answers, i, row, then)
                return
            rules.answer_locally(answers, i)
            now += takes + pause
            i += 1


def _usual_trip(routes: Routes, settings: FleetSettings) -> RoundTrip:
    """Round trip that a device has learnt from requests that met no others."""
    link = VirtualLink(settings.link, random.Random(f"{settings.seed}/usual"))
    between = 2 * settings.broker_us / 1e6 + 2 * settings.hop_ms / 1e3
    between += settings.service.mean(1, 1)
    up = request_packet(routes.sizes.request(int(settings.deadline_ms)))
    down = response_packet(routes.sizes.response(1000))
    trip = RoundTrip()
    for k in range(_TRIPS):
        begin = 1000.0 * (k + 1)
        there = link.send(begin, up, True)
        link.send(there, PUBACK_BYTES, False)  # which the response cannot overtake
        back = link.send(there + between, down, False)
        trip.update(back - begin)
    return trip


def simulate_fleet(routes: Routes, settings: FleetSettings) -> FleetRun:
    """Let a fleet of `settings` answer in virtual time; InputError if `routes` do not fit."""
    fleet = VirtualFleet(routes, settings)
    answers = Answers.join(
        fleet.run_in_turn() if settings.in_turn is not None else fleet.run_open()
    )
    ends = answers.time + answers.latency_ms / 1000.0
    return FleetRun(
        answers=answers,
        joules=fleet.joules(answers),
        devices=fleet.device_counts,
        workers=[asdict(worker.counts) for worker in fleet.workers],
        seconds=float(ends.max(initial=0.0)),
        events=fleet.state.clock.events,
        alarms=fleet.alarms,
    )
