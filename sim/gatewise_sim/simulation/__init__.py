"""What a fleet would cost, before it is bought: the system and its baselines on one scenario."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gatewise_training._lazy import lazy_names

if TYPE_CHECKING:
    from gatewise_sim.simulation.job import Job, Simulation, simulate
    from gatewise_sim.simulation.scenario import Scenario

__all__ = ["Job", "Scenario", "Simulation", "simulate"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "Job": "job",
        "Scenario": "scenario",
        "Simulation": "job",
        "simulate": "job",
    },
)
