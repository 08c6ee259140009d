"""A worker: takes requests from the broker and responds with the answers of bundles' models.

paho's network thread decodes, checks and queues each request, or responds at once where no model is
needed: a full queue, an unknown model, a bad message, a duplicate. A serving thread takes what is
queued, runs the model and publishes the responses (:mod:`.serving`). So a slow model never stops
the reading, and a full queue refuses immediately, while the broker would drop silently. Requests in
flight to a worker that is killed are lost; the device sends them again.
"""

from __future__ import annotations

import gc
import logging
import secrets
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from gatewise.errors import GatewiseError, InputError
from gatewise_cloud.broker.mqtt_client import shared_subscriptions_work
from gatewise_cloud.signal_handling import until_interrupted
from gatewise_cloud.worker.batcher import Batcher
from gatewise_cloud.worker.bundle_watch import BundleWatch
from gatewise_cloud.worker.counters import Counters
from gatewise_cloud.worker.served_models import ServedModels
from gatewise_cloud.worker.serving import BatchServer
from gatewise_cloud.worker.session import MqttSession
from gatewise_edge.link import wire
from gatewise_edge.link.mqtt import Endpoint

if TYPE_CHECKING:
    from gatewise_cloud.models.backends import Backend
    from gatewise_export.bundle.bundle import Bundle
    from gatewise_export.bundle.manifest import Manifest

