"""The messages of a simulated fleet: what the runtime's own bookkeeping sees, and their bytes."""

from __future__ import annotations

from typing import Final

import numpy as np

from gatewise_edge.link.messages import Response
from gatewise_edge.link.offload import InFlight
from gatewise_edge.link.wire import request_topic, response_topic
from gatewise_edge.stages.plan import StagePlan
from gatewise_sim.fleet.sizes import Sizes
from gatewise_sim.live.outcome import publish_bytes

__all__ = ["Messages"]

_NAME: Final = "0" * 8  # as long as a virtual device's


class Messages:
    """Makes the messages of a run.

    Parameters
    ----------
    plan : StagePlan
        Of the bundle.
    sizes : Sizes
    """

    def __init__(self, plan: StagePlan, sizes: Sizes) -> None:
        self._plan = plan
        self.sizes = sizes
        self._ids = 0
        self._answer = Response(
            id=bytes(16),
            model=plan.model,
            version=plan.version,
            labels=np.zeros(1, np.int64),
            probabilities=np.zeros((1, max(len(plan.classes), 2)), np.float32),
        )
        self._requests: dict[int, int] = {}
        self._responses: dict[int, int] = {}

    def request(self, deadline: float) -> InFlight:
        """Make the next request; ids are numbers, so that every run has the same."""
        self._ids += 1
        plan = self._plan
        return InFlight(plan.model, plan.version, deadline, 1, self._ids.to_bytes(16, "big"))

    def response(self, id: bytes, error: str | None) -> Response:  # noqa: A002
        """Make what a worker says to a request: one object for all answers."""
        if error is None:
            # Its other fields were checked when it was made.
            object.__setattr__(self._answer, "id", id)
            return self._answer
        return Response(id=id, model=self._plan.model, version=self._plan.version, error=error)

    def request_packet(self, payload: int) -> int:
        """Bytes of a request as the link carries it."""
        size = self._requests.get(payload)
        if size is None:
            size = self._requests[payload] = publish_bytes(request_topic(_NAME), payload)
        return size

    def response_packet(self, payload: int) -> int:
        """Bytes of a response as the link carries it."""
        size = self._responses.get(payload)
        if size is None:
            size = self._responses[payload] = publish_bytes(response_topic(_NAME), payload)
        return size
