"""Put everything together: the command line, links with delay, live runs and their reports."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gatewise_training._lazy import lazy_names

if TYPE_CHECKING:
    from gatewise_sim.demo import Options, run_demo
    from gatewise_sim.errors import RunError
    from gatewise_sim.fleet import (
        FleetSettings,
        Routes,
        ServiceTime,
        estimate_fleet,
        simulate_fleet,
    )
    from gatewise_sim.money import Prices
    from gatewise_sim.network import PROFILES, DelayProxy, LinkProfile, Outages, VirtualLink
    from gatewise_sim.simulation import Job, Scenario, simulate
    from gatewise_sim.sweep import run_sweep

__all__ = [
    "PROFILES",
    "DelayProxy",
    "FleetSettings",
    "Job",
    "LinkProfile",
    "Options",
    "Outages",
    "Prices",
    "Routes",
    "RunError",
    "Scenario",
    "ServiceTime",
    "VirtualLink",
    "estimate_fleet",
    "run_demo",
    "run_sweep",
    "simulate",
    "simulate_fleet",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "PROFILES": "network",
        "DelayProxy": "network",
        "FleetSettings": "fleet",
        "Job": "simulation",
        "LinkProfile": "network",
        "Options": "demo",
        "Outages": "network",
        "Prices": "money",
        "Routes": "fleet",
        "RunError": "errors",
        "Scenario": "simulation",
        "ServiceTime": "fleet",
        "VirtualLink": "network",
        "estimate_fleet": "fleet",
        "run_demo": "demo",
        "run_sweep": "sweep",
        "simulate": "simulation",
        "simulate_fleet": "fleet",
    },
)
