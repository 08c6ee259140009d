"""Growth of boosted trees under a charge, best-first or breadth-first.

LightGBM grows best-first, as CEGB does (section 4.3): the next split is the one with the largest
gain after its price in the whole tree, until the tree has all its leaves. Breadth-first growth
(figure 3b, and GreedyMiser's trees) comes from the same grower. With a maximum depth of d and 2^d
leaves, the number of leaves never limits growth. Every node up to the maximum depth is then split
if its split is worth the price.

LightGBM has the same price of a split for all features. If the prices differ by feature (CEGB, NIPS
2017, section 5.2), the compiled grower of :mod:`gatewise_training.learners.boost_kernel` grows the
trees. It charges all prices of equation 13 exactly, including those of groups, and of groups that
these require.

Every tree is fitted to all rows, because LightGBM's sampling of rows (bagging, GOSS) makes lazy
prices wrong without an error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import lightgbm as lgb
import numpy as np
from numpy.typing import NDArray
from sklearn.utils._param_validation import StrOptions

from gatewise.costs import FeatureCosts
from gatewise.errors import InputError
from gatewise.models.trees import TreeEnsemble
from gatewise_training.cegb.objectives import Target
from gatewise_training.cegb.penalties import Charge
from gatewise_training.data.input_checks import AT_LEAST_1, Constraints
from gatewise_training.forests.grower.binning import Codes
from gatewise_training.forests.grower.growing import ensemble_of, unsplit_nodes
from gatewise_training.learners.boost_kernel import grow_boosted_tree, work_arrays
from gatewise_training.learners.boost_records import BoostFit, FirstUse, RowPrices, TreeSettings
from gatewise_training.learners.boosting import has_varying_column, objective_of, tree_params
from gatewise_training.learners.growth_settings import Growth, tree_settings

Array = NDArray[np.float64]
GrowthOrder = Literal["best-first", "breadth-first"]


#: Largest number of leaves that LightGBM accepts.
MAX_LIGHTGBM_LEAVES = 131_072

Derivatives = Callable[[Array], tuple[Array, Array]]

#: Maximum number of codes of a column, the same as LightGBM's default number of bins.
MAX_BINS = 255

#: Largest number of sums that the histograms of a tree's leaves may hold, which takes 2 GB.
MAX_HISTOGRAM_SUMS = 2**28


@dataclass(eq=False, repr=False, kw_only=True)
class TreeGrowth(Growth):
    """Settings of the growth, which are parameters of CEGB's estimators."""

    growth: GrowthOrder = "best-first"
    n_rounds: int = 200
    # growth ends after this many rounds without improvement on validation rows; None: never
    patience: int | None = 20

    _parameter_constraints: ClassVar[Constraints] = {
        "growth": [StrOptions({"best-first", "breadth-first"})],
        "patience": [AT_LEAST_1, None],
    }


def cegb_settings(growth: TreeGrowth, n_rows: int, n_classes: int) -> dict[str, Any]:
    """Make LightGBM's settings for `n_rows` rows.

    Breadth-first trees get 2^depth leaves, or as many as there are rows.

    >>> cegb_settings(TreeGrowth(growth="breadth-first", num_leaves=31), 1000, 2)
    {'num_leaves': 16, 'max_depth': 4, 'learning_rate': 0.1}
    """
    settings = tree_settings(growth, n_rows, n_classes)
    if growth.growth == "breadth-first":
        depth = growth.max_depth
        if depth is None:
            depth = settings["num_leaves"].bit_length() - 1
        n_leaves = min(2**depth, max(2, n_rows), MAX_LIGHTGBM_LEAVES)
        settings |= {"num_leaves": n_leaves, "max_depth": depth}
    return settings


class GrownTrees(NamedTuple):
    """Trees of a fit, and their number of rounds."""

    trees: TreeEnsemble
    n_rounds: int


def boost_trees(
    x: NDArray[np.float32],
    target: Target,
    growth: TreeGrowth,
    charge: Charge,
    *,
    validation: tuple[NDArray[np.float32], Target] | None = None,
    rounds: int | None = None,
    seed: int = 0,
) -> GrownTrees:
    """Grow one model.

    The loss on validation rows ends the growth, and the rounds after the best one are dropped.
    `rounds` replaces the maximum number of rounds of `growth`.
    """
    if not has_varying_column(x):
        return GrownTrees(constant_model(target, x.shape[1]), 0)
    base_margins = target.base_margins()
    booster = _make_booster(x, target, growth, charge, seed)
    monitor = None
    if validation is not None and growth.patience is not None:
        monitor = _LossMonitor(*validation, base_margins)
    n_grown_rounds = 0
    n_best_rounds = 0
    while n_grown_rounds < (rounds or growth.n_rounds):
        if booster.update():
            break
        n_grown_rounds += 1
        if monitor is None or monitor.update(booster, n_grown_rounds - 1):
            n_best_rounds = n_grown_rounds
        elif growth.patience is not None and n_grown_rounds - n_best_rounds >= growth.patience:
            break
    if not n_best_rounds:  # LightGBM keeps a first tree even if it could not split
        return GrownTrees(constant_model(target, x.shape[1]), 0)
    return GrownTrees(
        target.to_prediction_unit(booster.trees(n_best_rounds), base_margins), n_best_rounds
    )


def _make_booster(
    x: NDArray[np.float32], target: Target, growth: TreeGrowth, charge: Charge, seed: int
) -> Booster:
    """Make the booster of a fit; LightGBM's has no prices of splits by feature."""
    base_margins = target.base_margins()

    def derivatives(scores: Array) -> tuple[Array, Array]:
        return target.derivatives(scores + base_margins, newton=growth.newton)

    settings = cegb_settings(growth, len(x), max(2, target.n_outputs))
    if charge.prices.has_split_prices_by_feature:
        return CodedBooster(x, target.n_outputs, settings, charge, derivatives)
    params = tree_params(seed) | {"objective": "none", "num_class": target.n_outputs}
    params |= settings | charge.params | {"metric": "none"}
    dataset = lgb.Dataset(x, np.zeros(len(x)), params=params, free_raw_data=True)
    return LightGBMBooster(dataset, params, charge, derivatives)


class _LossMonitor:
    """Loss on validation rows, updated after each round."""

    def __init__(self, x: NDArray[np.float32], target: Target, base_margins: Array) -> None:
        self._x = x
        self._target = target
        self._margins = np.tile(base_margins, (len(x), 1))
        self._lowest_loss = target.loss(self._margins)

    def update(self, booster: Booster, round_number: int) -> bool:
        """Add a round; return whether the loss is lower than after any earlier round."""
        self._margins += booster.round_margins(self._x, round_number)
        loss = self._target.loss(self._margins)
        if loss >= self._lowest_loss:
            return False
        self._lowest_loss = loss
        return True


def constant_model(target: Target, n_features: int) -> TreeEnsemble:
    """Make the best constant model, with a single leaf of 0 for each output."""
    outputs = np.arange(target.n_outputs, dtype=np.int32)
    no_node = np.full(len(outputs), -1, np.int32)
    trees = TreeEnsemble(
        feature=no_node,
        threshold=np.zeros(len(outputs), np.float32),
        left=no_node,
        right=no_node,
        nan_left=np.zeros(len(outputs), np.bool_),
        value=np.zeros((len(outputs), 1), np.float32),
        roots=outputs,
        output=outputs,
        base=np.zeros(len(outputs), np.float32),
        n_features=n_features,
    )
    return target.to_prediction_unit(trees, target.base_margins())


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
