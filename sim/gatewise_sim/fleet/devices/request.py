"""A request in virtual time: its messages on the link and at the broker, and their bytes.

Follows the uplink's own code step by step.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from gatewise_edge.link.messages import AuditMark
from gatewise_edge.link.offload import InFlight, Offloads
from gatewise_sim.fleet.answers import Answers
from gatewise_sim.fleet.clock import Clock
from gatewise_sim.fleet.messages import (
    PUBACK_BYTES,
    Messages,
    Sizes,
    request_packet,
    response_packet,
)
from gatewise_sim.fleet.network.link import VirtualLink
from gatewise_sim.fleet.worker import Availability, VirtualBroker, VirtualTicket

_ONE_ROW: Final = np.zeros((1, 0), np.float32)


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

    def count_audit(self, mark: AuditMark, label: int) -> None:  # noqa: B027
        """Count an audit's response, of class index `label`."""

    @abstractmethod
    def conclude(self, request: VirtualRequest) -> None:
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

    Of an audit the response has the class index `label`.
    """

    device: Requester
    item: InFlight
    instance: Instance
    ttl: float
    deadline: float
    label: int = -1
    mark: AuditMark | None = None
    size: int = 0
    worker_us: int = 0
    over: bool = False

    def _count_sent(self, payload: int, packet: int) -> None:
        answers, i = self.instance.answers, self.instance.i
        answers.payload_up[i] += payload
        answers.up[i] += packet

    def transmit(self, payload: int) -> None:
        """Send the request over the link."""
        state = self.device.state
        self.size = payload
        if not self.device.connected:  # a link takes nothing then
            if not self.item.resent:
                self.device.offloads.abandon(self.item, state.clock.now)
            return
        packet = request_packet(payload)
        self._count_sent(payload, packet)
        if state.availability.link_delivers:
            due = self.device.link.send(state.clock.now, packet, True)
            state.clock.at(due, self._arrive_at_broker)

    def wait(self) -> None:
        """Poll when something is due for this instance."""
        item, clock = self.item, self.device.state.clock
        clock.at(clock.now if item.settled else item.wake_at, self.poll)

    def poll(self) -> None:
        """Send, send again or give up when it is time to, as the device's uplink does."""
        if self.over:
            return
        device, item, now = self.device, self.item, self.device.state.clock.now
        if device.offloads.poll(item, now):
            self.transmit(self.size)
        self.settle()

    def settle(self) -> None:
        """Conclude this instance if its request has an outcome for it, else wait on."""
        if self.item.settled:
            self.device.conclude(self)
        else:
            self.wait()

    def _arrive_at_broker(self) -> None:
        state, broker = self.device.state, self.device.state.broker
        if not state.availability.broker_up:
            return
        self.instance.answers.down[self.instance.i] += PUBACK_BYTES
        if state.availability.link_delivers:
            # What follows on the same connection cannot overtake it.
            self.device.link.send(state.clock.now, PUBACK_BYTES, False)
        broker.handle(broker.deliver, self._ticket)

    def _ticket(self, now: float) -> VirtualTicket:
        return VirtualTicket(
            device=self.device.name,
            id=self.item.id,
            digest=b"",
            model=self.device.state.model,
            audit=self.mark,
            label=self.label,
            rows=_ONE_ROW,
            arrived=now,
            expires=now + self.ttl,
            requester=self,
        )

    # -- responses --------------------------------------------------------------------------------

    def reply(self, error: str | None, worker_us: int, *, wait_ms: int = 0) -> None:
        """See :class:`.DeviceSide`."""
        state = self.device.state
        size = state.sizes.refusal(wait_ms) if error else state.sizes.response(worker_us)
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
        if self.mark is not None and error is None:
            audited = device.offloads.receive(state.messages.audited(item.id, self.label), now)
            if audited is not None:
                device.count_audit(self.mark, self.label)
            return
        device.offloads.receive(state.messages.response(item.id, error, wait_ms), now)
        if not self.over:
            self.worker_us = worker_us
            self.settle()  # an error may have moved the time of the retry
