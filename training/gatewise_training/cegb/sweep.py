"""Search over penalties: one fit for each penalty, scored on rows that the fit has not seen.

Without the user's own penalties, the first fits are spread so that their costs cover the range from
one feature to the cost of the unpenalised model: the next penalty always goes into the widest gap,
on a log scale. The last fits close in on the budget, or on the loss that is allowed. The first
rounds of each fit are also models: they are cheaper and are scored in the same way.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import joblib
import numpy as np
from numpy.typing import NDArray

from gatewise.acquisition import Acquired, Acquisition
from gatewise.console import Progress
from gatewise.models.stage import Stage
from gatewise.models.trees import TreeEnsemble
from gatewise_training.cegb.growth import TreeGrowth, constant, grow
from gatewise_training.cegb.objectives import Target
from gatewise_training.cegb.penalties import Charge, SplitPrices, check_lazy_size
from gatewise_training.cegb.penalty_search import FIRST, between, in_widest_gap
from gatewise_training.data.parallel_fits import parallel_results
from gatewise_training.data.row_splitter import RowSplitter
from gatewise_training.data.validation_split import Rows
from gatewise_training.learners.growth_settings import first_rounds
from gatewise_training.operating_points.group_losses import loss_bounds

CLOSING_FITS = 4
"""Fits of a search that close in on its goal."""

NEAR_BUDGET = 0.97
"""Share of the budget from which on a cost is near enough."""

Folds = Sequence[tuple[Rows, Rows]]


@dataclass(frozen=True, eq=False)
class Fitted:
    """One model of a penalty, and its outputs and score on the validation rows."""

    penalty: float  # 0 of the unpenalised model, infinity of the constant one
    stage: Stage
    outputs: NDArray[np.float32]  # (n_validation, n_outputs), out of fold
    # (n_features,): features of the model; or (n_validation, n_features): features that the models
    # of the outputs acquired for each row
    acquired: Acquired
    cost: float  # mean feature cost over the validation rows
    # (n_validation,): price of the splits of each row, and the coupled prices
    evaluation_by_row: NDArray[np.float64]
    evaluation: float  # mean of these prices
    merits: NDArray[np.float64]  # (n_validation,) or (n_queries,); the weighted mean is the score
    weights: NDArray[np.float64]  # of the shape of `merits`

    @property
    def score(self) -> float:
        """Accuracy, R² or mean Average Precision@5."""
        return float(np.average(self.merits, weights=self.weights))

    def error_against(self, other: Fitted, groups: NDArray[np.int64] | None = None) -> float:
        """Standard error of a difference of scores, paired by row; larger for new `groups`."""
        # standard error of a weighted mean: sqrt(sum (w_i / sum w)^2 (d_i - mean d)^2)
        difference = self.merits - other.merits
        share = self.weights / self.weights.sum()
        residuals = share * (difference - np.sum(share * difference))
        error = float(np.sqrt(np.sum(residuals**2)))
        if groups is None:
            return error
        rows = RowSplitter(len(groups), groups)
        weights = len(difference) * share
        mean = float(np.sum(share * difference))
        losses = rows.group_sums(-weights * difference)
        variance = float(np.sum(share * (difference - mean) ** 2))
        bound = float(loss_bounds(losses, rows.group_sums(weights), variance))
        return max(error, bound + mean)


class Model(NamedTuple):
    """Trees of a fit, and its number of rounds."""

    trees: TreeEnsemble
    n_rounds: int


@dataclass(frozen=True, eq=False)
class Task:
    """The fit of one penalty on some of the rows, and its score on others."""

    x: NDArray[np.float32]  # (n, n_features)
    target: Target  # of the same rows
    prices: SplitPrices
    growth: TreeGrowth
    prefixes: Sequence[float]  # shares of the rounds, of which 1 is the last
    seed: int

    def fit(
        self,
        penalty: float,
        rows: Rows,
        validation_rows: Rows | None,
        rounds: int | None = None,
    ) -> Model:
        """Fit a model to rows; the loss on `validation_rows`, or `rounds`, ends the fit."""
        target = self.target.take(rows)
        if math.isinf(penalty) or rounds == 0:
            return Model(constant(target, self.x.shape[1]), 0)
        x = np.ascontiguousarray(self.x[rows])
        charge = Charge(self.prices, penalty, x)
        validation = None
        if validation_rows is not None:
            validation = (self.x[validation_rows], self.target.take(validation_rows))
        return Model(
            *grow(
                x, target, self.growth, charge, validation=validation, rounds=rounds, seed=self.seed
            )
        )

    def score_rounds(
        self,
        penalty: float,
        final: Model,
        folds: Sequence[Model],
        validation_rows: Sequence[Rows],
    ) -> list[Fitted]:
        """Score the final model and its first rounds, the whole model last."""
        fits = []
        last_size = -1
        for share in self.prefixes:
            stage = self._stage(first_rounds(final.trees, share))
            if stage.n_trees == last_size:
                continue
            last_size = stage.n_trees
            fold_stages = [stage]
            if len(folds) > 1:
                fold_stages = [self._stage(first_rounds(fold.trees, share)) for fold in folds]
            fits.append(self.score(penalty, stage, fold_stages, validation_rows))
        return fits

    def score(
        self,
        penalty: float,
        stage: Stage,
        folds: Sequence[Stage],
        validation_rows: Sequence[Rows],
    ) -> Fitted:
        """Score a stage by the outputs of the folds' stages on their validation rows."""
        fold_x = [np.ascontiguousarray(self.x[rows]) for rows in validation_rows]
        pairs = list(zip(folds, fold_x, strict=True))
        outputs = np.concatenate([fold.margins(x) for fold, x in pairs])
        target = self.target.take(np.concatenate(validation_rows))
        costs = self.prices.costs
        acquired = stage.feature_mask(self.x.shape[1])
        if stage.acquisition == "node":
            acquired = np.concatenate([fold.acquired(x) for fold, x in pairs])
            cost = float(np.average(costs.per_instance(acquired), weights=target.weight))
        else:
            cost = costs.price(acquired)
        evaluation = np.zeros(len(outputs))
        if np.any(self.prices.split):
            evaluation = np.concatenate([evaluation_cost(s, x, self.prices) for s, x in pairs])
        evaluation += self.prices.coupled_price(stage.features)
        merits, weights = target.merits(outputs)
        return Fitted(
            penalty=penalty,
            stage=stage,
            outputs=outputs,
            acquired=acquired,
            cost=cost,
            evaluation_by_row=evaluation,
            evaluation=float(np.average(evaluation, weights=target.weight)),
            merits=merits,
            weights=weights,
        )

    def _stage(self, trees: TreeEnsemble) -> Stage:
        acquisition: Acquisition = "node" if self.prices.accounting == "lazy" else "stage"
        return Stage.from_model(trees, self.target.link, acquisition=acquisition)


