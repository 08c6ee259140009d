"""Serve requests in a worker: decode, check, queue, run in batches and respond.

The thread that reads messages responds to requests that need no model. It also runs the model
itself if the model is fast and no other request waits. Serving threads take the other requests from
the queue, so that a slow model never stops the reading.
"""

from __future__ import annotations

import hashlib
import logging
import math
import threading
import time
from typing import TYPE_CHECKING, Final, Literal

import numpy as np
from numpy.typing import NDArray

from gatewise_cloud.archive.writer import ArchiveWriter
from gatewise_cloud.errors import BackendBusy, ModelError, RefusedRows
from gatewise_cloud.models.cloud_model import CloudModel
from gatewise_cloud.worker.batcher import Admission, Batch, Batcher, Ticket
from gatewise_cloud.worker.counters import Counters
from gatewise_cloud.worker.fleet_audit import FleetAudit, disagreement_bound
from gatewise_cloud.worker.served_models import ServedModels
from gatewise_cloud.worker.session import WorkerSessions
from gatewise_edge.errors import WireError
from gatewise_edge.link import wire
from gatewise_edge.link.message_forms import CBOR, JSON, MessageForm
from gatewise_edge.link.messages import Request

if TYPE_CHECKING:
    from gatewise_export.bundle.manifest import Manifest

#: Longest expected run that the reading thread does itself, in seconds. Passing the request to
#: another thread and back takes about a third of that time.
_MAX_INLINE_SECONDS: Final = 0.0003
#: Shortest time between two log lines about failed requests, in seconds, because a broken model
#: fails on every request.
_FAILURE_LOG_SECONDS: Final = 60.0

_LOG = logging.getLogger("gatewise_cloud")


