"""Messages of a simulated fleet and their bytes, by the wire's own encoder."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Final, Self

import numpy as np

from gatewise_edge.device.plan import StagePlan
from gatewise_edge.link.messages import AuditMark, Request, Response, most_rows
from gatewise_edge.link.offload import InFlight
from gatewise_edge.link.wire import (
    BUSY,
    cut_parts,
    encode_in_parts,
    encode_response,
    part_topic,
    request_topic,
    response_topic,
)

PUBACK_BYTES: Final = 4
BYTES_FORMULA: Final = (
    "payload + topic + MQTT 3.1.1 PUBLISH header (1 byte, 1 to 4 of remaining length, 2 of topic "
    "length, 2 of packet id at QoS 1), and 4 the other way for the PUBACK of QoS 1; summed over "
    "the messages a device sent and received; without TCP/IP, keepalives and connecting"
)
_NAME: Final = "0" * 8  # as long as a virtual device's
_WORKER: Final = "0" * 16  # as long as the name that a worker draws


@dataclass(frozen=True, slots=True)
class Sizes:
    """Payload bytes of messages, with a time to live and a worker's time of 0.

    `pairs` are requests and responses of one instance, of two, and so on, as many as fit a message.
    `busy` is a refusal by a worker with a full queue, for a wait of 1 ms. A request that is larger
    than a message has `parts` behind it, which a worker accepts first with an `acceptance`.
    """

    pairs: tuple[tuple[int, int], ...]
    busy: int
    parts: tuple[int, ...] = ()
    acceptance: int = 0

    @classmethod
    def from_plan(cls, plan: StagePlan) -> Self:
        """Encode one of each."""
        request, _ = _example(plan)
        busy = replace(Response.refusal(request, BUSY, "the queue is full"), wait_ms=1)
        _, content = encode_in_parts(request)
        acceptance = Response.acceptance(request, _WORKER)
        most = 1 if content else most_rows(len(plan.request_inputs), len(plan.classes))
        both = (_example(plan, rows) for rows in range(1, most + 1))
        return cls(
            tuple((len(encode_in_parts(up)[0]), len(encode_response(down))) for up, down in both),
            len(encode_response(busy)),
            tuple(len(part) for part in cut_parts(request.id, content)) if content else (),
            len(encode_response(acceptance)) if content else 0,
        )

    @property
    def most_rows(self) -> int:
        """How many instances share a request at most."""
        return len(self.pairs)

    def request(self, ttl_ms: int, rows: int = 1) -> int:
        """Bytes of a request with a time to live in ms."""
        return self.pairs[rows - 1][0] + _more_bytes(ttl_ms)

    def response(self, worker_us: int, rows: int = 1) -> int:
        """Bytes of an answer that took a worker so many microseconds."""
        return self.pairs[rows - 1][1] + _more_bytes(worker_us)

    def refusal(self, wait_ms: int) -> int:
        """Bytes of a refusal for so many ms."""
        return self.busy + _more_bytes(wait_ms)


class Messages:
    """Messages that the runtime's own bookkeeping is given, for a bundle's plan."""

    def __init__(self, plan: StagePlan) -> None:
        self._plan = plan
        self._ids = 0
        self._request, response = _example(plan)
        self._responses = {1: response}  # by their rows
        self._acceptance = Response.acceptance(self._request, _WORKER)

    def request(self, deadline: float) -> InFlight:
        """Make the next request; ids are numbers, so that every run has the same."""
        plan = self._plan
        return InFlight(plan.model, plan.version, deadline, 1, self.next_id())

    def next_id(self) -> bytes:
        """Id of a request that is about to be sent."""
        self._ids += 1
        return self._ids.to_bytes(16, "big")

    def audit_size(self, mark: AuditMark, ttl_ms: int) -> int:
        """Bytes of a request that audits an answer."""
        return len(encode_in_parts(replace(self._request, audit=mark, ttl_ms=ttl_ms))[0])

    def audited(self, id: bytes, label: int) -> Response:  # noqa: A002
        """Make a worker's response to an audit, with the high-cost model's class index."""
        return replace(self._responses[1], id=id, labels=np.array([label]))

    def response(
        self,
        id: bytes,  # noqa: A002
        error: str | None,
        rows: int = 1,
        wait_ms: int = 0,
    ) -> Response:
        """Make a worker's response to a request; one object for all answers of so many rows."""
        if error is not None:
            model, version = self._plan.model, self._plan.version
            return Response(id=id, model=model, version=version, error=error, wait_ms=wait_ms)
        if rows not in self._responses:
            self._responses[rows] = _example(self._plan, rows)[1]
        response = self._responses[rows]
        response.id = id  # its other fields were checked when it was made
        return response

    def acceptance(self, id: bytes) -> Response:  # noqa: A002
        """Make a worker's acceptance of a request in parts; one object for all."""
        self._acceptance.id = id
        return self._acceptance


@lru_cache(maxsize=4096)
def publish_bytes(topic: str, payload: int) -> int:
    """Bytes of an MQTT 3.1.1 PUBLISH packet at QoS 1 with so many bytes of payload.

    >>> publish_bytes("gw/v1/a/req", 100)
    117
    """
    rest = 2 + len(topic.encode()) + 2 + payload
    digits = 1 + (rest >= 128) + (rest >= 128**2) + (rest >= 128**3)
    return 1 + digits + rest


# Bytes of messages of so many payload bytes as a virtual device's link carries them.
part_packet = partial(publish_bytes, part_topic(_NAME, _WORKER))
request_packet = partial(publish_bytes, request_topic(_NAME))
response_packet = partial(publish_bytes, response_topic(_NAME))


def _example(plan: StagePlan, rows: int = 1) -> tuple[Request, Response]:
    request = Request(
        id=bytes(16),
        model=plan.model,
        version=plan.version,
        ttl_ms=0,
        X=np.zeros((rows, max(len(plan.request_inputs), 1)), plan.dtype),
    )
    return request, Response(
        id=request.id,
        model=plan.model,
        version=plan.version,
        labels=np.zeros(rows, np.int64),
        probabilities=np.zeros((rows, max(len(plan.classes), 2)), np.float32),
    )


def _more_bytes(number: int) -> int:
    """Bytes that an unsigned number takes in CBOR beyond the one of a 0 (RFC 8949, section 3)."""
    if number < 256:
        return int(number >= 24)
    return 2 if number < 1 << 16 else 4
