"""The command ``gatewise report``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from gatewise.console import emit


def report(
    reports: Annotated[
        list[Path], typer.Argument(help="Paths of report.json files, or of their folders.")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print the reports as JSON.")] = False,
) -> None:
    """Show a report, or compare several reports in one table.

    The table has a column for each report, with the figures of its system, their 95 % intervals,
    and the settings that differ.

    Examples:

        gatewise report demo-out
        gatewise report wifi/report.json 4g/report.json
    """
    # imported here, so that other commands start fast
    from gatewise_sim.report.side_by_side import comparison_table, read_report
    from gatewise_sim.report.terminal import print_report, print_table

    report_documents = [read_report(path) for path in reports]
    if as_json:
        emit({"reports": [msgspec.to_builtins(document) for document in report_documents]})
    elif len(report_documents) == 1:
        print_report(report_documents[0])
    else:
        print_table(comparison_table([str(path) for path in reports], report_documents))
