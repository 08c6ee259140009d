"""Gateways in virtual time: workers to their devices, devices to the cloud above them.

Follows :class:`gatewise_cloud.worker.gateway.CloudAbove` step by step. Each gateway stands beside a
broker of its own, which its devices speak to, and has a link up to the cloud's broker.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from gatewise.errors import InputError
from gatewise_cloud.worker.gateway import deadline_above
from gatewise_edge.link.offload import InFlight, OffloadOutcome, Offloads
from gatewise_sim.fleet.answers import Answers
from gatewise_sim.fleet.clock import Clock
from gatewise_sim.fleet.devices.request import Instance, Requester, RequestPath, VirtualRequest
from gatewise_sim.fleet.messages import Messages, request_packet, response_packet
from gatewise_sim.fleet.network.link import DeviceDraws, VirtualLink
from gatewise_sim.fleet.network.outages import Outages
from gatewise_sim.fleet.routes import GatewayRows, Routes
from gatewise_sim.fleet.settings import FleetSettings
from gatewise_sim.fleet.worker import (
    Availability,
    ServiceTime,
    VirtualBroker,
    VirtualTicket,
    VirtualWorker,
    WorkerCounts,
)

_NOBODY: Final = np.zeros(1)
#: Random numbers of gateways' links: behind those of any device.
_FIRST_DRAWS: Final = 1 << 40
_TRIPS: Final = 32


@dataclass(slots=True)
class GatewayCounts(WorkerCounts):
    """Counters of a gateway: requests sent on, and those answered in the silent cloud's place."""

    forwarded: int = 0
    stood_in: int = 0


class VirtualGateway(VirtualWorker, Requester):
    """One gateway: its stages' answers in `rows`, and requests to the cloud above over a `link`.

    `path` is what those pass through, `limit` how many are in flight at a time; `options` are a
    worker's.
    """

    counts: GatewayCounts

    def __init__(
        self,
        clock: Clock,
        service: ServiceTime,
        *,
        name: str,
        rows: GatewayRows,
        path: RequestPath,
        link: VirtualLink,
        limit: int,
        **options: Any,
    ) -> None:
        super().__init__(clock, service, **options)
        self.name, self.link, self.state = name, link, path
        self.counts = GatewayCounts()
        self.offloads = Offloads(limit=limit)
        self._rows = rows
        self._limit = limit
        self._out: dict[bytes, tuple[VirtualTicket, VirtualRequest]] = {}

    def fail(self) -> None:
        """Go down; what it has sent up is forgotten, too."""
        super().fail()
        for _, request in self._out.values():
            request.over = True
        self._out.clear()
        self.offloads = Offloads(limit=self._limit)

    def _conclude(self, ticket: VirtualTicket) -> None:
        rows = sum(bool(self._rows.goes_up[row]) for row in ticket.requester.table_rows)
        if rows:
            self._send_up(ticket, rows)
        else:
            self._answer(ticket)

    def _send_up(self, ticket: VirtualTicket, rows: int) -> None:
        now, state = self._clock.now, self.state
        deadline = deadline_above(ticket)
        ttl_ms = math.floor(1000.0 * (deadline - now))
        if ttl_ms > 0 and now >= self.offloads.hold_until:
            item = InFlight(*state.model, deadline, rows, state.messages.next_id())
            if self.offloads.open(item, now):
                nobody = Instance(Answers.empty(_NOBODY, _NOBODY, _NOBODY), 0, 0)  # no device's
                request = VirtualRequest(self, item, nobody, ttl_ms / 1000.0, deadline)
                self._out[item.id] = ticket, request
                self.counts.forwarded += 1
                request.transmit(state.sizes.request(ttl_ms, rows))
                request.wait()
                return
        self._stand_in(ticket)

    def conclude(self, request: VirtualRequest, outcome: OffloadOutcome) -> None:
        request.over = True
        ticket, _ = self._out.pop(request.item.id)
        if outcome.kind == "answered":
            self._answer(ticket)
        else:
            self._stand_in(ticket)

    def _stand_in(self, ticket: VirtualTicket) -> None:
        if any(self._rows.stage[row] < 0 for row in ticket.requester.table_rows):
            self._batcher.forget(ticket)
            ticket.requester.reply("failed", 0)
            return
        self.counts.stood_in += 1
        self._answer(ticket, stood_in=True)


