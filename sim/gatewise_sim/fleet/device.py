"""A device in virtual time, with the real records of requests and the real circuit breaker.

Its methods repeat the steps of :mod:`gatewise_edge.device.flow` and the uplink. A
:class:`~gatewise_sim.fleet.results.RowTable` contains the outcomes of stages and cloud. A device
can handle several instances at the same time.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from gatewise_edge.device.audit import AuditSampler
from gatewise_edge.device.auditor import AUDIT_TIMEOUT_S
from gatewise_edge.link.breaker import Breaker, BreakerCounts
from gatewise_edge.link.messages import AuditMark, Response
from gatewise_edge.link.offload import Offload, OffloadCounts, OffloadTable, RoundTrip
from gatewise_edge.link.offload_rules import TokenBucket
from gatewise_sim.fleet.clock import Clock
from gatewise_sim.fleet.link import (
    PUBACK_BYTES,
    REQUEST_TOPIC,
    RESPONSE_TOPIC,
    MessageSizes,
    VirtualLink,
    publish_bytes,
)
from gatewise_sim.fleet.results import CLOUD, ERROR, FALLBACK, REASON, RowTable
from gatewise_sim.fleet.worker import Availability, VirtualBroker, VirtualTicket
from gatewise_sim.scenario import Scenario

_ONE_ROW: Final = np.zeros((1, 0), np.float32)
#: Number of settled requests that a device remembers in order to recognise late responses.
_N_REMEMBERED: Final = 32
#: Reason for the fallbacks during the wait that a busy worker asks for.
_HOLD_REASON: Final = "cloud:busy"


def audit_seed(seed: int, device: int) -> int:
    """Derive the seed of a device's audits from the run's seed.

    >>> audit_seed(1, 2) == (1 << 32) + 2
    True
    """
    return (seed << 32) + device


class StepColumns:
    """Columns of the answers of the instances that are simulated event by event."""

    def __init__(self, n: int) -> None:
        self.route = [-1] * n
        self.reason = [0] * n
        self.end = [math.nan] * n
        self.cloud_ms = [0.0] * n
        self.up = [0] * n
        self.down = [0] * n
        self.payload_up = [0] * n
        self.payload_down = [0] * n
        self.requested = [False] * n
        self.audited = [False] * n


@dataclass(slots=True, eq=False, kw_only=True)
class FleetState:
    """State that the devices of a run share. The lists have one entry per row of the table.

    The stages of a row take its `stage_seconds`. Its answer is due after `deadline` s, and a device
    stops waiting `guard` s earlier. A device starts with the round trip `usual_trip`, measured
    without other traffic. The counts are sums over the devices.
    """

    clock: Clock
    availability: Availability
    broker: VirtualBroker
    scenario: Scenario
    table: RowTable
    sizes: MessageSizes
    columns: StepColumns
    rng: random.Random
    stage_seconds: list[float]
    can_offload: list[bool]
    local_label: list[int]
    confidence: list[float]
    request_first: bool
    deadline: float
    guard: float
    usual_trip: RoundTrip
    counts: OffloadCounts = field(default_factory=OffloadCounts)
    breaker_counts: BreakerCounts = field(default_factory=BreakerCounts)
    audit_cost: float = 0.0
    next_id: int = 0

    def new_id(self) -> bytes:
        """Make the id of the next request from a counter, so that runs are reproducible."""
        self.next_id += 1
        return self.next_id.to_bytes(16, "big")


class VirtualDevice:
    """One device. An instance is identified by its position in :class:`StepColumns`.

    The scenario's audits and its bound on offloads apply only to a `limited` device.
    """

    def __init__(self, state: FleetState, number: int, *, limited: bool) -> None:
        scenario = state.scenario
        self.name = f"{number:08d}"
        self.offloads = OffloadTable(
            max_in_flight=scenario.outstanding,
            n_remembered=_N_REMEMBERED,
            counts=state.counts,
            on_outcome=self._record_outcome if scenario.breaker else None,
        )
        trip = state.usual_trip
        self.offloads.round_trip = RoundTrip(trip.smoothed_s, trip.deviation_s)
        outages = scenario.outages if scenario.outages else None
        self.link = VirtualLink(scenario.link_profile, state.rng, outages)
        self.state = state
        # Created at the first request without a reply, because most devices never need it.
        self._breaker: Breaker | None = None
        self._n_replies = 0
        # Times (s) of the start of the latest connection, and of its end of handshakes.
        self._connection_start = 0.0
        self._ready_at = 0.0
        self._sampler: AuditSampler | None = None
        if limited and scenario.audit:
            # A live device has the same seed, so that both audit the same instances.
            rng = random.Random(audit_seed(scenario.seed, number))
            self._sampler = AuditSampler(scenario.audit, rng)
        self._token_bucket: TokenBucket | None = None
        if limited and scenario.max_offloads is not None:
            self._token_bucket = TokenBucket.parse(scenario.max_offloads)

    @property
    def connected(self) -> bool:
        """Whether the device has a connection and has completed its handshakes."""
        availability = self.state.availability
        if availability.quiet:
            return True
        if not availability.connected:
            return False
        now = self.state.clock.now
        start = availability.connected_at
        if self._connection_start < start <= now:
            self._connection_start = start
            self._ready_at = self.link.session(start, tls=self.state.scenario.tls)
        return now >= self._ready_at

    # -- one instance ---------------------------------------------------------------------------

    def offload(self, number: int, row: int, arrival: float) -> None:
        """Offload an instance after its stages, or fall back.

        The deadline counts from its `arrival`, in s.
        """
        state = self.state
        now = state.clock.now
        deadline = arrival + state.deadline - state.guard
        # The same checks as in Uplink.admit: refusal, deadline, number of open requests.
        refusal = self._refusal(now, deadline)
        if refusal is not None:
            self._fall_back(number, row, refusal)
            return
        ttl_ms = math.floor(1000.0 * (deadline - now))
        if ttl_ms <= 0:
            self._release(now)
            self._fall_back(number, row, "deadline")
            return
        table = state.table
        offload = self.offloads.open(
            state.new_id(), table.model, table.version, now=now, deadline=deadline
        )
        if offload is None:
            self._release(now)
            self._fall_back(number, row, "full")
            return
        state.columns.requested[number] = True
        request = VirtualRequest(self, offload, number, row, ttl_ms)
        request.transmit(state.sizes.request(ttl_ms))
        if offload.is_settled:
            self.conclude(request)
        else:
            state.clock.at(offload.wake_at, request.poll)

    def _refusal(self, now: float, deadline: float) -> str | None:
        """Get the uplink's reason to send no request now; None if it may send one."""
        if not self.connected:
            return "link-down"
        if now < self.offloads.pause_until:
            return _HOLD_REASON
        if len(self.offloads) >= self.offloads.max_in_flight:
            self.offloads.counts.full += 1
            return "full"
        if self._token_bucket is not None and not self._token_bucket.take_token(now):
            return "offload-limit"
        if self._breaker is not None and not self._breaker.admit(now, deadline):
            if self._token_bucket is not None:
                self._token_bucket.return_token()
            return "breaker-open"
        return None

    def _release(self, now: float) -> None:
        """Return the place of an admitted offload that is not sent."""
        if self._breaker is not None:
            self._breaker.release(now)
        if self._token_bucket is not None:
            self._token_bucket.return_token()

    def _record_outcome(self, offload: Offload, now: float) -> None:
        """Report the outcome of a request to the breaker."""
        if offload.on_answer is not None:
            return
        has_reply = offload.response is not None
        if self._breaker is None:
            if has_reply:
                self._n_replies += 1
                return
            state = self.state
            self._breaker = Breaker(draw=state.rng.random, counts=state.breaker_counts)
            for _ in range(min(self._n_replies, self._breaker.n_recent)):
                self._breaker.record(True, sent_at=now, now=now)
        self._breaker.record(has_reply, sent_at=offload.sent_at, now=now)

    def conclude(self, request: VirtualRequest) -> None:
        """Record the instance's answer from the outcome of its request."""
        offload = request.offload
        number = request.number
        state = self.state
        if offload.state == "answered":
            state.columns.route[number] = CLOUD
            state.columns.reason[number] = REASON["offloaded"]
            state.columns.cloud_ms[number] = request.worker_us / 1000.0
            state.columns.end[number] = state.clock.now
            if self._may_audit():
                assert self._sampler is not None
                self._sampler.choose("cloud", int(state.table.cloud_label[request.row]), 1.0)
            return
        reason = "unsent" if offload.state == "unsent" else "timeout"
        if offload.response is not None:
            reason = f"cloud:{offload.response.error}"
        if reason == "unsent":
            state.columns.requested[number] = False
        self._fall_back(number, request.row, reason)

    def _fall_back(self, number: int, row: int, reason: str) -> None:
        state = self.state
        state.columns.route[number] = FALLBACK if state.local_label[row] >= 0 else ERROR
        state.columns.reason[number] = REASON[reason]
        # With request_first the stages run only now.
        stage_seconds = state.stage_seconds[row] if state.request_first else 0.0
        state.columns.end[number] = state.clock.now + stage_seconds

    # -- audits ---------------------------------------------------------------------------------

    def _may_audit(self) -> bool:
        """Whether an audit could be sent now. Only such instances are sampled."""
        if self._sampler is None or not self.connected:
            return False
        is_closed = self._breaker is None or self._breaker.state == "closed"
        return is_closed and self.offloads.admit_audit(self.state.clock.now)

    def audit(self, number: int, row: int) -> None:
        """Send a request that audits the device's answer, if the sampler chooses it."""
        state = self.state
        label = state.local_label[row]
        if label < 0 or not self._may_audit():
            return
        assert self._sampler is not None
        mark = self._sampler.choose("edge", label, state.confidence[row])
        if mark is None or not state.can_offload[row]:
            return
        table = state.table
        now = state.clock.now
        state.audit_cost += float(table.request_cost[row] - table.local_cost[row])
        deadline = now + AUDIT_TIMEOUT_S
        ttl_ms = math.floor(1000.0 * (deadline - now))
        offload = self.offloads.open(
            state.new_id(),
            table.model,
            table.version,
            now=now,
            deadline=deadline,
            on_answer=lambda response: None,
        )
        assert offload is not None  # audits do not count as open requests
        state.columns.audited[number] = True
        request = VirtualRequest(self, offload, number, row, ttl_ms, mark)
        request.transmit(state.sizes.audit(mark, ttl_ms))


