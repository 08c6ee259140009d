"""A worker in a process of its own: ``python -m gatewise_cloud.service.worker_process``.

The process loads its libraries, reads the worker's options as a line of JSON, serves until SIGTERM
or the end of its owner, and writes two documents: one when it serves, and its counters at the end.
:class:`WorkerProcess` is the owner's side of it.
"""

from __future__ import annotations

import http.client
import importlib
import logging
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from gatewise.errors import GatewiseError
from gatewise_cloud.child_process import (
    ChildProcess,
    end_with_owner,
    first_message,
    send_message,
)

if TYPE_CHECKING:
    from gatewise_cloud.worker.worker import Worker


class WorkerProcess(ChildProcess):
    """A worker process, as its owner sees it.

    `options`: see :func:`make_worker`; ``metrics`` (true) opens its endpoint, too. Without them it
    loads its libraries and waits for :meth:`serve`. They go through a pipe, since passwords must
    not show in the list of processes. `keep_errors`: see :class:`.ChildProcess`. `started`: on the
    monotonic clock. `ready`: what it reported when it began to serve. `counters`: what it counted,
    once it has ended in good order.
    """

    def __init__(
        self,
        options: Mapping[str, Any] | None = None,
        *,
        name: str = "worker",
        keep_errors: bool = False,
    ) -> None:
        self.started = time.monotonic()
        self.ready: dict[str, Any] | None = None
        self.counters: dict[str, Any] | None = None
        self._reported = threading.Event()
        super().__init__(
            name,
            [sys.executable, "-m", "gatewise_cloud.service.worker_process"],
            on_message=self._take,
            keep_errors=keep_errors,
        )
        if options is not None:
            self.serve(options)

    def serve(self, options: Mapping[str, Any]) -> None:
        """Let it begin to serve."""
        self.send(options)

    def wait_ready(self, seconds: float) -> bool:
        """Wait until it serves, or cannot; whether it serves."""
        self._reported.wait(max(0.0, seconds))
        return self.ready is not None

    def page(self, path: str, seconds: float = 2.0) -> tuple[int, str]:
        """Get a page of its own endpoint: status and text; status 0 if it gives none."""
        if self.ready is None or not self.alive:
            return 0, "it is not running"
        connection = http.client.HTTPConnection("127.0.0.1", self.ready["port"], timeout=seconds)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read().decode()
        except (OSError, http.client.HTTPException) as error:
            return 0, f"its endpoint does not answer: {error}"
        finally:
            connection.close()

    def _take(self, _child: ChildProcess, document: Mapping[str, Any] | None) -> None:
        if document is not None and "ready" in document:
            self.ready = dict(document)
        elif document is not None:
            self.counters = dict(document)
        self._reported.set()


def make_worker(options: Mapping[str, Any]) -> Worker:
    """Make a worker of options fit for JSON."""
    from gatewise_cloud.models.backend_choice import chosen_backend
    from gatewise_cloud.worker.worker import Worker

    settings = dict(options)
    backend = settings.pop("backend", None)
    if backend is not None:
        backend = chosen_backend(**backend)
    bundles = settings.pop("bundles")
    broker = settings.pop("broker")
    return Worker(bundles, broker, backend=backend, **settings)


def serve(
    options: Mapping[str, Any],
    *,
    metrics_port: int | None,
    metrics_host: str = "127.0.0.1",
    ready: Callable[[Worker, int | None], None],
    follow_owner: bool = False,
) -> dict[str, Any]:
    """Serve in this process until SIGTERM, Ctrl-C or the owner's end; the worker's counters."""
    from gatewise_cloud.service.metrics import worker_endpoints

    worker = make_worker(options)
    # By default a thread may keep others waiting for 5 ms: longer than a request takes.
    sys.setswitchinterval(0.0005)
    if follow_owner:
        end_with_owner(worker.stop)
    if metrics_port is None:
        worker.run(lambda worker: ready(worker, None))
    else:
        with worker_endpoints(worker, metrics_port, host=metrics_host) as pages:
            worker.run(lambda worker: ready(worker, pages.port))
    return worker.counters


def main() -> int:
    """Serve for an owner; 0 after a drain, 2 if it could not begin."""
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    # Before the options come, so that a worker whose owner held them back begins at once.
    for module in ("gatewise_cloud.models.oip", "gatewise_cloud.worker.worker"):
        importlib.import_module(module)
    options = first_message()
    port = 0 if options.pop("metrics", False) else None

    def ready(worker: Worker, port: int | None) -> None:
        counters = worker.counters
        kept = {name: counters[name] for name in ("models", "subscription")}
        send_message({"ready": True, "port": port, "url": worker.url, **kept})

    try:
        counters = serve(options, metrics_port=port, ready=ready, follow_owner=True)
    except (GatewiseError, OSError) as error:
        send_message({"error": str(error)})
        return 2
    send_message(counters)
    return 0


if __name__ == "__main__":
    sys.exit(main())
