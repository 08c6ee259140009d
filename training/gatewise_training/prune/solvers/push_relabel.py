"""Push-relabel on the implicit graph of a closure problem: nodes, parents, acquisitions.

Profits enter at the nodes. A node sends without limit to its parent and to the acquisitions that
it makes; an acquisition, and a node for what it pays alone, lets out to the sink up to its price.
Flow sent can be taken back.

Only nodes hold excess. An acquisition passes on at once what it gets: into the capacity that its
price leaves, and, by taking it from their flow, to other nodes that make it. So no acquisition is
sent more than it can pass on, and hubs (the roots, which thousands of acquisitions need) do not
send their whole excess to and fro. Labels are distances to the sink counted in nodes; ``near`` is a
lower bound of the smallest label that an acquisition can pass on to, 0 where it has capacity.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

FAR = 2**30
"""Label of a node from which the sink cannot be reached."""

EFFORT = 2
"""Steps between two global relabellings, as a multiple of the edges."""

HEAD, TAIL, SIZE, WORK = 0, 1, 2, 3
"""State of the queue, and steps since the last global relabelling."""


@numba.njit(cache=True, nogil=True)
def by_column(start: Any, columns: Any, n_columns: int) -> Any:
    """Edges of each column: where they start, their numbers and their nodes."""
    begin = np.zeros(n_columns + 1, np.int64)
    for c in columns:
        begin[c + 1] += 1
    begin = np.cumsum(begin)
    free = begin[:-1].copy()
    edge = np.empty(len(columns), np.int32)
    node = np.empty(len(columns), np.int32)
    for v in range(len(start) - 1):
        for e in range(start[v], start[v + 1]):
            at = free[columns[e]]
            edge[at], node[at] = e, v
            free[columns[e]] += 1
    return begin, edge, node


@numba.njit(cache=True, nogil=True)
def fill(graph: Any, flow: Any, up: Any) -> None:
    """Make a first flow, from the leaves upwards: what a node cannot spend goes to its parent."""
    parent, profit, price, start, columns, column_price = graph
    capacity = column_price.copy()
    got = np.zeros(len(parent))
    for v in range(len(parent) - 1, -1, -1):
        left = got[v] + profit[v] - price[v]
        for e in range(start[v], start[v + 1]):
            if left <= 0.0:
                break
            push = min(left, capacity[columns[e]])
            capacity[columns[e]] -= push
            flow[e] += push
            left -= push
        if left > 0.0 and parent[v] >= 0:
            up[v] = left
            got[parent[v]] += left


@numba.njit(cache=True, nogil=True)
def improve_flow(graph: Any, flow: Any, up: Any, tolerance: float) -> Any:
    """Improve a flow until no more than `tolerance` of excess can reach the sink.

    Shapes: returns `kept` (n_nodes,).
    """
    parent, profit, price, start, columns, column_price = graph
    n = len(parent)
    edges = by_column(start, columns, len(column_price))
    tree = (parent, *_siblings(parent))
    own, capacity = price.copy(), column_price.copy()  # what can still flow to the sink
    excess = _excess(parent, profit, start, edges, own, capacity, flow, up)
    label, near = np.empty(n, np.int32), np.empty(len(capacity), np.int32)
    arc = np.empty(n, np.int64)  # edges before it lead nowhere at the node's label
    queue, waiting = np.empty(n + 1, np.int32), np.zeros(n, np.bool_)
    state = np.zeros(4, np.int64)
    count = np.empty(n + 2, np.int32)  # nodes of each label
    small = tolerance / max(n, 1)
    rounds = 0
    while True:
        _relabel_all(label, near, queue, own, capacity, up, flow, tree, edges, start, columns)
        rounds += 1
        state[:] = 0
        count[:] = 0
        active = 0.0
        for v in range(n):
            arc[v] = start[v]
            waiting[v] = False
            if label[v] < FAR:
                count[label[v]] += 1
                if excess[v] > small:
                    active += excess[v]
                    _enqueue(v, queue, waiting, state)
        if active <= tolerance:
            break
        while state[SIZE] > 0 and state[WORK] < EFFORT * len(columns) + 8 * n:
            v = queue[state[HEAD]]
            state[HEAD] = state[HEAD] + 1 if state[HEAD] < n else 0
            state[SIZE] -= 1
            waiting[v] = False
            if label[v] == FAR:
                continue
            if label[v] == 1:
                push = min(excess[v], own[v])
                own[v] -= push
                excess[v] -= push
            _send_to_columns(v, label, near, arc, excess, capacity, flow, edges, start, columns,
                 queue, waiting, state)  # fmt: skip
            _send_along_tree(v, label, excess, up, tree, queue, waiting, state)
            if excess[v] > small:
                _relabel(v, label, near, count, own, up, tree, start, columns, state)
                arc[v] = start[v]
                if label[v] < FAR:
                    _enqueue(v, queue, waiting, state)
    reached = 0.0
    for v in range(n):
        reached += price[v] - own[v]
    for c in range(len(capacity)):
        reached += column_price[c] - capacity[c]
    return label == FAR, reached, rounds


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
def _excess(
    parent: Any, profit: Any, start: Any, edges: Any, own: Any, capacity: Any, flow: Any, up: Any
) -> Any:
    """Excess of each node; what flows out is taken from own prices and capacities."""
    begin, edge, _ = edges
    for c in range(len(capacity)):
        sent = 0.0
        for a in range(begin[c], begin[c + 1]):
            sent += flow[edge[a]]
        if sent > capacity[c]:  # too much: whole numbers stay whole, unlike shares
            over, a = sent - capacity[c], begin[c + 1] - 1
            while over > 0.0 and a >= begin[c]:
                back = min(over, flow[edge[a]])
                flow[edge[a]] -= back
                over -= back
                a -= 1
            capacity[c] = 0.0
        else:
            capacity[c] -= sent
    excess = profit - up
    for v in range(len(parent)):
        if parent[v] >= 0:
            excess[parent[v]] += up[v]
        for e in range(start[v], start[v + 1]):
            excess[v] -= flow[e]
    for v in range(len(parent)):
        push = max(0.0, min(excess[v], own[v]))
        own[v] -= push
        excess[v] -= push
    return excess


@numba.njit(cache=True, nogil=True)
def _relabel_all(
    label: Any, near: Any, queue: Any, own: Any, capacity: Any, up: Any, flow: Any, tree: Any,
    edges: Any, start: Any, columns: Any,
) -> None:  # fmt: skip
    """Exact distances, breadth first from the sink backwards."""
    parent, child, sibling = tree
    begin, _, node = edges
    label[:] = FAR
    for c in range(len(capacity)):
        near[c] = 0 if capacity[c] > 0.0 else FAR
    tail = 0
    for v in range(len(parent)):
        close = own[v] > 0.0
        for e in range(start[v], start[v + 1]):
            if close:
                break
            close = near[columns[e]] == 0
        if close:
            label[v] = 1
            queue[tail] = v
            tail += 1
    head = 0
    while head < tail:
        w = queue[head]
        head += 1
        away = label[w] + 1
        v = child[w]  # a child can send to its parent
        while v >= 0:
            if label[v] == FAR:
                label[v] = away
                queue[tail] = v
                tail += 1
            v = sibling[v]
        v = parent[w]  # a parent can give back
        if v >= 0 and up[w] > 0.0 and label[v] == FAR:
            label[v] = away
            queue[tail] = v
            tail += 1
        for e in range(start[w], start[w + 1]):  # and others can take over what is paid
            c = columns[e]
            if flow[e] > 0.0 and near[c] == FAR:
                near[c] = label[w]
                for a in range(begin[c], begin[c + 1]):
                    v = node[a]
                    if label[v] == FAR:
                        label[v] = away
                        queue[tail] = v
                        tail += 1


@numba.njit(cache=True, nogil=True)
def _enqueue(v: int, queue: Any, waiting: Any, state: Any) -> None:
    """Put a node at the end of the queue, unless it is in it."""
    if not waiting[v]:
        waiting[v] = True
        queue[state[TAIL]] = v
        state[TAIL] = state[TAIL] + 1 if state[TAIL] < len(waiting) else 0
        state[SIZE] += 1


@numba.njit(cache=True, nogil=True)
def _send_to_columns(
    v: int, label: Any, near: Any, arc: Any, excess: Any, capacity: Any, flow: Any, edges: Any,
    start: Any, columns: Any, queue: Any, waiting: Any, state: Any,
) -> None:  # fmt: skip
    """Send a node's excess to its acquisitions: into their capacity, then in place of others."""
    begin, edge, node = edges
    here, left = label[v], excess[v]
    e = arc[v]
    while e < start[v + 1] and left > 0.0:
        c = columns[e]
        if near[c] < here and capacity[c] > 0.0:
            push = min(left, capacity[c])
            capacity[c] -= push
            flow[e] += push
            left -= push
            if capacity[c] <= 0.0:
                near[c] = 1
        if near[c] < here and left > 0.0:
            lowest = FAR
            for a in range(begin[c], begin[c + 1]):
                f, w = edge[a], node[a]
                if flow[f] > 0.0:
                    if label[w] < here and left > 0.0:
                        push = min(left, flow[f])
                        flow[f] -= push
                        flow[e] += push
                        excess[w] += push
                        left -= push
                        _enqueue(w, queue, waiting, state)
                    if flow[f] > 0.0:
                        lowest = min(lowest, label[w])
            state[WORK] += begin[c + 1] - begin[c]
            if left > 0.0:
                near[c] = lowest
        if left > 0.0:
            e += 1
    state[WORK] += e - arc[v] + 4
    arc[v] = e
    excess[v] = left


