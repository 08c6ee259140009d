"""The sub-command ``gatewise monitor``, which estimates the accuracy of a deployed system."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from gatewise.console import emit, note, print_table
from gatewise.formats import percent
from gatewise_export.archive.true_figures import MonitorReport, metrics_text, monitor
from gatewise_export.bundle.storage import replace_file
from gatewise_export.commands.options import Archive, ArchivedVersion, AsJson


def monitor_archive(
    archive: Archive,
    version: ArchivedVersion = None,
    days: Annotated[
        float | None,
        typer.Option(min=0.001, help="Age of the oldest instances, in days; by default any age."),
    ] = None,
    metrics: Annotated[
        Path | None,
        typer.Option(help="File for Prometheus's textfile collector, such as truth.prom."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Estimate from few labels how often the system and its high-cost model are right.

    The estimate uses all answers of the high-cost model and all labels, weighted by the inverse of
    their known probabilities. Its 95 % intervals are valid however bad that model is, and for all
    runs of this command together. The command exits with 1 if labels show that the accuracy is more
    than 1 point below the bundle's promise.

    Examples:

        gatewise monitor kept
        gatewise monitor kept --days 7 --metrics /var/lib/node_exporter/truth.prom
    """
    report = monitor(archive, version=version, days=days)
    if metrics is not None:
        # a collector must not read a partly written file
        replace_file(metrics, metrics_text(report).encode())
    if as_json:
        emit(msgspec.to_builtins(report))
    else:
        _print_report(report)
    if report.alarm:
        note("gatewise: the system is right less often than its bundle promises")
        raise typer.Exit(1)


def _print_report(report: MonitorReport) -> None:
    """Print the figures with their intervals, and the evidence against the promise."""
    rows = [
        (
            figure.system,
            figure.figure if figure.of is None else f"{figure.figure} of {figure.of}",
            percent(figure.value),
            f"{percent(figure.low)} to {percent(figure.high)}",
            f"{percent(figure.labels_alone[0])} to {percent(figure.labels_alone[1])}",
            figure.n_labels,
        )
        for figure in report.figures
    ]
    title = f"{report.model} {report.version}"
    header = ("system", "figure", "estimate", "95 % interval", "from labels only", "labels")
    print_table(title, header, rows)
    print(
        f"{report.n_rows} kept instances represent {report.n_instances:.0f} instances; "
        f"{report.n_labels} of {report.n_chosen} chosen instances have a label"
    )
    if report.evidence is not None and report.promised is not None:
        print(
            f"promised: {percent(report.promised)}; evidence for an accuracy more than "
            f"{percent(report.tolerance)} lower: {report.evidence:.3g} (alarm at 20)"
        )
