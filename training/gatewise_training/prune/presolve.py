"""Exact reduction of the pruning problem to fewer nodes and acquisitions.

The reduced problem has the same optimum:

- A node whose whole subtree saves no error is dropped, because keeping it can only cost.
- A node that acquires nothing is merged with its parent. It stays whenever its parent stays,
  because profits are at least 0.
- Acquisitions that the same nodes make are merged. The price of an acquisition that only one node
  makes becomes part of that node's own price.

Each acquisition is a column, and an edge leads from a node to an acquisition.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba
import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from gatewise_training.prune.problem import PruneProblem

#: Numbers of nodes that are dropped, and of nodes that cost nothing. As negative indices, they
#: select the last two entries of an array, to which the values of such nodes are appended.
DROPPED, FREE = -2, -1


class Closure(NamedTuple):
    """Maximum closure problem: nodes that require their parents and share acquisitions."""

    # (n_nodes,): -1 at roots; a parent's index is below its children's
    parent: NDArray[np.int32]
    profit: NDArray[np.float64]  # (n_nodes,)
    # (n_nodes,): price of the acquisitions that only this node makes
    price: NDArray[np.float64]
    start: NDArray[np.int64]  # (n_nodes + 1,): where each node's acquisitions start in `columns`
    columns: NDArray[np.int32]  # (n_edges,): acquisitions of all nodes, one node after another
    column_price: NDArray[np.float64]  # (n_columns,)

    @property
    def n_nodes(self) -> int:
        """Number of nodes."""
        return len(self.parent)

    @property
    def total_profit(self) -> float:
        """Total profit of all nodes."""
        return float(self.profit.sum())

    @property
    def cost(self) -> float:
        """Total price of keeping all nodes."""
        return float(self.price.sum() + self.column_price.sum())

    def restrict(
        self, is_chosen: NDArray[np.bool_], is_unpaid: NDArray[np.bool_], flow: Flow
    ) -> tuple[Closure, Flow]:
        """Restrict the problem and its flow to some nodes and to unpaid acquisitions.

        Shapes: `is_chosen` (n_nodes,), `is_unpaid` (n_columns,).
        """
        restricted: tuple[Closure, Flow] = _restrict(self, flow, is_chosen, is_unpaid)
        return restricted

    def at_price(self, lam: float) -> Closure:
        """Multiply all prices by the price ``lam`` of cost."""
        return self._replace(price=lam * self.price, column_price=lam * self.column_price)

    def acquired(self, is_chosen: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Mark the acquisitions that at least one of the chosen nodes makes, shape (n_columns,)."""
        is_acquired = np.zeros(len(self.column_price), np.bool_)
        is_acquired[self.columns[np.repeat(is_chosen, np.diff(self.start))]] = True
        return is_acquired


class Flow(NamedTuple):
    """Profit that the nodes of a closure problem send to pay for acquisitions."""

    to_columns: NDArray[np.float64]  # (n_edges,): to each entry of `columns`
    to_parent: NDArray[np.float64]  # (n_nodes,)

    @classmethod
    def zero(cls, closure: Closure) -> Flow:
        """Make a flow of 0 on all edges."""
        return cls(np.zeros(len(closure.columns)), np.zeros(closure.n_nodes))


def reduce_problem(problem: PruneProblem) -> tuple[Closure, NDArray[np.int32]]:
    """Reduce a pruning problem to the nodes that need a decision.

    Returns the reduced problem, and the number of each node in it, shape (n_nodes,). The number is
    DROPPED or FREE for nodes that need no decision.
    """
    has_uses = np.bincount(problem.column_nodes, minlength=problem.n_nodes) > 0
    is_priced = has_uses | (problem.depth_price > 0)
    # a merged node takes the number of the node that decides about it
    decider = _find_deciders(problem.parent, problem.is_inner, problem.profit, is_priced)
    decided_nodes = np.flatnonzero((decider >= 0) & is_priced)
    n_decided = len(decided_nodes)
    decided_number = np.full(problem.n_nodes, FREE, np.int32)
    decided_number[decided_nodes] = np.arange(n_decided, dtype=np.int32)
    has_decider = decider >= 0
    closure_number = np.where(has_decider, decided_number[np.maximum(decider, 0)], decider).astype(
        np.int32
    )
    # profits and parents of the reduced problem
    profit = _sum_by_number(closure_number[has_decider], problem.profit[has_decider], n_decided)
    parent_node = problem.parent[decided_nodes]
    parent = np.where(parent_node >= 0, closure_number[parent_node], FREE).astype(np.int32)
    parent[parent < 0] = -1
    columns = _merge_columns(problem, closure_number, n_decided)
    return (
        Closure(
            parent=parent,
            profit=profit,
            price=problem.depth_price[decided_nodes] + columns.own_price,
            start=columns.start,
            columns=columns.columns,
            column_price=columns.price,
        ),
        closure_number,
    )


class MergedColumns(NamedTuple):
    """Acquisitions that several nodes of a closure share, and prices of the other acquisitions."""

    own_price: NDArray[np.float64]  # (n_nodes,): of the acquisitions that only this node makes
    start: NDArray[np.int64]
    columns: NDArray[np.int32]
    price: NDArray[np.float64]  # (n_columns,)


