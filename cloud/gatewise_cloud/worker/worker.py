"""A worker: takes requests from the broker and responds with the answers of bundles' models.

paho's network thread decodes, checks and queues each request, or responds at once where no model is
needed: a full queue, an unknown model, a bad message, a duplicate. A serving thread takes queued
requests, runs the model and publishes the responses (:mod:`.serving`). So a slow model never stops
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

from msgspec.structs import replace

from gatewise.errors import GatewiseError, InputError
from gatewise.formats import read_bytes
from gatewise.graph_loading import LoadLimits
from gatewise_cloud.archive.label_intake import LabelIntake
from gatewise_cloud.broker.mqtt_client import shared_subscriptions_work
from gatewise_cloud.signal_handling import until_interrupted
from gatewise_cloud.worker.batcher import Batcher
from gatewise_cloud.worker.bundle_watch import BundleWatch
from gatewise_cloud.worker.counters import Counters
from gatewise_cloud.worker.served_models import ServedModels
from gatewise_cloud.worker.serving import BatchServer
from gatewise_cloud.worker.session import MqttSession, SessionGroup
from gatewise_cloud.worker.settings import WorkerSettings
from gatewise_edge.link import wire

if TYPE_CHECKING:
    from gatewise_cloud.archive.writer import ArchiveWriter
    from gatewise_cloud.models.backends import Backend
    from gatewise_export.bundle.bundle import Bundle
    from gatewise_export.bundle.manifest import Manifest

_LOG = logging.getLogger("gatewise_cloud")
_MAX_UNACKED = 65535  # message ids have 16 bits
_HEALTH_SECONDS = 0.5


class Worker:
    """Answers requests over MQTT until it is stopped; a context manager.

    Parameters
    ----------
    bundles : Bundle, path, or several of them
        Bundles to serve. Requests name their model and its version, so several versions of one
        model may be served at a time. May be empty if a folder is watched.
    broker : str
        ``mqtt://[user:password@]host[:port]`` or ``mqtts://...``.
    settings : WorkerSettings, optional
        All other settings.
    backend : callable, optional
        Makes a model's backend, given its manifest: see :func:`.backend_at`.
    **options
        Fields of `settings`, which take precedence.

    Attributes
    ----------
    models : ServedModels
        By name and version.
    subscription : str
        The topic filter in use. With ``shared`` it is the pool's shared subscription, unless a
        round trip shows that the broker grants it and delivers nothing, as the embedded one does.
    url : str
        The broker's, without user and password.

    Raises
    ------
    BundleError, ModelError, SelfTestError
        If a bundle cannot be read or served.
    InputError
        If there is nothing to serve, two bundles have the same name and version, or a setting is
        not valid.
    """

    def __init__(
        self,
        bundles: Bundle | str | Path | Iterable[Bundle | str | Path],
        broker: str,
        settings: WorkerSettings | None = None,
        *,
        backend: Callable[[Manifest], Backend] | None = None,
        **options: Any,
    ) -> None:
        settings = replace(settings or WorkerSettings(), broker=broker, **options)
        self._settings = settings
        self._endpoint = settings.endpoint()
        self.url = self._endpoint.url
        self.subscription = wire.shared(settings.pool) if settings.shared else wire.REQUESTS

        self._counters = Counters()
        self.models = ServedModels(
            threads=settings.threads,
            provider=settings.provider,
            public_key=settings.public_key,
            backend=backend,
            load_bound=LoadLimits(bytes=settings.load_bytes, seconds=settings.load_seconds),
        )
        for bundle in _as_list(bundles, may_be_empty=settings.watch is not None):
            self.models.load(bundle)
        sessions = [self._make_session(settings.queue) for _ in range(settings.connections)]
        self._session = sessions[0] if len(sessions) == 1 else SessionGroup(sessions)
        batcher = Batcher(
            capacity=settings.queue,
            max_batch=settings.max_batch,
            wait=settings.wait_ms / 1000.0,
            parallel=settings.parallel,
        )
        self._archive = _archive(settings)
        self._labels: LabelIntake | None = None
        if self._archive is not None:
            self._labels = LabelIntake(
                self._archive,
                self._counters,
                self._session.dead_letter,
                seconds=settings.keep_seconds,
            )
        self._server = BatchServer(
            self.models, batcher, self._session, self._counters, self._archive
        )
        self._watch: BundleWatch | None = None
        if settings.watch is not None:
            self._watch = BundleWatch(
                Path(settings.watch),
                self.models,
                self._server.pending,
                self._counters,
                seconds=settings.watch_seconds,
            )
        self._stopping = threading.Event()
        self._lifecycle_lock = threading.RLock()
        self._started = False
        self._has_ended = False

    def _make_session(self, queue: int) -> MqttSession:
        return MqttSession(
            self._endpoint,
            f"gw-worker-{secrets.token_hex(6)}",
            self._counters,
            # However short the queue, every request may be refused because it is full.
            max_unacked=min(queue + 1024, _MAX_UNACKED),
        )

    # -- life ------------------------------------------------------------------------------

    def start(self) -> Self:
        """Connect, subscribe and serve; returns once requests can come.

        Raises
        ------
        LinkError
            If the broker cannot be reached, or refuses the connection or the subscription.
        """
        with self._lifecycle_lock:
            if self._started:
                raise GatewiseError("this worker was started before: make a new one")
            if self.subscription != wire.REQUESTS:
                self._check_subscription()
            self._started = True
            self._server.start()
            if self._labels is not None:
                self._labels.start()
            try:
                if self._watch is not None:
                    self._watch.start()
                if self._labels is None:
                    self._session.open(self.subscription, self._server.receive)
                else:
                    further = (wire.LABELS, f"{wire.LABELS}/json")
                    self._session.open(self.subscription, self._receive, further)
            except BaseException:
                self.stop()
                raise
        return self

    def _receive(self, topic: str, payload: bytes, retained: bool) -> None:
        """Handle one message of a worker that keeps instances: a label or a request."""
        if self._labels is not None and self._labels.takes(topic):
            self._labels.receive(topic, payload)
        else:
            self._server.receive(topic, payload, retained)

    def _check_subscription(self) -> None:
        if shared_subscriptions_work(self._endpoint) is False:
            _LOG.warning(
                "warning: the broker at %s grants shared subscriptions but delivers nothing "
                "(the embedded one does): using a plain subscription, so run one worker only",
                self.url,
            )
            self.subscription = wire.REQUESTS

    def stop(self) -> None:
        """Take no more requests, answer the queued ones, disconnect.

        A second call does nothing but wait for the first.
        """
        self._stopping.set()
        with self._lifecycle_lock:
            if not self._started or self._has_ended:
                return
            self._has_ended = True
            # First, so that a shared subscription hands new requests to the other workers.
            self._session.unsubscribe()
            self._server.finish(self._settings.drain_seconds)
            if self._watch is not None:
                self._watch.stop()
            self._session.close()
            if self._archive is not None:
                self._archive.close()
            if self._labels is not None:
                self._labels.close()
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
                # A collection that visits the loaded libraries would take milliseconds.
                gc.collect()
                gc.freeze()
                if ready is not None:
                    ready(self)
                while not self._stopping.wait(_HEALTH_SECONDS):
                    if (reason := self._ended_thread()) is not None:
                        raise GatewiseError(f"this worker cannot go on: {reason}")
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
        if self._started and (reason := self._ended_thread()) is not None:
            return reason
        if not self._session.connected:
            return f"it is not connected to {self.url}"
        if not self._session.subscribed:
            return f"{self.url} has not granted its subscription"
        if not self.models:
            return "it has no model yet"
        troubles = [model.trouble for model in self.models.values()]
        return next((t for t in troubles if t is not None), None) if all(troubles) else None

    def _ended_thread(self) -> str | None:
        """Name of a thread that has ended and should run, as a sentence; None if all run."""
        owners: dict[str, Any] = {
            "network": self._session,
            "serving": self._server,
            "watching": self._watch,
        }
        for name, owner in owners.items():
            if owner is not None and not owner.alive:
                return f"its {name} thread has ended"
        return None

    @property
    def counters(self) -> dict[str, Any]:
        """A snapshot of the counts and the state, fit for JSON.

        It has the names of :data:`.counters.COUNTS`, by label the names of
        :data:`.counters.LABELLED_COUNTS`, and ``queued``, ``connects``, ``connected``,
        ``subscription``, ``models``, ``audits``, ``archive`` (the counts of
        :class:`.ArchiveWriter`) and ``certificate_expires``.
        """
        models = list(self.models)  # a copy, since models come and go
        return {
            **self._counters.snapshot(),
            "oversized": self._session.n_oversized,
            "queued": self._server.queued,
            "connects": self._session.connects,
            "connected": self._session.connected,
            "subscription": self.subscription,
            "models": [{"name": name, "version": version} for name, version in models],
            "audits": self._server.audits.snapshot(),
            "archive": {} if self._archive is None else self._archive.counters,
            "certificate_expires": self._endpoint.certificate_expires,
        }

    @property
    def histograms(self) -> dict[str, tuple[list[tuple[float, int]], float]]:
        """Histograms by name, as :meth:`.Counters.histograms` gives them."""
        return self._counters.histograms()


def _archive(settings: WorkerSettings) -> ArchiveWriter | None:
    """Open the folder of ``--keep``; pyarrow is imported for it alone."""
    if settings.keep is None:
        return None
    from gatewise_cloud.archive.writer import ArchiveWriter

    return ArchiveWriter.opened(
        settings.keep,
        max_bytes=read_bytes("--keep-bytes", settings.keep_bytes),
        max_days=settings.keep_days,
        seconds=settings.keep_seconds,
    )


def _as_list(
    bundles: Bundle | str | Path | Iterable[Bundle | str | Path], *, may_be_empty: bool
) -> list[Bundle | str | Path]:
    """One bundle, or several, as a list."""
    from gatewise_export.bundle.bundle import Bundle

    bundle_list = [bundles] if isinstance(bundles, str | Path | Bundle) else list(bundles)
    if not bundle_list and not may_be_empty:
        raise InputError("a worker needs at least one bundle, or a folder to watch")
    return bundle_list
