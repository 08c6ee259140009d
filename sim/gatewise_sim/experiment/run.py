"""Runs of a scenario under the system's policy and other policies, and their report."""

from __future__ import annotations

import platform
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from gatewise.columns.cells import UNKNOWN_CLASS
from gatewise.console import Progress, as_json_value, progress
from gatewise.errors import InputError
from gatewise.formats import duration
from gatewise_export.bundle.bundle import Bundle
from gatewise_sim.errors import RunError
from gatewise_sim.experiment.policies import (
    compared_policies,
    count_compared_policies,
    system_policy,
)
from gatewise_sim.experiment.policy_figures import PolicyFigures
from gatewise_sim.experiment.promise import broken_promise
from gatewise_sim.experiment.row_table import make_row_table
from gatewise_sim.experiment.rows import Rows
from gatewise_sim.experiment.simulated_bundle import bundle_at_goal, bundle_on_disk, frontier_points
from gatewise_sim.experiment.stage_report import list_stage_results
from gatewise_sim.fleet.energy import DeviceEnergy, Prices
from gatewise_sim.fleet.results import CLOUD, EDGE, NO_LABEL, Answers, FleetRun, RowTable
from gatewise_sim.fleet.run import MAX_REQUESTS, FleetPolicy, choose_n_devices, run_fleet
from gatewise_sim.report.document import (
    EnergyUse,
    EngineFigures,
    Report,
    RowCheck,
    Transport,
)
from gatewise_sim.report.policy_result import EngineName, PolicyResult, value_of
from gatewise_sim.scenario import Scenario
from gatewise_sim.timings import Timings

if TYPE_CHECKING:
    from gatewise_sim.live.run import LiveRun

#: Latencies of a live run that are compared with virtual time.
_COMPARED_LATENCIES: Final = ("p50", "p95", "offloaded_p50", "offloaded_p95")
#: Largest number of simulated requests of a baseline, which need not be as precise as the system.
_MAX_BASELINE_REQUESTS: Final = MAX_REQUESTS // 2
#: Packages with versions on which the figures of a report may depend.
_VERSIONED_PACKAGES: Final = ("gatewise", "numpy", "onnxruntime")


