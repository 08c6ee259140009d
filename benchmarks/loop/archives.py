"""Size and weights of a thinned archive, and its shards after its writer was killed.

    python -m benchmarks.loop.archives FOLDER

writes to the archive of a folder until it is killed; :func:`measure_kills` runs this command.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from benchmarks.data.loop_streams import drawn_stream
from gatewise_export.archive.folder import ArchiveFolder, read_rows, shards_in
from gatewise_export.archive.shard import ShardFacts, read_facts, read_shard

FACTS: Final = ShardFacts(model="m", version="1", classes=("0", "1"), inputs=("a", "b"), shape=(2,))
ACCURACY: Final = 0.95
#: Number of instances of which a shard is made.
N_INSTANCES_PER_SHARD: Final = 20_000
#: Number of features of an instance whose archive is thinned.
_N_FEATURES: Final = 64
#: Bound on the archive per instance. An instance takes about 290 bytes, so the archive can hold
#: a third of them and must be thinned.
_MAX_BYTES_PER_INSTANCE: Final = 100.0
#: Bound on the archive of the writer. About eight shards reach it, so it is often thinned.
_WRITER_MAX_BYTES: Final = 2e6
#: Bound on the age of instances that no experiment reaches.
_MAX_DAYS: Final = 1e6
_READY_TEXT: Final = "ready"


def measure_thinning(n_instances: int) -> dict[str, Any]:
    """Measure the largest size of an archive with a bound, and the weights of its rows at the end.

    The weights must sum to the number of instances.
    """
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        max_bytes = n_instances * _MAX_BYTES_PER_INSTANCE
        archive = ArchiveFolder(Path(folder), max_bytes=max_bytes, max_days=_MAX_DAYS, rng=rng)
        largest_size = 0
        for shard_number in range(n_instances // N_INSTANCES_PER_SHARD):
            _store_shard(archive, rng, float(shard_number))
            largest_size = max(largest_size, archive.size_bytes())
        remaining_rows = read_rows(shards_in(archive.path))
    sum_of_weights = float(remaining_rows.weights.sum())
    return {
        "instances": n_instances,
        "features": _N_FEATURES,
        "bytes_allowed": max_bytes,
        "largest_size_in_bytes": largest_size,
        "instances_left": len(remaining_rows),
        "sum_of_weights": sum_of_weights,
        "error_of_the_sum": sum_of_weights / n_instances - 1,
    }


def _store_shard(archive: ArchiveFolder, rng: np.random.Generator, now: float) -> None:
    """Store instances that were all sent, with the probability that the archive gives."""
    stream = replace(
        drawn_stream(rng, N_INSTANCES_PER_SHARD, ACCURACY),
        sent_probability=np.ones(N_INSTANCES_PER_SHARD),
    )
    rows, _ = stream.archive(rng)
    rows = replace(rows, X=rng.standard_normal((len(rows), _N_FEATURES), np.float32))
    probability = archive.read_store_probability()
    is_stored = rng.random(len(rows)) < probability
    stored_chance = np.full(int(is_stored.sum()), probability)
    stored_rows = replace(rows.take(is_stored), stored_chance=stored_chance)
    facts = msgspec.structs.replace(
        FACTS,
        inputs=tuple(f"x{i}" for i in range(_N_FEATURES)),
        shape=(_N_FEATURES,),
        stored_chance=probability,
    )
    archive.add(stored_rows, facts, now)


def measure_kills(n_kills: int) -> dict[str, Any]:
    """Kill a writer at random times; count the closed shards that are damaged."""
    rng = np.random.default_rng(0)
    n_shards = 0
    n_damaged = 0
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(n_kills):
            writer = subprocess.Popen(
                [sys.executable, "-m", __name__, folder], stdout=subprocess.PIPE, text=True
            )
            assert writer.stdout is not None
            writer.stdout.readline()  # the writer is ready
            time.sleep(float(rng.uniform(0.0, 1.0)))
            os.kill(writer.pid, signal.SIGKILL)
            writer.communicate()
            for shard in shards_in(Path(folder)):
                n_shards += 1
                probability = read_facts(shard).stored_chance
                n_damaged += not np.all(read_shard(shard).stored_chance == probability)
    return {"kills": n_kills, "shards_read": n_shards, "damaged": n_damaged}


def _write_until_killed(folder: Path) -> None:
    rng = np.random.default_rng()
    archive = ArchiveFolder(folder, max_bytes=_WRITER_MAX_BYTES, max_days=_MAX_DAYS, rng=rng)
    rows, _ = drawn_stream(rng, N_INSTANCES_PER_SHARD, ACCURACY).archive(rng)
    print(_READY_TEXT, flush=True)
    shard_number = 0
    while True:
        archive.add(rows, FACTS, float(shard_number))
        shard_number += 1


if __name__ == "__main__":
    _write_until_killed(Path(sys.argv[1]))
