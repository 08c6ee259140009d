"""Measure the feedback loop of labels: estimates, alarms, the archive, and accuracy after a refit.

    python -m benchmarks.bench_loop [--quick] [--only monitor,alarm,thinning,refit]

In the loop, workers archive offloaded and audited instances, some of them get a label, the labels
estimate the true accuracy and may raise an alarm, and the model is refitted with them. The parts
are: coverage and width of the intervals of the accuracy (monitor), rates of alarms (alarm), size of
an archive with a bound (thinning), and the accuracy after a shift and a refit (refit).

Finished refits are cached in .bench-cache/loop until the code changes, so that an interrupted run
continues. The results are loop.json and loop.md in benchmarks/results; ``--quick`` writes them into
.bench-cache/quick.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from benchmarks import harness
from benchmarks.cache import CACHE, code_version, read_or_compute
from benchmarks.data.loop_refits import N_SEEDS, SETS, refit_case
from benchmarks.loop.alarms import measure_alarms
from benchmarks.loop.estimates import measure_estimates
from benchmarks.loop.page import write_page
from benchmarks.loop.thinning import measure_thinning
from gatewise.console import note


def measure_refits(options: harness.Options) -> list[dict[str, Any]]:
    """Measure the accuracies of each set and seed, or read them from the cache."""
    version = code_version("benchmarks.data.loop_refits")
    cases = []
    for seed in range(1 if options.quick else N_SEEDS):
        for name in SETS:
            note(f"refit {name} {seed}")
            file = CACHE / "loop" / f"{version}-{name.replace(' ', '-')}-{seed}.json"
            cases.append(read_or_compute(file, partial(refit_case, name, seed)))
    return cases


BENCHMARK = harness.Benchmark(
    name="loop",
    quick_help="use few streams and one seed",
    packages=("gatewise", "numpy", "pyarrow", "scikit-learn"),
    page=write_page,
    parts={
        "monitor": measure_estimates,
        "alarm": measure_alarms,
        "thinning": measure_thinning,
        "refit": measure_refits,
    },
)

if __name__ == "__main__":
    raise SystemExit(BENCHMARK.main())
