"""A clock that a test turns, and answers of a device in its time."""

from __future__ import annotations

from gatewise_edge.device.answer import Answer
from gatewise_edge.device.device import Device
from gatewise_edge.device.pending import Pending
from tests.support.small_bundle import HARD


class Clock:
    """Seconds that stand still until a test moves them."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def answer_in_virtual_time(device: Device, clock: Clock, row: list[float] = HARD) -> Answer:
    """Answer as :meth:`Device.answer` does, but waiting costs nothing and is exact."""
    step = device.begin(row)
    while isinstance(step, Pending):
        assert step.request is not None
        if not step.request.settled:
            clock.now = step.wake_at
        step = device.advance(step)
    return step
