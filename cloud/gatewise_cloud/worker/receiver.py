"""Messages from the broker: decode, check and queue each request, or respond at once."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import replace

from gatewise_cloud.errors import RefusedRows
from gatewise_cloud.joiner import Joiner
from gatewise_cloud.worker.batcher import Offer, Ticket, Verdict
from gatewise_cloud.worker.counters import Counters
from gatewise_cloud.worker.responses import Responses
from gatewise_cloud.worker.serving import BatchServer
from gatewise_edge.errors import WireError
from gatewise_edge.link import wire
from gatewise_edge.link.message_forms import CBOR, JSON, MessageForm
from gatewise_edge.link.messages import AnnouncedParts, Request


class Receiver:
    """Queues valid requests; responds at once to those that need no model.

    `worker` is the name to which devices send parts; `takes_parts` whether they get through.
    """

    def __init__(
        self,
        server: BatchServer,
        responses: Responses,
        counters: Counters,
        worker: str,
        takes_parts: Callable[[], bool],
    ) -> None:
        self._server = server
        self._responses = responses
        self._counters = counters
        self._worker = worker
        self._takes_parts = takes_parts
        self._joiner = Joiner()

    def receive(self, topic: str, payload: bytes, retained: bool) -> None:
        """Handle one message; on the network thread."""
        form = JSON if topic.endswith("/json") else CBOR
        part = topic.endswith(f"/{self._worker}")
        plain = topic.removesuffix(f"/{self._worker}" if part else "/json")
        # Some brokers send retained messages of topics that this client never asked for.
        if not (plain.startswith("gw/v1/") and plain.endswith("/req") and plain.count("/") == 3):
            return
        now = time.monotonic()
        self._counters.add("parts" if part else "received")
        try:
            device = wire.device_of(plain)
        except WireError as error:
            self._responses.dead_letter(error.reason, payload)
            return
        if retained:
            # Kept by the broker for new subscribers: nobody waits for its response any more.
            self._responses.dead_letter("retained", payload)
            return
        try:
            if part:
                self._join(device, payload, now)
            else:
                request = form.decode_request(payload, allow_missing=True)
                self._admit(device, request, payload, now, form)
        except WireError as error:
            if error.id is None:
                self._responses.dead_letter(error.reason, payload)
            else:
                detail = str(error)
                self._responses.refuse(
                    device, error.id, ("", ""), wire.BAD_REQUEST, detail, form=form
                )

    def _join(self, device: str, payload: bytes, now: float) -> None:
        """Take in a part; queue the request if it was the last."""
        part = wire.decode_part(payload)
        try:
            joined = self._joiner.add((device, part.id), part, now)
        except KeyError:  # late, twice, or of a request that was forgotten
            self._counters.add("stray_parts")
            return
        if joined is not None:
            content = bytes(joined.content)
            request = wire.decode_request(joined.payload, allow_missing=True, content=content)
            self._admit(device, request, joined.payload, now, CBOR, expires=joined.expires)

    def _admit(
        self,
        device: str,
        request: Request,
        payload: bytes,
        now: float,
        form: MessageForm,
        *,
        expires: float | None = None,
    ) -> None:
        """Queue a request, or respond at once where no model is needed."""
        parts = request.parts
        ticket = Ticket(
            device=device,
            id=request.id,
            digest=hashlib.blake2b(payload, digest_size=16).digest(),
            model=(request.model, request.version),
            rows=request.X if parts is not None else request.X.astype("float32", copy=False),
            arrived=now,
            expires=now + request.ttl_ms / 1000.0 if expires is None else expires,
            audit=request.audit,
            form=form,
        )
        model = self._server.models.get(ticket.model)
        if model is None:
            detail = f"this worker does not serve {' '.join(ticket.model)}"
            self._responses.refuse_request(ticket, wire.NO_MODEL, detail)
            return
        try:
            if parts is None:
                if request.jpeg is not None:
                    ticket = replace(ticket, rows=model.decode(request.jpeg))
                model.check(ticket.rows)
            elif request.jpeg is None:
                model.check(ticket.rows[:0])  # its columns: the values are not here yet
            _check_response_fits(ticket, model.n_classes)
        except RefusedRows as error:
            self._responses.refuse_request(ticket, wire.BAD_REQUEST, str(error))
            return
        verdict, answer = (
            self._server.offer(ticket) if parts is None else self._expect(ticket, payload, parts)
        )
        if verdict is Verdict.BUSY:
            detail = "the queue, or this device's share of it, is full"
            wait_ms = self._server.wait_ms()
            self._responses.refuse_request(ticket, wire.BUSY, detail, wait_ms=wait_ms)
        elif verdict is Verdict.DUPLICATE:
            self._counters.add("duplicates")
        elif answer is not None:
            self._counters.add("repeated")
            self._responses.send(ticket.device, answer, ticket.form)

    def _expect(self, ticket: Ticket, payload: bytes, parts: AnnouncedParts) -> Offer:
        """Accept a request in parts, unless it is known or there is no place for it."""
        if not self._takes_parts():
            raise WireError("name", "the broker lets no parts through to workers", id=ticket.id)
        offer = self._server.foresee(ticket)
        if offer.verdict is not Verdict.QUEUED:
            return offer
        key, now = (ticket.device, ticket.id), ticket.arrived
        if not self._joiner.expect(key, payload, parts, ttl=ticket.expires - now, now=now):
            return Offer(Verdict.BUSY)
        self._responses.accept(ticket, self._worker)
        return offer


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
