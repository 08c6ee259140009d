"""Peer that fits random forests with entropy splits, the baseline for cost-aware growth.

The trees ignore feature costs. Their depth and number bound the features that an instance acquires.
The ICML 2015 paper compares with such forests of full depth.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import RandomForestClassifier

from benchmarks.comparison.record import Point
from benchmarks.data.folds import Fold
from benchmarks.data.problems import Problem
from gatewise.costs import FeatureCosts
from gatewise.models.stage import Stage
from gatewise_training.data.validation_split import Rows, ValidationSplit, cross_fit
from gatewise_training.operating_points.packed_size import packed_bytes
from gatewise_training.prune.forest import Forest

#: Maximum depths, from the full depth of the paper down to a single split.
DEPTHS = (None, 12, 8, 6, 4, 3, 2, 1)
#: Numbers of trees; 40 is the number of the paper.
N_TREES = (1, 5, 15, 40)


@dataclass(frozen=True, eq=False)
class EntropyForest:
    """Forests of the first n trees of one forest, for each n in :data:`N_TREES`."""

    forests: tuple[Forest, ...]
    costs: FeatureCosts
    rounds: int = 0

    def cost_and_proba(self, rows: NDArray[np.float32]) -> NDArray[np.float64]:
        """Compute cost and class probabilities of rows, shape (n, len(N_TREES), 1 + n_classes)."""
        columns = [
            np.column_stack([forest.cost(rows, self.costs), forest.proba(rows)])
            for forest in self.forests
        ]
        return np.stack(columns, axis=1)


def limited_depth_points(
    problem: Problem, fold: Fold, plan: ValidationSplit, seed: int, n_fits: int
) -> list[Point]:
    """Fit a forest per depth; an instance pays for the features on its paths."""
    points = []
    for depth in DEPTHS[:n_fits]:
        fit = partial(_fit_forests, plan, problem.costs, depth, seed)
        model, validation_columns = cross_fit(
            plan, fit, lambda fitted_model, rows: fitted_model.cost_and_proba(plan.x[rows])
        )
        test_columns = model.cost_and_proba(fold.test[0])
        for size_number, forest in enumerate(model.forests):
            validation, test = validation_columns[:, size_number], test_columns[:, size_number]
            mean_costs = float(validation[:, 0].mean()), float(test[:, 0].mean())
            n_bytes = packed_bytes([Stage.from_model(forest.trees, "identity")])
            point = Point.of_probabilities(
                fold, plan, validation[:, 1:], test[:, 1:], mean_costs, n_bytes
            )
            points.append(point)
    return points


def _fit_forests(
    plan: ValidationSplit,
    costs: FeatureCosts,
    depth: int | None,
    seed: int,
    rows: Rows,
    _stopping_rows: Rows | None,
    _rounds: int | None,
) -> EntropyForest:
    model = RandomForestClassifier(
        max(N_TREES),
        criterion="entropy",
        max_features=None,
        max_depth=depth,
        random_state=seed,
        n_jobs=1,
    ).fit(plan.x[rows], plan.y[rows])
    forest = Forest.from_sklearn(model)
    return EntropyForest(tuple(forest.select(range(n)) for n in N_TREES), costs)
