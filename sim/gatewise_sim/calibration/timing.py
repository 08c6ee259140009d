"""Time of one run of a model, measured on batches of 1, 2, 4 ... 32 instances."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

import numpy as np

SIZES: Final = (1, 2, 4, 8, 16, 32)
#: Seconds that the measurement of one model takes at most.
_MEASURING: Final = 0.4
_RUNS: Final = 5


def measure(
    run: Callable[[Any], object],
    rows: np.ndarray[Any, np.dtype[np.float32]],
    *,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[int, float]:
    """Measure the seconds of one run by its number of instances: the quickest of a few runs.

    Shapes: `rows` (n, k).
    """
    until = clock() + _MEASURING
    seconds: dict[int, float] = {}
    for n in SIZES:
        X = np.ascontiguousarray(rows[np.arange(n) % len(rows)])
        durations: list[float] = []
        while len(durations) < _RUNS and clock() < until:
            started = clock()
            run(X)
            durations.append(clock() - started)
        if not durations:
            break
        # Other work on the machine only adds time, so the least counts. The first run warms up.
        seconds[n] = min(durations[1:] or durations)
    return seconds
