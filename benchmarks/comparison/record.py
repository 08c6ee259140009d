"""Operating points of a method, each measured on validation and on test rows."""

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
"""Room for models of the devices that points are shown for, too; a method of ours that was fitted
for it has this name behind its own."""

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
    """One operating point, chosen on validation rows and reported on test rows.

    Costs are means per instance; accuracy of a ranking is AP@5.
    """

    val_accuracy: float
    val_cost: float
    accuracy: float
    cost: float  # an offloaded instance pays the union of device's and cloud's features
    cost_paper: float  # it pays the cloud's features only
    offload_rate: float = 0.0
    nbytes: int = 0  # of the device's models as tables of C99

    @classmethod
    def single(
        cls,
        held: tuple[NDArray[Any], Truth],
        test: tuple[NDArray[Any], Truth],
        cost: float | tuple[float, float],
        nbytes: int = 0,
    ) -> Point:
        """Make the point of one model: (answers, truth) on held and test rows, and its cost.

        The answers are labels or, for a ranking, probabilities of relevance.
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
    """Thresholds at quantiles of a score, from never to always; midway between scores."""
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
    """Points of a low-cost model at thresholds, and a cloud that reads every feature.

    `held` and `test` are the low-cost model's answers and stop scores; it answers where the score
    is at least the threshold. `cloud` and `truth` are of held rows, then of test rows.
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
    """Add the free answer (the commonest class to all), and keep what validation may choose.

    Those are the points that no other beats in validation's cost and accuracy, among all and
    among those of bounded size; sorted by validation's cost.
    """
    common = np.array(np.bincount(fold.train[1]).argmax())
    pool = [Point.single((common, fold.judges), (common, fold.truth), 0.0), *points]
    points_by_key: dict[Point, None] = {}
    for bound in (math.inf, *BYTE_BOUNDS.values()):
        best = -1.0
        for point in sorted(pool, key=lambda p: (p.val_cost, -p.val_accuracy)):
            if point.nbytes <= bound and point.val_accuracy > best + 1e-12:
                best = point.val_accuracy
                points_by_key[point] = None
    return sorted(points_by_key, key=lambda p: (p.val_cost, p.val_accuracy))
