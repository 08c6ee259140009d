"""Settings of small live fleets, and what their tests look at."""

from __future__ import annotations

import os
from collections.abc import Iterable

import numpy as np

from gatewise_edge.device.answer import DecisionPoint
from gatewise_sim.fleet.answers import ROUTES, Answers
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


def asks_early(point: DecisionPoint) -> str:
    """A policy that looks at what does not depend on the time, and takes every decision."""
    best = float(point.probabilities.max())
    if point.last:
        return "stop" if best > 0.9 else "continue"
    if point.cost > 0 and best < 0.24:
        return "offload"
    return "stop" if best > 0.3 else "continue"


def ends_the_process(point: DecisionPoint) -> str:
    """A policy whose process dies of it."""
    os._exit(3)


COLUMNS = ("time", "device", "row", "route", "stage", "label", "cost", "feature_cost", "reason")


def assert_same(live: Answers, virtual: Answers, names: Iterable[str] = COLUMNS) -> None:
    """The answers of a live run are those of virtual time."""
    for name in names:
        assert np.array_equal(getattr(live, name), getattr(virtual, name)), name


def run(small, chosen: FleetSettings, **options) -> LiveRun:
    return run_live(small.bundle.path, small.rows, chosen, **options)
