"""Exact reductions: the same optimum with fewer nodes and acquisitions.

- A node is dropped if its whole subtree saves no error, because it can only cost.
- A node that acquires nothing stays whenever its parent does, so it is merged with the parent:
  profits are at least 0.
- Acquisitions by the same nodes are merged. An acquisition by one node is that node's own price.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numba
import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from gatewise_training.prune.problem import PruneProblem

DROPPED, FREE = -2, -1
"""Numbers of nodes that need no decision: indices from the end, of values that are appended."""


@dataclass(frozen=True, eq=False)
class Closure:
    """A maximum-closure problem: nodes that need their parents, and shared acquisitions."""

    # (n_nodes,): -1 where there is none. A parent's index is below its children's
    parent: NDArray[np.int32]
    profit: NDArray[np.float64]  # (n_nodes,)
    price: NDArray[np.float64]  # (n_nodes,): price that a node pays alone, before ``lam``
    start: NDArray[np.int64]  # (n_nodes + 1,): where each node's acquisitions start in `columns`
    columns: NDArray[np.int32]
    column_price: NDArray[np.float64]  # (n_columns,)

    @property
    def n_nodes(self) -> int:
        """Number of nodes."""
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
        """Keep some nodes, (n_nodes,), their unpaid acquisitions, and the flow between them."""
        closure = (
            self.parent, self.profit, self.price, self.start, self.columns, self.column_price,
        )  # fmt: skip
        *arrays, acquired, up = _part(closure, (flow.acquired, flow.up), chosen, unpaid)
        return Closure(*arrays), Flow(acquired, up)

    def acquired(self, chosen: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Which acquisitions some of the nodes make, shape (n_columns,)."""
        acquired = np.zeros(len(self.column_price), np.bool_)
        acquired[self.columns[np.repeat(chosen, np.diff(self.start))]] = True
        return acquired


@dataclass(frozen=True, eq=False)
class Flow:
    """Profit that the nodes of a closure problem send to pay for acquisitions."""

    acquired: NDArray[np.float64]  # (n_edges,): to each entry of `columns`
    up: NDArray[np.float64]  # (n_nodes,): to the parent

    @classmethod
    def none(cls, closure: Closure) -> Flow:
        """Make a flow of 0."""
        return cls(np.zeros(len(closure.columns)), np.zeros(closure.n_nodes))


def reduce_problem(problem: PruneProblem) -> tuple[Closure, NDArray[np.int32]]:
    """Reduce a pruning problem to the nodes that need a decision; get each node's number there."""
    uses = np.bincount(problem.column_nodes, minlength=problem.n_nodes) > 0
    priced = uses | (problem.depth_price > 0)
    # nodes that are merged take the number of the node that they stay with
    decider = _decider(problem.parent, problem.inner, problem.profit, priced)
    decided = np.flatnonzero((decider >= 0) & priced)
    closure_number = np.full(problem.n_nodes, FREE, np.int32)
    closure_number[decided] = np.arange(len(decided), dtype=np.int32)
    is_open = decider >= 0
    number = np.where(is_open, closure_number[np.maximum(decider, 0)], decider).astype(np.int32)
    profit = _summed(number[is_open], problem.profit[is_open], len(decided))
    parent_node = problem.parent[decided]
    parent = np.where(parent_node >= 0, number[parent_node], FREE).astype(np.int32)
    parent[parent < 0] = -1
    columns = _merged_columns(problem, number, len(decided))
    return (
        Closure(
            parent=parent,
            profit=profit,
            price=problem.depth_price[decided] + columns.own_price,
            start=columns.start,
            columns=columns.columns,
            column_price=columns.price,
        ),
        number,
    )


class MergedColumns(NamedTuple):
    """Acquisitions by the nodes of a closure, and the acquisitions that one node makes alone."""

    own_price: NDArray[np.float64]  # (n_nodes,)
    start: NDArray[np.int64]
    columns: NDArray[np.int32]
    price: NDArray[np.float64]  # (n_columns,)


