"""Peer that fits CatBoost with penalties on the first use of features.

It is a method of the comparison in :mod:`benchmarks.comparison.peers`.
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.comparison.boosters import (
    LARGE_ROWS,
    PATIENCE_ROUNDS,
    prices_with_group_part,
    sweep_penalties,
)
from benchmarks.comparison.record import Point
from benchmarks.data.folds import Fold
from benchmarks.data.problems import Problem
from gatewise.costs import FeatureCosts
from gatewise.errors import InputError
from gatewise_training.data.validation_split import Rows, ValidationSplit, cross_fit

#: Range of ``penalties_coefficient`` for prices of mean 1, from no effect to one feature.
STRENGTH_RANGE = (1e-3, 30.0)


@dataclass(frozen=True, eq=False)
class _FittedModel:
    """Fitted CatBoost model, with the attribute `rounds` that :func:`.cross_fit` reads."""

    model: Any
    rounds: int
    used_features: NDArray[np.intp]
    nbytes: int

    def predict_proba(self, rows: NDArray[np.float32]) -> NDArray[np.float64]:
        return np.asarray(self.model.predict_proba(rows), np.float64)


def catboost_points(
    problem: Problem, fold: Fold, plan: ValidationSplit, seed: int, n_fits: int
) -> list[Point]:
    """Fit single models for a range of ``penalties_coefficient``.

    CatBoost does not support groups. The penalty of a feature is its own price and an equal part of
    the shared price of its group. The reported cost counts groups.
    """
    costs = problem.costs

    def evaluate(capacity: dict[str, Any], strength: float) -> tuple[float, Point]:
        fit = _make_fit(plan, costs, capacity, strength, seed)
        model, validation_proba = cross_fit(
            plan, fit, lambda fitted_model, rows: fitted_model.predict_proba(plan.x[rows])
        )
        cost = costs.price(model.used_features)
        probabilities = validation_proba, model.predict_proba(fold.test[0])
        return cost, Point.of_probabilities(fold, plan, *probabilities, cost, model.nbytes)

    points: list[Point] = []
    for capacity in _list_capacities(
        len(plan.fit_rows), problem.n_classes, problem.has_noisy_labels
    ):
        points += sweep_penalties(partial(evaluate, capacity), *STRENGTH_RANGE, n_fits)
    return points


def _list_capacities(n_rows: int, n_classes: int, has_noisy_labels: bool) -> list[dict[str, Any]]:
    """List the settings to try by the rule of :func:`.boosters.capacities`.

    The iterations are an upper bound, because fits stop early.
    """
    small_trees = [{"depth": depth, "learning_rate": 0.1, "iterations": 400} for depth in (3, 6)]
    if n_rows <= LARGE_ROWS:
        return small_trees
    if n_classes == 2:
        large_trees = {"depth": 8, "learning_rate": 0.25, "iterations": 600}
    else:
        # a tree has an output per class, so many classes need smaller trees and fewer rounds
        large_trees = {"depth": 6, "learning_rate": 0.3, "iterations": 250, "border_count": 64}
    return [large_trees, *small_trees] if has_noisy_labels else [large_trees]


def _make_fit(
    plan: ValidationSplit, costs: FeatureCosts, capacity: dict[str, Any], strength: float, seed: int
) -> Any:
    try:
        import catboost
    except ImportError as error:
        raise InputError("the catboost peer needs catboost: pip install catboost") from error
    prices = prices_with_group_part(costs)

    # `stopping_rows` end the fit early; without them it has the given number of rounds
    def fit(rows: Rows, stopping_rows: Rows | None, rounds: int | None) -> _FittedModel:
        settings = capacity | ({} if rounds is None else {"iterations": rounds})
        model = catboost.CatBoostClassifier(
            **settings,
            # of mean 1, so that one range of strengths fits all problems
            first_feature_use_penalties=(prices / prices.mean()).tolist(),
            penalties_coefficient=strength,
            random_seed=seed,
            thread_count=1,  # processes of the benchmark share the cores
            verbose=False,
            allow_writing_files=False,
        )
        eval_set = None if stopping_rows is None else (plan.x[stopping_rows], plan.y[stopping_rows])
        patience = None if stopping_rows is None else PATIENCE_ROUNDS
        model.fit(plan.x[rows], plan.y[rows], eval_set=eval_set, early_stopping_rounds=patience)
        return _FittedModel(model, int(model.tree_count_), *_read_features_and_bytes(model))

    return fit


def _read_features_and_bytes(model: Any) -> tuple[NDArray[np.intp], int]:
    """Read the features that trees split on, and compute the size of the trees in bytes.

    All nodes in a level of an oblivious tree have the same test. A level therefore takes 8 bytes,
    for its feature (int32) and its border (float32), and a leaf takes 4 bytes.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.json"
        model.save_model(str(path), format="json")
        document = json.loads(path.read_text())
    used_features: set[int] = set()
    nbytes = 0
    # CatBoost writes null instead of an empty list
    for tree in document.get("oblivious_trees") or []:
        splits = tree["splits"] or []
        used_features |= {split["float_feature_index"] for split in splits}
        nbytes += 8 * len(splits) + 4 * len(tree["leaf_values"])
    return np.array(sorted(used_features), np.intp), nbytes
