"""The exact solver: one minimum cut, by push-relabel on the implicit graph.

A maximum closure is a minimum cut (Picard, 1976): profits flow from the source into the nodes, from
a node to its parent and to what it buys without limit, and out to the sink up to the prices.
Nodes from which the sink cannot be reached any more are those that pay for themselves; they stay.

Push-relabel (Goldberg & Tarjan, 1988) with a first-in first-out queue and global relabelling; only
its first phase, since the cut is wanted and not the flow. Before it, profits flow greedily from
the leaves upwards. The flow found proves the optimum: what reaches the sink is the value of the
cut, so ``bound`` is computed from the flow and not assumed.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from gatewise_training.errors import InputError
from gatewise_training.prune.problem import PruneProblem, Solution
from gatewise_training.prune.reduce import DROPPED, FREE, Closure, reduce_problem

__all__ = ["best_closure", "solve"]

FAR = 2**30
"""Label of a vertex from which the sink cannot be reached."""


def solve(problem: PruneProblem, lam: float) -> Solution:
    """Find the optimal pruning for one price of cost; of several the one that keeps most.

    Parameters
    ----------
    problem : PruneProblem
    lam : float
        Training error given up per unit of cost, at least 0.

    Returns
    -------
    Solution
        `iterations` are relabellings.

    Raises
    ------
    InputError
        If `lam` is negative or not finite.
    """
    if not (np.isfinite(lam) and lam >= 0):
        raise InputError(f"lam must be at least 0, not {lam!r}")
    closure, place = reduce_problem(problem)
    kept, flow, iterations = best_closure(closure, lam)
    keep = np.append(kept, [False, True])[np.where(place == DROPPED, len(kept), place)]
    free = float(problem.profit[place == FREE].sum())
    keep[place == FREE] = True
    bound = problem.base_error - free - (closure.worth - flow)
    return Solution(keep, problem.objective(keep, lam), bound, float(lam), iterations)


def best_closure(closure: Closure, lam: float) -> tuple[NDArray[np.bool_], float, int]:
    """Find the closure of greatest profit less ``lam`` times price.

    Returns
    -------
    kept : ndarray of bool, shape (n_nodes,)
        The largest of the best closures.
    flow : float
        Profit that is used up by prices: profit of all nodes less the best value.
    iterations : int
    """
    kept, flow, iterations = _push_relabel(
        closure.parent, closure.profit, lam * closure.price, closure.start, closure.columns,
        lam * closure.column_price,
    )  # fmt: skip
    return kept, float(flow), int(iterations)


@numba.njit(cache=True, nogil=True)
def _by_column(start: Any, columns: Any, n_columns: int) -> Any:
    """Edges of each column: where they start, their numbers and their nodes."""
    begin = np.zeros(n_columns + 1, np.int64)
    for c in columns:
        begin[c + 1] += 1
    begin = np.cumsum(begin)
    fill = begin[:-1].copy()
    edge = np.empty(len(columns), np.int32)
    node = np.empty(len(columns), np.int32)
    for v in range(len(start) - 1):
        for e in range(start[v], start[v + 1]):
            at = fill[columns[e]]
            edge[at], node[at] = e, v
            fill[columns[e]] += 1
    return begin, edge, node


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
def _label(
    label: Any, queue: Any, room: Any, up: Any, flow: Any, parent: Any, child: Any, sibling: Any,
    begin: Any, edge: Any, node: Any, start: Any, columns: Any,
) -> None:  # fmt: skip
    """Distance of every vertex to the sink in the residual graph, backwards from the sink."""
    n = len(parent)
    label[:] = FAR
    head, tail = 0, 0
    for v in range(len(room)):
        if room[v] > 0.0:
            label[v] = 1
            queue[tail] = v
            tail += 1
    while head < tail:
        w = queue[head]
        head += 1
        away = label[w] + 1
        if w >= n:  # every node of a column can push into it
            for a in range(begin[w - n], begin[w - n + 1]):
                v = node[a]
                if label[v] == FAR:
                    label[v] = away
                    queue[tail] = v
                    tail += 1
            continue
        v = child[w]  # every child can push into its parent
        while v >= 0:
            if label[v] == FAR:
                label[v] = away
                queue[tail] = v
                tail += 1
            v = sibling[v]
        v = parent[w]  # and a parent can push back what it got
        if v >= 0 and up[w] > 0.0 and label[v] == FAR:
            label[v] = away
            queue[tail] = v
            tail += 1
        for e in range(start[w], start[w + 1]):  # and a column
            if flow[e] > 0.0 and label[n + columns[e]] == FAR:
                label[n + columns[e]] = away
                queue[tail] = n + columns[e]
                tail += 1


@numba.njit(cache=True, nogil=True)
def _push_relabel(
    parent: Any, profit: Any, price: Any, start: Any, columns: Any, column_price: Any
) -> Any:
    n, n_columns = len(parent), len(column_price)
    total = n + n_columns
    begin, edge, node = _by_column(start, columns, n_columns)
    child, sibling = _siblings(parent)
    room = np.concatenate((price, column_price))  # what can still flow to the sink
    excess = np.zeros(total)
    flow = np.zeros(len(columns))  # from nodes to columns
    up = np.zeros(n)  # from nodes to their parents
    for v in range(n - 1, -1, -1):  # greedily, from the leaves upwards
        left = excess[v] + profit[v]
        push = min(left, room[v])
        room[v] -= push
        left -= push
        for e in range(start[v], start[v + 1]):
            if left <= 0.0:
                break
            c = n + columns[e]
            push = min(left, room[c])
            if push > 0.0:
                room[c] -= push
                flow[e] += push
                left -= push
        if left > 0.0 and parent[v] >= 0:
            up[v] = left
            excess[parent[v]] += left
            left = 0.0
        excess[v] = left
    label = np.empty(total, np.int32)
    queue = np.empty(total + 1, np.int32)
    waiting = np.zeros(total, np.bool_)
    small = 1e-15 * profit.sum()  # rounding, not worth sending on its way
    rounds, since = 0, np.inf
    while True:
        _label(
            label, queue, room, up, flow, parent, child, sibling, begin, edge, node, start, columns
        )
        rounds += 1
        head, tail, size = 0, 0, 0
        waiting[:] = False
        for v in range(total):
            if excess[v] > small and label[v] < FAR:
                queue[tail] = v
                waiting[v] = True
                tail += 1
                size += 1
        if size == 0:
            break
        since, enough = 0, 20 * total + 4 * len(columns)
        while size > 0 and since < enough:
            v = queue[head]
            head = head + 1 if head < total else 0
            size -= 1
            waiting[v] = False
            left = excess[v]
            lowest = FAR
            while left > small:  # push, and lift once if that was not enough
                here = label[v]
                lowest = FAR
                if room[v] > 0.0:
                    if here == 1:
                        push = min(left, room[v])
                        room[v] -= push
                        left -= push
                    if room[v] > 0.0:
                        lowest = 0
                if v < n:
                    for e in range(start[v], start[v + 1]):
                        c = n + columns[e]
                        since += 1
                        if label[c] < here and left > 0.0:
                            # straight on into the column's room, where it has some
                            flow[e] += left
                            excess[c] += left
                            left = 0.0
                            if not waiting[c]:
                                waiting[c] = True
                                queue[tail] = c
                                tail = tail + 1 if tail < total else 0
                                size += 1
                            break
                        lowest = min(lowest, label[c])
                    if left > 0.0 and parent[v] >= 0:
                        w = parent[v]
                        if label[w] < here:
                            up[v] += left
                            excess[w] += left
                            left = 0.0
                            if not waiting[w]:
                                waiting[w] = True
                                queue[tail] = w
                                tail = tail + 1 if tail < total else 0
                                size += 1
                        else:
                            lowest = min(lowest, label[w])
                    w = child[v]
                    while w >= 0 and left > 0.0:
                        since += 1
                        if up[w] > 0.0:
                            if label[w] < here:
                                push = min(left, up[w])
                                up[w] -= push
                                left -= push
                                excess[w] += push
                                if not waiting[w]:
                                    waiting[w] = True
                                    queue[tail] = w
                                    tail = tail + 1 if tail < total else 0
                                    size += 1
                            if up[w] > 0.0:
                                lowest = min(lowest, label[w])
                        w = sibling[w]
                else:
                    for a in range(begin[v - n], begin[v - n + 1]):
                        since += 1
                        if left <= 0.0:
                            break
                        e, w = edge[a], node[a]
                        if flow[e] > 0.0:
                            if label[w] < here:
                                push = min(left, flow[e])
                                flow[e] -= push
                                left -= push
                                excess[w] += push
                                if not waiting[w]:
                                    waiting[w] = True
                                    queue[tail] = w
                                    tail = tail + 1 if tail < total else 0
                                    size += 1
                            if flow[e] > 0.0:
                                lowest = min(lowest, label[w])
                if left <= small:
                    break
                if lowest >= FAR - 1:
                    label[v] = FAR
                    break
                label[v] = lowest + 1
                since += 12
            excess[v] = left
    kept = label[:n] == FAR
    reached = 0.0
    for v in range(n):
        reached += price[v] - room[v]
    for c in range(n_columns):
        reached += column_price[c] - room[n + c]
    return kept, reached, rounds
