"""Gradient boosting on LightGBM: settings, fits, and prices of first uses.

LightGBM's ``cegb_penalty_feature_coupled`` charges a feature the first time any tree uses it (CEGB,
NIPS 2017, section 3). This is also the first-use penalty of GreedyMiser and Adapt-GBRT. LightGBM
has no groups, so the penalty of a feature includes the shared price of its group until a tree uses
a feature of the group. Each fit uses one thread, because a second one gains no time on small data.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import lightgbm as lgb
import numpy as np
from numpy.typing import NDArray

from gatewise.costs import FeatureCosts
from gatewise.decision import Link
from gatewise.models.trees import TreeEnsemble

#: Function from the scores to their gradients and hessians, all of shape (n, n_outputs).
Derivatives = Callable[[NDArray[np.float64]], tuple[NDArray[np.float64], NDArray[np.float64]]]

#: Largest number of rows of a small table. With more rows, boosted trees may be large.
MAX_SMALL_ROWS = 5000

#: Largest number of rows of a medium table. With more rows, settings are chosen on a sample of the
#: rows, boosted trees are larger, and forests have fewer trees.
MAX_MEDIUM_ROWS = 50_000

#: Maximum number of validation rows for early stopping. Each of them passes every tree, which takes
#: a large part of the time of a fit.
MAX_STOPPING_ROWS = 20_000

#: Number of bins of a feature on few rows, on rows with groups, and in comparisons of features.
#: Finer thresholds overfit to the known rows and groups, and take up to three times as long.
COARSE_BINS = 63


class Patience(NamedTuple):
    """Early stopping: a fit ends if the loss has not fallen by a decrease for some rounds.

    The loss is the mean log loss of the validation rows. If the entropy of the classes is below one
    bit, the decrease is multiplied by it.
    """

    n_rounds: int
    min_decrease: float


PATIENCE_ON_SMALL_TABLES = Patience(12, 0.003)
PATIENCE_ON_LARGER_TABLES = Patience(20, 0.0)

#: Largest absolute value of a leaf in a model of several classes, before the learning rate. Newton
#: steps of a rare class are unbounded. On Forest they reach 691, the loss diverges at learning
#: rates above 0.1, and leaves of 8 bits cannot represent the other steps.
MAX_STEP = 1.5

#: LightGBM settings that try one random threshold per feature, which reduces the variance on few
#: rows.
RANDOM_THRESHOLDS = {"extra_trees": True, "learning_rate": 0.07}


def tree_params(seed: int, **changes: Any) -> dict[str, Any]:
    """Make the LightGBM parameters that all fits share; `changes` override them."""
    return {
        "verbosity": -1,
        "num_threads": 1,
        "seed": seed,
        # without these two, LightGBM chooses between two ways of counting by their speed, and the
        # order of its sums changes from run to run
        "deterministic": True,
        "force_row_wise": True,
        "num_leaves": 31,
        "learning_rate": 0.1,
        "min_data_in_leaf": 5,
        "max_bin": 255,
        "feature_pre_filter": False,
    } | changes


def capacity_params(n_rows: int, n_classes: int, *, has_groups: bool = False) -> dict[str, Any]:
    """Choose the leaves, the learning rate and the bins of a strong model on `n_rows` rows.

    Stages have the same settings as the high-cost model, because weaker stages do not come within
    1 % of its accuracy. On very many rows, larger trees with a higher learning rate are better and
    faster. On 256,000 rows of Forest the log loss is .077 after 11 s, and .092 after 16 s with 255
    leaves and a learning rate of 0.1. `has_groups` says whether the rows have groups.

    >>> capacity_params(1000, 2)
    {'num_leaves': 15, 'learning_rate': 0.1, 'max_bin': 63}
    """
    if n_rows <= MAX_SMALL_ROWS:
        return {"num_leaves": 15, "learning_rate": 0.1, "max_bin": COARSE_BINS}
    bin_params = {"max_bin": COARSE_BINS} if has_groups else {}
    n_leaves = 255 if n_classes == 2 else 63
    learning_rate = 0.1 if n_classes == 2 else 0.15
    if n_rows > MAX_MEDIUM_ROWS:
        n_leaves = 1023 if n_classes == 2 else 255
        learning_rate = 0.2
    return {"num_leaves": n_leaves, "learning_rate": learning_rate} | bin_params


def link_of(n_classes: int) -> Link:
    """Get the link of a model: sigmoid for two classes, which have one margin, else softmax."""
    return "sigmoid" if n_classes == 2 else "softmax"


def log_loss_params(n_classes: int) -> dict[str, Any]:
    """Make LightGBM's settings for the log loss of two or more classes."""
    if n_classes == 2:
        return {"objective": "binary", "metric": "binary_logloss"}
    return {
        "objective": "multiclass",
        "num_class": n_classes,
        "metric": "multi_logloss",
        "max_delta_step": MAX_STEP,
    }