def check_gateways(settings: FleetSettings, *, there: bool) -> None:
    """Refuse settings of gateways where a bundle places no stage on one; InputError says which."""
    if there:
        if settings.audit is not None:
            raise InputError("audit: audits through gateways are not simulated")
        return
    given = [window.what for window in settings.outages.windows if window.what == "gateway"]
    for name, found in (
        ("outage of a gateway", bool(given)),
        ("gateways", settings.gateways > 1),
        ("uplink", settings.uplink.delays),
    ):
        if found:
            raise InputError(
                f'{name}: the bundle places no stage on a gateway (train it with tiers={{"device": '
                '1, "gateway": None})'
            )


def usual_seconds(routes: Routes, settings: FleetSettings) -> list[float]:
    """Seconds that workers, or gateways and the cloud, take for requests that meet no others."""
    if routes.gateway is None or not settings.gateways:
        return [settings.service.mean(1, 1)]
    here = (settings.gateway_service or settings.service).mean(1, 1)
    offloaded = routes.gateway.goes_up[routes.offload]
    share = float(offloaded.mean()) if len(offloaded) else 1.0
    link = VirtualLink(settings.uplink, DeviceDraws(settings.seed, _FIRST_DRAWS - 1))
    between = 2 * settings.broker_us / 1e6 + 2 * settings.hop_ms / 1e3
    between += settings.service.mean(1, 1)
    sizes, found = routes.gateway.sizes, []
    for k in range(_TRIPS):
        begin = 1000.0 * (k + 1)
        if math.floor((k + 1) * share) == math.floor(k * share):  # this one stops here
            found.append(here)
            continue
        there = link.send(begin, request_packet(sizes.request(int(settings.deadline_ms))), True)
        back = link.send(there + between, response_packet(sizes.response(1000)), False)
        found.append(here + back - begin)
    return found


def make_sites(
    routes: Routes,
    settings: FleetSettings,
    clock: Clock,
    above: Sequence[VirtualWorker],
    options: Mapping[str, Any],
) -> tuple[Availability, list[VirtualBroker], list[VirtualGateway]]:
    """Build the gateways of a fleet, each with its broker, below the cloud's broker and workers.

    `options` are those of its workers, and of the gateways.
    """
    assert routes.gateway is not None
    if routes.sizes.parts:
        raise InputError("requests of this bundle come in parts, which gateways do not pass on")
    plan, outages, seconds = routes.plan, settings.outages, settings.seconds
    timing = {"message": settings.broker_us / 1e6, "hop": settings.hop_ms / 1000.0}
    cloud = Availability(clock, _only(outages, "cloud", "workers"), above, seconds=seconds)
    path = RequestPath(
        clock=clock,
        availability=cloud,
        broker=VirtualBroker(clock, cloud, above, **timing),
        messages=Messages(plan),
        sizes=routes.gateway.sizes,
        model=(plan.model, plan.version),
    )
    gateways = []
    for i in range(settings.gateways):
        draws = DeviceDraws(settings.seed, _FIRST_DRAWS + i)
        gateways.append(
            VirtualGateway(
                clock,
                settings.gateway_service or settings.service,
                name=f"gw{i:06d}",
                rows=routes.gateway,
                path=path,
                link=VirtualLink(settings.uplink, draws, None, draws),
                limit=settings.queue,
                **options,
            )
        )
    down = _only(outages, "link", "broker", gateway="cloud")
    here = Availability(clock, down, gateways, seconds=seconds)
    brokers = [VirtualBroker(clock, here, [gateway], **timing) for gateway in gateways]
    return here, brokers, gateways


def _only(outages: Outages, *what: str, **renamed: str) -> Outages:
    """Outages of some parts, as those of others where renamed."""
    names = {name: name for name in what} | renamed
    kept = [replace(w, what=names[w.what]) for w in outages.windows if w.what in names]
    return Outages(kept, day_begins=outages.day_begins)
