"""Runs of a scenario under the system's policy and other policies, and their report."""

from __future__ import annotations

import platform
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from gatewise.columns.cells import UNKNOWN_CLASS
from gatewise.console import Progress, as_json_value, progress
from gatewise.errors import InputError
from gatewise.formats import duration
from gatewise_export.bundle.bundle import Bundle
from gatewise_sim.errors import RunError
from gatewise_sim.experiment.policies import POLICIES, PolicyContext, system_policy
from gatewise_sim.experiment.policy_figures import PolicyFigures
from gatewise_sim.experiment.promise import broken_promise
from gatewise_sim.experiment.row_table import make_row_table
from gatewise_sim.experiment.rows import Rows
from gatewise_sim.experiment.simulated_bundle import at_goal, frontier_points, on_disk
from gatewise_sim.experiment.stage_report import stage_results
from gatewise_sim.fleet.energy import DeviceEnergy, Prices
from gatewise_sim.fleet.results import (
    CLOUD,
    EDGE,
    NO_LABEL,
    Answers,
    FleetRun,
    RowTable,
)
from gatewise_sim.fleet.run import MAX_REQUESTS, FleetPolicy, choose_devices, run_fleet
from gatewise_sim.report.document import (
    EnergyUse,
    EngineName,
    FaultSpan,
    PolicyResult,
    Report,
    RowCheck,
    Transport,
    TwinFigures,
    value,
)
from gatewise_sim.scenario import Scenario
from gatewise_sim.timings import Timings

if TYPE_CHECKING:
    from gatewise_sim.live.run import LiveRun

_TWIN_MS: Final = ("p50", "p95", "offloaded_p50", "offloaded_p95")
#: Largest number of simulated requests of a baseline, which need not be as precise as the system.
_BASELINE_REQUESTS: Final = MAX_REQUESTS // 2
_VERSIONS: Final = ("gatewise", "numpy", "onnxruntime")


@dataclass(frozen=True, eq=False, kw_only=True)
class Prepared:
    """A scenario with its files read and checked.

    `bundle` is at its operating point, and `table` holds the outcomes of the rows.
    """

    scenario: Scenario
    rows: Rows
    bundle: Bundle
    table: RowTable
    timings: Timings
    energy: DeviceEnergy
    prices: Prices | None

    @property
    def policy(self) -> FleetPolicy:
        """Policy that the fleet runs."""
        return system_policy(self.scenario, self.table)

    def result(
        self, run: FleetRun, policy: FleetPolicy, engine: EngineName = "virtual"
    ) -> PolicyResult:
        """Make the report's record of a policy's run."""
        figures = PolicyFigures(
            run=run,
            table=self.table,
            scenario=self.scenario,
            energy=self.energy,
            prices=self.prices,
            feature_names=self.bundle.manifest.feature_names,
        )
        return figures.result(policy.key, policy.name, engine)


def prepare(bundle: Bundle, rows: Rows, scenario: Scenario) -> Prepared:
    """Read the files that a scenario names, and compute the outcomes of the rows."""
    bundle = at_goal(bundle, scenario.goal)
    manifest = bundle.manifest
    energy = DeviceEnergy()
    if scenario.device_energy is not None:
        energy = DeviceEnergy.from_file(
            scenario.device_energy, manifest.feature_names, len(manifest.stages)
        )
    prices = None if scenario.prices is None else Prices.from_file(scenario.prices)
    _check_mix(scenario, rows)
    if scenario.engine == "live":
        from gatewise_sim.live.run import check_live

        check_live(scenario)
    table, timings = make_row_table(bundle, rows.X, rows.truth, backend=scenario.backend)
    if scenario.timings is not None:
        timings = scenario.timings
        if len(timings.edge_ms) != table.n_stages:
            raise InputError(
                f"timings: edge_ms has {len(timings.edge_ms)} entries; {table.n_stages} stages run "
                "on the device"
            )
    return Prepared(
        scenario=scenario,
        rows=rows,
        bundle=bundle,
        table=table,
        timings=timings,
        energy=energy,
        prices=prices,
    )


