"""Settings of small live fleets, and what their tests look at."""

from __future__ import annotations

from gatewise_sim.fleet.routes import ROUTES
from gatewise_sim.fleet.settings import FleetSettings
from gatewise_sim.fleet.worker import ServiceTime
from gatewise_sim.live.run import LiveRun, run_live

EDGE, CLOUD, FALLBACK, _ = range(len(ROUTES))


def settings(**changes) -> FleetSettings:
    common = {
        "devices": 20,
        "seconds": 6.0,
        "deadline_ms": 10_000.0,
        "service": ServiceTime(0.001, 0.0),
        "seed": 3,
    }
    if not {"in_turn", "arrivals"} & set(changes):
        common["workload"] = "poisson:1/s"
    return FleetSettings(**{**common, **changes})


def run(small, chosen: FleetSettings, **options) -> LiveRun:
    return run_live(small.bundle.path, small.rows, chosen, **options)
