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
from benchmarks.comparison.record import Point, cascade_points, quantiles
from benchmarks.data.folds import Fold
from benchmarks.data.problems import Problem
from gatewise.costs import FeatureCosts
from gatewise_training.data.validation_split import ValidationSplit, cross_fit
from gatewise_training.learners.high_cost_training import train_high_cost_model


@dataclass(frozen=True, eq=False)
class Subset:
    """Model on a subset of features, with probabilities of shape (n, n_classes)."""

    features: NDArray[np.intp]
    held: NDArray[np.float64]
    test: NDArray[np.float64]
    nbytes: int
    seconds: float  # CPU time of the fit


@dataclass(frozen=True, eq=False)
class Cloud:
    """Answers of a high-cost model on all features, and the CPU time of its fit."""

    kind: str
    held: NDArray[Any]
    test: NDArray[Any]
    seconds: float


def subsets(
    problem: Problem, fold: Fold, plan: ValidationSplit, seed: int, fits: int
) -> list[Subset]:
    """Fit models on about `fits` nested subsets for each capacity."""
    subset_fits = []
    choices = capacities(plan, problem.n_classes, seed=seed, noisy=problem.noisy)
    for capacity in choices:
        columns = np.arange(problem.costs.n_features)
        sizes = np.geomspace(problem.costs.total, problem.cheapest, fits)
        for target in [*sizes[1:].tolist(), 0.0]:
            start = time.process_time()
            fit = booster_fit(plan, columns, problem.n_classes, capacity, seed=seed)
            model, validation_proba = cross_fit(plan, fit, lambda m, rows: m.proba(plan.x[rows]))
            test = model.proba(fold.test[0])
            seconds = time.process_time() - start
            subset_fits.append(Subset(model.used(), validation_proba, test, model.nbytes, seconds))
            columns = _eliminate(model, problem.costs, target)
            if not len(columns):
                break
    return subset_fits


def _eliminate(model: Booster, costs: FeatureCosts, target: float) -> NDArray[np.intp]:
    """Remove features until the price falls and is at most `target`."""
    gain = np.zeros(costs.n_features)
    gain[model.columns] = model.gains()
    remaining = costs.mask(model.used())
    bundles = [costs.members(k) if costs.own[k] == 0 else np.array([k]) for k in range(len(gain))]
    initial_price = costs.price(remaining)
    while remaining.any() and (
        costs.price(remaining) > target or costs.price(remaining) >= initial_price
    ):
        worth = {}
        for k in np.flatnonzero(remaining):
            without = remaining.copy()
            without[bundles[k]] = False
            saved = costs.price(remaining) - costs.price(without)
            worth[int(k)] = gain[bundles[k]][remaining[bundles[k]]].sum() / max(saved, 1e-12)
        remaining[bundles[min(worth, key=lambda k: worth[k])]] = False
    return np.flatnonzero(remaining)


def cloud(problem: Problem, fold: Fold, plan: ValidationSplit, seed: int) -> Cloud:
    """Fit the high-cost model, the most accurate of the library's families on validation rows."""
    start = time.process_time()
    model, labels, proba, _ = train_high_cost_model(plan, problem.n_classes, seed=seed)
    validation_answers = fold.held(plan).answers(proba, labels)
    test = fold.truth.ask(model.labels, model.predict_proba, fold.test[0])
    return Cloud(model.kind, validation_answers, test, time.process_time() - start)


def single(
    fitted_subsets: list[Subset], plan: ValidationSplit, fold: Fold, costs: FeatureCosts
) -> list[Point]:
    """Points of the models without a cloud."""
    judges, truth = fold.held(plan), fold.truth
    return [
        Point.single(
            (judges.answers(s.held), judges),
            (truth.answers(s.test), truth),
            costs.price(s.features),
            s.nbytes,
        )
        for s in fitted_subsets
    ]


def cloud_only(f0: Cloud, plan: ValidationSplit, fold: Fold, costs: FeatureCosts) -> list[Point]:
    """Point of the high-cost model for every instance."""
    pairs = (f0.held, fold.held(plan)), (f0.test, fold.truth)
    return [Point.single(*pairs, costs.total)]


def _margin(p: NDArray[np.float64]) -> NDArray[np.float64]:
    largest = np.partition(p, -2, axis=1)
    return largest[:, -1] - largest[:, -2]


def _cross_entropy(p: NDArray[np.float64]) -> NDArray[np.float64]:
    # xlogy(0, 0) is 0; the code of Sedna fails for p = 0
    return np.asarray(1 + xlogy(p, p).sum(axis=1) / np.log(p.shape[1]), np.float64)


SCORES: dict[str, Callable[[NDArray[np.float64]], NDArray[np.float64]]] = {
    "two-stage": _margin,
    "sedna-cross-entropy": _cross_entropy,
    "sedna-threshold": lambda p: p.max(axis=1),
}
"""Stop scores; the device answers if the score is at least a threshold."""


def two_stage(
    fitted_subsets: list[Subset],
    f0: Cloud,
    rule: str,
    plan: ValidationSplit,
    fold: Fold,
    costs: FeatureCosts,
    n_cuts: int = 60,
) -> list[Point]:
    """Points of each subset's model before the cloud, for a range of thresholds."""
    score, points = SCORES[rule], single(fitted_subsets, plan, fold, costs)
    judges, truth = fold.held(plan), fold.truth
    for s in fitted_subsets:
        held, test = score(s.held), score(s.test)
        points += cascade_points(
            held=(judges.answers(s.held), held),
            test=(truth.answers(s.test), test),
            cloud=(f0.held, f0.test),
            truth=(judges, truth),
            thresholds=quantiles(held, n_cuts),
            costs=costs,
            features=s.features,
            nbytes=s.nbytes,
        )
    return points
