"""Push-relabel on the implicit graph of a closure problem: nodes, parents, acquisitions.

Profits enter at the nodes. A node sends without limit to its parent and to the acquisitions that
it makes; an acquisition, and a node for its own price, sends up to its price to the sink. Flow can
be taken back.

Only nodes hold excess. An acquisition passes on at once the flow that it gets: into the capacity
that its price leaves, and, by taking back their flow, to other nodes that make it. So an
acquisition never gets more than it can pass on, and hubs (the roots, which thousands of
acquisitions need) do not send their whole excess to and fro. Labels are distances to the sink,
counted in nodes. ``near`` is a lower bound of the smallest label that an acquisition can pass on
to, 0 where it has capacity.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba
import numpy as np

FAR = 2**30
"""Label of a node from which the sink cannot be reached."""

EFFORT = 2
"""Steps between two global relabellings, as a multiple of the edges."""

HEAD, TAIL, SIZE, WORK = 0, 1, 2, 3
"""State of the queue, and steps since the last global relabelling."""


class ClosureGraph(NamedTuple):
    """Edges, inflows and capacities; arrays as of :class:`.Closure`."""

    parent: Any
    profit: Any
    price: Any
    start: Any
    columns: Any
    column_price: Any


class ColumnEdges(NamedTuple):
    """Edges of each acquisition: their numbers and nodes, from `begin` on."""

    begin: Any  # (n_columns + 1,)
    edge: Any  # (n_edges,)
    node: Any  # (n_edges,)


class Network(NamedTuple):
    """The graph with its edges from both sides."""

    parent: Any  # (n_nodes,)
    child: Any  # (n_nodes,): first child, -1 for none
    sibling: Any  # (n_nodes,): next sibling, -1 for none
    start: Any  # (n_nodes + 1,): where each node's edges begin
    columns: Any  # (n_edges,): acquisition of each edge
    begin: Any  # of :class:`ColumnEdges`
    edge: Any
    node: Any


class Residual(NamedTuple):
    """Flow, and capacities that it leaves."""

    flow: Any  # (n_edges,): from nodes to acquisitions
    up: Any  # (n_nodes,): to the parent
    own: Any  # (n_nodes,): capacity of each node to the sink
    capacity: Any  # (n_columns,): capacity of each acquisition to the sink
    excess: Any  # (n_nodes,)


class Labels(NamedTuple):
    """Distances to the sink."""

    label: Any  # (n_nodes,)
    near: Any  # (n_columns,)
    arc: Any  # (n_nodes,): edges before it lead nowhere at the node's label
    count: Any  # (n_nodes + 2,): nodes of each label


class NodeQueue(NamedTuple):
    """Nodes with excess, first in, first out."""

    nodes: Any  # (n_nodes + 1,)
    waiting: Any  # (n_nodes,), bool
    state: Any  # (4,): HEAD, TAIL, SIZE, WORK


@numba.njit(cache=True, nogil=True)
def by_column(start: Any, columns: Any, n_columns: int) -> Any:
    """List the edges of each column."""
    begin = np.zeros(n_columns + 1, np.int64)
    for c in columns:
        begin[c + 1] += 1
    begin = np.cumsum(begin)
    next_place = begin[:-1].copy()
    edge = np.empty(len(columns), np.int32)
    node = np.empty(len(columns), np.int32)
    for v in range(len(start) - 1):
        for e in range(start[v], start[v + 1]):
            place = next_place[columns[e]]
            edge[place] = e
            node[place] = v
            next_place[columns[e]] += 1
    return ColumnEdges(begin, edge, node)


@numba.njit(cache=True, nogil=True)
def fill(graph: Any, flow: Any, up: Any) -> None:
    """Make a first flow from the leaves upwards; nodes send unused profit to their parents."""
    capacity = graph.column_price.copy()
    received = np.zeros(len(graph.parent))
    for v in range(len(graph.parent) - 1, -1, -1):
        excess = received[v] + graph.profit[v] - graph.price[v]
        for e in range(graph.start[v], graph.start[v + 1]):
            if excess <= 0.0:
                break
            amount = min(excess, capacity[graph.columns[e]])
            capacity[graph.columns[e]] -= amount
            flow[e] += amount
            excess -= amount
        if excess > 0.0 and graph.parent[v] >= 0:
            up[v] = excess
            received[graph.parent[v]] += excess


@numba.njit(cache=True, nogil=True)
def improve_flow(graph: Any, flow: Any, up: Any, tolerance: float) -> Any:
    """Improve a flow until no more than `tolerance` of excess can reach the sink.

    Returns the nodes that stay, (n_nodes,), the flow to the sink, and the global relabellings.
    """
    n = len(graph.parent)
    network, residual, labels, queue = _prepare(graph, flow, up)
    small = tolerance / max(n, 1)
    n_rounds = 0
    while True:
        _relabel_all(network, residual, labels, queue.nodes)
        n_rounds += 1
        if _enqueue_active(network, residual, labels, queue, small) <= tolerance:
            break
        most_work = EFFORT * len(network.columns) + 8 * n
        while queue.state[SIZE] > 0 and queue.state[WORK] < most_work:
            v = _dequeue(queue)
            if labels.label[v] == FAR:
                continue
            if labels.label[v] == 1:
                _send_to_sink(v, residual)
            _send_to_columns(v, network, residual, labels, queue)
            _send_along_tree(v, network, residual, labels, queue)
            if residual.excess[v] > small:
                _relabel(v, network, residual, labels, queue.state)
                labels.arc[v] = network.start[v]
                if labels.label[v] < FAR:
                    _enqueue(v, queue)
    reached = 0.0
    for v in range(n):
        reached += graph.price[v] - residual.own[v]
    for c in range(len(residual.capacity)):
        reached += graph.column_price[c] - residual.capacity[c]
    return labels.label == FAR, reached, n_rounds


@numba.njit(cache=True, nogil=True)
def _prepare(graph: Any, flow: Any, up: Any) -> Any:
    """Make the records of :func:`improve_flow` from a graph and a flow."""
    n = len(graph.parent)
    n_columns = len(graph.column_price)
    edges = by_column(graph.start, graph.columns, n_columns)
    child, sibling = _siblings(graph.parent)
    network = Network(
        parent=graph.parent,
        child=child,
        sibling=sibling,
        start=graph.start,
        columns=graph.columns,
        begin=edges.begin,
        edge=edges.edge,
        node=edges.node,
    )
    own = graph.price.copy()
    capacity = graph.column_price.copy()
    residual = Residual(flow, up, own, capacity, graph.profit - up)
    _take_outflows(network, residual)
    labels = Labels(
        np.empty(n, np.int32),
        np.empty(n_columns, np.int32),
        np.empty(n, np.int64),
        np.empty(n + 2, np.int32),
    )
    queue = NodeQueue(np.empty(n + 1, np.int32), np.zeros(n, np.bool_), np.zeros(4, np.int64))
    return network, residual, labels, queue


@numba.njit(cache=True, nogil=True)
def _siblings(parent: Any) -> Any:
    """Each node's first child and next sibling, -1 for none."""
    child = np.full(len(parent), -1, np.int32)
    sibling = np.full(len(parent), -1, np.int32)
    for v in range(len(parent) - 1, -1, -1):
        if parent[v] >= 0:
            sibling[v] = child[parent[v]]
            child[parent[v]] = v
    return child, sibling


