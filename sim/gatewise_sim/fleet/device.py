"""A device in virtual time, with the real records of requests and the real circuit breaker.

Its methods repeat the steps of :mod:`gatewise_edge.device.flow` and the uplink. A
:class:`~gatewise_sim.fleet.results.RowTable` contains the outcomes of stages and cloud. A device
can handle several instances at the same time.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from gatewise_edge.device.audit_sampler import AuditSampler
from gatewise_edge.device.late_requests import RESPONSE_TIMEOUT_S
from gatewise_edge.link.breaker import N_RECENT, Breaker, BreakerCounts
from gatewise_edge.link.messages import AuditMark, Response
from gatewise_edge.link.offload import Offload, OffloadCounts, OffloadTable, RoundTrip
from gatewise_edge.link.offload_rules import TokenBucket
from gatewise_sim.fleet.broker import Availability, VirtualBroker
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
from gatewise_sim.fleet.worker import ONE_ROW, VirtualTicket
from gatewise_sim.scenario import Scenario

#: Number of settled requests that a device remembers in order to recognise late responses. A real
#: device remembers more; thousands of virtual ones share the memory of a process.
_N_REMEMBERED: Final = 32
#: Reason of fallbacks while a device waits, because a worker was busy.
_BUSY_REASON: Final = "cloud:busy"


def audit_seed(seed: int, device: int) -> int:
    """Derive the seed of a device's audits from the run's seed.

    >>> audit_seed(1, 2) == (1 << 32) + 2
    True
    """
    return (seed << 32) + device


class StepColumns:
    """Columns of the answers of the instances that are simulated event by event."""

    def __init__(self, n_instances: int) -> None:
        self.route = [-1] * n_instances
        self.reason = [0] * n_instances
        self.end = [math.nan] * n_instances
        self.cloud_ms = [0.0] * n_instances
        self.bytes_up = [0] * n_instances
        self.bytes_down = [0] * n_instances
        self.payload_bytes_up = [0] * n_instances
        self.payload_bytes_down = [0] * n_instances
        self.is_requested = [False] * n_instances
        self.is_audited = [False] * n_instances


@dataclass(slots=True, eq=False, kw_only=True)
class FleetContext:
    """State that the devices of a run share. The lists have one entry per row of the table.

    The stages of a row take `stage_seconds`. An answer is due `deadline_s` after the arrival of its
    instance, and a device stops waiting `reserved_s` earlier. A device starts with
    `usual_round_trip`, measured without other traffic. The counts are sums over the devices.
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
    is_cloud_first: bool
    deadline_s: float
    reserved_s: float
    usual_round_trip: RoundTrip
    offload_counts: OffloadCounts = field(default_factory=OffloadCounts)
    breaker_counts: BreakerCounts = field(default_factory=BreakerCounts)
    audit_cost: float = 0.0
    next_id: int = 0

    def new_id(self) -> bytes:
        """Make the id of the next request from a counter, so that runs are reproducible."""
        self.next_id += 1
        return self.next_id.to_bytes(16, "big")


