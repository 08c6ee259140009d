"""Several worker processes under one parent, which looks after them and shows them as one.

Each child is a whole worker of the same pool, so that the broker divides the requests among them;
they share nothing, so that one that dies takes only its own unanswered requests with it, and the
devices send those again. The parent starts a child that died again after a pause that doubles from
half a second to half a minute.

``/metrics`` and ``/healthz`` are the parent's: it reads those of its children, on ports of their
own on the loopback, and merges their metrics under a label ``worker``. It is healthy while at least
one child is; a child that starts again counts from 0, as Prometheus expects.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from gatewise.errors import GatewiseError, InputError
from gatewise_cloud.service.worker_process import WorkerProcess
from gatewise_cloud.signal_handling import until_interrupted
from gatewise_edge.link.wire import REQUESTS
from gatewise_edge.service.endpoints import Endpoints

_LOG = logging.getLogger("gatewise_cloud")
_FIRST_PAUSE = 0.5
_LONGEST_PAUSE = 30.0
_SERVED_WELL = 60.0
_START_SECONDS = 60.0


class Supervisor:
    """Starts `workers` processes and keeps them running.

    `options` are those of :func:`.make_worker`; each process gets its ``number``, from 1. Children
    may drain for `drain_seconds` and get two seconds more to end. `restarts` counts children
    started again. Metrics are served on `metrics_host` and `metrics_port`, where 0 takes a free one
    and None serves none; `port` is theirs, once it runs.
    """

    def __init__(
        self,
        options: dict[str, Any],
        workers: int,
        *,
        metrics_port: int | None = None,
        metrics_host: str = "127.0.0.1",
        drain_seconds: float = 10.0,
    ) -> None:
        if workers < 1:
            raise InputError("workers must be at least 1")
        more = {"drain_seconds": drain_seconds, "metrics": metrics_port is not None}
        self._options = options | more
        self._workers = workers
        self._metrics_port, self._metrics_host = metrics_port, metrics_host
        self._drain_seconds = drain_seconds
        self.children: list[WorkerProcess] = []
        self._due = [0.0] * workers
        self._pauses = [_FIRST_PAUSE] * workers
        self.restarts = 0
        self.port: int | None = None
        self._stopping = threading.Event()

    def run(self, ready: Callable[[Supervisor], None] | None = None) -> None:
        """Serve until SIGTERM, Ctrl-C or :meth:`stop`; then have all drain. For the main thread.

        `ready` gets this supervisor once all serve. GatewiseError if a child cannot begin to serve,
        with the child's message; InputError if the broker does not divide requests among several
        workers.
        """
        try:
            with until_interrupted(), ExitStack() as stack:
                self.children = [self._make(i) for i in range(self._workers)]
                self._wait_for_all()
                if self._metrics_port is not None:
                    pages = Endpoints(
                        self._metrics_port,
                        metrics=self._metrics,
                        trouble=lambda: self.trouble,
                        host=self._metrics_host,
                    )
                    self.port = stack.enter_context(pages).port
                if ready is not None:
                    ready(self)
                self._look_after()
        finally:
            self._end_all()

    def stop(self) -> None:
        """End :meth:`run`, from another thread."""
        self._stopping.set()

    @property
    def trouble(self) -> str | None:
        """Why no child serves; None if one does."""
        if self._stopping.is_set():
            return "it is ending"
        pages = [child.page("/healthz") for child in self.children]
        if any(status == 200 for status, _ in pages):
            return None
        return "; ".join(f"worker {i}: {text.strip()}" for i, (_, text) in enumerate(pages))

    @property
    def counters(self) -> dict[str, Any]:
        """Sums over the children that ended in order; what is no count is the last one's."""
        totals: dict[str, Any] = {"workers": self._workers, "restarts": self.restarts}
        for child in self.children:
            for name, value in (child.counters or {}).items():
                if name == "audits":  # of the tests there is no sum: each process has its own
                    audits = totals.setdefault(name, {})
                    for model, test in value.items():
                        counts = audits.setdefault(model, {"audits": 0, "disagreed": 0})
                        for key in counts:
                            counts[key] += test[key]
                elif isinstance(value, dict) and name != "batching":
                    counts = totals.setdefault(name, {})
                    for label, n in value.items():
                        counts[label] = counts.get(label, 0) + n
                elif isinstance(value, int) and not isinstance(value, bool):
                    totals[name] = totals.get(name, 0) + value
                else:
                    totals[name] = value
        return totals

    def _make(self, i: int) -> WorkerProcess:
        return WorkerProcess(self._options | {"number": i + 1})

    def _wait_for_all(self) -> None:
        until = time.monotonic() + _START_SECONDS
        for child in self.children:
            if not child.wait_ready(until - time.monotonic()):
                raise GatewiseError(child.error or "a worker process does not begin to serve")
        plain = [c for c in self.children if c.ready and c.ready["subscription"] == REQUESTS]
        if plain and self._workers > 1:
            raise InputError(
                "this broker does not divide requests among several workers, each would answer "
                "all of them: use --workers 1, or another broker"
            )

    def _look_after(self) -> None:
        while not self._stopping.wait(0.1):
            now = time.monotonic()
            for i, child in enumerate(self.children):
                if child.alive:
                    if now - child.started > _SERVED_WELL:
                        self._pauses[i] = _FIRST_PAUSE
                elif not self._due[i]:
                    _LOG.warning(
                        "warning: worker %d died%s: starting it again in %g s",
                        i,
                        f" ({child.error})" if child.error else "",
                        self._pauses[i],
                    )
                    self._due[i] = now + self._pauses[i]
                    self._pauses[i] = min(2 * self._pauses[i], _LONGEST_PAUSE)
                elif now >= self._due[i]:
                    self._due[i] = 0.0
                    child.close(0.0)
                    try:
                        self.children[i] = self._make(i)
                    except OSError as error:  # no memory now, or no process
                        _LOG.warning("warning: worker %d cannot be started: %s", i, error)
                    else:
                        self.restarts += 1

    def _end_all(self) -> None:
        self._stopping.set()
        for child in self.children:
            child.release()
        until = time.monotonic() + self._drain_seconds + 2.0
        for child in self.children:
            child.close(until - time.monotonic())

    def _metrics(self) -> bytes:
        from gatewise_cloud.service.metrics import merged
        from gatewise_edge.service.edge_metrics import counter, gauge

        pages = [child.page("/metrics") for child in self.children]
        texts = {str(i): text for i, (status, text) in enumerate(pages) if status == 200}
        own = [
            gauge("gatewise_workers_wanted", "worker processes", [((), self._workers)]),
            gauge("gatewise_workers_answering", "that answer now", [((), len(texts))]),
            counter(
                "gatewise_workers_restarts",
                "worker processes started again",
                [((), self.restarts)],
            ),
        ]
        return merged(texts, own)
