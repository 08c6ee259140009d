"""Serving threads: take batches from the queue, run their models, send the responses."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from gatewise_cloud.errors import BackendBusy, ModelError
from gatewise_cloud.models.tier_stages import TierAnswer
from gatewise_cloud.worker.batch_sizes import BatchPlans
from gatewise_cloud.worker.batcher import Batch, Batcher, ModelKey, Offer, Ticket, Verdict
from gatewise_cloud.worker.counters import Counters, FleetAudit
from gatewise_cloud.worker.responses import Responses
from gatewise_cloud.worker.served_models import ServedModels
from gatewise_edge.errors import WireError
from gatewise_edge.link import wire

#: Seconds of a run that the thread which reads may do itself while nothing else is to do: handing
#: it to another thread and back costs about a third of that.
_AT_ONCE: Final = 0.0003
#: Longest wait, in ms, that a refused request is told.
_LONGEST_WAIT_MS: Final = 30_000
#: Share of the last run in the smoothed time of a row.
_GAIN: Final = 0.1

_LOG = logging.getLogger("gatewise_cloud")


Forward = Callable[[Ticket, TierAnswer], None]
"""Takes over a request with instances to offload further up, and responds to it; never blocks."""


class BatchServer:
    """Runs queued requests through their models; safe across threads.

    `threads` batches run at a time: more than one pays where the model runs elsewhere. `more` says
    whether messages wait to be read; then the thread that reads runs no request itself. `forward`
    is for a gateway.
    """

    def __init__(
        self,
        models: ServedModels,
        batcher: Batcher,
        responses: Responses,
        counters: Counters,
        plans: BatchPlans,
        *,
        threads: int = 1,
        more: Callable[[], bool] | None = None,
    ) -> None:
        self.models = models
        self._batcher = batcher
        self._responses = responses
        self._counters = counters
        self._plans = plans
        self.forward: Forward | None = None
        self.audits = FleetAudit()
        self._more = more
        self._work = threading.Condition()  # guards the batcher, _end and _runs
        self._row_seconds = 0.0  # of the last runs
        self._runs = 0  # batches that were taken and are not answered
        self._end: Literal["", "drain", "now"] = ""
        self._threads = [
            threading.Thread(target=self._serve, name=f"gatewise-serve-{i}", daemon=True)
            for i in range(threads)
        ]

    # -- life ------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to serve."""
        for thread in self._threads:
            thread.start()

    def finish(self, seconds: float) -> None:
        """Answer what is queued, for some seconds at most, and end."""
        until = time.monotonic() + seconds
        self._set_end("drain")
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
        self._set_end("now")
        with self._work:
            self._counters.add("abandoned", len(self._batcher))

    def _set_end(self, end: Literal["drain", "now"]) -> None:
        with self._work:
            self._end = end
            self._work.notify_all()

    @property
    def alive(self) -> bool:
        """Whether all serving threads run."""
        return all(thread.is_alive() for thread in self._threads)

    @property
    def queued(self) -> int:
        """Requests queued."""
        with self._work:
            return len(self._batcher)

    # -- requests --------------------------------------------------------------------------

    def offer(self, ticket: Ticket) -> Offer:
        """Queue a request; see :meth:`Batcher.offer`. For the thread that reads messages.

        If nothing else is to do and the model is quick, the request is answered at once, on this
        very thread.
        """
        at_once = self._quick(ticket)
        batch: Batch | None = None
        with self._work:
            offer = self._batcher.offer(ticket, ticket.arrived)
            if offer.verdict is Verdict.QUEUED:
                if at_once and len(self._batcher) == 1 and not self._runs and not self._end:
                    batch, expired = self._batcher.take(ticket.arrived)
                    if expired:  # a time to live of nothing
                        self._counters.add("expired", len(expired))
                if batch is None:
                    self._work.notify()
                else:
                    self._runs += 1
        if batch is not None:
            self._answer(batch)
        return offer

    def foresee(self, ticket: Ticket) -> Offer:
        """What :meth:`offer` would say now."""
        with self._work:
            return self._batcher.foresee(ticket, ticket.arrived)

    def wait_ms(self) -> int:
        """Milliseconds until what is queued now will have run, as a refusal gives them."""
        with self._work:
            seconds = self._batcher.rows * self._row_seconds / len(self._threads)
        return min(max(1, math.ceil(1000.0 * seconds)), _LONGEST_WAIT_MS)

    def _quick(self, ticket: Ticket) -> bool:
        """Whether a request may be answered by the thread that reads."""
        if self._more is None or self._plans.plan(ticket.model).wait > 0:
            return False
        if self._plans.expected(ticket.model, len(ticket.rows)) > _AT_ONCE:
            return False
        return self.models.running(ticket.model).local and not self._more()

    def reply(
        self,
        ticket: Ticket,
        labels: NDArray[np.int64],
        probabilities: NDArray[np.float32],
        exits: NDArray[np.int64] | None,
        *,
        started: float | None = None,
    ) -> None:
        """Answer a request and remember the answer; an error if it cannot be a message.

        `started` is when its run began, on the clock; unknown where others answered it.
        """
        name, version = ticket.model
        now = time.monotonic()
        # Only where a stage answered: a high-cost model's response has no such field.
        more: dict[str, Any] = {} if exits is None else {"exits": exits}
        try:
            response = wire.Response(
                id=ticket.id,
                model=name,
                version=version,
                labels=labels,
                probabilities=probabilities,
                worker_us=int(1e6 * (now - ticket.arrived)),
                **more,
            )
            payload = ticket.form.encode_response(response)
        except WireError as error:  # a probability that is not finite, too many classes
            self.fail(ticket, str(error))
            return
        with self._work:
            self._batcher.finish(ticket, payload, now)
        queued = 0.0 if started is None else started - ticket.arrived
        self._counters.answer(
            f"{name} {version}", len(labels), queued=queued, latency=now - ticket.arrived
        )
        self._responses.send(ticket.device, payload, ticket.form)
        if ticket.audit is not None and len(labels) == 1:
            bound = self.models.running(ticket.model).disagreement_bound
            self.audits.observe(ticket.model, ticket.audit, int(labels[0]), bound)

    def fail(self, ticket: Ticket, detail: str, code: str = wire.FAILED) -> None:
        """Answer a request that was taken with an error; it may come again."""
        with self._work:
            self._batcher.forget(ticket)
        self._responses.refuse_request(ticket, code, detail)

    def pending(self, key: ModelKey) -> int:
        """Requests for a model that are queued or being answered."""
        with self._work:
            return self._batcher.pending(key)

    # -- the serving threads ---------------------------------------------------------------

    def _serve(self) -> None:
        while True:
            batch = self._next()
            if batch is None:
                return
            self._answer(batch)

    def _answer(self, batch: Batch) -> None:
        try:
            self._run(batch)
        except Exception as error:  # a thread must outlive every batch
            _LOG.exception("a batch of %s %s could not be answered", *batch.model)
            for ticket in batch.tickets:
                self.fail(ticket, f"{type(error).__name__} in the worker")
        finally:
            with self._work:
                self._runs -= 1

    def _next(self) -> Batch | None:
        """Wait for the next batch; None at the end."""
        while True:
            with self._work:
                self._work.wait_for(lambda: len(self._batcher) or self._end)
                if self._end == "now" or not len(self._batcher):
                    return None
                pause = 0.0 if self._end else self._batcher.pause(time.monotonic())
                if pause > 0:
                    self._work.wait(pause)
                    continue
                batch, expired = self._batcher.take(time.monotonic())
                self._runs += batch is not None
            if expired:
                self._counters.add("expired", len(expired))
            if batch is not None:
                return batch

    def _run(self, batch: Batch) -> None:
        started = time.monotonic()
        try:
            answer = self.models.running(batch.model).run(batch.rows)
        except ModelError as error:
            if len(batch.tickets) == 1:
                code = wire.BUSY if isinstance(error, BackendBusy) else wire.FAILED
                self.fail(batch.tickets[0], str(error), code)
            else:
                # One request's instances must not spoil the others'.
                for ticket in batch.tickets:
                    self._run(Batch(batch.model, (ticket,)))
            return
        seconds = time.monotonic() - started
        self._counters.ran(len(answer.labels), seconds)
        self._plans.learn(batch.model, len(answer.labels), seconds)
        self._row_seconds += _GAIN * (seconds / len(answer.labels) - self._row_seconds)
        start = 0
        for ticket in batch.tickets:
            part = slice(start, start + len(ticket.rows))
            start = part.stop
            labels, probabilities = answer.labels[part], answer.probabilities[part]
            exits = None if answer.exits is None else answer.exits[part]
            offload = None if answer.offload is None else answer.offload[part]
            if offload is not None and self.forward is not None and offload.any():
                self.forward(ticket, TierAnswer(labels, probabilities, exits, offload))
            else:
                self.reply(ticket, labels, probabilities, exits, started=started)
