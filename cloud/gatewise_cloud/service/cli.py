"""Command ``gatewise cloud``, which runs a worker."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from msgspec import Meta
from msgspec.structs import replace

from gatewise.console import print_line
from gatewise.errors import InputError
from gatewise.imports import CPU
from gatewise.settings import with_options
from gatewise_cloud.worker.settings import WorkerSettings

if TYPE_CHECKING:
    from gatewise_cloud.worker.worker import Worker

_Port = Annotated[int, Meta(ge=0, le=65535)]


class CloudSettings(WorkerSettings, frozen=True):
    """Settings of ``gatewise cloud``: worker settings, bundles, backend and metrics."""

    bundles: Annotated[
        tuple[Path, ...],
        typer.Argument(metavar="[BUNDLE...]", help="Bundles with the high-cost models to serve."),
    ] = ()
    pool_file: Annotated[
        Path | None,
        typer.Option(help="File with the pool's name: clients/pool from `broker init`."),
    ] = None
    backend: Annotated[
        str | None,
        typer.Option(
            metavar="python:MODULE:ATTRIBUTE|URL",
            help="Backend that runs the models: the import path of a Python function, object or "
            "class, or a server of the Open Inference Protocol, http://host:8080/v2/models/NAME. "
            "{name} and {version} are replaced by those of the bundle.",
        ),
    ] = None
    metrics_port: Annotated[
        _Port | None, typer.Option(help="Port of /metrics and /healthz; 0 selects a free port.")
    ] = None
    metrics_host: Annotated[str, typer.Option(help="Address of /metrics and /healthz.")] = (
        "127.0.0.1"
    )

    def make_worker(self) -> Worker:
        """Make the worker; raises the errors of :class:`.Worker`."""
        from gatewise_cloud.models.backend_choice import backend_factory
        from gatewise_cloud.worker.worker import Worker

        backend = None
        if self.backend is not None:
            if self.provider != CPU:
                raise InputError(
                    "--provider is only for models that run in this process: give either "
                    "--provider or --backend"
                )
            backend = backend_factory(self.backend)
        settings = self
        if self.pool_file is not None:
            settings = replace(self, pool=_read_pool(self.pool_file))
        return Worker(self.bundles, self.broker, settings, backend=backend)


@with_options
def cloud(
    settings: CloudSettings,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document per line.")
    ] = False,
) -> None:
    """Serve the high-cost models of bundles to the devices of a broker.

    The command prints a line that begins with `ready:` once requests can arrive. It serves until
    SIGTERM or Ctrl-C, then answers the queued requests and prints its counters. If the broker
    grants shared subscriptions but does not deliver to them, it prints a warning and uses a plain
    subscription.

    Examples:

        gatewise cloud bundle --broker mqtt://127.0.0.1:1883
        gatewise cloud bundle --metrics-port 9100
        gatewise cloud bundle --backend python:my_models:predict_proba
        gatewise cloud bundle --provider cuda
        gatewise cloud --watch bundles/ --public-key factory.pub
        gatewise cloud bundle --keep kept
    """
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    logging.getLogger("gatewise_cloud").setLevel(logging.INFO)
    worker = settings.make_worker()

    def print_ready(port: int | None) -> None:
        _print_ready(worker, port, as_json=as_json)

    serve(worker, print_ready, metrics_port=settings.metrics_port, host=settings.metrics_host)
    counters = worker.counters
    print_line(_describe_counters(counters), counters, as_json=as_json)


def serve(
    worker: Worker,
    on_ready: Callable[[int | None], None],
    *,
    metrics_port: int | None = None,
    host: str = "127.0.0.1",
) -> None:
    """Serve in this process until SIGTERM or Ctrl-C; call `on_ready` with the metrics port."""
    from gatewise_cloud.service.metrics import worker_endpoints

    # by default a thread may run for 5 ms while others wait, which is longer than a request takes
    sys.setswitchinterval(0.0005)
    if metrics_port is None:
        worker.run(lambda _: on_ready(None))
    else:
        with worker_endpoints(worker, metrics_port, host=host) as endpoints:
            worker.run(lambda _: on_ready(endpoints.port))


def _read_pool(path: Path) -> str:
    try:
        return path.read_text("utf-8").strip()
    except (OSError, ValueError) as error:
        raise InputError(f"--pool-file {path} cannot be read: {error}") from None


def _print_ready(worker: Worker, port: int | None, *, as_json: bool) -> None:
    names = [" ".join(key) for key in worker.models]
    ready_text = f"model{'s' * (len(names) != 1)} {', '.join(names) or 'none yet'} on {worker.url}"
    if port is not None:
        ready_text += f", metrics on port {port}"
    document = {
        "ready": True,
        "models": names,
        "broker": worker.url,
        "subscription": worker.subscription,
        "metrics_port": port,
    }
    print_line(f"ready: {ready_text}", document, as_json=as_json)


def _describe_counters(counters: Mapping[str, Any]) -> str:
    phrases = [
        f"answered {counters['answered']} of {counters['received']} requests",
        f"{counters['instances']} instances in {counters['batches']} runs",
    ]
    problem_names = ("repeated", "duplicates", "expired", "unsent", "abandoned")
    phrases += [f"{name} {counters[name]}" for name in problem_names if counters[name]]
    for name in ("errors", "dead"):
        if counters[name]:
            label_texts = ", ".join(
                f"{label} {count}" for label, count in sorted(counters[name].items())
            )
            phrases.append(f"{name}: {label_texts}")
    return "stopped: " + "; ".join(phrases)
