"""How fast a fleet is simulated, and how near the sampled figures are to stepping everything.

    python -m benchmarks.bench_fleet [--quick]

Digits, two linear stages and extra trees in the cloud, Poisson arrivals of one a minute a device,
4G. Each run has a process of its own, which tells its own peak memory. Writes fleet.json into
benchmarks/results; a quick look into .bench-cache/quick.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.cells import CACHE, write_whole
from gatewise_training.console import note

__all__ = ["main"]

PACKAGES = ("gatewise", "numpy")
DAY = 86_400.0
#: Name, devices, workers, whether everything is stepped.
RUNS = (
    ("stepped 1,000", 1_000, 2, True),
    ("stepped 2,000", 2_000, 2, True),
    ("sampled 1,000", 1_000, 2, False),
    ("sampled 1,000,000", 1_000_000, 20, False),
    ("sampled 2,000,000", 2_000_000, 40, False),
)
OFFLOAD_RATE = 0.1


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; returns the exit status."""
    parser = argparse.ArgumentParser(prog="bench_fleet", description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="an hour instead of a day")
    parser.add_argument("--out", type=Path, default=None, help="folder of the results")
    parser.add_argument("--run", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    seconds = DAY / 24 if options.quick else DAY
    if options.run is not None:
        print(json.dumps(_run(options.run, seconds)))
        return 0
    found: dict[str, Any] = {}
    for number, (name, *_) in enumerate(RUNS):
        command = [sys.executable, "-m", "benchmarks.bench_fleet", "--run", str(number)]
        command += ["--quick"] if options.quick else []
        told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        found[name] = json.loads(told.splitlines()[-1])
        run = found[name]
        note(
            f"{name}: {run['seconds']:.1f} s, {run['cpu_seconds']:.1f} s of processor time, "
            f"{run['peak_mb']:.0f} MB"
        )
    whole, sampled = found["stepped 1,000"], found["sampled 1,000"]
    document = {
        "virtual_seconds": seconds,
        "offload_rate": OFFLOAD_RATE,
        "runs": found,
        "twice_the_devices": {
            # Of processor time: other work on the machine is not the fleet's.
            "stepped": found["stepped 2,000"]["cpu_seconds"] / whole["cpu_seconds"],
            "sampled": found["sampled 2,000,000"]["cpu_seconds"]
            / found["sampled 1,000,000"]["cpu_seconds"],
        },
        "sampled_over_stepped": {
            name: sampled["figures"][name][0] / value[0]
            for name, value in whole["figures"].items()
            if value[0]
        },
        "machine": {"python": platform.python_version(), "cpus": os.cpu_count()},
        "versions": {name: version(name) for name in PACKAGES},
    }
    out = options.out or (CACHE / "quick" if options.quick else Path(__file__).parent / "results")
    write_whole(out / "fleet.json", json.dumps(document, indent=1) + "\n")
    note(f"wrote {out / 'fleet.json'}")
    return 0


def _run(number: int, seconds: float) -> dict[str, Any]:
    """Do one of the runs; the fleet is trained and its rows are routed first, untimed."""
    from gatewise_sim import PROFILES, FleetSettings, ServiceTime
    from gatewise_sim.fleet.sampling import plan
    from gatewise_sim.fleet.scale import estimate_fleet

    _, devices, workers, whole = RUNS[number]
    routes = _routes()
    settings = FleetSettings(
        devices=devices,
        workers=workers,
        seconds=seconds,
        workload="poisson:1/min",
        link=PROFILES["4g"],
        service=ServiceTime(0.002, 0.001, message=0.0005),
    )
    if whole:
        chosen = plan(routes, settings, requests=10**9, instances=10**12)
    else:
        few = {} if devices > 10_000 else {"requests": 20_000}
        chosen = plan(routes, settings, **few)
    begun, worked = time.perf_counter(), time.process_time()
    found = estimate_fleet(routes, settings, sampling=chosen)
    took, worked = time.perf_counter() - begun, time.process_time() - worked
    return {
        "devices": devices,
        "workers": workers,
        "plan": str(chosen),
        "seconds": took,
        "cpu_seconds": worked,
        "events": found.events,
        "events_per_cpu_second": found.events / worked,
        "instances": found.instances,
        "utilisation": found.utilisation,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "figures": found.means | found.latency_ms,
    }


def _routes() -> Any:
    import tempfile

    import numpy as np
    from sklearn.ensemble import ExtraTreesClassifier

    from gatewise_export.pack import pack
    from gatewise_sim import Routes
    from gatewise_training import datasets, methods

    data = datasets.load("digits")
    train, test = np.arange(0, 1200), np.arange(1200, len(data.y))
    f0 = ExtraTreesClassifier(100, random_state=0).fit(data.X[train], data.y[train])
    system = methods.cascade(
        "staged",
        high_cost_model=f0,
        n_stages=2,
        families=("linear",),
        offload_rate=OFFLOAD_RATE,
        random_state=0,
    ).fit(data.X[train], data.y[train])
    with tempfile.TemporaryDirectory() as folder:
        bundle = pack(system, Path(folder) / "bundle", sample=data.X[train[:16]])
        return Routes.of(bundle, data.X[test], data.y[test])


if __name__ == "__main__":
    sys.exit(main())