class VirtualDevice:
    """One device, for which an instance is a position in :class:`StepColumns`.

    The scenario's audits and its bound on offloads apply only with `has_audits_and_limit`.
    """

    def __init__(
        self, fleet: FleetContext, device_number: int, *, has_audits_and_limit: bool
    ) -> None:
        scenario = fleet.scenario
        self.name = f"{device_number:08d}"
        self.offloads = OffloadTable(
            max_in_flight=scenario.outstanding,
            n_remembered=_N_REMEMBERED,
            counts=fleet.offload_counts,
            on_outcome=self._record_outcome if scenario.breaker else None,
        )
        round_trip = fleet.usual_round_trip
        self.offloads.round_trip = RoundTrip(round_trip.smoothed_s, round_trip.deviation_s)
        outages = scenario.outages if scenario.outages else None
        self.link = VirtualLink(scenario.link_profile, fleet.rng, outages)
        self.fleet = fleet
        # Created at the first request without a reply, because most devices never need it.
        self._breaker: Breaker | None = None
        self._n_replies = 0  # before the breaker was created
        # Times (s) at which the latest connection was started, and at which its handshakes end.
        self._connection_start = 0.0
        self._ready_at = 0.0
        self._sampler: AuditSampler | None = None
        if has_audits_and_limit and scenario.audit:
            # A live device has the same seed, so that both audit the same instances.
            rng = random.Random(audit_seed(scenario.seed, device_number))
            self._sampler = AuditSampler(scenario.audit, rng)
        self._token_bucket: TokenBucket | None = None
        if has_audits_and_limit and scenario.max_offloads is not None:
            self._token_bucket = TokenBucket.parse(scenario.max_offloads)

    @property
    def is_connected(self) -> bool:
        """Whether the device has a connection and has completed its handshakes."""
        availability = self.fleet.availability
        if availability.is_always_up:
            return True
        if not availability.is_connected:
            return False
        now = self.fleet.clock.now
        connection_start = availability.reconnect_at
        if self._connection_start < connection_start <= now:
            self._connection_start = connection_start
            self._ready_at = self.link.open_session(
                connection_start, uses_tls=self.fleet.scenario.tls
            )
        return now >= self._ready_at

    # -- one instance ---------------------------------------------------------------------------

    def offload_instance(self, position: int, row: int, arrival: float) -> None:
        """Offload an instance after its stages, or fall back.

        The deadline counts from its `arrival`, in s.
        """
        fleet = self.fleet
        now = fleet.clock.now
        deadline = arrival + fleet.deadline_s - fleet.reserved_s
        # The same checks as in Uplink.admit: refusal, deadline, number of open requests.
        refusal_reason = self._find_refusal_reason(now, deadline)
        if refusal_reason is not None:
            self._fall_back(position, row, refusal_reason)
            return
        ttl_ms = math.floor(1000.0 * (deadline - now))
        if ttl_ms <= 0:
            self._release(now)
            self._fall_back(position, row, "deadline")
            return
        table = fleet.table
        offload = self.offloads.open(
            fleet.new_id(), table.model, table.version, now=now, deadline=deadline
        )
        if offload is None:
            self._release(now)
            self._fall_back(position, row, "full")
            return
        fleet.columns.is_requested[position] = True
        request = VirtualRequest(self, offload, position, row, ttl_ms)
        request.transmit(fleet.sizes.request(ttl_ms))
        if offload.is_settled:
            self.record_answer(request)
        else:
            fleet.clock.call_at(offload.wake_at, request.poll)

    def _find_refusal_reason(self, now: float, deadline: float) -> str | None:
        """Get the uplink's reason to send no request now; None if it may send one."""
        if not self.is_connected:
            return "link-down"
        if now < self.offloads.pause_until:
            return _BUSY_REASON
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
            fleet = self.fleet
            self._breaker = Breaker(draw=fleet.rng.random, counts=fleet.breaker_counts)
            for _ in range(min(self._n_replies, N_RECENT)):
                self._breaker.record(True, sent_at=now, now=now)
        self._breaker.record(has_reply, sent_at=offload.sent_at, now=now)

    def record_answer(self, request: VirtualRequest) -> None:
        """Record the instance's answer from the outcome of its request."""
        offload = request.offload
        position = request.position
        fleet = self.fleet
        if offload.state == "answered":
            fleet.columns.route[position] = CLOUD
            fleet.columns.reason[position] = REASON["offloaded"]
            fleet.columns.cloud_ms[position] = request.worker_us / 1000.0
            fleet.columns.end[position] = fleet.clock.now
            if self._may_audit():
                assert self._sampler is not None
                self._sampler.choose("cloud", int(fleet.table.cloud_label[request.row]), 1.0)
            return
        reason = "unsent" if offload.state == "unsent" else "timeout"
        if offload.response is not None:
            reason = f"cloud:{offload.response.error}"
        if reason == "unsent":
            fleet.columns.is_requested[position] = False
        self._fall_back(position, request.row, reason)

    def _fall_back(self, position: int, row: int, reason: str) -> None:
        fleet = self.fleet
        fleet.columns.route[position] = FALLBACK if fleet.local_label[row] >= 0 else ERROR
        fleet.columns.reason[position] = REASON[reason]
        # With is_cloud_first the stages run only now.
        stage_seconds = fleet.stage_seconds[row] if fleet.is_cloud_first else 0.0
        fleet.columns.end[position] = fleet.clock.now + stage_seconds

    # -- audits ---------------------------------------------------------------------------------

    def _may_audit(self) -> bool:
        """Return whether an audit could be sent now; instances are sampled only if so."""
        if self._sampler is None or not self.is_connected:
            return False
        is_closed = self._breaker is None or self._breaker.state == "closed"
        return is_closed and self.offloads.admit_audit(self.fleet.clock.now)

    def audit_instance(self, position: int, row: int) -> None:
        """Send a request that audits the device's answer, if the sampler chooses it."""
        fleet = self.fleet
        label = fleet.local_label[row]
        if label < 0 or not self._may_audit():
            return
        assert self._sampler is not None
        mark = self._sampler.choose("edge", label, fleet.confidence[row])
        if mark is None or not fleet.can_offload[row]:
            return
        table = fleet.table
        now = fleet.clock.now
        fleet.audit_cost += float(table.request_cost[row] - table.local_cost[row])
        deadline = now + RESPONSE_TIMEOUT_S
        ttl_ms = math.floor(1000.0 * (deadline - now))
        offload = self.offloads.open(
            fleet.new_id(),
            table.model,
            table.version,
            now=now,
            deadline=deadline,
            on_answer=lambda response: None,
        )
        assert offload is not None  # audits do not count as open requests
        fleet.columns.is_audited[position] = True
        request = VirtualRequest(self, offload, position, row, ttl_ms, mark)
        request.transmit(fleet.sizes.audit(mark, ttl_ms))


