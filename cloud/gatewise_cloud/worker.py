"""A worker: takes requests from the broker, answers them with the bundles' models.

Two threads share the work. paho's network thread reads each message, checks it and queues
it, or answers at once what needs no model: a full queue, an unknown model, a bad message, a
request that was answered before. The serving thread takes what is queued, runs the model and
publishes the answers. So a slow model never stops the reading, and a full queue says so
immediately, while the broker would drop silently.

Requests in flight to a worker that is killed are lost; the device asks again.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

import paho.mqtt.client as paho

from gatewise_cloud._signals import until_interrupted
from gatewise_cloud.batcher import Batch, Batcher, ModelKey, Ticket, Verdict
from gatewise_cloud.client import shared_subscriptions_work
from gatewise_cloud.counters import Counters
from gatewise_cloud.errors import ModelError, RefusedRows
from gatewise_cloud.model import CloudModel
from gatewise_cloud.session import Session
from gatewise_edge import wire
from gatewise_edge.errors import WireError
from gatewise_edge.mqtt import Endpoint
from gatewise_training.errors import GatewiseError, InputError

if TYPE_CHECKING:
    from gatewise_export.bundle import Bundle

__all__ = ["Worker"]

_LOG = logging.getLogger("gatewise_cloud")
_MOST_UNACKED = 65535  # message ids have 16 bits


class Worker:
    """Answers requests over MQTT until it is stopped; a context manager.

    Parameters
    ----------
    bundles : Bundle, path, or several of them
        What to serve. Requests name their model and its version, so several versions of one
        model may be served at a time.
    broker_url : str
        ``mqtt://[user:password@]host[:port]`` or ``mqtts://...``.
    pool : str, default "gw"
        Workers of one pool divide the requests among themselves.
    shared : bool, default True
        Use the pool's shared subscription. A broker that grants it and then delivers nothing
        (the embedded one) is found out by a round trip; the plain subscription is used then,
        with a warning: only one worker may serve there. False: the plain one at once.
    client_id : str, optional
        MQTT client id; by default a random one.
    queue : int, default 1024
        Requests queued at most; a further one is answered ``busy`` at once.
    max_batch : int, default 16
        Instances in one run at most.
    threads : int, default 1
        Threads within one run.
    drain_seconds : float, default 10
        How long :meth:`stop` lets the queued requests be answered.
    ca_file, cert_file, key_file : str or Path, optional
        For TLS, see :class:`gatewise_edge.mqtt.Endpoint`.

    Attributes
    ----------
    models : dict of (str, str) to CloudModel
        By name and version.
    subscription : str
        The topic filter in use.
    url : str
        The broker's, without user and password.

    Raises
    ------
    BundleError, ModelError, SelfTestError
        If a bundle cannot be read or served.
    InputError
        If there is no bundle, two have the same name and version, or the URL is none.

    Examples
    --------
    >>> with Worker("bundle/", "mqtt://127.0.0.1:1883") as worker:  # doctest: +SKIP
    ...     print(worker.counters["answered"])
    """

    def __init__(
        self,
        bundles: Bundle | str | Path | Iterable[Bundle | str | Path],
        broker_url: str,
        *,
        pool: str = "gw",
        shared: bool = True,
        client_id: str | None = None,
        queue: int = 1024,
        max_batch: int = 16,
        threads: int = 1,
        drain_seconds: float = 10.0,
        ca_file: str | Path | None = None,
        cert_file: str | Path | None = None,
        key_file: str | Path | None = None,
    ) -> None:
        if queue < 1 or max_batch < 1 or threads < 1:
            raise InputError("queue, max_batch and threads must be at least 1")
        self._endpoint = Endpoint(
            broker_url, ca_file=ca_file, cert_file=cert_file, key_file=key_file
        )
        self.url = self._endpoint.url
        self._drain_seconds = drain_seconds
        self.subscription = wire.shared(pool) if shared else wire.REQUESTS
        self.models = _load(bundles, threads)

        self._counters = Counters()
        self._batcher = Batcher(capacity=queue, max_batch=max_batch)
        self._work = threading.Condition()  # guards the batcher and _end
        self._end: Literal["", "drain", "now"] = ""
        self._stopping = threading.Event()
        self._life = threading.RLock()
        self._started = False
        self._server = threading.Thread(target=self._serve, name="gatewise-worker", daemon=True)
        self._session = Session(
            self._endpoint,
            client_id or f"gw-worker-{secrets.token_hex(6)}",
            self._receive,
            # However short the queue, every request may be told that it is full.
            max_unacked=min(queue + 1024, _MOST_UNACKED),
        )

    # -- life ------------------------------------------------------------------------------

    def start(self) -> Self:
        """Connect, subscribe and serve; returns once requests can come.

        Raises
        ------
        LinkError
            If the broker cannot be reached, or refuses the connection or the subscription.
        """
        with self._life:
            if self._started:
                raise GatewiseError("this worker was started before: make a new one")
            if self.subscription != wire.REQUESTS:
                self._check_subscription()
            self._started = True
            self._server.start()
            try:
                self._session.open(self.subscription)
            except BaseException:
                self.stop()
                raise
        return self

    def _check_subscription(self) -> None:
        if shared_subscriptions_work(self._endpoint) is False:
            _LOG.warning(
                "warning: the broker at %s grants shared subscriptions but delivers nothing "
                "(the embedded one does): using a plain subscription, so run one worker only",
                self.url,
            )
            self.subscription = wire.REQUESTS

    def stop(self) -> None:
        """Take no more requests, answer those that are queued, disconnect.

        A second call does nothing but wait for the first.
        """
        self._stopping.set()
        with self._life:
            if not self._started or self._end:
                return
            # First, so that a shared subscription hands new requests to the other workers.
            self._session.unsubscribe()
            self._finish("drain")
            self._server.join(self._drain_seconds)
            self._finish("now")
            with self._work:
                self._counters.add("abandoned", len(self._batcher))
            self._session.close()

    def _finish(self, end: Literal["drain", "now"]) -> None:
        with self._work:
            self._end = end
            self._work.notify()

    def run(self, ready: Callable[[Worker], None] | None = None) -> None:
        """Serve until SIGTERM, Ctrl-C or :meth:`stop`, then drain. For the main thread.

        A second signal ends the program without draining.

        Parameters
        ----------
        ready : callable, optional
            Called with the worker once it serves.

        Raises
        ------
        LinkError
            As :meth:`start`.
        """
        try:
            with until_interrupted():
                self.start()
                if ready is not None:
                    ready(self)
                self._stopping.wait()
        finally:
            self.stop()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def counters(self) -> dict[str, Any]:
        """A snapshot of the counts and the state, fit for JSON.

        The names of :data:`gatewise_cloud.counters.COUNTS`; ``errors`` by code and ``dead``
        by reason; ``queued``, ``connected``, ``subscription``, ``models``.
        """
        with self._work:
            queued = len(self._batcher)
        return {
            **self._counters.snapshot(),
            "queued": queued,
            "connects": self._session.connects,
            "connected": self._session.connected,
            "subscription": self.subscription,
            "models": [{"name": name, "version": version} for name, version in self.models],
        }

    # -- the network thread ----------------------------------------------------------------

    def _receive(self, topic: str, payload: bytes, retained: bool) -> None:
        # Some brokers send retained messages of topics that this client never asked for.
        if not paho.topic_matches_sub(wire.REQUESTS, topic):
            return
        now = time.monotonic()
        self._counters.add("received")
        try:
            device = wire.device_of(topic)
        except WireError as error:
            self._bury(error.reason, payload)
            return
        if retained:
            # Kept by the broker for whoever comes: nobody waits for its answer any more.
            self._bury("retained", payload)
            return
        try:
            request = wire.decode_request(payload, allow_missing=True)
        except WireError as error:
            if error.id is None:
                self._bury(error.reason, payload)
            else:
                self._refuse(device, error.id, ("", ""), wire.BAD_REQUEST, str(error))
            return
        ticket = Ticket(
            device=device,
            id=request.id,
            digest=hashlib.blake2b(payload, digest_size=16).digest(),
            model=(request.model, request.version),
            rows=request.X.astype("float32", copy=False),
            arrived=now,
            expires=now + request.ttl_ms / 1000.0,
        )
        self._admit(ticket)

    def _admit(self, ticket: Ticket) -> None:
        """Queue a request, or answer at once what needs no model."""
        model = self.models.get(ticket.model)
        if model is None:
            detail = f"this worker does not serve {' '.join(ticket.model)}"
            self._refuse(ticket.device, ticket.id, ticket.model, wire.NO_MODEL, detail)
            return
        try:
            model.check(ticket.rows)
        except RefusedRows as error:
            self._refuse(ticket.device, ticket.id, ticket.model, wire.BAD_REQUEST, str(error))
            return
        with self._work:
            verdict, answer = self._batcher.offer(ticket, ticket.arrived)
            if verdict is Verdict.QUEUED:
                self._work.notify()
        if verdict is Verdict.BUSY:
            self._refuse(ticket.device, ticket.id, ticket.model, wire.BUSY, "the queue is full")
        elif verdict is Verdict.DUPLICATE:
            self._counters.add("duplicates")
        elif answer is not None:
            self._counters.add("repeated")
            self._publish(wire.response_topic(ticket.device), answer)

    def _refuse(self, device: str, id: bytes, model: ModelKey, code: str, detail: str) -> None:  # noqa: A002
        name, version = model
        refusal = wire.Response(id=id, model=name, version=version, error=code, detail=detail)
        self._counters.add("errors", label=code)
        self._publish(wire.response_topic(device), wire.encode_response(refusal))

    def _bury(self, reason: str, payload: bytes) -> None:
        self._counters.add("dead", label=reason)
        self._publish(wire.dead_topic(reason), payload[: wire.MAX_PAYLOAD])

    def _publish(self, topic: str, payload: bytes) -> None:
        if not self._session.publish(topic, payload):
            self._counters.add("unsent")

    # -- the serving thread ----------------------------------------------------------------

    def _serve(self) -> None:
        while True:
            with self._work:
                self._work.wait_for(lambda: len(self._batcher) or self._end)
                if self._end == "now" or not len(self._batcher):
                    return
                batch, expired = self._batcher.take(time.monotonic())
            self._counters.add("expired", len(expired))
            if batch is not None:
                try:
                    self._run(batch)
                except Exception as error:  # the serving thread must outlive every batch
                    _LOG.exception("a batch of %s %s could not be answered", *batch.model)
                    self._fail(batch, f"{type(error).__name__} in the worker")

    def _run(self, batch: Batch) -> None:
        started = time.monotonic()
        try:
            answer = self.models[batch.model].answer(batch.rows)
        except ModelError as error:
            if len(batch.tickets) == 1:
                self._fail(batch, str(error))
            else:
                # One request's instances must not spoil the others'.
                for ticket in batch.tickets:
                    self._run(Batch(batch.model, (ticket,)))
            return
        finished = time.monotonic()
        self._counters.add("batches")
        self._counters.add("model_us", int(1e6 * (finished - started)))
        name, version = batch.model
        for ticket, labels, probabilities in batch.split(answer.labels, answer.probabilities):
            try:
                response = wire.Response(
                    id=ticket.id,
                    model=name,
                    version=version,
                    labels=labels,
                    probabilities=probabilities,
                    worker_us=int(1e6 * (finished - ticket.arrived)),
                )
                payload = wire.encode_response(response)
            except WireError as error:  # a probability that is not finite, too many classes
                self._fail(Batch(batch.model, (ticket,)), str(error))
                continue
            with self._work:
                self._batcher.finish(ticket, payload, finished)
            self._counters.add("answered")
            self._counters.add("instances", len(labels))
            self._counters.add("queue_us", int(1e6 * (started - ticket.arrived)))
            self._publish(wire.response_topic(ticket.device), payload)

    def _fail(self, batch: Batch, detail: str) -> None:
        for ticket in batch.tickets:
            with self._work:
                self._batcher.forget(ticket)
            self._refuse(ticket.device, ticket.id, ticket.model, wire.FAILED, detail)


def _load(
    bundles: Bundle | str | Path | Iterable[Bundle | str | Path], threads: int
) -> dict[ModelKey, CloudModel]:
    from gatewise_export.bundle import Bundle

    if isinstance(bundles, str | Path | Bundle):
        bundles = [bundles]
    models: dict[ModelKey, CloudModel] = {}
    for bundle in bundles:
        model = CloudModel.from_bundle(bundle, threads=threads)
        if model.key in models:
            raise InputError(f"two bundles are both called {model}: give one a version of its own")
        models[model.key] = model
    if not models:
        raise InputError("a worker needs at least one bundle")
    return models
