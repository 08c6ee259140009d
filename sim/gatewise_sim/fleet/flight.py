"""One request of a device in virtual time: on its way, at the broker, and back."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import numpy as np

from gatewise_edge.link.offload import RESEND, InFlight
from gatewise_sim.fleet.answers import Answers
from gatewise_sim.fleet.worker import VirtualTicket
from gatewise_sim.live.outcome import PUBACK_BYTES

if TYPE_CHECKING:
    from gatewise_sim.fleet.device import VirtualDevice

__all__ = ["Flight", "Then"]

_ONE_ROW: Final = np.zeros((1, 0), np.float32)
Then = Callable[[], None]


class Flight:
    """What is sent for one request, and what comes back.

    Parameters
    ----------
    device : VirtualDevice
    item : InFlight
        The device's own book entry of it.
    answers : Answers
    i : int
        Which of them it is for.
    row : int
    ttl : float
        Its time to live in s.
    then : callable, optional
        Called once it is answered.
    """

    __slots__ = (
        "answers", "device", "down", "i", "item", "over", "payload_down", "payload_up", "row",
        "size", "then", "ttl", "up", "worker_us",
    )  # fmt: skip

    def __init__(
        self,
        device: VirtualDevice,
        item: InFlight,
        answers: Answers,
        i: int,
        row: int,
        ttl: float,
        then: Then | None,
    ) -> None:
        self.device = device
        self.item = item
        self.answers = answers
        self.i = i
        self.row = row
        self.ttl = ttl
        self.then = then
        self.size = self.worker_us = 0
        self.up = self.down = self.payload_up = self.payload_down = 0
        self.over = False

    def enter_bytes(self) -> None:
        """Put down what was sent and received."""
        answers, i = self.answers, self.i
        answers.up[i] = self.up
        answers.down[i] = self.down
        answers.payload_up[i] = self.payload_up
        answers.payload_down[i] = self.payload_down

    def transmit(self, payload: int) -> None:
        """Hand the request to the link."""
        world = self.device.world
        self.size = payload
        packet = world.messages.request_packet(payload)
        self.payload_up += payload
        self.up += packet
        if world.calm or world.weather.carries:
            due = self.device.way.send(world.clock.now, packet, True)
            world.clock.at(due, self._at_broker)

    def wake(self) -> None:
        """See :meth:`gatewise_edge.link.uplink.Uplink.poll`."""
        if self.over:
            return
        device, item = self.device, self.item
        step = device.offloads.poll(item, device.world.clock.now)
        if step == RESEND:
            self.transmit(self.size)
        if item.outcome is not None:
            device.conclude(self)
        else:
            device.world.clock.at(item.wake_at, self.wake)

    def _at_broker(self) -> None:
        world = self.device.world
        if not (world.calm or world.weather.broker_up):
            return
        self.down += PUBACK_BYTES
        if self.over:
            self.enter_bytes()
        if world.calm or world.weather.carries:
            # What follows on the same connection cannot overtake it.
            self.device.way.send(world.clock.now, PUBACK_BYTES, False)
        world.broker.pass_on(world.broker.deal, self._ticket)

    def _ticket(self, now: float) -> VirtualTicket:
        return VirtualTicket(
            device=self.device.name,
            id=self.item.id,
            digest=b"",
            model=self.device.world.model,
            rows=_ONE_ROW,
            arrived=now,
            expires=now + self.ttl,
            flight=self,
        )

    def reply(self, error: str | None, worker_us: int) -> None:
        """See :class:`gatewise_sim.fleet.worker.Flight`."""
        world = self.device.world
        size = world.sizes.busy if error is not None else world.sizes.response(worker_us)
        world.broker.back(self._leave_broker, error, size, worker_us)

    def _leave_broker(self, error: str | None, size: int, worker_us: int) -> None:
        world = self.device.world
        if world.calm or world.weather.carries:
            packet = world.messages.response_packet(size)
            due = self.device.way.send(world.clock.now, packet, False)
            world.clock.at(due, self._arrive, error, size, packet, worker_us)

    def _arrive(self, error: str | None, size: int, packet: int, worker_us: int) -> None:
        device = self.device
        world = device.world
        now = world.clock.now
        self.payload_down += size
        self.down += packet
        self.up += PUBACK_BYTES
        if world.calm or world.weather.carries:
            device.way.send(now, PUBACK_BYTES, True)
        item = device.offloads.receive(world.messages.response(self.item.id, error), now)
        if self.over:
            self.enter_bytes()
        elif item is not None and item.outcome is not None:
            self.worker_us = worker_us
            device.conclude(self)
        elif self.item.outcome is None:
            # An error may have moved the time of the retry.
            world.clock.at(self.item.wake_at, self.wake)
