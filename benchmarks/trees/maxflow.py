"""Maximum flow of OR-tools for the same cut as this project's solver.

OR-tools uses integers, so capacities are profits and prices in units of 2^-40 of all profits. It is
a development dependency. Without it, the comparison is skipped.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from gatewise.errors import InputError
from gatewise_training.prune.presolve import Closure

MISSING = "OR-tools is not installed (pip install ortools): its maximum flow is left out"
UNITS = 2**40


def available() -> bool:
    """Whether OR-tools can be imported."""
    try:
        from ortools.graph.python import max_flow as _  # noqa: F401
    except ImportError:
        return False
    return True


def max_flow(closure: Closure, lam: float) -> dict[str, Any]:
    """Solve the minimum cut of the closure problem of :func:`.best_closure`.

    ``flow`` is in the unit of the profits. Rounding to integers changes it by at most
    ``resolution``. ``build_cpu`` has the CPU seconds of building the graph, ``cpu`` those of the
    flow.
    """
    from ortools.graph.python import max_flow as graph

    n, n_columns = closure.n_nodes, len(closure.column_price)
    source, sink = n + n_columns, n + n_columns + 1
    # integer capacities in units of worth / UNITS
    unit = closure.worth / UNITS
    start = time.process_time()
    solver = graph.SimpleMaxFlow()
    nodes = np.arange(n, dtype=np.int32)
    inner = nodes[closure.parent >= 0]
    acquiring_nodes = np.repeat(nodes, np.diff(closure.start))
    profit = np.round(closure.profit / unit).astype(np.int64)
    price = np.round(lam * closure.price / unit).astype(np.int64)
    column_price = np.round(lam * closure.column_price / unit).astype(np.int64)
    infinity = np.int64(profit.sum() + 1)
    # source to nodes, nodes to sink, child to parent, node to its columns, columns to sink
    arcs = [
        (np.full(n, source), nodes, profit),
        (nodes, np.full(n, sink), price),
        (inner, closure.parent[inner], np.full(len(inner), infinity)),
        (acquiring_nodes, n + closure.columns, np.full(len(acquiring_nodes), infinity)),
        (n + np.arange(n_columns), np.full(n_columns, sink), column_price),
    ]
    tails, heads, capacities = (
        np.concatenate([arc[i] for arc in arcs]).astype(kind)
        for i, kind in enumerate((np.int32, np.int32, np.int64))
    )
    solver.add_arcs_with_capacity(tails, heads, capacities)
    build_end = time.process_time()
    status = solver.solve(source, sink)
    end_time = time.process_time()
    if status != solver.OPTIMAL:
        raise InputError(f"OR-tools found no maximum flow: {status}")
    return {
        "flow": solver.optimal_flow() * unit,
        "resolution": unit * (2 * n + n_columns) / 2,
        "build_cpu": build_end - start,
        "cpu": end_time - build_end,
        "arcs": len(tails),
    }
