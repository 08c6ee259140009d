"""Growth of one tree from coded columns, a bootstrap sample, feature costs and a split rule.

Growth is depth-first, by BudgetRF's GREEDYTREE or by gain minus prices. The minimax criterion
(BudgetRF, ICML 2015, algorithm 1) chooses the split that minimises
``c_k / (F(S) - max over children F(S_child))``. A node is a leaf if ``F(S) = 0``, or if no split
lowers F for both children.

The other criterion chooses the split that maximises the gain in summed entropy minus a penalty. The
penalty is ``mu`` times the price that the examples at the node have to pay for the feature and its
group. An example has already paid for them if an earlier split on its path, or an earlier tree,
tested them. Growth continues until nodes are pure, even if the penalty exceeds every gain, because
the first split of a tree is rarely worth its price. Pruning later removes such splits.

In compiled functions, loops over i are over rows, and loops over k are over columns. An item is a
feature or a group.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from gatewise.costs import FeatureCosts
from gatewise.models.trees import TreeEnsemble
from gatewise_training.forests.grower.binning import Codes
from gatewise_training.forests.grower.growing import (
    BEGIN,
    DEPTH,
    END,
    NODE,
    GrownNodes,
    ensemble_of,
    extend_array,
    mark_left,
    partition,
    unsplit_nodes,
    write_leaf,
    write_split,
)
from gatewise_training.forests.grower.histogram import NodeRows
from gatewise_training.forests.grower.impurity import entropy, log_table, threshold_pairs
from gatewise_training.forests.grower.node_split import (
    RowItems,
    SplitSearch,
    TreePrices,
    find_best_split,
    make_work_arrays,
)
from gatewise_training.forests.grower.split_search import ENTROPY, PAIRS, GrowthRule
from gatewise_training.prune.forest import Forest

Criterion = Literal["threshold_pairs", "entropy"]
Splits = Literal["exact", "stumps"]

#: Number of each criterion in the compiled grower.
CRITERIA = {"threshold_pairs": PAIRS, "entropy": ENTROPY}


#: Number of depths that a path has room for at first; it is doubled for deeper trees.
FIRST_DEPTHS = 64


@dataclass(frozen=True)
class SplitRule:
    """Settings of the search for splits, which :class:`.BudgetForest` documents."""

    criterion: Criterion = "threshold_pairs"
    alpha: float = 0.0
    mu: float = 0.0
    splits: Splits = "exact"
    max_depth: int | None = None


@dataclass(frozen=True, eq=False)
class RowAcquisitions:
    """Priced features and groups that each row has acquired for the trees grown so far."""

    # (n_features + n_groups, n): features first, then groups; :meth:`add` updates it
    items: NDArray[np.bool_]
    costs: FeatureCosts

    @classmethod
    def empty(cls, costs: FeatureCosts, n_rows: int) -> RowAcquisitions:
        """Make the acquisitions of rows before the first tree."""
        return cls(np.zeros((costs.n_features + len(costs.shared), n_rows), np.bool_), costs)

    def add(self, trees: TreeEnsemble, x: NDArray[np.float32]) -> None:
        """Add the features on the paths of all rows, including out-of-bag rows."""
        is_visited = trees.visited_features(x)
        _, start, items = self.costs.priced_items()
        for k in np.flatnonzero(is_visited.any(axis=0)):
            self.items[items[start[k] : start[k + 1]]] |= is_visited[:, k]


def grow(
    codes: Codes,
    y: NDArray[np.int64],
    draw_counts: NDArray[np.int64],
    n_classes: int,
    costs: FeatureCosts,
    rule: SplitRule,
    *,
    acquired: RowAcquisitions | None = None,
    seed: int = 0,
) -> Forest:
    """Grow one tree on a bootstrap sample, which contains each row `draw_counts` times.

    Features that rows have `acquired` for earlier trees are free for these rows.

    >>> codes = Codes.of_table(np.array([[0.0], [1.0], [2.0]], np.float32))
    >>> labels, drawn = np.array([0, 0, 1]), np.ones(3, np.int64)
    >>> grow(codes, labels, drawn, 2, FeatureCosts.uniform(1), SplitRule()).trees.threshold
    array([1.5, 0. , 0. ], dtype=float32)
    """
    rows = np.flatnonzero(draw_counts).astype(np.int32)
    sample = BootstrapSample(
        rows, y[rows].astype(np.int32), draw_counts[rows].astype(np.int32), n_classes
    )
    # the rule's `mu` is per acquisition of mean price, and the kernel's is per unit of price
    mean_price = float(costs.standalone_prices.mean())
    mu = rule.mu / mean_price if mean_price > 0 else 0.0
    if acquired is None:
        acquired = RowAcquisitions.empty(costs, codes.n_rows if mu > 0 else 0)
    is_entropy = rule.criterion == "entropy"
    nodes, counts = grow_tree(
        codes,
        sample,
        GrowthRule(
            criterion=CRITERIA[rule.criterion],
            alpha=float(rule.alpha),
            mu=mu,
            stumps=rule.splits == "stumps",
            max_depth=rule.max_depth or len(rows),
            log_table=log_table(int(draw_counts.sum())) if is_entropy else np.zeros(1),
        ),
        TreePrices(costs.standalone_prices, *costs.priced_items()),
        acquired.items,
        seed,
    )
    return _make_forest(nodes, counts.astype(np.float64), codes.n_features)


def single_leaf(
    y: NDArray[np.int64], weights: NDArray[np.float64], n_classes: int, codes: Codes
) -> Forest:
    """Make a forest of a single leaf, which predicts the shares of the classes."""
    counts = np.bincount(y, weights=weights, minlength=n_classes).astype(np.float64)[None, :]
    return _make_forest(unsplit_nodes(1), counts, codes.n_features)


def _make_forest(nodes: GrownNodes, counts: NDArray[np.float64], n_features: int) -> Forest:
    """Make a forest of one tree from its nodes and their counts, (n_nodes, n_classes)."""
    n_classes = counts.shape[1]
    trees = ensemble_of(
        nodes,
        len(counts),
        np.zeros(counts.shape, np.float32),
        roots=np.zeros(1, np.int32),
        output=np.full(1, -1, np.int32),
        base=np.zeros(n_classes, np.float32),
        n_features=n_features,
    )
    return Forest.from_counts(trees, counts)


class BootstrapSample(NamedTuple):
    """Rows of a tree's bootstrap sample, which growth reorders."""

    rows: Any  # (n,), int32
    y: Any  # (n,), int32: classes
    weight: Any  # (n,), int32: number of draws of each row
    n_classes: int


