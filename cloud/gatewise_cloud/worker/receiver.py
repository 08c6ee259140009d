"""Messages from the broker: decode, check and queue each request, or respond at once."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable

from gatewise_cloud.errors import RefusedRows
from gatewise_cloud.worker.batcher import Ticket, Verdict
from gatewise_cloud.worker.counters import Counters
from gatewise_cloud.worker.responses import Responses
from gatewise_cloud.worker.serving import BatchServer
from gatewise_edge.errors import WireError
from gatewise_edge.link import wire
from gatewise_edge.link.message_forms import CBOR, JSON

__all__ = ["Receiver"]


class Receiver:
    """Queues valid requests; responds at once to those that need no model.

    `clock` gives seconds; the server's.
    """

    def __init__(
        self,
        server: BatchServer,
        responses: Responses,
        counters: Counters,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._server = server
        self._responses = responses
        self._counters = counters
        self._clock = clock

    def receive(self, topic: str, payload: bytes, retained: bool) -> None:
        """Handle one message; on the network thread."""
        form = JSON if topic.endswith("/json") else CBOR
        plain = topic.removesuffix("/json")
        # Some brokers send retained messages of topics that this client never asked for.
        if not (plain.startswith("gw/v1/") and plain.endswith("/req") and plain.count("/") == 3):
            return
        now = self._clock()
        self._counters.add("received")
        try:
            device = wire.device_of(topic)
        except WireError as error:
            self._responses.dead_letter(error.reason, payload)
            return
        if retained:
            # Kept by the broker for new subscribers: nobody waits for its response any more.
            self._responses.dead_letter("retained", payload)
            return
        try:
            request = form.decode_request(payload, allow_missing=True)
        except WireError as error:
            if error.id is None:
                self._responses.dead_letter(error.reason, payload)
            else:
                detail = str(error)
                self._responses.refuse(
                    device, error.id, ("", ""), wire.BAD_REQUEST, detail, form=form
                )
            return
        self._admit(
            Ticket(
                device=device,
                id=request.id,
                digest=hashlib.blake2b(payload, digest_size=16).digest(),
                model=(request.model, request.version),
                rows=request.X.astype("float32", copy=False),
                arrived=now,
                expires=now + request.ttl_ms / 1000.0,
                audit=request.audit,
                form=form,
            )
        )

    def _admit(self, ticket: Ticket) -> None:
        """Queue a request, or respond at once where no model is needed."""
        model = self._server.models.get(ticket.model)
        if model is None:
            detail = f"this worker does not serve {' '.join(ticket.model)}"
            self._responses.refuse_request(ticket, wire.NO_MODEL, detail)
            return
        try:
            model.check(ticket.rows)
            _check_response_fits(ticket, model.n_classes)
        except RefusedRows as error:
            self._responses.refuse_request(ticket, wire.BAD_REQUEST, str(error))
            return
        verdict, answer = self._server.offer(ticket)
        if verdict is Verdict.BUSY:
            detail = "the queue, or this device's share of it, is full"
            wait_ms = self._server.wait_ms()
            self._responses.refuse_request(ticket, wire.BUSY, detail, wait_ms=wait_ms)
        elif verdict is Verdict.DUPLICATE:
            self._counters.add("duplicates")
        elif answer is not None:
            self._counters.add("repeated")
            self._responses.send(ticket.device, answer, ticket.form)


def _check_response_fits(ticket: Ticket, n_classes: int) -> None:
    """Refuse instances with more answers than fit a message, before any work is done for them."""
    rows, each = len(ticket.rows), ticket.form.answer_bytes(n_classes)
    room = wire.MAX_PAYLOAD - wire.RESPONSE_FIELDS
    if rows * each > room:
        raise RefusedRows(
            "size",
            f"the response to {rows} instances may have more than {wire.MAX_PAYLOAD} bytes: "
            f"at most {room // each} instances a request",
        )
