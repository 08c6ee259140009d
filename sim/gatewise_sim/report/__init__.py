"""What a run measured, as JSON, CSV and a page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gatewise_training._lazy import lazy_names

if TYPE_CHECKING:
    from gatewise_sim.report.legs import POLICIES, Expected, Leg, compare, measure, to_json
    from gatewise_sim.report.output import DEMO, SIMULATION, Output
    from gatewise_sim.report.tables import csv_files

__all__ = [
    "DEMO",
    "POLICIES",
    "SIMULATION",
    "Expected",
    "Leg",
    "Output",
    "compare",
    "csv_files",
    "measure",
    "to_json",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "DEMO": "output",
        "Expected": "legs",
        "Leg": "legs",
        "Output": "output",
        "POLICIES": "legs",
        "SIMULATION": "output",
        "compare": "legs",
        "csv_files": "tables",
        "measure": "legs",
        "to_json": "legs",
    },
)
