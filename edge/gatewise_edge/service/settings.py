"""Settings of ``gatewise edge``, as one record."""

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
from gatewise_edge.link.offload_rules import Implausible
from gatewise_edge.sensors.signal_source import SignalOptions

_AtLeastOne = Annotated[int, Meta(ge=1)]
_Port = Annotated[int, Meta(ge=0, le=65535)]


class EdgeSettings(SignalOptions, frozen=True, kw_only=True):
    """Bundle, source of instances and destination of answers of a device."""

    bundle: Annotated[Path, typer.Argument(help="Bundle: a directory or a .gwb file.")]
    broker: Annotated[
        str | None,
        typer.Option(
            envvar="GATEWISE_BROKER",
            help="URL of the broker: mqtt(s)://[user:password@]host[:port]; without one, no cloud.",
        ),
    ] = None
    device: Annotated[
        str | None, typer.Option(help="Id of the device, unique in the fleet; by default random.")
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
            help="Source of samples, in place of --data: -, tcp://host:port, or a .wav, .npy or "
            ".csv file."
        ),
    ] = None
    block: Annotated[
        tuple[str, ...],
        typer.Option(
            metavar="NAME=MODULE:FUNCTION",
            help="Function of a block; bundles hold no code. Repeatable.",
        ),
    ] = ()
    deadline_ms: Annotated[Positive, typer.Option(help="Time for an answer, in ms.")] = 500.0
    policy: Annotated[
        str,
        typer.Option(
            help="Policy: system, edge-only (never offloads), cloud-only, module:function."
        ),
    ] = "system"
    resume: Annotated[
        Path | None, typer.Option(help="Output file of an interrupted run; its rows are skipped.")
    ] = None
    keep: Annotated[
        str | None, typer.Option(help="Columns that are passed on to the answers: id,timestamp.")
    ] = None
    out: Annotated[
        Path | None, typer.Option(help="File to append lines to; by default standard output.")
    ] = None
    publish: Annotated[str | None, typer.Option(help="Topic to publish the lines on as well.")] = (
        None
    )
    home_assistant: Annotated[
        str | None,
        typer.Option(metavar="PREFIX", help="Discovery prefix of Home Assistant: homeassistant."),
    ] = None
    limit: Annotated[_AtLeastOne | None, typer.Option(help="Number of instances to end after.")] = (
        None
    )
    interval: Annotated[
        Amount, typer.Option(help="Shortest time from one instance to the next, in s.")
    ] = 0.0
    parallel: Annotated[
        _AtLeastOne, typer.Option(help="Instances under way at a time; lines come as answers do.")
    ] = 1
    max_offloads: Annotated[
        str | None, typer.Option(help="Bound on offloads over time: 60/h, 5/min, 1/s, 1000/d.")
    ] = None
    provider: Annotated[
        str, typer.Option(help="onnxruntime's execution provider for stages that are networks.")
    ] = CPU
    audit: Annotated[
        float | None, typer.Option(help="Share of own answers that workers check: 0.02.")
    ] = None
    keep_unsent: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Keeps instances that the cloud did not answer, to send later."
        ),
    ] = None
    corrections: Annotated[
        str | None, typer.Option(help="Topic to publish the late answers to them on.")
    ] = None
    private: Annotated[
        bool, typer.Option("--private", help="Forbid workers to store the instances.")
    ] = False
    public_key: Annotated[
        Path | None, typer.Option(help="Key that must have signed the bundle: NAME.pub.")
    ] = None
    store: Annotated[
        Path | None, typer.Option(help="Folder of the versions taken over the air.")
    ] = None
    update_host: Annotated[
        tuple[str, ...],
        typer.Option(help="Repository of updates: host[:port] or URL; repeated: its mirrors."),
    ] = ()
    trust: Annotated[
        Path | None, typer.Option(help="Root metadata of the repository, for --update-host.")
    ] = None
    metrics_port: Annotated[
        _Port | None, typer.Option(help="Port of /metrics and /healthz; 0: a free one.")
    ] = None
    ca_file: Annotated[
        Path | None, typer.Option(help="Certificates of the authorities trusted for mqtts://.")
    ] = None
    cert_file: Annotated[Path | None, typer.Option(help="This device's certificate.")] = None
    key_file: Annotated[Path | None, typer.Option(help="Private key of that certificate.")] = None
    keep_unsent_bytes: Annotated[
        str, FileOption("Bytes of unsent instances; above it the oldest are dropped.")
    ] = "10MB"
    keep_unsent_days: Annotated[
        Positive, FileOption("Days after which an unsent instance is dropped.")
    ] = 7.0
    smooth: Annotated[
        str | None,
        FileOption("Filter of labels: majority:5, the most frequent label of the last 5 windows."),
    ] = None
    implausible: Annotated[
        Implausible,
        FileOption(
            "Handling of instances with values far outside the training range: answer, offload or "
            "ignore."
        ),
    ] = "answer"
    runner: Annotated[
        Runner, FileOption("What runs graphs: onnxruntime, numpy (less memory, same bits), auto.")
    ] = "auto"
    update_interval: Annotated[
        Annotated[float, Meta(ge=1)] | None,
        FileOption("Mean time between two checks for updates, in s; by default 3600."),
    ] = None
    update_ca_file: Annotated[
        Path | None,
        FileOption("Authorities trusted for --update-host, in addition to the system's."),
    ] = None
    update_spread: Annotated[
        Amount, FileOption("Longest wait before an announced check, in s.")
    ] = 0.0
    metrics_host: Annotated[str, FileOption("Address of the metrics.")] = "127.0.0.1"
    connect_timeout: Annotated[
        Positive, FileOption("Longest wait for the broker at the start, in s.")
    ] = 5.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if ":" not in self.policy and self.policy not in get_args(Policy):
            names = ", ".join(get_args(Policy))
            raise InputError(f"--policy {self.policy}: give {names} or module:function")
        if self.broker is None:
            self._refuse_options_of_a_broker()
        if self.home_assistant is not None and self.device is None:
            raise InputError("--home-assistant needs --device: a lasting id, not one per start")
        if self.corrections is not None and self.keep_unsent is None:
            raise InputError("--corrections needs --keep-unsent: late answers are to its instances")
        if self.update_host and (self.store is None or self.trust is None):
            missing = "--store" if self.store is None else "--trust"
            raise InputError(f"--update-host needs {missing}")
        update_settings = (self.trust, self.update_interval, self.update_ca_file)
        if not self.update_host and (any(update_settings) or self.update_spread):
            raise InputError("--trust and the update_... settings need --update-host")
        if self.smooth is not None and self.parallel > 1:
            raise InputError("smooth needs answers in order: leave --parallel at 1")
        if self.signal is None:
            for field in msgspec.structs.fields(SignalOptions):
                if getattr(self, field.name) != field.default:
                    raise InputError(f"{field.name} is for --signal")
        if self.signal is not None and (self.data != "-" or self.keep is not None):
            raise InputError("--data and --keep are for rows; --signal takes their place")

    def _refuse_options_of_a_broker(self) -> None:
        if self.publish is not None:
            raise InputError("--publish needs --broker: the lines go to a topic of it")
        if self.keep_unsent is not None:
            raise InputError("--keep-unsent needs --broker: its instances are sent later")
        if self.home_assistant is not None:
            raise InputError("--home-assistant needs --broker: the one of Home Assistant")
        if any((self.ca_file, self.cert_file, self.key_file)):
            raise InputError("--ca-file, --cert-file and --key-file are for --broker")
