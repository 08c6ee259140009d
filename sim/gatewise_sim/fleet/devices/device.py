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
from gatewise_edge.device.auditor import AUDIT_PATIENCE, Auditor
from gatewise_edge.device.pacer import Pace
from gatewise_edge.link.breaker import Breaker, BreakerCounts
from gatewise_edge.link.coalesce import Coalescer
from gatewise_edge.link.offload import (
    RESEND,
    InFlight,
    OffloadCounts,
    OffloadOutcome,
    Offloads,
    OutcomeKind,
)
from gatewise_sim.fleet.answers import REASON, AnswerRules, Answers
from gatewise_sim.fleet.broker import Availability, VirtualBroker
from gatewise_sim.fleet.clock import Clock
from gatewise_sim.fleet.devices.audits import AuditRules
from gatewise_sim.fleet.devices.decisions import DecisionPoints
from gatewise_sim.fleet.messages import (
    PUBACK_BYTES,
    Messages,
    Sizes,
    part_packet,
    request_packet,
    response_packet,
)
from gatewise_sim.fleet.network.link import VirtualLink
from gatewise_sim.fleet.routes import ROUTES
from gatewise_sim.fleet.worker import VirtualTicket, VirtualWorker

_EDGE, _CLOUD, _FALLBACK, _ERROR = range(len(ROUTES))
_ONE_ROW: Final = np.zeros((1, 0), np.float32)
_SOONEST: Final = 0.001  # a request with less time than this is not made, as by the uplink
Continuation = Callable[[], None]
#: Parts under way to the broker at a time, as the device's link sends them.
_PARTS_AHEAD: Final = 4


