"""Settings of the demo."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from msgspec import Meta

from gatewise.settings import Settings, option_words
from gatewise_sim.fleet.link import PROFILES


class DemoSettings(Settings, frozen=True, kw_only=True):
    """Options of ``gatewise demo``."""

    dataset: Annotated[str, typer.Option(help="Data: digits, breast_cancer, wine or iris.")] = (
        "digits"
    )
    method: Annotated[
        str, typer.Option(help="Learning method: staged, adapt-gbrt or adapt-lin.")
    ] = "staged"
    devices: Annotated[
        int, Meta(ge=1, le=64), typer.Option(help="Number of devices; each is a process.")
    ] = 4
    instances: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        typer.Option(help="Number of test instances; by default all test rows."),
    ] = None
    link: Annotated[
        str, typer.Option(help=f"Link between devices and broker: {', '.join(PROFILES)}.")
    ] = "wifi"
    seed: Annotated[int, Meta(ge=0), typer.Option(help="Seed of all randomness.")] = 0
    out: Annotated[Path, typer.Option(help="Folder for the report.")] = Path("demo-out")

    def command(self) -> str:
        """Make the command line that repeats the run."""
        options = option_words(self, always_written=("dataset", "method", "seed"))
        return " ".join(["gatewise demo", *options])
