"""A device in virtual time: the real bookkeeping of requests, breaker and pacer, on a virtual link.

Follows the device's and the uplink's own code step by step; the outcome of stages and cloud comes
from :class:`~gatewise_sim.fleet.routes.Routes`. A device handles several instances at a time, and
with a wait their requests share messages.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from gatewise_edge.device.answer import OwnPolicy
from gatewise_edge.device.auditor import AUDIT_PATIENCE
from gatewise_edge.device.pacer import Pace
from gatewise_edge.link.breaker import Breaker, BreakerCounts
from gatewise_edge.link.offload import InFlight, OffloadCounts, OffloadOutcome, Offloads
from gatewise_sim.fleet.answer_rules import AnswerRules
from gatewise_sim.fleet.answers import REASON, ROUTES, Answers
from gatewise_sim.fleet.devices.audits import AuditRules
from gatewise_sim.fleet.devices.decisions import DecisionPoints
from gatewise_sim.fleet.devices.request import Continuation, RequestPath, VirtualRequest
from gatewise_sim.fleet.network.link import VirtualLink

_EDGE, _CLOUD, _FALLBACK, _ERROR = range(len(ROUTES))
_ROW: Final = np.zeros(0, np.float32)
_SOONEST: Final = 0.001  # a request with less time than this is not made, as by the uplink


@dataclass(slots=True, eq=False, kw_only=True)
class FleetState(RequestPath):
    """What the devices of a run share; the lists are by row.

    `limit` is the deadline (s), and `guard` how much earlier a device stops waiting; requests wait
    `coalesce` seconds for those of more rows. The counts are
    one for all devices, since only their sums are reported.
    """

    rules: AnswerRules
    sends: list[bool]
    can_offload: list[bool]
    no_local_answer: list[bool]
    limit: float
    guard: float
    outstanding: int
    coalesce: float = 0.0
    tls: bool = False
    audits: AuditRules | None = None
    decisions: tuple[OwnPolicy, DecisionPoints] | None = None
    offload_counts: OffloadCounts = field(default_factory=OffloadCounts)
    breaker_counts: BreakerCounts = field(default_factory=BreakerCounts)


class VirtualDevice:
    """One device; without a `breaker_draw` it has no breaker, without a `pace` no pacer.

    It audits its answers if the fleet does.
    """

    __slots__ = (
        "_breaker", "_breaker_draw", "_connection", "_gathering", "_pace", "_ready_at", "_replies",
        "auditor", "link", "name", "offloads", "state",
    )  # fmt: skip

    def __init__(
        self,
        state: FleetState,
        index: int,
        link: VirtualLink,
        breaker_draw: Callable[[], float] | None,
        pace: Pace | None,
    ) -> None:
        self.name = f"{index:08d}"
        self.offloads = Offloads(
            limit=state.outstanding,
            share_wait=state.coalesce,
            counts=state.offload_counts,
            on_outcome=self._record_outcome,
        )
        self.state = state
        self.link = link
        self._breaker: Breaker | None = None
        self._breaker_draw = breaker_draw
        self._replies = 0
        self._gathering: list[VirtualRequest] = []  # those of the request that waits for rows
        self._connection = self._ready_at = 0.0  # the latest one, and when it could carry requests
        self._pace = pace
        self.auditor = None if state.audits is None else state.audits.auditor(index)

    @property
    def connected(self) -> bool:
        """Whether it has a connection; a new one begins with handshakes."""
        availability, now = self.state.availability, self.state.clock.now
        if not availability.connected:
            return False
        begun = availability.connected_at
        if self._connection < begun <= now:
            self._connection = begun
            self._ready_at = self.link.session(begun, tls=self.state.tls)
        return now >= self._ready_at

    def take(self, answers: Answers, i: int, row: int, then: Continuation | None = None) -> None:
        """Decide about an instance after its stages, and see to its answer; then call `then`.

        Fills in route, reason, latency and bytes of the answer `i`, and all of a local answer;
        :meth:`.AnswerRules.complete` does the rest.
        """
        state = self.state
        sends = state.sends[row]
        if state.decisions is not None:
            policy, points = state.decisions
            left = answers.time.item(i) + state.limit - state.guard - state.clock.now
            point = points.point(
                row, self.offloads, self._pace, left=left, connected=self.connected
            )
            decision = point.decide(policy)
            if decision == "continue":
                answers.row[i] = row = row + points.rows
                due = answers.time.item(i) + state.rules.edge_seconds.item(row)
                state.clock.at(due, self.take, answers, i, row, then)
                return
            sends = decision == "offload" and state.can_offload[row]
        elif self._pace is not None and self._pace.moved:
            score = state.rules.routes.score[row]
            if not math.isnan(score):
                threshold = self._pace.threshold()
                sends = threshold is None or not bool(score >= np.float32(threshold))
                sends = sends and state.can_offload[row]
                answers.paced[i] = True
        if sends:
            self._offload(answers, i, row, then)
        else:
            if answers.route.item(i) < 0:  # else it was answered with many others at once
                state.rules.answer_locally(answers, i)
            self._observe(answers, i, row, sent=False)
            self._audit(answers, i, row)
            if then is not None:
                then()

    def _offload(self, answers: Answers, i: int, row: int, then: Continuation | None) -> None:
        state = self.state
        now = state.clock.now
        deadline = answers.time.item(i) + state.limit - state.guard
        why = self._refusal(now, deadline)
        if why is None and state.coalesce:
            self._join(answers, i, row, deadline, then)
            return
        item: InFlight | None = None
        if why is None:
            ttl_ms = math.floor(1000.0 * (deadline - now))
            if ttl_ms <= 0:
                why = "deadline"
                self.release(now)
            else:
                item = state.messages.request(deadline)
                item.content = b"0" if state.sizes.parts else b""
                if not self.offloads.open(item, now):
                    item = None
        if item is None:
            self._fall_back(answers, i, row, why or "full", then)
            return
        request = VirtualRequest(self, item, answers, i, row, ttl_ms / 1000.0, then, deadline)
        request.transmit(state.sizes.request(ttl_ms))
        state.clock.at(item.wake_at, request.poll)

    def _join(
        self, answers: Answers, i: int, row: int, deadline: float, then: Continuation | None
    ) -> None:
        """Put an instance into the request that waits for rows, as the device's uplink does."""
        state, now = self.state, self.state.clock.now
        if deadline - now < _SOONEST:
            self.release(now)
            self._fall_back(answers, i, row, "deadline", then)
            return
        item, due = self.offloads.join(
            _ROW,
            model=state.model[0],
            version=state.model[1],
            most=state.sizes.most_rows,
            now=now,
            deadline=deadline,
        )
        riders = self._gathering if item.rows > 1 else []
        self._gathering = riders
        request = VirtualRequest(self, item, answers, i, row, 0.0, then, deadline, riders=riders)
        riders.append(request)
        if due:
            request.send_shared()
        request.wait()

    def release(self, now: float) -> None:
        """Give up a request that was admitted and not made."""
        if self._breaker is not None:
            self._breaker.release(now)

    def _refusal(self, now: float, deadline: float) -> str | None:
        """Why no request may be made now, as the device's uplink decides; None: it may."""
        if not self.connected:
            return "link-down"
        if len(self.offloads) >= self.offloads.limit:
            self.offloads.counts.full += 1
            return "full"
        if self._breaker is not None and not self._breaker.admit(now, deadline):
            return "breaker-open"
        return None

    def _record_outcome(self, item: InFlight, now: float) -> None:
        """Report a request's end to the breaker, made when one first goes without a reply."""
        if self._breaker_draw is None or item.outcome is None or item.audit is not None:
            return
        replied = item.outcome.response is not None
        if self._breaker is None:
            if replied:
                self._replies += 1
                return
            self._breaker = Breaker(draw=self._breaker_draw, counts=self.state.breaker_counts)
            for _ in range(min(self._replies, self._breaker.window)):
                self._breaker.record(True, sent=now, now=now)
        self._breaker.record(replied, sent=item.opened, now=now)

    def conclude(self, request: VirtualRequest, outcome: OffloadOutcome) -> None:
        """Turn a request's outcome into the instance's answer, as a device does."""
        request.over = True
        request.enter_bytes()
        answers, i, row = request.answers, request.i, request.row
        if outcome.kind in ("full", "deadline"):
            self._fall_back(answers, i, row, outcome.kind, request.then)
            return
        if outcome.kind != "answered":
            error = None if outcome.response is None else outcome.response.error
            why = "timeout" if error is None else f"cloud:{error}"
            self._fall_back(answers, i, row, why, request.then, sent=True)
            return
        answers.route[i] = _CLOUD
        answers.reason[i], answers.stood_in[i] = self._answered_by(row, request)
        answers.cloud_ms[i] = request.worker_us / 1000.0
        self._end(answers, i, row, 0.0, request.then, sent=True)

    def _answered_by(self, row: int, request: VirtualRequest) -> tuple[int, bool]:
        """Index of the reason of an answer from beyond the device; whether a gateway stood in."""
        rules = self.state.rules
        gateway, cloud_only = rules.routes.gateway, rules.cloud_only
        if gateway is None:
            return REASON["cloud-only" if cloud_only else "offloaded"], False
        goes_up = bool(gateway.goes_up[row])
        stood_in = goes_up and request.stood_in
        by_gateway = stood_in or not goes_up
        reason = "cloud-only" if cloud_only else "gateway" if by_gateway else "offloaded"
        return REASON[reason], stood_in

    def _fall_back(
        self,
        answers: Answers,
        i: int,
        row: int,
        why: str,
        then: Continuation | None,
        *,
        sent: bool = False,
    ) -> None:
        state = self.state
        answers.route[i] = _ERROR if state.no_local_answer[row] else _FALLBACK
        answers.reason[i] = REASON[why]
        # A device that offloads first runs its stages only now.
        late = float(state.rules.edge_seconds[row]) if state.rules.cloud_only else 0.0
        self._end(answers, i, row, late, then, sent=sent)

    def _end(
        self,
        answers: Answers,
        i: int,
        row: int,
        late: float,
        then: Continuation | None,
        *,
        sent: bool,
    ) -> None:
        answers.latency_ms[i] = 1000.0 * (self.state.clock.now + late - answers.time.item(i))
        self._observe(answers, i, row, sent=sent)
        self._audit(answers, i, row)
        if then is not None:
            then()

    def _audit(self, answers: Answers, i: int, row: int) -> None:
        """Send an answered instance to the high-cost model if the auditor chooses it."""
        state, auditor = self.state, self.auditor
        if state.audits is None or auditor is None or not self.connected:
            return
        mark = state.audits.choose(auditor, answers.route.item(i), row)
        now = state.clock.now
        if mark is None or not self.offloads.admit_audit(now):
            return
        item = state.messages.request(now + AUDIT_PATIENCE)
        item.audit = mark
        item.content = b"0" if state.sizes.parts else b""
        if self.offloads.open(item, now):
            ttl_ms = math.floor(1000.0 * (item.deadline - now))
            # The instance is over: nobody waits.
            request = VirtualRequest(
                self, item, answers, i, row, ttl_ms / 1000.0, None, item.deadline, auditor=auditor,
                label=state.audits.cloud_labels[row], over=True,
            )  # fmt: skip
            request.transmit(state.messages.audit_size(mark, ttl_ms))

    def _observe(self, answers: Answers, i: int, row: int, *, sent: bool) -> None:
        """Report an answer to the pacer, as the device does."""
        if self._pace is None:
            return
        state, used = self.state, None
        if sent or answers.route[i] == _EDGE:
            one = answers.take(np.array([i]))
            state.rules.complete(one)
            size = float(one.payload_up[0] + one.payload_down[0])
            used = self._pace.used(sent=sent, size=size, cost=float(one.cost[0]))
        score = float(state.rules.routes.score[row])
        self._pace.observe(None if math.isnan(score) else score, used, state.clock.now)