@dataclass(frozen=True, eq=False, kw_only=True)
class Experiment:
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

    def make_result(
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
        return figures.make_result(policy.key, policy.name, engine)


def prepare_experiment(bundle: Bundle, rows: Rows, scenario: Scenario) -> Experiment:
    """Read the files that a scenario names, and compute the outcomes of the rows."""
    bundle = bundle_at_goal(bundle, scenario.goal)
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
    table, timings = make_row_table(
        bundle, rows.X, rows.truth, backend=scenario.backend, timings=scenario.timings
    )
    return Experiment(
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
    n_unknown = int((rows.truth == UNKNOWN_CLASS).sum() + (rows.truth == NO_LABEL).sum())
    if n_unknown:
        raise InputError(f"mix: {n_unknown} rows have a label that is not a class of the bundle")


def run_scenario(experiment: Experiment, command: str) -> Report:
    """Run the system and its baselines.

    `command` is the command line or call that repeats the run, for the report. Raises InputError if
    an outage has more workers than the fleet.
    """
    scenario = experiment.scenario
    # only now, because a sweep sets the workers of each of its runs
    n_stopped = max((window.n_workers for window in scenario.outages.windows), default=1)
    if n_stopped > scenario.workers:
        raise InputError(
            f"outage of {n_stopped} workers: the fleet has only {scenario.workers} (--workers)"
        )
    n_baselines = count_compared_policies(experiment.table) if scenario.baselines else 0
    with progress("simulate") as report_progress:
        run_progress = _RunProgress(report_progress, scenario.seconds, 1 + n_baselines)
        policy = experiment.policy
        run_progress.begin(policy.name)
        transport = Transport(kind="virtual", broker="simulated", link=scenario.link_profile.name)
        engine_fields: dict[str, Any] = {"timings": experiment.timings, "transport": transport}
        if scenario.engine == "live":
            run, engine_fields = _run_live(experiment, policy, run_progress)
        else:
            run = _run_virtual(experiment, policy, experiment.timings, run_progress)
        results = [experiment.make_result(run, policy, scenario.engine)]
        row_weights = np.bincount(run.answers.row, minlength=len(experiment.table)).astype(
            np.float64
        )
        del run
        if scenario.baselines:
            for baseline in compared_policies(
                experiment.table, row_weights, results[0].offload_rate.value
            ):
                run_progress.begin(baseline.name)
                # Keep one run at a time, because its columns need most of the memory.
                run = _run_virtual(experiment, baseline, engine_fields["timings"], run_progress)
                results.append(experiment.make_result(run, baseline))
                del run
    return _make_report(experiment, results, row_weights, command, engine_fields)


class _RunProgress:
    """Progress bar with equal parts for the system and each baseline."""

    def __init__(self, report_progress: Progress, seconds: float, n_policies: int) -> None:
        self._report_progress = report_progress
        self._seconds = seconds
        self._n_policies = n_policies
        self._policy_index = -1
        self._policy_name = ""

    def begin(self, policy_name: str) -> None:
        """Start the part of the policy with this name."""
        self._policy_index += 1
        self._policy_name = policy_name

    def __call__(self, now: float, n_instances: int) -> None:
        """Report that the current policy's run has reached the time `now`, in s."""
        progress_share = min(now / self._seconds, 1.0)
        self._report_progress(
            self._policy_index + progress_share, self._n_policies, self._policy_name
        )


def _run_virtual(
    experiment: Experiment,
    policy: FleetPolicy,
    timings: Timings,
    on_progress: Callable[[float, int], object],
) -> FleetRun:
    """Run a policy in virtual time; a baseline simulates fewer requests than the system."""
    scenario = experiment.scenario
    table = experiment.table
    max_requests = MAX_REQUESTS if policy.key == "system" else _MAX_BASELINE_REQUESTS
    n_devices = choose_n_devices(table, scenario, policy, max_requests=max_requests)
    return run_fleet(table, scenario, policy, timings, n_devices=n_devices, on_progress=on_progress)


def _make_report(
    experiment: Experiment,
    results: list[PolicyResult],
    row_weights: NDArray[np.float64],
    command: str,
    engine_fields: dict[str, Any],
) -> Report:
    scenario = experiment.scenario
    table = experiment.table
    manifest = experiment.bundle.manifest
    report_fields = {
        "dataset": experiment.rows.name,
        "method": f"{table.model}/{table.version}",
        "features": manifest.feature_names,
        "stages": list_stage_results(manifest, table, results[0].instances, row_weights),
        "frontier": frontier_points(experiment.bundle),
        "faults": tuple(scenario.outages.spans_within_run()),
        "energy": EnergyUse(
            radio=scenario.link_profile.radio.name, battery_wh=experiment.energy.battery_wh
        ),
        "settings": as_json_value(scenario.as_dict()),
        "command": command,
        "versions": {"python": platform.python_version()}
        | {name: version(name) for name in _VERSIONED_PACKAGES},
        "promise": broken_promise(manifest, table),
        "notes": _make_notes(experiment),
    }
    return Report.from_policies(results, **report_fields | engine_fields)


def _make_notes(experiment: Experiment) -> tuple[str, ...]:
    """Write remarks that the other keys of the report do not contain."""
    scenario = experiment.scenario
    notes = list(experiment.rows.notes)
    if scenario.policy != "system":
        notes.append(
            f"The fleet runs the policy {scenario.policy}; the table of stages shows the "
            "decisions of the operating point's thresholds."
        )
    notes += [
        f"The outage of the {component} is not within the run, which takes "
        f"{duration(scenario.seconds)}; change --time or the setting day_start."
        for component in scenario.outages.components_outside_run()
    ]
    if experiment.bundle.manifest.signal is not None and scenario.engine == "virtual":
        notes.append(
            "Latencies do not include the time that a device needs to compute features of a window."
        )
    if not experiment.table.has_cloud:
        notes.append("The bundle has no high-cost model, so devices answer every instance.")
    return tuple(notes)


# -- the live engine -----------------------------------------------------------------------------


def _run_live(
    experiment: Experiment, policy: FleetPolicy, on_progress: Callable[[float, int], object]
) -> tuple[FleetRun, dict[str, Any]]:
    """Run the system with real processes, and the same arrivals again in virtual time.

    Returns the run, and the fields of the report that only a live run has.
    """
    from gatewise_sim.live.run import run_live

    scenario = experiment.scenario
    table = experiment.table
    manifest = experiment.bundle.manifest
    if experiment.rows.raw_rows is None and (
        manifest.encoder is not None or manifest.signal is not None
    ):
        raise InputError("devices of this bundle need raw rows; give them instead of features")
    with bundle_on_disk(experiment.bundle) as path:
        live_run = run_live(
            path, experiment.rows.instances, scenario, table, on_progress=on_progress
        )
    if not len(live_run.fleet.answers):
        raise RunError("live run", "; ".join(live_run.troubles) or "no instance was answered")
    timings = _complete_timings(live_run.timings, experiment.timings)
    virtual_run = run_fleet(
        table,
        scenario,
        policy,
        timings,
        arrivals=scenario.draw_fleet_arrivals(len(table), table.truth),
    )
    engine_fields = {
        "timings": timings,
        "transport": Transport(
            kind="mqtt", broker=live_run.broker, link=scenario.link_profile.name
        ),
        "checked": _compare_with_table(live_run.fleet.answers, table),
        "twin": EngineFigures(
            live=_collect_engine_figures(experiment.make_result(live_run.fleet, policy, "live")),
            virtual=_collect_engine_figures(experiment.make_result(virtual_run, policy)),
        ),
        "troubles": tuple(live_run.troubles),
        "run": as_json_value(_collect_run_figures(live_run)),
    }
    return live_run.fleet, engine_fields


def _complete_timings(live_timings: Timings, table_timings: Timings) -> Timings:
    """Replace the times that a live run could not measure by those of the rows' table."""
    names = live_timings.assumed
    return msgspec.structs.replace(
        live_timings,
        **{name: getattr(table_timings, name) for name in names},
        assumed=tuple(name for name in names if name in table_timings.assumed),
    )


def _collect_run_figures(live_run: LiveRun) -> dict[str, Any]:
    """Collect the figures that depend on the machine and the time of a live run."""
    return {
        "seconds": round(live_run.fleet.seconds, 3),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": f"{platform.system()} {platform.machine()}",
        "cpu_seconds": round(live_run.cpu_seconds, 3),
        "peak_mb": round(live_run.peak_mb, 1),
        "behind_ms": live_run.send_delay_ms,
        "faults": live_run.faults,
        "devices": dict(live_run.fleet.device_counts),
        "workers": dict(live_run.fleet.worker_counts),
    }


def _compare_with_table(answers: Answers, table: RowTable) -> RowCheck:
    """Compare each answer's label, route and cost with the row's outcome in the table.

    Fallbacks and errors are excluded because they depend on timing.
    """
    is_compared = np.isin(answers.route, (EDGE, CLOUD))
    rows = answers.row[is_compared]
    is_cloud = answers.route[is_compared] == CLOUD
    differences = {
        "labels": answers.label[is_compared] != table.label[rows],
        "routes": is_cloud != table.is_offloaded[rows],
        "costs": answers.cost[is_compared] != table.cost[rows],
    }
    return RowCheck(
        compared=int(is_compared.sum()),
        differing={
            name: int(np.count_nonzero(is_different)) for name, is_different in differences.items()
        },
    )


def _collect_engine_figures(policy_result: PolicyResult) -> dict[str, float | None]:
    """Collect the means per instance and the latencies (ms) for the comparison with the twin."""
    return {
        "accuracy": value_of(policy_result.accuracy),
        "offload_rate": policy_result.offload_rate.value,
        "fallback": policy_result.answers.fallback / policy_result.instances,
        "cost": policy_result.cost.value,
        "bytes_up": policy_result.bytes.up.value,
        "bytes_down": policy_result.bytes.down.value,
        "joules": policy_result.joules.total,
        **{
            f"{name}_ms": value_of(policy_result.latency_ms.get(name))
            for name in _COMPARED_LATENCIES
        },
    }
