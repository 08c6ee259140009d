"""Baselines of a huge fleet: less of the fleet is stepped than of the system's."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

from gatewise_sim.fleet.estimate.sampling import Plan, plan
from gatewise_sim.fleet.routes import Routes
from gatewise_sim.fleet.settings import FleetSettings
from gatewise_sim.fleet.workload.kinds import Workload

__all__ = ["REQUESTS", "lighter", "sampled"]

REQUESTS: Final = 1_000_000
"""Of a baseline, stepped at most, about."""
_LEAST_WORKERS: Final = 2


def sampled(routes: Routes, settings: FleetSettings) -> Plan:
    """Plan what to step of a baseline.

    All-cloud asks ten times as often as a system that offloads a tenth, and around an outage
    every second is stepped.
    """
    return lighter(plan(routes, settings), routes, settings)


def lighter(
    chosen: Plan, routes: Routes, settings: FleetSettings, *, requests: int = REQUESTS
) -> Plan:
    """Step fewer devices and workers, in the same proportion, if there are too many requests.

    Queues carry their full load all the same; a pool of two deals less evenly than one of twenty,
    so waits come out a little too long.

    Parameters
    ----------
    chosen : Plan
    routes : Routes
    settings : FleetSettings
    requests : int
        At most, about; but never fewer than two workers.
    """
    work = settings.workload
    if chosen.whole or not isinstance(work, Workload) or settings.policy == "edge-only":
        return chosen
    share = 1.0 if settings.policy == "cloud-only" else routes.share
    pool, fleet = chosen.of_workers, chosen.of_devices
    each = chosen.stepped * work.mean_rate * fleet / pool * share  # requests of one worker
    counts = [window.count for window in settings.outages.windows if window.what == "workers"]
    unit = pool // math.gcd(pool, *counts) if counts else 1
    least = max(_LEAST_WORKERS, math.floor(requests / max(each, 1e-12)), math.ceil(pool / fleet))
    for workers in range(unit, chosen.workers, unit):
        if workers >= least and fleet * workers % pool == 0:
            return replace(chosen, workers=workers, devices=fleet * workers // pool)
    return chosen