class BatchServer:
    """Server that queues requests and answers them with their models; thread-safe.

    The batcher's `n_parallel` is the number of batches that run at the same time. More than one
    helps if another machine runs the model. An `archive` stores the answered instances.

    The reading thread and the serving threads respond, count, audit and archive without the lock,
    because the counters, the session, the audits and the archive are thread-safe.
    """

    def __init__(
        self,
        models: ServedModels,
        batcher: Batcher,
        session: WorkerSessions,
        counters: Counters,
        archive: ArchiveWriter | None = None,
    ) -> None:
        self.models = models
        self.fleet_audit = FleetAudit()
        self._batcher = batcher
        self._session = session
        self._counters = counters
        self._archive = archive
        # this condition guards the batcher and the three fields below
        self._condition = threading.Condition()
        self._n_runs = 0  # number of batches that were taken but are not answered yet
        self._next_failure_log = -math.inf  # time of the next log line about a failed request
        self._stop_mode: Literal["", "drain", "now"] = ""
        self._threads = [
            threading.Thread(
                target=self._serve_batches, name=f"gatewise-serve-{number}", daemon=True
            )
            for number in range(batcher.n_parallel)
        ]

    # -- start and end ---------------------------------------------------------------------

    def start(self) -> None:
        """Start the serving threads."""
        for thread in self._threads:
            thread.start()

    def drain_and_stop(self, seconds: float) -> None:
        """Answer queued requests for up to `seconds`, then end the threads."""
        deadline = time.monotonic() + seconds
        self._set_stop_mode("drain")
        for thread in self._threads:
            if thread.ident is None:  # the start of the worker failed
                continue
            thread.join(max(0.0, deadline - time.monotonic()))
        self._set_stop_mode("now")
        self._counters.add("abandoned", self.n_queued)

    def _set_stop_mode(self, stop_mode: Literal["drain", "now"]) -> None:
        with self._condition:
            self._stop_mode = stop_mode
            self._condition.notify_all()

    @property
    def is_alive(self) -> bool:
        """Whether all serving threads are running."""
        return all(thread.is_alive() for thread in self._threads)

    @property
    def n_queued(self) -> int:
        """Number of queued requests."""
        with self._condition:
            return len(self._batcher)

    def drop_idle_models(self) -> None:
        """Close the retired models that have no queued or running request."""
        with self._condition:
            for key in self.models.retired_keys:
                if not self._batcher.count_requests(key):
                    self.models.drop(key)

    # -- requests, on the thread that reads --------------------------------------------------

    def receive(self, topic: str, payload: bytes, is_retained: bool) -> None:
        """Handle one message: queue a valid request, or respond now if no model is needed."""
        form = JSON if topic.endswith("/json") else CBOR
        request_topic = topic.removesuffix("/json")
        # some brokers send retained messages of topics to which this client has not subscribed
        levels = request_topic.split("/")
        if levels[:2] != ["gw", "v1"] or levels[3:] != ["req"]:
            return
        self._counters.add("received")
        try:
            device = wire.device_of(request_topic)
        except WireError as error:
            self._session.dead_letter(error.reason, payload)
            return
        if is_retained:
            # the broker stored this request earlier, so its device no longer waits for a response
            self._session.dead_letter("retained", payload)
            return
        try:
            request = form.decode_request(payload)
        except WireError as error:
            if error.id is None:
                self._session.dead_letter(error.reason, payload)
            else:
                refusal = wire.Response(
                    id=error.id, model="", version="", error=wire.BAD_REQUEST, detail=str(error)
                )
                self._session.respond(device, refusal, form)
        else:
            self._admit(device, request, payload, form)

    def _admit(self, device: str, request: Request, payload: bytes, form: MessageForm) -> None:
        """Queue a request, or respond now if no model is needed."""
        now = time.monotonic()
        ticket = Ticket(
            device=device,
            id=request.id,
            digest=hashlib.blake2b(payload, digest_size=16).digest(),
            model=(request.model, request.version),
            rows=request.X,
            arrived_at=now,
            expires_at=now + request.ttl_ms / 1000.0,
            audit=request.audit,
            is_private=request.is_private,
            late_s=request.late_s,
            form=form,
        )
        # refuse a request for another model, or with rows that do not fit
        model = self.models.get(ticket.model)
        if model is None:
            self._refuse_unknown_model(ticket)
            return
        try:
            model.check_instances(ticket.rows)
            _check_audit(ticket, model.n_classes)
            _check_response_fits(ticket, model.n_classes)
        except RefusedRows as error:
            self._refuse(ticket, wire.BAD_REQUEST, str(error))
            return
        admission = self._queue_request(ticket, model)
        if admission is None:
            self._refuse_unknown_model(ticket)
            return
        if admission.counter_name is not None:
            self._counters.add(admission.counter_name)
        if admission.answer_payload is not None:
            self._session.send(device, admission.answer_payload, form)
        if admission.wait_ms:
            detail = "the queue, or this device's share of it, is full"
            self._refuse(ticket, wire.BUSY, detail, wait_ms=admission.wait_ms)

    def _queue_request(self, ticket: Ticket, model: CloudModel) -> Admission | None:
        """Queue a request; answer it on this thread if the worker is idle and its model is fast.

        Returns None if the model was retired in the meantime.
        """
        batch: Batch | None = None
        with self._condition:
            # a retired model is dropped with this lock held, so a queued request keeps its model
            if ticket.model not in self.models:
                return None
            admission = self._batcher.admit(ticket, ticket.arrived_at)
            if admission.is_queued:
                if model.is_local and self._can_run_inline(ticket):
                    batch = self._take_batch(ticket.arrived_at)
                else:
                    self._condition.notify()
        if batch is not None:
            self._answer_batch(batch)
        return admission

    def _can_run_inline(self, ticket: Ticket) -> bool:
        """Return whether the reading thread should run a queued request; needs the lock."""
        batcher = self._batcher
        is_only_request = len(batcher) == 1 and not self._n_runs and not self._session.has_unread
        seconds = batcher.expected_seconds(ticket.model, len(ticket.rows))
        is_fast = seconds <= _MAX_INLINE_SECONDS
        return is_only_request and not self._stop_mode and is_fast and batcher.wait_seconds <= 0

    # -- responses ---------------------------------------------------------------------------

    def _respond_with_answer(
        self,
        ticket: Ticket,
        labels: NDArray[np.int64],
        probabilities: NDArray[np.float32],
        run_start: float,
    ) -> bool:
        """Answer a request, and remember the answer.

        `run_start` is the time on the monotonic clock at which the run began. If the answer cannot
        be encoded, the response is an error. Returns whether the response is the answer.
        """
        name, version = ticket.model
        now = time.monotonic()
        try:
            response = wire.Response(
                id=ticket.id,
                model=name,
                version=version,
                labels=labels,
                probabilities=probabilities,
                worker_us=int(1e6 * (now - ticket.arrived_at)),
            )
            payload = ticket.form.encode_response(response)
        except WireError as error:  # such as a probability that is not finite
            self._fail(ticket, str(error))
            return False
        # finish first, so that a repetition of the request is answered from memory from now on
        with self._condition:
            self._batcher.finish(ticket, payload, now)
        self._counters.add_answer(
            f"{name}/{version}",
            len(labels),
            queue_seconds=run_start - ticket.arrived_at,
            latency_seconds=now - ticket.arrived_at,
        )
        self._session.send(ticket.device, payload, ticket.form)
        return True

    def _record_answer(
        self,
        ticket: Ticket,
        manifest: Manifest,
        labels: NDArray[np.int64],
        probabilities: NDArray[np.float32],
    ) -> None:
        """Compare an audited answer with the device's, and archive the instances."""
        # a late request is no evidence, because the audit's sampler did not choose it
        is_evidence = not ticket.late_s
        if is_evidence and ticket.audit is None:
            self.fleet_audit.offload(ticket.model, len(labels))
        elif is_evidence and ticket.audit is not None:
            bound = disagreement_bound(manifest)
            self.fleet_audit.observe(ticket.model, ticket.audit, int(labels[0]), bound)
        if self._archive is not None:
            self._archive.archive(ticket, manifest, labels, probabilities)

    def _fail(self, ticket: Ticket, detail: str, code: str = wire.FAILED) -> None:
        """Forget a queued request, so that the device may send it again; respond with an error."""
        now = time.monotonic()
        with self._condition:
            self._batcher.forget(ticket)
            is_logged = now >= self._next_failure_log
            if is_logged:
                self._next_failure_log = now + _FAILURE_LOG_SECONDS
        if is_logged:
            _LOG.warning("%s; other failures are only counted for a minute", detail)
        self._refuse(ticket, code, detail)

    def _refuse_unknown_model(self, ticket: Ticket) -> None:
        detail = f"this worker does not serve {' '.join(ticket.model)}"
        self._refuse(ticket, wire.NO_MODEL, detail)

    def _refuse(self, ticket: Ticket, code: str, detail: str, *, wait_ms: int = 0) -> None:
        """Respond to a request with an error."""
        name, version = ticket.model
        refusal = wire.Response(
            id=ticket.id, model=name, version=version, error=code, detail=detail, wait_ms=wait_ms
        )
        self._session.respond(ticket.device, refusal, ticket.form)

    # -- runs --------------------------------------------------------------------------------

    def _serve_batches(self) -> None:
        while (batch := self._next_batch()) is not None:
            self._answer_batch(batch)

    def _next_batch(self) -> Batch | None:
        """Wait for the next batch; return None if the server ends."""
        with self._condition:
            while True:
                self._condition.wait_for(lambda: len(self._batcher) or self._stop_mode)
                if self._stop_mode == "now" or not len(self._batcher):
                    return None
                now = time.monotonic()
                wait_seconds = 0.0 if self._stop_mode else self._batcher.seconds_to_batch(now)
                if wait_seconds > 0:
                    self._condition.wait(wait_seconds)
                elif (batch := self._take_batch(now)) is not None:
                    return batch

    def _take_batch(self, now: float) -> Batch | None:
        """Take a batch with the lock held; return None if all queued requests have expired."""
        batch, expired_tickets = self._batcher.take_batch(now)
        self._n_runs += batch is not None
        if expired_tickets:
            self._counters.add("expired", len(expired_tickets))
        return batch

    def _answer_batch(self, batch: Batch) -> None:
        """Run a batch; respond with an error to its unanswered tickets after an exception."""
        unanswered_tickets = [*batch.tickets]
        try:
            self._run_batch(batch, unanswered_tickets)
        except Exception as error:  # any error, because the thread must serve later batches
            _LOG.exception("error in a batch of %s %s", *batch.model)
            for ticket in unanswered_tickets:
                self._fail(ticket, f"{type(error).__name__} in the worker")
        finally:
            with self._condition:
                self._n_runs -= 1

    def _run_batch(self, batch: Batch, unanswered_tickets: list[Ticket]) -> None:
        """Run a batch and respond to its tickets; remove each one from `unanswered_tickets`."""
        run_start = time.monotonic()
        model = self.models.find(batch.model)
        try:
            answer = model.run(batch.rows)
        except ModelError as error:
            if len(batch.tickets) == 1:
                code = wire.BUSY if isinstance(error, BackendBusy) else wire.FAILED
                self._fail(batch.tickets[0], str(error), code)
                unanswered_tickets.remove(batch.tickets[0])
            else:
                # run each request alone, so that one request cannot make the others fail
                for ticket in batch.tickets:
                    self._run_batch(Batch(batch.model, (ticket,)), unanswered_tickets)
            return
        n_rows = len(answer.labels)
        seconds = time.monotonic() - run_start
        self._counters.add_run(n_rows, seconds)
        # read the manifest now, because the model may be dropped once its last ticket is finished
        manifest = model.manifest
        answered_tickets: list[tuple[Ticket, NDArray[np.int64], NDArray[np.float32]]] = []
        first_row = 0
        for ticket in batch.tickets:
            row_slice = slice(first_row, first_row + len(ticket.rows))
            first_row = row_slice.stop
            labels = answer.labels[row_slice]
            probabilities = answer.probabilities[row_slice]
            if self._respond_with_answer(ticket, labels, probabilities, run_start):
                answered_tickets.append((ticket, labels, probabilities))
            unanswered_tickets.remove(ticket)
        with self._condition:
            self._batcher.observe_run(batch.model, n_rows, seconds)
        # An error from here on is logged; it must not lead to a second response.
        for ticket, labels, probabilities in answered_tickets:
            self._record_answer(ticket, manifest, labels, probabilities)


def _check_audit(ticket: Ticket, n_classes: int) -> None:
    """Raise RefusedRows if an audit is not of one row and one of the classes."""
    if ticket.audit is not None and (
        len(ticket.rows) != 1 or ticket.audit.class_index >= n_classes
    ):
        raise RefusedRows(
            "range",
            f"an audit has one instance and a class below {n_classes}, not {len(ticket.rows)} "
            f"instances and class {ticket.audit.class_index}",
        )


def _check_response_fits(ticket: Ticket, n_classes: int) -> None:
    """Raise RefusedRows if the response to a request could exceed the size of a message."""
    n_rows = len(ticket.rows)
    bytes_per_row = ticket.form.answer_bytes(n_classes)
    max_bytes = wire.MAX_PAYLOAD - wire.MAX_RESPONSE_FIELD_BYTES
    if n_rows * bytes_per_row > max_bytes:
        raise RefusedRows(
            "size",
            f"the response to {n_rows} instances may have more than {wire.MAX_PAYLOAD} bytes: "
            f"send at most {max_bytes // bytes_per_row} instances per request",
        )
