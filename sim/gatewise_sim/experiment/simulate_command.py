"""``gatewise simulate``."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from gatewise.errors import InputError
from gatewise.formats import read_span
from gatewise_export.commands.options import BlockFunctions, BundlePath, Target
from gatewise_sim.command_options import with_options
from gatewise_sim.experiment.scenario import Scenario
from gatewise_sim.signal_handling import exit_on_termination

if TYPE_CHECKING:
    from gatewise_sim.experiment.simulation import Job
    from gatewise_sim.fleet.progress import ProgressListener

_LIVE_SECONDS: Final = 60.0


@with_options(Scenario, but=("seconds", "outages"))
def simulate(
    bundle: BundlePath,
    data: Annotated[
        str,
        typer.Option(
            help="Rows that instances are: .csv, .parquet, .npz (arrays X and y), .npy, or digits, "
            "wine, ...; best such as training has not seen."
        ),
    ],
    target: Target = None,
    block: BlockFunctions = None,
    time: Annotated[
        str | None, typer.Option(help="How long: 10min, 1h, 1day. 1h by default; live 60s.")
    ] = None,
    outage: Annotated[
        list[str] | None,
        typer.Option(
            help="Outages: cloud:12:00-12:10, link:+30s-+35s, "
            "workers:2:+1min-+2min, broker:...; may be repeated."
        ),
    ] = None,
    calibrate: Annotated[
        bool, typer.Option("--calibrate", help="First measure service times here (15 s).")
    ] = False,
    jobs: Annotated[
        int | None, typer.Option(help="Processes to compute with; one a core.", min=1)
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the report.")] = Path("sim-out"),
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
    **options: Any,
) -> None:
    """Simulate a fleet: accuracy, cost, latency, energy and money.

    Devices with your bundle answer your rows, over links that delay and fail. The same instances
    are also answered all-edge, all-cloud, by a confidence threshold, at random and by an oracle.
    Writes report.html, report.json and CSV files to --out.

    The virtual engine steps the runtime's own logic on a simulated clock; the day of a million
    devices is sampled, with confidence intervals. The same seed gives the same report.json. The
    live engine runs real processes over real MQTT in real time.

        gatewise simulate demo-out/bundle --data demo-out/instances.csv
        gatewise simulate bundle --data rows.csv --devices 1000 --workers 4 --time 1day
            --outage cloud:12:00-12:10 --prices prices.toml
        gatewise simulate bundle --data rows.csv --engine live --devices 50 --time 1min
        gatewise report sim-out/report.json other-out/report.json
    """
    from gatewise_sim.experiment.simulation import Job

    if calibrate and options["calibration"] is not None:
        raise InputError("give --calibrate or --calibration, not both")
    if time is not None:
        options["seconds"] = read_span(time, "--time")
    elif options["engine"] == "live":
        options["seconds"] = _LIVE_SECONDS
    scenario = Scenario(**options, outages=",".join(outage or []))
    job = Job(str(bundle), data, target, scenario, blocks=tuple(block or ()))
    with exit_on_termination():
        failed = _simulate(job, out, calibrate=calibrate, jobs=jobs, as_json=as_json)
    if failed:
        raise typer.Exit(1)


commands: dict[str, Callable[..., None]] = {"simulate": simulate}


def _simulate(job: Job, out: Path, *, calibrate: bool, jobs: int | None, as_json: bool) -> bool:
    """Run one simulation, write its folder and show the result; True if an instance was lost."""
    from gatewise_sim.experiment.run import run_scenario
    from gatewise_sim.experiment.simulation import Simulation
    from gatewise_sim.report.output import SIMULATION
    from gatewise_sim.report.progress_display import shown_progress
    from gatewise_sim.report.tables import show_run

    SIMULATION.check(out)
    with shown_progress() as watch:
        if calibrate:
            job = _calibrated(job, watch)
        prepared = job.prepare()
        command = job.command(out / "calibration.json")
        report = run_scenario(prepared, command, watch=watch, jobs=jobs or _cores())
        Simulation(report, prepared.calibration).write(out)
    show_run(report, out, as_json=as_json)
    return any(policy.answers.lost for policy in report.policies)


def _calibrated(job: Job, watch: ProgressListener | None) -> Job:
    """Measure the job's service times in a short live run."""
    from gatewise_sim.calibration.measuring import calibrate
    from gatewise_sim.experiment.operating_point import on_disk

    opened, rows = job.open()
    with on_disk(opened) as path:
        measured = calibrate(
            path,
            rows.X,
            functions=opened.functions,
            broker=job.scenario.broker,
            backend=job.scenario.backend,
            watch=watch,
        )
    return replace(job, calibration=measured)


def _cores() -> int:
    return len(os.sched_getaffinity(0))
