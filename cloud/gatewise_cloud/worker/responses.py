"""Responses and dead letters of a worker, each counted."""

from __future__ import annotations

from gatewise_cloud.worker.batcher import ModelKey, Ticket
from gatewise_cloud.worker.counters import Counters
from gatewise_cloud.worker.session import MqttSession
from gatewise_edge.link import wire
from gatewise_edge.link.message_forms import CBOR, MessageForm


class Responses:
    """Publishes responses to devices, and dead letters."""

    def __init__(self, session: MqttSession, counters: Counters) -> None:
        self._session = session
        self._counters = counters

    def send(self, device: str, payload: bytes, form: MessageForm = CBOR) -> None:
        """Send an encoded response to a device."""
        self._publish(form.response_topic(device), payload)

    def refuse(
        self,
        device: str,
        id: bytes,  # noqa: A002  the wire's own word
        model: ModelKey,
        code: str,
        detail: str,
        *,
        wait_ms: int = 0,
        form: MessageForm = CBOR,
    ) -> None:
        """Send an error; `model` is a pair of empty texts if it is not known."""
        name, version = model
        refusal = wire.Response(
            id=id, model=name, version=version, error=code, detail=detail, wait_ms=wait_ms
        )
        self._counters.add("errors", label=code)
        self.send(device, form.encode_response(refusal), form)

    def refuse_request(self, ticket: Ticket, code: str, detail: str, *, wait_ms: int = 0) -> None:
        """Send an error for a request that was decoded."""
        device, form = ticket.device, ticket.form
        self.refuse(device, ticket.id, ticket.model, code, detail, wait_ms=wait_ms, form=form)

    def accept(self, ticket: Ticket, worker: str) -> None:
        """Send the acceptance of a request in parts."""
        name, version = ticket.model
        response = wire.Response(id=ticket.id, model=name, version=version, parts_to=worker)
        self.send(ticket.device, wire.encode_response(response))

    def dead_letter(self, reason: str, payload: bytes) -> None:
        """Publish a message that gets no response on the dead-letter topic."""
        self._counters.add("dead", label=reason)
        self._publish(wire.dead_topic(reason), payload[: wire.MAX_PAYLOAD])

    def _publish(self, topic: str, payload: bytes) -> None:
        if not self._session.publish(topic, payload):
            self._counters.add("unsent")
