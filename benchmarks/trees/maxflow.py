"""Maximum flow of OR-tools, to compare with the project's own minimum-cut solver.

Capacities of OR-tools are integers: profits and prices in units of the total profit divided by
2^40. OR-tools is a development dependency; without it the comparison is omitted.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from gatewise.errors import InputError
from gatewise_training.prune.presolve import Closure

MISSING = "OR-tools is not installed (pip install ortools): no comparison with it"
#: Units of the total profit: enough that rounding is below the differences of objectives, and few
#: enough that sums of capacities fit into 64 bits.
N_UNITS = 2**40


def available() -> bool:
    """Return whether OR-tools can be imported."""
    try:
        from ortools.graph.python import max_flow as _  # noqa: F401
    except ImportError:
        return False
    return True


def max_flow(closure: Closure, lam: float) -> dict[str, Any]:
    """Compute the maximum flow whose minimum cut :func:`.best_closure` finds.

    Returns the ``flow`` in the unit of the profits, and its largest rounding error, ``resolution``.
    ``build_cpu`` and ``cpu`` are the CPU seconds to build the graph and to compute the flow.
    """
    from ortools.graph.python import max_flow as graph

    n_nodes = closure.n_nodes
    n_columns = len(closure.column_price)
    source = n_nodes + n_columns
    sink = source + 1
    unit = closure.total_profit / N_UNITS
    start_time = time.process_time()
    solver = graph.SimpleMaxFlow()
    nodes = np.arange(n_nodes, dtype=np.int32)
    children = nodes[closure.parent >= 0]
    edge_nodes = np.repeat(nodes, np.diff(closure.start))
    profit = np.round(closure.profit / unit).astype(np.int64)
    price = np.round(lam * closure.price / unit).astype(np.int64)
    column_price = np.round(lam * closure.column_price / unit).astype(np.int64)
    # more than all profits together, so that no minimum cut contains such an arc
    unlimited = np.int64(profit.sum() + 1)
    # from the source to nodes, from nodes to the sink, from children to parents, from nodes to
    # their acquisitions, and from acquisitions to the sink
    arcs = [
        (np.full(n_nodes, source), nodes, profit),
        (nodes, np.full(n_nodes, sink), price),
        (children, closure.parent[children], np.full(len(children), unlimited)),
        (edge_nodes, n_nodes + closure.columns, np.full(len(edge_nodes), unlimited)),
        (n_nodes + np.arange(n_columns), np.full(n_columns, sink), column_price),
    ]
    tails, heads, capacities = (
        np.concatenate([arc[i] for arc in arcs]).astype(dtype)
        for i, dtype in enumerate((np.int32, np.int32, np.int64))
    )
    solver.add_arcs_with_capacity(tails, heads, capacities)
    build_time = time.process_time()
    status = solver.solve(source, sink)
    end_time = time.process_time()
    if status != solver.OPTIMAL:
        raise InputError(f"OR-tools found no maximum flow: {status}")
    # each profit and price is rounded by at most half a unit
    return {
        "flow": solver.optimal_flow() * unit,
        "resolution": unit * (2 * n_nodes + n_columns) / 2,
        "build_cpu": build_time - start_time,
        "cpu": end_time - build_time,
        "arcs": len(tails),
    }