_LOG = logging.getLogger("gatewise_cloud")
_MOST_UNACKED = 65535  # message ids have 16 bits
_HEALTH_SECONDS = 0.5


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
        Instances in one run at most; a request with more runs alone.
    wait_ms : float, default 0
        Milliseconds that a request waits at most for others to share its run.
    threads : int, default 1
        Threads within one run.
    parallel : int, default 1
        Batches that run at a time; more pay where a `backend` runs the model elsewhere.
    backend : callable, optional
        Makes a model's backend, given its manifest: see :func:`.backend_at`.
    watch : str or Path, optional
        A folder whose bundles are served in addition, see :class:`.BundleWatch`.
    watch_seconds : float, default 2
        Between two looks into it.
    public_key : str, Path or bytes, optional
        Only bundles signed by its owner are served; one that was opened without this key is
        opened anew.
    drain_seconds : float, default 10
        How long :meth:`stop` lets the queued requests be answered.
    ca_file, cert_file, key_file : str or Path, optional
        For TLS, see :class:`gatewise_edge.link.mqtt.Endpoint`.

    Attributes
    ----------
    models : ServedModels
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
        If there is no bundle, two have the same name and version, a setting is out of range, or
        the URL is none.
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
        wait_ms: float = 0.0,
        threads: int = 1,
        parallel: int = 1,
        backend: Callable[[Manifest], Backend] | None = None,
        watch: str | Path | None = None,
        watch_seconds: float = 2.0,
        public_key: str | Path | bytes | None = None,
        drain_seconds: float = 10.0,
        ca_file: str | Path | None = None,
        cert_file: str | Path | None = None,
        key_file: str | Path | None = None,
    ) -> None:
        if min(queue, threads, parallel, max_batch) < 1:
            raise InputError("queue, max_batch, threads and parallel must be at least 1")
        self._endpoint = Endpoint(
            broker_url, ca_file=ca_file, cert_file=cert_file, key_file=key_file
        )
        self.url = self._endpoint.url
        self._drain_seconds = drain_seconds
        self.subscription = wire.shared(pool) if shared else wire.REQUESTS

        self._counters = Counters()
        self.models = ServedModels(threads=threads, public_key=public_key, backend=backend)
        for bundle in _listed(bundles, may_be_none=watch is not None):
            self.models.load(bundle)
        self._session = MqttSession(
            self._endpoint,
            client_id or f"gw-worker-{secrets.token_hex(6)}",
            self._counters,
            # However short the queue, every request may be told that it is full.
            max_unacked=min(queue + 1024, _MOST_UNACKED),
        )
        self._server = BatchServer(
            self.models,
            Batcher(capacity=queue, max_batch=max_batch, wait=wait_ms / 1000.0, parallel=parallel),
            self._session,
            self._counters,
        )
        self._watch: BundleWatch | None = None
        if watch is not None:
            self._watch = BundleWatch(
                Path(watch),
                self.models,
                self._server.pending,
                self._counters,
                seconds=watch_seconds,
            )
        self._stopping = threading.Event()
        self._life = threading.RLock()
        self._started = False
        self._ended = False

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
                if self._watch is not None:
                    self._watch.start()
                self._session.open(self.subscription, self._server.receive)
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
            if not self._started or self._ended:
                return
            self._ended = True
            # First, so that a shared subscription hands new requests to the other workers.
            self._session.unsubscribe()
            self._server.finish(self._drain_seconds)
            if self._watch is not None:
                self._watch.stop()
            self._session.close()
            self.models.close()

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
        GatewiseError
            If a thread that it needs has ended: a supervisor may start it again.
        """
        try:
            with until_interrupted():
                self.start()
                # What is loaded stays: a collection that goes through it takes milliseconds.
                gc.collect()
                gc.freeze()
                if ready is not None:
                    ready(self)
                while not self._stopping.wait(_HEALTH_SECONDS):
                    if (ended := self._ended_thread()) is not None:
                        raise GatewiseError(f"this worker cannot go on: {ended}")
        finally:
            self.stop()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    # -- state -----------------------------------------------------------------------------

    @property
    def trouble(self) -> str | None:
        """Why this worker does not serve now; None if it does."""
        if self._stopping.is_set():
            return "it is ending"
        if self._started and (ended := self._ended_thread()) is not None:
            return ended
        if not self._session.connected:
            return f"it is not connected to {self.url}"
        if not self._session.subscribed:
            return f"{self.url} has not granted its subscription"
        if not self.models:
            return "it has no model yet"
        troubles = [model.trouble for model in self.models.values()]
        return next((t for t in troubles if t is not None), None) if all(troubles) else None

    def _ended_thread(self) -> str | None:
        """Which thread has ended that should run; None if all do."""
        parts: dict[str, Any] = {
            "network": self._session,
            "serving": self._server,
            "watching": self._watch,
        }
        ended = [name for name, part in parts.items() if part is not None and not part.alive]
        return f"its {ended[0]} thread has ended" if ended else None

    @property
    def counters(self) -> dict[str, Any]:
        """A snapshot of the counts and the state, fit for JSON.

        The names of :data:`gatewise_cloud.worker.counters.COUNTS`, and by label those of
        :data:`gatewise_cloud.worker.counters.LABELLED_COUNTS`; ``queued``, ``connected``,
        ``subscription``, ``models``, and ``audits``.
        """
        models = list(self.models)  # they come and go
        return {
            **self._counters.snapshot(),
            "queued": self._server.queued,
            "connects": self._session.connects,
            "connected": self._session.connected,
            "subscription": self.subscription,
            "models": [{"name": name, "version": version} for name, version in models],
            "audits": self._server.audits.snapshot(),
            "certificate_expires": self._endpoint.certificate_expires,
        }

    @property
    def histograms(self) -> dict[str, tuple[list[tuple[float, int]], float]]:
        """See :meth:`gatewise_cloud.worker.counters.Counters.histograms`."""
        return self._counters.histograms()


def _listed(
    bundles: Bundle | str | Path | Iterable[Bundle | str | Path], *, may_be_none: bool
) -> list[Bundle | str | Path]:
    """One bundle, or several, as a list."""
    from gatewise_export.bundle.bundle import Bundle

    found = [bundles] if isinstance(bundles, str | Path | Bundle) else list(bundles)
    if not found and not may_be_none:
        raise InputError("a worker needs at least one bundle, or a folder to watch")
    return found
