"""Static feature subsets: single models, and cascades of one such model before the cloud.

The subsets come from backward elimination: from all features down, those of the least gain per
price go, and the model is fitted again. The cascades differ in their stop rule alone: the margin
of the two largest probabilities, and the two rules of KubeEdge Sedna, re-implemented from their
formulas (lib/sedna/algorithms/hard_example_mining): cross-entropy, ``1 + sum p log p / log M``,
and threshold, the answer's own probability.
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
    """A model on a subset of the features, and its probabilities, shape (n, n_classes)."""

    features: NDArray[np.intp]
    held: NDArray[np.float64]
    test: NDArray[np.float64]
    nbytes: int
    seconds: float  # of CPU, for the fit


@dataclass(frozen=True, eq=False)
class Cloud:
    """A high-cost model on all features: its answers, and the CPU time of the fit."""

    kind: str
    held: NDArray[Any]
    test: NDArray[Any]
    seconds: float


def subsets(
    problem: Problem, fold: Fold, plan: ValidationSplit, seed: int, fits: int
) -> list[Subset]:
    """Fit models on about `fits` nested subsets, at each capacity."""
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
    """Drop features until the rest costs at most `target`, but at least one step's worth."""
    gain = np.zeros(costs.n_features)
    gain[model.columns] = model.gains()
    left = costs.mask(model.used())
    bundles = [costs.members(k) if costs.own[k] == 0 else np.array([k]) for k in range(len(gain))]
    before = costs.price(left)
    while left.any() and (costs.price(left) > target or costs.price(left) >= before):
        worth = {}
        for k in np.flatnonzero(left):
            without = left.copy()
            without[bundles[k]] = False
            saved = costs.price(left) - costs.price(without)
            worth[int(k)] = gain[bundles[k]][left[bundles[k]]].sum() / max(saved, 1e-12)
        left[bundles[min(worth, key=lambda k: worth[k])]] = False
    return np.flatnonzero(left)


def cloud(problem: Problem, fold: Fold, plan: ValidationSplit, seed: int) -> Cloud:
    """Fit the high-cost model: the most accurate on judging rows of the project's families."""
    start = time.process_time()
    model, labels, proba, _ = train_high_cost_model(plan, problem.n_classes, seed=seed)
    validation_answers = fold.held(plan).answers(proba, labels)
    test = fold.truth.ask(model.labels, model.predict_proba, fold.test[0])
    return Cloud(model.kind, validation_answers, test, time.process_time() - start)


def single(
    found: list[Subset], plan: ValidationSplit, fold: Fold, costs: FeatureCosts
) -> list[Point]:
    """Each subset's model alone."""
    judges, truth = fold.held(plan), fold.truth
    return [
        Point.single(
            (judges.answers(s.held), judges),
            (truth.answers(s.test), truth),
            costs.price(s.features),
            s.nbytes,
        )
        for s in found
    ]


def cloud_only(f0: Cloud, plan: ValidationSplit, fold: Fold, costs: FeatureCosts) -> list[Point]:
    """The high-cost model for every instance."""
    pairs = (f0.held, fold.held(plan)), (f0.test, fold.truth)
    return [Point.single(*pairs, costs.total)]


def _margin(p: NDArray[np.float64]) -> NDArray[np.float64]:
    largest = np.partition(p, -2, axis=1)
    return largest[:, -1] - largest[:, -2]


def _cross_entropy(p: NDArray[np.float64]) -> NDArray[np.float64]:
    # xlogy(0, 0) is 0, where Sedna's own code fails
    return np.asarray(1 + xlogy(p, p).sum(axis=1) / np.log(p.shape[1]), np.float64)


SCORES: dict[str, Callable[[NDArray[np.float64]], NDArray[np.float64]]] = {
    "two-stage": _margin,
    "sedna-cross-entropy": _cross_entropy,
    "sedna-threshold": lambda p: p.max(axis=1),
}
"""Stop rules: an instance stays on the device where the score is at least a threshold."""


def two_stage(
    found: list[Subset],
    f0: Cloud,
    rule: str,
    plan: ValidationSplit,
    fold: Fold,
    costs: FeatureCosts,
    n_cuts: int = 60,
) -> list[Point]:
    """Every subset's model before the cloud, at thresholds from never to always."""
    score, points = SCORES[rule], single(found, plan, fold, costs)
    judges, truth = fold.held(plan), fold.truth
    for s in found:
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
