"""Several worker processes under one parent, which looks after them and shows them as one.

Each child is a whole worker of the same pool, so that the broker divides the requests among them;
they share nothing, so that one that dies takes only its own unanswered requests with it, and the
devices ask those again. The parent starts a child that died again after a pause that doubles from
half a second to half a minute. A child listens on its parent's pipe: when that closes, even by
the parent's being killed, it drains and ends.

``/metrics`` and ``/healthz`` are the parent's: it asks its children, on ports of their own on the
loopback, and puts their metrics together with a label ``worker``. It is well while at least one
child is; a child that starts anew counts from 0, as Prometheus expects of one that did.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import IO, Any

from gatewise.errors import GatewiseError, InputError
from gatewise_cloud.service.endpoints import Endpoints
from gatewise_cloud.signal_handling import until_interrupted

__all__ = ["Child", "Supervisor"]

_LOG = logging.getLogger("gatewise_cloud")
_FIRST_PAUSE = 0.5
_LONGEST_PAUSE = 30.0
_SERVED_WELL = 60.0
_START_SECONDS = 60.0


class Child:
    """One worker process.

    Parameters
    ----------
    options : dict
        Keyword arguments of :class:`gatewise_cloud.worker.worker.Worker`, fit for JSON; handed over
        through the pipe, since passwords must not show in the list of processes.

    Attributes
    ----------
    ready : dict or None
        What it said when it began to serve.
    error : str or None
        What it said when it could not.
    counters : dict or None
        What it said at its end.
    """

    def __init__(self, options: dict[str, Any]) -> None:
        self.started = time.monotonic()
        self.ready: dict[str, Any] | None = None
        self.error: str | None = None
        self.counters: dict[str, Any] | None = None
        self._said = threading.Event()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "gatewise_cloud.service._child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # A terminal's Ctrl-C is for the parent, which passes it on once.
            process_group=0,
            text=True,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._tether = self._process.stdin
        with contextlib.suppress(BrokenPipeError):  # it died already, and is found dead
            self._tether.write(json.dumps(options) + "\n")
            self._tether.flush()
        self._reader = threading.Thread(
            target=self._read, args=(self._process.stdout,), daemon=True
        )
        self._reader.start()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self._process.poll() is None

    def wait_ready(self, seconds: float) -> bool:
        """Wait until it serves, or cannot; whether it serves."""
        self._said.wait(seconds)
        return self.ready is not None

    def terminate(self) -> None:
        """Ask it to drain and end."""
        if self.alive:
            self._process.terminate()

    def end(self, seconds: float) -> None:
        """Wait for its end, for some seconds at most; then kill it."""
        try:
            self._process.wait(max(0.0, seconds))
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join()
        for pipe in (self._tether, self._process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()

    def page(self, path: str, seconds: float = 2.0) -> tuple[int, str]:
        """Ask its own endpoint: status and text; status 0 if it gives none."""
        if self.ready is None or not self.alive:
            return 0, "it is not running"
        connection = http.client.HTTPConnection("127.0.0.1", self.ready["port"], timeout=seconds)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        except (OSError, http.client.HTTPException) as error:
            return 0, f"its endpoint does not answer: {error}"
        finally:
            connection.close()

    def _read(self, lines: IO[str]) -> None:
        for line in lines:
            document = json.loads(line)
            if "ready" in document:
                self.ready = document
            elif "error" in document:
                self.error = document["error"]
            else:
                self.counters = document
            self._said.set()
        self._said.set()


class Supervisor:
    """Starts workers and keeps them running.

    Parameters
    ----------
    options : dict
        See :class:`Child`.
    workers : int
        At least 1.
    metrics_port : int, optional
    metrics_host : str, default "127.0.0.1"
    drain_seconds : float, default 10
        How long the children may drain; they get two seconds more to say good-bye.

    Attributes
    ----------
    children : list of Child
    restarts : int
        Children started again so far.
    port : int or None
        Of the metrics, once it runs.
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
        self._options = {**options, "drain_seconds": drain_seconds}
        self._workers = workers
        self._metrics_port = metrics_port
        self._metrics_host = metrics_host
        self._drain_seconds = drain_seconds
        self.children: list[Child] = []
        self._due = [0.0] * workers
        self._pauses = [_FIRST_PAUSE] * workers
        self.restarts = 0
        self.port: int | None = None
        self._stopping = threading.Event()

    def run(self, ready: Callable[[Supervisor], None] | None = None) -> None:
        """Serve until SIGTERM, Ctrl-C or :meth:`stop`; then have all drain. For the main thread.

        Raises
        ------
        GatewiseError
            If a child cannot begin to serve, with the child's own words.
        InputError
            If the broker does not divide requests among several workers.
        """
        try:
            with until_interrupted():
                self.children = [Child(self._options) for _ in range(self._workers)]
                self._wait_for_all()
                if self._metrics_port is None:
                    self._look_after(ready)
                else:
                    pages = Endpoints(
                        self._metrics_port,
                        metrics=self._metrics,
                        trouble=lambda: self.trouble,
                        host=self._metrics_host,
                    )
                    with pages:
                        self.port = pages.port
                        self._look_after(ready)
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
        said = [child.page("/healthz") for child in self.children]
        if any(status == 200 for status, _ in said):
            return None
        return "; ".join(f"worker {i}: {text.strip()}" for i, (_, text) in enumerate(said))

    @property
    def counters(self) -> dict[str, Any]:
        """Sums over the children that ended in order, and what they had of each."""
        totals: dict[str, Any] = {"workers": self._workers, "restarts": self.restarts}
        for child in self.children:
            for name, value in (child.counters or {}).items():
                if isinstance(value, dict) and name != "batching":
                    counts = totals.setdefault(name, {})
                    for label, n in value.items():
                        counts[label] = counts.get(label, 0) + n
                elif isinstance(value, int) and not isinstance(value, bool):
                    totals[name] = totals.get(name, 0) + value
                else:
                    totals[name] = value
        return totals

    def _wait_for_all(self) -> None:
        until = time.monotonic() + _START_SECONDS
        for child in self.children:
            if not child.wait_ready(until - time.monotonic()):
                raise GatewiseError(child.error or "a worker process does not begin to serve")
        plain = [c.ready for c in self.children if c.ready and c.ready["plain"]]
        if plain and self._workers > 1:
            raise InputError(
                "this broker does not divide requests among several workers, each would answer "
                "all of them: use --workers 1, or another broker"
            )

    def _look_after(self, ready: Callable[[Supervisor], None] | None) -> None:
        if ready is not None:
            ready(self)
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
                    child.end(0.0)
                    self.restarts += 1
                    self.children[i] = Child(self._options)

    def _end_all(self) -> None:
        self._stopping.set()
        for child in self.children:
            child.terminate()
        until = time.monotonic() + self._drain_seconds + 2.0
        for child in self.children:
            child.end(until - time.monotonic())

    def _metrics(self) -> bytes:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        from gatewise_cloud.service.metrics import merged

        texts = {}
        for i, child in enumerate(self.children):
            status, text = child.page("/metrics")
            if status == 200:
                texts[str(i)] = text
        name = "gatewise_workers"
        return merged(
            texts,
            [
                GaugeMetricFamily(f"{name}_wanted", "worker processes", value=self._workers),
                GaugeMetricFamily(f"{name}_answering", "that answer now", value=len(texts)),
                CounterMetricFamily(
                    f"{name}_restarts", "worker processes started again", value=self.restarts
                ),
            ],
        )
