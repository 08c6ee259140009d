"""How large the messages about an instance are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np

from gatewise_edge.link.wire import BUSY, Request, Response, encode_request, encode_response
from gatewise_edge.stages.plan import StagePlan

__all__ = ["Sizes"]


@dataclass(frozen=True, slots=True)
class Sizes:
    """Payload bytes of messages about one instance, as the wire's own encoder makes them.

    Attributes
    ----------
    request0, response0 : int
        With a time to live, and a worker's time, of 0.
    busy : int
        A refusal by a worker whose queue is full.
    """

    request0: int
    response0: int
    busy: int

    @classmethod
    def of(cls, plan: StagePlan, *, exits: bool) -> Self:
        """Encode one of each; `exits`: whether responses name the stage that answered."""
        one = bytes(16)
        X = np.zeros((1, max(len(plan.request_inputs), 1)), np.float32)
        request = Request(id=one, model=plan.model, version=plan.version, ttl_ms=0, X=X)
        response = Response(
            id=one,
            model=plan.model,
            version=plan.version,
            labels=np.zeros(1, np.int64),
            probabilities=np.zeros((1, max(len(plan.classes), 2)), np.float32),
            exits=np.zeros(1, np.int64) if exits else None,
        )
        busy = Response.refusal(request, BUSY, "the queue is full")
        answer, refusal = encode_response(response), encode_response(busy)
        return cls(len(encode_request(request)), len(answer), len(refusal))

    def request(self, ttl_ms: int) -> int:
        """Bytes of a request with a time to live in ms."""
        return self.request0 + _more_bytes(ttl_ms)

    def response(self, worker_us: int) -> int:
        """Bytes of an answer that took a worker so many microseconds."""
        return self.response0 + _more_bytes(worker_us)


def _more_bytes(number: int) -> int:
    """Bytes that an unsigned number takes in CBOR beyond the one of a 0 (RFC 8949, section 3)."""
    if number < 256:
        return int(number >= 24)
    return 2 if number < 1 << 16 else 4
