"""The pruning problem: errors that nodes save, and acquisitions that instances make at them.

The problem chooses the nodes of each tree that stay inner nodes (``y_h = 1``; a child can stay only
if its parent stays) and minimises ::

    sum_h e_h z_h / (N_train T)  +  lam * ( sum_k c_k mean_i w_ki  +  expected depth )

Here ``z_h = 1`` at the leaves of the pruned trees, ``e_h`` is the number of training rows that node
h misclassifies as a leaf, and ``w_ki = 1`` if instance i acquires feature k anywhere in the forest
(BudgetPrune, NIPS 2016, equation IP, and equation IP3 of its predecessor of 2016).

A node that stays earns the profit ``p_h = (e_h - e_left - e_right) / (N_train T) >= 0``. Instance i
acquires feature k if a node stays that is the first one to use k on a path of i. This is a maximum
closure problem, which one minimum cut solves exactly (:mod:`.solvers.mincut`). The own price of a
feature, the shared price of its group, and the price of each group that its group requires are
separate acquisitions.
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

#: Mask of the nodes that stay inner nodes, shape (n_nodes,).
NodeMask = NDArray[np.bool_]

#: Numbers of one kind, such as one per node, per acquisition or per first use.
Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class PruneProblem:
    """Profits of the nodes, and prices of the acquisitions that instances make at them.

    Each acquisition is a column: the set of nodes at which one instance first uses one feature or
    one group.

    Attributes
    ----------
    parent : ndarray of int32, shape (n_nodes,)
        -1 at a root; a parent's index is below its children's.
    is_inner : ndarray of bool, shape (n_nodes,)
        Whether the node has children; leaves are never kept.
    error : ndarray of float64, shape (n_nodes,)
        Training error that the node contributes if it becomes a leaf.
    profit : ndarray of float64, shape (n_nodes,)
        ``error[h] - error[left] - error[right]``, at least 0; 0 at leaves.
    column_start : ndarray of int64, shape (n_columns + 1,)
        Index into `column_nodes` at which each column begins.
    column_nodes : ndarray of int32, shape (n_uses,)
        Nodes of all columns, one column after another.
    column_price : ndarray of float64, shape (n_columns,)
        Price of each acquisition, divided by the number of instances.
    depth_price : ndarray of float64, shape (n_nodes,)
        Price of the expected depth that the node adds as an inner node.
    """

    parent: NDArray[np.int32]
    is_inner: NDArray[np.bool_]
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
        """Column of each entry of `column_nodes`, shape (n_uses,)."""
        return np.repeat(np.arange(self.n_columns), np.diff(self.column_start))

    @property
    def base_error(self) -> float:
        """Training error if every tree is pruned to its root."""
        return float(self.error[self.parent < 0].sum())

    def training_error(self, is_kept: NDArray[np.bool_]) -> float:
        """Training error of a pruning, averaged over the trees."""
        return self.base_error - float(self.profit[is_kept].sum())

    def cost(self, is_kept: NDArray[np.bool_]) -> float:
        """Mean cost per instance under a pruning, including the price of depth."""
        is_paid = _mark_paid(self.column_start, self.column_nodes, np.asarray(is_kept, np.bool_))
        return float(self.column_price[is_paid].sum() + self.depth_price[is_kept].sum())

    def objective(self, is_kept: NDArray[np.bool_], lam: float) -> float:
        """Training error plus ``lam`` times the cost."""
        return self.training_error(is_kept) + lam * self.cost(is_kept)


@dataclass(frozen=True, eq=False)
class Solution:
    """A pruning found by a solver, and a proved bound on the optimum.

    Attributes
    ----------
    is_kept : ndarray of bool, shape (n_nodes,)
        Mask of the nodes that stay inner nodes.
    objective : float
        Training error plus ``lam`` times the cost.
    bound : float
        Proved lower bound on the objective of any pruning. It equals `objective` for an exact
        solver.
    lam : float
        Price of cost.
    iterations : int
        Number of iterations, in the solver's own unit.
    """

    is_kept: NDArray[np.bool_]
    objective: float
    bound: float
    lam: float
    iterations: int


def check_price(lam: float) -> float:
    """Refuse a price of cost that is negative or not finite."""
    if not (np.isfinite(lam) and lam >= 0):
        raise InputError(f"lam must be a finite number of at least 0, not {lam!r}")
    return float(lam)


def build_problem(
    forest: Forest,
    x: NDArray[np.float32],
    costs: FeatureCosts,
    *,
    depth_cost: float = 0.0,
    training_counts: NDArray[np.float64] | None = None,
) -> PruneProblem:
    """Set up the problem of pruning a forest for the mean cost of some instances.

    Parameters
    ----------
    forest : Forest
    x : ndarray of float32, shape (n, n_features)
        Instances over which the cost is averaged.
    costs : FeatureCosts
    depth_cost : float, default 0.0
        Price of one unit of expected depth, which is one node passed in every tree.
    training_counts : ndarray of float64, shape (n_nodes, n_classes), optional
        Number of training rows of each class at each node, from which the node errors are
        computed. By default these are the forest's own counts, which are in-bag.

    Raises
    ------
    InputError
        If the forest, the rows and the costs differ in their number of features, if there are no
        rows, or if `depth_cost` is negative or not finite.
    """
    trees = forest.trees
    if not len(x) or x.shape[1] != trees.n_features or costs.n_features != trees.n_features:
        raise InputError(
            f"the forest has {trees.n_features} features, the costs have {costs.n_features} and "
            f"the rows have shape {x.shape}: all three must agree, and there must be rows"
        )
    if not (np.isfinite(depth_cost) and depth_cost >= 0):
        raise InputError(f"depth_cost must be a finite number of at least 0, not {depth_cost!r}")
    is_inner = trees.left >= 0
    counts = forest.counts if training_counts is None else training_counts
    # e_h of the equation: rows at node h outside its most frequent class
    node_errors = counts.sum(axis=1) - counts.max(axis=1)
    n_train_in_all_trees = counts[trees.roots].sum()  # N_train T
    saved_errors = node_errors - np.where(
        is_inner, node_errors[trees.left] + node_errors[trees.right], node_errors
    )
    priced_items = costs.priced_items()
    paths = PathTables(
        feature=trees.feature,
        threshold=trees.threshold,
        left=trees.left,
        right=trees.right,
        nan_left=trees.nan_left,
        roots=trees.roots,
        item_start=priced_items.start,
        items=priced_items.items,
    )
    start, nodes, price, visit_shares = _list_columns(
        np.ascontiguousarray(x, np.float32), paths, priced_items.price
    )
    return PruneProblem(
        parent=forest.parent,
        is_inner=is_inner,
        error=node_errors / n_train_in_all_trees,
        # rounding of bootstrap weights may bring a profit slightly below 0
        profit=np.maximum(saved_errors, 0.0) / n_train_in_all_trees,
        column_start=start,
        column_nodes=nodes,
        column_price=price,
        depth_price=np.where(is_inner, visit_shares, 0.0) * (depth_cost / max(trees.n_trees, 1)),
    )


class PathTables(NamedTuple):
    """Nodes of the trees, and the items of :class:`.PricedItems`."""

    feature: Any
    threshold: Any
    left: Any
    right: Any
    nan_left: Any
    roots: Any
    item_start: Any
    items: Any


@numba.njit(cache=True, nogil=True)
def _mark_paid(start: Any, nodes: Any, is_kept: Any) -> Any:
    """Mark the columns that contain a kept node."""
    is_paid = np.zeros(len(start) - 1, np.bool_)
    for column in range(len(is_paid)):
        for use in range(start[column], start[column + 1]):
            if is_kept[nodes[use]]:
                is_paid[column] = True
                break
    return is_paid


class RowUses(NamedTuple):
    """Working arrays for the first uses of one row."""

    item: Any  # (max_uses,): item that is acquired
    node: Any  # (max_uses,): node that acquires it
    last_path: Any  # (n_items,): the last path on which each item was acquired


@numba.njit(cache=True, nogil=True)
def _list_columns(x: Any, paths: Any, item_prices: Any) -> Any:
    """List the acquisitions of each row, with the nodes that make them.

    Returns `column_start`, `column_nodes` and `column_price` of :class:`PruneProblem`, and the
    share of the rows that visit each node.
    """
    n_items = len(item_prices)
    n_trees = len(paths.roots)
    row_share = 1.0 / len(x)
    max_uses = min(len(paths.feature) * np.diff(paths.item_start).max(), n_trees * n_items)
    uses = RowUses(
        np.empty(max_uses, np.int64), np.empty(max_uses, np.int32), np.full(n_items, -1, np.int64)
    )
    # first pass over the rows: count columns and uses, and sum the visits of each node
    visit_shares = np.zeros(len(paths.feature))
    last_row = np.full(n_items, -1, np.int64)
    n_columns = 0
    n_uses = 0
    for row in range(len(x)):
        n_row_uses = _write_first_uses(x[row], paths, row * n_trees, uses, visit_shares, row_share)
        n_uses += n_row_uses
        for use in range(n_row_uses):
            if last_row[uses.item[use]] != row:
                last_row[uses.item[use]] = row
                n_columns += 1
    # second pass over the rows: fill the columns of each row
    start = np.zeros(n_columns + 1, np.int64)
    nodes = np.empty(n_uses, np.int32)
    price = np.empty(n_columns)
    column_of_item = np.empty(n_items, np.int64)
    use_count = np.zeros(n_items, np.int64)
    column = 0
    uses.last_path[:] = -1
    for row in range(len(x)):
        n_row_uses = _write_first_uses(x[row], paths, row * n_trees, uses, visit_shares, 0.0)
        first_column = column
        for use in range(n_row_uses):
            item = uses.item[use]
            if use_count[item] == 0:
                column_of_item[item] = column
                price[column] = row_share * item_prices[item]
                column += 1
            use_count[item] += 1
            start[column_of_item[item] + 1] += 1
        # start holds the number of uses; the sums are the ends of the columns for now, and
        # counting `use_count` down to 0 fills each column from there back to its start
        for row_column in range(first_column, column):
            start[row_column + 1] += start[row_column]
        for use in range(n_row_uses):
            item = uses.item[use]
            use_count[item] -= 1
            nodes[start[column_of_item[item]] + use_count[item]] = uses.node[use]
    return start, nodes, price, visit_shares


@numba.njit(cache=True, nogil=True)
def _write_first_uses(
    row: Any, paths: Any, first_path: int, uses: Any, visit_shares: Any, row_share: float
) -> int:
    """Write the items that a row acquires on each of its paths, and return their number.

    The paths of the row are numbered from `first_path`. `row_share` is added to each visited node.
    """
    n_uses = 0
    path = first_path
    for root in paths.roots:
        node = root
        while paths.feature[node] >= 0:
            visit_shares[node] += row_share
            feature = paths.feature[node]
            for position in range(paths.item_start[feature], paths.item_start[feature + 1]):
                item = paths.items[position]
                if uses.last_path[item] != path:
                    uses.last_path[item] = path
                    uses.item[n_uses] = item
                    uses.node[n_uses] = node
                    n_uses += 1
            cell = row[feature]
            goes_left = cell <= paths.threshold[node] or (np.isnan(cell) and paths.nan_left[node])
            node = paths.left[node] if goes_left else paths.right[node]
        path += 1
    return n_uses
