"""What a person would do in ten lines, within a budget on features.

A recipe gets a split and a budget, and gives the labels of the test rows and the mean cost of one.
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
    """Training and test rows of one table."""

    x: Rows
    y: Labels
    x_test: Rows
    y_test: Labels
    costs: FeatureCosts
    seed: int

    def right(self, answers: NDArray[Any]) -> NDArray[np.float64]:
        """Whether each test row is answered rightly, shape (n_test,)."""
        return np.equal(answers, self.y_test).astype(np.float64)


def boosted() -> LGBMClassifier:
    """LightGBM as it comes."""
    return LGBMClassifier(verbose=-1, random_state=0, n_jobs=1)


def important_features(split: Split, budget: float) -> list[int]:
    """Add features by falling gain in LightGBM on all, as long as the budget pays for them."""
    gains = boosted().fit(split.x, split.y).booster_.feature_importance("gain")
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
    model = boosted().fit(split.x[:, features], split.y)
    answers = np.asarray(model.predict(split.x_test[:, features]))
    return answers, split.costs.price(features)


def small_and_big(split: Split, budget: float) -> tuple[NDArray[Any], float]:
    """LightGBM on few features; rows with a low probability go to LightGBM on all features.

    The small model may cost half of the budget. The threshold is chosen on a quarter of the
    training rows that the model has not seen, so that offloads take the other half.
    """
    features = important_features(split, budget / 2)
    if not features:
        return few_features(split, budget)
    price = split.costs.price(features)
    share = (budget - price) / (split.costs.total - price)
    x = split.x[:, features]
    x_fit, x_held, y_fit, _ = train_test_split(
        x, split.y, test_size=0.25, stratify=split.y, random_state=0
    )
    held_probabilities = np.asarray(boosted().fit(x_fit, y_fit).predict_proba(x_held))
    confidence = held_probabilities.max(axis=1)
    threshold = np.quantile(confidence, share)
    small = boosted().fit(x, split.y)
    probabilities = np.asarray(small.predict_proba(split.x_test[:, features]))
    offloaded = probabilities.max(axis=1) < threshold
    big_answers = np.asarray(boosted().fit(split.x, split.y).predict(split.x_test))
    answers = np.where(offloaded, big_answers, probabilities.argmax(axis=1))
    cost = price + float(offloaded.mean()) * (split.costs.total - price)
    return answers, cost


RECIPES: dict[str, Callable[[Split, float], tuple[NDArray[Any], float]]] = {
    "few features": few_features,
    "small and big": small_and_big,
}
