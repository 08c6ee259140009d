"""Settings of the demo: the options of ``gatewise demo``, with their defaults."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer
from msgspec import Meta

from gatewise.documents import Amount, Share
from gatewise.settings import Settings, option_words
from gatewise_edge.link.broker_url import Endpoint
from gatewise_sim.fleet.link import PROFILES

MAX_LOSS: Final = 0.005
"""Accuracy that a demo gives up at most by default: data this small is noisy, and a
test of 540 rows knows an accuracy to half a percent only."""


class DemoSettings(Settings, frozen=True, kw_only=True):
    """Options of ``gatewise demo``."""

    dataset: Annotated[
        str,
        typer.Option(help="digits, breast_cancer, wine, iris; or a .csv, .parquet or .npz file."),
    ] = "digits"
    target: Annotated[str | None, typer.Option(help="Label column of the file.")] = None
    costs: Annotated[
        Path | None, typer.Option(help="Prices of the features, .toml or .csv; 1 each by default.")
    ] = None
    method: Annotated[str, typer.Option(help="Method: staged, adapt-gbrt or adapt-lin.")] = "staged"
    devices: Annotated[int, Meta(ge=1, le=64), typer.Option(help="Devices, a process each.")] = 4
    workers: Annotated[
        int, Meta(ge=1, le=16), typer.Option(help="Cloud workers; several need mosquitto.")
    ] = 1
    instances: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        typer.Option(help="Test instances; by default all held out."),
    ] = None
    broker: Annotated[
        str | None, typer.Option(help="URL of a broker that runs; else one is started.")
    ] = None
    link: Annotated[
        str, typer.Option(help=f"Link between devices and broker: {', '.join(PROFILES)}.")
    ] = "wifi"
    budget: Annotated[
        Amount | None, typer.Option(help="Mean cost per instance; at most one of three goals.")
    ] = None
    max_loss: Annotated[
        Share | None, typer.Option(help="Accuracy given up at most; 0.005 by default.")
    ] = None
    offload_rate: Annotated[
        Share | None, typer.Option(help="Share of instances offloaded at most.")
    ] = None
    allow_missing: Annotated[
        bool, typer.Option("--allow-missing", help="Take empty cells (NaN) as values.")
    ] = False
    device_kb: Annotated[
        int, Meta(ge=1), typer.Option(help="Room for the stages on a device, in KB (staged).")
    ] = 64
    deadline_ms: Annotated[
        float, Meta(ge=1), typer.Option(help="Deadline of each answer, in ms.")
    ] = 2000.0
    seed: Annotated[int, Meta(ge=0), typer.Option(help="Seed of all randomness.")] = 0
    out: Annotated[Path, typer.Option(help="Folder for the report.")] = Path("demo-out")

    def command(self) -> str:
        """Command line that repeats the run, without a password."""
        texts = {} if self.broker is None else {"broker": Endpoint(self.broker).url}
        words = option_words(self, always=("dataset", "method", "seed"), texts=texts)
        return " ".join(["gatewise demo", *words])
