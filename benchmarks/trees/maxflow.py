"""OR-tools' maximum flow on the same cut that the project's own solver finds.

OR-tools counts in integers: capacities are profits and prices in units of a 2^40th of all profits.
It is a development dependency; without it there is nothing to compare with.
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
    """Solve the minimum cut of a closure problem, the same as :func:`.best_closure` gets.

    ``flow`` is in the unit of the profits, ``resolution`` the most that rounding to integers can
    change it by; CPU seconds are ``build_cpu`` of making the graph and ``cpu`` of the flow alone.
    """
    from ortools.graph.python import max_flow as graph

    n, n_columns = closure.n_nodes, len(closure.column_price)
    source, sink = n + n_columns, n + n_columns + 1
    # OR-tools counts in integers: profits and prices in units of a part of the worth
    unit = closure.worth / UNITS
    start = time.process_time()
    solver = graph.SimpleMaxFlow()
    nodes = np.arange(n, dtype=np.int32)
    inner = nodes[closure.parent >= 0]
    buyers = np.repeat(nodes, np.diff(closure.start))
    profit = np.round(closure.profit / unit).astype(np.int64)
    price = np.round(lam * closure.price / unit).astype(np.int64)
    column_price = np.round(lam * closure.column_price / unit).astype(np.int64)
    endless = np.int64(profit.sum() + 1)
    # source to nodes, nodes to sink, child to parent, node to what it acquires, that to sink
    arcs = [
        (np.full(n, source), nodes, profit),
        (nodes, np.full(n, sink), price),
        (inner, closure.parent[inner], np.full(len(inner), endless)),
        (buyers, n + closure.columns, np.full(len(buyers), endless)),
        (n + np.arange(n_columns), np.full(n_columns, sink), column_price),
    ]
    tails, heads, capacities = (
        np.concatenate([arc[i] for arc in arcs]).astype(kind)
        for i, kind in enumerate((np.int32, np.int32, np.int64))
    )
    solver.add_arcs_with_capacity(tails, heads, capacities)
    built = time.process_time()
    status = solver.solve(source, sink)
    end_time = time.process_time()
    if status != solver.OPTIMAL:
        raise InputError(f"OR-tools found no maximum flow: {status}")
    return {
        "flow": solver.optimal_flow() * unit,
        "resolution": unit * (2 * n + n_columns) / 2,
        "build_cpu": built - start,
        "cpu": end_time - built,
        "arcs": len(tails),
    }
