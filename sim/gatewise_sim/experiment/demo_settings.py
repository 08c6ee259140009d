"""Settings of the demo."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer
from msgspec import Meta

from gatewise.documents import Amount, Share
from gatewise.settings import Settings, option_words
from gatewise_edge.link.endpoint import Endpoint
from gatewise_sim.fleet.link import PROFILES

#: Default bound on the loss of accuracy.
#:
#: It is not lower because the accuracy on 540 test rows is only known to about half a percent.
MAX_LOSS: Final = 0.005


class DemoSettings(Settings, frozen=True, kw_only=True):
    """Options of ``gatewise demo``."""

    dataset: Annotated[
        str,
        typer.Option(
            help="Data: digits, breast_cancer, wine, iris, or a .csv, .parquet or .npz file."
        ),
    ] = "digits"
    target: Annotated[
        str | None, typer.Option(help="Column of the label; by default target, label, class or y.")
    ] = None
    costs: Annotated[
        Path | None, typer.Option(help="File of feature prices: .toml or .csv; by default 1 each.")
    ] = None
    method: Annotated[
        str, typer.Option(help="Learning method: staged, adapt-gbrt or adapt-lin.")
    ] = "staged"
    devices: Annotated[
        int, Meta(ge=1, le=64), typer.Option(help="Number of devices; each is a process.")
    ] = 4
    workers: Annotated[
        int,
        Meta(ge=1, le=16),
        typer.Option(help="Number of cloud workers; several need mosquitto."),
    ] = 1
    instances: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        typer.Option(help="Number of test instances; by default all test rows."),
    ] = None
    broker: Annotated[
        str | None, typer.Option(help="URL of a running broker; by default one is started.")
    ] = None
    link: Annotated[
        str, typer.Option(help=f"Link between devices and broker: {', '.join(PROFILES)}.")
    ] = "wifi"
    budget: Annotated[
        Amount | None,
        typer.Option(help="Largest mean cost per instance; excludes the other goals."),
    ] = None
    max_loss: Annotated[
        Share | None, typer.Option(help="Largest loss of accuracy; by default 0.005.")
    ] = None
    offload_rate: Annotated[
        Share | None, typer.Option(help="Largest share of offloaded instances.")
    ] = None
    allow_missing: Annotated[
        bool, typer.Option("--allow-missing", help="Accept empty cells (NaN) as values.")
    ] = False
    device_kb: Annotated[
        int, Meta(ge=1), typer.Option(help="Memory for the stages on a device, in KB (staged).")
    ] = 64
    deadline_ms: Annotated[
        float, Meta(ge=1), typer.Option(help="Longest time to an answer, in ms.")
    ] = 2000.0
    seed: Annotated[int, Meta(ge=0), typer.Option(help="Seed of all randomness.")] = 0
    out: Annotated[Path, typer.Option(help="Folder for the report.")] = Path("demo-out")

    def command(self) -> str:
        """Make the command line that repeats the run, without the broker's password."""
        broker_text = {} if self.broker is None else {"broker": Endpoint(self.broker).url}
        options = option_words(
            self, always_written=("dataset", "method", "seed"), replacement_texts=broker_text
        )
        return " ".join(["gatewise demo", *options])
