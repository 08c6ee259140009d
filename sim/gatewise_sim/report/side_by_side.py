"""Table that compares the systems of several reports, and their different settings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gatewise.documents import decode_json
from gatewise.errors import InputError
from gatewise.formats import count
from gatewise_sim.report.document import Report
from gatewise_sim.report.tables import POLICY_FIGURES, PageTable, estimate_cell, setting_text

_REPORT_FILE = "report.json"


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
