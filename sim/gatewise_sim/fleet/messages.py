"""Messages of a simulated fleet and their bytes, by the wire's own encoder."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Final, Self

import numpy as np

from gatewise_edge.device.installed import InstalledBundle
from gatewise_edge.link.messages import AuditMark, Request, Response
from gatewise_edge.link.wire import (
    BUSY,
    encode_request,
    encode_response,
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


@dataclass(frozen=True, slots=True)
class Sizes:
    """Payload bytes of messages of one instance, with a time to live and a worker's time of 0.

    `busy` is a refusal by a worker with a full queue, for a wait of 1 ms.
    """

    least_request: int
    least_response: int
    busy: int

    @classmethod
    def from_plan(cls, plan: InstalledBundle) -> Self:
        """Encode one of each."""
        request, response = _example(plan)
        busy = replace(Response.refusal(request, BUSY, "the queue is full"), wait_ms=1)
        return cls(
            len(encode_request(request)), len(encode_response(response)), len(encode_response(busy))
        )

    def request(self, ttl_ms: int) -> int:
        """Bytes of a request with a time to live in ms."""
        return self.least_request + _more_bytes(ttl_ms)

    def response(self, worker_us: int) -> int:
        """Bytes of an answer that took a worker so many microseconds."""
        return self.least_response + _more_bytes(worker_us)

    def refusal(self, wait_ms: int) -> int:
        """Bytes of a refusal for so many ms."""
        return self.busy + _more_bytes(wait_ms)


class Messages:
    """Messages that the runtime's own bookkeeping is given, for a bundle's plan."""

    def __init__(self, plan: InstalledBundle) -> None:
        self._plan = plan
        self._ids = 0
        self._request, self._response = _example(plan)

    def next_id(self) -> bytes:
        """Id of a request that is about to be sent: a number, so that every run has the same."""
        self._ids += 1
        return self._ids.to_bytes(16, "big")

    def audit_size(self, mark: AuditMark, ttl_ms: int) -> int:
        """Bytes of a request that audits an answer."""
        return len(encode_request(replace(self._request, audit=mark, ttl_ms=ttl_ms)))

    def audited(self, id: bytes, label: int) -> Response:  # noqa: A002
        """Make a worker's response to an audit, with the high-cost model's class index."""
        return replace(self._response, id=id, labels=np.array([label]))

    def response(self, id: bytes, error: str | None, wait_ms: int = 0) -> Response:  # noqa: A002
        """Make a worker's response to a request; one object for all answers."""
        if error is not None:
            model, version = self._plan.model, self._plan.version
            return Response(id=id, model=model, version=version, error=error, wait_ms=wait_ms)
        self._response.id = id  # its other fields were checked when it was made
        return self._response


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
request_packet = partial(publish_bytes, request_topic(_NAME))
response_packet = partial(publish_bytes, response_topic(_NAME))


def _example(plan: InstalledBundle) -> tuple[Request, Response]:
    request = Request(
        id=bytes(16),
        model=plan.model,
        version=plan.version,
        ttl_ms=0,
        X=np.zeros((1, max(len(plan.request_inputs), 1)), plan.dtype),
    )
    return request, Response(
        id=request.id,
        model=plan.model,
        version=plan.version,
        labels=np.zeros(1, np.int64),
        probabilities=np.zeros((1, max(len(plan.classes), 2)), np.float32),
    )


def _more_bytes(number: int) -> int:
    """Bytes that an unsigned number takes in CBOR beyond the one of a 0 (RFC 8949, section 3)."""
    if number < 256:
        return int(number >= 24)
    return 2 if number < 1 << 16 else 4
