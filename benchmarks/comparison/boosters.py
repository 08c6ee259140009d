"""LightGBM models of the peers, their capacities, and a sweep over penalties.

The peers do not use this project's boosting, because a fault in it would make a peer worse.
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

#: Above this number of rows, the leaves are those that are best on all features.
LARGE_ROWS = 5000

#: Bound on the output of a leaf with more than two classes, as in this project's boosting. Without
#: it, Newton steps of a rare class reach 691 on Forest.
MAX_STEP = 1.5

#: Rounds without a smaller loss after which a fit stops.
PATIENCE_ROUNDS = 20

#: Rounds of a fit that does not stop early, as in this project's fits.
MAX_ROUNDS = 600

#: Closer penalties are not halved again, because halving would never end where the cost jumps.
MIN_PENALTY_RATIO = 1.01

#: A sweep ends if all neighbouring costs differ by less than 2 %.
MIN_COST_GAP = 0.02

#: Leaves per tree to try on large sets, in this order until the loss rises; with more than two
#: classes, 63 is the first.
LEAF_COUNTS = (255, 63, 15, 4)


@dataclass(frozen=True, eq=False)
class Booster:
    """Fitted booster on some of the columns."""

    model: lgb.Booster
    columns: NDArray[np.intp]
    n_classes: int
    rounds: int

    def proba(self, rows: NDArray[np.float32]) -> NDArray[np.float64]:
        """Compute class probabilities, shape (n, n_classes)."""
        outputs = np.asarray(self.model.predict(rows[:, self.columns], num_iteration=self.rounds))
        # with two classes, LightGBM returns only the probability of class 1
        return np.column_stack([1 - outputs, outputs]) if self.n_classes == 2 else outputs

    def used_features(self) -> NDArray[np.intp]:
        """List the columns that at least one tree splits on."""
        splits = self.model.feature_importance("split", iteration=self.rounds)
        return self.columns[splits > 0]

    def gains(self) -> NDArray[np.float64]:
        """Read the total gain of each column in `columns`."""
        return np.asarray(self.model.feature_importance("gain", iteration=self.rounds))

    @property
    def nbytes(self) -> int:
        """Size as C99 tables in bytes."""
        trees = TreeEnsemble.from_lightgbm(self.model, num_iteration=self.rounds)
        return packed_bytes([Stage.from_model(trees, link_of(self.n_classes))])


def capacities(
    plan: ValidationSplit, n_classes: int, *, seed: int, has_noisy_labels: bool = False
) -> list[dict[str, Any]]:
    """List the settings among which every peer chooses on validation rows.

    Small sets have small and medium trees, because large trees overfit them. Large sets have the
    size that is best on all features. Large sets with noisy labels have all three sizes.
    """
    small_trees = [
        {"num_leaves": 7, "learning_rate": 0.1},
        {"num_leaves": 31, "learning_rate": 0.1},
    ]
    if len(plan.fit_rows) <= LARGE_ROWS:
        return small_trees
    # a round has one tree per class, so many classes need smaller trees and fewer rounds
    max_leaves, learning_rate = (255, 0.1) if n_classes == 2 else (63, 0.15)
    if has_noisy_labels:
        return [{"num_leaves": max_leaves, "learning_rate": learning_rate}, *small_trees]
    validation_rows, all_columns = plan.validation_rows, np.arange(plan.x.shape[1])
    best_settings: dict[str, Any] = {}
    smallest_loss = math.inf
    for num_leaves in LEAF_COUNTS[LEAF_COUNTS.index(max_leaves) :]:
        settings = {"num_leaves": num_leaves, "learning_rate": learning_rate}
        fit = booster_fit(plan, all_columns, n_classes, settings, seed=seed)
        _, validation_proba = cross_fit(plan, fit, lambda model, rows: model.proba(plan.x[rows]))
        # mean of -log p(true class), with p at least 1e-12 because log 0 is infinite
        true_proba = validation_proba[np.arange(len(validation_rows)), plan.y[validation_rows]]
        loss = float(-np.log(np.maximum(true_proba, 1e-12)).mean())
        if loss >= smallest_loss:
            break
        best_settings = settings
        smallest_loss = loss
    return [best_settings]


def booster_fit(
    plan: ValidationSplit,
    columns: NDArray[np.intp],
    n_classes: int,
    capacity: Mapping[str, Any],
    *,
    seed: int,
    callback: Callable[[Any], None] | None = None,
) -> Callable[[Rows, Rows | None, int | None], Booster]:
    """Make a fit function with early stopping for :func:`.cross_fit`.

    `capacity` has the size of the trees, the learning rate and penalties. LightGBM calls `callback`
    each round.
    """
    features = np.ascontiguousarray(plan.x[:, columns])
    objective: dict[str, Any] = {"objective": "binary", "metric": "binary_logloss"}
    if n_classes > 2:
        objective = {"objective": "multiclass", "num_class": n_classes, "metric": "multi_logloss"}
        objective["max_delta_step"] = MAX_STEP
    settings = {
        "verbosity": -1,
        "num_threads": 1,
        "seed": seed,
        # without these, LightGBM chooses the faster layout by a measurement
        "deterministic": True,
        "force_row_wise": True,
        "min_data_in_leaf": 5,
        **objective,
        **capacity,
    }

    def fit(rows: Rows, stopping_rows: Rows | None, rounds: int | None) -> Booster:
        dataset = lgb.Dataset(features[rows], plan.y[rows], params=settings)
        valid_sets = (
            None
            if stopping_rows is None
            else [dataset.create_valid(features[stopping_rows], plan.y[stopping_rows])]
        )
        callbacks: list[Any] = [] if callback is None else [callback]
        if stopping_rows is not None:
            callbacks.append(lgb.early_stopping(PATIENCE_ROUNDS, verbose=False))
        max_rounds = rounds or MAX_ROUNDS
        model = lgb.train(settings, dataset, max_rounds, valid_sets=valid_sets, callbacks=callbacks)
        return Booster(model, columns, n_classes, model.best_iteration or model.num_trees())

    return fit


def prices_with_group_part(costs: FeatureCosts) -> NDArray[np.float64]:
    """Add to the own price of each feature an equal part of the shared price of its group."""
    group_sizes = np.bincount(costs.group[costs.group >= 0], minlength=len(costs.shared))
    # the appended 0 is that of group -1, which has the features without a group
    shared_parts = np.append(costs.shared / np.maximum(group_sizes, 1), 0.0)[costs.group]
    return np.asarray(costs.own + shared_parts, np.float64)


Result = TypeVar("Result")


def sweep_penalties(
    evaluate: Callable[[float], tuple[float, Result]], low: float, high: float, n_fits: int
) -> list[Result]:
    """Fit at `n_fits` penalties; each new one halves the widest gap between the costs.

    With a fixed grid, most models would use all features or no feature. `evaluate` returns the cost
    and the result for a penalty. The results are sorted by penalty.
    """
    results = {penalty: evaluate(penalty) for penalty in (low, high)}

    def log_cost(penalty: float) -> float:
        return math.log(max(results[penalty][0], 1e-9))  # a model without features costs 0

    while len(results) < n_fits:
        penalties = sorted(results)
        gaps = [
            abs(log_cost(lower) - log_cost(higher)) if higher > MIN_PENALTY_RATIO * lower else 0.0
            for lower, higher in pairwise(penalties)
        ]
        widest_index = int(np.argmax(gaps))
        if gaps[widest_index] < MIN_COST_GAP:
            break
        # the geometric mean, because penalties span several orders of magnitude
        new_penalty = math.sqrt(penalties[widest_index] * penalties[widest_index + 1])
        results[new_penalty] = evaluate(new_penalty)
    return [results[penalty][1] for penalty in sorted(results)]
