"""Measure the feedback loop of labels: estimates, alarms, the archive, and accuracy after a refit.

    python -m benchmarks.bench_loop [--quick] [--only monitor,alarm,glide,thinning,kills,refit]

In the loop, workers archive offloaded and audited instances, some of them get a label, the labels
estimate the true accuracy and may raise an alarm, and the model is refitted with them. The parts
are: coverage and width of the intervals of the accuracy (monitor), rates of alarms (alarm), the
same of GLIDE where it can be imported (glide), size of an archive with a bound (thinning), its
shards after SIGKILL (kills), and the accuracy after a shift and a refit (refit).

Finished refits are cached in .bench-cache/loop until the code changes, so that an interrupted run
continues. The results are loop.json and loop.md in benchmarks/results; ``--quick`` writes them into
.bench-cache/quick.
"""

from __future__ import annotations

import argparse
from typing import Any

from benchmarks import harness
from benchmarks.cache import CACHE, code_version, read_or_compute
from benchmarks.data.loop_refits import N_SEEDS, SETS, refit_case
from benchmarks.loop.alarms import measure_alarms
from benchmarks.loop.archives import measure_kills, measure_thinning
from benchmarks.loop.estimates import measure_estimates
from benchmarks.loop.glide_peer import measure_glide
from benchmarks.loop.page import write_page
from gatewise.console import note

PACKAGES = ("gatewise", "numpy", "pyarrow", "scikit-learn")
PARTS = ("monitor", "alarm", "glide", "thinning", "kills", "refit")


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Run the chosen parts."""
    parts = {
        "monitor": lambda: measure_estimates(40 if options.quick else 500),
        "alarm": lambda: measure_alarms(20 if options.quick else 200),
        "glide": lambda: measure_glide(*((40, 20) if options.quick else (500, 200))),
        "thinning": lambda: measure_thinning(200_000 if options.quick else 10_000_000),
        "kills": lambda: measure_kills(3 if options.quick else 200),
        "refit": lambda: measure_refits(1 if options.quick else N_SEEDS),
    }
    results = {}
    for name in options.only:
        note(name)
        results[name] = parts[name]()
    return results


def measure_refits(n_seeds: int) -> list[dict[str, Any]]:
    """Measure the accuracies of each set and seed, or read them from the cache."""
    version = code_version("benchmarks.data.loop_refits")
    cases = []
    for seed in range(n_seeds):
        for name in SETS:
            note(f"refit {name} {seed}")
            file = CACHE / "loop" / f"{version}-{name.replace(' ', '-')}-{seed}.json"
            cases.append(read_or_compute(file, lambda: refit_case(name, seed)))  # noqa: B023
    return cases


BENCHMARK = harness.Benchmark(
    name="loop",
    quick_help="use few streams and one seed",
    packages=PACKAGES,
    measure=measure,
    page=write_page,
    parts=PARTS,
)

if __name__ == "__main__":
    raise SystemExit(BENCHMARK.main())
