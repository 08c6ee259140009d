"""What-if sweeps: one simulation for every combination of some settings, in parallel."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gatewise_training._lazy import lazy_names

if TYPE_CHECKING:
    from gatewise_sim.sweep.calibrated import calibrated_once
    from gatewise_sim.sweep.run import PointResult, SweepResult, run_sweep
    from gatewise_sim.sweep.settings import Sweep, combinations

__all__ = [
    "PointResult",
    "Sweep",
    "SweepResult",
    "calibrated_once",
    "combinations",
    "run_sweep",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "PointResult": "run",
        "Sweep": "settings",
        "SweepResult": "run",
        "calibrated_once": "calibrated",
        "combinations": "settings",
        "run_sweep": "run",
    },
)
