"""Small fleets in virtual time: synthetic row tables, scenarios and runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gatewise_sim.experiment.policy_figures import PolicyFigures
from gatewise_sim.fleet.energy import DeviceEnergy, Prices
from gatewise_sim.fleet.results import FleetRun, RowTable
from gatewise_sim.fleet.run import FleetPolicy, run_fleet
from gatewise_sim.fleet.workload import Arrivals
from gatewise_sim.report.policy_result import PolicyResult
from gatewise_sim.scenario import Scenario
from gatewise_sim.timings import Timings

#: A worker's run takes 10 ms, and everything else no time.
RUN_TIMINGS = Timings(
    edge_ms=(0.0,), run_us=10_000, instance_us=0, message_us=0, broker_us=0, hop_ms=0
)


def make_table(n_rows: int = 10, n_offloaded: int = 10, **changed_fields: Any) -> RowTable:
    """Make a table of `n_rows` rows; the first `n_offloaded` are offloaded.

    The label of each row is class 1. The cloud answers 1, and the device answers 0 to the offloaded
    rows and 1 to the others. Features cost 1 without a request and 3 with one, an unanswered
    request 0.125, and an answer of the cloud 0.5.
    """
    is_offloaded = np.arange(n_rows) < n_offloaded
    fields: dict[str, Any] = {
        "model": "m",
        "version": "1",
        "classes": ("0", "1"),
        "n_stages": 1,
        "has_cloud": True,
        "offload_price": 0.5,
        "request_price": 0.125,
        "n_values": 2,
        "dtype": np.dtype(np.float32),
        "truth": np.ones(n_rows, np.int64),
        "last_stage": np.zeros(n_rows, np.int64),
        "is_offloaded": is_offloaded,
        "local_route": np.zeros(n_rows, np.int64),
        "local_label": np.where(is_offloaded, 0, 1),
        "local_cost": np.ones(n_rows),
        "cloud_label": np.ones(n_rows, np.int64),
        "request_cost": np.full(n_rows, 3.0),
        "request_only_cost": 3.0,
        "confidence": np.linspace(0.5, 1, n_rows, dtype=np.float32),
        "feature_sets": np.array([[True, False], [True, True], [True, True]]),
        "local_set_index": np.zeros(n_rows, np.int64),
        "request_set_index": np.ones(n_rows, np.int64),
    }
    return RowTable(**fields | changed_fields)


def write_link(folder: Path, **fields: Any) -> str:
    """Write a link file; return its path for a scenario's `link`."""
    path = folder / f"{fields.get('name', 'link')}.toml"
    path.write_text("".join(f"{key} = {value!r}\n" for key, value in fields.items()))
    return str(path)


def make_scenario(**changes: Any) -> Scenario:
    """Make a scenario of one device, without link delays and with a very long deadline."""
    fields = {"devices": 1, "time": "10min", "link": "none", "deadline_ms": 1e6}
    return Scenario(**fields | changes)


def arrivals_at(times: Sequence[float], *, row_numbers: Sequence[int] | None = None) -> Arrivals:
    """Make instances of device 0 at given times, by default of row 0."""
    zeros = np.zeros(len(times), np.int32)
    return Arrivals(
        np.asarray(times, np.float64),
        zeros,
        zeros if row_numbers is None else np.asarray(row_numbers, np.int32),
    )


def system_policy(table: RowTable, **changes: Any) -> FleetPolicy:
    """Make the policy of the operating point."""
    fields: dict[str, Any] = {
        "key": "system",
        "name": "Gatewise",
        "is_offloaded": table.is_offloaded,
    }
    return FleetPolicy(**fields | {"has_audits_and_limit": True} | changes)


def run_policy(
    table: RowTable, scenario: Scenario, timings: Timings = RUN_TIMINGS, **options: Any
) -> FleetRun:
    """Run a fleet with the system's policy, or with the option `policy`."""
    policy = options.pop("policy", None) or system_policy(table)
    return run_fleet(table, scenario, policy, timings, **options)


def make_policy_result(
    table: RowTable,
    scenario: Scenario,
    fleet_run: FleetRun,
    *,
    energy: DeviceEnergy | None = None,
    prices: Prices | None = None,
) -> PolicyResult:
    """Make the report's record of a run."""
    policy_figures = PolicyFigures(
        run=fleet_run,
        table=table,
        scenario=scenario,
        energy=energy or DeviceEnergy(),
        prices=prices,
        feature_names=("a", "b"),
    )
    return policy_figures.make_result("system", "Gatewise", "virtual")
