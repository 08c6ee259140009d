"""``gatewise simulate``."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from gatewise.console import emit, note, progress
from gatewise.errors import InputError
from gatewise_export.commands.options import BlockFunctions
from gatewise_sim.signal_handling import exit_on_termination

if TYPE_CHECKING:
    from gatewise_sim.experiment.simulation import Job
    from gatewise_sim.fleet.progress import ProgressListener

_LIVE_SECONDS: Final = 60.0
_OUT: Final = Path("sim-out")


def simulate(
    bundle: Annotated[Path, typer.Argument(help="The bundle: a directory or a .gwb file.")],
    data: Annotated[
        str,
        typer.Option(
            help="Rows that instances are: .csv, .parquet, .npz, or digits, wine, ...; "
            "best such as training has not seen."
        ),
    ],
    target: Annotated[
        str | None,
        typer.Option(help="Their label's column; target, label, class or y by itself."),
    ] = None,
    block: BlockFunctions = None,
    devices: Annotated[int, typer.Option(help="Devices.", min=1)] = 100,
    workers: Annotated[int, typer.Option(help="Cloud workers.", min=1)] = 1,
    gateways: Annotated[
        int, typer.Option(help="Gateways, if the bundle places stages there.", min=1)
    ] = 1,
    time: Annotated[
        str | None, typer.Option(help="How long: 10min, 1h, 1day. 1h by default; live 60s.")
    ] = None,
    workload: Annotated[
        str,
        typer.Option(
            help="Arrivals at each device: poisson:1/min, periodic:10s, "
            "bursty:1/min, diurnal:1/min:peak=14:00, replay:trace.csv."
        ),
    ] = "poisson:1/min",
    mix: Annotated[
        str | None,
        typer.Option(help="Shares of the classes over time: linear,0s=1/1,1h=9/1 or steps,..."),
    ] = None,
    day_start: Annotated[str, typer.Option(help="Time of day at the begin.")] = "00:00",
    link: Annotated[
        str,
        typer.Option(
            help="Of each device: wifi, 4g, 3g, edge, nb-iot, satellite, none; or a "
            "file, link.toml."
        ),
    ] = "4g",
    uplink: Annotated[
        str, typer.Option(help="From each gateway to the cloud: as --link.")
    ] = "none",
    tls: Annotated[
        bool, typer.Option("--tls", help="Connections are encrypted (virtual engine).")
    ] = False,
    outage: Annotated[
        list[str] | None,
        typer.Option(
            help="Outages: cloud:12:00-12:10, link:+30s-+35s, "
            "workers:2:+1min-+2min, broker:..., gateway:...; may be repeated."
        ),
    ] = None,
    deadline_ms: Annotated[float, typer.Option(help="For each answer, in ms.")] = 500.0,
    budget: Annotated[float | None, typer.Option(help="Mean cost per instance at most.")] = None,
    max_loss: Annotated[float | None, typer.Option(help="Accuracy to give up at most.")] = None,
    offload_rate: Annotated[
        float | None, typer.Option(help="Share of instances to offload at most.")
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|MODULE:FUNCTION",
            help="What decides after each stage: system, edge-only, cloud-only, or a function of "
            "your own, as my_policy:decide.",
        ),
    ] = None,
    pace: Annotated[
        str | None, typer.Option(help="Each device keeps a budget, as offload_rate=0.1.")
    ] = None,
    prices: Annotated[
        Path | None, typer.Option(help="TOML: per_mb, per_worker_hour, per_kwh, ...: a bill.")
    ] = None,
    device_energy: Annotated[
        Path | None, typer.Option(help="TOML: idle_w, battery_wh, stage_j, feature_j, ...")
    ] = None,
    engine: Annotated[
        str, typer.Option(help="virtual (a simulated clock) or live (real processes, real MQTT).")
    ] = "virtual",
    broker: Annotated[
        str | None,
        typer.Option(help="Live: URL of a broker that runs; mosquitto, or else the embedded one."),
    ] = None,
    processes: Annotated[
        int | None, typer.Option(help="Live: processes that hold the devices.", min=1)
    ] = None,
    calibrate: Annotated[
        bool, typer.Option("--calibrate", help="First measure service times here (15 s).")
    ] = False,
    calibration: Annotated[
        Path | None, typer.Option(help="Service times measured before: calibration.json.")
    ] = None,
    sweep: Annotated[
        list[str] | None,
        typer.Option(
            help="Several values: devices=10,100,1000 (outages, mix: joined by |); repeated: "
            "every combination."
        ),
    ] = None,
    no_baselines: Annotated[bool, typer.Option("--no-baselines", help="The system alone.")] = False,
    no_breaker: Annotated[
        bool, typer.Option("--no-breaker", help="Devices retry a silent cloud without a break.")
    ] = False,
    audit: Annotated[
        float | None,
        typer.Option(help="Share of the devices' own answers to audit, as 0.02."),
    ] = None,
    outstanding: Annotated[int, typer.Option(help="Unanswered requests of a device.", min=1)] = 32,
    coalesce_ms: Annotated[
        float, typer.Option(help="A request's wait for more rows of its device, in ms.")
    ] = 0.0,
    queue: Annotated[int, typer.Option(help="Requests that a worker queues.", min=1)] = 1024,
    max_batch: Annotated[int, typer.Option(help="Instances in a worker's run.", min=1)] = 16,
    wait_ms: Annotated[float, typer.Option(help="A worker's wait for a fuller batch.")] = 0.0,
    parallel: Annotated[int, typer.Option(help="A worker's runs at a time.", min=1)] = 1,
    backend: Annotated[
        str | None,
        typer.Option(
            metavar="python:MODULE:ATTRIBUTE|URL",
            help="What runs the high-cost model, as of gatewise cloud: where the bundle has none.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of all randomness.", min=0)] = 0,
    jobs: Annotated[
        int | None, typer.Option(help="Processes to compute with; one a core.", min=1)
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the report.")] = _OUT,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
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
        gatewise simulate bundle --data rows.csv --sweep devices=10,100,1000 --sweep link=wifi,4g
        gatewise simulate bundle --data rows.csv --engine live --devices 50 --time 1min
        gatewise report sim-out/report.json other-out/report.json
    """
    options = dict(locals())  # before anything else is: settings of a scenario, by their names
    from gatewise.formats import read_span
    from gatewise_sim.experiment.scenario import Scenario
    from gatewise_sim.experiment.simulation import Job

    if calibrate and calibration is not None:
        raise InputError("give --calibrate or --calibration, not both")
    if time is None:
        seconds = _LIVE_SECONDS if engine == "live" else 3600.0
    else:
        seconds = read_span(time, "--time")
    asked: dict[str, Any] = {}
    for name in {field.name for field in fields(Scenario)} & options.keys():
        asked[name] = str(options[name]) if isinstance(options[name], Path) else options[name]
    scenario = Scenario(
        **asked,
        seconds=seconds,
        outages=",".join(outage or []),
        breaker=not no_breaker,
        baselines=not no_baselines,
    )
    job = Job(str(bundle), data, target, scenario, blocks=tuple(block or ()))
    with exit_on_termination():
        if sweep:
            failed = _sweep(job, sweep, out, calibrate=calibrate, jobs=jobs, as_json=as_json)
        else:
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
    from gatewise_sim.report.terminal import show_run

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


