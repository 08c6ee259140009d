"""Settings of ``gatewise edge``: one record that the command line and a settings file fill."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, get_args

import msgspec
import typer
from msgspec import Meta

from gatewise.documents import Amount, Positive
from gatewise.errors import InputError
from gatewise.imports import CPU
from gatewise.settings import FileOption
from gatewise_edge.device.answer import Policy
from gatewise_edge.device.stages import Runner
from gatewise_edge.link.offload_rules import ImplausibleHandling
from gatewise_edge.sensors.signal_source import SignalOptions
from gatewise_export.commands import options

_AtLeastOne = Annotated[int, Meta(ge=1)]
_Port = Annotated[int, Meta(ge=0, le=65535)]


class EdgeSettings(SignalOptions, frozen=True, kw_only=True):
    """Options of ``gatewise edge``: bundle, broker, instances, answers, updates and metrics."""

    bundle: options.BundlePath
    broker: Annotated[
        str | None,
        typer.Option(
            envvar="GATEWISE_BROKER",
            help="URL of the broker: mqtt(s)://[user:password@]host[:port]; by default no cloud.",
        ),
    ] = None
    device: Annotated[
        str | None,
        typer.Option(
            help="Id of the device, unique in the fleet; by default the name in a certificate of "
            "gatewise broker, or random."
        ),
    ] = None
    data: Annotated[
        str,
        typer.Option(
            help="A .csv, .parquet, .npy or .npz file, module:function, or - for JSON lines."
        ),
    ] = "-"
    signal: Annotated[
        str | None,
        typer.Option(
            help="Source of a signal's samples, instead of --data: -, tcp://host:port, a pipe or a "
            ".wav, .flac, .npy or .csv file."
        ),
    ] = None
    block: options.BlockFunctionsSetting = ()
    deadline_ms: Annotated[Positive, typer.Option(help="Longest time to an answer, in ms.")] = 500.0
    policy: Annotated[
        str,
        typer.Option(help="Policy: system, edge-only, cloud-only or module:function."),
    ] = "system"
    resume: Annotated[
        Path | None,
        typer.Option(help="Output file of an interrupted run; rows answered in it are skipped."),
    ] = None
    keep: Annotated[
        str | None, typer.Option(help="Columns to copy to the answers, such as id,timestamp.")
    ] = None
    out: Annotated[
        Path | None, typer.Option(help="File to append answers to; by default standard output.")
    ] = None
    publish: Annotated[
        str | None, typer.Option(help="Topic on which to publish the answers as well.")
    ] = None
    home_assistant: Annotated[
        str | None,
        typer.Option(
            metavar="PREFIX", help="Prefix of the device's discovery topics, such as homeassistant."
        ),
    ] = None
    limit: Annotated[
        _AtLeastOne | None, typer.Option(help="Number of instances to answer; by default all.")
    ] = None
    interval: Annotated[
        Amount, typer.Option(help="Shortest time from one instance to the next, in s.")
    ] = 0.0
    parallel: Annotated[
        _AtLeastOne,
        typer.Option(help="Number of instances to answer at a time; answers may change order."),
    ] = 1
    max_offloads: Annotated[
        str | None, typer.Option(help="Largest rate of offloads: 60/h, 5/min, 1/s or 1000/d.")
    ] = None
    audit: Annotated[
        float | None,
        typer.Option(help="Share of the device's own answers to audit, such as 0.02."),
    ] = None
    keep_unsent: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="File for instances that the cloud did not answer; they are sent again later.",
        ),
    ] = None
    public_key: Annotated[
        Path | None,
        typer.Option(help="PEM file of the public key that must have signed each bundle."),
    ] = None
    store: Annotated[Path | None, typer.Option(help="Folder of the downloaded releases.")] = None
    update_host: Annotated[
        tuple[str, ...],
        typer.Option(
            help="Repository of releases: host[:port] or URL. Repeatable, for its mirrors."
        ),
    ] = ()
    trust: Annotated[
        Path | None, typer.Option(help="Root metadata of the repository, for --update-host.")
    ] = None
    metrics_port: Annotated[
        _Port | None, typer.Option(help="Port of /metrics and /healthz; 0 selects a free port.")
    ] = None
    ca_file: options.CaFile = None
    cert_file: Annotated[Path | None, typer.Option(help="Certificate of the device.")] = None
    key_file: options.KeyFile = None
    keep_unsent_bytes: Annotated[
        str, FileOption("Largest size of --keep-unsent; beyond it a random half is dropped.")
    ] = "10MB"
    keep_unsent_days: Annotated[
        Positive, FileOption("Longest time that an unsent instance is stored, in days.")
    ] = 7.0
    corrections: Annotated[
        str | None, FileOption("Topic for the late answers to --keep-unsent's instances.")
    ] = None
    private: Annotated[bool, FileOption("Whether workers must not store the instances.")] = False
    smooth: Annotated[
        str | None,
        FileOption("Filter of labels: majority:5, the most frequent label of the last 5 windows."),
    ] = None
    implausible: Annotated[
        ImplausibleHandling,
        FileOption(
            "Handling of instances with values far outside the training range: answer, offload or "
            "ignore."
        ),
    ] = "answer"
    runner: Annotated[
        Runner,
        FileOption("Runner of graphs: onnxruntime, numpy (less memory, same answers) or auto."),
    ] = "auto"
    provider: Annotated[
        str, FileOption("Execution provider of onnxruntime for stages that are networks.")
    ] = CPU
    update_interval: Annotated[
        Annotated[float, Meta(ge=1)] | None,
        FileOption("Mean time between two checks for updates, in s; by default 3600."),
    ] = None
    update_ca_file: Annotated[
        Path | None,
        FileOption("Authorities to trust for --update-host, in addition to the system's."),
    ] = None
    update_spread: Annotated[
        Amount, FileOption("Longest random wait before an announced check, in s.")
    ] = 0.0
    metrics_host: Annotated[str, FileOption("Address on which to serve the metrics.")] = "127.0.0.1"
    connect_timeout: Annotated[
        Positive, FileOption("Longest wait for the broker at the start, in s.")
    ] = 5.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if ":" not in self.policy and self.policy not in get_args(Policy):
            names = ", ".join(get_args(Policy))
            raise InputError(f"--policy {self.policy}: give {names} or module:function")
        if self.broker is None:
            self._refuse_broker_options()
        if self.home_assistant is not None and self.device is None:
            raise InputError("--home-assistant needs --device: an id that stays over restarts")
        if self.corrections is not None and self.keep_unsent is None:
            raise InputError("corrections needs --keep-unsent: only its instances get late answers")
        if self.update_host and (self.store is None or self.trust is None):
            missing_option = "--store" if self.store is None else "--trust"
            raise InputError(f"--update-host needs {missing_option}")
        update_settings = (self.trust, self.update_interval, self.update_ca_file)
        if not self.update_host and (any(update_settings) or self.update_spread):
            raise InputError("--trust and the update_... settings need --update-host")
        if self.smooth is not None and self.parallel > 1:
            raise InputError("smooth needs answers in order: leave --parallel at 1")
        if self.signal is None:
            for field in msgspec.structs.fields(SignalOptions):
                if getattr(self, field.name) != field.default:
                    raise InputError(f"{field.name} needs --signal")
        if self.signal is not None and (self.data != "-" or self.keep is not None):
            raise InputError("--data and --keep are for rows: they cannot be used with --signal")

    def _refuse_broker_options(self) -> None:
        if self.publish is not None:
            raise InputError("--publish needs --broker, on which the answers are published")
        if self.keep_unsent is not None:
            raise InputError("--keep-unsent needs --broker, to which its instances are sent later")
        if self.home_assistant is not None:
            raise InputError("--home-assistant needs --broker, the broker of Home Assistant")
        if any((self.ca_file, self.cert_file, self.key_file)):
            raise InputError("--ca-file, --cert-file and --key-file need --broker")