def evaluation_cost(
    stage: Stage, x: NDArray[np.float32], prices: SplitPrices
) -> NDArray[np.float64]:
    """Price of the splits that each row passes in a stage, shape (n,)."""
    assert isinstance(stage.model, TreeEnsemble)
    return prices.take(stage.features).evaluation(stage.model, x[:, stage.features])


@dataclass(frozen=True)
class Goal:
    """The goal that a search closes in on."""

    budget: float | None  # mean cost per row
    max_loss: float  # without a budget: allowed loss against the best score
    counts_splits: bool = False  # whether a budget counts splits and coupled prices in addition

    def cost(self, fit: Fitted) -> float:
        """Cost of a fit that the budget bounds."""
        return fit.cost + self.counts_splits * fit.evaluation

    def next_penalty(self, fits: Mapping[float, Fitted]) -> float | None:
        """Penalty between the neighbours that the goal lies between; None if one is near enough."""
        if self.budget is not None:
            limit = self.budget
            if any(NEAR_BUDGET * limit <= self.cost(fit) <= limit for fit in fits.values()):
                return None
        crossings = [
            (a, b)
            for a, b in pairwise(sorted(fits))
            if self._may_cost_less(fits[a], fits) and not self._may_cost_less(fits[b], fits)
        ]
        return between(*crossings[-1], fits) if crossings else None

    def _may_cost_less(self, fit: Fitted, fits: Mapping[float, Fitted]) -> bool:
        if self.budget is None:
            return fit.score >= fits[0.0].score - self.max_loss
        return self.cost(fit) > self.budget


def sweep_penalties(
    task: Task,
    folds: Folds,
    *,
    penalties: Sequence[float] | None,
    n_penalties: int,
    goal: Goal,
    report: Progress,
) -> list[Fitted]:
    """Fit the constant model and all penalties, given or searched, from high to 0."""
    if task.prices.accounting == "lazy":
        check_lazy_size(*task.x.shape)
    first_penalties = FIRST[: n_penalties - 1] if penalties is None else penalties
    fits = _fit_all(task, folds, sorted({0.0, math.inf, *first_penalties}))
    while penalties is None and len(fits) <= n_penalties and fits[0.0][-1].cost > 0:
        report(len(fits) - 1, n_penalties, "sweeping the penalty")
        whole_models = {p: rounds[-1] for p, rounds in fits.items()}
        n_left = n_penalties + 1 - len(fits)
        penalty = None
        if n_left <= min(CLOSING_FITS, n_penalties // 2):
            penalty = goal.next_penalty(whole_models)
        if penalty is None:
            costs = {p: fit.cost for p, fit in whole_models.items()}
            penalty = in_widest_gap(costs, task.prices.costs)
        if penalty is None:
            break
        fits |= _fit_all(task, folds, [penalty])
    return [fit for p in sorted(fits, reverse=True) for fit in fits[p]]


def _fit_all(task: Task, folds: Folds, penalties: Sequence[float]) -> dict[float, list[Fitted]]:
    """Fit each penalty on every fold; with several folds, fit its final model on all rows."""
    fit = joblib.delayed(Task.fit)
    n_folds = len(folds)
    fold_fits = (fit(p, *fold) for p in penalties for fold in folds)
    models = list(parallel_results(fold_fits, shared=task))
    by_penalty = [models[i * n_folds : (i + 1) * n_folds] for i in range(len(penalties))]
    final_models = [fold_models[0] for fold_models in by_penalty]
    if n_folds > 1:
        all_rows = np.arange(len(task.x))
        rounds = [round(float(np.mean([m.n_rounds for m in models]))) for models in by_penalty]
        final_fits = (
            fit(p, all_rows, None, n_rounds) for p, n_rounds in zip(penalties, rounds, strict=True)
        )
        final_models = list(parallel_results(final_fits, shared=task))
    validation_rows = [rows for _, rows in folds]
    return {
        p: task.score_rounds(p, model, fold_models, validation_rows)
        for p, model, fold_models in zip(penalties, final_models, by_penalty, strict=True)
    }