def _sweep(
    job: Job, sweeps: list[str], out: Path, *, calibrate: bool, jobs: int | None, as_json: bool
) -> bool:
    """Run a sweep and show the result; True if a point failed."""
    from gatewise_sim.experiment.sweep.run import run_sweep
    from gatewise_sim.report.progress_display import shown_progress
    from gatewise_sim.report.sweep.views import print_sweep

    job.open()  # an error in bundle or rows is reported once, not for every point
    if calibrate:
        with shown_progress() as watch:
            job = calibrated_once(job, out, lambda: _calibrated(job, watch))
    words = [job.command(), *(f"--sweep {shlex.quote(text)}" for text in sweeps)]
    words += ["--calibrate"] * calibrate
    with progress("sweep") as report:
        result = run_sweep(
            job, sweeps, folder=out, jobs=jobs, progress=report, command=" ".join(words)
        )
    if as_json:
        emit(result.document)
    else:
        print_sweep(result.document, result.folder)
    return bool(result.failed)


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


def calibrated_once(job: Job, folder: Path, measure: Callable[[], Job]) -> Job:
    """Return the job with the service times measured for this folder, or measure them now.

    Points are named by their service times: with others, none that is finished would be used.
    """
    from gatewise_sim.calibration.figures import Calibration
    from gatewise_sim.experiment.sweep.store import CALIBRATION, SweepFolder

    path = SweepFolder(folder).folder / CALIBRATION
    if path.exists():
        note(f"service times as measured before: {path}; remove it to measure again")
    else:
        measured = measure().calibration
        assert measured is not None
        measured.write(path)
    # Read back: figures are rounded in the file, and points are named by these.
    return replace(job, calibration=Calibration.from_file(path))


def _cores() -> int:
    return len(os.sched_getaffinity(0))