def fit_boosting(
    x: NDArray[np.float32],
    y: NDArray[np.int64],
    n_classes: int,
    *,
    weight: NDArray[np.float64] | None = None,
    validation: tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.float64]] | None = None,
    max_rounds: int = 200,
    seed: int = 0,
    params: Mapping[str, Any] | None = None,
) -> tuple[TreeEnsemble, int]:
    """Fit a boosted classifier; return its trees and its number of rounds.

    With `validation`, which holds rows, labels and weights, the log loss on these rows stops the
    fit early. Shapes: `x` (n, n_features), `y` (n,), `weight` (n,).
    """
    settings = tree_params(seed) | log_loss_params(n_classes) | dict(params or {})
    dataset = lgb.Dataset(x, y, weight=weight, params=settings, free_raw_data=False)
    callbacks: list[Callable[..., Any]] = []
    valid_sets = None
    if validation is not None:
        every_nth = slice(None, None, -(-len(validation[1]) // MAX_STOPPING_ROWS))
        stopping_x, stopping_y, stopping_weight = (array[every_nth] for array in validation)
        valid_sets = [dataset.create_valid(stopping_x, stopping_y, weight=stopping_weight)]
        patience = (
            PATIENCE_ON_SMALL_TABLES if len(x) <= MAX_SMALL_ROWS else PATIENCE_ON_LARGER_TABLES
        )
        min_decrease = patience.min_decrease * min(1.0, _compute_class_entropy(y, weight))
        callbacks = [lgb.early_stopping(patience.n_rounds, verbose=False, min_delta=min_decrease)]
    booster = lgb.train(
        settings,
        dataset,
        max_rounds,
        valid_sets=valid_sets,
        callbacks=callbacks,
        keep_training_booster=True,  # avoids a copy of the model through text
    )
    n_rounds = booster.best_iteration if booster.best_iteration > 0 else booster.current_iteration()
    return TreeEnsemble.from_lightgbm(booster, num_iteration=n_rounds), n_rounds


def _compute_class_entropy(y: NDArray[np.int64], weight: NDArray[np.float64] | None) -> float:
    """Compute the entropy of the classes in bits."""
    class_weight = np.bincount(y, weight)
    class_shares = class_weight[class_weight > 0] / class_weight.sum()
    return float(-(class_shares * np.log2(class_shares)).sum())


def has_varying_column(x: NDArray[np.float32]) -> bool:
    """Whether any column has two values; otherwise LightGBM fails with an error."""
    return bool((np.fmin.reduce(x, axis=0) < np.fmax.reduce(x, axis=0)).any())


def objective_of(derivatives: Derivatives) -> Callable[[Any, Any], tuple[Any, Any]]:
    """Make an objective of LightGBM from derivatives of outputs, shape (n, n_outputs)."""

    def objective(scores: Any, _data: Any) -> tuple[Any, Any]:
        gradient, hessian = derivatives(np.reshape(scores, (len(scores), -1)))
        return np.squeeze(gradient), np.squeeze(hessian)

    return objective


class FirstUsePrices:
    """LightGBM's prices of first uses in one fit, where each feature and group is paid once.

    With ``strength = 2 * n * gamma``, a fit adds ``gamma * cost`` to the mean loss over ``n`` rows:
    `strength` is the price of one unit of cost in LightGBM's gain, which is twice the decrease of
    the summed loss. `params` are LightGBM's parameters at the start, and are empty if nothing is
    charged. :meth:`update` must be called after each round. Once a tree uses a feature of a group,
    the other features of the group cost only their own price.
    """

    def __init__(self, costs: FeatureCosts, strength: float) -> None:
        self._costs = costs
        self._strength = strength
        self._has_unpaid_groups = bool(costs.shared.any() and strength > 0)
        prices = strength * costs.standalone_prices
        self.params: dict[str, Any] = {}
        if prices.any():
            self.params = {"cegb_tradeoff": 1.0, "cegb_penalty_feature_coupled": prices.tolist()}

    def update(self, booster: lgb.Booster) -> None:
        """Update the prices after a round."""
        if self._has_unpaid_groups:
            is_used = np.asarray(booster.feature_importance("split") > 0)
            prices = self._strength * self._costs.additional_prices(is_used)
            booster.reset_parameter({"cegb_penalty_feature_coupled": prices.tolist()})
            paid_groups = np.unique(self._costs.group[is_used])
            self._has_unpaid_groups = len(paid_groups[paid_groups >= 0]) < len(self._costs.shared)