class Path(NamedTuple):
    """Open features and paid items of the path to a node, by depth.

    A feature is open if it may still vary. Nodes are visited depth first, so a node overwrites the
    entries of greater depths.
    """

    open_features: Any  # (n_depths, n_features): list of the open features
    n_open: Any  # (n_depths,): length of this list
    paid: Any  # (n_depths, n_features + n_groups), bool


@numba.njit(cache=True, nogil=True)
def grow_tree(columns: Any, sample: Any, rule: Any, prices: Any, items: Any, seed: int) -> Any:
    """Grow a tree; return its :class:`GrownNodes` and their class counts, (n_nodes, n_classes).

    `columns` are :class:`.Codes`, and `items` is the array of :class:`RowItems`.
    """
    np.random.seed(seed)  # noqa: NPY002  (numba's stream; each thread has its own)
    n = len(sample.rows)
    n_features = len(columns.codes)
    nodes = unsplit_nodes(2 * n - 1)  # a tree with a row in each of its n leaves
    counts = np.zeros((2 * n - 1, sample.n_classes), np.int32)
    open_leaves = np.empty((2 * n - 1, 4), np.int64)
    n_open_leaves = write_leaf(open_leaves, 0, 0, n, 0, 0)
    n_nodes: Any = np.int64(1)  # numba would compile functions a second time for a Python integer
    path = _make_root_path(n_features, len(prices.price))
    n_priced_items = len(prices.price) if rule.mu > 0.0 else 0
    work = make_work_arrays(columns, n, sample.n_classes, n_priced_items, rule.stumps)
    search = SplitSearch(columns, rule, prices, _mark_acquired_items(items, rule), work)
    is_left = np.empty(n, np.bool_)
    scratch_rows = np.empty(n, np.int32)
    while n_open_leaves:
        n_open_leaves -= 1
        begin = open_leaves[n_open_leaves, BEGIN]
        end = open_leaves[n_open_leaves, END]
        depth = open_leaves[n_open_leaves, DEPTH]
        node = open_leaves[n_open_leaves, NODE]
        node_rows = _select_node_rows(sample, begin, end, counts[node], rule)
        is_pure = node_rows.impurity <= 0.0 or node_rows.counts.max() == node_rows.n_examples
        if is_pure or depth >= rule.max_depth or len(node_rows.rows) < 2:
            continue
        if depth + 2 > len(path.n_open):
            path = _extend_path(path)
        split, has_nan = find_best_split(search, node_rows, path, depth)
        if split.feature < 0:
            continue
        _mark_paid(path, depth, split.feature, prices)
        # move the rows of the left child to the front
        mark_left(columns, split, node_rows.rows, is_left)
        n_left = partition(node_rows.rows, is_left, scratch_rows)
        partition(node_rows.y, is_left, scratch_rows)
        partition(node_rows.weight, is_left, scratch_rows)
        # if no row here is NaN, NaN in later rows goes to the child with more examples
        n_left_examples = node_rows.weight[:n_left].sum()
        nan_left = 2 * n_left_examples >= node_rows.n_examples and not has_nan
        write_split(nodes, node, columns, split, nan_left, n_nodes)
        middle = begin + n_left
        n_open_leaves = write_leaf(open_leaves, n_open_leaves, middle, end, depth + 1, n_nodes + 1)
        n_open_leaves = write_leaf(open_leaves, n_open_leaves, begin, middle, depth + 1, n_nodes)
        n_nodes += 2
    return nodes, counts[:n_nodes].copy()


