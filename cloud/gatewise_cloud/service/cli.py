"""``gatewise cloud``."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gatewise.console import print_line
from gatewise.errors import InputError

if TYPE_CHECKING:
    from gatewise_cloud.worker.worker import Worker


def cloud(
    bundles: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[BUNDLE...]", help="Bundles whose cloud model to serve."),
    ] = None,
    broker: Annotated[
        str, typer.Option(help="URL of the broker: mqtt:// or mqtts://[user:password@]host[:port].")
    ] = "mqtt://127.0.0.1:1883",
    shared: Annotated[
        bool,
        typer.Option(
            "--shared/--plain-subscription",
            help="Divide the requests among the workers of the pool, or answer all of them.",
        ),
    ] = True,
    pool: Annotated[str, typer.Option(help="Name of the pool of workers.")] = "gw",
    pool_file: Annotated[
        Path | None, typer.Option(help="A file with that name: clients/pool of `broker init`.")
    ] = None,
    queue: Annotated[int, typer.Option(min=1, help="Requests queued at most; then: busy.")] = 1024,
    max_batch: Annotated[int, typer.Option(min=1, help="Instances in one run at most.")] = 16,
    wait_ms: Annotated[
        float, typer.Option(min=0, help="How long a request waits for others to share its run.")
    ] = 0.0,
    threads: Annotated[int, typer.Option(min=1, help="Threads within one run.")] = 1,
    backend: Annotated[
        str | None,
        typer.Option(
            metavar="python:MODULE:ATTRIBUTE|URL",
            help="What runs the models: a Python function, object or class by its import path, or "
            "a server of the Open Inference Protocol, http://host:8080/v2/models/NAME. {name} and "
            "{version} are the bundle's.",
        ),
    ] = None,
    backend_binary: Annotated[
        bool, typer.Option(help="Send it raw numbers (the protocol's extension).")
    ] = False,
    parallel: Annotated[
        int, typer.Option(min=1, help="Batches at a time; more pay with --backend.")
    ] = 1,
    watch: Annotated[
        Path | None, typer.Option(help="A folder: serve the bundles that come and go there.")
    ] = None,
    public_key: Annotated[
        Path | None, typer.Option(help="Serve only bundles signed by its owner.")
    ] = None,
    metrics_port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="Serve /metrics and /healthz there; 0: a free port."),
    ] = None,
    metrics_host: Annotated[str, typer.Option(help="Address of the metrics.")] = "127.0.0.1",
    drain_seconds: Annotated[
        float, typer.Option(min=0, help="How long what is queued is answered at the end.")
    ] = 10.0,
    ca_file: Annotated[Path | None, typer.Option(help="Authorities trusted for TLS.")] = None,
    cert_file: Annotated[
        Path | None,
        typer.Option(help="This worker's certificate."),
    ] = None,
    key_file: Annotated[Path | None, typer.Option(help="Its key.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document a line.")] = False,
) -> None:
    """Serve the high-cost models of bundles to the devices of a broker.

    Prints a line that begins with `ready:` once requests can come, serves until SIGTERM or
    Ctrl-C, answers what is queued, and prints its counters. On a broker that grants shared
    subscriptions but does not serve them, it warns and uses a plain one.

      gatewise cloud bundle --broker mqtt://127.0.0.1:1883
      gatewise cloud bundle --metrics-port 9100
      gatewise cloud bundle --backend python:my_models:predict_proba
      gatewise cloud --watch bundles/ --public-key factory.pub
    """
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    logging.getLogger("gatewise_cloud").setLevel(logging.INFO)
    if backend_binary and "/v2/models/" not in (backend or ""):
        raise InputError("--backend-binary is for a --backend http://host:8080/v2/models/NAME")
    options = {
        "bundles": bundles or [],
        "broker": broker,
        "pool": pool if pool_file is None else _read_pool(pool_file),
        "shared": shared,
        "queue": queue,
        "max_batch": max_batch,
        "wait_ms": wait_ms,
        "threads": threads,
        "parallel": parallel,
        "backend": None if backend is None else {"url": backend, "binary": backend_binary},
        "watch": watch,
        "public_key": public_key,
        "drain_seconds": drain_seconds,
        "ca_file": ca_file,
        "cert_file": cert_file,
        "key_file": key_file,
    }
    _one(options, metrics_port, metrics_host, as_json=as_json)


def _one(
    options: dict[str, Any], metrics_port: int | None, metrics_host: str, *, as_json: bool
) -> None:
    from gatewise_cloud.service.worker_process import serve

    def ready(worker: Worker, port: int | None) -> None:
        _print_ready(worker.url, worker.counters, port, as_json=as_json)

    counters = serve(options, metrics_port=metrics_port, metrics_host=metrics_host, ready=ready)
    print_line(_summary(counters), counters, as_json=as_json)


def _read_pool(path: Path) -> str:
    try:
        return path.read_text("utf-8").strip()
    except (OSError, ValueError) as error:
        raise InputError(f"--pool-file {path} cannot be read: {error}") from None


def _print_ready(
    url: str,
    counters: Mapping[str, Any],
    port: int | None,
    *,
    as_json: bool,
) -> None:
    names = [f"{entry['name']} {entry['version']}" for entry in counters["models"]]
    parts = [f"model{'s' * (len(names) != 1)} {', '.join(names) or 'none yet'} on {url}"]
    if port is not None:
        parts.append(f"metrics on port {port}")
    document = {
        "ready": True,
        "models": names,
        "broker": url,
        "subscription": counters["subscription"],
        "metrics_port": port,
    }
    print_line(f"ready: {', '.join(parts)}", document, as_json=as_json)


def _summary(counters: Mapping[str, Any]) -> str:
    def count(name: str) -> int:
        return int(counters.get(name, 0))

    parts = [f"answered {count('answered')} of {count('received')} requests"]
    parts.append(f"{count('instances')} instances in {count('batches')} runs")
    rare = ("repeated", "duplicates", "expired", "unsent", "abandoned")
    parts += [f"{name} {count(name)}" for name in rare if count(name)]
    for name in ("errors", "dead"):
        if counters.get(name):
            labels = ", ".join(f"{label} {n}" for label, n in sorted(counters[name].items()))
            parts.append(f"{name.replace('_', ' ')}: {labels}")
    return "stopped: " + "; ".join(parts)


commands = {"cloud": cloud}
