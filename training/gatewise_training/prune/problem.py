"""The pruning problem: errors that nodes save, and features that instances acquire at them.

Choose for every tree of a forest which nodes stay inner nodes (``y_h = 1``; a child stays only if
its parent does) so that ::

    sum_h e_h z_h / (N_train T)  +  lam * ( sum_k c_k mean_i w_ki  +  expected depth )

is least, where ``z_h = 1`` at the leaves of the pruned trees, ``e_h`` counts the training rows
that node h gets wrong, and ``w_ki = 1`` if instance i acquires feature k anywhere in the forest
(BudgetPrune, NIPS 2016, equation IP; its predecessor of 2016, IP3). A node that stays earns the
profit ``p_h = (e_h - e_left - e_right) / (N_train T) >= 0``. Instance i acquires k if some node
stays that uses k *first* on a path of i. That is a maximum closure, which one minimum cut solves
exactly (:mod:`.solvers.mincut`). A feature's own price, its group's shared price and the prices of
the groups that its group requires are acquisitions of their own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

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

    A column is the set of nodes at which one instance first uses one feature, or group.

    Attributes
    ----------
    parent : ndarray of int32, shape (n_nodes,)
        -1 at a root; a parent's index is below its children's.
    inner : ndarray of bool, shape (n_nodes,)
        Whether the node has children; leaves are never kept.
    error : ndarray of float64, shape (n_nodes,)
        Share of the training error if the node becomes a leaf.
    profit : ndarray of float64, shape (n_nodes,)
        ``error[h] - error[left] - error[right]``, at least 0; 0 at leaves.
    column_start : ndarray of int64, shape (n_columns + 1,)
        Index into `column_nodes` at which each column begins.
    column_nodes : ndarray of int32
        Nodes of the columns.
    column_price : ndarray of float64, shape (n_columns,)
        Price, divided by the number of instances.
    depth_price : ndarray of float64, shape (n_nodes,)
        Price that an inner node adds for expected depth.
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
        """Number of nodes, leaves included."""
        return len(self.parent)

    @property
    def n_columns(self) -> int:
        """Number of possible acquisitions."""
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
    """A pruning with its proof.

    Attributes
    ----------
    keep : ndarray of bool, shape (n_nodes,)
        The inner nodes.
    objective : float
    bound : float
        Proved lower bound of all prunings' objectives; an exact solver's equals `objective`.
    lam : float
    iterations : int
        In the solver's own unit.
    """

    keep: NDArray[np.bool_]
    objective: float
    bound: float
    lam: float
    iterations: int


def check_price(lam: float) -> float:
    """Refuse a price of cost that is not a number of at least 0."""
    if not (np.isfinite(lam) and lam >= 0):
        raise InputError(f"lam must be a number of at least 0, not {lam!r}")
    return float(lam)


def build_problem(
    forest: Forest,
    x: NDArray[np.float32],
    costs: FeatureCosts,
    *,
    depth_cost: float = 0.0,
    training_counts: NDArray[np.float64] | None = None,
) -> PruneProblem:
    """Set up the pruning of a forest for the cost of some instances.

    Parameters
    ----------
    forest : Forest
    x : ndarray of float32, shape (n, n_features)
        Instances whose mean cost counts.
    costs : FeatureCosts
    depth_cost : float, default 0.0
        Price of a unit of expected depth: of passing one node in every tree.
    training_counts : ndarray of float64, shape (n_nodes, n_classes), optional
        Training rows of each class at each node, for the node errors; by default the forest's
        counts, which are in-bag.

    Raises
    ------
    InputError
        If rows, prices and forest do not have the same features, or without rows.
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
    counts = forest.counts if training_counts is None else training_counts
    # e_h = rows at h outside its most frequent class; p_h = e_h - e_left - e_right
    e = counts.sum(axis=1) - counts.max(axis=1)
    n_train = counts[trees.roots].sum()  # N_train T
    saved = e - np.where(inner, e[trees.left] + e[trees.right], e)
    paths = PathTables(
        feature=trees.feature,
        threshold=trees.threshold,
        left=trees.left,
        right=trees.right,
        nan_left=trees.nan_left,
        roots=trees.roots,
        **_items(costs),
    )
    prices = np.append(costs.own, costs.shared)
    start, nodes, price, passes = _columns(np.ascontiguousarray(x, np.float32), paths, prices)
    return PruneProblem(
        parent=forest.parent,
        inner=inner,
        error=e / n_train,
        profit=np.maximum(saved, 0.0) / n_train,  # bootstrap weights may leave rounding below 0
        column_start=start,
        column_nodes=nodes,
        column_price=price,
        depth_price=np.where(inner, passes, 0.0) * (depth_cost / max(trees.n_trees, 1)),
    )


