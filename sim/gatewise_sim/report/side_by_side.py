"""Table that compares the systems of several reports, and their different settings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gatewise.documents import decode_json
from gatewise.errors import InputError
from gatewise.formats import count
from gatewise_sim.report.document import Report
from gatewise_sim.report.tables import FIGURES, PageTable, figure_cell, plain_text

_FILE = "report.json"


def read_report(path: Path) -> Report:
    """Read a ``report.json`` from its path or its folder.

    Raises
    ------
    InputError
        If the file does not exist or is not a report. The message names the file.
    """
    file = path / _FILE if path.is_dir() else path
    try:
        data = file.read_bytes()
    except OSError as error:
        raise InputError(f"{file}: {error.strerror}") from error
    return decode_json(data, Report, str(file))


def comparison_table(names: Sequence[str], reports: Sequence[Report]) -> PageTable:
    """Make a table with a column for each report, under its name."""
    rows: list[list[str | tuple[str, str]]] = [
        ["instances", *(count(report.instances) for report in reports)]
    ]
    for name, form, figure in FIGURES:
        figures = [figure(report.system) for report in reports]
        if any(value is not None for value in figures):
            rows.append([name, *(figure_cell(value, form) for value in figures)])
    settings = [{"data": r.dataset, "method": r.method, **r.settings} for r in reports]
    for key in dict.fromkeys(key for setting in settings for key in setting):
        texts = [plain_text(setting.get(key, "")) for setting in settings]
        if len(set(texts)) > 1:
            rows.append([key.replace("_", " "), *texts])
    return PageTable("Side by side", ["", *names], rows)
