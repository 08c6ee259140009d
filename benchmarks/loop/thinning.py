"""Size and weights of a thinned archive."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.data.loop_streams import drawn_stream
from benchmarks.harness import Options
from gatewise_export.archive.folder import ArchiveFolder, read_rows, shards_in
from gatewise_export.archive.shard import ShardFacts

#: Number of instances of which a shard is made.
N_INSTANCES_PER_SHARD: Final = 20_000
#: Number of features of an instance.
N_FEATURES: Final = 64
#: Bound on the archive per instance. An instance takes about 290 bytes, so the archive can hold
#: a third of them and must be thinned.
MAX_BYTES_PER_INSTANCE: Final = 100.0


def measure_thinning(options: Options) -> dict[str, Any]:
    """Measure the largest size of an archive with a bound, and the weights of its rows at the end.

    The weights must sum to the number of instances.
    """
    n_instances = 200_000 if options.quick else 10_000_000
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        max_bytes = n_instances * MAX_BYTES_PER_INSTANCE
        # no experiment reaches the bound on the age of instances
        archive = ArchiveFolder(Path(folder), max_bytes=max_bytes, max_days=1e6, rng=rng)
        largest_size = 0
        for shard_number in range(n_instances // N_INSTANCES_PER_SHARD):
            _store_shard(archive, rng, float(shard_number))
            largest_size = max(largest_size, archive.size_bytes())
        remaining_rows = read_rows(shards_in(archive.path))
    sum_of_weights = float(remaining_rows.weights.sum())
    return {
        "instances": n_instances,
        "features": N_FEATURES,
        "bytes_allowed": max_bytes,
        "largest_size_in_bytes": largest_size,
        "instances_left": len(remaining_rows),
        "sum_of_weights": sum_of_weights,
        "error_of_the_sum": sum_of_weights / n_instances - 1,
    }


def _store_shard(archive: ArchiveFolder, rng: np.random.Generator, now: float) -> None:
    """Store instances that were all sent, with the probability that the archive gives."""
    n = N_INSTANCES_PER_SHARD
    stream = replace(drawn_stream(rng, n, accuracy=0.95), sent_probability=np.ones(n))
    rows, _ = stream.archive(rng)
    rows = replace(rows, X=rng.standard_normal((n, N_FEATURES), np.float32))
    probability = archive.read_admission_probability()
    is_stored = rng.random(n) < probability
    stored_probability = np.full(int(is_stored.sum()), probability)
    facts = ShardFacts(
        model="m",
        version="1",
        classes=("0", "1"),
        inputs=tuple(f"x{i}" for i in range(N_FEATURES)),
        shape=(N_FEATURES,),
        stored_probability=probability,
    )
    archive.add(replace(rows.take(is_stored), stored_probability=stored_probability), facts, now)
