"""Prune each tree by itself: all prices of cost at once, by weakest links.

:func:`per_tree` is the papers' "ind.pru." ("Optimally pruning decision tree ensembles with feature
cost", 2016, table 1): the same exact program for each tree alone. A tree then pays for a feature
although others have acquired it for the row.

Where each node has a price of its own, the best pruning at price ``lam`` keeps the nodes whose
part of the tree earns more than its price. Solutions are nested in ``lam``, and each node has one
breakpoint: Breiman's weakest links ("Classification and regression trees", 1984, chapter 3), found
bottom up by merging each node with those below it that earn more per unit of price than it does,
as pooling adjacent violators does on a line. O(n log n).
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from gatewise_training.prune.nested_prunings import PruneSequence
from gatewise_training.prune.problem import PruneProblem


def per_tree(problem: PruneProblem) -> PruneSequence:
    """Optimal prunings of each tree alone, for all prices of cost.

    Within one tree a row's first use of a feature is at one node, so nothing is shared and every
    node has a price of its own: the problem has a closed solution for all prices at once.
    """
    price = problem.column_price[problem.use_column]
    own = np.bincount(problem.column_nodes, price, problem.n_nodes)
    until = weakest_links(problem.parent, problem.profit, own + problem.depth_price)
    return PruneSequence(problem, np.where(problem.inner, until, -np.inf))


@numba.njit(cache=True, nogil=True)
def weakest_links(parent: Any, profit: Any, price: Any) -> Any:
    """Largest price of cost up to which each node stays.

    Shapes: `parent` (n_nodes,), int32; `profit, price` (n_nodes,), float64; returns (n_nodes,).

    A root that earns 1 for 2, above nodes that earn 3 for 2 and 1 for 4:

    >>> weakest_links(np.array([-1, 0, 0], np.int32), np.array([1.0, 3, 1]), np.array([2.0, 2, 4]))
    array([1.  , 1.  , 0.25])
    """
    n, profit, price = len(parent), profit.copy(), price.copy()
    key = np.empty(n)
    below = np.full(n, -1, np.int32)  # heap of the blocks that hang below a node's block
    left = np.full(n, -1, np.int32)
    right = np.full(n, -1, np.int32)
    merged = np.full(n, -1, np.int32)
    for h in range(n - 1, -1, -1):
        key[h] = _ratio(profit[h], price[h])
        while below[h] >= 0 and key[below[h]] >= key[h]:
            top = below[h]
            below[h] = _meld(left[top], right[top], key, left, right)
            left[top] = -1
            right[top] = -1
            below[h] = _meld(below[h], below[top], key, left, right)
            profit[h] += profit[top]
            price[h] += price[top]
            key[h] = _ratio(profit[h], price[h])
            merged[top] = h
        if parent[h] >= 0:
            below[parent[h]] = _meld(below[parent[h]], h, key, left, right)
    for h in range(n):
        if merged[h] >= 0:  # into a node above, which is done
            key[h] = key[merged[h]]
    return key


@numba.njit(cache=True, nogil=True)
def _ratio(profit: float, price: float) -> float:
    if price > 0.0:
        return profit / price
    return np.inf if profit > 0.0 else 0.0


@numba.njit(cache=True, nogil=True)
def _meld(a: int, b: int, key: Any, left: Any, right: Any) -> int:
    """Merge two skew heaps, the largest key on top; returns the top."""
    top, last = -1, -1
    while a >= 0 and b >= 0:
        if key[a] < key[b]:
            a, b = b, a
        if last < 0:
            top = a
        else:
            left[last] = a
        last = a
        rest = right[a]
        right[a] = left[a]
        a = rest
    remaining = a if a >= 0 else b
    if last < 0:
        return remaining
    left[last] = remaining
    return top
