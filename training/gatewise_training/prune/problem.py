"""The pruning problem: errors that nodes save, and features that instances acquire at them.

Choose for every tree of a forest which nodes stay inner nodes (``y_h = 1``; a child stays only if
its parent does) so that ::

    sum_h e_h z_h / (N_train T)  +  lam * ( sum_k c_k mean_i w_ki  +  expected depth )

is least, where ``z_h = 1`` at the leaves of the pruned trees, ``e_h`` counts the training rows
that node h gets wrong, and ``w_ki = 1`` if instance i acquires feature k anywhere in the forest
(BudgetPrune, NIPS 2016, equation IP; its predecessor of 2016, IP3). Staying earns the profit
``p_h = (e_h - e_left - e_right) / (N_train T) >= 0``, and instance i acquires k if a node stays
that uses k *first* on the path that i takes: a maximum closure, which one minimum cut solves
exactly (:mod:`.solvers.mincut`). A feature's own price, its group's shared price and those of the
groups that this one requires are acquisitions of their own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from gatewise.costs import FeatureCosts
from gatewise.errors import InputError
from gatewise_training.prune.forest import Forest

Keep = NDArray[np.bool_]
"""Nodes that stay inner nodes, shape (n_nodes,)."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class PruneProblem:
    """Nodes with profits, and acquisitions (columns) with prices and the nodes that make them.

    Nodes, (n_nodes,): `parent`, -1 at a root, an index below its children's; `inner`, whether the
    node has children (leaves are never kept); `error`, the share of the training error if the node
    becomes a leaf; `profit`, ``error[h] - error[left] - error[right]``, at least 0, and 0 at
    leaves; `depth_price`, what keeping the node adds to the price of expected depth. A column is
    the first-use nodes of one instance and one feature, or group, all distinct: `column_nodes` from
    `column_start`, (n_columns + 1,), on; `column_price`, (n_columns,), is divided by the number of
    instances.
    """

    parent: NDArray[np.int32]
    inner: NDArray[np.bool_]
    error: NDArray[np.float64]
    profit: NDArray[np.float64]
    column_start: NDArray[np.int64]
    column_nodes: NDArray[np.int32]
    column_price: NDArray[np.float64]
    depth_price: NDArray[np.float64]

    @property
    def n_nodes(self) -> int:
        """Nodes, leaves included."""
        return len(self.parent)

    @property
    def n_columns(self) -> int:
        """Acquisitions that may be made."""
        return len(self.column_price)

    @property
    def use_column(self) -> NDArray[np.intp]:
        """Acquisition of each first use, shape (len(column_nodes),)."""
        return np.repeat(np.arange(self.n_columns), np.diff(self.column_start))

    @property
    def base_error(self) -> float:
        """Training error of the roots as leaves."""
        return float(self.error[self.parent < 0].sum())

    def training_error(self, keep: NDArray[np.bool_]) -> float:
        """Training error, averaged over the trees, of a pruning."""
        return self.base_error - float(self.profit[keep].sum())

    def cost(self, keep: NDArray[np.bool_]) -> float:
        """Mean cost of an instance under a pruning, depth included where it has a price."""
        paid = _paid(self.column_start, self.column_nodes, np.asarray(keep, np.bool_))
        return float(self.column_price[paid].sum() + self.depth_price[keep].sum())

    def objective(self, keep: NDArray[np.bool_], lam: float) -> float:
        """Training error plus ``lam`` times the cost."""
        return self.training_error(keep) + lam * self.cost(keep)


@dataclass(frozen=True, eq=False)
class Solution:
    """A pruning, and what is proved of it.

    `keep`, bool (n_nodes,): nodes that stay inner nodes. No pruning's objective is below `bound`,
    which equals `objective` for an exact solver. `iterations` are the solver's own.
    """

    keep: NDArray[np.bool_]
    objective: float
    bound: float
    lam: float
    iterations: int


def check_price(lam: float) -> float:
    """Refuse a price of cost that is no number of at least 0."""
    if not (np.isfinite(lam) and lam >= 0):
        raise InputError(f"lam must be a number of at least 0, not {lam!r}")
    return float(lam)


