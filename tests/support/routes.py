"""Routes of a fleet's rows that no model was fitted for, and when they arrive."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from gatewise_edge.device.installed import InstalledBundle
from gatewise_sim.fleet.messages import Sizes
from gatewise_sim.fleet.routes import Routes


def make_routes(n: int = 10, hard: int = 10) -> Routes:
    """Make routes of `n` rows, the first `hard` of which are offloaded.

    The truth is class 1 everywhere; so says the cloud, and so does the device of rows that it
    keeps.
    """
    offload = np.arange(n) < hard
    plan = InstalledBundle(
        bundle=None,
        stages=(),
        request_bytes=77,
        meter=None,
        source=None,
        row_names=None,
        columns=None,
        block_reader=None,
        model="m",
        version="1",
        names=("a", "b"),
        classes=(0, 1),
        n_stages=1,
        request_inputs=np.array([0, 1]),
        dtype=np.dtype(np.float32),
        has_cloud=True,
        stages_take_nan=False,
        cloud_takes_nan=False,
        offload_price=0.5,
        request_price=0.125,
    )
    return Routes(
        plan=plan,
        sizes=Sizes.from_plan(plan),
        truth=np.ones(n, np.int64),
        exit=np.zeros(n, np.int64),
        offload=offload,
        local_route=np.zeros(n, np.int64),
        local_label=np.where(offload, 0, 1),
        local_cost=np.ones(n),
        cloud_label=np.ones(n, np.int64),
        request_cost=np.full(n, 3.0),
        alone_cost=3.0,
        score=np.linspace(0, 1, n, dtype=np.float32),
        sets=np.array([[True, False], [True, True]]),
        local_set=np.zeros(n, np.int64),
        request_set=np.ones(n, np.int64),
        threshold=float(np.float32((hard - 0.5) / max(n - 1, 1))),
        confidence=np.linspace(0.5, 1, n, dtype=np.float32),
    )


def poisson(rate: float, rows: int) -> Callable[..., Iterator[Any]]:
    """Arrivals of a Poisson process of `rate` a second over all devices, in chunks."""

    def arrivals(devices: int, seconds: float, rng: np.random.Generator) -> Iterator[Any]:
        for begin in np.arange(0.0, seconds, 60.0):
            end = min(begin + 60.0, seconds)
            n = rng.poisson(rate * (end - begin))
            times = np.sort(rng.uniform(begin, end, n))
            yield times, rng.integers(0, devices, n), rng.integers(0, rows, n)

    return arrivals
