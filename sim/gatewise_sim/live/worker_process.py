"""A worker in a process of its own: ``python -m gatewise_sim.live.worker_process``.

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
from collections.abc import Mapping
from typing import Any

from gatewise.errors import GatewiseError
from gatewise.settings import make_settings
from gatewise_cloud.child_process import (
    ChildProcess,
    end_with_owner,
    first_message,
    send_message,
)
from gatewise_cloud.service.cli import CloudSettings, serve


class WorkerProcess(ChildProcess):
    """A worker process, as its owner sees it.

    `options`: fields of :class:`.CloudSettings`; ``metrics`` (true) opens its endpoint, too.
    Without them it loads its libraries and waits for :meth:`serve`. They go through a pipe, since
    passwords must not show in the list of processes. `keep_errors`: see :class:`.ChildProcess`.
    `started`: on the monotonic clock. `ready`: what it reported when it began to serve.
    `counters`: what it counted, once it has ended in good order.
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
            [sys.executable, "-m", "gatewise_sim.live.worker_process"],
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


def main() -> int:
    """Serve for an owner; 0 after a drain, 2 if it could not begin."""
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    # Before the options come, so that a worker whose owner held them back begins at once.
    importlib.import_module("gatewise_cloud.models.oip")
    importlib.import_module("gatewise_cloud.worker.worker")
    options = first_message()
    metrics_port = 0 if options.pop("metrics", False) else None
    try:
        worker = make_settings(CloudSettings, {}, options).make_worker()
        end_with_owner(worker.stop)

        def ready(port: int | None) -> None:
            models = [{"name": name, "version": version} for name, version in worker.models]
            state = {"models": models, "subscription": worker.subscription}
            send_message({"ready": True, "port": port, "url": worker.url, **state})

        serve(worker, ready, metrics_port=metrics_port)
    except (GatewiseError, OSError) as error:
        send_message({"error": str(error)})
        return 2
    send_message(worker.counters)
    return 0


if __name__ == "__main__":
    sys.exit(main())
