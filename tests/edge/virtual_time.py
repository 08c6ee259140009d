"""A clock that tests set, and a function that answers instances in its virtual time."""

from __future__ import annotations

from gatewise_edge.device.answer import Answer
from gatewise_edge.device.device import Device
from gatewise_edge.device.pending import PendingInstance
from tests.support.small_bundle import HARD_ROW


class Clock:
    """A clock that stands still until a test sets `now`."""

    def __init__(self) -> None:
        self.now = 1000.0  # an arbitrary start

    def __call__(self) -> float:
        return self.now


def answer_in_virtual_time(device: Device, clock: Clock, row: list[float] = HARD_ROW) -> Answer:
    """Answer like :meth:`Device.answer`, but set the clock instead of waiting."""
    outcome = device.begin(row)
    while isinstance(outcome, PendingInstance):
        assert outcome.offload is not None
        if not outcome.offload.is_settled:
            clock.now = outcome.wake_at
        outcome = device.advance(outcome)
    return outcome
