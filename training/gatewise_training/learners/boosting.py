"""Gradient boosting on LightGBM: full models, and models that pay for features once.

LightGBM's ``cegb_penalty_feature_coupled`` charges a feature the first time any tree uses it
(CEGB, NIPS 2017, section 3; the first-use penalty of GreedyMiser and Adapt-GBRT). Groups are
ours: a feature's penalty carries its group's shared price until a member of the group is in
use. One thread per fit: on small data a second one costs more than it brings.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import lightgbm as lgb
import numpy as np
from numpy.typing import NDArray

from gatewise.costs import FeatureCosts
from gatewise.decision import Link
from gatewise.models.trees import TreeEnsemble

Derivatives = Callable[[NDArray[np.float64]], tuple[NDArray[np.float64], NDArray[np.float64]]]

LARGE_ROWS = 5000
"""Above this many rows boosted trees may be large."""

MANY_ROWS = 50_000
"""Above this many rows some of them choose what all are fitted with, trees are larger, forests
smaller."""

SVM_ROWS = 16_000
"""Above this many rows a kernel machine, quadratic in them, is not tried."""

STOPPING_ROWS = 20_000
"""Largest number of validation rows that say when a fit ends: each passes every tree, which takes a
good part of a fit on many rows."""

COARSE_BINS = 63
"""Bins of a feature on few rows, where rows have groups, or where features are only compared: finer
thresholds tell known rows and groups apart, not classes, and take up to three times as long."""

PATIENCE = (12, 0.003), (20, 0.0)
"""Rounds that end a fit if the mean log loss of validation rows has not fallen by more than this
amount since the best one: on few rows, and on more than 5,000. The amount is multiplied by the
entropy of the classes where uneven classes have less than one bit."""

LARGEST_STEP = 1.5
"""Largest value of a leaf for one of many classes, before the learning rate. Newton's steps of a
rare class have no bound: values of 691 on Forest, losses that run away at rates above 0.1, and
steps that 8 bits cannot tell apart."""

RANDOM_THRESHOLDS = {"extra_trees": True, "learning_rate": 0.07}
"""LightGBM settings that try one random threshold per feature, which averages out on few rows."""


def tree_params(seed: int, **changes: Any) -> dict[str, Any]:
    """LightGBM parameters that every fit here shares; `changes` override them."""
    return {
        "verbosity": -1,
        "num_threads": 1,
        "seed": seed,
        "deterministic": True,
        "force_row_wise": True,
        "num_leaves": 31,
        "learning_rate": 0.1,
        "min_data_in_leaf": 5,
        "max_bin": 255,
        "feature_pre_filter": False,
    } | changes


def capacity(n_rows: int, n_classes: int, *, grouped: bool = False) -> dict[str, Any]:
    """LightGBM settings of a strong model on `n_rows` rows: leaves, learning rate, perhaps bins.

    Stages get the same as the high-cost model: weaker ones never come within 1 % of it. On very
    many rows larger trees at a higher rate are better in less time: on 256,000 rows and all
    features of Forest log loss .077 in 11 s, with 255 leaves at 0.1 .092 in 16 s. `grouped` says
    whether the rows have groups.

    >>> capacity(1000, 2)
    {'num_leaves': 15, 'learning_rate': 0.1, 'max_bin': 63}
    """
    if n_rows <= LARGE_ROWS:
        return {"num_leaves": 15, "learning_rate": 0.1, "max_bin": COARSE_BINS}
    bins = {"max_bin": COARSE_BINS} if grouped else {}
    leaves = 255 if n_classes == 2 else 63
    rate = 0.1 if n_classes == 2 else 0.15
    if n_rows > MANY_ROWS:
        leaves = 1023 if n_classes == 2 else 255
        rate = 0.2
    return {"num_leaves": leaves, "learning_rate": rate} | bins


def link_of(n_classes: int) -> Link:
    """Sigmoid for two classes (one margin), softmax for more (one margin per class)."""
    return "sigmoid" if n_classes == 2 else "softmax"


def log_loss_params(n_classes: int) -> dict[str, Any]:
    """LightGBM's settings for the log loss of two or more classes."""
    if n_classes == 2:
        return {"objective": "binary", "metric": "binary_logloss"}
    return {
        "objective": "multiclass",
        "num_class": n_classes,
        "metric": "multi_logloss",
        "max_delta_step": LARGEST_STEP,
    }


