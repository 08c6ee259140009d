"""A fleet in virtual time: the runtime's own bookkeeping on a simulated clock and network."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gatewise_training._lazy import lazy_names

if TYPE_CHECKING:
    from gatewise_sim.fleet.answers import Answers
    from gatewise_sim.fleet.estimate import FleetEstimate
    from gatewise_sim.fleet.intervals import Estimate
    from gatewise_sim.fleet.routing import Routes
    from gatewise_sim.fleet.run import FleetRun, simulate_fleet
    from gatewise_sim.fleet.scale import estimate_fleet
    from gatewise_sim.fleet.settings import FleetSettings
    from gatewise_sim.fleet.worker import ServiceTime

__all__ = [
    "Answers",
    "Estimate",
    "FleetEstimate",
    "FleetRun",
    "FleetSettings",
    "Routes",
    "ServiceTime",
    "estimate_fleet",
    "simulate_fleet",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "Answers": "answers",
        "Estimate": "intervals",
        "FleetEstimate": "estimate",
        "FleetRun": "run",
        "FleetSettings": "settings",
        "Routes": "routing",
        "ServiceTime": "worker",
        "estimate_fleet": "scale",
        "simulate_fleet": "run",
    },
)
