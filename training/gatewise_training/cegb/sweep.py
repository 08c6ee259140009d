"""The search over penalties: one fit each, scored on rows that it has not seen.

Without penalties of the user's own, the first fits are spread so that their costs cover the
range from a feature to what the unpenalised model costs: the next penalty always goes into the
widest gap, on a log scale. The last fits close in on the budget, or on the loss that is allowed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import joblib
import numpy as np
from numpy.typing import NDArray

from gatewise.acquisition import Acquired, Acquisition
from gatewise.console import Progress
from gatewise.costs import FeatureCosts
from gatewise.models.stage import Stage
from gatewise.models.trees import TreeEnsemble
from gatewise_training.cascades.penalty_search import FIRST, between, in_widest_gap
from gatewise_training.cegb.growth import TreeGrowth, constant, grow
from gatewise_training.cegb.objectives import Target
from gatewise_training.cegb.penalties import Accounting, Charge, check_params
from gatewise_training.data.row_splitter import RowSplitter
from gatewise_training.data.validation_split import Rows
from gatewise_training.operating_points.group_losses import loss_bounds

CLOSING = 4
"""Fits of a search that close in on its goal."""

NEAR = 0.97
"""A cost from here to the whole budget is near enough."""


@dataclass(frozen=True, eq=False)
class Fitted:
    """The model of one penalty, and its outputs and score on the validation rows."""

    penalty: float  # 0 of the unpenalised model, infinity of the constant one
    stage: Stage
    # (n_held, n_outputs): out of fold, of models that have not seen the row
    outputs: NDArray[np.float32]
    # (n_features,) or (n_held, n_features): features of the model, the same for every row, or
    # those that the models of the outputs acquired for each
    acquired: Acquired
    cost: float  # mean over the validation rows
    # (n_held,) or (n_queries,): how good each answer is; the weighted mean is the score
    merits: NDArray[np.float64]
    weights: NDArray[np.float64]

    @property
    def score(self) -> float:
        """Accuracy, R² or mean Average Precision@5."""
        return float(np.average(self.merits, weights=self.weights))

    def error_against(self, other: Fitted, groups: NDArray[np.int64] | None = None) -> float:
        """Standard error of the difference of two scores, paired by row or query.

        With the `groups` of these, how much more new groups may lose, and never less.
        """
        gap = self.merits - other.merits
        share = self.weights / self.weights.sum()
        parts = share * (gap - np.sum(share * gap))
        error = float(np.sqrt(np.sum(parts**2)))
        if groups is None:
            return error
        rows = RowSplitter(len(groups), groups)
        weights, mean = len(gap) * share, float(np.sum(share * gap))
        lost = rows.group_sums(-weights * gap)
        variance = float(np.sum(share * (gap - mean) ** 2))
        return max(error, float(loss_bounds(lost, rows.group_sums(weights), variance)) + mean)


@dataclass(frozen=True, eq=False)
class Task:
    """The fit of one penalty on some of the rows, and its score on others."""

    x: NDArray[np.float32]  # (n, n_features)
    target: Target  # of the same rows
    costs: FeatureCosts
    growth: TreeGrowth
    accounting: Accounting
    penalty_split: float
    seed: int

    def fit(
        self, penalty: float, rows: Rows, held: Rows | None, rounds: int | None = None
    ) -> tuple[Stage, int]:
        """Fit some rows; held rows end the growth, or else `rounds` do."""
        target = self.target.take(rows)
        if math.isinf(penalty) or rounds == 0:
            return self._stage(constant(target, self.x.shape[1])), 0
        x = np.ascontiguousarray(self.x[rows])
        charge = Charge(self.costs, self.accounting, self.penalty_split, penalty, x)
        validation = None if held is None else (self.x[held], self.target.take(held))
        trees, kept = grow(
            x, target, self.growth, charge, held=validation, rounds=rounds, seed=self.seed
        )
        return self._stage(trees), kept

    def score(self, penalty: float, stage: Stage, folds: list[Stage], held: list[Rows]) -> Fitted:
        """Score the stage that is kept by the folds' stages on their held rows."""
        parts = [np.ascontiguousarray(self.x[rows]) for rows in held]
        outputs = np.concatenate([s.margins(x) for s, x in zip(folds, parts, strict=True)])
        target = self.target.take(np.concatenate(held))
        acquired = stage.at_most(self.x.shape[1])
        if stage.acquisition == "node":
            acquired = np.concatenate([s.acquired(x) for s, x in zip(folds, parts, strict=True)])
            cost = float(np.average(self.costs.per_instance(acquired), weights=target.weight))
        else:
            cost = self.costs.price(acquired)
        return Fitted(penalty, stage, outputs, acquired, cost, *target.merits(outputs))

    def _stage(self, trees: TreeEnsemble) -> Stage:
        acquisition: Acquisition = "node" if self.accounting == "lazy" else "stage"
        return Stage.from_model(trees, self.target.link, acquisition=acquisition)


