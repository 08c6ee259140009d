"""The sub-command ``gatewise edge``: rows in, one JSON line an answer out."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, NoReturn

import numpy as np
import typer

from gatewise_edge.answer import Answer
from gatewise_edge.device import Device
from gatewise_edge.errors import SensorError
from gatewise_edge.table import read_csv, read_json_line
from gatewise_export.bundle import Bundle
from gatewise_training.console import note, plain
from gatewise_training.errors import InputError

__all__ = ["commands", "edge"]


class _Terminated(BaseException):
    """SIGTERM came: end as asked."""


def edge(
    bundle: Annotated[Path, typer.Argument(help="The bundle: a directory or a .gwb file.")],
    broker: Annotated[
        str | None,
        typer.Option(help="mqtt://[user:password@]host[:port] or mqtts://...; without: no cloud."),
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="The device's id, unique in the fleet; random if left out.")
    ] = None,
    data: Annotated[
        str, typer.Option(help="A CSV file with a header, or - for JSON lines on standard input.")
    ] = "-",
    deadline_ms: Annotated[float, typer.Option(help="Time for an answer, in ms.")] = 500.0,
    policy: Annotated[
        str, typer.Option(help="system, edge-only (never offload) or cloud-only (always).")
    ] = "system",
    limit: Annotated[int | None, typer.Option(min=1, help="End after so many instances.")] = None,
    connect_timeout: Annotated[
        float, typer.Option(help="How long to wait for the broker at the start, in seconds.")
    ] = 5.0,
    ca_file: Annotated[
        Path | None, typer.Option(help="Certificates of the authorities trusted for mqtts://.")
    ] = None,
    cert_file: Annotated[Path | None, typer.Option(help="This device's certificate.")] = None,
    key_file: Annotated[Path | None, typer.Option(help="Its key.")] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="End with the summary as a JSON line on standard output.")
    ] = False,
) -> None:
    """Run a device: classify instances, each before its deadline, and print one JSON line each.

    Instances that the bundle's stages are not sure of go to the cloud over MQTT. If no answer
    is there in time, or there is no broker, the last stage's answer is given: route "fallback".

    Example:

        gatewise edge bundle --broker mqtt://localhost --device pi-1 --data rows.csv
    """
    opened = Bundle.open(bundle)
    names = opened.manifest.feature_names
    instances = _instances(data, names)
    link = None
    if broker is not None:
        from gatewise_edge.mqtt import MqttLink

        link = MqttLink(
            broker, device=device, ca_file=ca_file, cert_file=cert_file, key_file=key_file
        )
    with _sigterm_ends() as ended:
        runtime = Device(
            opened,
            link=link,
            deadline_ms=deadline_ms,
            policy=policy,  # type: ignore[arg-type]  # Device checks it
        )
        tally = _Tally()
        with runtime:
            if link is not None:
                link.connect(connect_timeout)
                note(f"device {link.device} at {link.url}")
            try:
                _serve(runtime, instances, limit, tally)
            finally:
                _close_the_books(tally.summary() | {"counters": runtime.counters}, as_json)
    if tally.errors and not ended:
        raise typer.Exit(1)


commands: dict[str, Callable[..., None]] = {"edge": edge}


def _instances(data: str, names: tuple[str, ...]) -> Iterator[Any]:
    """Give instances one by one; a line that cannot be read as its error."""
    if data == "-":
        return _lines(names)
    if Path(data).suffix.lower() != ".csv":
        raise InputError(f"--data {data}: give a .csv file, or - for JSON lines")
    rows, ignored = read_csv(data, names)
    if ignored:
        note(f"{data}: columns that are no features are left out: {', '.join(ignored)}")
    return iter(rows)


def _lines(names: tuple[str, ...]) -> Iterator[Any]:
    with open(0, encoding="utf-8", errors="replace", closefd=False) as standard_input:
        for line in standard_input:
            if line.strip():
                try:
                    yield read_json_line(line, names)
                except InputError as error:
                    yield error


def _serve(device: Device, instances: Iterator[Any], limit: int | None, tally: _Tally) -> None:
    for number, instance in enumerate(islice(instances, limit)):
        try:
            if isinstance(instance, InputError):
                raise instance
            answer = device.answer(instance)
        except (SensorError, InputError) as error:
            tally.errors += 1
            told = {"row": number, "error": str(error)}
        else:
            tally.take(answer)
            told = {"row": number, **_as_dict(answer)}
        try:
            _print(told)
        except BrokenPipeError:
            # Whoever read the answers has gone; keep Python from complaining at exit, too.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return


def _as_dict(answer: Answer) -> dict[str, Any]:
    return {
        "label": answer.label,
        "route": answer.route,
        "reason": answer.reason,
        "stage": answer.stage,
        "cost": round(answer.cost, 9),
        "latency_ms": round(answer.latency_ms, 3),
        "acquired": len(answer.acquired),
        "probabilities": [round(p, 6) for p in answer.probabilities.tolist()],
    }


def _print(document: dict[str, Any]) -> None:
    print(json.dumps(plain(document)), flush=True)


class _Tally:
    """What a run adds up to."""

    def __init__(self) -> None:
        self.routes: Counter[str] = Counter()
        self.errors = 0
        self._cost = 0.0
        self._count = 0
        # The latest: a device may run for years.
        self._latencies: deque[float] = deque(maxlen=100_000)

    def take(self, answer: Answer) -> None:
        self.routes[answer.route] += 1
        self._count += 1
        self._cost += answer.cost
        self._latencies.append(answer.latency_ms)

    def summary(self) -> dict[str, Any]:
        n = self._count
        quantiles = np.quantile(np.array(self._latencies), [0.5, 0.95, 0.99]) if n else [None] * 3
        return {
            "instances": n + self.errors,
            "answers": {route: self.routes[route] for route in ("edge", "cloud", "fallback")},
            "errors": self.errors,
            "mean_cost": self._cost / n if n else None,
            "latency_ms": dict(zip(("p50", "p95", "p99"), quantiles, strict=True)),
        }


def _in_words(summary: dict[str, Any]) -> str:
    routes = ", ".join(f"{count} {route}" for route, count in summary["answers"].items())
    text = f"{summary['instances']} instances: {routes}, {summary['errors']} errors"
    if summary["mean_cost"] is None:
        return text
    latency = summary["latency_ms"]
    return (
        f"{text}; mean cost {summary['mean_cost']:.4g}; "
        f"latency p50 {latency['p50']:.2f} ms, p95 {latency['p95']:.2f} ms"
    )


def _close_the_books(summary: dict[str, Any], as_json: bool) -> None:
    if as_json:
        _print({"summary": summary})
    else:
        note(_in_words(summary))


@contextmanager
def _sigterm_ends() -> Iterator[list[str]]:
    """End the block on SIGTERM in good order, as an exception: the link says goodbye."""
    ended: list[str] = []

    def end(*_: object) -> NoReturn:
        raise _Terminated

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield ended
    except _Terminated:
        ended.append("SIGTERM")
    finally:
        signal.signal(signal.SIGTERM, before)
