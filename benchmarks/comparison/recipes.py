"""Short recipes for classification within a budget on feature costs.

A recipe takes a split and a budget. It returns the labels of the test rows and their mean cost.
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
    """Training rows, test rows and feature costs of a table."""

    x: Rows
    y: Labels
    x_test: Rows
    y_test: Labels
    costs: FeatureCosts
    seed: int

    def is_correct(self, answers: NDArray[Any]) -> NDArray[np.float64]:
        """Whether each answer is correct, as floats of shape (n_test,)."""
        return np.equal(answers, self.y_test).astype(np.float64)


def default_booster() -> LGBMClassifier:
    """LightGBM with its default settings."""
    return LGBMClassifier(verbose=-1, random_state=0, n_jobs=1)


def important_features(split: Split, budget: float) -> list[int]:
    """Features that the budget pays for, added in the order of their gain in LightGBM."""
    gains = default_booster().fit(split.x, split.y).booster_.feature_importance("gain")
    features: list[int] = []
    for feature in np.argsort(-gains, kind="stable").tolist():
        if gains[feature] > 0 and split.costs.price([*features, feature]) <= budget:
            features.append(feature)
    return features


def few_features(split: Split, budget: float) -> tuple[NDArray[Any], float]:
    """LightGBM on the most important features that the budget pays for."""
    features = important_features(split, budget)
    if not features:
        return np.full(len(split.y_test), np.bincount(split.y).argmax()), 0.0
    model = default_booster().fit(split.x[:, features], split.y)
    answers = np.asarray(model.predict(split.x_test[:, features]))
    return answers, split.costs.price(features)


def small_and_big(split: Split, budget: float) -> tuple[NDArray[Any], float]:
    """LightGBM on few features, and LightGBM on all features for rows of low probability.

    The small model may cost half of the budget. A quarter of the training rows, on which the model
    is not fitted, sets the threshold so that offloads cost the other half.
    """
    features = important_features(split, budget / 2)
    if not features:
        return few_features(split, budget)
    price = split.costs.price(features)
    offload_share = (budget - price) / (split.costs.total - price)
    x = split.x[:, features]
    x_fit, x_threshold, y_fit, _ = train_test_split(
        x, split.y, test_size=0.25, stratify=split.y, random_state=0
    )
    threshold_probabilities = np.asarray(
        default_booster().fit(x_fit, y_fit).predict_proba(x_threshold)
    )
    confidence = threshold_probabilities.max(axis=1)
    threshold = np.quantile(confidence, offload_share)
    small_model = default_booster().fit(x, split.y)
    probabilities = np.asarray(small_model.predict_proba(split.x_test[:, features]))
    is_offloaded = probabilities.max(axis=1) < threshold
    big_answers = np.asarray(default_booster().fit(split.x, split.y).predict(split.x_test))
    answers = np.where(is_offloaded, big_answers, probabilities.argmax(axis=1))
    cost = price + float(is_offloaded.mean()) * (split.costs.total - price)
    return answers, cost


RECIPES: dict[str, Callable[[Split, float], tuple[NDArray[Any], float]]] = {
    "few features": few_features,
    "small and big": small_and_big,
}
