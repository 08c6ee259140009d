"""A gateway's part of a bundle: its stages answer what they can, the rest goes up to the cloud.

An instance that no gateway stage stops is sent up over a link of the gateway's own, with the
deadline, the retry and the checks of a device (:mod:`.offload`), in one message. If it does not fit
one, or the cloud above does not answer in time, the last gateway stage's answer goes to the device:
it is better than the device's own fallback, and ``exits`` tells the device whose it is.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from typing import Any, Final, NamedTuple, Protocol

import numpy as np

from gatewise_cloud.models.tier_stages import TierAnswer
from gatewise_cloud.worker.batcher import ModelKey, Ticket
from gatewise_cloud.worker.counters import Counters
from gatewise_edge.errors import WireError
from gatewise_edge.link import wire
from gatewise_edge.link.link import Link
from gatewise_edge.link.offload import InFlight, OffloadOutcome, Offloads

_LOG = logging.getLogger("gatewise_cloud")

#: What is kept of a time to live for the way back to the device: a fifth, at most 200 ms.
_KEPT_SHARE: Final = 0.2
_MOST_KEPT: Final = 0.2


def deadline_above(ticket: Ticket) -> float:
    """Until when (s) a gateway waits for the cloud above it: a little is kept for the way back.

    >>> from types import SimpleNamespace
    >>> deadline_above(SimpleNamespace(arrived=10.0, expires=10.5))
    10.4
    """
    return ticket.expires - min(_KEPT_SHARE * (ticket.expires - ticket.arrived), _MOST_KEPT)


class Responder(Protocol):
    """What responds to the devices' requests: :class:`.BatchServer`."""

    def reply(self, ticket: Ticket, labels: Any, probabilities: Any, exits: Any) -> None:
        """Answer a request."""

    def fail(self, ticket: Ticket, detail: str) -> None:
        """Answer a request with an error."""

    def n_stages(self, model: ModelKey) -> int:
        """Stages of a model before the high-cost one, wherever they run."""


class _Sent(NamedTuple):
    item: InFlight
    ticket: Ticket
    answer: TierAnswer


