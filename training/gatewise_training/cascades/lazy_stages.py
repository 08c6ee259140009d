"""Stages that acquire features node by node: their prices of a first use, and their fits.

The prices are found by bisection so that the mean cost of an instance grows geometrically, from
the least at which anything is acquired to 0.4 of all. Small models show what a price leads to;
the stages themselves are of the high-cost model's capacity, and each is fitted given what rows
have paid in the stages before (:mod:`gatewise_training.learners.lazy_boosting`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import joblib
import numpy as np
from numpy.typing import NDArray

from gatewise.acquisition import Acquired
from gatewise.models.stage import Stage
from gatewise_training.cascades.fit_problem import FittedStages, Problem
from gatewise_training.data.validation_split import Rows
from gatewise_training.learners.boosting import capacity, link_of
from gatewise_training.learners.lazy_boosting import LazyBooster, check_lazy, lazy_prices
from gatewise_training.learners.model_families import ROUNDS
from gatewise_training.learners.stage_bounds import Bounds

PROBE_ROWS = 20000
"""Rows of a small model that shows what a price leads to."""

PROBE_ROUNDS = 40

PROBES_A_STAGE = 3
"""Small models fitted at most to find one stage's price."""

NEAR = 1.1
"""A cost is near enough to its target if it is off by this factor at most."""

LARGEST_SHARE = 0.4
"""Mean cost that the last stage aims for, as a share of the cost of all features.

It comes out higher: a stage has more trees than the small model, and rows pay for unions.
"""

PATIENCE = 60
"""Rounds without improvement that end a stage. Trees that may acquire little improve slowly: with
20 rounds stages on Forest stop 0.7 % short of the accuracy that they reach with 60."""

FIRST_PROBES = 8
"""Small models fitted to find the price from which on anything is acquired."""

STRENGTHS = 1e-4, 4.0
"""Range of the gain that a row must bring per mean feature price."""


def fit_lazy_stages(problem: Problem, *, n_stages: int, bounds: Bounds) -> FittedStages | None:
    """Fit at most `n_stages` stages, with what they give and acquire on validation rows."""
    plan, costs = problem.plan, problem.costs
    check_lazy(len(plan.fit_rows), costs.n_features)
    prices = lazy_prices(costs)
    search = _PriceSearch(problem, bounds, prices)
    strengths = []
    for done, target in enumerate(search.targets(n_stages)):
        problem.report(done, 3 * n_stages, "choosing prices")
        strengths.append(search.strength(target))
    schedule = sorted({s for s in strengths if search.known[s] > 0 or not prices.any()})[::-1]
    fit = _StagesFit(problem, bounds, tuple(schedule), prices)
    problem.report(n_stages, 3 * n_stages, "fitting stages")
    parallel = joblib.Parallel(n_jobs=problem.n_jobs, return_as="generator")
    folds = parallel(joblib.delayed(fit.fold)(rows, unseen) for rows, unseen in plan.folds)
    fitted, rounds, outputs, acquired = zip(*folds, strict=True)
    problem.report(2 * n_stages, 3 * n_stages, "fitting stages")
    final = fitted[0]
    if len(fitted) > 1:
        final, _ = fit.run(plan.fit_rows, None, np.mean(rounds, axis=0))
    kept = [s for s, stage in enumerate(final) if stage.n_trees and bounds.admit(stage)]
    if not kept:
        return None
    return FittedStages(
        tuple(final[s] for s in kept),
        tuple(np.concatenate([of_fold[s] for of_fold in outputs]) for s in kept),
        tuple(np.concatenate([of_fold[s] for of_fold in acquired]) for s in kept),
    )


