"""Accuracy and feature time of cascades on raw signals, measured on unseen groups.

    python -m benchmarks.bench_signals [--quick] [--only movement,sound]

Prices are the microseconds per window that this machine needs for a block. Each split tests on
whole groups, which are subjects, records, speakers or motor loads. Validation within the training
rows also splits by group. The high-cost model of the cascade is a boosted model on all features,
and an offload pays for all of them. The operating point is the cheapest with a loss of at most 1
point.

The page compares the cascade with the high-cost model, a boosted model on the cheapest block, a
small network on the raw window, CEGB and Adapt-GBRT. The results are signals.json and signals.md in
benchmarks/results. Finished splits are cached in .bench-cache/signals, and an interrupted run
continues with the others.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import harness
from benchmarks.cache import code_version, read_or_compute
from benchmarks.data.signal_sets import SIGNAL_SETS
from benchmarks.signals.cascades import fit_cascade
from benchmarks.signals.page import page
from benchmarks.signals.peers import fit_peers
from benchmarks.signals.splits import FOLDER, PricedSet, Split
from gatewise.console import note

#: Number of splits of each set, and number of splits on which the peers are fitted as well.
N_SPLITS = 10
N_PEER_SPLITS = 1
PACKAGES = ("gatewise", "numpy", "scikit-learn", "lightgbm")


def measure_set(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Fit the splits of a set that are not cached; return the figures of all splits."""
    priced_set = PricedSet.load(name)
    cells = []
    for number in range(2 if options.quick else N_SPLITS):
        cell = {"split": number}
        if number < N_PEER_SPLITS:
            cell |= _read_or_fit(fit_peers, "peers.", number, priced_set)
        cells.append(cell | _read_or_fit(fit_cascade, "", number, priced_set))
    signal_set, graph = priced_set.signal_set, priced_set.graph
    return {
        "note": signal_set.note,
        "rows": len(signal_set.y),
        "features": len(graph.feature_names),
        "groups": None if signal_set.groups is None else len(np.unique(signal_set.groups)),
        "measure": "balanced accuracy" if signal_set.has_rare_classes else "accuracy",
        "target": signal_set.target,
        "families": signal_set.families,
        "prices_us": priced_set.prices,
        "total_us": graph.costs().total,
        "splits": cells,
    }


def merge(path: Path, sets: dict[str, Any]) -> dict[str, Any]:
    """Replace the figures of the sets that were run."""
    return {"sets": harness.merge_parts(path, {}).get("sets", {}) | sets}


def _read_or_fit(
    fit: Callable[[Split], dict[str, Any]], prefix: str, number: int, priced_set: PricedSet
) -> dict[str, Any]:
    """Fit a split unless its figures are cached for the same code and prices."""
    # The module of `fit` also defines or imports the settings of the fit.
    key_terms = [code_version(fit.__module__), priced_set.prices]
    version = hashlib.sha256(json.dumps(key_terms).encode()).hexdigest()[:12]
    path = FOLDER / f"{priced_set.signal_set.name}.{prefix}{number}.{version}.json"

    def run() -> dict[str, Any]:
        start_time = time.process_time()
        cell = fit(priced_set.split(number))
        cell["cpu_seconds"] = round(time.process_time() - start_time, 1)
        note(f"{path.stem}: {cell.get('gatewise', '')} {cell['cpu_seconds']} s")
        return cell

    return read_or_compute(path, run)


BENCHMARK = harness.Benchmark(
    name="signals",
    quick_help="two splits",
    packages=PACKAGES,
    page=page,
    parts={name: partial(measure_set, name) for name in SIGNAL_SETS},
    merge=merge,
)

if __name__ == "__main__":
    raise SystemExit(BENCHMARK.main())
