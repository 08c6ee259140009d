"""The command ``gatewise simulate``."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gatewise.console import emit, showing_progress
from gatewise.settings import with_options
from gatewise_cloud.signal_handling import exit_on_termination
from gatewise_export.commands.options import AsJson, BlockFunctions, BundlePath, Target
from gatewise_sim.scenario import Scenario

if TYPE_CHECKING:
    from gatewise_sim.experiment.simulation import Job


@with_options
def simulate(
    bundle: BundlePath,
    data: Annotated[
        str,
        typer.Option(
            help="Rows to draw instances from: .csv, .parquet, .npz (arrays X and y), .npy, or "
            "digits, wine, ...; use rows that were not used in training."
        ),
    ],
    scenario: Scenario,
    target: Target = None,
    block: BlockFunctions = None,
    sweep: Annotated[
        list[str] | None,
        typer.Option(
            help="Values of a setting: devices=10,100,1000; repeat for combinations of settings."
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the report.")] = Path("sim-out"),
    as_json: AsJson = False,
) -> None:
    r"""Simulate a fleet: accuracy, cost, latency, energy and money.

    Devices with your bundle answer your rows, over links with delays and failures. Other policies
    answer the same instances for comparison: all edge, all cloud, a confidence threshold, random
    offloads and an oracle. Writes report.html, report.json and CSV files to --out.

    The virtual engine runs the code of the devices on a simulated clock. It simulates up to 20,000
    devices, and scales the figures of a larger fleet. First the times of the bundle's models are
    measured on this machine and written to timings.toml. With --settings timings.toml, the same
    seed gives the same report. The live engine runs real processes over real MQTT in real time.

    Examples:

        gatewise simulate demo-out/bundle --data demo-out/instances.csv
        gatewise simulate bundle --data rows.csv --devices 1000 --workers 4 --time 1day \
            --outage cloud:12:00-12:10 --prices bill.toml
        gatewise simulate bundle --data rows.csv --sweep devices=10,100,1000 --sweep link=wifi,4g
        gatewise simulate bundle --data rows.csv --engine live --devices 50 --time 1min
        gatewise report sim-out/report.json other-out/report.json
    """
    from gatewise_sim.experiment.simulation import Job

    job = Job(str(bundle), data, target, scenario, blocks=tuple(block or ()))
    with exit_on_termination(), showing_progress():
        has_failed = (
            _sweep(job, sweep, out, as_json=as_json)
            if sweep
            else _simulate(job, out, as_json=as_json)
        )
    if has_failed:
        raise typer.Exit(1)


def _simulate(job: Job, out: Path, *, as_json: bool) -> bool:
    """Run a simulation, write its folder, show it, and return whether an instance was lost."""
    from gatewise_sim.experiment.run import run_scenario
    from gatewise_sim.experiment.simulation import Simulation
    from gatewise_sim.report.output import SIMULATION
    from gatewise_sim.report.terminal import show_run

    SIMULATION.check(out)
    report = run_scenario(job.prepare(), job.command(out))
    Simulation(report, job.scenario).write(out)
    show_run(report, out, as_json=as_json)
    return any(policy.answers.lost for policy in report.policies)


def _sweep(job: Job, sweep_texts: list[str], out: Path, *, as_json: bool) -> bool:
    """Run a sweep, show its table, and return whether a point failed."""
    from gatewise_sim.experiment.sweep import read_sweeps, run_sweep, show_table

    values_by_setting = read_sweeps(sweep_texts)
    command_words = [job.command(), *(f"--sweep {shlex.quote(text)}" for text in sweep_texts)]
    rows = run_sweep(job, values_by_setting, out)
    if as_json:
        emit({"kind": "gatewise-sweep", "command": " ".join(command_words), "points": rows})
    else:
        show_table(rows, values_by_setting, out)
    return any(row["error"] for row in rows)
