"""Growth of boosted trees under a charge, best-first or breadth-first.

LightGBM grows best-first, as CEGB does (section 4.3): the next split is the one with the largest
gain after its price in the whole tree, until the tree has all its leaves. Breadth-first growth
(figure 3b, and GreedyMiser's trees) comes from the same grower. With a maximum depth of d and 2^d
leaves, the number of leaves never limits growth. Every node up to the maximum depth is then split
if its split is worth the price.

Every tree is fitted to all rows, because LightGBM's sampling of rows (bagging, GOSS) makes lazy
prices wrong without an error.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import lightgbm as lgb
import numpy as np
from numpy.typing import NDArray
from sklearn.utils._param_validation import StrOptions

from gatewise.models.trees import TreeEnsemble
from gatewise_training.cegb.boosters import Booster, CodedBooster, LightGBMBooster
from gatewise_training.cegb.objectives import Target
from gatewise_training.cegb.penalties import Charge
from gatewise_training.data.input_checks import AT_LEAST_1, Constraints
from gatewise_training.learners.boosting import has_varying_column, tree_params
from gatewise_training.learners.growth_settings import Growth, tree_settings

Array = NDArray[np.float64]
GrowthOrder = Literal["best-first", "breadth-first"]


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


#: Largest number of leaves that LightGBM accepts.
MAX_LIGHTGBM_LEAVES = 131_072


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
