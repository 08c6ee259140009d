"""Records of arrays with which :mod:`.boost_kernel` grows boosted trees."""

from __future__ import annotations

from typing import Any, NamedTuple


class FirstUse(NamedTuple):
    """Prices of first uses, and marks of the items that are already paid.

    The first three arrays are those of :class:`.PricedItems`.
    """

    price: Any
    start: Any
    items: Any
    is_paid: Any  # (n_items,), bool


class RowPrices(NamedTuple):
    """Prices that each row of a leaf pays for the split; the arrays are empty without prices.

    A row pays for an item that it has not acquired; `price`, `start` and `items` are those of
    :class:`.PricedItems`.
    """

    split: Any  # (n_features,): price of a split on the feature
    price: Any
    start: Any
    items: Any
    is_acquired: Any  # (n_items, n), bool


class TreeSettings(NamedTuple):
    """Settings of a tree's growth."""

    learning_rate: float
    n_leaves: int
    max_depth: int  # -1 for no bound


class BoostArrays(NamedTuple):
    """Working arrays; the last four have an entry for each leaf."""

    rows: Any  # (n,): rows of all leaves, one leaf after another
    spare_rows: Any  # (n,)
    is_left: Any  # (n,), bool
    first_use_price: Any  # (n_features,): current price of a first use of each feature
    leaf_sums: Any  # (n_leaves, n_features, n_codes + 1, 3): sums by code; NaN has the last code
    # (n_leaves, n_features): gain of the best split on each column, without the price of first use
    gain: Any
    last_code: Any  # (n_leaves, n_features): largest code on the left of this split
    nan_left: Any  # (n_leaves, n_features), bool: whether NaN goes left


class BoostFit(NamedTuple):
    """Arrays and settings that the trees of a fit share."""

    columns: Any  # Codes
    prices: Any  # FirstUse
    settings: Any  # TreeSettings
    work: Any  # BoostArrays
    nodes: Any  # GrownNodes of all trees
    value: Any  # (n_nodes,), float32
    row_prices: Any  # RowPrices


class GrowingTree(NamedTuple):
    """A tree while it grows."""

    gradient: Any  # (n,)
    hessian: Any  # (n,)
    active_features: Any  # list of the features with a price below the largest possible gain
    leaves: Any  # (n_leaves, 4): columns BEGIN, END, DEPTH, NODE
    totals: Any  # (n_leaves, 2): GRADIENT and HESSIAN of each leaf
    best_gain: Any  # (n_leaves,): gain of the best split minus its price
    best_feature: Any  # (n_leaves,): feature of the best split