@numba.njit(cache=True, nogil=True)
def _take_outflows(network: Any, residual: Any) -> None:
    """Take the flow out of capacities and excess, which holds ``profit - up`` at first."""
    flow, up, own, capacity, excess = residual
    for c in range(len(capacity)):
        sent = 0.0
        for a in range(network.begin[c], network.begin[c + 1]):
            sent += flow[network.edge[a]]
        if sent <= capacity[c]:
            capacity[c] -= sent
            continue
        # too much is taken back edge by edge: whole numbers stay whole, unlike shares
        surplus = sent - capacity[c]
        a = network.begin[c + 1] - 1
        while surplus > 0.0 and a >= network.begin[c]:
            amount = min(surplus, flow[network.edge[a]])
            flow[network.edge[a]] -= amount
            surplus -= amount
            a -= 1
        capacity[c] = 0.0
    for v in range(len(own)):
        if network.parent[v] >= 0:
            excess[network.parent[v]] += up[v]
        for e in range(network.start[v], network.start[v + 1]):
            excess[v] -= flow[e]
    for v in range(len(own)):
        amount = max(0.0, min(excess[v], own[v]))
        own[v] -= amount
        excess[v] -= amount


@numba.njit(cache=True, nogil=True)
def _relabel_all(network: Any, residual: Any, labels: Any, queue: Any) -> None:
    """Compute exact distances, breadth first from the sink backwards."""
    label, near = labels.label, labels.near
    label[:] = FAR
    for c in range(len(near)):
        near[c] = 0 if residual.capacity[c] > 0.0 else FAR
    # nodes that can send to the sink, or to an acquisition that can
    tail = 0
    for v in range(len(label)):
        is_close = residual.own[v] > 0.0
        for e in range(network.start[v], network.start[v + 1]):
            if is_close:
                break
            is_close = near[network.columns[e]] == 0
        if is_close:
            label[v] = 1
            queue[tail] = v
            tail += 1
    head = 0
    while head < tail:
        w = queue[head]
        head += 1
        distance = label[w] + 1
        # a child can send to its parent
        v = network.child[w]
        while v >= 0:
            if label[v] == FAR:
                label[v] = distance
                queue[tail] = v
                tail += 1
            v = network.sibling[v]
        # a parent can give back
        v = network.parent[w]
        if v >= 0 and residual.up[w] > 0.0 and label[v] == FAR:
            label[v] = distance
            queue[tail] = v
            tail += 1
        # other nodes can take over paid acquisitions
        for e in range(network.start[w], network.start[w + 1]):
            c = network.columns[e]
            if residual.flow[e] > 0.0 and near[c] == FAR:
                near[c] = label[w]
                for a in range(network.begin[c], network.begin[c + 1]):
                    v = network.node[a]
                    if label[v] == FAR:
                        label[v] = distance
                        queue[tail] = v
                        tail += 1