@dataclass(slots=True, eq=False)
class VirtualRequest:
    """One request of a device, and its response.

    `ttl_ms` is the time to live in ms. A request with a `mark` is an audit of an instance that is
    already answered. `worker_us` is the worker's time in the response.
    """

    device: VirtualDevice
    offload: Offload
    position: int
    row: int
    ttl_ms: int
    mark: AuditMark | None = None
    payload_bytes: int = 0
    worker_us: int = 0

    def transmit(self, payload_bytes: int) -> None:
        """Send the request over the link."""
        device = self.device
        fleet = device.fleet
        self.payload_bytes = payload_bytes
        if not device.is_connected:  # the link refuses messages
            if self.offload.is_resent:
                device.offloads.withdraw_retry(self.offload, fleet.clock.now)
            else:
                device.offloads.abandon(self.offload, fleet.clock.now)
            return
        packet_bytes = publish_bytes(REQUEST_TOPIC, payload_bytes)
        fleet.columns.payload_bytes_up[self.position] += payload_bytes
        fleet.columns.bytes_up[self.position] += packet_bytes
        if fleet.availability.link_delivers:
            arrival = device.link.send(fleet.clock.now, packet_bytes, is_uplink=True)
            fleet.clock.call_at(arrival, self._arrive_at_broker)

    def poll(self) -> None:
        """Retry or give up the request when it is due, as the device's uplink does."""
        offload = self.offload
        device = self.device
        fleet = device.fleet
        if not offload.is_settled and device.offloads.poll(offload, fleet.clock.now):
            self.transmit(self.payload_bytes)
        if not offload.is_settled:
            fleet.clock.call_at(offload.wake_at, self.poll)
        elif math.isnan(fleet.columns.end[self.position]):
            device.record_answer(self)

    def _arrive_at_broker(self) -> None:
        fleet = self.device.fleet
        availability = fleet.availability
        if not availability.is_broker_up:
            return
        fleet.columns.bytes_down[self.position] += PUBACK_BYTES
        if availability.link_delivers:
            # The response comes on the same connection, after the acknowledgement.
            self.device.link.downlink.delivery_time(fleet.clock.now, PUBACK_BYTES)
        ticket = VirtualTicket(
            device=self.device.name,
            id=self.offload.id,
            digest=b"",
            model=fleet.table.model_key,
            audit=self.mark,
            cloud_label=int(fleet.table.cloud_label[self.row]) if self.mark is not None else -1,
            rows=ONE_ROW,
            arrived_at=0.0,
            expires_at=0.0,
            requester=self,
        )
        fleet.broker.deliver(ticket, self.ttl_ms / 1000.0)

    def reply(self, error_code: str | None, worker_us: int, wait_ms: int = 0) -> None:
        """Send the worker's response to the device."""
        fleet = self.device.fleet
        sizes = fleet.sizes
        payload_bytes = sizes.response(worker_us) if error_code is None else sizes.refusal(wait_ms)
        departure_time = fleet.broker.send_response()
        receive = partial(self._receive_response, payload_bytes, error_code, worker_us, wait_ms)
        if fleet.availability.is_always_up:
            self._leave_broker(departure_time, payload_bytes, receive)
        else:  # the link may fail before the response departs
            fleet.clock.call_at(
                departure_time, self._leave_broker, departure_time, payload_bytes, receive
            )

    def _leave_broker(
        self, departure_time: float, payload_bytes: int, receive: Callable[[], None]
    ) -> None:
        """Send the response from the broker, if the link delivers at this time."""
        fleet = self.device.fleet
        if fleet.availability.link_delivers:
            packet_bytes = publish_bytes(RESPONSE_TOPIC, payload_bytes)
            arrival = self.device.link.send(departure_time, packet_bytes, is_uplink=False)
            fleet.clock.call_at(arrival, receive)

    def _receive_response(
        self, payload_bytes: int, error_code: str | None, worker_us: int, wait_ms: int
    ) -> None:
        device = self.device
        fleet = device.fleet
        position = self.position
        now = fleet.clock.now
        fleet.columns.payload_bytes_down[position] += payload_bytes
        fleet.columns.bytes_down[position] += publish_bytes(RESPONSE_TOPIC, payload_bytes)
        fleet.columns.bytes_up[position] += PUBACK_BYTES
        if fleet.availability.link_delivers:
            device.link.uplink.delivery_time(now, PUBACK_BYTES)
        was_settled = self.offload.is_settled
        device.offloads.receive(self._make_response(error_code, wait_ms), now)
        if self.mark is not None or was_settled:
            return
        if self.offload.is_settled:
            self.worker_us = worker_us
            device.record_answer(self)
        else:
            # An error may have changed the time of the retry.
            fleet.clock.call_at(self.offload.wake_at, self.poll)

    def _make_response(self, error_code: str | None, wait_ms: int) -> Response:
        table = self.device.fleet.table
        if error_code is not None:
            return Response(
                id=self.offload.id,
                model=table.model,
                version=table.version,
                error=error_code,
                wait_ms=wait_ms,
            )
        response = table.response
        response.id = self.offload.id  # the constructor checked the other fields
        return response
