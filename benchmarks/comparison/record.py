"""Operating points of a method, measured on validation and test rows."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.data.folds import Fold, Truth
from gatewise.costs import FeatureCosts

BYTE_BOUNDS = {"1mb": 2**20, "64kb": 2**16, "8kb": 2**13}
"""Bounds on the bytes of models, by the suffix of the methods that are fitted within them."""

COLUMNS = (
    "val_accuracy",
    "val_cost",
    "accuracy",
    "cost",
    "cost_paper",
    "offload_rate",
    "nbytes",
)


@dataclass(frozen=True)
class Point:
    """Operating point with its figures on validation and test rows.

    Costs are means per instance. The accuracy of a ranking is AP@5.
    """

    val_accuracy: float
    val_cost: float
    accuracy: float
    cost: float  # an offloaded instance pays for the features of device and cloud
    cost_paper: float  # an offloaded instance pays only for the features of the cloud
    offload_rate: float = 0.0
    nbytes: int = 0  # size of the models on the device as C99 tables

    @classmethod
    def single(
        cls,
        held: tuple[NDArray[Any], Truth],
        test: tuple[NDArray[Any], Truth],
        cost: float | tuple[float, float],
        nbytes: int = 0,
    ) -> Point:
        """Point of a single model.

        `held` and `test` are (answers, truth) on validation and test rows. Answers are labels or,
        for a ranking, probabilities of relevance.
        """
        val_cost, test_cost = cost if isinstance(cost, tuple) else (cost, cost)
        scores = [truth.score(answers) for answers, truth in (held, test)]
        return cls(
            val_accuracy=scores[0],
            val_cost=val_cost,
            accuracy=scores[1],
            cost=test_cost,
            cost_paper=test_cost,
            nbytes=nbytes,
        )


def quantiles(scores: NDArray[Any], n: int) -> list[float]:
    """Thresholds midway between quantiles of a score, from +inf (never stop) to -inf (always)."""
    distinct = np.unique(scores)
    midpoints = (distinct[1:] + distinct[:-1]) / 2
    numbers = np.linspace(0, len(midpoints) - 1, n if len(midpoints) else 0).astype(int)
    return [np.inf, *midpoints[np.unique(numbers)].tolist(), -np.inf]


def cascade_points(
    held: tuple[NDArray[Any], NDArray[Any]],
    test: tuple[NDArray[Any], NDArray[Any]],
    cloud: tuple[NDArray[Any], NDArray[Any]],
    truth: tuple[Truth, Truth],
    thresholds: Iterable[float],
    costs: FeatureCosts,
    features: NDArray[np.intp],
    nbytes: int,
) -> list[Point]:
    """Points of a low-cost model and a cloud that needs all features, one per threshold.

    `held` and `test` are the answers and stop scores of the low-cost model on validation and test
    rows. The low-cost model answers if its score is at least the threshold. `cloud` and `truth` are
    pairs for the same two sets of rows.
    """
    price = costs.price(features)
    points = []
    for threshold in thresholds:
        figures: list[float] = []
        rate = 0.0
        for part, (answers, score) in enumerate((held, test)):
            is_offloaded = ~(score >= threshold)
            answer = np.where(is_offloaded, cloud[part], answers)
            rate = float(is_offloaded.mean())
            figures += [truth[part].score(answer), price + rate * (costs.total - price)]
        paper = (1 - rate) * price + rate * costs.total
        points.append(
            Point(
                val_accuracy=figures[0],
                val_cost=figures[1],
                accuracy=figures[2],
                cost=figures[3],
                cost_paper=paper,
                offload_rate=rate,
                nbytes=nbytes,
            )
        )
    return points


def finished(points: Sequence[Point], fold: Fold) -> list[Point]:
    """Keep the points on the Pareto front of validation cost and accuracy, sorted by cost.

    The front includes the most frequent class at no cost. Points on the front of each bound of
    :data:`BYTE_BOUNDS` are kept also.
    """
    frequent_class = np.array(np.bincount(fold.train[1]).argmax())
    pool = [Point.single((frequent_class, fold.judges), (frequent_class, fold.truth), 0.0), *points]
    points_by_key: dict[Point, None] = {}
    for bound in (math.inf, *BYTE_BOUNDS.values()):
        best = -1.0
        for point in sorted(pool, key=lambda p: (p.val_cost, -p.val_accuracy)):
            if point.nbytes <= bound and point.val_accuracy > best + 1e-12:
                best = point.val_accuracy
                points_by_key[point] = None
    return sorted(points_by_key, key=lambda p: (p.val_cost, p.val_accuracy))