def _merged_columns(
    problem: PruneProblem, number: NDArray[np.int32], n_decided: int
) -> MergedColumns:
    """Merge the acquisitions that are made by the same nodes of the closure."""
    use = number[problem.column_nodes]
    column = problem.use_column
    is_open = use >= 0
    key = np.zeros(0, np.uint64)
    size = np.zeros(0, np.int64)
    if problem.n_columns:
        # a sum of random numbers identifies a column's set of nodes; others count as 0
        names = np.random.default_rng(0).integers(1, 2**63, n_decided, dtype=np.uint64)
        starts = problem.column_start[:-1]
        key = np.add.reduceat(np.append(names, np.zeros(2, np.uint64))[use], starts)
        size = np.add.reduceat(is_open, starts, dtype=np.int64)
    # acquisitions of one node
    is_alone = is_open & (size == 1)[column]
    own_price = _summed(use[is_alone], problem.column_price[column[is_alone]], n_decided)
    # acquisitions of several nodes
    shared = np.flatnonzero(size > 1)
    _, first, merged = np.unique(key[shared], return_index=True, return_inverse=True)
    price = _summed(merged, problem.column_price[shared], len(first))
    representative = np.full(problem.n_columns, -1)
    representative[shared[first]] = np.arange(len(first))
    is_open &= representative[column] >= 0
    entries = sp.csr_array(
        (np.ones(is_open.sum(), np.int8), (use[is_open], representative[column[is_open]])),
        shape=(n_decided, len(first)),
    )
    start = entries.indptr.astype(np.int64)
    return MergedColumns(own_price, start, entries.indices.astype(np.int32), price)


def _summed(number: NDArray[Any], weight: NDArray[np.float64], length: int) -> NDArray[np.float64]:
    return np.bincount(number, weights=weight, minlength=length).astype(np.float64)


@numba.njit(cache=True, nogil=True)
def _decider(parent: Any, inner: Any, profit: Any, priced: Any) -> Any:
    """For each node, the node that decides over it, or DROPPED or FREE."""
    n = len(parent)
    subtree_profit = profit.copy()
    for h in range(n - 1, -1, -1):
        if parent[h] >= 0:
            subtree_profit[parent[h]] += subtree_profit[h]
    decider = np.empty(n, np.int64)
    for h in range(n):
        if not inner[h] or subtree_profit[h] <= 0.0:
            decider[h] = DROPPED
        elif priced[h]:
            decider[h] = h
        else:
            decider[h] = FREE if parent[h] < 0 else decider[parent[h]]
    return decider


@numba.njit(cache=True, nogil=True)
def _part(closure: Any, flow: Any, chosen: Any, unpaid: Any) -> Any:
    """Some nodes and the unpaid acquisitions that they make; lone acquisitions join own prices."""
    parent, profit, price, start, columns, column_price = closure
    acquired, up = flow
    # numbers of the nodes, and uses of each acquisition
    n = 0
    n_edges = 0
    number = np.full(len(parent), -1, np.int32)
    n_uses = np.zeros(len(column_price), np.int32)
    for v in range(len(parent)):
        if chosen[v]:
            number[v] = n
            n += 1
            for e in range(start[v], start[v + 1]):
                if unpaid[columns[e]]:
                    n_uses[columns[e]] += 1
                    n_edges += 1
    # numbers of the acquisitions that several nodes make
    column_number = np.full(len(column_price), -1, np.int32)
    n_columns = 0
    for c in range(len(column_price)):
        if n_uses[c] > 1:
            column_number[c] = n_columns
            n_columns += 1
        elif n_uses[c] == 1:
            n_edges -= 1
    new_parent = np.full(n, -1, np.int32)
    new_profit = np.empty(n)
    new_price = np.empty(n)
    new_start = np.zeros(n + 1, np.int64)
    new_columns = np.empty(n_edges, np.int32)
    new_column_price = np.empty(n_columns)
    new_acquired = np.empty(n_edges)
    new_up = np.zeros(n)
    for c in range(len(column_price)):
        if column_number[c] >= 0:
            new_column_price[column_number[c]] = column_price[c]
    # the nodes with their edges
    edge = 0
    for v in range(len(parent)):
        if not chosen[v]:
            continue
        i = number[v]
        if parent[v] >= 0:
            new_parent[i] = number[parent[v]]
            if new_parent[i] >= 0:
                new_up[i] = up[v]
        new_profit[i] = profit[v]
        new_price[i] = price[v]
        for e in range(start[v], start[v + 1]):
            c = columns[e]
            if column_number[c] >= 0:
                new_columns[edge] = column_number[c]
                new_acquired[edge] = acquired[e]
                edge += 1
            elif unpaid[c]:
                new_price[i] += column_price[c]
        new_start[i + 1] = edge
    arrays = new_parent, new_profit, new_price, new_start, new_columns, new_column_price
    return (*arrays, new_acquired, new_up)