@numba.njit(cache=True, nogil=True)
def _send_along_tree(
    v: int, label: Any, excess: Any, up: Any, tree: Any, queue: Any, waiting: Any, state: Any
) -> None:
    """Send a node's excess to its parent, or give it back to its children."""
    parent, child, sibling = tree
    here, left = label[v], excess[v]
    w = parent[v]
    if left > 0.0 and w >= 0 and label[w] < here:
        up[v] += left
        excess[w] += left
        left = 0.0
        _enqueue(w, queue, waiting, state)
    w = child[v]
    while w >= 0 and left > 0.0:
        if up[w] > 0.0 and label[w] < here:
            push = min(left, up[w])
            up[w] -= push
            excess[w] += push
            left -= push
            _enqueue(w, queue, waiting, state)
        w = sibling[w]
    excess[v] = left


@numba.njit(cache=True, nogil=True)
def _relabel(
    v: int, label: Any, near: Any, count: Any, own: Any, up: Any, tree: Any, start: Any,
    columns: Any, state: Any,
) -> None:  # fmt: skip
    """Give a node the least label that lets it send; if it leaves a gap, all above it are far."""
    parent, child, sibling = tree
    here = label[v]
    lowest = 0 if own[v] > 0.0 else FAR
    for e in range(start[v], start[v + 1]):
        lowest = min(lowest, near[columns[e]])
    if parent[v] >= 0:
        lowest = min(lowest, label[parent[v]])
    w = child[v]
    while w >= 0:
        if up[w] > 0.0:
            lowest = min(lowest, label[w])
        w = sibling[w]
    state[WORK] += start[v + 1] - start[v]
    count[here] -= 1
    if lowest >= len(label):
        label[v] = FAR
    elif count[here] == 0:
        label[v] = FAR
        for w in range(len(label)):
            if here < label[w] < FAR:
                count[label[w]] -= 1
                label[w] = FAR
    else:
        label[v] = lowest + 1
        count[lowest + 1] += 1
