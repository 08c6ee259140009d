"""A request in virtual time: its messages on the link and at the broker, and their bytes.

Follows the uplink's own code step by step.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from gatewise_edge.device.auditor import Auditor
from gatewise_edge.link.offload import InFlight, OffloadOutcome, Offloads, OutcomeKind
from gatewise_sim.fleet.answers import Answers
from gatewise_sim.fleet.clock import Clock
from gatewise_sim.fleet.messages import (
    PUBACK_BYTES,
    Messages,
    Sizes,
    part_packet,
    request_packet,
    response_packet,
)
from gatewise_sim.fleet.network.link import VirtualLink
from gatewise_sim.fleet.worker import Availability, VirtualBroker, VirtualTicket, VirtualWorker

_ONE_ROW: Final = np.zeros((1, 0), np.float32)
#: Parts under way to the broker at a time, as the device's link sends them.
_PARTS_AHEAD: Final = 4


@dataclass(slots=True, eq=False, kw_only=True)
class RequestPath:
    """What the requests of a fleet pass through."""

    clock: Clock
    availability: Availability
    broker: VirtualBroker
    messages: Messages
    sizes: Sizes
    model: tuple[str, str]


class Requester(ABC):
    """A device that makes requests; by default it is connected and shares none."""

    __slots__ = ()
    name: str
    link: VirtualLink
    offloads: Offloads
    state: RequestPath

    @property
    def connected(self) -> bool:
        """Whether it has a connection."""
        return True

    def release(self, now: float) -> None:  # noqa: B027  (one without a breaker admits all)
        """Give up a request that was admitted and not made."""

    @abstractmethod
    def conclude(self, request: VirtualRequest, outcome: OffloadOutcome) -> None:
        """Turn a request's outcome into the instance's answer."""


@dataclass(slots=True, eq=False)
class Instance:
    """An instance's place among the answers, its row, and what follows its answer."""

    answers: Answers
    i: int
    row: int
    then: Callable[[], None] | None = None


@dataclass(slots=True, eq=False)
class VirtualRequest:
    """One request of a device: sent, at the broker, and back; `ttl` in s.

    Of an audit the `auditor` gets the response, which has the class index `label`. Instances that
    share a request have one of these each, its `riders` in the order that they came: one of them
    sends it and counts its bytes.
    """

    device: Requester
    item: InFlight
    instance: Instance
    ttl: float
    deadline: float
    riders: list[VirtualRequest] | None = None
    auditor: Auditor | None = None
    label: int = -1
    size: int = 0
    worker_us: int = 0
    over: bool = False
    next_part: int = 0

    def _count_sent(self, payload: int, packet: int) -> None:
        answers, i = self.instance.answers, self.instance.i
        answers.payload_up[i] += payload
        answers.up[i] += packet

    def transmit(self, payload: int) -> None:
        """Send the request over the link."""
        state = self.device.state
        self.size = payload
        if not self.device.connected:  # a link takes nothing then
            if not self.item.retries:
                self.device.offloads.abandon(self.item, state.clock.now)
            return
        packet = request_packet(payload)
        self._count_sent(payload, packet)
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
        if now >= item.flush_at and device.offloads.take(item):
            self.send_shared()
        elif item.id and device.offloads.poll(item, now):
            first = next((each for each in self.riders or () if each.size), self)
            self.ttl = first.ttl
            self.transmit(first.size)
        self.settle()

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
        """When the device has the broker's acknowledgement of a message; None without a broker.

        Infinite if the link delivers nothing.
        """
        state = self.device.state
        if not state.availability.broker_up:
            return None
        self.instance.answers.down[self.instance.i] += PUBACK_BYTES
        if not state.availability.link_delivers:
            return math.inf
        # What follows on the same connection cannot overtake it.
        return self.device.link.send(state.clock.now, PUBACK_BYTES, False)

    def _ticket(self, now: float) -> VirtualTicket:
        return VirtualTicket(
            device=self.device.name,
            id=self.item.id,
            digest=b"",
            model=self.device.state.model,
            audit=self.item.audit,
            label=self.label,
            rows=_ONE_ROW if self.item.rows == 1 else np.zeros((self.item.rows, 0), np.float32),
            arrived=now,
            expires=now + self.ttl,
            requester=self,
            parts=len(self.device.state.sizes.parts),
        )

    # -- parts of a request that is larger than a message -----------------------------------------

    def accept(self, worker: VirtualWorker, ticket: VirtualTicket) -> None:
        """See :class:`.DeviceSide`."""
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
        self._count_sent(payload, packet)
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

    # -- responses --------------------------------------------------------------------------------

    def reply(self, error: str | None, worker_us: int, *, wait_ms: int = 0) -> None:
        """See :class:`.DeviceSide`."""
        state = self.device.state
        sizes, rows = state.sizes, self.item.rows
        size = sizes.refusal(wait_ms) if error else sizes.response(worker_us, rows)
        response = error, worker_us, wait_ms
        state.broker.return_response(self._let_go, self._arrive, size, *response)

    def _let_go(self, then: Callable[..., None], size: int, *args: object) -> None:
        """Send a response on its way from the broker; on arrival do what follows."""
        state = self.device.state
        if state.availability.link_delivers:
            due = self.device.link.send(state.clock.now, response_packet(size), False)
            state.clock.at(due, then, size, *args)

    def _take_in(self, size: int) -> None:
        """Count a response, and acknowledge it."""
        state, answers, i = self.device.state, self.instance.answers, self.instance.i
        answers.payload_down[i] += size
        answers.down[i] += response_packet(size)
        answers.up[i] += PUBACK_BYTES
        if state.availability.link_delivers:
            self.device.link.send(state.clock.now, PUBACK_BYTES, True)

    def _arrive(self, size: int, error: str | None, worker_us: int, wait_ms: int) -> None:
        device, item = self.device, self.item
        state, now = device.state, device.state.clock.now
        self._take_in(size)
        if self.auditor is not None and item.audit is not None and error is None:
            response = state.messages.audited(item.id, self.label)
            audited = device.offloads.receive(response, now)
            outcome = None if audited is None else audited.outcome
            if outcome is not None and outcome.kind == "answered":
                self.auditor.compare(item.audit, response)
            return
        response = state.messages.response(item.id, error, item.rows, wait_ms)
        device.offloads.receive(response, now)
        for request in self.riders or (self,):
            if not request.over:
                request.worker_us = worker_us
                request.settle()  # an error may have moved the time of the retry