@numba.njit(cache=True, nogil=True)
def _enqueue_active(network: Any, residual: Any, labels: Any, queue: Any, small: float) -> float:
    """Start a round: enqueue nodes with excess that can reach the sink; get its sum."""
    queue.state[:] = 0
    labels.count[:] = 0
    active_excess = 0.0
    for v in range(len(labels.label)):
        labels.arc[v] = network.start[v]
        queue.waiting[v] = False
        if labels.label[v] < FAR:
            labels.count[labels.label[v]] += 1
            if residual.excess[v] > small:
                active_excess += residual.excess[v]
                _enqueue(v, queue)
    return active_excess


@numba.njit(cache=True, nogil=True)
def _enqueue(v: int, queue: Any) -> None:
    """Put a node at the end of the queue, unless it is in it."""
    state = queue.state
    if not queue.waiting[v]:
        queue.waiting[v] = True
        queue.nodes[state[TAIL]] = v
        state[TAIL] = state[TAIL] + 1 if state[TAIL] < len(queue.waiting) else 0
        state[SIZE] += 1


@numba.njit(cache=True, nogil=True)
def _dequeue(queue: Any) -> Any:
    """Take the node at the head of the queue."""
    state = queue.state
    v = queue.nodes[state[HEAD]]
    state[HEAD] = state[HEAD] + 1 if state[HEAD] < len(queue.waiting) else 0
    state[SIZE] -= 1
    queue.waiting[v] = False
    return v


