"""LightGBM models of the peers, their capacities, and a sweep over penalties.

The peers do not use this project's boosting, so that a fault in it cannot make a peer worse.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeVar

import lightgbm as lgb
import numpy as np
from numpy.typing import NDArray

from gatewise.costs import FeatureCosts
from gatewise.models.stage import Stage
from gatewise.models.trees import TreeEnsemble
from gatewise_training.data.validation_split import Rows, ValidationSplit, cross_fit
from gatewise_training.learners.boosting import link_of
from gatewise_training.operating_points.packed_size import packed_bytes

LARGE_ROWS = 5000
"""Above this number of rows, the leaves are those that are best on all features."""

LEAF_COUNTS = (255, 63, 15, 4)
"""Leaves per tree to try on large sets, in this order until the loss rises; with more than two
classes, 63 is the first."""


@dataclass(frozen=True, eq=False)
class Booster:
    """Fitted booster on some of the columns."""

    model: lgb.Booster
    columns: NDArray[np.intp]
    n_classes: int
    rounds: int

    def proba(self, x: NDArray[np.float32]) -> NDArray[np.float64]:
        """Class probabilities, shape (n, n_classes)."""
        proba = np.asarray(self.model.predict(x[:, self.columns], num_iteration=self.rounds))
        return np.column_stack([1 - proba, proba]) if self.n_classes == 2 else proba

    def used_features(self) -> NDArray[np.intp]:
        """Columns that at least one tree splits on."""
        splits = self.model.feature_importance("split", iteration=self.rounds)
        return self.columns[splits > 0]

    def gains(self) -> NDArray[np.float64]:
        """Total gain of each column in `columns`."""
        return np.asarray(self.model.feature_importance("gain", iteration=self.rounds))

    @property
    def nbytes(self) -> int:
        """Size as C99 tables in bytes."""
        trees = TreeEnsemble.from_lightgbm(self.model, num_iteration=self.rounds)
        return packed_bytes([Stage.from_model(trees, link_of(self.n_classes))])


def capacities(
    plan: ValidationSplit, n_classes: int, *, seed: int, has_noisy_labels: bool = False
) -> list[dict[str, Any]]:
    """Settings among which every peer chooses on validation rows.

    Small sets have small and medium trees, because large trees overfit them. Large sets have the
    size that is best on all features. Large sets with noisy labels have all three sizes.
    """
    small_trees = [
        {"num_leaves": 7, "learning_rate": 0.1},
        {"num_leaves": 31, "learning_rate": 0.1},
    ]
    if len(plan.fit_rows) <= LARGE_ROWS:
        return small_trees
    max_leaves, rate = (255, 0.1) if n_classes == 2 else (63, 0.15)
    if has_noisy_labels:
        return [{"num_leaves": max_leaves, "learning_rate": rate}, *small_trees]
    rows, all_columns = plan.validation_rows, np.arange(plan.x.shape[1])
    scores: list[tuple[float, dict[str, Any]]] = []
    for num_leaves in LEAF_COUNTS[LEAF_COUNTS.index(max_leaves) :]:
        settings = {"num_leaves": num_leaves, "learning_rate": rate}
        fit = booster_fit(plan, all_columns, n_classes, settings, seed=seed)
        _, validation_proba = cross_fit(plan, fit, lambda model, rows: model.proba(plan.x[rows]))
        loss = float(
            -np.log(np.maximum(validation_proba[np.arange(len(rows)), plan.y[rows]], 1e-12)).mean()
        )
        if scores and loss >= scores[-1][0]:
            break
        scores.append((loss, settings))
    return [scores[-1][1]]


def booster_fit(
    plan: ValidationSplit,
    columns: NDArray[np.intp],
    n_classes: int,
    params: Mapping[str, Any],
    *,
    seed: int,
    callback: Callable[[Any], None] | None = None,
) -> Callable[[Rows, Rows | None, int | None], Booster]:
    """Make a fit function with early stopping for :func:`.cross_fit`.

    `params` has the settings of a capacity and penalties. LightGBM calls `callback` each round.
    """
    x = np.ascontiguousarray(plan.x[:, columns])
    objective: dict[str, Any] = {"objective": "binary", "metric": "binary_logloss"}
    if n_classes > 2:
        objective = {"objective": "multiclass", "num_class": n_classes, "metric": "multi_logloss"}
        objective["max_delta_step"] = 1.5
    settings = {
        "verbosity": -1,
        "num_threads": 1,
        "seed": seed,
        "deterministic": True,
        "force_row_wise": True,
        "min_data_in_leaf": 5,
        **objective,
        **params,
    }

    def fit(rows: Rows, stopping_rows: Rows | None, rounds: int | None) -> Booster:
        dataset = lgb.Dataset(x[rows], plan.y[rows], params=settings)
        valid_sets = (
            None
            if stopping_rows is None
            else [dataset.create_valid(x[stopping_rows], plan.y[stopping_rows])]
        )
        callbacks: list[Any] = [] if callback is None else [callback]
        if stopping_rows is not None:
            callbacks.append(lgb.early_stopping(20, verbose=False))
        max_rounds = rounds or 600
        model = lgb.train(settings, dataset, max_rounds, valid_sets=valid_sets, callbacks=callbacks)
        return Booster(model, columns, n_classes, model.best_iteration or model.num_trees())

    return fit


def prices_with_group_part(costs: FeatureCosts) -> NDArray[np.float64]:
    """Own price of each feature plus an equal part of the shared price of its group."""
    sizes = np.bincount(costs.group[costs.group >= 0], minlength=len(costs.shared))
    shared = np.append(costs.shared / np.maximum(sizes, 1), 0.0)[costs.group]
    return np.asarray(costs.own + shared, np.float64)


Result = TypeVar("Result")


def sweep_penalties(
    evaluate: Callable[[float], tuple[float, Result]], low: float, high: float, n_fits: int
) -> list[Result]:
    """Fit at `n_fits` penalties; each new one halves the widest gap between the costs.

    With a fixed grid, most models would use all features or no feature. `evaluate` returns the cost
    and the result for a penalty. The results are sorted by penalty.
    """
    cost_and_results = {penalty: evaluate(penalty) for penalty in (low, high)}
    while len(cost_and_results) < n_fits:
        penalties = sorted(cost_and_results)
        gaps = [
            abs(
                math.log(max(cost_and_results[lower][0], 1e-9))
                - math.log(max(cost_and_results[higher][0], 1e-9))
            )
            if higher > 1.01 * lower
            else 0.0
            for lower, higher in pairwise(penalties)
        ]
        widest = int(np.argmax(gaps))
        if gaps[widest] < 0.02:
            break
        new_penalty = math.sqrt(penalties[widest] * penalties[widest + 1])
        cost_and_results[new_penalty] = evaluate(new_penalty)
    return [cost_and_results[penalty][1] for penalty in sorted(cost_and_results)]
