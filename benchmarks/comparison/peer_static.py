"""Peers with static feature subsets, as single models and as one stage before the cloud.

Backward elimination makes the subsets. Starting with all features, it removes those with the least
gain per price and fits the model again. The two-stage cascades differ only in their stop rule. The
rules are the margin of the two largest probabilities and two rules of KubeEdge Sedna, implemented
from the formulas in lib/sedna/algorithms/hard_example_mining: cross-entropy,
``1 + sum p log p / log M``, and threshold, the probability of the predicted class.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import xlogy

from benchmarks.comparison.boosters import Booster, booster_fit, capacities
from benchmarks.comparison.record import Point, cascade_points, threshold_quantiles
from benchmarks.data.folds import Fold
from benchmarks.data.problems import Problem
from gatewise.costs import FeatureCosts
from gatewise_training.data.validation_split import ValidationSplit, cross_fit
from gatewise_training.learners.high_cost_training import train_high_cost_model


@dataclass(frozen=True, eq=False)
class Subset:
    """Model on a subset of features, with probabilities of shape (n, n_classes)."""

    features: NDArray[np.intp]
    validation_proba: NDArray[np.float64]
    test_proba: NDArray[np.float64]
    nbytes: int
    seconds: float  # CPU time of the fit


@dataclass(frozen=True, eq=False)
class CloudAnswers:
    """Answers of a high-cost model on all features, and the CPU time of its fit."""

    kind: str
    validation_answers: NDArray[Any]
    test_answers: NDArray[Any]
    seconds: float


def fit_subsets(
    problem: Problem, fold: Fold, plan: ValidationSplit, seed: int, n_fits: int
) -> list[Subset]:
    """Fit models on about `n_fits` nested subsets for each capacity."""
    subsets = []
    for capacity in capacities(
        plan, problem.n_classes, seed=seed, has_noisy_labels=problem.has_noisy_labels
    ):
        columns = np.arange(problem.costs.n_features)
        max_prices = np.geomspace(problem.costs.total, problem.min_budget, n_fits)
        for max_price in [*max_prices[1:].tolist(), 0.0]:
            start_time = time.process_time()
            fit = booster_fit(plan, columns, problem.n_classes, capacity, seed=seed)
            model, validation_proba = cross_fit(
                plan, fit, lambda fitted_model, rows: fitted_model.proba(plan.x[rows])
            )
            test_proba = model.proba(fold.test[0])
            seconds = time.process_time() - start_time
            subsets.append(
                Subset(model.used_features(), validation_proba, test_proba, model.nbytes, seconds)
            )
            columns = _remove_features(model, problem.costs, max_price)
            if not len(columns):
                break
    return subsets


def _remove_features(model: Booster, costs: FeatureCosts, max_price: float) -> NDArray[np.intp]:
    """Remove features until the price is lower than before and at most `max_price`."""
    gains = np.zeros(costs.n_features)
    gains[model.columns] = model.gains()
    is_in_subset = costs.mask(model.used_features())
    # a feature without an own price saves only together with all members of its group
    removable_sets = [
        costs.members(feature) if costs.own[feature] == 0 else np.array([feature])
        for feature in range(len(gains))
    ]
    initial_price = costs.price(is_in_subset)
    while is_in_subset.any() and (
        costs.price(is_in_subset) > max_price or costs.price(is_in_subset) >= initial_price
    ):
        # the saved price is 0 if other members of the group stay, and 1e-12 avoids a division by it
        gain_per_price = {}
        for feature in np.flatnonzero(is_in_subset).tolist():
            removed_features = removable_sets[feature]
            smaller_subset = is_in_subset.copy()
            smaller_subset[removed_features] = False
            saved_price = costs.price(is_in_subset) - costs.price(smaller_subset)
            lost_gain = gains[removed_features][is_in_subset[removed_features]].sum()
            gain_per_price[feature] = lost_gain / max(saved_price, 1e-12)
        worst_feature = min(gain_per_price, key=lambda feature: gain_per_price[feature])
        is_in_subset[removable_sets[worst_feature]] = False
    return np.flatnonzero(is_in_subset)


def fit_cloud(problem: Problem, fold: Fold, plan: ValidationSplit, seed: int) -> CloudAnswers:
    """Fit the high-cost model, the most accurate of the library's families on validation rows."""
    start_time = time.process_time()
    model, labels, proba, _ = train_high_cost_model(plan, problem.n_classes, seed=seed)
    validation_answers = fold.truth_of_plan(plan).to_answers(proba, labels)
    test_answers = fold.test_truth.model_answers(model.labels, model.predict_proba, fold.test[0])
    return CloudAnswers(
        model.kind, validation_answers, test_answers, time.process_time() - start_time
    )


