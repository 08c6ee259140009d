"""Push-relabel on the implicit graph of a closure problem.

Profits enter at the nodes. A node can send any amount to its parent and to the acquisitions that it
makes. An acquisition can send its price to the sink, and so can a node for its own price. Flow can
be taken back.

Only nodes hold excess. An acquisition passes flow on as soon as it gets it: first to the sink, as
far as its price allows, and then to other nodes that make it, by giving their flow back. An
acquisition therefore never gets more than it can pass on. This matters for roots, which thousands
of acquisitions share, because otherwise they would send their whole excess back and forth.

The label of a node is its distance to the sink, counted in nodes. The label of an acquisition is a
lower bound on the smallest label of a node to which it can give flow back. It is 0 as long as the
acquisition has capacity left.

The problem is a :class:`gatewise_training.prune.presolve.Closure`. The arrays of its
:class:`gatewise_training.prune.presolve.Flow` are changed in place.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba
import numpy as np

from gatewise_training.prune.solvers.flow_network import make_network, make_residual

#: Label of a node from which the sink cannot be reached.
UNREACHABLE = 2**30

#: Number of steps between two global relabellings, per edge of the graph; a relabelling passes each
#: edge about this often itself.
STEPS_PER_EDGE = 2

#: Indices into the state of the queue; WORK counts the steps since the last global relabelling.
HEAD, TAIL, SIZE, WORK = 0, 1, 2, 3


class Labels(NamedTuple):
    """Distances to the sink."""

    label: Any  # (n_nodes,)
    column_label: Any  # (n_columns,)
    # (n_nodes,): first edge that may admit flow; with its present label the node cannot send
    # anything along the edges before it
    current_edge: Any
    label_count: Any  # (n_nodes + 2,): number of nodes with each label


class NodeQueue(NamedTuple):
    """Queue of the nodes with excess, first in, first out."""

    nodes: Any  # (n_nodes + 1,)
    is_queued: Any  # (n_nodes,), bool
    state: Any  # (4,): HEAD, TAIL, SIZE, WORK


@numba.njit(cache=True, nogil=True)
def improve_flow(graph: Any, to_columns: Any, to_parent: Any, tolerance: float) -> Any:
    """Improve a flow, in place, until at most `tolerance` of excess can still reach the sink.

    Returns the mask of the nodes that stay, shape (n_nodes,), the flow to the sink, and the number
    of global relabellings.
    """
    n = len(graph.parent)
    network = make_network(graph)
    residual = make_residual(graph, network, to_columns, to_parent)
    labels, queue = _make_labels(n, len(graph.column_price))
    min_excess = tolerance / max(n, 1)  # so that all ignored excess is within the tolerance
    n_rounds = 0
    while True:
        _relabel_all(network, residual, labels, queue.nodes)
        n_rounds += 1
        if _enqueue_active(network, residual, labels, queue, min_excess) <= tolerance:
            break
        # two visits of each node, which count four steps besides its edges
        max_work = STEPS_PER_EDGE * len(network.columns) + 8 * n
        while queue.state[SIZE] > 0 and queue.state[WORK] < max_work:
            node = _dequeue(queue)
            if labels.label[node] == UNREACHABLE:
                continue
            if labels.label[node] == 1:
                _send_to_sink(node, residual)
            _send_to_columns(node, network, residual, labels, queue)
            _send_along_tree(node, network, residual, labels, queue)
            if residual.excess[node] > min_excess:
                _relabel(node, network, residual, labels, queue.state)
                labels.current_edge[node] = network.start[node]
                if labels.label[node] < UNREACHABLE:
                    _enqueue(node, queue)
    cut_value = 0.0
    for node in range(n):
        cut_value += graph.price[node] - residual.node_capacity[node]
    for column in range(len(residual.column_capacity)):
        cut_value += graph.column_price[column] - residual.column_capacity[column]
    return labels.label == UNREACHABLE, cut_value, n_rounds


@numba.njit(cache=True, nogil=True)
def _make_labels(n: int, n_columns: int) -> Any:
    """Make the arrays of labels, and an empty queue, for `n` nodes."""
    labels = Labels(
        np.empty(n, np.int32),
        np.empty(n_columns, np.int32),
        np.empty(n, np.int64),
        np.empty(n + 2, np.int32),
    )
    queue = NodeQueue(np.empty(n + 1, np.int32), np.zeros(n, np.bool_), np.zeros(4, np.int64))
    return labels, queue


@numba.njit(cache=True, nogil=True)
def _relabel_all(network: Any, residual: Any, labels: Any, node_queue: Any) -> None:
    """Compute the exact labels by breadth-first search backwards from the sink.

    `node_queue` is a working array for the search.
    """
    label = labels.label
    column_label = labels.column_label
    label[:] = UNREACHABLE
    for column in range(len(column_label)):
        column_label[column] = 0 if residual.column_capacity[column] > 0.0 else UNREACHABLE
    # label 1: nodes that can send to the sink directly or through an acquisition
    tail = 0
    for node in range(len(label)):
        is_close = residual.node_capacity[node] > 0.0
        for edge in range(network.start[node], network.start[node + 1]):
            if is_close:
                break
            is_close = column_label[network.columns[edge]] == 0
        if is_close:
            label[node] = 1
            node_queue[tail] = node
            tail += 1
    head = 0
    while head < tail:
        reached_node = node_queue[head]
        head += 1
        distance = label[reached_node] + 1
        # a child can send to its parent
        node = network.child[reached_node]
        while node >= 0:
            if label[node] == UNREACHABLE:
                label[node] = distance
                node_queue[tail] = node
                tail += 1
            node = network.sibling[node]
        # a parent can give flow back to its child
        node = network.parent[reached_node]
        if node >= 0 and residual.to_parent[reached_node] > 0.0 and label[node] == UNREACHABLE:
            label[node] = distance
            node_queue[tail] = node
            tail += 1
        # other nodes can pay for an acquisition instead of reached_node
        for edge in range(network.start[reached_node], network.start[reached_node + 1]):
            column = network.columns[edge]
            if residual.to_columns[edge] > 0.0 and column_label[column] == UNREACHABLE:
                column_label[column] = label[reached_node]
                for use in range(network.column_start[column], network.column_start[column + 1]):
                    node = network.column_nodes[use]
                    if label[node] == UNREACHABLE:
                        label[node] = distance
                        node_queue[tail] = node
                        tail += 1


@numba.njit(cache=True, nogil=True)
def _enqueue_active(
    network: Any, residual: Any, labels: Any, queue: Any, min_excess: float
) -> float:
    """Start a round: enqueue nodes with excess that can reach the sink; return the total excess."""
    queue.state[:] = 0
    labels.label_count[:] = 0
    active_excess = 0.0
    for node in range(len(labels.label)):
        labels.current_edge[node] = network.start[node]
        queue.is_queued[node] = False
        if labels.label[node] < UNREACHABLE:
            labels.label_count[labels.label[node]] += 1
            if residual.excess[node] > min_excess:
                active_excess += residual.excess[node]
                _enqueue(node, queue)
    return active_excess


@numba.njit(cache=True, nogil=True)
def _enqueue(node: int, queue: Any) -> None:
    """Put a node at the end of the queue, unless it is already queued."""
    if not queue.is_queued[node]:
        tail = queue.state[TAIL]
        queue.is_queued[node] = True
        queue.nodes[tail] = node
        queue.state[TAIL] = tail + 1 if tail < len(queue.is_queued) else 0
        queue.state[SIZE] += 1


@numba.njit(cache=True, nogil=True)
def _dequeue(queue: Any) -> Any:
    """Take the node at the head of the queue."""
    head = queue.state[HEAD]
    node = queue.nodes[head]
    queue.state[HEAD] = head + 1 if head < len(queue.is_queued) else 0
    queue.state[SIZE] -= 1
    queue.is_queued[node] = False
    return node


@numba.njit(cache=True, nogil=True)
def _send_to_sink(node: int, residual: Any) -> None:
    amount = min(residual.excess[node], residual.node_capacity[node])
    residual.node_capacity[node] -= amount
    residual.excess[node] -= amount


@numba.njit(cache=True, nogil=True)
def _send_to_columns(node: int, network: Any, residual: Any, labels: Any, queue: Any) -> None:
    """Send a node's excess to its acquisitions.

    It first uses the remaining capacity of an acquisition. It then pays instead of other nodes,
    which get their flow back as excess.
    """
    to_columns = residual.to_columns
    column_capacity = residual.column_capacity
    excess = residual.excess
    label = labels.label
    column_label = labels.column_label
    queue_state = queue.state
    node_label = label[node]
    remaining_excess = excess[node]
    edge = labels.current_edge[node]
    while edge < network.start[node + 1] and remaining_excess > 0.0:
        column = network.columns[edge]
        # use the remaining capacity of the acquisition
        if column_label[column] < node_label and column_capacity[column] > 0.0:
            amount = min(remaining_excess, column_capacity[column])
            column_capacity[column] -= amount
            to_columns[edge] += amount
            remaining_excess -= amount
            if column_capacity[column] <= 0.0:
                column_label[column] = 1
        # pay instead of nodes nearer to the sink
        if column_label[column] < node_label and remaining_excess > 0.0:
            lowest_label = UNREACHABLE
            for use in range(network.column_start[column], network.column_start[column + 1]):
                other_edge = network.column_edges[use]
                other_node = network.column_nodes[use]
                if to_columns[other_edge] > 0.0:
                    if label[other_node] < node_label and remaining_excess > 0.0:
                        amount = min(remaining_excess, to_columns[other_edge])
                        to_columns[other_edge] -= amount
                        to_columns[edge] += amount
                        excess[other_node] += amount
                        remaining_excess -= amount
                        _enqueue(other_node, queue)
                    if to_columns[other_edge] > 0.0:
                        lowest_label = min(lowest_label, label[other_node])
            queue_state[WORK] += network.column_start[column + 1] - network.column_start[column]
            if remaining_excess > 0.0:
                column_label[column] = lowest_label
        if remaining_excess > 0.0:
            edge += 1
    queue_state[WORK] += edge - labels.current_edge[node] + 4
    labels.current_edge[node] = edge
    excess[node] = remaining_excess


@numba.njit(cache=True, nogil=True)
def _send_along_tree(node: int, network: Any, residual: Any, labels: Any, queue: Any) -> None:
    """Send a node's excess to its parent, or give it back to its children."""
    to_parent = residual.to_parent
    excess = residual.excess
    label = labels.label
    remaining_excess = excess[node]
    parent = network.parent[node]
    if remaining_excess > 0.0 and parent >= 0 and label[parent] < label[node]:
        to_parent[node] += remaining_excess
        excess[parent] += remaining_excess
        remaining_excess = 0.0
        _enqueue(parent, queue)
    child = network.child[node]
    while child >= 0 and remaining_excess > 0.0:
        if to_parent[child] > 0.0 and label[child] < label[node]:
            amount = min(remaining_excess, to_parent[child])
            to_parent[child] -= amount
            excess[child] += amount
            remaining_excess -= amount
            _enqueue(child, queue)
        child = network.sibling[child]
    excess[node] = remaining_excess