@numba.njit(cache=True, nogil=True)
def _make_root_path(n_features: int, n_items: int) -> Any:
    """Make the path to the root, where all features are open and no item is paid."""
    path = Path(
        np.empty((FIRST_DEPTHS, n_features), np.int32),
        np.empty(FIRST_DEPTHS, np.int64),
        np.zeros((FIRST_DEPTHS, n_items), np.bool_),
    )
    for k in range(n_features):
        path.open_features[0, k] = k
    path.n_open[0] = n_features
    return path


@numba.njit(cache=True, nogil=True)
def _extend_path(path: Any) -> Any:
    """Copy a path into one of twice the depth."""
    n_depths = 2 * len(path.n_open)
    return Path(
        extend_array(path.open_features, n_depths),
        extend_array(path.n_open, n_depths),
        extend_array(path.paid, n_depths),
    )


@numba.njit(cache=True, nogil=True)
def _mark_acquired_items(items: Any, rule: Any) -> Any:
    """Mark the items that some row acquired for earlier trees."""
    acquired = RowItems(items, np.zeros(len(items), np.bool_))
    if rule.mu > 0.0:
        for item in range(len(items)):
            acquired.has_rows[item] = items[item].any()
    return acquired


@numba.njit(cache=True, nogil=True)
def _select_node_rows(sample: Any, begin: int, end: int, counts: Any, rule: Any) -> Any:
    """Get the rows of a node, and write its number of examples of each class to `counts`."""
    y = sample.y[begin:end]
    weight = sample.weight[begin:end]
    n_examples = 0
    for i in range(len(y)):
        counts[y[i]] += weight[i]
        n_examples += weight[i]
    if rule.criterion == PAIRS:
        impurity = threshold_pairs(counts, rule.alpha)
    else:
        impurity = entropy(counts, rule.log_table)
    return NodeRows(sample.rows[begin:end], y, weight, counts, n_examples, impurity)


@numba.njit(cache=True, nogil=True)
def _mark_paid(path: Any, depth: int, feature: int, prices: Any) -> None:
    """Mark a feature and its groups as paid in the children of a node."""
    child_paid = path.paid[depth + 1]
    for item in range(len(child_paid)):
        child_paid[item] = path.paid[depth, item]
    for position in range(prices.start[feature], prices.start[feature + 1]):
        child_paid[prices.items[position]] = True