def fit_boosting(
    x: NDArray[np.float32],
    y: NDArray[np.int64],
    n_classes: int,
    *,
    weight: NDArray[np.float64] | None = None,
    validation: tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.float64]] | None = None,
    rounds: int = 200,
    seed: int = 0,
    params: Mapping[str, Any] | None = None,
) -> tuple[TreeEnsemble, int]:
    """Fit a boosted classifier; with `validation`, stop early on its log loss.

    `validation`: rows, labels, weights. Shapes: `x` (n, n_features), `y` (n,), `weight` (n,).
    """
    settings = tree_params(seed) | log_loss_params(n_classes) | dict(params or {})
    data = lgb.Dataset(x, y, weight=weight, params=settings, free_raw_data=False)
    callbacks: list[Callable[..., Any]] = []
    valid = None
    if validation is not None:
        every_nth = slice(None, None, -(-len(validation[1]) // STOPPING_ROWS))
        unseen_x, unseen_y, unseen_weight = (array[every_nth] for array in validation)
        valid = [data.create_valid(unseen_x, unseen_y, weight=unseen_weight)]
        rounds_left, fall = PATIENCE[len(x) > LARGE_ROWS]
        fall *= min(1.0, _bits(y, weight))
        callbacks = [lgb.early_stopping(rounds_left, verbose=False, min_delta=fall)]
    booster = lgb.train(
        settings,
        data,
        rounds,
        valid_sets=valid,
        callbacks=callbacks,
        keep_training_booster=True,  # no copy by way of text
    )
    n_rounds = booster.best_iteration if booster.best_iteration > 0 else booster.current_iteration()
    return TreeEnsemble.from_lightgbm(booster, num_iteration=n_rounds), n_rounds


def _bits(y: NDArray[np.int64], weight: NDArray[np.float64] | None) -> float:
    """Entropy of the classes, in bits."""
    count = np.bincount(y, weight)
    share = count[count > 0] / count.sum()
    return float(-(share * np.log2(share)).sum())


def varies(x: NDArray[np.float32]) -> bool:
    """Whether any column does; else LightGBM grows nothing and fails a check of its own."""
    return bool((np.fmin.reduce(x, axis=0) < np.fmax.reduce(x, axis=0)).any())


def objective_of(derivatives: Derivatives) -> Callable[[Any, Any], tuple[Any, Any]]:
    """Turn derivatives of outputs, shape (n, n_outputs), into an objective of LightGBM."""

    def objective(scores: Any, _data: Any) -> tuple[Any, Any]:
        gradient, hessian = derivatives(np.reshape(scores, (len(scores), -1)))
        return np.squeeze(gradient), np.squeeze(hessian)

    return objective


class FirstUsePrices:
    """LightGBM's prices of first uses in one fit: each feature is paid once, its group with it.

    `strength` is the penalty of one unit of cost in LightGBM's gain, twice the drop of the summed
    loss: a mean loss plus ``gamma * cost`` over ``n`` rows is ``2 * n * gamma``. `params` are
    LightGBM's parameters at the start, none where nothing is charged. Only the features' own prices
    stand still: :meth:`after` each round the rest of a touched group is cheaper.
    """

    def __init__(self, costs: FeatureCosts, strength: float) -> None:
        self._costs = costs
        self._strength = strength
        self._groups_open = bool(costs.shared.any() and strength > 0)
        price = strength * costs.alone
        self.params: dict[str, Any] = {}
        if price.any():
            self.params = {"cegb_tradeoff": 1.0, "cegb_penalty_feature_coupled": price.tolist()}

    def update(self, booster: lgb.Booster) -> None:
        """Renew the prices after a round."""
        if self._groups_open:
            used = np.asarray(booster.feature_importance("split") > 0)
            price = self._strength * self._costs.remaining(used)
            booster.reset_parameter({"cegb_penalty_feature_coupled": price.tolist()})
            touched = np.unique(self._costs.group[used])
            self._groups_open = len(touched[touched >= 0]) < len(self._costs.shared)
