"""Reports of runs side by side: what differs, and whether it is more than chance."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gatewise_training._lazy import lazy_names

if TYPE_CHECKING:
    from gatewise_sim.compare.difference import Difference, compare_runs
    from gatewise_sim.compare.figures import FIGURES, Figure, Measured, measured
    from gatewise_sim.compare.read import Run, read_runs

__all__ = [
    "FIGURES",
    "Difference",
    "Figure",
    "Measured",
    "Run",
    "compare_runs",
    "measured",
    "read_runs",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "FIGURES": "figures",
        "Difference": "difference",
        "Figure": "figures",
        "Measured": "figures",
        "Run": "read",
        "compare_runs": "difference",
        "measured": "figures",
        "read_runs": "read",
    },
)