@numba.njit(cache=True, nogil=True)
def _send_to_sink(v: int, residual: Any) -> None:
    amount = min(residual.excess[v], residual.own[v])
    residual.own[v] -= amount
    residual.excess[v] -= amount


@numba.njit(cache=True, nogil=True)
def _send_to_columns(v: int, network: Any, residual: Any, labels: Any, queue: Any) -> None:
    """Send a node's excess to its acquisitions: into their capacity, then instead of others."""
    flow, capacity, excess = residual.flow, residual.capacity, residual.excess
    label, near, state = labels.label, labels.near, queue.state
    node_label = label[v]
    remaining = excess[v]
    e = labels.arc[v]
    while e < network.start[v + 1] and remaining > 0.0:
        c = network.columns[e]
        # into the column's own capacity
        if near[c] < node_label and capacity[c] > 0.0:
            amount = min(remaining, capacity[c])
            capacity[c] -= amount
            flow[e] += amount
            remaining -= amount
            if capacity[c] <= 0.0:
                near[c] = 1
        # instead of nodes nearer to the sink, which get their flow back as excess
        if near[c] < node_label and remaining > 0.0:
            lowest = FAR
            for a in range(network.begin[c], network.begin[c + 1]):
                other_edge = network.edge[a]
                w = network.node[a]
                if flow[other_edge] > 0.0:
                    if label[w] < node_label and remaining > 0.0:
                        amount = min(remaining, flow[other_edge])
                        flow[other_edge] -= amount
                        flow[e] += amount
                        excess[w] += amount
                        remaining -= amount
                        _enqueue(w, queue)
                    if flow[other_edge] > 0.0:
                        lowest = min(lowest, label[w])
            state[WORK] += network.begin[c + 1] - network.begin[c]
            if remaining > 0.0:
                near[c] = lowest
        if remaining > 0.0:
            e += 1
    state[WORK] += e - labels.arc[v] + 4
    labels.arc[v] = e
    excess[v] = remaining


@numba.njit(cache=True, nogil=True)
def _send_along_tree(v: int, network: Any, residual: Any, labels: Any, queue: Any) -> None:
    """Send a node's excess to its parent, or give it back to its children."""
    up, excess, label = residual.up, residual.excess, labels.label
    remaining = excess[v]
    w = network.parent[v]
    if remaining > 0.0 and w >= 0 and label[w] < label[v]:
        up[v] += remaining
        excess[w] += remaining
        remaining = 0.0
        _enqueue(w, queue)
    w = network.child[v]
    while w >= 0 and remaining > 0.0:
        if up[w] > 0.0 and label[w] < label[v]:
            amount = min(remaining, up[w])
            up[w] -= amount
            excess[w] += amount
            remaining -= amount
            _enqueue(w, queue)
        w = network.sibling[w]
    excess[v] = remaining


@numba.njit(cache=True, nogil=True)
def _relabel(v: int, network: Any, residual: Any, labels: Any, state: Any) -> None:
    """Give a node the least label that lets it send; above a gap in the labels all are far."""
    label, count = labels.label, labels.count
    old_label = label[v]
    lowest = 0 if residual.own[v] > 0.0 else FAR
    for e in range(network.start[v], network.start[v + 1]):
        lowest = min(lowest, labels.near[network.columns[e]])
    if network.parent[v] >= 0:
        lowest = min(lowest, label[network.parent[v]])
    w = network.child[v]
    while w >= 0:
        if residual.up[w] > 0.0:
            lowest = min(lowest, label[w])
        w = network.sibling[w]
    state[WORK] += network.start[v + 1] - network.start[v]
    count[old_label] -= 1
    if lowest >= len(label):
        label[v] = FAR
    elif count[old_label] == 0:
        label[v] = FAR
        for w in range(len(label)):
            if old_label < label[w] < FAR:
                count[label[w]] -= 1
                label[w] = FAR
    else:
        label[v] = lowest + 1
        count[lowest + 1] += 1
