"""How fast a fleet is simulated, and how near sampled figures are to stepping everything.

    python -m benchmarks.bench_fleet [--quick]

Digits, two linear stages and extra trees in the cloud, Poisson arrivals of one a minute a device,
4G. The runs are taken in turns, each in a process of its own. Writes fleet.json and fleet.md into
benchmarks/results; a quick look, with a tenth of the large fleets, into .bench-cache/quick.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import harness
from benchmarks.fleet.run import Run, prepare
from gatewise.console import note

PACKAGES = ("gatewise", "numpy", "joblib")
DAY = 86_400.0
MILLION = 1_000_000
RUNS: dict[str, Run] = {
    "stepped 1,000": Run(1_000, 2, whole=True),
    "stepped 2,000": Run(2_000, 4, whole=True),
    "sampled 1,000": Run(1_000, 2, requests=20_000),
    "a million": Run(MILLION, 20, jobs=2),
    "a million, one process": Run(MILLION, 20),
    "a million, 4 % offloaded": Run(MILLION, 20, jobs=2, offload=0.04),
    "a million, cloud down for 10 min": Run(MILLION, 20, jobs=2, outage=600.0),
    "two million": Run(2 * MILLION, 40, jobs=2),
}
ONCE = ("a million, one process", "a million, 4 % offloaded")
"""Runs that are not repeated."""
TARGETS: dict[str, tuple[str, str, float]] = {
    "day_seconds": ("a day of 10^6 devices on two cores, s", "at most", 60.0),
    "outage_day_seconds": ("the same, the cloud down for 10 min, s", "at most", 60.0),
    "peak_mb": ("memory of all its processes, MB", "at most", 2048.0),
    "stepped_ratio": ("processor time, 2,000 devices over 1,000, stepped whole", "at most", 2.2),
    "sampled_ratio": ("processor time, 2 * 10^6 devices over 10^6, sampled", "at most", 2.2),
    "largest_error": ("largest error of sampling at 1,000 devices, %", "at most", 5.0),
}
JUDGED = (
    "accuracy", "offload_rate", "cost", "feature_cost", "bytes_up", "bytes_down", "radio_j",
    "offloaded_p50", "offloaded_p95", "offloaded_p99",
)  # fmt: skip
"""Figures whose errors count; counts of rare events are no part of them."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; returns the exit status: 2 for bad input, 130 after Ctrl-C."""
    parser = harness.parser("bench_fleet", __doc__, "an hour of a tenth, once: only a look")
    parser.add_argument("--turns", type=int, default=3, help="times that each run is taken")
    options = parser.parse_args(arguments)
    seconds, turns = (DAY / 24, 1) if options.quick else (DAY, max(1, options.turns))

    def action() -> int:
        found = document(
            _measure(seconds, turns, quick=options.quick), seconds=seconds, quick=options.quick
        )
        harness.write_results(harness.out_folder(options), "fleet", found, markdown(found))
        return 0

    return harness.run_command(action)


