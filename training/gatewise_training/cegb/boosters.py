"""Boosters that grow one round of trees at a time, by LightGBM or by a compiled grower.

LightGBM has the same price of a split for all features. If the prices differ by feature (CEGB, NIPS
2017, section 5.2), the compiled grower of :mod:`gatewise_training.learners.boost_kernel` is used
instead. It charges all prices of equation 13 exactly, including those of groups, and of groups that
these require.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import lightgbm as lgb
import numpy as np
from numpy.typing import NDArray

from gatewise.costs import FeatureCosts
from gatewise.errors import InputError
from gatewise.models.trees import TreeEnsemble
from gatewise_training.cegb.penalties import Charge
from gatewise_training.forests.grower.binning import Codes
from gatewise_training.forests.grower.growing import ensemble_of, unsplit_nodes
from gatewise_training.learners.boost_kernel import (
    BoostFit,
    FirstUse,
    RowPrices,
    TreeSettings,
    grow_boosted_tree,
    work_arrays,
)
from gatewise_training.learners.boosting import objective_of

Array = NDArray[np.float64]
Derivatives = Callable[[Array], tuple[Array, Array]]

#: Maximum number of codes of a column, the same as LightGBM's default number of bins.
MAX_BINS = 255

#: Largest number of sums that the histograms of a tree's leaves may hold, which takes 2 GB.
MAX_HISTOGRAM_SUMS = 2**28


class LightGBMBooster:
    """LightGBM under a charge; a round grows one tree for each output."""

    def __init__(
        self,
        dataset: lgb.Dataset,
        settings: Mapping[str, Any],
        charge: Charge,
        derivatives: Derivatives,
    ) -> None:
        self._booster = lgb.Booster(dict(settings), dataset)
        self._objective = objective_of(derivatives)
        self._charge = charge
        self._n_rounds = 0

    def update(self) -> bool:
        """Grow a round; return whether no tree could be split."""
        if self._booster.update(fobj=self._objective):
            return True
        self._charge.update_group_prices(self._booster, self._n_rounds)
        self._n_rounds += 1
        return False

    def round_margins(self, x: NDArray[np.float32], round_number: int) -> Array:
        """Compute the margins that a round adds, shape (n, n_outputs)."""
        margins = self._booster.predict(
            x, raw_score=True, start_iteration=round_number, num_iteration=1
        )
        return np.reshape(np.asarray(margins), (len(x), -1))

    def trees(self, n_rounds: int) -> TreeEnsemble:
        """Get the trees of the first rounds."""
        return TreeEnsemble.from_lightgbm(self._booster, num_iteration=n_rounds)


class CodedBooster:
    """Compiled boosting on codes under all prices of equation 13, as a :class:`LightGBMBooster`."""

    def __init__(
        self,
        x: NDArray[np.float32],
        n_outputs: int,
        settings: Mapping[str, Any],
        charge: Charge,
        derivatives: Derivatives,
    ) -> None:
        codes = Codes.of_table(x, max_codes=MAX_BINS)
        self._codes = codes
        self._settings = TreeSettings(
            float(settings["learning_rate"]),
            int(settings["num_leaves"]),
            int(settings["max_depth"]),
        )
        self._first_uses, self._row_prices = kernel_prices(charge, len(x))
        n_codes = np.int64(codes.n_codes.max(initial=1))
        n_sums = 3 * self._settings.n_leaves * x.shape[1] * (int(n_codes) + 1)
        if n_sums > MAX_HISTOGRAM_SUMS:
            raise InputError(
                f"trees of {self._settings.n_leaves:,} leaves on {x.shape[1]:,} features need "
                f"{8 * n_sums / 2**30:.1f} GB under prices of splits by feature: lower max_depth "
                "or num_leaves, or give one price for all splits"
            )
        self._work = work_arrays(len(x), x.shape[1], n_codes, self._settings.n_leaves)
        self._derivatives = derivatives
        self._scores = np.zeros((n_outputs, len(x)))
        self._rounds: list[list[TreeEnsemble]] = []

    def update(self) -> bool:
        gradient_and_hessian = self._derivatives(self._scores.T)
        gradient, hessian = (
            np.ascontiguousarray(derivative.T) for derivative in gradient_and_hessian
        )
        trees = []
        for output, scores in enumerate(self._scores):
            tree = self._grow(gradient[output], hessian[output], scores, output)
            if tree is not None:
                trees.append(tree)
        if trees:
            self._rounds.append(trees)
        return not trees

    def round_margins(self, x: NDArray[np.float32], round_number: int) -> Array:
        return self._join(self._rounds[round_number]).margins(x).astype(np.float64)

    def trees(self, n_rounds: int) -> TreeEnsemble:
        return self._join([tree for trees in self._rounds[:n_rounds] for tree in trees])

    def _join(self, trees: list[TreeEnsemble]) -> TreeEnsemble:
        return TreeEnsemble.join(trees, trees[0].base, self._codes.n_features)

    def _grow(
        self, gradient: Array, hessian: Array, scores: Array, output: int
    ) -> TreeEnsemble | None:
        """Grow the tree of one output and add it to the scores, unless no split is worth it."""
        max_nodes = 2 * self._settings.n_leaves - 1
        nodes = unsplit_nodes(max_nodes)
        leaf_values = np.zeros(max_nodes, np.float32)
        fit = BoostFit(
            columns=self._codes,
            prices=self._first_uses,
            settings=self._settings,
            work=self._work,
            nodes=nodes,
            value=leaf_values,
            row_prices=self._row_prices,
        )
        n_nodes = grow_boosted_tree(fit, gradient, hessian, scores, np.int64(0))
        if not n_nodes:
            return None
        return ensemble_of(
            nodes,
            n_nodes,
            leaf_values[:, np.newaxis],
            roots=np.zeros(1, np.int32),
            output=np.full(1, output, np.int32),
            base=np.zeros(len(self._scores), np.float32),
            n_features=self._codes.n_features,
        )


Booster = LightGBMBooster | CodedBooster


def kernel_prices(charge: Charge, n_rows: int) -> tuple[FirstUse, RowPrices]:
    """Convert the prices of equation 13 to the records of the compiled grower.

    Prices that all rows pay once are multiplied by the number of rows, because gains are sums over
    the rows.
    """
    prices = charge.prices
    n_features = prices.costs.n_features
    no_costs = FeatureCosts(np.zeros(n_features))
    if prices.accounting == "lazy":
        first_use_costs = no_costs if prices.coupled is None else FeatureCosts(prices.coupled)
        row_costs = prices.costs
    else:
        first_use_costs = prices.costs
        row_costs = no_costs
    first_use_items = first_use_costs.priced_items(charge.price_factor)
    row_items = row_costs.priced_items(charge.price_factor)
    split_prices = np.broadcast_to(prices.split, (n_features,)).astype(np.float64)
    first_uses = FirstUse(
        n_rows * first_use_items.price,
        first_use_items.start,
        first_use_items.items,
        is_paid=np.zeros(len(first_use_items.price), np.bool_),
    )
    row_prices = RowPrices(
        charge.price_factor * split_prices,
        *row_items,
        is_acquired=np.zeros((len(row_items.price), n_rows), np.bool_),
    )
    return first_uses, row_prices
