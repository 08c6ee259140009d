"""What a run measured, as JSON, CSV and a page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gatewise_training._lazy import lazy_names

if TYPE_CHECKING:
    from gatewise_sim.report.legs import POLICIES, Expected, Leg, compare, measure, to_json

__all__ = [
    "POLICIES",
    "Expected",
    "Leg",
    "compare",
    "measure",
    "to_json",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "Expected": "legs",
        "Leg": "legs",
        "POLICIES": "legs",
        "compare": "legs",
        "measure": "legs",
        "to_json": "legs",
    },
)