def _measure(seconds: float, turns: int, *, quick: bool) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in RUNS}
    with tempfile.TemporaryDirectory() as folder:
        routes = Path(folder) / "routes.pickle"
        prepare(routes)
        for turn in range(turns):
            for name, run in RUNS.items():
                if turn and name in ONCE:
                    continue
                if quick and run.devices >= MILLION:
                    run = run._replace(devices=run.devices // 10, workers=run.workers // 10)
                given = json.dumps(run._asdict() | {"seconds": seconds})
                command = [sys.executable, "-m", "benchmarks.fleet.run", str(routes), given]
                told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
                one = json.loads(told.splitlines()[-1])
                found[name].append(one)
                note(
                    f"{name}: {one['seconds']:.1f} s, {one['cpu_seconds']:.1f} s of processor "
                    f"time, {one['peak_mb']:.0f} MB"
                )
    return found


# -- figures -----------------------------------------------------------------------------------


def document(
    found: dict[str, list[dict[str, Any]]], *, seconds: float, quick: bool
) -> dict[str, Any]:
    """Figures, whether the targets hold, and what is needed to repeat them."""
    runs = {name: _median(turns) for name, turns in found.items()}
    errors = _errors(runs["sampled 1,000"]["figures"], runs["stepped 1,000"]["figures"])
    day, outage = runs["a million"], runs["a million, cloud down for 10 min"]
    figures: dict[str, float] = {
        "day_seconds": day["seconds"],
        "outage_day_seconds": outage["seconds"],
        "peak_mb": max(day["peak_mb"], outage["peak_mb"]),
        # Of processor time: other work on the machine is not the fleet's.
        "stepped_ratio": _ratio(runs["stepped 2,000"], runs["stepped 1,000"]),
        "sampled_ratio": _ratio(runs["two million"], day),
        "largest_error": max(abs(errors[name]["percent"]) for name in errors),
    }
    figures = {name: round(value, 2) for name, value in figures.items()}
    return {
        "benchmark": "fleet",
        "quick": quick,
        "settings": {
            "virtual_seconds": seconds,
            "arrivals": "poisson:1/min",
            "link": "4g",
            "offload_rate": {name: run.offload for name, run in RUNS.items()},
            "f0": "extra trees, digits",
        },
        **harness.environment(PACKAGES),
        "figures": figures,
        "holds": {name: figures[name] <= bound for name, (_, _, bound) in TARGETS.items()},
        "runs": runs,
        "errors_of_sampling": errors,
    }


def _median(turns: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The first turn's figures, which are every turn's, with medians of what was measured."""
    measured = ("seconds", "cpu_seconds", "peak_mb")
    medians = {name: round(float(np.median([t[name] for t in turns])), 2) for name in measured}
    each = {f"{name}_each": [round(t[name], 2) for t in turns] for name in measured}
    return turns[0] | medians | each


def _ratio(larger: dict[str, Any], smaller: dict[str, Any]) -> float:
    pairs = zip(larger["cpu_seconds_each"], smaller["cpu_seconds_each"], strict=True)
    return float(np.median([a / b for a, b in pairs]))


def _errors(sampled: dict[str, Any], whole: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """How far sampled figures are from stepping everything, in % of it."""
    found = {}
    for name in JUDGED:
        value, low, high = sampled[name]
        truth = whole[name][0]
        found[name] = {
            "stepped": truth,
            "sampled": value,
            "low": low,
            "high": high,
            "percent": round(100 * (value / truth - 1), 2),
            "inside": low <= truth <= high,
        }
    return found


def markdown(found: dict[str, Any]) -> str:
    """The page."""
    settings = found["settings"]
    lines = [
        "# A simulated fleet",
        "",
        f"{settings['virtual_seconds'] / 3600:g} h of one instance a minute a device, "
        f"{settings['link']}, {settings['f0']}; {found['machine']['cores']} cores. Medians of "
        "runs taken in turns; memory is the sum of each process's highest. `make bench-fleet` "
        "writes this page.",
        "",
        *harness.targets_table(TARGETS, found),
        "",
        "| run | offloaded | processes | s | processor s | MB | events | stepped |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, run in found["runs"].items():
        lines.append(
            f"| {name} | {100 * run['figures']['offload_rate'][0]:.1f} % | {run['jobs']} | "
            f"{run['seconds']:.1f} | {run['cpu_seconds']:.1f} | {run['peak_mb']:.0f} | "
            f"{run['events']:,} | {run['stepped']} |"
        )
    lines += [
        "",
        "Sampled against stepped whole, 1,000 devices, with 95 % intervals:",
        "",
        "| figure | stepped whole | sampled | interval | error |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name, e in found["errors_of_sampling"].items():
        lines.append(
            f"| {name} | {e['stepped']:.4g} | {e['sampled']:.4g} | {e['low']:.4g} to "
            f"{e['high']:.4g} | {e['percent']:+.2f} % |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
