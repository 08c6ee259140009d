"""Separate pruning of each tree, for all prices ``lam`` of a unit of cost, by weakest links.

:func:`prune_each_tree` is "ind.pru." of the papers ("Optimally pruning decision tree ensembles with
feature cost", 2016, table 1), which solves the exact program for each tree alone. A tree then pays
for a feature even if other trees have already acquired it for the row.

If each node has its own price, the best pruning at ``lam`` keeps a node if a subtree at this node
earns more than ``lam`` times the sum of its prices. The solutions are nested in ``lam``, and each
node has one breakpoint, as in Breiman's weakest-link pruning ("Classification and regression
trees", 1984, chapter 3). The breakpoints are computed bottom up. Each node is merged with the nodes
below it that earn more per unit of price than it does, as in the pool-adjacent-violators algorithm.
This takes O(n log n) time.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from gatewise_training.prune.nested_prunings import PruneSequence
from gatewise_training.prune.problem import PruneProblem


def prune_each_tree(problem: PruneProblem) -> PruneSequence:
    """Prune each tree alone, for all prices of a unit of cost.

    Within one tree, a row first uses a feature at one node. Each node therefore has its own price,
    and weakest links solve the problem.
    """
    # `use_column` and `column_nodes` have one entry per use of a column at a node
    use_price = problem.column_price[problem.use_column]
    node_price = np.bincount(problem.column_nodes, use_price, problem.n_nodes)
    breakpoints = weakest_links(problem.parent, problem.profit, node_price + problem.depth_price)
    return PruneSequence(problem, np.where(problem.is_inner, breakpoints, -np.inf))


@numba.njit(cache=True, nogil=True)
def weakest_links(parent: Any, profit: Any, price: Any) -> Any:
    """Find the breakpoint of each node: the largest ``lam`` up to which it stays.

    Each parent has a smaller number than its children; roots have the parent -1.
    Shapes: `parent` (n_nodes,), int32; `profit, price` (n_nodes,), float64; returns (n_nodes,).

    The root of this example earns 1 at a price of 2. Its children earn 3 at 2 and 1 at 4:

    >>> weakest_links(np.array([-1, 0, 0], np.int32), np.array([1.0, 3, 1]), np.array([2.0, 2, 4]))
    array([1.  , 1.  , 0.25])
    """
    n = len(parent)
    profit = profit.copy()
    price = price.copy()
    ratio = np.empty(n)
    # A block is a node with the nodes that are merged into it. Three invariants:
    # - Each block has a heap of the blocks directly below it, with the largest ratio at its top.
    # - A block enters a heap when it is final, and leaves it before it is merged.
    # - So a ratio, which is the key of the heaps, changes only while its block is in none.
    top_below = np.full(n, -1, np.int32)  # top of the heap of each block
    left = np.full(n, -1, np.int32)  # children in the heaps, not in the trees
    right = np.full(n, -1, np.int32)
    merged_into = np.full(n, -1, np.int32)
    for node in range(n - 1, -1, -1):
        ratio[node] = _compute_ratio(profit[node], price[node])
        # merge with the best block below as long as it earns more per unit of price
        while top_below[node] >= 0 and ratio[top_below[node]] >= ratio[node]:
            top = top_below[node]
            top_below[node] = _meld(left[top], right[top], ratio, left, right)
            left[top] = -1
            right[top] = -1
            top_below[node] = _meld(top_below[node], top_below[top], ratio, left, right)
            profit[node] += profit[top]
            price[node] += price[top]
            ratio[node] = _compute_ratio(profit[node], price[node])
            merged_into[top] = node
        if parent[node] >= 0:
            top_below[parent[node]] = _meld(top_below[parent[node]], node, ratio, left, right)
    for node in range(n):  # ancestors, whose ratios are final, come first
        if merged_into[node] >= 0:
            ratio[node] = ratio[merged_into[node]]
    return ratio


@numba.njit(cache=True, nogil=True)
def _compute_ratio(profit: float, price: float) -> float:
    if price > 0.0:
        return profit / price
    # a free block stays at every price if it has a profit
    return np.inf if profit > 0.0 else 0.0


@numba.njit(cache=True, nogil=True)
def _meld(top_1: int, top_2: int, ratio: Any, left: Any, right: Any) -> int:
    """Merge two skew heaps, given by their tops; return the top with the largest ratio.

    The tops go into the right spine in the order of their ratios, and each exchanges its children.
    """
    top = -1
    bottom = -1
    while top_1 >= 0 and top_2 >= 0:
        if ratio[top_1] < ratio[top_2]:
            top_1, top_2 = top_2, top_1
        if bottom < 0:
            top = top_1
        else:
            left[bottom] = top_1
        bottom = top_1
        right_child = right[top_1]
        right[top_1] = left[top_1]
        top_1 = right_child
    remaining_top = top_1 if top_1 >= 0 else top_2
    if bottom < 0:
        return remaining_top
    left[bottom] = remaining_top
    return top
