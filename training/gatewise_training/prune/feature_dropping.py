"""GreedyPrune: drop one feature everywhere at each step.

A baseline of BudgetPrune (NIPS 2016, section 5): "at each iteration it attempts to remove all nodes
corresponding to one feature". A node that tests a dropped feature becomes a leaf. Features, and
feature groups with a shared price, are the *items* that can be dropped. Sets of items are bits in
words of 64, so that one operation on a node's word treats 64 items.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from gatewise.costs import FeatureCosts
from gatewise_training.prune.forest import Forest
from gatewise_training.prune.nested_prunings import PruneSequence
from gatewise_training.prune.problem import Floats, Keep, PruneProblem

Words = NDArray[np.uint64]
Items = list[tuple[int, ...]]
"""The columns of each item."""


def greedy_prune(problem: PruneProblem, forest: Forest, costs: FeatureCosts) -> PruneSequence:
    """Drop the feature that loses least training error per unit of cost saved, until none is left.

    The paper does not give the ratio. A group with a shared price can be dropped as a whole.
    """
    items: Items = [(k,) for k in range(costs.n_features)]
    for g in np.flatnonzero(costs.shared):
        members = np.flatnonzero(costs.group == g)
        if len(members) > 1:
            items.append(tuple(members.tolist()))
    path_items = _path_items(problem, forest.trees.feature, items)
    keep = problem.inner
    until = np.where(keep, np.inf, -np.inf)
    step = 0
    while keep.any():
        loss, saving = _effects_of_dropping(problem, path_items, keep, len(items))
        # ratio = max(loss, 0) / saving; NaN, which sorts last, where no tree tests the item
        ratio = np.full(len(items), np.inf)
        np.divide(np.maximum(loss, 0.0), saving, out=ratio, where=saving > 0)
        ratio[~_items_of(path_items[keep], len(items))] = np.nan
        best = int(np.lexsort((loss, ratio))[0])
        word, bit = divmod(best, 64)
        has_best = (path_items[:, word] >> np.uint64(bit)) & np.uint64(1)
        dropped = keep & has_best.astype(np.bool_)
        step += 1
        until[dropped] = step
        keep = keep & ~dropped
    return PruneSequence(problem, until)


def _path_items(problem: PruneProblem, feature: NDArray[np.int32], items: Items) -> Words:
    """Items that the path to each node, the node included, tests; shape (n_nodes, n_words)."""
    n_words = -(-len(items) // 64)
    column_items = np.zeros((max(map(max, items)) + 1, n_words), np.uint64)
    for item, columns in enumerate(items):
        for k in columns:
            column_items[k, item // 64] |= np.uint64(1) << np.uint64(item % 64)
    path_items = np.zeros((problem.n_nodes, n_words), np.uint64)
    inner = problem.inner
    path_items[inner] = column_items[feature[inner]]
    _add_ancestors(problem.parent, path_items)
    return path_items


def _items_of(words: Words, n_items: int) -> NDArray[np.bool_]:
    """Mark the items in any of the sets, shape (n_items,)."""
    union = np.bitwise_or.reduce(words, axis=0)
    item = np.arange(n_items)
    bit = (union[item // 64] >> (item % 64).astype(np.uint64)) & np.uint64(1)
    return np.asarray(bit, np.bool_)


def _effects_of_dropping(
    problem: PruneProblem, path_items: Words, keep: Keep, n_items: int
) -> tuple[Floats, Floats]:
    """Training error that dropping each item costs, and the cost that it saves."""
    loss = np.zeros(n_items)
    saving = np.zeros(n_items)
    _add_nodes(problem.profit, problem.depth_price, path_items, keep, loss, saving)
    columns = problem.column_start, problem.column_nodes, problem.column_price
    _add_acquisitions(columns, path_items, keep, saving)
    return loss, saving


@numba.njit(cache=True, nogil=True)
def _add_ancestors(parent: Any, path_items: Any) -> None:
    for h in range(len(parent)):  # a parent's index is below its children's
        if parent[h] >= 0:
            for w in range(path_items.shape[1]):
                path_items[h, w] |= path_items[parent[h], w]


@numba.njit(cache=True, nogil=True)
def _credit(word: Any, w: int, amount: float, out: Any) -> None:
    """Add an amount to the items of one word."""
    for bit in range(64):
        if word >> np.uint64(bit) & np.uint64(1):
            out[64 * w + bit] += amount


@numba.njit(cache=True, nogil=True)
def _add_nodes(
    profit: Any, depth_price: Any, path_items: Any, keep: Any, loss: Any, saving: Any
) -> None:
    """Add the profits and the depth prices of the nodes that drop with each item."""
    for h in range(len(profit)):
        if keep[h] and (profit[h] != 0.0 or depth_price[h] != 0.0):
            for w in range(path_items.shape[1]):
                _credit(path_items[h, w], w, profit[h], loss)
                _credit(path_items[h, w], w, depth_price[h], saving)


@numba.njit(cache=True, nogil=True)
def _add_acquisitions(columns: Any, path_items: Any, keep: Any, saving: Any) -> None:
    """Add the acquisitions that are made only at nodes with the item on their paths."""
    start, nodes, price = columns
    n_words = path_items.shape[1]
    common_items = np.empty(n_words, np.uint64)
    for c in range(len(price)):
        is_acquired = False
        for j in range(start[c], start[c + 1]):
            if keep[nodes[j]]:
                if is_acquired:
                    for w in range(n_words):
                        common_items[w] &= path_items[nodes[j], w]
                else:
                    for w in range(n_words):
                        common_items[w] = path_items[nodes[j], w]
                    is_acquired = True
        if is_acquired:
            for w in range(n_words):
                if common_items[w]:
                    _credit(common_items[w], w, price[c], saving)
