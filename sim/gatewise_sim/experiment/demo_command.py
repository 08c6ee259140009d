"""``gatewise demo``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gatewise_sim.fleet.network.profiles import PROFILES
from gatewise_sim.signal_handling import exit_on_termination


def demo(
    dataset: Annotated[
        str,
        typer.Option(help="digits, breast_cancer, wine, iris; or a .csv, .parquet or .npz file."),
    ] = "digits",
    target: Annotated[str | None, typer.Option(help="The file's label column.")] = None,
    costs: Annotated[
        Path | None, typer.Option(help="Feature prices, .toml or .csv; 1 each by default.")
    ] = None,
    method: Annotated[str, typer.Option(help="staged, adapt-gbrt or adapt-lin.")] = "staged",
    devices: Annotated[int, typer.Option(help="Edge devices.", min=1, max=64)] = 4,
    workers: Annotated[
        int, typer.Option(help="Cloud workers; several need mosquitto.", min=1, max=16)
    ] = 1,
    instances: Annotated[
        int | None, typer.Option(help="Test instances to route; all held out by default.")
    ] = None,
    broker: Annotated[
        str | None,
        typer.Option(help="URL of a running broker; else mosquitto, or an embedded one."),
    ] = None,
    link: Annotated[
        str, typer.Option(help=f"Between devices and broker: {', '.join(PROFILES)}.")
    ] = "wifi",
    budget: Annotated[float | None, typer.Option(help="Mean cost per instance.")] = None,
    max_loss: Annotated[
        float | None, typer.Option(help="Accuracy to give up at most; 0.005 by default.")
    ] = None,
    offload_rate: Annotated[float | None, typer.Option(help="Share to offload at most.")] = None,
    allow_missing: Annotated[
        bool, typer.Option("--allow-missing", help="Take NaN as a value.")
    ] = False,
    stage_kb: Annotated[
        int, typer.Option(help="Room for a stage on a device, in KB (method staged).", min=1)
    ] = 32,
    deadline_ms: Annotated[float, typer.Option(help="For each answer.", min=1)] = 2000.0,
    seed: Annotated[int, typer.Option(help="Of all randomness.", min=0)] = 0,
    out: Annotated[Path, typer.Option(help="Folder for the report.")] = Path("demo-out"),
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Train on real data, pack, deploy over MQTT, measure what is saved.

    Starts a broker, cloud workers and devices as real processes and lets them answer each test
    instance once; other policies (all edge, all cloud, ...) answer the same instances in virtual
    time. Writes report.html, report.json, frontier.svg, the bundle and the instances to --out.
    Exits 0 only if no instance was lost.

        gatewise demo
        gatewise demo --dataset wine --link 3g --devices 2
        gatewise demo --dataset table.csv --target label --budget 4
        gatewise demo --broker mqtt://127.0.0.1:1883 --workers 2
    """
    options = dict(locals())  # before anything else is: the settings by their names
    del options["as_json"]
    from gatewise_sim.experiment.demo import DemoSettings, run_demo
    from gatewise_sim.report.progress_display import shown_progress
    from gatewise_sim.report.terminal import show_run

    with exit_on_termination(), shown_progress() as watch:
        report = run_demo(DemoSettings(**options), watch=watch)
    show_run(report, out, as_json=as_json)
    if report.answers.lost:
        raise typer.Exit(1)


commands = {"demo": demo}
