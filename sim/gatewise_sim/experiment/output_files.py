"""Files that a simulation leaves behind."""

from __future__ import annotations

from gatewise_sim.calibration.figures import Calibration
from gatewise_sim.report.model import Report

__all__ = ["report_files"]


def report_files(report: Report, calibration: Calibration) -> dict[str, str]:
    """Texts of a report's folder by file name: page, report, tables, service times."""
    from gatewise_sim.report.page import render
    from gatewise_sim.report.tables import csv_files

    return {
        **csv_files(report),
        "calibration.json": calibration.to_json(),
        "report.html": render(report),
        "report.json": report.to_json(),
    }