def single_model_points(
    subsets: list[Subset], plan: ValidationSplit, fold: Fold, costs: FeatureCosts
) -> list[Point]:
    """List the points of the models without a cloud."""
    return [
        Point.of_probabilities(
            fold,
            plan,
            subset.validation_proba,
            subset.test_proba,
            costs.price(subset.features),
            subset.nbytes,
        )
        for subset in subsets
    ]


def cloud_only_points(
    cloud_answers: CloudAnswers, plan: ValidationSplit, fold: Fold, costs: FeatureCosts
) -> list[Point]:
    """Measure the high-cost model on every instance."""
    answers_and_truths = (
        (cloud_answers.validation_answers, fold.truth_of_plan(plan)),
        (cloud_answers.test_answers, fold.test_truth),
    )
    return [Point.of_single_model(*answers_and_truths, costs.total)]


def _compute_margin(class_probabilities: NDArray[np.float64]) -> NDArray[np.float64]:
    # np.partition puts the largest value last and the second largest before it
    probabilities_by_rank = np.partition(class_probabilities, -2, axis=1)
    return probabilities_by_rank[:, -1] - probabilities_by_rank[:, -2]


def _compute_certainty(p: NDArray[np.float64]) -> NDArray[np.float64]:
    # 1 + sum p log p / log M for M classes; xlogy(0, 0) is 0, but the code of Sedna fails
    return np.asarray(1 + xlogy(p, p).sum(axis=1) / np.log(p.shape[1]), np.float64)


#: Stop scores; the device answers if the score is at least a threshold.
SCORES: dict[str, Callable[[NDArray[np.float64]], NDArray[np.float64]]] = {
    "two-stage": _compute_margin,
    "sedna-cross-entropy": _compute_certainty,
    "sedna-threshold": lambda class_probabilities: class_probabilities.max(axis=1),
}


#: Number of thresholds of a stop score; the offload rates of neighbours differ by less than 2 %.
N_THRESHOLDS = 60


def two_stage_points(
    subsets: list[Subset],
    cloud_answers: CloudAnswers,
    rule: str,
    plan: ValidationSplit,
    fold: Fold,
    costs: FeatureCosts,
) -> list[Point]:
    """Measure each subset's model before the cloud at N_THRESHOLDS thresholds."""
    score, points = SCORES[rule], single_model_points(subsets, plan, fold, costs)
    validation_truth, test_truth = fold.truth_of_plan(plan), fold.test_truth
    for subset in subsets:
        validation_scores, test_scores = score(subset.validation_proba), score(subset.test_proba)
        points += cascade_points(
            validation=(validation_truth.to_answers(subset.validation_proba), validation_scores),
            test=(test_truth.to_answers(subset.test_proba), test_scores),
            cloud=(cloud_answers.validation_answers, cloud_answers.test_answers),
            truth=(validation_truth, test_truth),
            thresholds=threshold_quantiles(validation_scores, N_THRESHOLDS),
            costs=costs,
            features=subset.features,
            nbytes=subset.nbytes,
        )
    return points