def build_problem(
    forest: Forest,
    x: NDArray[np.float32],
    costs: FeatureCosts,
    *,
    depth_cost: float = 0.0,
) -> PruneProblem:
    """Set up the pruning of a forest for the cost of some instances, `x` (n, n_features).

    `depth_cost` is the price of passing one node in one tree, divided by the number of trees: the
    price of a unit of expected depth. InputError if rows, prices and forest do not have the same
    features, or there are no rows.
    """
    trees = forest.trees
    if not len(x) or x.shape[1] != trees.n_features or costs.n_features != trees.n_features:
        raise InputError(
            f"a forest of {trees.n_features} features, prices of {costs.n_features} and rows of "
            f"shape {x.shape}: all three must agree, and there must be rows"
        )
    if not (np.isfinite(depth_cost) and depth_cost >= 0):
        raise InputError(f"depth_cost must be at least 0, not {depth_cost!r}")
    inner = trees.left >= 0
    wrong, counted = forest.errors, forest.counts[trees.roots].sum()  # N_train T, in-bag
    saved = wrong - np.where(inner, wrong[trees.left] + wrong[trees.right], wrong)
    item_start, items = _items(costs)
    start, nodes, price, passes = _columns(
        np.ascontiguousarray(x, np.float32), trees.feature, trees.threshold, trees.left,
        trees.right, trees.nan_left, trees.roots, item_start, items,
        np.append(costs.own, costs.shared),
    )  # fmt: skip
    return PruneProblem(
        parent=forest.parent,
        inner=inner,
        error=wrong / counted,
        profit=np.maximum(saved, 0.0) / counted,  # bootstrap weights may leave rounding below 0
        column_start=start,
        column_nodes=nodes,
        column_price=price,
        depth_price=np.where(inner, passes, 0.0) * (depth_cost / max(trees.n_trees, 1)),
    )


def _items(costs: FeatureCosts) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """List what a use of each feature acquires at a price: itself, its groups behind the features.

    Shapes: (n_features + 1,), where each feature's items begin; (n_items,).
    """
    each = []
    for k, price in enumerate(costs.own):
        groups = costs.paid_groups(k)
        own = [k] if price > 0 else []
        each.append(np.append(own, costs.n_features + groups[costs.shared[groups] > 0]))
    start = np.cumsum([0, *map(len, each)]).astype(np.int64)
    return start, np.concatenate(each).astype(np.int64)


@numba.njit(cache=True, nogil=True)
def _paid(start: Any, nodes: Any, keep: Any) -> Any:
    """Which columns have a kept node."""
    paid = np.zeros(len(start) - 1, np.bool_)
    for c in range(len(paid)):
        for e in range(start[c], start[c + 1]):
            if keep[nodes[e]]:
                paid[c] = True
                break
    return paid


@numba.njit(cache=True, nogil=True)
def _columns(
    x: Any, feature: Any, threshold: Any, left: Any, right: Any, nan_left: Any, roots: Any,
    item_start: Any, items: Any, prices: Any,
) -> Any:  # fmt: skip
    """List each row's acquisitions: the nodes on its paths that first use a feature or group."""
    trees = (feature, threshold, left, right, nan_left, roots, item_start, items)
    share = 1.0 / len(x)
    n_columns, n_uses = 0, 0
    seen = np.full(len(prices), -1, np.int64)
    held = np.full(len(prices), -1, np.int64)  # the last path that has acquired each item
    passes = np.zeros(len(feature))
    most = min(len(feature) * np.diff(item_start).max(), len(roots) * len(prices))
    item, node = np.empty(most, np.int64), np.empty(most, np.int32)
    for i in range(len(x)):  # first count, then fill
        n = _first_uses(x[i], trees, i * len(roots), held, item, node, passes, share)
        n_uses += n
        for e in range(n):
            if seen[item[e]] != i:
                seen[item[e]] = i
                n_columns += 1
    start = np.zeros(n_columns + 1, np.int64)
    nodes = np.empty(n_uses, np.int32)
    price = np.empty(n_columns)
    column = np.empty(len(prices), np.int64)  # the row's column of each item
    count = np.zeros(len(prices), np.int64)
    done = 0
    held[:] = -1
    for i in range(len(x)):
        n = _first_uses(x[i], trees, i * len(roots), held, item, node, passes, 0.0)
        before = done
        for e in range(n):
            k = item[e]
            if count[k] == 0:
                column[k] = done
                price[done] = share * prices[k]
                done += 1
            count[k] += 1
            start[column[k] + 1] += 1
        for c in range(before, done):
            start[c + 1] += start[c]
        for e in range(n):
            k = item[e]
            count[k] -= 1
            nodes[start[column[k]] + count[k]] = node[e]
    return start, nodes, price, passes


@numba.njit(cache=True, nogil=True)
def _first_uses(
    row: Any, trees: Any, path: int, held: Any, item: Any, node: Any, passes: Any, share: float
) -> int:
    """Write what a row acquires on each of its paths, numbered from `path` on; returns how much."""
    feature, threshold, left, right, nan_left, roots, item_start, items = trees
    n = 0
    for root in roots:
        h = root
        while feature[h] >= 0:
            passes[h] += share
            for e in range(item_start[feature[h]], item_start[feature[h] + 1]):
                if held[items[e]] != path:
                    held[items[e]] = path
                    item[n], node[n] = items[e], h
                    n += 1
            v = row[feature[h]]
            h = left[h] if v <= threshold[h] or (np.isnan(v) and nan_left[h]) else right[h]
        path += 1
    return n
