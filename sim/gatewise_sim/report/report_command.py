"""The command ``gatewise report``, which shows one report or a table of several."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from gatewise.console import emit
from gatewise.documents import decode_json
from gatewise.errors import InputError
from gatewise_sim.report.document import Report
from gatewise_sim.report.tables import comparison_table
from gatewise_sim.report.terminal import print_report, print_table

_REPORT_FILE = "report.json"


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
    report_documents = [read_report(path) for path in reports]
    if as_json:
        emit({"reports": [msgspec.to_builtins(document) for document in report_documents]})
    elif len(report_documents) == 1:
        print_report(report_documents[0])
    else:
        print_table(comparison_table([str(path) for path in reports], report_documents))


def read_report(path: Path) -> Report:
    """Read a ``report.json`` from its path or its folder.

    Raises
    ------
    InputError
        If the file does not exist or is not a report. The message names the file.
    """
    file_path = path / _REPORT_FILE if path.is_dir() else path
    try:
        content = file_path.read_bytes()
    except OSError as error:
        raise InputError(f"{file_path}: {error.strerror}") from error
    return decode_json(content, Report, str(file_path))
