"""The command ``gatewise simulate loop``, which simulates a fleet that is refitted with labels."""

from __future__ import annotations

from collections.abc import Callable
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
        Path | None,
        typer.Option(help="Rules in TOML; docs/simulation.md lists them."),
    ] = None,
    target: Target = None,
    as_json: AsJson = False,
) -> None:
    """Simulate the days of a fleet that learns from labels.

    Each day, devices answer rows of --data, and a labeller labels some of the kept instances. Then
    the monitor estimates the accuracy, and the rules decide on a refit and a release. The command
    prints a table with the accuracy, labels, bytes and releases of each day.

    Example:

        gatewise simulate loop bundle --data week.csv --train train.csv --rules loop.toml
    """
    # imported here, because they take long to load and --help does not need them
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
    rows = [[format_cell(day) for format_cell in _COLUMNS.values()] for day in report.days]
    print_table("Simulated days", tuple(_COLUMNS), rows)
    print(
        f"{report.n_asked} labels requested, {byte_size(report.n_bytes)} sent, "
        f"{report.n_releases} further releases"
    )


def _list_events(day: DayFigures) -> str:
    """List the events in the evening of a day."""
    events = ["alarm"] * day.alarm
    if day.verdict:
        events.append(f"refit: {day.verdict}")
    if day.released:
        events.append(f"released {day.released}")
    return ", ".join(events)


#: Function that formats the cell of each column, by the name of the column.
_COLUMNS: Final[dict[str, Callable[[DayFigures], str]]] = {
    "day": lambda day: str(day.day),
    "release": lambda day: day.version,
    "accuracy": lambda day: percent(day.accuracy),
    "high-cost accuracy": lambda day: percent(day.high_cost_accuracy),
    "estimate": lambda day: percent(day.estimate),
    "95 % interval": lambda day: (
        "" if day.low is None else f"{percent(day.low)} to {percent(day.high)}"
    ),
    "offloaded": lambda day: percent(day.offload_rate),
    "labels requested": lambda day: str(day.n_asked),
    "labels": lambda day: str(day.n_labels),
    "bytes": lambda day: byte_size(day.n_bytes),
    "events": _list_events,
}
