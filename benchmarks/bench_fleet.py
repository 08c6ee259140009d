"""Time of a simulated fleet, and the error if only a part of it is simulated.

    python -m benchmarks.bench_fleet [--quick] [--only NAME]

The fleet answers digits with two linear stages and extra trees in the cloud, over 4G, with one
instance per minute and device (Poisson). Each run simulates the system and all baselines in a new
process. The benchmark writes fleet.json and fleet.md to benchmarks/results. With ``--quick`` it
simulates an hour instead of a day, and writes to .bench-cache/quick.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import numpy as np

from benchmarks import harness
from benchmarks.cache import CACHE
from benchmarks.harness import Column
from gatewise.console import note
from gatewise_sim.experiment.run import Experiment, run_scenario
from gatewise_sim.experiment.simulation import Job
from gatewise_sim.fleet.run import run_fleet
from gatewise_sim.report.policy_result import Estimate, PolicyResult
from gatewise_sim.scenario import Scenario
from gatewise_sim.timings import Timings

_FOLDER: Final = CACHE / "fleet"
PACKAGES: Final = ("gatewise", "numpy")


class Run(NamedTuple):
    """Settings of a run."""

    n_devices: int
    n_workers: int
    outages: tuple[str, ...] = ()


RUNS: Final = {
    "1,000 devices": Run(1_000, 1),
    "100,000 devices": Run(100_000, 20),
    "100,000 devices, cloud down for 10 min": Run(100_000, 20, ("cloud:12:00-12:10",)),
    "1,000,000 devices": Run(1_000_000, 200),
}
#: Service times of device and worker, fixed so that the runs of two machines are comparable.
_TIMINGS: Final = Timings(edge_ms=(0.05, 0.08), run_us=2000, instance_us=1000, message_us=500)
#: Numbers of devices in the comparison: the whole fleet and a fifth.
_COMPARED_FLEETS: Final = (2_000, 400)
TARGETS: Final = {
    "cpu_seconds": ("a day of 100,000 devices, all policies, CPU s", "at most", 60.0),
    "million_cpu_seconds": ("a day of 1,000,000 devices, all policies, CPU s", "at most", 60.0),
    "peak_mb": ("memory, MB", "at most", 500.0),
    "largest_error": ("largest error of a fifth of the devices, %", "at most", 5.0),
}


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Measure each run, and the error of simulating a part of the devices, in a new process."""
    write_inputs()
    simulated_time = "1h" if options.quick else "1day"
    runs = {}
    for name in (*RUNS, "error"):
        runs[name] = harness.call_in_process(run_part, name, simulated_time)
        note(f"{name}: {runs[name]}")
    return collect_results(runs, simulated_time)


def run_part(name: str, simulated_time: str) -> dict[str, Any]:
    """Measure the time and memory of one run, or the error of simulating a part of the devices."""
    if name == "error":
        return compare_fleets(simulated_time)
    run = RUNS[name]
    experiment = _prepare_experiment(
        _scenario(run.n_devices, run.n_workers, simulated_time).changed(outage=run.outages)
    )
    start_time = time.process_time()
    report = run_scenario(experiment, "")
    return {
        "cpu_seconds": round(time.process_time() - start_time, 2),
        "peak_mb": round(harness.memory(peak=True) / 1e6, 1),
        "instances": report.instances,
        "offload_rate": report.offload_rate,
        "policies": {policy.key: policy.sampling for policy in report.policies},
    }


def _scenario(devices: int, workers: int, simulated_time: str) -> Scenario:
    return Scenario(
        devices=devices, workers=workers, time=simulated_time, link="4g", timings=_TIMINGS
    )


def _prepare_experiment(scenario: Scenario) -> Experiment:
    """Read the inputs as `gatewise simulate` does, so that the peak memory is comparable."""
    bundle = (_FOLDER / "bundle").read_text()
    return Job(bundle, str(_FOLDER / "rows.csv"), "label", scenario).prepare()


def write_inputs() -> None:
    """Write the path of the bundle, and its rows as CSV."""
    # Import it here, because it imports the training packages, which would count as memory.
    from benchmarks.data.fleet_bundles import fleet_bundle

    digits = fleet_bundle("digits")
    _FOLDER.mkdir(parents=True, exist_ok=True)
    (_FOLDER / "bundle").write_text(str(digits.bundle.path))
    header = ",".join([*digits.bundle.manifest.feature_names, "label"])
    table = np.column_stack([digits.rows, digits.truth])
    np.savetxt(_FOLDER / "rows.csv", table, "%g", ",", header=header, comments="")


