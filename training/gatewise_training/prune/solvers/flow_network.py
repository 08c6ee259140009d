"""The graph of a closure problem as a flow network, and a first flow through it.

An edge leads from a node to an acquisition and holds the acquisition's column. A use is the
position of an edge in the list of all edges, ordered by acquisition.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba
import numpy as np


class Network(NamedTuple):
    """The graph, with its edges by node and by acquisition."""

    parent: Any  # (n_nodes,)
    child: Any  # (n_nodes,): first child, or -1
    sibling: Any  # (n_nodes,): next sibling, or -1
    start: Any  # (n_nodes + 1,): where each node's edges begin
    columns: Any  # (n_edges,): acquisition of each edge
    column_start: Any  # (n_columns + 1,): where the edges of each acquisition begin
    column_edges: Any  # (n_edges,): edges of each acquisition, one acquisition after another
    column_nodes: Any  # (n_edges,): node of each of these edges


class Residual(NamedTuple):
    """Flow, and the capacities that it leaves."""

    to_columns: Any  # (n_edges,): flow from nodes to acquisitions
    to_parent: Any  # (n_nodes,): flow to the parent
    node_capacity: Any  # (n_nodes,): remaining capacity of each node to the sink
    column_capacity: Any  # (n_columns,): remaining capacity of each acquisition to the sink
    excess: Any  # (n_nodes,)


@numba.njit(cache=True, nogil=True)
def _list_column_edges(start: Any, columns: Any, n_columns: int) -> Any:
    """List the edges of each acquisition, as the last three fields of :class:`Network`."""
    column_start = np.zeros(n_columns + 1, np.int64)
    for column in columns:
        column_start[column + 1] += 1
    column_start = np.cumsum(column_start)
    next_place = column_start[:-1].copy()
    edges = np.empty(len(columns), np.int32)
    nodes = np.empty(len(columns), np.int32)
    for node in range(len(start) - 1):
        for edge in range(start[node], start[node + 1]):
            position = next_place[columns[edge]]
            edges[position] = edge
            nodes[position] = node
            next_place[columns[edge]] += 1
    return column_start, edges, nodes


@numba.njit(cache=True, nogil=True)
def make_greedy_flow(graph: Any, to_columns: Any, to_parent: Any) -> None:
    """Write a flow from the leaves upwards into the arrays of a flow of 0.

    Each node pays for its acquisitions as far as it can, and sends the rest to its parent.
    """
    capacity = graph.column_price.copy()
    inflow = np.zeros(len(graph.parent))
    for node in range(len(graph.parent) - 1, -1, -1):
        excess = inflow[node] + graph.profit[node] - graph.price[node]
        for edge in range(graph.start[node], graph.start[node + 1]):
            if excess <= 0.0:
                break
            amount = min(excess, capacity[graph.columns[edge]])
            capacity[graph.columns[edge]] -= amount
            to_columns[edge] += amount
            excess -= amount
        if excess > 0.0 and graph.parent[node] >= 0:
            to_parent[node] = excess
            inflow[graph.parent[node]] += excess


@numba.njit(cache=True, nogil=True)
def make_network(graph: Any) -> Any:
    """Make the :class:`Network` of a :class:`.Closure`."""
    column_start, column_edges, column_nodes = _list_column_edges(
        graph.start, graph.columns, len(graph.column_price)
    )
    child, sibling = _find_relatives(graph.parent)
    return Network(
        parent=graph.parent,
        child=child,
        sibling=sibling,
        start=graph.start,
        columns=graph.columns,
        column_start=column_start,
        column_edges=column_edges,
        column_nodes=column_nodes,
    )


@numba.njit(cache=True, nogil=True)
def make_residual(graph: Any, network: Any, to_columns: Any, to_parent: Any) -> Any:
    """Make the :class:`Residual` of a flow; it keeps the arrays of the flow."""
    residual = Residual(
        to_columns=to_columns,
        to_parent=to_parent,
        node_capacity=graph.price.copy(),
        column_capacity=graph.column_price.copy(),
        excess=graph.profit - to_parent,
    )
    _subtract_outflows(network, residual)
    return residual


@numba.njit(cache=True, nogil=True)
def _find_relatives(parent: Any) -> Any:
    """Find the first child and the next sibling of each node, or -1."""
    child = np.full(len(parent), -1, np.int32)
    sibling = np.full(len(parent), -1, np.int32)
    for node in range(len(parent) - 1, -1, -1):
        if parent[node] >= 0:
            sibling[node] = child[parent[node]]
            child[parent[node]] = node
    return child, sibling


@numba.njit(cache=True, nogil=True)
def _subtract_outflows(network: Any, residual: Any) -> None:
    """Subtract the flow from the capacities and the excess.

    At first the capacities are the prices and the excess is ``profit - to_parent``. Flow to an
    acquisition that exceeds its price is taken back.
    """
    to_columns, to_parent, node_capacity, column_capacity, excess = residual
    for column in range(len(column_capacity)):
        inflow = 0.0
        for use in range(network.column_start[column], network.column_start[column + 1]):
            inflow += to_columns[network.column_edges[use]]
        if inflow <= column_capacity[column]:
            column_capacity[column] -= inflow
            continue
        # take the surplus back edge by edge, because proportional parts of integers are not exact
        surplus = inflow - column_capacity[column]
        use = network.column_start[column + 1] - 1
        while surplus > 0.0 and use >= network.column_start[column]:
            amount = min(surplus, to_columns[network.column_edges[use]])
            to_columns[network.column_edges[use]] -= amount
            surplus -= amount
            use -= 1
        column_capacity[column] = 0.0
    for node in range(len(node_capacity)):
        if network.parent[node] >= 0:
            excess[network.parent[node]] += to_parent[node]
        for edge in range(network.start[node], network.start[node + 1]):
            excess[node] -= to_columns[edge]
    for node in range(len(node_capacity)):
        amount = max(0.0, min(excess[node], node_capacity[node]))
        node_capacity[node] -= amount
        excess[node] -= amount
