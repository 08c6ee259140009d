"""Find out what is wrong between a device and its cloud, and what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gatewise_training._lazy import lazy_names

if TYPE_CHECKING:
    from gatewise_sim.doctor.checkup import Patient, examine

__all__ = [
    "Patient",
    "examine",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "Patient": "checkup",
        "examine": "checkup",
    },
)
