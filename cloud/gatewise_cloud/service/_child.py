"""One worker process of several: ``python -m gatewise_cloud.service._child``.

It reads its options as a line of JSON from standard input, serves until SIGTERM or until its
standard input ends, so that it never outlives the process that started it, and says in lines of
JSON on standard output when it serves, what went wrong, and what it counted.
"""

from __future__ import annotations

import contextlib
import gc
import json
import logging
import os
import sys
import threading
from typing import Any

from gatewise.errors import GatewiseError
from gatewise_cloud.models.oip import backend_at
from gatewise_cloud.service.endpoints import worker_endpoints
from gatewise_cloud.worker.worker import Worker
from gatewise_edge.link import wire

__all__ = ["be_quick", "main", "make_worker"]


def be_quick() -> None:
    """Set this process up for short answers; once its models are loaded.

    Python's threads take turns every half millisecond: by default one may keep the others waiting
    for five, which is longer than a request takes. And the garbage collector no longer looks
    through all that the libraries made, which takes some ten.
    """
    sys.setswitchinterval(0.0005)
    gc.collect()
    gc.freeze()


def make_worker(options: dict[str, Any]) -> Worker:
    """Make a worker of options fit for JSON: a backend and an uplink are URLs and files."""
    from gatewise_edge.link.mqtt import MqttLink

    options = dict(options)
    backend, uplink = options.pop("backend", None), options.pop("uplink", None)
    if uplink is not None:
        url = uplink.pop("url")
        uplink = MqttLink(url, max_inflight=options.get("queue", 1024), **uplink)
    return Worker(
        options.pop("bundles"),
        options.pop("broker"),
        uplink=uplink,
        backend=None if backend is None else backend_at(**backend),
        **options,
    )


def main() -> int:
    """Serve; 0 after a drain, 2 if it could not begin."""
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    options = json.loads(sys.stdin.readline())
    try:
        worker = make_worker(options)
        be_quick()
        threading.Thread(target=_tethered, args=(worker,), daemon=True).start()
        with worker_endpoints(worker, 0) as pages:

            def ready(worker: Worker) -> None:
                counters = worker.counters
                _say(
                    {
                        "ready": True,
                        "port": pages.port,
                        "url": worker.url,
                        "plain": worker.subscription == wire.REQUESTS,
                        **{k: counters[k] for k in ("models", "batching", "subscription")},
                    }
                )

            worker.run(ready)
    except (GatewiseError, OSError) as error:
        _say({"error": str(error)})
        return 2
    _say(worker.counters)
    return 0


def _tethered(worker: Worker) -> None:
    """End when the parent goes."""
    # Not through sys.stdin, whose lock this thread would still hold when the program ends.
    while os.read(0, 4096):
        pass
    worker.stop()


def _say(document: dict[str, Any]) -> None:
    with contextlib.suppress(BrokenPipeError):  # the parent went first
        print(json.dumps(document), flush=True)


if __name__ == "__main__":
    sys.exit(main())
