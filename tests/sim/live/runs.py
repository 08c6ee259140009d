"""Scenarios and runs of small live fleets, and comparisons of their answers."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import numpy as np

from gatewise_sim.experiment.policies import system_policy
from gatewise_sim.experiment.rows import Rows
from gatewise_sim.fleet.results import Answers, FleetRun, RowTable
from gatewise_sim.fleet.run import run_fleet
from gatewise_sim.live.run import LiveRun, run_live
from gatewise_sim.scenario import Scenario

#: Columns of answers that do not depend on how fast the machine is.
COLUMNS = ("time", "device", "row", "route", "stage", "label", "cost", "feature_cost", "reason")


def make_live_scenario(**changes: Any) -> Scenario:
    """Make a short live scenario of a few devices, with a deadline that a busy machine meets."""
    default_settings = {
        "devices": 3,
        "time": "2s",
        "deadline_ms": 10_000.0,
        "seed": 3,
        "workload": "poisson:3/s",
        "link": "none",
        "engine": "live",
    }
    return Scenario(**{**default_settings, **changes})


def run_live_fleet(
    digits_system: SimpleNamespace, table: RowTable, scenario: Scenario, **options: Any
) -> LiveRun:
    """Run a live fleet on the small system's rows."""
    rows = Rows("rows", digits_system.rows, None)
    return run_live(digits_system.bundle.path, rows.instances, scenario, table, **options)


def run_virtual(table: RowTable, scenario: Scenario, live_run: LiveRun) -> FleetRun:
    """Run the same instances in virtual time, with the live run's timings."""
    return run_fleet(
        table,
        scenario,
        system_policy(scenario, table),
        live_run.timings,
        arrivals=scenario.draw_fleet_arrivals(len(table), table.truth),
    )


def assert_same_answers(
    live_answers: Answers, virtual_answers: Answers, names: Iterable[str] = COLUMNS
) -> None:
    """Assert that the answers of a live run equal those in virtual time."""
    for name in names:
        assert np.array_equal(getattr(live_answers, name), getattr(virtual_answers, name)), name
