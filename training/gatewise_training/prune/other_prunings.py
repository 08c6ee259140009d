"""Baselines of BudgetPrune: separate pruning of each tree, and GreedyPrune.

:func:`prune_each_tree` is "ind.pru." of the papers ("Optimally pruning decision tree ensembles with
feature cost", 2016, table 1), which solves the exact program for each tree alone, for all prices
``lam`` of a unit of cost. A tree then pays for a feature even if other trees have already acquired
it for the row. If each node has its own price, the best pruning at ``lam`` keeps a node if a
subtree at this node earns more than ``lam`` times the sum of its prices. The solutions are nested
in ``lam``, and each node has one breakpoint, as in Breiman's weakest-link pruning ("Classification
and regression trees", 1984, chapter 3). The breakpoints are computed bottom up. Each node is merged
with the nodes below it that earn more per unit of price than it does, as in the
pool-adjacent-violators algorithm. This takes O(n log n) time.

GreedyPrune drops one feature everywhere at each step. It is a baseline of BudgetPrune (NIPS 2016,
section 5): "at each iteration it attempts to remove all nodes corresponding to one feature". A node
that tests a dropped feature becomes a leaf. The *items* that can be dropped are features, and
feature groups with a shared price. A set of items is stored as bits in words of 64, so that one
operation on a word handles 64 items.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from gatewise.costs import FeatureCosts
from gatewise_training.prune.forest import Forest
from gatewise_training.prune.nested_prunings import PruneSequence
from gatewise_training.prune.problem import Floats, NodeMask, PruneProblem

#: Sets of items as bits, shape (n_sets, n_words).
Words = NDArray[np.uint64]

#: The features of each item.
Items = list[tuple[int, ...]]


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


def greedy_prune(problem: PruneProblem, forest: Forest, costs: FeatureCosts) -> PruneSequence:
    """Drop the item with the smallest loss per unit of saved cost, until no item is left.

    The loss is the training error that dropping the item adds. The paper does not define the ratio.
    """
    items: Items = [(feature,) for feature in range(costs.n_features)]
    for group in np.flatnonzero(costs.shared):
        members = np.flatnonzero(costs.group == group)
        if len(members) > 1:
            items.append(tuple(members.tolist()))
    path_items = _list_path_items(problem, forest.trees.feature, items)
    is_kept = problem.is_inner
    pruning_step = np.where(is_kept, np.inf, -np.inf)
    level = 0
    while is_kept.any():
        loss, saving = _compute_effects(problem, path_items, is_kept, len(items))
        # ratio = max(loss, 0) / saving; NaN sorts last and marks items that no tree tests
        ratio = np.full(len(items), np.inf)
        np.divide(np.maximum(loss, 0.0), saving, out=ratio, where=saving > 0)
        ratio[~_mark_items(path_items[is_kept], len(items))] = np.nan
        best_item = int(np.lexsort((loss, ratio))[0])
        word, bit = divmod(best_item, 64)
        tests_best_item = (path_items[:, word] >> np.uint64(bit)) & np.uint64(1)
        is_dropped = is_kept & tests_best_item.astype(np.bool_)
        level += 1
        pruning_step[is_dropped] = level
        is_kept = is_kept & ~is_dropped
    return PruneSequence(problem, pruning_step)


def _list_path_items(problem: PruneProblem, feature: NDArray[np.int32], items: Items) -> Words:
    """List the items that each node and its ancestors test, shape (n_nodes, n_words)."""
    n_words = -(-len(items) // 64)
    feature_items = np.zeros((max(map(max, items)) + 1, n_words), np.uint64)
    for item, features in enumerate(items):
        for feature_index in features:
            feature_items[feature_index, item // 64] |= np.uint64(1) << np.uint64(item % 64)
    path_items = np.zeros((problem.n_nodes, n_words), np.uint64)
    is_inner = problem.is_inner
    path_items[is_inner] = feature_items[feature[is_inner]]
    _add_items_of_ancestors(problem.parent, path_items)
    return path_items


def _mark_items(words: Words, n_items: int) -> NDArray[np.bool_]:
    """Mark the items that are in at least one of the sets, shape (n_items,)."""
    union = np.bitwise_or.reduce(words, axis=0)
    item_numbers = np.arange(n_items)
    item_bits = (union[item_numbers // 64] >> (item_numbers % 64).astype(np.uint64)) & np.uint64(1)
    return np.asarray(item_bits, np.bool_)


def _compute_effects(
    problem: PruneProblem, path_items: Words, is_kept: NodeMask, n_items: int
) -> tuple[Floats, Floats]:
    """Compute the training error that dropping each item adds, and the cost that it saves."""
    loss = np.zeros(n_items)
    saving = np.zeros(n_items)
    _add_node_effects(problem.profit, problem.depth_price, path_items, is_kept, loss, saving)
    columns = problem.column_start, problem.column_nodes, problem.column_price
    _add_acquisition_savings(columns, path_items, is_kept, saving)
    return loss, saving


@numba.njit(cache=True, nogil=True)
def _add_items_of_ancestors(parent: Any, path_items: Any) -> None:
    for node in range(len(parent)):  # a parent's index is below its children's
        if parent[node] >= 0:
            for word_index in range(path_items.shape[1]):
                path_items[node, word_index] |= path_items[parent[node], word_index]


@numba.njit(cache=True, nogil=True)
def _add_to_items(word: Any, word_index: int, amount: float, item_sums: Any) -> None:
    """Add an amount to the sum of each item in the word with index `word_index`."""
    for bit in range(64):
        if word >> np.uint64(bit) & np.uint64(1):
            item_sums[64 * word_index + bit] += amount


@numba.njit(cache=True, nogil=True)
def _add_node_effects(
    profit: Any, depth_price: Any, path_items: Any, is_kept: Any, loss: Any, saving: Any
) -> None:
    """Add the profits and the depth prices of the nodes that are pruned with each item."""
    for node in range(len(profit)):
        if is_kept[node] and (profit[node] != 0.0 or depth_price[node] != 0.0):
            for word_index in range(path_items.shape[1]):
                _add_to_items(path_items[node, word_index], word_index, profit[node], loss)
                _add_to_items(path_items[node, word_index], word_index, depth_price[node], saving)


@numba.njit(cache=True, nogil=True)
def _add_acquisition_savings(columns: Any, path_items: Any, is_kept: Any, saving: Any) -> None:
    """Add the prices of the acquisitions that end when each item is dropped.

    An acquisition ends if the paths to all nodes that make it test the item.
    """
    start, nodes, price = columns
    n_words = path_items.shape[1]
    common_items = np.empty(n_words, np.uint64)
    for column in range(len(price)):
        is_acquired = False
        for use in range(start[column], start[column + 1]):
            if is_kept[nodes[use]]:
                if is_acquired:
                    for word_index in range(n_words):
                        common_items[word_index] &= path_items[nodes[use], word_index]
                else:
                    for word_index in range(n_words):
                        common_items[word_index] = path_items[nodes[use], word_index]
                    is_acquired = True
        if is_acquired:
            for word_index in range(n_words):
                if common_items[word_index]:
                    _add_to_items(common_items[word_index], word_index, price[column], saving)
