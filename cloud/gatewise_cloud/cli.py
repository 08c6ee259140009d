"""``gatewise cloud`` and ``gatewise broker``."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gatewise_cloud._signals import until_interrupted
from gatewise_training.console import note, plain

if TYPE_CHECKING:
    from gatewise_cloud.worker import Worker

__all__ = ["broker", "cloud", "commands"]

_Json = Annotated[bool, typer.Option("--json", help="One JSON document a line.")]


def cloud(
    bundles: Annotated[
        list[Path], typer.Argument(metavar="BUNDLE...", help="Bundles whose cloud model to serve.")
    ],
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
    queue: Annotated[int, typer.Option(min=1, help="Requests queued at most; then: busy.")] = 1024,
    max_batch: Annotated[int, typer.Option(min=1, help="Instances in one run at most.")] = 16,
    threads: Annotated[int, typer.Option(min=1, help="Threads within one run.")] = 1,
    ca_file: Annotated[Path | None, typer.Option(help="Authorities trusted for TLS.")] = None,
    cert_file: Annotated[Path | None, typer.Option(help="This worker's certificate.")] = None,
    key_file: Annotated[Path | None, typer.Option(help="Its key.")] = None,
    as_json: _Json = False,
) -> None:
    """Serve the high-cost models of bundles to the devices of a broker.

    Prints a line that begins with `ready:` once requests can come, serves until SIGTERM or
    Ctrl-C, answers what is queued, and prints its counters. On a broker that grants shared
    subscriptions but does not serve them, it warns and uses a plain one.

      gatewise cloud bundle --broker mqtt://127.0.0.1:1883
    """
    from gatewise_cloud.worker import Worker

    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    worker = Worker(
        bundles,
        broker,
        pool=pool,
        shared=shared,
        queue=queue,
        max_batch=max_batch,
        threads=threads,
        ca_file=ca_file,
        cert_file=cert_file,
        key_file=key_file,
    )

    def ready(worker: Worker) -> None:
        names = [str(model) for model in worker.models.values()]
        _say(
            f"ready: model{'s' * (len(names) > 1)} {', '.join(names)} on {worker.url}",
            {
                "ready": True,
                "models": names,
                "broker": worker.url,
                "subscription": worker.subscription,
            },
            as_json=as_json,
        )

    worker.run(ready)
    counters = worker.counters
    _say(_summary(counters), counters, as_json=as_json)


def broker(
    port: Annotated[int, typer.Option(min=0, max=65535, help="TCP port; 0: a free one.")] = 1883,
    host: Annotated[str, typer.Option(help="A loopback address.")] = "127.0.0.1",
    embedded: Annotated[
        bool | None,
        typer.Option(
            "--embedded/--mosquitto",
            help="Which one; without a word mosquitto where it is installed.",
        ),
    ] = None,
    as_json: _Json = False,
) -> None:
    """Run an MQTT broker on this machine, for trying out: everyone on it may enter.

    Prints a line that begins with `ready:` and says which broker it is; runs until SIGTERM or
    Ctrl-C. The embedded one does not serve shared subscriptions: run one worker on it, with
    --plain-subscription.

      gatewise broker --port 1883
    """
    from gatewise_cloud.broker import Broker, EmbeddedBroker, MosquittoBroker, find_mosquitto
    from gatewise_cloud.errors import BrokerError

    if embedded is None:
        embedded = find_mosquitto() is None
    start: Callable[..., Broker] = EmbeddedBroker if embedded else MosquittoBroker
    with until_interrupted(), start(port, host=host) as running:
        if not running.shared_subscriptions:
            note(
                "note: the embedded broker ignores shared subscriptions: "
                f"run one worker, gatewise cloud BUNDLE --broker {running.url} --plain-subscription"
            )
        _say(
            f"ready: {running.kind} broker on {running.url}",
            {
                "ready": True,
                "kind": running.kind,
                "url": running.url,
                "shared_subscriptions": running.shared_subscriptions,
            },
            as_json=as_json,
        )
        while running.alive:
            threading.Event().wait(0.2)
        raise BrokerError(host, running.port, f"the {running.kind} broker ended by itself")


def _say(text: str, document: Mapping[str, Any], *, as_json: bool) -> None:
    print(json.dumps(plain(document)) if as_json else text, flush=True)


def _summary(counters: Mapping[str, Any]) -> str:
    parts = [f"answered {counters['answered']} of {counters['received']} requests"]
    parts.append(f"{counters['instances']} instances in {counters['batches']} runs")
    rare = ("repeated", "duplicates", "expired", "unsent", "abandoned")
    parts += [f"{name} {counters[name]}" for name in rare if counters[name]]
    for name in ("errors", "dead"):
        if counters[name]:
            labels = ", ".join(f"{label} {n}" for label, n in sorted(counters[name].items()))
            parts.append(f"{name}: {labels}")
    return "stopped: " + "; ".join(parts)


commands = {"cloud": cloud, "broker": broker}
