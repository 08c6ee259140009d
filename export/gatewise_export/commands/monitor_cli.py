"""``gatewise monitor``: the true figures of a deployed system."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from gatewise.console import emit, note, table
from gatewise.formats import percent
from gatewise_export.archive.true_figures import MonitorReport, metrics_text, monitor
from gatewise_export.commands.options import AsJson


def monitor_archive(
    archive: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of `cloud --keep`.")],
    version: Annotated[
        str | None, typer.Option(help="Version of the model; by default the newest.")
    ] = None,
    days: Annotated[
        float | None, typer.Option(min=0.001, help="Only the instances of the last days.")
    ] = None,
    metrics: Annotated[
        Path | None, typer.Option(help="File for Prometheus's textfile collector: truth.prom.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Estimate how often the system and the high-cost model are right, from few labels.

    All answers of the high-cost model and the labels of people count, each weighted by its known
    chance. The intervals hold whatever that model is worth, at all looks together (95 %). Exits 1
    when labels show that the accuracy is more than 1 point below the bundle's promise.

      gatewise monitor kept
      gatewise monitor kept --days 7 --metrics /var/lib/node_exporter/truth.prom
    """
    report = monitor(archive, version=version, days=days)
    if metrics is not None:
        unfinished = metrics.with_suffix(".tmp")
        unfinished.write_text(metrics_text(report))
        unfinished.replace(metrics)
    if as_json:
        emit(msgspec.to_builtins(report))
    else:
        _print(report)
    if report.alarm:
        note("gatewise: the system is less often right than its bundle promises")
        raise typer.Exit(1)


def _print(report: MonitorReport) -> None:
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
    header = ("system", "figure", "estimate", "95 % interval", "from labels alone", "labels")
    table(title, header, rows)
    print(
        f"{report.n_rows} instances kept, which stand for {report.n_instances:.0f}; "
        f"{report.n_labels} of {report.n_chosen} chosen ones are labelled"
    )
    if report.evidence is not None and report.promised is not None:
        print(
            f"promised: {percent(report.promised)}; evidence that the truth is more than "
            f"{percent(report.tolerance)} below: {report.evidence:.3g} (alarm from 20 on)"
        )


commands = {"monitor": monitor_archive}
