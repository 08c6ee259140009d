"""Growth of one tree from coded columns, a bootstrap sample, feature costs and a split rule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from gatewise.costs import FeatureCosts
from gatewise.models.trees import TreeEnsemble
from gatewise_training.forests.grower.binning import Codes
from gatewise_training.forests.grower.growing import GrownNodes, ensemble_of, unsplit_nodes
from gatewise_training.forests.grower.impurity import log_table
from gatewise_training.forests.grower.node_split import TreePrices
from gatewise_training.forests.grower.split_search import ENTROPY, PAIRS, GrowthRule
from gatewise_training.forests.grower.tree_kernel import BootstrapSample, grow_tree
from gatewise_training.prune.forest import Forest

Criterion = Literal["threshold_pairs", "entropy"]
Splits = Literal["exact", "stumps"]

#: Number of each criterion in the compiled grower.
CRITERIA = {"threshold_pairs": PAIRS, "entropy": ENTROPY}


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
    """Features and groups that each training row has acquired for the trees grown so far."""

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
        n_features = self.costs.n_features
        for k in np.flatnonzero(is_visited.any(axis=0)):
            self.items[k] |= is_visited[:, k]
            for group in self.costs.paid_groups(int(k)):
                self.items[n_features + group] |= is_visited[:, k]


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