@dataclass(slots=True, eq=False)
class FleetState:
    """What the devices of a run share; the lists are by row.

    `limit` is the deadline (s), and `guard` how much earlier a device stops waiting; requests wait
    `coalesce` seconds for those of more rows. The counts are
    one for all devices, since only their sums are reported.
    """

    clock: Clock
    workers: list[VirtualWorker]
    availability: Availability
    broker: VirtualBroker
    rules: AnswerRules
    messages: Messages
    sizes: Sizes
    sends: list[bool]
    can_offload: list[bool]
    no_local_answer: list[bool]
    limit: float
    guard: float
    outstanding: int
    model: tuple[str, str]
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
        "_breaker", "_breaker_draw", "_coalescer", "_connection", "_gathering", "_pace",
        "_ready_at", "_replies", "auditor", "link", "name", "offloads", "state",
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
            counts=state.offload_counts,
            on_outcome=self._record_outcome,
        )
        self.state = state
        self.link = link
        self._breaker: Breaker | None = None
        self._breaker_draw = breaker_draw
        self._replies = 0
        self._coalescer = Coalescer(state.coalesce)
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
        item, due = self._coalescer.join(
            _ONE_ROW[0],
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

    def take_due(self, item: InFlight, now: float) -> bool:
        """Whether a request has waited long enough for rows; it is closed then."""
        return now >= item.flush_at and bool(self._coalescer.take(item))

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
        cloud_only = self.state.rules.cloud_only
        answers.reason[i] = REASON["cloud-only" if cloud_only else "offloaded"]
        answers.cloud_ms[i] = request.worker_us / 1000.0
        self._end(answers, i, row, 0.0, request.then, sent=True)

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
                over=True,
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


@dataclass(slots=True, eq=False)
class VirtualRequest:
    """One request of a device: sent, at the broker, and back; `ttl` in s.

    Of an audit the `auditor` gets the response. Instances that share a request have one of these
    each, its `riders` in the order that they came: one of them sends it and counts its bytes.
    """

    device: VirtualDevice
    item: InFlight
    answers: Answers
    i: int
    row: int
    ttl: float
    then: Continuation | None
    deadline: float
    riders: list[VirtualRequest] | None = None
    auditor: Auditor | None = None
    size: int = 0
    worker_us: int = 0
    up: int = 0
    down: int = 0
    payload_up: int = 0
    payload_down: int = 0
    over: bool = False
    next_part: int = 0

    def enter_bytes(self) -> None:
        """Enter what was sent and received into the answer."""
        answers, i = self.answers, self.i
        answers.up[i] = self.up
        answers.down[i] = self.down
        answers.payload_up[i] = self.payload_up
        answers.payload_down[i] = self.payload_down

    def transmit(self, payload: int) -> None:
        """Send the request over the link."""
        state = self.device.state
        self.size = payload
        if not self.device.connected:  # a link takes nothing then
            return
        packet = request_packet(payload)
        self.payload_up += payload
        self.up += packet
        if self.over:
            self.enter_bytes()
        if state.availability.link_delivers:
            due = self.device.link.send(state.clock.now, packet, True)
            state.clock.at(due, self._arrive_at_broker)

    def send_shared(self) -> None:
        """Send what has waited for more rows, or settle it unsent."""
        device, item = self.device, self.item
        state, now = device.state, device.state.clock.now
        ttl_ms = math.floor(1000.0 * (item.earliest - now))
        why: OutcomeKind | None = "deadline" if ttl_ms <= 0 else None
        item.id = state.messages.next_id()
        item.content = b"0" if state.sizes.parts else b""
        if why is None and not device.offloads.open(item, now):
            why = "full"
        if why is not None:
            item.id, item.outcome = b"", OffloadOutcome(why, None, 0.0)
            device.release(now)
            return
        self.ttl = ttl_ms / 1000.0
        self.transmit(state.sizes.request(ttl_ms, item.rows))

    def wait(self) -> None:
        """Poll when something is due for this instance."""
        item, clock = self.item, self.device.state.clock
        clock.at(
            clock.now if item.outcome is not None else min(item.wake_at, self.deadline), self.poll
        )

    def poll(self) -> None:
        """Send, send again or give up when it is time to, as the device's uplink does."""
        if self.over:
            return
        device, item, now = self.device, self.item, self.device.state.clock.now
        if self.riders is not None and device.take_due(item, now):
            self.send_shared()
        elif item.id and device.offloads.poll(item, now) == RESEND:
            self.ttl, size = self.first.ttl, self.first.size
            self.transmit(size)
        self.settle()

    @property
    def first(self) -> VirtualRequest:
        """The one that sent it first: it has its size and time to live."""
        return next((each for each in self.riders or () if each.size), self)

    def settle(self) -> None:
        """Conclude this instance if its request has an outcome for it, else wait on."""
        outcome = self.item.outcome_of_row(self.deadline, self.device.state.clock.now)
        if outcome is None:
            self.wait()
        else:
            self.device.conclude(self, outcome)

    def _arrive_at_broker(self) -> None:
        broker = self.device.state.broker
        if self._acknowledged_at() is not None:
            broker.handle(broker.deliver, self._ticket)

    def _acknowledged_at(self) -> float | None:
        """Have the broker acknowledge a message: when the device has it; None: there is no broker.

        Infinite if the link delivers nothing.
        """
        state = self.device.state
        if not state.availability.broker_up:
            return None
        self.down += PUBACK_BYTES
        if self.over:
            self.enter_bytes()
        if not state.availability.link_delivers:
            return math.inf
        # What follows on the same connection cannot overtake it.
        return self.device.link.send(state.clock.now, PUBACK_BYTES, False)

    def accept(self, worker: VirtualWorker, ticket: VirtualTicket) -> None:
        """See :class:`gatewise_sim.fleet.worker.Requester`."""
        broker, size = self.device.state.broker, self.device.state.sizes.acceptance
        broker.return_response(self._let_go, self._accepted, size, worker, ticket)

    def _accepted(self, size: int, worker: VirtualWorker, ticket: VirtualTicket) -> None:
        device = self.device
        state = device.state
        self._take_in(size)
        item = device.offloads.accept(state.messages.acceptance(self.item.id), state.clock.now)
        if item is not None:
            self.next_part = 0
            for _ in range(_PARTS_AHEAD):
                self._send_part(worker, ticket, item.transfers)

    def _send_part(self, worker: VirtualWorker, ticket: VirtualTicket, transfer: int) -> None:
        """Send the next part, as long as it is waited for."""
        device, item, index = self.device, self.item, self.next_part
        state = device.state
        ended = item.outcome is not None or state.clock.now >= item.deadline
        ended = ended or index == len(state.sizes.parts) or transfer != item.transfers
        if ended or not state.availability.link_delivers:
            return
        self.next_part += 1
        payload = state.sizes.parts[index]
        packet = part_packet(payload)
        self.payload_up += payload
        self.up += packet
        if self.over:
            self.enter_bytes()
        device.offloads.sent_part(item, payload, state.clock.now)
        due = device.link.send(state.clock.now, packet, True)
        state.clock.at(due, self._part_at_broker, worker, ticket, index, transfer)

    def _part_at_broker(
        self, worker: VirtualWorker, ticket: VirtualTicket, index: int, transfer: int
    ) -> None:
        state, acknowledged = self.device.state, self._acknowledged_at()
        if acknowledged is None:
            return
        if acknowledged < math.inf:
            state.clock.at(acknowledged, self._send_part, worker, ticket, transfer)
        state.broker.handle(state.broker.pass_on, worker, ticket, index)

    def _ticket(self, now: float) -> VirtualTicket:
        audits = self.device.state.audits
        return VirtualTicket(
            device=self.device.name,
            id=self.item.id,
            digest=b"",
            model=self.device.state.model,
            audit=self.item.audit,
            label=-1 if audits is None else audits.cloud_labels[self.row],
            rows=_ONE_ROW if self.item.rows == 1 else np.zeros((self.item.rows, 0), np.float32),
            arrived=now,
            expires=now + self.ttl,
            requester=self,
            parts=len(self.device.state.sizes.parts),
        )

    def reply(self, error: str | None, worker_us: int) -> None:
        """See :class:`gatewise_sim.fleet.worker.Requester`."""
        state = self.device.state
        size = (
            state.sizes.busy
            if error is not None
            else state.sizes.response(worker_us, self.item.rows)
        )
        state.broker.return_response(self._let_go, self._arrive, size, error, worker_us)

    def _let_go(self, then: Callable[..., None], size: int, *args: object) -> None:
        """Send a response on its way from the broker; on arrival do what follows."""
        state = self.device.state
        if state.availability.link_delivers:
            due = self.device.link.send(state.clock.now, response_packet(size), False)
            state.clock.at(due, then, size, *args)

    def _take_in(self, size: int) -> None:
        """Count a response, and acknowledge it."""
        state = self.device.state
        self.payload_down += size
        self.down += response_packet(size)
        self.up += PUBACK_BYTES
        if state.availability.link_delivers:
            self.device.link.send(state.clock.now, PUBACK_BYTES, True)

    def _arrive(self, size: int, error: str | None, worker_us: int) -> None:
        device = self.device
        state = device.state
        now = state.clock.now
        self._take_in(size)
        if self.auditor is not None and error is None:
            self._receive_audit(now)
            return
        response = state.messages.response(self.item.id, error, self.item.rows)
        device.offloads.receive(response, now)
        if self.over:
            self.enter_bytes()
        for request in self.riders or (self,):
            if not request.over:
                request.worker_us = worker_us
                request.settle()  # an error may have moved the time of the retry

    def _receive_audit(self, now: float) -> None:
        """Compare an audited answer with the high-cost model's, if that has come in time."""
        self.enter_bytes()
        state, mark, auditor = self.device.state, self.item.audit, self.auditor
        assert state.audits is not None
        assert mark is not None
        assert auditor is not None
        response = state.messages.audited(self.item.id, state.audits.cloud_labels[self.row])
        item = self.device.offloads.receive(response, now)
        if item is not None and item.outcome is not None and item.outcome.kind == "answered":
            auditor.compare(mark, response)