@dataclass(slots=True, eq=False)
class VirtualRequest:
    """One request of a device, and its response.

    `ttl_ms` is the time to live in ms. A request with a `mark` is an audit of an instance that is
    already answered. `size` is the size of the payload in bytes, and `worker_us` the worker's time
    in the response.
    """

    device: VirtualDevice
    offload: Offload
    number: int
    row: int
    ttl_ms: int
    mark: AuditMark | None = None
    size: int = 0
    worker_us: int = 0

    def transmit(self, payload: int) -> None:
        """Send the request over the link."""
        device = self.device
        state = device.state
        self.size = payload
        if not device.connected:  # the link refuses messages
            if not self.offload.is_resent:
                device.offloads.abandon(self.offload, state.clock.now)
            return
        packet = publish_bytes(REQUEST_TOPIC, payload)
        state.columns.payload_up[self.number] += payload
        state.columns.up[self.number] += packet
        if state.availability.link_delivers:
            due = device.link.send(state.clock.now, packet, True)
            state.clock.at(due, self._arrive_at_broker)

    def poll(self) -> None:
        """Retry or give up the request when it is due, as the device's uplink does."""
        offload = self.offload
        device = self.device
        state = device.state
        if not offload.is_settled and device.offloads.poll(offload, state.clock.now):
            self.transmit(self.size)
        if not offload.is_settled:
            state.clock.at(offload.wake_at, self.poll)
        elif math.isnan(state.columns.end[self.number]):
            device.conclude(self)

    def _arrive_at_broker(self) -> None:
        state = self.device.state
        availability = state.availability
        if not availability.broker_up:
            return
        state.columns.down[self.number] += PUBACK_BYTES
        if availability.link_delivers:
            # The response comes on the same connection, after the acknowledgement.
            self.device.link.down.due(state.clock.now, PUBACK_BYTES)
        ticket = VirtualTicket(
            device=self.device.name,
            id=self.offload.id,
            digest=b"",
            model=state.table.key,
            audit=self.mark,
            label=int(state.table.cloud_label[self.row]) if self.mark is not None else -1,
            rows=_ONE_ROW,
            arrived_at=0.0,
            expires_at=0.0,
            requester=self,
        )
        state.broker.deliver(ticket, self.ttl_ms / 1000.0)

    def reply(self, error: str | None, worker_us: int, wait_ms: int = 0) -> None:
        """Send the worker's response to the device."""
        state = self.device.state
        sizes = state.sizes
        size = sizes.response(worker_us) if error is None else sizes.refusal(wait_ms)
        departure = state.broker.response_departure()
        if state.availability.quiet:
            due = self.device.link.send(departure, publish_bytes(RESPONSE_TOPIC, size), False)
            state.clock.at(due, self._arrive, size, error, worker_us, wait_ms)
        else:
            state.clock.at(departure, self._depart, size, error, worker_us, wait_ms)

    def _depart(self, size: int, error: str | None, worker_us: int, wait_ms: int) -> None:
        """Send the response from the broker, if the link delivers at this time."""
        state = self.device.state
        if state.availability.link_delivers:
            packet = publish_bytes(RESPONSE_TOPIC, size)
            due = self.device.link.send(state.clock.now, packet, False)
            state.clock.at(due, self._arrive, size, error, worker_us, wait_ms)

    def _arrive(self, size: int, error: str | None, worker_us: int, wait_ms: int) -> None:
        device = self.device
        state = device.state
        number = self.number
        now = state.clock.now
        state.columns.payload_down[number] += size
        state.columns.down[number] += publish_bytes(RESPONSE_TOPIC, size)
        state.columns.up[number] += PUBACK_BYTES
        if state.availability.link_delivers:
            device.link.up.due(now, PUBACK_BYTES)
        was_settled = self.offload.is_settled
        device.offloads.receive(self._response(error, wait_ms), now)
        if self.mark is not None or was_settled:
            return
        if self.offload.is_settled:
            self.worker_us = worker_us
            device.conclude(self)
        else:
            # An error may have changed the time of the retry.
            state.clock.at(self.offload.wake_at, self.poll)

    def _response(self, error: str | None, wait_ms: int) -> Response:
        table = self.device.state.table
        if error is not None:
            fields: dict[str, Any] = {"error": error, "wait_ms": wait_ms}
            return Response(id=self.offload.id, model=table.model, version=table.version, **fields)
        response = table.response
        response.id = self.offload.id  # the constructor checked the other fields
        return response