@numba.njit(cache=True, nogil=True)
def _relabel(node: int, network: Any, residual: Any, labels: Any, queue_state: Any) -> None:
    """Raise a node's label to the lowest one with which it can send.

    If no node with the old label is left, the sink cannot be reached from any higher label.
    """
    label = labels.label
    label_count = labels.label_count
    old_label = label[node]
    lowest_label = UNREACHABLE  # the node itself has no capacity left, because it still has excess
    for edge in range(network.start[node], network.start[node + 1]):
        lowest_label = min(lowest_label, labels.column_label[network.columns[edge]])
    if network.parent[node] >= 0:
        lowest_label = min(lowest_label, label[network.parent[node]])
    child = network.child[node]
    while child >= 0:
        if residual.to_parent[child] > 0.0:
            lowest_label = min(lowest_label, label[child])
        child = network.sibling[child]
    queue_state[WORK] += network.start[node + 1] - network.start[node]
    label_count[old_label] -= 1
    if lowest_label >= len(label):
        label[node] = UNREACHABLE
    elif label_count[old_label] == 0:
        label[node] = UNREACHABLE
        for other_node in range(len(label)):
            if old_label < label[other_node] < UNREACHABLE:
                label_count[label[other_node]] -= 1
                label[other_node] = UNREACHABLE
    else:
        label[node] = lowest_label + 1
        label_count[lowest_label + 1] += 1