@dataclass(eq=False)
class _PriceSearch:
    """Bisection for prices of first uses; `known` maps the tried ones to mean costs."""

    problem: Problem
    bounds: Bounds
    prices: NDArray[np.float64]
    known: dict[float, float] = field(default_factory=dict)

    def targets(self, n_stages: int) -> list[float]:
        """Get the mean costs that the stages aim for."""
        costs = self.problem.costs
        most = LARGEST_SHARE * costs.total
        if most <= 0:
            return [0.0]
        least = float(costs.alone.min())
        self.strength(min(max(least, 0.02 * costs.total), most), FIRST_PROBES)
        some = min((cost for cost in self.known.values() if cost > 0), default=most)
        return [float(t) for t in np.geomspace(min(some, most), most, n_stages)]

    def strength(self, target: float, probes: int = PROBES_A_STAGE) -> float:
        """Bisect for the strength with the mean cost nearest to a target on a log scale."""
        low, high = STRENGTHS
        for strength, cost in self.known.items():
            low, high = (max(low, strength), high) if cost > target else (low, min(high, strength))
        for _ in range(probes):
            if self.known and self._gap(self._nearest(target), target) <= math.log(NEAR):
                break
            if low >= high:
                break
            middle = (low * high) ** 0.5
            self.known[middle] = self._mean_cost(middle)
            low, high = (middle, high) if self.known[middle] > target else (low, middle)
        return self._nearest(target)

    def _nearest(self, target: float) -> float:
        return min(self.known, key=lambda strength: self._gap(strength, target))

    def _gap(self, strength: float, target: float) -> float:
        return abs(math.log(max(self.known[strength], 1e-12) / max(target, 1e-12)))

    def _mean_cost(self, strength: float) -> float:
        problem, plan = self.problem, self.problem.plan
        rows = plan.fit_rows
        if len(rows) > PROBE_ROWS:
            rows = np.random.default_rng(problem.seed).choice(rows, PROBE_ROWS, replace=False)
        _, params = _growth(problem, self.bounds)
        x, weight = np.ascontiguousarray(plan.x[rows]), plan.weight[rows]
        booster = LazyBooster(
            x, plan.y[rows], problem.n_classes, weight=weight, seed=problem.seed, params=params
        )
        model, _ = booster.stage(_penalty(strength, self.prices), rounds=PROBE_ROUNDS)
        return float(np.average(problem.costs.per_instance(model.visited(x)), weights=weight))


@dataclass(frozen=True, eq=False)
class _StagesFit:
    """Settings of the stages' fits, on one fold or on all rows."""

    problem: Problem
    bounds: Bounds
    strengths: tuple[float, ...]
    prices: NDArray[np.float64]

    def fold(
        self, rows: Rows, unseen: Rows
    ) -> tuple[list[Stage], list[int], list[NDArray[np.float32]], list[Acquired]]:
        """Get the stages of one fold, and what they give and acquire on its validation rows."""
        stages, rounds = self.run(rows, unseen, None)
        x = np.ascontiguousarray(self.problem.plan.x[unseen])
        return stages, rounds, [s.margins(x) for s in stages], [s.acquired(x) for s in stages]

    def run(
        self, rows: Rows, unseen: Rows | None, rounds: NDArray[np.float64] | None
    ) -> tuple[list[Stage], list[int]]:
        """Fit a stage for each strength, perhaps without trees; `unseen` or `rounds` end it."""
        problem, plan = self.problem, self.problem.plan
        n_classes = problem.n_classes
        most_rounds, params = _growth(problem, self.bounds)
        booster = LazyBooster(
            np.ascontiguousarray(plan.x[rows]),
            plan.y[rows],
            n_classes,
            weight=plan.weight[rows],
            validation=None if unseen is None else (plan.x[unseen], *plan.truth(unseen)),
            seed=problem.seed,
            params=params,
        )
        stages, kept = [], []
        for number, strength in enumerate(self.strengths):
            most = most_rounds if rounds is None else round(float(rounds[number]))
            penalty = _penalty(strength, self.prices)
            model, grown = booster.stage(penalty, rounds=most, patience=PATIENCE)
            model = self.bounds.rounded(model)
            stages.append(Stage.from_model(model, link_of(n_classes), acquisition="node"))
            kept.append(grown)
        return stages, kept


def _growth(problem: Problem, bounds: Bounds) -> tuple[int, dict[str, Any]]:
    """Get rounds of a stage at most, and LightGBM's settings."""
    n_classes, n_columns = problem.n_classes, problem.plan.x.shape[1]
    params = bounds.with_bins(capacity(len(problem.plan.fit_rows), n_classes))
    outputs = 1 if n_classes == 2 else n_classes
    trees, leaves = bounds.tree_budget(ROUNDS * outputs, params["num_leaves"], n_columns, outputs)
    return max(1, trees // outputs), params | {"num_leaves": leaves}


def _penalty(strength: float, prices: NDArray[np.float64]) -> NDArray[np.float64]:
    mean = float(prices.mean())
    return prices * (strength / mean if mean > 0 else 0.0)
