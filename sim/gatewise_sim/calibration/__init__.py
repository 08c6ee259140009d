"""How long things take on real machines, for virtual time: assumed, measured, or from a file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gatewise_training._lazy import lazy_names

if TYPE_CHECKING:
    from gatewise_sim.calibration.figures import Calibration
    from gatewise_sim.calibration.measuring import calibrate

__all__ = [
    "Calibration",
    "calibrate",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "Calibration": "figures",
        "calibrate": "measuring",
    },
)