def _merge_columns(
    problem: PruneProblem, closure_number: NDArray[np.int32], n_decided: int
) -> MergedColumns:
    """Merge the acquisitions that the same nodes of the closure make."""
    use_number = closure_number[problem.column_nodes]
    use_column = problem.use_column
    is_in_closure = use_number >= 0
    column_key = np.zeros(0, np.uint64)
    column_size = np.zeros(0, np.int64)
    if problem.n_columns:
        # the sum of the random keys of its nodes identifies a column; nodes outside the closure
        # have the key 0
        node_keys = np.random.default_rng(0).integers(1, 2**63, n_decided, dtype=np.uint64)
        starts = problem.column_start[:-1]
        use_keys = np.append(node_keys, np.zeros(2, np.uint64))[use_number]
        column_key = np.add.reduceat(use_keys, starts)
        column_size = np.add.reduceat(is_in_closure, starts, dtype=np.int64)
    # acquisitions that only one node makes
    is_single = is_in_closure & (column_size == 1)[use_column]
    single_prices = problem.column_price[use_column[is_single]]
    own_price = _sum_by_number(use_number[is_single], single_prices, n_decided)
    # acquisitions that several nodes share
    shared_columns = np.flatnonzero(column_size > 1)
    _, first_index, merged_number = np.unique(
        column_key[shared_columns], return_index=True, return_inverse=True
    )
    n_merged = len(first_index)
    price = _sum_by_number(merged_number, problem.column_price[shared_columns], n_merged)
    merged_number_of_column = np.full(problem.n_columns, -1)
    merged_number_of_column[shared_columns[first_index]] = np.arange(n_merged)
    is_edge = is_in_closure & (merged_number_of_column[use_column] >= 0)
    edges = use_number[is_edge], merged_number_of_column[use_column[is_edge]]
    matrix = sp.csr_array((np.ones(is_edge.sum(), np.int8), edges), shape=(n_decided, n_merged))
    start = matrix.indptr.astype(np.int64)
    return MergedColumns(own_price, start, matrix.indices.astype(np.int32), price)


def _sum_by_number(
    numbers: NDArray[Any], weights: NDArray[np.float64], length: int
) -> NDArray[np.float64]:
    return np.bincount(numbers, weights=weights, minlength=length).astype(np.float64)


@numba.njit(cache=True, nogil=True)
def _find_deciders(parent: Any, is_inner: Any, profit: Any, is_priced: Any) -> Any:
    """Find for each node the node that decides about it, or DROPPED or FREE."""
    n = len(parent)
    subtree_profit = profit.copy()
    for node in range(n - 1, -1, -1):
        if parent[node] >= 0:
            subtree_profit[parent[node]] += subtree_profit[node]
    decider = np.empty(n, np.int64)
    for node in range(n):
        if not is_inner[node] or subtree_profit[node] <= 0.0:
            decider[node] = DROPPED
        elif is_priced[node]:
            decider[node] = node
        else:
            decider[node] = FREE if parent[node] < 0 else decider[parent[node]]
    return decider


@numba.njit(cache=True, nogil=True)
def _restrict(closure: Any, flow: Any, is_chosen: Any, is_unpaid: Any) -> Any:
    """Extract the chosen nodes and their unpaid acquisitions.

    The price of an acquisition that only one chosen node makes is added to that node's own price.
    """
    parent, profit, price, start, columns, column_price = closure
    to_columns, to_parent = flow
    # number the nodes, and count the uses of each acquisition
    n_chosen = 0
    n_edges = 0
    new_number = np.full(len(parent), -1, np.int32)
    n_uses = np.zeros(len(column_price), np.int32)
    for node in range(len(parent)):
        if is_chosen[node]:
            new_number[node] = n_chosen
            n_chosen += 1
            for edge in range(start[node], start[node + 1]):
                if is_unpaid[columns[edge]]:
                    n_uses[columns[edge]] += 1
                    n_edges += 1
    # number the acquisitions that several nodes make
    new_column_number = np.full(len(column_price), -1, np.int32)
    n_columns = 0
    for column in range(len(column_price)):
        if n_uses[column] > 1:
            new_column_number[column] = n_columns
            n_columns += 1
        elif n_uses[column] == 1:
            n_edges -= 1
    new_parent = np.full(n_chosen, -1, np.int32)
    new_profit = np.empty(n_chosen)
    new_price = np.empty(n_chosen)
    new_start = np.zeros(n_chosen + 1, np.int64)
    new_columns = np.empty(n_edges, np.int32)
    new_column_price = np.empty(n_columns)
    new_to_columns = np.empty(n_edges)
    new_to_parent = np.zeros(n_chosen)
    for column in range(len(column_price)):
        if new_column_number[column] >= 0:
            new_column_price[new_column_number[column]] = column_price[column]
    # copy the nodes with their edges
    new_edge = 0
    for node in range(len(parent)):
        if not is_chosen[node]:
            continue
        new_node = new_number[node]
        if parent[node] >= 0:
            new_parent[new_node] = new_number[parent[node]]
            if new_parent[new_node] >= 0:
                new_to_parent[new_node] = to_parent[node]
        new_profit[new_node] = profit[node]
        new_price[new_node] = price[node]
        for edge in range(start[node], start[node + 1]):
            column = columns[edge]
            if new_column_number[column] >= 0:
                new_columns[new_edge] = new_column_number[column]
                new_to_columns[new_edge] = to_columns[edge]
                new_edge += 1
            elif is_unpaid[column]:
                new_price[new_node] += column_price[column]
        new_start[new_node + 1] = new_edge
    restricted_closure = Closure(
        new_parent, new_profit, new_price, new_start, new_columns, new_column_price
    )
    return restricted_closure, Flow(new_to_columns, new_to_parent)
