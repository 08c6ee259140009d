"""Exact reductions: the same optimum with fewer nodes and acquisitions.

- A node whose whole subtree saves no error is dropped: keeping it can only cost.
- A node that acquires nothing stays whenever its parent does, and joins it: profits are at least 0.
- Acquisitions of the same nodes are one. An acquisition of one node is that node's own price.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from gatewise_training.prune.problem import PruneProblem

DROPPED, FREE = -2, -1
"""Places of nodes not to be decided: indices from the end, of values put behind the others'."""


@dataclass(frozen=True, eq=False)
class Closure:
    """A maximum-closure problem: nodes that need their parents, and shared acquisitions."""

    # (n_nodes,): -1 where there is none. A parent's index is below its children's
    parent: NDArray[np.int32]
    profit: NDArray[np.float64]  # (n_nodes,)
    price: NDArray[np.float64]  # (n_nodes,): what a node pays alone, before ``lam``
    start: NDArray[np.int64]  # (n_nodes + 1,): where each node's acquisitions start in `columns`
    columns: NDArray[np.int32]
    column_price: NDArray[np.float64]  # (n_columns,)

    @property
    def n_nodes(self) -> int:
        """Nodes that are left."""
        return len(self.parent)

    @property
    def worth(self) -> float:
        """Profit of all nodes."""
        return float(self.profit.sum())

    @property
    def cost(self) -> float:
        """Price of keeping all nodes."""
        return float(self.price.sum() + self.column_price.sum())

    def part(
        self, chosen: NDArray[np.bool_], unpaid: NDArray[np.bool_], flow: Flow
    ) -> tuple[Closure, Flow]:
        """Keep some nodes, the unpaid acquisitions among theirs, and the flow between them.

        Shapes: `chosen` (n_nodes,), `unpaid` (n_columns,).
        """
        *arrays, acquired, up = _part(
            self.parent, self.profit, self.price, self.start, self.columns, self.column_price,
            flow.acquired, flow.up, chosen, unpaid,
        )  # fmt: skip
        return Closure(*arrays), Flow(acquired, up)

    def acquired(self, chosen: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Which acquisitions some of the nodes make, shape (n_columns,)."""
        acquired = np.zeros(len(self.column_price), np.bool_)
        acquired[self.columns[np.repeat(chosen, np.diff(self.start))]] = True
        return acquired


@dataclass(frozen=True, eq=False)
class Flow:
    """What the nodes of a closure problem send: profit that pays for acquisitions."""

    acquired: NDArray[np.float64]  # (n_edges,): to each entry of `columns`
    up: NDArray[np.float64]  # (n_nodes,): to the parent

    @classmethod
    def none(cls, closure: Closure) -> Flow:
        """Nothing sent."""
        return cls(np.zeros(len(closure.columns)), np.zeros(closure.n_nodes))


def reduce_problem(problem: PruneProblem) -> tuple[Closure, NDArray[np.int32]]:
    """Reduce a pruning problem to the nodes that are to be decided.

    Shapes: returns `place` (n_nodes of the problem,).
    """
    uses = np.bincount(problem.column_nodes, minlength=problem.n_nodes) > 0
    priced = uses | (problem.depth_price > 0)
    place = _place(problem.parent, problem.inner, problem.profit, priced)
    decided = np.flatnonzero((place >= 0) & priced)
    number = np.full(problem.n_nodes, FREE, np.int32)
    number[decided] = np.arange(len(decided), dtype=np.int32)
    place = np.where(place >= 0, number[place], place).astype(np.int32)
    profit = _summed(place[place >= 0], problem.profit[place >= 0], len(decided))
    above = problem.parent[decided]
    parent = np.where(above >= 0, place[above], FREE).astype(np.int32)
    parent[parent < 0] = -1
    use, column, starts = place[problem.column_nodes], problem.use_column, problem.column_start[:-1]
    live = use >= 0
    # a sum of random numbers stands for a column's set of nodes; those not decided count as 0
    names = np.random.default_rng(0).integers(1, 2**63, len(decided), dtype=np.uint64)
    key = np.add.reduceat(np.append(names, np.zeros(2, np.uint64))[use], starts)
    size = np.add.reduceat(live, starts, dtype=np.int64)
    alone = live & (size == 1)[column]
    price = problem.depth_price[decided] + _summed(
        use[alone], problem.column_price[column[alone]], len(decided)
    )
    wanted = np.flatnonzero(size > 1)
    _, first, merged = np.unique(key[wanted], return_index=True, return_inverse=True)
    column_price = _summed(merged, problem.column_price[wanted], len(first))
    stands = np.full(problem.n_columns, -1)
    stands[wanted[first]] = np.arange(len(first))
    live &= stands[column] >= 0
    entries = sp.csr_array(
        (np.ones(live.sum(), np.int8), (use[live], stands[column[live]])),
        shape=(len(decided), len(first)),
    )
    start, columns = entries.indptr.astype(np.int64), entries.indices.astype(np.int32)
    return Closure(parent, profit, price, start, columns, column_price), place


def _summed(place: NDArray[Any], weight: NDArray[np.float64], length: int) -> NDArray[np.float64]:
    return np.bincount(place, weights=weight, minlength=length).astype(np.float64)


@numba.njit(cache=True, nogil=True)
def _place(parent: Any, inner: Any, profit: Any, priced: Any) -> Any:
    """For each node the node that decides over it, or that nothing does."""
    n = len(parent)
    below = profit.copy()  # what the subtree saves
    for h in range(n - 1, -1, -1):
        if parent[h] >= 0:
            below[parent[h]] += below[h]
    place = np.empty(n, np.int64)
    for h in range(n):
        if not inner[h] or below[h] <= 0.0:
            place[h] = DROPPED
        elif priced[h]:
            place[h] = h
        else:
            place[h] = FREE if parent[h] < 0 else place[parent[h]]
    return place


@numba.njit(cache=True, nogil=True)
def _part(
    parent: Any, profit: Any, price: Any, start: Any, columns: Any, column_price: Any,
    flow: Any, up: Any, chosen: Any, unpaid: Any,
) -> Any:  # fmt: skip
    """Some nodes and the unpaid acquisitions that they make; those of one node join its price."""
    n, size = 0, 0
    number = np.full(len(parent), -1, np.int32)
    uses = np.zeros(len(column_price), np.int32)
    for v in range(len(parent)):
        if chosen[v]:
            number[v] = n
            n += 1
            for e in range(start[v], start[v + 1]):
                if unpaid[columns[e]]:
                    uses[columns[e]] += 1
                    size += 1
    column = np.full(len(column_price), -1, np.int32)
    n_columns = 0
    for c in range(len(column_price)):
        if uses[c] > 1:
            column[c] = n_columns
            n_columns += 1
        elif uses[c] == 1:
            size -= 1
    out_parent = np.full(n, -1, np.int32)
    out_profit, out_price = np.empty(n), np.empty(n)
    out_start = np.zeros(n + 1, np.int64)
    out_columns = np.empty(size, np.int32)
    out_column_price = np.empty(n_columns)
    out_flow, out_up = np.empty(size), np.zeros(n)
    for c in range(len(column_price)):
        if column[c] >= 0:
            out_column_price[column[c]] = column_price[c]
    end = 0
    for v in range(len(parent)):
        if chosen[v]:
            here = number[v]
            if parent[v] >= 0:
                out_parent[here] = number[parent[v]]
                if out_parent[here] >= 0:
                    out_up[here] = up[v]
            out_profit[here] = profit[v]
            out_price[here] = price[v]
            for e in range(start[v], start[v + 1]):
                c = columns[e]
                if column[c] >= 0:
                    out_columns[end] = column[c]
                    out_flow[end] = flow[e]
                    end += 1
                elif unpaid[c]:
                    out_price[here] += column_price[c]
            out_start[here + 1] = end
    return (
        out_parent, out_profit, out_price, out_start, out_columns, out_column_price, out_flow,
        out_up,
    )  # fmt: skip
