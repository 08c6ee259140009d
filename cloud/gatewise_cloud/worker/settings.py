"""Settings of a worker, which are arguments of :class:`.Worker` and options of its command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from msgspec import Meta

from gatewise.documents import Amount, Positive
from gatewise.graph_loading import MAX_LOAD_LIMITS
from gatewise.imports import CPU
from gatewise.settings import FileOption, Settings
from gatewise_edge.link.endpoint import Endpoint
from gatewise_export.commands import options

_AtLeastOne = Annotated[int, Meta(ge=1)]


class WorkerSettings(Settings, frozen=True):
    """How a worker subscribes, queues and runs requests, and which bundles it trusts."""

    broker: Annotated[
        str,
        typer.Option(
            envvar="GATEWISE_BROKER",
            help="URL of the broker: mqtt:// or mqtts://[user:password@]host[:port].",
        ),
    ] = "mqtt://127.0.0.1:1883"
    shared: Annotated[
        bool,
        typer.Option(
            "--shared/--plain-subscription",
            help="Share the requests among the workers of the pool, or answer all requests.",
        ),
    ] = True
    pool: Annotated[str, typer.Option(help="Name of the pool of workers.")] = "gw"
    queue: Annotated[
        _AtLeastOne, typer.Option(help="Largest number of queued requests; the rest is refused.")
    ] = 1024
    max_batch: Annotated[
        _AtLeastOne,
        typer.Option(help="Largest number of instances in a run; a larger request runs alone."),
    ] = 16
    wait_ms: Annotated[
        Amount, typer.Option(help="Longest wait of a request for others to join its run, in ms.")
    ] = 0.0
    parallel: Annotated[
        _AtLeastOne,
        typer.Option(help="Number of parallel runs; several are faster with a model server."),
    ] = 1
    provider: Annotated[
        str,
        typer.Option(help="Execution provider of onnxruntime: cpu, cuda, tensorrt, openvino, ..."),
    ] = CPU
    watch: Annotated[
        Path | None, typer.Option(help="Folder to watch; its bundles are served while they exist.")
    ] = None
    public_key: Annotated[
        Path | None,
        typer.Option(help="PEM file of the public key that must have signed each bundle."),
    ] = None
    keep: Annotated[
        Path | None,
        typer.Option(
            help="Folder for answered instances, except those of private devices; at most 1 GB and "
            "30 days by default."
        ),
    ] = None
    ca_file: options.CaFile = None
    cert_file: Annotated[Path | None, typer.Option(help="Certificate of the worker.")] = None
    key_file: options.KeyFile = None
    connections: Annotated[
        _AtLeastOne, FileOption("Number of connections, for brokers that limit each of them.")
    ] = 1
    keep_bytes: Annotated[
        str, FileOption("Largest size of --keep; beyond it, random instances are deleted.")
    ] = "1GB"
    keep_days: Annotated[Positive, FileOption("Days until instances in --keep are deleted.")] = 30.0
    keep_seconds: Annotated[
        Positive, FileOption("Longest time until answered instances are on disk, in s.")
    ] = 300.0
    threads: Annotated[_AtLeastOne, FileOption("Number of threads of one run.")] = 1
    load_bytes: Annotated[
        Amount, FileOption("Largest memory that loading a graph may take, in bytes.")
    ] = MAX_LOAD_LIMITS.bytes
    load_seconds: Annotated[
        Amount, FileOption("Longest time that loading a graph may take, in s.")
    ] = MAX_LOAD_LIMITS.seconds
    watch_seconds: Annotated[Positive, FileOption("Time between two scans of --watch, in s.")] = 2.0
    drain_seconds: Annotated[
        Amount, FileOption("Longest time to answer queued requests before the worker ends, in s.")
    ] = 10.0

    def make_endpoint(self) -> Endpoint:
        """Make the broker's endpoint; InputError if the URL or a file is not valid."""
        return Endpoint(
            self.broker, ca_file=self.ca_file, cert_file=self.cert_file, key_file=self.key_file
        )