class PathTables(NamedTuple):
    """Trees, and the items that a use of each feature acquires: features, then groups."""

    feature: Any
    threshold: Any
    left: Any
    right: Any
    nan_left: Any
    roots: Any
    item_start: Any  # (n_features + 1,): where each feature's items begin in `items`
    items: Any


def _items(costs: FeatureCosts) -> dict[str, NDArray[np.int64]]:
    """List the priced items that a use of each feature acquires: itself and its groups."""
    items_of_features = []
    for k, price in enumerate(costs.own):
        groups = costs.paid_groups(k)
        own = [k] if price > 0 else []
        items_of_features.append(
            np.append(own, costs.n_features + groups[costs.shared[groups] > 0])
        )
    return {
        "item_start": np.cumsum([0, *map(len, items_of_features)]).astype(np.int64),
        "items": np.concatenate(items_of_features).astype(np.int64),
    }


@numba.njit(cache=True, nogil=True)
def _paid(start: Any, nodes: Any, keep: Any) -> Any:
    """Mark the columns that have a kept node."""
    paid = np.zeros(len(start) - 1, np.bool_)
    for c in range(len(paid)):
        for e in range(start[c], start[c + 1]):
            if keep[nodes[e]]:
                paid[c] = True
                break
    return paid


class RowUses(NamedTuple):
    """Working arrays of a row's first uses."""

    item: Any  # (n_uses,)
    node: Any  # (n_uses,)
    last_path: Any  # (n_items,): the last path that has acquired each item


@numba.njit(cache=True, nogil=True)
def _columns(x: Any, paths: Any, prices: Any) -> Any:
    """List each row's acquisitions: the nodes on its paths that first use a feature or group."""
    n_items = len(prices)
    n_trees = len(paths.roots)
    share = 1.0 / len(x)
    most_uses = min(len(paths.feature) * np.diff(paths.item_start).max(), n_trees * n_items)
    uses = RowUses(
        np.empty(most_uses, np.int64),
        np.empty(most_uses, np.int32),
        np.full(n_items, -1, np.int64),
    )
    # count columns and uses, and the share of the rows that pass each node
    passes = np.zeros(len(paths.feature))
    last_row = np.full(n_items, -1, np.int64)
    n_columns = 0
    n_uses = 0
    for i in range(len(x)):
        n = _first_uses(x[i], paths, i * n_trees, uses, passes, share)
        n_uses += n
        for e in range(n):
            if last_row[uses.item[e]] != i:
                last_row[uses.item[e]] = i
                n_columns += 1
    # fill the columns of each row
    start = np.zeros(n_columns + 1, np.int64)
    nodes = np.empty(n_uses, np.int32)
    price = np.empty(n_columns)
    row_column = np.empty(n_items, np.int64)
    count = np.zeros(n_items, np.int64)
    column = 0
    uses.last_path[:] = -1
    for i in range(len(x)):
        n = _first_uses(x[i], paths, i * n_trees, uses, passes, 0.0)
        first_column = column
        for e in range(n):
            item = uses.item[e]
            if count[item] == 0:
                row_column[item] = column
                price[column] = share * prices[item]
                column += 1
            count[item] += 1
            start[row_column[item] + 1] += 1
        for c in range(first_column, column):
            start[c + 1] += start[c]
        for e in range(n):
            item = uses.item[e]
            count[item] -= 1
            nodes[start[row_column[item]] + count[item]] = uses.node[e]
    return start, nodes, price, passes


@numba.njit(cache=True, nogil=True)
def _first_uses(row: Any, paths: Any, path: int, uses: Any, passes: Any, share: float) -> int:
    """Write the items that a row acquires on each path, numbered from `path`; get their number."""
    n = 0
    for root in paths.roots:
        h = root
        while paths.feature[h] >= 0:
            passes[h] += share
            k = paths.feature[h]
            for e in range(paths.item_start[k], paths.item_start[k + 1]):
                item = paths.items[e]
                if uses.last_path[item] != path:
                    uses.last_path[item] = path
                    uses.item[n] = item
                    uses.node[n] = h
                    n += 1
            v = row[k]
            goes_left = v <= paths.threshold[h] or (np.isnan(v) and paths.nan_left[h])
            h = paths.left[h] if goes_left else paths.right[h]
        path += 1
    return n
