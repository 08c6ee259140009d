"""Worker, which receives requests from a broker and answers them with bundles' high-cost models.

paho's network thread decodes, checks and queues each request. It responds immediately if no model
is needed, for example if the queue is full, the model is unknown or the message is malformed. A
serving thread takes queued requests, runs the model and publishes the responses (:mod:`.serving`).
A slow model therefore never stops the reading. A full queue refuses requests immediately, whereas
the broker would drop them silently. Requests that are on their way to a worker when it is killed
are lost, and the devices send them again.
"""

from __future__ import annotations

import gc
import logging
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
from gatewise_cloud.worker.session import WorkerSessions
from gatewise_cloud.worker.settings import WorkerSettings
from gatewise_edge.link import wire

if TYPE_CHECKING:
    from gatewise_cloud.archive.writer import ArchiveWriter
    from gatewise_cloud.models.backends import Backend
    from gatewise_export.bundle.bundle import Bundle
    from gatewise_export.bundle.manifest import Manifest

_LOG = logging.getLogger("gatewise_cloud")
#: Largest number of unacknowledged messages, because message ids have 16 bits.
_MAX_UNACKED = 65535
#: Time between two checks that all threads run.
_HEALTH_SECONDS = 0.5


class Worker:
    """Worker that answers requests over MQTT; a context manager.

    Parameters
    ----------
    bundles : Bundle, path, or several of them
        Bundles to serve. Each request names its model and version, and one worker can serve
        several versions of a model. The sequence may be empty if a folder is watched.
    broker : str
        ``mqtt://[user:password@]host[:port]`` or ``mqtts://...``.
    settings : WorkerSettings, optional
        All other settings.
    backend : callable, optional
        Function that makes the backend for a bundle's manifest; see :func:`.backend_factory`.
    **options
        Fields of `settings`, which take precedence.

    Attributes
    ----------
    models : ServedModels
        Models by name and version.
    subscription : str
        Topic filter in use. With ``shared`` it is the pool's shared subscription. Some brokers,
        such as the embedded one, grant it but deliver nothing; a round trip detects this.
    url : str
        URL of the broker, without user and password.

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
        # broker
        self._settings = settings
        self._endpoint = settings.make_endpoint()
        self.url = self._endpoint.url
        self.subscription = (
            wire.shared_subscription(settings.pool) if settings.shared else wire.REQUEST_TOPICS
        )
        # models
        self._counters = Counters()
        self.models = ServedModels(
            n_threads=settings.threads,
            provider=settings.provider,
            public_key=settings.public_key,
            make_backend=backend,
            load_limits=LoadLimits(bytes=settings.load_bytes, seconds=settings.load_seconds),
        )
        self._archive: ArchiveWriter | None = None
        self._label_intake: LabelIntake | None = None
        self._stop_event = threading.Event()
        self._lifecycle_lock = threading.RLock()
        self._was_started = False
        self._is_stopping = False
        try:
            for bundle in _list_bundles(bundles, may_be_empty=settings.watch is not None):
                self.models.load(bundle)
            self._make_parts(settings)
        except BaseException:
            self._close_resources()
            raise

    def _make_parts(self, settings: WorkerSettings) -> None:
        """Make the connections, the queue, the archive and the server."""
        # connections and queue
        self._session = WorkerSessions(
            self._endpoint,
            self._counters,
            n_sessions=settings.connections,
            # leave room for responses to requests that a full queue refuses
            max_unacked=min(settings.queue + 1024, _MAX_UNACKED),
        )
        batcher = Batcher(
            capacity=settings.queue,
            max_batch=settings.max_batch,
            wait_seconds=settings.wait_ms / 1000.0,
            n_parallel=settings.parallel,
        )
        self._archive = _open_archive(settings)
        if self._archive is not None:
            self._label_intake = LabelIntake(
                self._archive,
                self._counters,
                self._session.dead_letter,
                shard_seconds=settings.keep_seconds,
            )
        self._server = BatchServer(
            self.models, batcher, self._session, self._counters, self._archive
        )
        # watched folder
        self._bundle_watch: BundleWatch | None = None
        if settings.watch is not None:
            self._bundle_watch = BundleWatch(
                Path(settings.watch),
                self.models,
                self._server.drop_idle_models,
                self._counters,
                scan_interval_seconds=settings.watch_seconds,
            )

    # -- start and end ---------------------------------------------------------------------

    def start(self) -> Self:
        """Connect, subscribe and serve; return once requests can arrive.

        Raises
        ------
        LinkError
            If the broker cannot be reached, or refuses the connection or the subscription.
        """
        with self._lifecycle_lock:
            if self._was_started or self._is_stopping:
                raise GatewiseError("this worker was started before: make a new worker")
            try:
                if self.subscription != wire.REQUEST_TOPICS:
                    self._choose_subscription()
                self._was_started = True
                self._server.start()
                if self._label_intake is not None:
                    self._label_intake.start()
                if self._bundle_watch is not None:
                    self._bundle_watch.start()
                if self._label_intake is None:
                    self._session.open(self.subscription, self._server.receive)
                else:
                    more_filters = (wire.LABEL_TOPICS, f"{wire.LABEL_TOPICS}/json")
                    self._session.open(self.subscription, self._receive, more_filters)
            except BaseException:
                self.stop()
                raise
        return self

    def _receive(self, topic: str, payload: bytes, is_retained: bool) -> None:
        """Handle one message of a worker that keeps instances: a label or a request."""
        if self._label_intake is not None and topic.removesuffix("/json").endswith("/labels"):
            self._label_intake.receive(topic, payload)
        else:
            self._server.receive(topic, payload, is_retained)

    def _choose_subscription(self) -> None:
        """Use a plain subscription if the broker does not deliver to shared ones."""
        if shared_subscriptions_work(self._endpoint) is False:
            _LOG.warning(
                "warning: the broker at %s grants shared subscriptions but delivers nothing, like "
                "the embedded broker: using a plain subscription, so run only one worker",
                self.url,
            )
            self.subscription = wire.REQUEST_TOPICS

    def stop(self) -> None:
        """Stop accepting requests, answer the queued ones, and disconnect.

        A second call only waits for the first.
        """
        self._stop_event.set()
        with self._lifecycle_lock:
            if self._is_stopping:
                return
            self._is_stopping = True
            # unsubscribe first, so that the broker sends new requests to the other workers
            self._session.unsubscribe()
            self._server.drain_and_stop(self._settings.drain_seconds)
            if self._bundle_watch is not None:
                self._bundle_watch.stop()
            self._session.close()
            self._close_resources()

    def _close_resources(self) -> None:
        """Close what a worker has before it is started: its archive and its models."""
        # close the archive first: the intake records labels only for instances on disk
        if self._archive is not None:
            self._archive.close()
        if self._label_intake is not None:
            self._label_intake.close()
        self.models.close()

    def run(self, on_ready: Callable[[Worker], None] | None = None) -> None:
        """Serve on the main thread until SIGTERM, Ctrl-C or :meth:`stop`, then drain the queue.

        A second signal ends the program without draining.

        Parameters
        ----------
        on_ready : callable, optional
            Called with the worker once it serves.

        Raises
        ------
        LinkError
            As :meth:`start`.
        GatewiseError
            If a thread of the worker has ended. A supervisor should restart the program.
        """
        try:
            with until_interrupted():
                self.start()
                # exclude the loaded libraries from garbage collection, which would take
                # milliseconds otherwise
                gc.collect()
                gc.freeze()
                if on_ready is not None:
                    on_ready(self)
                while not self._stop_event.wait(_HEALTH_SECONDS):
                    if (reason := self._describe_ended_thread()) is not None:
                        raise GatewiseError(f"this worker cannot continue: {reason}")
        finally:
            self.stop()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    # -- state -----------------------------------------------------------------------------

    @property
    def trouble(self) -> str | None:
        """Reason why this worker does not serve now; None if it serves."""
        if self._stop_event.is_set():
            return "it is ending"
        if self._was_started and (reason := self._describe_ended_thread()) is not None:
            return reason
        if not self._session.is_connected:
            return f"it is not connected to {self.url}"
        if not self._session.is_subscribed:
            return f"{self.url} has not granted its subscription"
        if not self.models:
            return "it has no model yet"
        # it serves as long as one model can answer
        troubles = [model.trouble for model in self.models.values()]
        return next(iter(troubles), None) if all(troubles) else None

    def _describe_ended_thread(self) -> str | None:
        """Report a thread that has ended although the worker needs it; None if all threads run."""
        thread_owners: dict[str, Any] = {
            "network": self._session,
            "serving": self._server,
            "watching": self._bundle_watch,
        }
        for name, thread_owner in thread_owners.items():
            if thread_owner is not None and not thread_owner.is_alive:
                return f"its {name} thread has ended"
        return None

    @property
    def counters(self) -> dict[str, Any]:
        """Snapshot of the counts and the state, as values of JSON.

        It contains the counts of :data:`.counters.COUNTS`, and by label the counts of
        :data:`.counters.LABELLED_COUNTS`. It also contains ``queued``, ``connects``, ``connected``,
        ``subscription``, ``models``, ``audits``, ``archive`` (the counts of
        :class:`.ArchiveWriter`) and ``certificate_expires``.
        """
        models = list(self.models)  # a copy, because another thread may change the models
        return {
            **self._counters.snapshot(),
            "oversized": self._session.n_oversized,
            "queued": self._server.n_queued,
            "connects": self._session.n_connects,
            "connected": self._session.is_connected,
            "subscription": self.subscription,
            "models": [{"name": name, "version": version} for name, version in models],
            "audits": self._server.fleet_audit.snapshot(),
            "archive": {} if self._archive is None else self._archive.counters,
            "certificate_expires": self._endpoint.certificate_expires,
        }

    @property
    def histograms(self) -> dict[str, tuple[list[tuple[float, int]], float]]:
        """Histograms by name, as returned by :meth:`.Counters.histograms`."""
        return self._counters.histograms()


def _open_archive(settings: WorkerSettings) -> ArchiveWriter | None:
    """Open the folder of ``--keep``; only then is pyarrow imported."""
    if settings.keep is None:
        defaults = WorkerSettings()
        for field in ("keep_bytes", "keep_days", "keep_seconds"):
            if getattr(settings, field) != getattr(defaults, field):
                raise InputError(f"{field} needs the folder of --keep")
        return None
    from gatewise_cloud.archive.writer import ArchiveWriter

    return ArchiveWriter.open(
        settings.keep,
        max_bytes=read_bytes(settings.keep_bytes, "keep_bytes"),
        max_days=settings.keep_days,
        shard_seconds=settings.keep_seconds,
    )


def _list_bundles(
    bundles: Bundle | str | Path | Iterable[Bundle | str | Path], *, may_be_empty: bool
) -> list[Bundle | str | Path]:
    """List the bundles, which may be a single one; InputError if there must be at least one."""
    from gatewise_export.bundle.bundle import Bundle

    bundle_list = [bundles] if isinstance(bundles, str | Path | Bundle) else list(bundles)
    if not bundle_list and not may_be_empty:
        raise InputError("a worker needs at least one bundle, or a folder to watch")
    return bundle_list
