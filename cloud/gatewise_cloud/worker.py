"""A worker: takes requests from the broker, answers them with the bundles' models.

Two threads share the work. paho's network thread reads each message, checks it and queues
it, or answers at once what needs no model: a full queue, an unknown model, a bad message, a
request that was answered before. The serving thread takes what is queued, runs the model and
publishes the answers. So a slow model never stops the reading, and a full queue says so
immediately, while the broker would drop silently.

The session is clean: a persistent one would keep a dead worker in the rotation of the shared
subscription. Requests in flight to a worker that is killed are lost; the device asks again.
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
from typing import TYPE_CHECKING, Any, Self

import paho.mqtt.client as paho

from gatewise_cloud._signals import until_interrupted
from gatewise_cloud.batcher import Batch, Batcher, ModelKey, Ticket, Verdict
from gatewise_cloud.broker import open_client, shared_subscriptions_work
from gatewise_cloud.counters import Counters
from gatewise_cloud.errors import ModelError, RefusedRows
from gatewise_cloud.model import CloudModel
from gatewise_edge import wire
from gatewise_edge.errors import LinkError, WireError
from gatewise_edge.mqtt import Endpoint, make_client
from gatewise_training.errors import GatewiseError, InputError

if TYPE_CHECKING:
    from gatewise_export.bundle import Bundle

__all__ = ["Worker"]

_LOG = logging.getLogger("gatewise_cloud")
_CONNECT_SECONDS = 5.0
_ACK_SECONDS = 2.0
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
        self._work = threading.Condition()  # guards the batcher and _draining
        self._draining = False
        self._acks = threading.Condition()  # guards the four below
        self._subscribed = False
        self._unsubscribed = False
        self._refusal: str | None = None
        self._unacked = 0
        self._stopping = threading.Event()
        self._server: threading.Thread | None = None

        self._client = make_client(
            self._endpoint,
            client_id or f"gw-worker-{secrets.token_hex(6)}",
            max_inflight=min(2 * queue, _MOST_UNACKED),
        )
        self._client.on_connect = self._on_connect
        self._client.on_subscribe = self._on_subscribe
        self._client.on_unsubscribe = self._on_unsubscribe
        self._client.on_message = self._on_message
        self._client.on_publish = self._on_publish

    # -- life ------------------------------------------------------------------------------

    def start(self) -> Self:
        """Connect, subscribe and serve; returns once requests can come.

        Raises
        ------
        LinkError
            If the broker cannot be reached, or refuses the connection or the subscription.
        """
        if self._server is not None:
            raise GatewiseError("this worker was started before: make a new one")
        if (
            self.subscription != wire.REQUESTS
            and shared_subscriptions_work(self._endpoint) is False
        ):
            _LOG.warning(
                "warning: the broker at %s grants shared subscriptions but delivers nothing "
                "(the embedded one does): using a plain subscription, so run one worker only",
                self.url,
            )
            self.subscription = wire.REQUESTS
        open_client(self._client, self._endpoint)
        self._client.loop_start()
        self._server = threading.Thread(target=self._serve, name="gatewise-worker", daemon=True)
        self._server.start()
        with self._acks:
            self._acks.wait_for(lambda: self._subscribed or self._refusal, _CONNECT_SECONDS)
            problem = None if self._subscribed else self._refusal or "it does not answer"
        if problem:
            self.stop()
            raise LinkError(self.url, f"broker {self.url}: {problem}")
        return self

    def stop(self) -> None:
        """Take no more requests, answer those that are queued, disconnect.

        A second call does nothing.
        """
        self._stopping.set()
        server, self._server = self._server, None
        if server is None:
            return
        # Unsubscribed first, so that a shared subscription hands new requests to the others.
        if self._client.is_connected() and self._subscribed:
            self._client.unsubscribe(self.subscription)
            with self._acks:
                self._acks.wait_for(lambda: self._unsubscribed, _ACK_SECONDS)
        with self._work:
            self._draining = True
            self._work.notify()
        server.join(self._drain_seconds)
        with self._work:
            self._counters.add("abandoned", len(self._batcher))
        with self._acks:
            if self._client.is_connected():
                self._acks.wait_for(lambda: self._unacked <= 0, _ACK_SECONDS)
        self._client.disconnect()
        self._client.loop_stop()

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
            "connected": self._client.is_connected(),
            "subscription": self.subscription,
            "models": [{"name": name, "version": version} for name, version in self.models],
        }

    # -- the network thread ----------------------------------------------------------------

    def _on_connect(
        self, client: paho.Client, _userdata: Any, _flags: Any, reason: Any, _properties: Any
    ) -> None:
        # paho would send again what the last connection left: nobody waits for it any more.
        client.drop_out_messages()
        with self._acks:
            self._unacked = 0
        if reason.is_failure:
            with self._acks:
                self._refusal = f"it refuses the connection ({reason})"
                self._acks.notify_all()
            return
        self._counters.add("connects")
        # Here and not once: a clean session forgets its subscriptions with the connection.
        client.subscribe(self.subscription, qos=1)

    def _on_subscribe(
        self, _client: paho.Client, _userdata: Any, _mid: int, reasons: Any, _properties: Any
    ) -> None:
        with self._acks:
            if reasons[0].is_failure:
                self._refusal = f"it refuses the subscription {self.subscription}"
            else:
                self._subscribed = True
            self._acks.notify_all()

    def _on_unsubscribe(self, *_: Any) -> None:
        with self._acks:
            self._unsubscribed = True
            self._acks.notify_all()

    def _on_publish(self, *_: Any) -> None:
        with self._acks:
            self._unacked -= 1
            self._acks.notify_all()

    def _on_message(self, _client: paho.Client, _userdata: Any, message: paho.MQTTMessage) -> None:
        # Some brokers send retained messages of topics that this client never asked for.
        if not paho.topic_matches_sub(wire.REQUESTS, message.topic):
            return
        self._counters.add("received")
        try:
            self._receive(message.topic, bytes(message.payload), retained=message.retain)
        except Exception:  # the network thread must outlive whatever one message does
            _LOG.exception("a message on %s could not be handled", message.topic)
            self._counters.add("errors", label=wire.FAILED)

    def _receive(self, topic: str, payload: bytes, *, retained: bool) -> None:
        now = time.monotonic()
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
                refusal = wire.Response(
                    id=error.id, model="", version="", error=wire.BAD_REQUEST, detail=str(error)
                )
                self._refuse(device, refusal)
            return
        key = (request.model, request.version)
        model = self.models.get(key)
        if model is None:
            detail = f"this worker does not serve {request.model} {request.version}"
            self._refuse(device, wire.Response.refusal(request, wire.NO_MODEL, detail))
            return
        try:
            model.check(request.X)
        except RefusedRows as error:
            self._refuse(device, wire.Response.refusal(request, wire.BAD_REQUEST, str(error)))
            return
        ticket = Ticket(
            device=device,
            id=request.id,
            digest=hashlib.blake2b(payload, digest_size=16).digest(),
            model=key,
            rows=request.X.astype("float32", copy=False),
            arrived=now,
            expires=now + request.ttl_ms / 1000.0,
        )
        with self._work:
            verdict, answer = self._batcher.offer(ticket, now)
            if verdict is Verdict.QUEUED:
                self._work.notify()
        if verdict is Verdict.BUSY:
            self._refuse(device, wire.Response.refusal(request, wire.BUSY, "the queue is full"))
        elif verdict is Verdict.DUPLICATE:
            self._counters.add("duplicates")
        elif answer is not None:
            self._counters.add("repeated")
            self._publish(wire.response_topic(device), answer)

    def _refuse(self, device: str, refusal: wire.Response) -> None:
        assert refusal.error is not None
        self._counters.add("errors", label=refusal.error)
        self._publish(wire.response_topic(device), wire.encode_response(refusal))

    def _bury(self, reason: str, payload: bytes) -> None:
        self._counters.add("dead", label=reason)
        self._publish(wire.dead_topic(reason), payload[: wire.MAX_PAYLOAD])

    def _publish(self, topic: str, payload: bytes) -> None:
        # Asked first, since paho would keep the message and replay it when nobody waits for it.
        if not self._client.is_connected():
            self._counters.add("unsent")
            return
        with self._acks:
            self._unacked += 1
        # No lock is held here: paho takes its own, and calls back while it holds some.
        if self._client.publish(topic, payload, qos=1).rc == paho.MQTT_ERR_QUEUE_SIZE:
            self._counters.add("unsent")
            self._on_publish()

    # -- the serving thread ----------------------------------------------------------------

    def _serve(self) -> None:
        while True:
            with self._work:
                self._work.wait_for(lambda: len(self._batcher) or self._draining)
                batch, expired = self._batcher.take(time.monotonic())
                if batch is None and not expired and self._draining:
                    return
            self._counters.add("expired", len(expired))
            if batch is not None:
                self._run(batch)

    def _run(self, batch: Batch) -> None:
        started = time.monotonic()
        try:
            answer = self.models[batch.model].answer(batch.rows)
        except (ModelError, RefusedRows) as error:
            if len(batch.tickets) > 1:
                # One request's instances must not spoil the others'.
                for ticket in batch.tickets:
                    self._run(Batch(batch.model, (ticket,)))
            else:
                self._fail(batch.tickets[0], error)
            return
        finished = time.monotonic()
        self._counters.add("batches")
        self._counters.add("model_us", int(1e6 * (finished - started)))
        for ticket, labels, probabilities in batch.split(answer.labels, answer.probabilities):
            try:
                payload = wire.encode_response(
                    wire.Response(
                        id=ticket.id,
                        model=batch.model[0],
                        version=batch.model[1],
                        labels=labels,
                        probabilities=probabilities,
                        worker_us=int(1e6 * (finished - ticket.arrived)),
                    )
                )
            except WireError as error:  # a probability that is not finite, too many classes
                self._fail(ticket, error)
                continue
            with self._work:
                self._batcher.finish(ticket, payload, finished)
            self._counters.add("answered")
            self._counters.add("instances", len(labels))
            self._counters.add("queue_us", int(1e6 * (started - ticket.arrived)))
            self._publish(wire.response_topic(ticket.device), payload)

    def _fail(self, ticket: Ticket, error: GatewiseError) -> None:
        with self._work:
            self._batcher.forget(ticket)
        name, version = ticket.model
        refusal = wire.Response(
            id=ticket.id, model=name, version=version, error=wire.FAILED, detail=str(error)
        )
        self._refuse(ticket.device, refusal)


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
