"""``gatewise report``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from gatewise.console import emit


def report(
    reports: Annotated[
        list[Path],
        typer.Argument(help="report.json files, their folders, points of a sweep, sweep.json."),
    ],
    html: Annotated[Path | None, typer.Option(help="Write a page with tables and plot.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Compare runs: reports of the demo, of simulations and of sweeps.

    Shows every figure with its difference to the first report, whether that is beyond the 95 %
    intervals (where there are any), and which settings differ. A single report is shown.

      gatewise report demo-out sim-out

      gatewise report wifi/report.json 4g/report.json --html compared.html

      gatewise report sweep-out/sweep.json --json
    """
    from gatewise_sim.report.comparison.figures import compare_runs
    from gatewise_sim.report.comparison.reading import read_runs
    from gatewise_sim.report.comparison.views import comparison_page, print_comparison

    comparison = compare_runs(read_runs(reports))
    if html is not None:
        from gatewise_sim.report.output import write_text

        write_text(html, comparison_page(comparison))
    if as_json:
        emit(comparison)
    else:
        print_comparison(comparison)
        if html is not None:
            print(html)


commands: dict[str, Callable[..., None]] = {"report": report}