def sweep_penalties(
    task: Task,
    folds: Sequence[tuple[Rows, Rows]],
    *,
    penalties: Sequence[float] | None,
    n_penalties: int,
    budget: float | None,
    max_loss: float,
    report: Progress,
) -> list[Fitted]:
    """Fit the constant model and all penalties, from high to none.

    `penalties` are the user's own, beside none; without them `n_penalties` fits, the unpenalised
    one included, close in on the `budget` or, where there is none, on `max_loss` of the best score.
    The constant model comes first, the unpenalised last.
    """
    check_params(task.growth.lightgbm_params, task.accounting, *task.x.shape)
    first = FIRST[: n_penalties - 1] if penalties is None else penalties
    found = _fit_all(task, folds, sorted({0.0, math.inf, *first}))
    while penalties is None and len(found) <= n_penalties and found[0.0].cost > 0:
        report(len(found) - 1, n_penalties, "sweeping the penalty")
        left, penalty = n_penalties + 1 - len(found), None
        if left <= min(CLOSING, n_penalties // 2):
            penalty = _towards(budget, max_loss, found)
        if penalty is None:
            penalty = in_widest_gap({p: fit.cost for p, fit in found.items()}, task.costs)
        if penalty is None:
            break
        found |= _fit_all(task, folds, [penalty])
    return [found[p] for p in sorted(found, reverse=True)]


def _fit_all(
    task: Task,
    folds: Sequence[tuple[Rows, Rows]],
    penalties: Sequence[float],
) -> dict[float, Fitted]:
    """Fit each penalty; of several folds the model that is kept is fitted on all rows."""
    fit, k = joblib.delayed(task.fit), len(folds)
    parallel = joblib.Parallel()
    fits = parallel(fit(p, *fold) for p in penalties for fold in folds)
    parts = [fits[i * k : (i + 1) * k] for i in range(len(penalties))]
    kept = [part[0] for part in parts]
    if k > 1:
        every = np.arange(len(task.x))
        rounds = [round(float(np.mean([r for _, r in part]))) for part in parts]
        kept = parallel(fit(p, every, None, r) for p, r in zip(penalties, rounds, strict=True))
    held = [rows for _, rows in folds]
    return {
        p: task.score(p, stage, [s for s, _ in part], held)
        for p, (stage, _), part in zip(penalties, kept, parts, strict=True)
    }


def _towards(budget: float | None, max_loss: float, found: Mapping[float, Fitted]) -> float | None:
    """The penalty between the two neighbours that the goal lies between; None if near enough."""
    best = found[0.0].score

    def may_cost_less(fit: Fitted) -> bool:
        return fit.score >= best - max_loss if budget is None else fit.cost > budget

    if budget is not None and any(NEAR * budget <= fit.cost <= budget for fit in found.values()):
        return None
    turns = [(a, b) for a, b in pairwise(sorted(found))
             if may_cost_less(found[a]) and not may_cost_less(found[b])]  # fmt: skip
    return between(*turns[-1], found) if turns else None