class CloudAbove:
    """Requests to the cloud above a gateway, and their responses: :data:`.Forward`.

    `limit` requests are in flight at a time; beyond them the last gateway stage answers at once.
    """

    def __init__(
        self,
        link: Link,
        server: Responder,
        counters: Counters,
        *,
        limit: int,
    ) -> None:
        self._link = link
        self._server = server
        self._counters = counters
        self._offloads = Offloads(limit=limit)
        self._out: dict[bytes, _Sent] = {}
        self._wakes = math.inf  # when the thread looks at what is out
        # Guards the three above. Never held while the link sends: its callback takes it.
        self._changed = threading.Condition()
        self._ended = False
        self._thread = threading.Thread(target=self._watch, name="gatewise-upward", daemon=True)

    # -- life ------------------------------------------------------------------------------

    def start(self) -> None:
        """Open the link, in the background: the cloud above may come later."""
        self._link.open(self._receive)
        self._thread.start()

    @property
    def ready(self) -> bool:
        """Whether the link stands."""
        return self._link.ready

    @property
    def alive(self) -> bool:
        """Whether its thread runs."""
        return self._thread.is_alive()

    def finish(self, seconds: float) -> None:
        """Wait for what is out, for some seconds at most; stand in for the rest; close."""
        with self._changed:
            self._changed.wait_for(lambda: not self._out, max(0.0, seconds))
            left = list(self._out.values())
            self._out.clear()
            self._ended = True
            self._changed.notify_all()
        for sent in left:
            self._stand_in(sent.ticket, sent.answer, "drain")
        if self._thread.ident is not None:
            self._thread.join()
        self._link.close()

    # -- up --------------------------------------------------------------------------------

    def __call__(self, ticket: Ticket, answer: TierAnswer) -> None:
        """Send up the instances of a request that go on; see to its answer."""
        now = time.monotonic()
        deadline = deadline_above(ticket)
        ttl_ms = math.floor(1000.0 * (deadline - now))
        if ttl_ms <= 0 or not self._link.ready:
            self._stand_in(ticket, answer, "deadline" if ttl_ms <= 0 else "link-down")
            return
        if now < self._offloads.hold_until:
            self._stand_in(ticket, answer, "cloud:busy")
            return
        name, version = ticket.model
        rows = ticket.rows[answer.offload]
        request = wire.Request(id=wire.new_id(), model=name, version=version, ttl_ms=ttl_ms, X=rows)
        try:
            payload = wire.encode_request(request)
        except WireError as error:  # the rows came compressed or in parts
            self._stand_in(ticket, answer, error.reason)
            return
        item = InFlight(name, version, deadline, request.rows, request.id, payload)
        with self._changed:
            opened = self._offloads.open(item, now)
            if opened:
                self._out[item.id] = _Sent(item, ticket, answer)
                self._wake_at(item.wake_at)
        if not opened:
            self._stand_in(ticket, answer, "full")
            return
        self._counters.add("forwarded")
        if not self._link.send(payload):
            with self._changed:
                self._offloads.abandon(item, time.monotonic())
                sent = self._out.pop(item.id, None)
            if sent is not None:
                self._stand_in(ticket, answer, "unsent")

    def _receive(self, payload: bytes) -> None:
        """Take in a response from above; on the link's thread."""
        try:
            response = wire.decode_response(payload)
        except WireError:
            self._offloads.counts.invalid += 1
            return
        with self._changed:
            self._offloads.receive(response, time.monotonic())
            sent = self._out.get(response.id)
            if sent is not None:
                if sent.item.outcome is None:
                    self._wake_at(sent.item.wake_at)  # a retry may be due now
                    return
                del self._out[response.id]
                self._changed.notify_all()
        if sent is not None and sent.item.outcome is not None:
            self._conclude(sent, sent.item.outcome)

    def _wake_at(self, time: float) -> None:
        if time < self._wakes:
            self._wakes = time
            self._changed.notify_all()

    def _watch(self) -> None:
        """Retry and end what is out, when its time comes."""
        while True:
            again: list[InFlight] = []
            done: list[_Sent] = []
            with self._changed:
                if self._ended:
                    return
                now = time.monotonic()
                if now < self._wakes:
                    self._changed.wait(None if self._wakes == math.inf else self._wakes - now)
                    continue
                for sent in list(self._out.values()):
                    if sent.item.wake_at <= now and self._offloads.poll(sent.item, now):
                        again.append(sent.item)
                    if sent.item.outcome is not None:
                        done.append(self._out.pop(sent.item.id))
                self._wakes = min((s.item.wake_at for s in self._out.values()), default=math.inf)
                if done:
                    self._changed.notify_all()
            for item in again:
                self._link.send(item.payload)
            for sent in done:
                if sent.item.outcome is not None:
                    self._conclude(sent, sent.item.outcome)

    # -- and down again --------------------------------------------------------------------

    def _conclude(self, sent: _Sent, outcome: OffloadOutcome) -> None:
        ticket, answer, response = sent.ticket, sent.answer, outcome.response
        if outcome.kind != "answered" or response is None:
            why = outcome.kind if response is None else f"cloud:{response.error}"
            self._stand_in(ticket, answer, why)
            return
        if response.probabilities.shape[1] != answer.probabilities.shape[1]:
            self._stand_in(ticket, answer, "cloud:classes")
            return
        try:
            n_stages = self._server.n_stages(ticket.model)
            labels, probabilities = answer.labels.copy(), answer.probabilities.copy()
            stages = np.asarray(answer.exits).copy()
            labels[answer.offload] = response.labels
            probabilities[answer.offload] = response.probabilities
            stages[answer.offload] = n_stages if response.exits is None else response.exits
            self._server.reply(ticket, labels, probabilities, stages)
        except Exception as error:  # what came from above must not end the link's thread
            _LOG.exception("an answer from above could not be handed on")
            self._server.fail(ticket, f"{type(error).__name__} in the gateway")

    def _stand_in(self, ticket: Ticket, answer: TierAnswer, why: str) -> None:
        """Answer with the last gateway stage; fail where it has no answer for some instance."""
        assert answer.exits is not None
        if (answer.exits < 0).any():
            self._server.fail(ticket, f"the cloud above this gateway did not answer ({why})")
            return
        self._counters.add("stood_in", label=why)
        self._server.reply(ticket, answer.labels, answer.probabilities, answer.exits)
