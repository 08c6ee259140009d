"""What passes between a device and a worker in virtual time, and what each is to the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from gatewise_cloud.worker.batcher import Ticket


class WorkerSide(Protocol):
    """The worker's side of a request, as devices and the broker see it."""

    up: bool

    def receive(self, ticket: VirtualTicket) -> None:
        """Take a request."""

    def receive_part(self, ticket: VirtualTicket, index: int) -> None:
        """Take a part of an accepted request."""

    def fail(self) -> None:
        """Go down with all that is queued or running."""

    def recover(self) -> None:
        """Come up again, empty."""


class DeviceSide(Protocol):
    """The device's side of a request."""

    def reply(self, error: str | None, worker_us: int, *, stood_in: bool = False) -> None:
        """Take the worker's response: an error's code, or None for an answer.

        `stood_in`: a gateway's, for rows that the cloud above it did not answer.
        """

    @property
    def table_rows(self) -> Sequence[int]:
        """Rows of the table that its instances are."""

    def accept(self, worker: WorkerSide, ticket: VirtualTicket) -> None:
        """Take the worker's acceptance of a request in parts."""


@dataclass(slots=True, eq=False, kw_only=True)
class VirtualTicket(Ticket):
    """A ticket with the device's side of its request.

    `parts`: how many come behind it. `label`: of a request that audits an answer, the high-cost
    model's class index.
    """

    requester: DeviceSide
    parts: int = 0
    label: int = -1
