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

__all__ = [
    "PROFILES",
    "DelayProxy",
    "FleetSettings",
    "LinkProfile",
    "Options",
    "Outages",
    "Prices",
    "Routes",
    "RunError",
    "ServiceTime",
    "VirtualLink",
    "estimate_fleet",
    "run_demo",
    "simulate_fleet",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "PROFILES": "network",
        "DelayProxy": "network",
        "FleetSettings": "fleet",
        "LinkProfile": "network",
        "Options": "demo",
        "Outages": "network",
        "Prices": "money",
        "Routes": "fleet",
        "RunError": "errors",
        "ServiceTime": "fleet",
        "VirtualLink": "network",
        "estimate_fleet": "fleet",
        "run_demo": "demo",
        "simulate_fleet": "fleet",
    },
)