def _check_mix(scenario: Scenario, rows: Rows) -> None:
    if scenario.mix is None:
        return
    if rows.truth is None:
        raise InputError("mix: the shares of the classes need the rows' labels (--target)")
    unknown = int((rows.truth == UNKNOWN_CLASS).sum() + (rows.truth == NO_LABEL).sum())
    if unknown:
        raise InputError(f"mix: {unknown} rows have a label that is not a class of the bundle")


def run_scenario(prepared: Prepared, command: str) -> Report:
    """Run the system and its baselines.

    `command` is the command line or call that repeats the run, for the report.
    """
    scenario = prepared.scenario
    with progress("simulate") as report_progress:
        watch = _RunProgress(report_progress, scenario.seconds)
        policy = prepared.policy
        watch.begin(policy.name)
        transport = Transport(kind="virtual", broker="simulated", link=scenario.link_profile.name)
        extra: dict[str, Any] = {"timings": prepared.timings, "transport": transport}
        if scenario.engine == "live":
            run, extra = _run_live(prepared, policy, watch)
        else:
            run = _run_virtual(prepared, policy, prepared.timings, watch)
        results = [prepared.result(run, policy, scenario.engine)]
        weights = np.bincount(run.answers.row, minlength=len(prepared.table)).astype(np.float64)
        del run
        if scenario.baselines:
            context = PolicyContext(
                table=prepared.table,
                weights=weights,
                offload_rate=results[0].offload_rate.value,
                labelled=prepared.rows.truth is not None,
                scenario=scenario,
            )
            for compared in POLICIES:
                baseline = compared.make(context)
                watch.begin(compared.name)
                if baseline is not None:
                    # Keep one run at a time, because its columns need most of the memory.
                    run = _run_virtual(prepared, baseline, extra["timings"], watch)
                    results.append(prepared.result(run, baseline))
                    del run
    return _report(prepared, results, weights, command, extra)


class _RunProgress:
    """Progress bar with equal parts for the system and each baseline."""

    def __init__(self, report: Progress, seconds: float) -> None:
        self._report = report
        self._seconds = seconds
        self._number = -1
        self._name = ""

    def begin(self, name: str) -> None:
        """Start the part of the policy with this name."""
        self._number += 1
        self._name = name

    def __call__(self, now: float, n_instances: int) -> None:
        """Report that the current policy's run has reached the time `now`, in s."""
        share = min(now / self._seconds, 1.0)
        self._report(self._number + share, 1 + len(POLICIES), self._name)


def _run_virtual(
    prepared: Prepared,
    policy: FleetPolicy,
    timings: Timings,
    watch: Callable[[float, int], object],
) -> FleetRun:
    """Run a policy in virtual time; a baseline simulates fewer requests than the system."""
    scenario = prepared.scenario
    table = prepared.table
    requests = MAX_REQUESTS if policy.key == "system" else _BASELINE_REQUESTS
    n_devices = choose_devices(table, scenario, policy, max_requests=requests)
    return run_fleet(table, scenario, policy, timings, n_devices=n_devices, watch=watch)


def _report(
    prepared: Prepared,
    results: list[PolicyResult],
    weights: NDArray[np.float64],
    command: str,
    extra: dict[str, Any],
) -> Report:
    scenario = prepared.scenario
    table = prepared.table
    manifest = prepared.bundle.manifest
    fields = {
        "dataset": prepared.rows.name,
        "method": f"{table.model}/{table.version}",
        "features": manifest.feature_names,
        "stages": stage_results(manifest, table, results[0].instances, weights),
        "frontier": frontier_points(prepared.bundle),
        "faults": tuple(
            FaultSpan(what=component, begin=begin, end=end, count=count)
            for component, begin, end, count in scenario.outages.faults()
        ),
        "energy": EnergyUse(
            radio=scenario.link_profile.radio.name, battery_wh=prepared.energy.battery_wh
        ),
        "settings": as_json_value(scenario.as_dict()),
        "command": command,
        "versions": {"python": platform.python_version()}
        | {name: version(name) for name in _VERSIONS},
        "promise": broken_promise(manifest, table),
        "notes": _notes(prepared),
    }
    return Report.from_policies(results, **fields | extra)


