"""The command ``gatewise simulate loop``, which simulates a fleet that learns."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
import typer

from gatewise.console import emit, print_table
from gatewise.documents import read_toml
from gatewise.formats import byte_size, percent
from gatewise_export.commands.options import AsJson, BundlePath, Target
from gatewise_sim.loop.loop_rules import LoopRules

if TYPE_CHECKING:
    from gatewise_sim.loop.days import DayFigures, LoopReport


def simulate_days(
    bundle: BundlePath,
    data: Annotated[
        str, typer.Option(help="Labelled rows, ordered by time: .csv, .parquet or .npz.")
    ],
    train: Annotated[
        str, typer.Option(help="Training rows of the bundle, as for `gatewise refit`.")
    ],
    rules: Annotated[
        Path | None, typer.Option(help="Rules in TOML; docs/simulation.md lists them.")
    ] = None,
    target: Target = None,
    as_json: AsJson = False,
) -> None:
    """Simulate the days of a fleet that learns from labels.

    Each day, devices answer rows of --data, a labeller labels some of the archived instances, the
    monitor estimates the accuracy, and the rules decide on a refit and a release. Prints a table
    with the accuracy, labels, bytes and releases of each day.

      gatewise simulate loop bundle --data week.csv --train train.csv --rules loop.toml
    """
    from gatewise_export.bundle.bundle import Bundle
    from gatewise_sim.experiment.rows import Rows
    from gatewise_sim.loop.days import run_loop

    opened_bundle = Bundle.open(bundle)
    rows = Rows.load(data, opened_bundle.manifest, target=target)
    loop_rules = LoopRules() if rules is None else read_toml(rules, LoopRules, "rules")
    report = run_loop(opened_bundle, rows, loop_rules, train=train, target=target)
    if as_json:
        emit(msgspec.to_builtins(report))
    else:
        show_days(report)


def show_days(report: LoopReport) -> None:
    """Print a table with a row per day, and the totals of labels, bytes and releases."""
    print_table("A fleet that learns", _COLUMN_NAMES, [_row_cells(day) for day in report.days])
    print(
        f"{report.n_asked} labels requested, {byte_size(report.n_bytes)} sent, "
        f"{report.n_releases} releases after the first"
    )


_COLUMN_NAMES: Final = (
    "day",
    "release",
    "accuracy",
    "high-cost accuracy",
    "estimate",
    "95 % interval",
    "offloaded",
    "labels requested",
    "labels",
    "bytes",
    "in the evening",
)


def _row_cells(day: DayFigures) -> list[str]:
    events = ["alarm"] * day.alarm
    if day.verdict:
        events.append(f"refit: {day.verdict}")
    if day.released:
        events.append(f"released {day.released}")
    return [
        str(day.day),
        day.version,
        percent(day.accuracy),
        percent(day.high_cost_accuracy),
        percent(day.estimate),
        "" if day.low is None else f"{percent(day.low)} to {percent(day.high)}",
        percent(day.offload_rate),
        str(day.n_asked),
        str(day.n_labels),
        byte_size(day.n_bytes),
        ", ".join(events),
    ]


commands = {"simulate loop": simulate_days}
