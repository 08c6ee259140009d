"""One run of :mod:`benchmarks.bench_fleet`, in a process that tells its time and memory.

python -m benchmarks.fleet.run routes.pickle '{"devices": 1000, ...}'
"""

from __future__ import annotations

import json
import os
import pickle
import resource
import sys
import tempfile
import time
from dataclasses import astuple
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

TRAIN = 1200
"""Rows that the system is fitted on."""


class Run(NamedTuple):
    """What is run."""

    devices: int
    workers: int
    whole: bool = False
    #: Stepped at most, about; the default is the plan's own.
    requests: int | None = None
    jobs: int = 1
    offload: float = 0.1
    #: Seconds that the cloud is down, in the middle.
    outage: float = 0.0
    seconds: float = 86_400.0


def prepare(path: Path) -> None:
    """Train the system, and send each test row through it: untimed, and once for all runs."""
    from sklearn.ensemble import ExtraTreesClassifier

    from gatewise_export import pack
    from gatewise_sim import Routes
    from gatewise_training import methods
    from gatewise_training.data import datasets

    data = datasets.load("digits")
    train, test = np.arange(0, TRAIN), np.arange(1200, len(data.y))
    f0 = ExtraTreesClassifier(100, random_state=0).fit(data.X[train], data.y[train])
    system = methods.cascade(
        "staged", high_cost_model=f0, n_stages=2, families=("linear",), offload_rate=0.1,
        random_state=0,
    ).fit(data.X[train], data.y[train])  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        bundle = pack(system, Path(folder) / "bundle", sample=data.X[train[:16]])
        routes = Routes.from_bundle(bundle, data.X[test], data.y[test])
    path.write_bytes(pickle.dumps(routes))


def main(arguments: list[str]) -> int:
    """Run and print a line of JSON."""
    path, given = arguments
    routes = pickle.loads(Path(path).read_bytes())
    print(json.dumps(measure(routes, Run(**json.loads(given)))))
    return 0


def measure(routes: Any, run: Run) -> dict[str, Any]:
    """Take time, processor time and memory of an estimate, with its child processes'."""
    from gatewise_sim import PROFILES, FleetSettings, ServiceTime
    from gatewise_sim.fleet.estimate.sampling import choose_plan
    from gatewise_sim.fleet.estimate.stepping import estimate_fleet
    from gatewise_sim.fleet.network.outages import Outages

    # The rows that the device is least sure of, as many as asked for.
    sent = np.zeros(len(routes), bool)
    sent[np.argsort(routes.confidence)[: round(run.offload * len(routes))]] = True
    routes = routes.choose(sent)
    noon = run.seconds / 2
    settings = FleetSettings(
        devices=run.devices,
        workers=run.workers,
        seconds=run.seconds,
        workload="poisson:1/min",
        link=PROFILES["4g"],
        service=ServiceTime(0.002, 0.001, message=0.0005),
        outages=Outages.parse(f"cloud:+{noon:g}s-+{noon + run.outage:g}s" if run.outage else ""),
    )
    if run.whole:
        chosen = choose_plan(routes, settings, requests=10**9, instances=10**12)
    else:
        few = {} if run.requests is None else {"requests": run.requests}
        chosen = choose_plan(routes, settings, **few)
    begun, worked = time.perf_counter(), time.process_time()
    found = estimate_fleet(routes, settings, sampling=chosen, jobs=run.jobs)
    took, worked = time.perf_counter() - begun, time.process_time() - worked
    peak = _highest(os.getpid())
    if run.jobs > 1:
        peak += sum(_highest(pid) for pid in _children())
        worked += _end_children()
    return {
        "devices": run.devices,
        "workers": run.workers,
        "jobs": run.jobs,
        "outage": run.outage,
        "stepped": str(found.plan),
        "seconds": took,
        "cpu_seconds": worked,
        "peak_mb": peak,
        "events": found.events,
        "instances_stepped": found.instances_stepped,
        "instances": found.instances,
        "utilisation": found.utilisation,
        "figures": {k: astuple(m) for k, m in (found.means | found.latency_ms).items()},
    }


def _children() -> list[int]:
    """Processes that this one started and that have not ended."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(entry.read_text().rsplit(")", 1)[1].split()[1])
        except OSError:
            continue
        if parent == os.getpid():
            found.append(int(entry.parent.name))
    return found


def _highest(pid: int) -> float:
    """Most memory that a process has had resident, in MB.

    Not ru_maxrss, which a new process takes over from the one that it was forked from.
    """
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    return 0.0


def _end_children() -> float:
    """Let the pool's processes end; their processor time in s."""
    from joblib.externals.loky import get_reusable_executor

    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    get_reusable_executor().shutdown(wait=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