def _notes(prepared: Prepared) -> tuple[str, ...]:
    """Write remarks that the other keys of the report do not contain."""
    scenario = prepared.scenario
    notes = list(prepared.rows.notes)
    if scenario.policy != "system":
        notes.append(
            f"The fleet runs the policy {scenario.policy}; the table of stages shows the "
            "decisions of the operating point's thresholds."
        )
    notes += [
        f"The outage of the {component} is not within the run, which takes "
        f"{duration(scenario.seconds)}; change --time or the setting day_start."
        for component in scenario.outages.unreached()
    ]
    if prepared.bundle.manifest.signal is not None and scenario.engine == "virtual":
        notes.append(
            "Latencies do not include the time that a device needs to compute features of a window."
        )
    if not prepared.table.has_cloud:
        notes.append("The bundle has no cloud model, so devices answer every instance.")
    return tuple(notes)


# -- the live engine -----------------------------------------------------------------------------


def _run_live(
    prepared: Prepared, policy: FleetPolicy, watch: Callable[[float, int], object]
) -> tuple[FleetRun, dict[str, Any]]:
    """Run the system with real processes, and the same arrivals again in virtual time.

    Returns the run, and the fields of the report that only a live run has.
    """
    from gatewise_sim.live.run import run_live

    scenario = prepared.scenario
    table = prepared.table
    manifest = prepared.bundle.manifest
    if prepared.rows.raw is None and (manifest.encoder is not None or manifest.signal is not None):
        raise InputError("devices of this bundle need raw rows; give them instead of features")
    with on_disk(prepared.bundle) as path:
        live = run_live(path, prepared.rows.instances, scenario, table, watch=watch)
    if not len(live.fleet.answers):
        raise RunError("live run", "; ".join(live.troubles) or "no instance was answered")
    twin = run_fleet(
        table, scenario, policy, live.timings, arrivals=scenario.arrivals(len(table), table.truth)
    )
    extra = {
        "timings": live.timings,
        "transport": Transport(kind="mqtt", broker=live.broker, link=scenario.link_profile.name),
        "checked": _check_rows(live.fleet.answers, table),
        "twin": TwinFigures(
            live=_figures(prepared.result(live.fleet, policy, "live")),
            virtual=_figures(prepared.result(twin, policy)),
        ),
        "troubles": tuple(live.troubles),
        "run": as_json_value(_run_figures(live)),
    }
    return live.fleet, extra


def _run_figures(live: LiveRun) -> dict[str, Any]:
    """Collect the figures that depend on the machine and the time of a live run."""
    return {
        "seconds": round(live.fleet.seconds, 3),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": f"{platform.system()} {platform.machine()}",
        "cpu_seconds": round(live.cpu_seconds, 3),
        "peak_mb": round(live.peak_mb, 1),
        "behind_ms": live.behind_ms,
        "faults": live.faults,
        "devices": dict(live.fleet.counts),
        "workers": dict(live.fleet.workers),
    }


def _check_rows(answers: Answers, table: RowTable) -> RowCheck:
    """Compare each answer's label, route and cost with the row's outcome in the table.

    Fallbacks and errors are excluded because they depend on timing.
    """
    compared = np.isin(answers.route, (EDGE, CLOUD))
    row = answers.row[compared]
    by_cloud = answers.route[compared] == CLOUD
    offloaded = table.offload[row]
    label = np.where(offloaded, table.cloud_label[row], table.local_label[row])
    cost = np.where(offloaded, table.request_cost[row] + table.offload_price, table.local_cost[row])
    differing = {
        "labels": answers.label[compared] != label,
        "routes": by_cloud != offloaded,
        "costs": answers.cost[compared] != cost,
    }
    return RowCheck(
        compared=int(compared.sum()),
        differing={name: int(np.count_nonzero(rows)) for name, rows in differing.items()},
    )


def _figures(result: PolicyResult) -> dict[str, float | None]:
    """Collect the means per instance and the latencies (ms) for the comparison with the twin."""
    return {
        "accuracy": value(result.accuracy),
        "offload_rate": result.offload_rate.value,
        "fallback": result.answers.fallback / result.instances,
        "cost": result.cost.value,
        "bytes_up": result.bytes.up.value,
        "bytes_down": result.bytes.down.value,
        "joules": result.joules.total,
        **{f"{name}_ms": value(result.latency_ms.get(name)) for name in _TWIN_MS},
    }
