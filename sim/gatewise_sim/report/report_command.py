"""The command ``gatewise report``, which shows one report or a table of several."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from gatewise.console import emit
from gatewise.documents import decode_json
from gatewise.errors import InputError
from gatewise.formats import count
from gatewise_sim.report.document import Report
from gatewise_sim.report.tables import POLICY_FIGURES, PageTable, estimate_cell, setting_text
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


def comparison_table(names: Sequence[str], reports: Sequence[Report]) -> PageTable:
    """Make a table with a column for each report, under its name."""
    rows: list[list[str | tuple[str, str]]] = [
        ["instances", *(count(report.instances) for report in reports)]
    ]
    for name, formatter, figure_of in POLICY_FIGURES:
        figures = [figure_of(report.system) for report in reports]
        if any(figure is not None for figure in figures):
            rows.append([name, *(estimate_cell(figure, formatter) for figure in figures)])
    settings_of_reports = [
        {"data": report.dataset, "method": report.method, **report.settings} for report in reports
    ]
    for setting_name in dict.fromkeys(
        setting_name for report_settings in settings_of_reports for setting_name in report_settings
    ):
        setting_texts = [
            setting_text(report_settings.get(setting_name, ""))
            for report_settings in settings_of_reports
        ]
        if len(set(setting_texts)) > 1:
            rows.append([setting_name.replace("_", " "), *setting_texts])
    return PageTable("Side by side", ["", *names], rows)
