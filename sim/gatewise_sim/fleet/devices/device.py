"""A device in virtual time: the real bookkeeping of requests and breaker, on a virtual link.

Follows the device's and the uplink's own code step by step; the outcome of stages and cloud comes
from :class:`~gatewise_sim.fleet.routes.Routes`. A device handles several instances at a time.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from gatewise_edge.device.answer import Route
from gatewise_edge.device.audit import AuditSampler
from gatewise_edge.device.auditor import AUDIT_PATIENCE
from gatewise_edge.link.breaker import Breaker, BreakerCounts
from gatewise_edge.link.messages import AuditMark
from gatewise_edge.link.offload import InFlight, OffloadCounts, Offloads
from gatewise_sim.fleet.answer_rules import AnswerRules
from gatewise_sim.fleet.answers import REASON, ROUTES, Answers
from gatewise_sim.fleet.devices.audits import AuditCounts
from gatewise_sim.fleet.devices.request import Instance, Requester, RequestPath, VirtualRequest
from gatewise_sim.fleet.network.link import VirtualLink
from gatewise_sim.fleet.settings import FleetSettings

_, _CLOUD, _FALLBACK, _ERROR = range(len(ROUTES))
_ROUTES: Final[tuple[Route, ...]] = ("edge", "cloud", "fallback")
_HELD: Final = "cloud:busy"  # the reason of an instance that is kept back, as by the uplink


@dataclass(slots=True, eq=False, kw_only=True)
class FleetState(RequestPath):
    """What the devices of a run share; the lists are by row.

    `limit` is the deadline (s), and `guard` how much earlier a device stops waiting. The counts are
    sums over the devices.
    """

    settings: FleetSettings
    rules: AnswerRules
    sends: list[bool]
    can_offload: list[bool]
    limit: float
    guard: float
    offload_counts: OffloadCounts = field(default_factory=OffloadCounts)
    breaker_counts: BreakerCounts = field(default_factory=BreakerCounts)
    audit_counts: AuditCounts = field(default_factory=AuditCounts)


class VirtualDevice(Requester):
    """One device; without a `breaker_draw` it has no breaker."""

    __slots__ = (
        "_breaker", "_breaker_draw", "_connection", "_ready_at", "_replies", "auditor", "link",
        "name", "offloads", "state",
    )  # fmt: skip
    state: FleetState

    def __init__(
        self,
        state: FleetState,
        index: int,
        link: VirtualLink,
        breaker_draw: Callable[[], float] | None,
        auditor: AuditSampler | None,
    ) -> None:
        self.name = f"{index:08d}"
        self.offloads = Offloads(
            limit=state.settings.outstanding,
            counts=state.offload_counts,
            on_outcome=self._record_outcome,
        )
        self.state = state
        self.link = link
        self._breaker: Breaker | None = None  # made when a request first goes without a reply
        self._breaker_draw = breaker_draw
        self._replies = 0
        self._connection = self._ready_at = 0.0  # the latest one, and when it could carry requests
        self.auditor = auditor

    @property
    def connected(self) -> bool:
        """Whether it has a connection; a new one begins with handshakes."""
        availability, now = self.state.availability, self.state.clock.now
        if not availability.connected:
            return False
        begun = availability.connected_at
        if self._connection < begun <= now:
            self._connection = begun
            self._ready_at = self.link.session(begun, tls=self.state.settings.tls)
        return now >= self._ready_at

    def take(
        self, answers: Answers, i: int, row: int, then: Callable[[], None] | None = None
    ) -> None:
        """Decide about an instance after its stages, and see to its answer; then call `then`.

        Fills in route, reason, latency and bytes of the answer `i`, and all of a local answer;
        :meth:`.AnswerRules.complete` does the rest.
        """
        state = self.state
        sends = state.sends[row]
        policy, points = state.settings.policy, state.rules.routes.by_stage
        if callable(policy) and points is not None:
            left = answers.time.item(i) + state.limit - state.guard - state.clock.now
            point = points.point(row, self.offloads, left=left, connected=self.connected)
            decision = point.decide(policy)
            if decision == "continue":
                answers.row[i] = row = row + points.rows
                due = answers.time.item(i) + state.rules.edge_seconds.item(row)
                state.clock.at(due, self.take, answers, i, row, then)
                return
            sends = decision == "offload" and state.can_offload[row]
        instance = Instance(answers, i, row, then)
        if sends:
            self._offload(instance)
            return
        if answers.route.item(i) < 0:  # else it was answered with many others at once
            state.rules.answer_locally(answers, i)
        self._finish(instance)

    def _offload(self, instance: Instance) -> None:
        state = self.state
        now = state.clock.now
        deadline = instance.answers.time.item(instance.i) + state.limit - state.guard
        why = self._refusal(now, deadline)
        if why is not None:
            instance.answers.held[instance.i] = why == _HELD
            self._fall_back(instance, why)
            return
        ttl_ms = math.floor(1000.0 * (deadline - now))
        if ttl_ms <= 0:
            self.release(now)
            self._fall_back(instance, "deadline")
            return
        model, version = state.model
        item = self.offloads.open(
            state.messages.next_id(), model, version, now=now, deadline=deadline
        )
        if item is None:
            self._fall_back(instance, "full")
            return
        request = VirtualRequest(self, item, instance, ttl_ms / 1000.0, deadline)
        request.transmit(state.sizes.request(ttl_ms))
        state.clock.at(item.wake_at, request.poll)

    def _refusal(self, now: float, deadline: float) -> str | None:
        """Why no request may be made now, as the device's uplink decides; None: it may."""
        if not self.connected:
            return "link-down"
        if now < self.offloads.hold_until:
            return _HELD
        if len(self.offloads) >= self.offloads.limit:
            self.offloads.counts.full += 1
            return "full"
        if self._breaker is not None and not self._breaker.admit(now, deadline):
            return "breaker-open"
        return None

    def count_audit(self, mark: AuditMark, label: int) -> None:
        self.state.audit_counts.compare(mark, label)

    def release(self, now: float) -> None:
        if self._breaker is not None:
            self._breaker.release(now)

    def _record_outcome(self, item: InFlight, now: float) -> None:
        """Report a request's end to the breaker."""
        if self._breaker_draw is None or item.on_answer is not None:
            return
        replied = item.response is not None
        if self._breaker is None:
            if replied:
                self._replies += 1
                return
            self._breaker = Breaker(draw=self._breaker_draw, counts=self.state.breaker_counts)
            for _ in range(min(self._replies, self._breaker.window)):
                self._breaker.record(True, sent=now, now=now)
        self._breaker.record(replied, sent=item.sent_at, now=now)

    def conclude(self, request: VirtualRequest) -> None:
        request.over = True
        instance, item = request.instance, request.item
        if item.state == "unsent":
            self._fall_back(instance, "unsent")
        elif item.state != "answered":
            error = None if item.response is None else item.response.error
            self._fall_back(instance, "timeout" if error is None else f"cloud:{error}")
        else:
            answers, i = instance.answers, instance.i
            answers.route[i] = _CLOUD
            answers.cloud_ms[i] = request.worker_us / 1000.0
            cloud_only = self.state.rules.cloud_only
            answers.reason[i] = REASON["cloud-only" if cloud_only else "offloaded"]
            self._end(instance, 0.0)

    def _fall_back(self, instance: Instance, why: str) -> None:
        state, answers, row = self.state, instance.answers, instance.row
        unanswered = state.rules.routes.local_label.item(row) < 0
        answers.route[instance.i] = _ERROR if unanswered else _FALLBACK
        answers.reason[instance.i] = REASON[why]
        # A device that offloads first runs its stages only now.
        late = float(state.rules.edge_seconds[row]) if state.rules.cloud_only else 0.0
        self._end(instance, late)

    def _end(self, instance: Instance, late: float) -> None:
        answers, i = instance.answers, instance.i
        answers.latency_ms[i] = 1000.0 * (self.state.clock.now + late - answers.time.item(i))
        self._finish(instance)

    def _finish(self, instance: Instance) -> None:
        """Do what follows an answer."""
        self._audit(instance)
        if instance.then is not None:
            instance.then()

    def _admit_audit(self) -> bool:
        """Whether an answer may be audited now, as the device's uplink decides."""
        replies = self._breaker is None or self._breaker.state == "closed"
        return self.connected and replies and self.offloads.admit_audit(self.state.clock.now)

    def _audit(self, instance: Instance) -> None:
        """Send an answered instance to the high-cost model if the auditor chooses it."""
        state, auditor, row = self.state, self.auditor, instance.row
        route, routes = instance.answers.route.item(instance.i), self.state.rules.routes
        if auditor is None or route == _ERROR or not self._admit_audit():
            return
        label, confidence = routes.local_label.item(row), routes.confidence.item(row)
        mark = auditor.choose(_ROUTES[route], label, confidence)
        if mark is None or not state.can_offload[row]:
            return
        state.audit_counts.audit_cost += float(routes.request_cost[row] - routes.local_cost[row])
        now = state.clock.now
        model, version = state.model
        item = self.offloads.open(
            state.messages.next_id(),
            model,
            version,
            now=now,
            deadline=now + AUDIT_PATIENCE,
            on_answer=lambda _: None,
        )
        if item is not None:
            ttl_ms = math.floor(1000.0 * (item.deadline - now))
            # The instance is over: nobody waits.
            request = VirtualRequest(
                self, item, instance, ttl_ms / 1000.0, item.deadline,
                label=routes.cloud_label.item(row), mark=mark, over=True,
            )  # fmt: skip
            request.transmit(state.messages.audit_size(mark, ttl_ms))
