"""Short recipes for classification within a budget on feature costs.

A recipe takes a split and a budget. It returns the labels of the test rows and their mean cost.
``bench_promises`` compares the recipes with the cascades of this project. An engineer could
write each recipe in an afternoon; the models have their default settings.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from lightgbm import LGBMClassifier
from numpy.typing import NDArray
from sklearn.model_selection import train_test_split

from gatewise.costs import FeatureCosts

Labels = NDArray[np.int64]
Rows = NDArray[np.float32]


class Split(NamedTuple):
    """Training rows, test rows and feature costs of a table.

    Labels are class indices 0, 1, ..., and the training rows have all classes.
    """

    x: Rows
    y: Labels
    x_test: Rows
    y_test: Labels
    costs: FeatureCosts
    seed: int  # of the system that is compared; recipes always use seed 0

    def hits(self, answers: NDArray[Any]) -> NDArray[np.float64]:
        """Return 1 for each correct answer and 0 for each other one, shape (n_test,)."""
        return np.equal(answers, self.y_test).astype(np.float64)


def make_booster() -> LGBMClassifier:
    """Make LightGBM with its default settings."""
    return LGBMClassifier(verbose=-1, random_state=0, n_jobs=1)


def select_important_features(split: Split, budget: float) -> list[int]:
    """Select features in the order of their gain in LightGBM, as long as the budget pays for them.

    A feature that is too expensive is left out, but later ones may still be affordable.
    """
    gains = make_booster().fit(split.x, split.y).booster_.feature_importance("gain")
    features: list[int] = []
    for feature in np.argsort(-gains, kind="stable").tolist():
        # a feature of gain 0 is in no tree
        if gains[feature] > 0 and split.costs.price([*features, feature]) <= budget:
            features.append(feature)
    return features


def few_features(split: Split, budget: float) -> tuple[NDArray[Any], float]:
    """Fit LightGBM on the most important features that the budget pays for."""
    features = select_important_features(split, budget)
    if not features:  # answer with the most frequent class
        return np.full(len(split.y_test), np.bincount(split.y).argmax()), 0.0
    model = make_booster().fit(split.x[:, features], split.y)
    answers = np.asarray(model.predict(split.x_test[:, features]))
    return answers, split.costs.price(features)


def small_and_big(split: Split, budget: float) -> tuple[NDArray[Any], float]:
    """Fit LightGBM on few features, and on all features for rows of low probability.

    The budget must be less than the cost of all features. The small model may cost half of it. The
    rest pays for offloads:

        offload share = (budget - price) / (cost of all features - price)

    The threshold is that quantile of the small model's confidence on a quarter of the training
    rows. Another model, fitted on the other three quarters, computes this confidence, because a
    model is too confident on rows that it was fitted on.
    """
    features = select_important_features(split, budget / 2)
    if not features:
        return few_features(split, budget)
    price = split.costs.price(features)
    # an offload pays only for the features that the small model has not acquired
    offload_price = split.costs.total - price
    offload_share = (budget - price) / offload_price
    x = split.x[:, features]
    x_fit, x_threshold, y_fit, _ = train_test_split(
        x, split.y, test_size=0.25, stratify=split.y, random_state=0
    )
    threshold_probabilities = np.asarray(
        make_booster().fit(x_fit, y_fit).predict_proba(x_threshold)
    )
    threshold = np.quantile(threshold_probabilities.max(axis=1), offload_share)
    small_model = make_booster().fit(x, split.y)
    probabilities = np.asarray(small_model.predict_proba(split.x_test[:, features]))
    is_offloaded = probabilities.max(axis=1) < threshold
    big_answers = np.asarray(make_booster().fit(split.x, split.y).predict(split.x_test))
    answers = np.where(is_offloaded, big_answers, probabilities.argmax(axis=1))
    cost = price + float(is_offloaded.mean()) * offload_price
    return answers, cost


RECIPES: dict[str, Callable[[Split, float], tuple[NDArray[Any], float]]] = {
    "few features": few_features,
    "small and big": small_and_big,
}