def compare_fleets(simulated_time: str) -> dict[str, Any]:
    """Simulate the whole fleet and a part of it, and collect the figures of both."""
    n_all, n_part = _COMPARED_FLEETS
    experiment = _prepare_experiment(_scenario(n_all, 2, "1h" if simulated_time == "1h" else "3h"))
    figures_of_fleets = []
    for n_devices in (n_all, n_part):
        run = run_fleet(
            experiment.table,
            experiment.scenario,
            experiment.policy,
            experiment.timings,
            n_devices=n_devices,
        )
        figures_of_fleets.append(figures(experiment.make_result(run, experiment.policy)))
    return {"whole": figures_of_fleets[0], "part": figures_of_fleets[1]}


def figures(result: PolicyResult) -> dict[str, list[float | None]]:
    """Collect the compared figures with their intervals."""
    estimate_by_name: dict[str, Estimate | None] = {
        "accuracy": result.accuracy,
        "offload_rate": result.offload_rate,
        "cost": result.cost,
        "bytes_up": result.bytes.up,
        "bytes_down": result.bytes.down,
        "offloaded_p50": result.latency_ms["offloaded_p50"],
        "offloaded_p95": result.latency_ms["offloaded_p95"],
        "radio_j": Estimate(value=result.joules.radio),
    }
    return {
        name: [estimate.value, estimate.low, estimate.high]
        for name, estimate in estimate_by_name.items()
        if estimate is not None
    }


def collect_results(runs: dict[str, dict[str, Any]], simulated_time: str) -> dict[str, Any]:
    """Collect the figures and the targets that hold."""
    runs = dict(runs)
    comparison = runs.pop("error")
    errors_percent = {
        name: round(100 * (comparison["part"][name][0] / values[0] - 1), 2)
        for name, values in comparison["whole"].items()
    }
    target_figures = {
        "cpu_seconds": runs["100,000 devices"]["cpu_seconds"],
        "million_cpu_seconds": runs["1,000,000 devices"]["cpu_seconds"],
        "peak_mb": max(run["peak_mb"] for run in runs.values()),
        "largest_error": max(map(abs, errors_percent.values())),
    }
    return {
        "benchmark": "fleet",
        "length": simulated_time,
        "figures": target_figures,
        "holds": harness.targets_met(TARGETS, target_figures),
        "runs": runs,
        "compared": comparison,
        "errors_percent": errors_percent,
    }


def page(results: Mapping[str, Any]) -> list[str]:
    """Write the page."""
    runs = [{"name": name, **run} for name, run in results["runs"].items()]
    n_all, n_part = _COMPARED_FLEETS
    comparison = results["compared"]
    comparisons = [
        {
            "figure": name,
            "whole": comparison["whole"][name][0],
            "part": comparison["part"][name][0],
            "error_percent": error,
        }
        for name, error in results["errors_percent"].items()
    ]
    return [
        "# A simulated fleet",
        "",
        "`make bench-fleet` writes this page. It simulates devices on 4G that classify one "
        f"instance of digits per minute, with `--time {results['length']}`. Extra trees are the "
        "high-cost model. Each run compares the system with five other policies.",
        "",
        *harness.targets_table(TARGETS, results),
        "",
        *harness.column_table(RUN_COLUMNS, runs),
        "",
        f"The next table compares {n_all:,} devices with a simulation of {n_part} of them.",
        "",
        *harness.column_table(COMPARISON_COLUMNS, comparisons),
    ]


RUN_COLUMNS: Final = (
    Column("run", lambda run: run["name"]),
    Column("CPU s", lambda run: f"{run['cpu_seconds']:.1f}"),
    Column("MB", lambda run: f"{run['peak_mb']:.0f}"),
    Column("the system's run", lambda run: run["policies"]["system"]),
)
COMPARISON_COLUMNS: Final = (
    Column("figure", lambda row: row["figure"]),
    Column("all", lambda row: f"{row['whole']:.4g}"),
    Column("a part", lambda row: f"{row['part']:.4g}"),
    Column("error", lambda row: f"{row['error_percent']:+.2f} %"),
)


BENCHMARK = harness.Benchmark(
    name="fleet",
    quick_help="simulate only an hour of each run",
    packages=PACKAGES,
    measure=measure,
    page=page,
)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main())
