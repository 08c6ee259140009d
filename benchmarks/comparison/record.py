"""Operating points of a method, measured on validation and test rows."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.data.folds import Fold, Truth
from gatewise.costs import FeatureCosts
from gatewise_training.data.validation_split import ValidationSplit

#: Bounds on the bytes of models, by the suffix of the methods that are fitted within them.
BYTE_BOUNDS = {"1mb": 2**20, "64kb": 2**16, "8kb": 2**13}


@dataclass(frozen=True)
class Point:
    """Operating point with its figures on validation and test rows.

    Costs are means per instance. An offloaded instance pays for the features of device and cloud.
    The accuracy of a ranking is AP@5.
    """

    val_accuracy: float
    val_cost: float
    accuracy: float
    cost: float
    offload_rate: float = 0.0
    nbytes: int = 0  # size of the models on the device as C99 tables

    @classmethod
    def of_single_model(
        cls,
        validation: tuple[NDArray[Any], Truth],
        test: tuple[NDArray[Any], Truth],
        cost: float | tuple[float, float],
        nbytes: int = 0,
    ) -> Point:
        """Make the point of a single model.

        `validation` and `test` are (answers, truth) on validation and test rows. Answers are labels
        or, for a ranking, probabilities of relevance.
        """
        val_cost, test_cost = cost if isinstance(cost, tuple) else (cost, cost)
        accuracies = [truth.score(answers) for answers, truth in (validation, test)]
        return cls(
            val_accuracy=accuracies[0],
            val_cost=val_cost,
            accuracy=accuracies[1],
            cost=test_cost,
            nbytes=nbytes,
        )

    @classmethod
    def of_probabilities(
        cls,
        fold: Fold,
        plan: ValidationSplit,
        validation_proba: NDArray[Any],
        test_proba: NDArray[Any],
        cost: float | tuple[float, float],
        nbytes: int = 0,
    ) -> Point:
        """Make the point of a single model from class probabilities, shape (n, n_classes)."""
        validation_truth = fold.truth_of_plan(plan)
        answers_and_truths = (
            (validation_truth.to_answers(validation_proba), validation_truth),
            (fold.test_truth.to_answers(test_proba), fold.test_truth),
        )
        return cls.of_single_model(*answers_and_truths, cost, nbytes)


#: Fields of a point in the cached results, in this order.
COLUMNS = tuple(field.name for field in fields(Point))


def threshold_quantiles(scores: NDArray[Any], n_thresholds: int) -> list[float]:
    """Compute thresholds between quantiles of a score, from +inf (never stop) to -inf (always)."""
    distinct_scores = np.unique(scores)
    midpoints = (distinct_scores[1:] + distinct_scores[:-1]) / 2
    midpoint_indices = np.linspace(
        0, len(midpoints) - 1, n_thresholds if len(midpoints) else 0
    ).astype(int)
    return [np.inf, *midpoints[np.unique(midpoint_indices)].tolist(), -np.inf]


def cascade_points(
    validation: tuple[NDArray[Any], NDArray[Any]],
    test: tuple[NDArray[Any], NDArray[Any]],
    cloud: tuple[NDArray[Any], NDArray[Any]],
    truth: tuple[Truth, Truth],
    thresholds: Iterable[float],
    costs: FeatureCosts,
    features: NDArray[np.intp],
    nbytes: int,
) -> list[Point]:
    """Measure a low-cost model before a cloud that needs all features, at each threshold.

    `validation` and `test` are the answers and stop scores of the low-cost model on validation and
    test rows. The low-cost model answers if its score is at least the threshold. `cloud` and
    `truth` are pairs for the same two sets of rows.
    """
    price = costs.price(features)
    points = []
    for threshold in thresholds:
        # a row with the score NaN is offloaded, so the condition is not "score < threshold"
        offload_masks = [~(score >= threshold) for _, score in (validation, test)]
        accuracies = [
            row_truth.score(np.where(is_offloaded, cloud_answers, answers))
            for row_truth, is_offloaded, cloud_answers, (answers, _) in zip(
                truth, offload_masks, cloud, (validation, test), strict=True
            )
        ]
        val_rate, rate = (float(is_offloaded.mean()) for is_offloaded in offload_masks)
        points.append(
            Point(
                val_accuracy=accuracies[0],
                val_cost=price + val_rate * (costs.total - price),
                accuracy=accuracies[1],
                cost=price + rate * (costs.total - price),
                offload_rate=rate,
                nbytes=nbytes,
            )
        )
    return points


def pareto_points(points: Sequence[Point], fold: Fold) -> list[Point]:
    """Keep the points on the Pareto front of validation cost and accuracy, sorted by cost.

    The most frequent class, which costs nothing, is a point too. Each bound of :data:`BYTE_BOUNDS`
    has its own front, and all its points are kept.
    """
    frequent_class = np.array(np.bincount(fold.train[1]).argmax())
    candidates = [
        Point.of_single_model(
            (frequent_class, fold.validation_truth), (frequent_class, fold.test_truth), 0.0
        ),
        *points,
    ]
    front: dict[Point, None] = {}
    for bound in (math.inf, *BYTE_BOUNDS.values()):
        best_accuracy = -1.0
        for point in sorted(candidates, key=lambda point: (point.val_cost, -point.val_accuracy)):
            if point.nbytes <= bound and point.val_accuracy > best_accuracy + 1e-12:
                best_accuracy = point.val_accuracy
                front[point] = None
    return sorted(front, key=lambda point: (point.val_cost, point.val_accuracy))
