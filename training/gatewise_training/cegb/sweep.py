"""Sweep over penalties: one fit for each penalty, scored on rows that the fit has not seen.

If the user gives no penalties, the first fits are spread so that their costs cover the range from
one feature to the cost of the unpenalised model. With a fixed list of penalties, the cheapest model
may use one feature and the next one five. The search therefore places the next penalty in the
widest gap between the costs of known models, on a log scale. The last fits search near the budget,
or near the allowed loss. The first rounds of each fit are models as well, which are cheaper and are
scored in the same way.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import joblib
import numpy as np
from numpy.typing import NDArray

from gatewise.acquisition import AcquiredMask, Acquisition
from gatewise.console import Progress
from gatewise.costs import FeatureCosts
from gatewise.models.stage import Stage
from gatewise.models.trees import TreeEnsemble
from gatewise_training.cegb.growth import GrownTrees, TreeGrowth, boost_trees, constant_model
from gatewise_training.cegb.objectives import Target
from gatewise_training.cegb.penalties import Charge, SplitPrices, check_lazy_size
from gatewise_training.data.parallel_fits import parallel_results
from gatewise_training.data.row_splitter import RowSplitter
from gatewise_training.data.validation_split import Rows
from gatewise_training.learners.growth_settings import first_rounds
from gatewise_training.operating_points.group_losses import loss_bounds

#: Number of the last fits of a search that aim at its goal; bisection then divides a gap by 16.
GOAL_FITS = 4

#: A cost of at least this share of the budget is close enough to it.
MIN_BUDGET_SHARE = 0.97

#: Rows to fit and validation rows of each fold.
Folds = Sequence[tuple[Rows, Rows]]


#: Penalties that every search starts with in addition to 0, in nats per feature of mean price.
FIRST_PENALTIES: Final = (3e-2, 1e-3)

#: Beyond the smallest and the largest penalty so far, the search continues by this factor.
STEP_FACTOR: Final = 4.0

#: Bounds of the search.
MIN_PENALTY: Final = 1e-8

MAX_PENALTY: Final = 1e3

#: Smallest ratio of two neighbouring penalties between which another one is tried.
MIN_RATIO: Final = 1.02


@dataclass(frozen=True, eq=False)
class ScoredFit:
    """One model of a penalty, with its outputs and score on the validation rows."""

    penalty: float  # 0 for the unpenalised model, infinity for the constant one
    stage: Stage
    outputs: NDArray[np.float32]  # (n_validation, n_outputs): out-of-fold predictions
    # (n_features,): features of the model; or (n_validation, n_features): features that the
    # models of the folds acquire for each row
    acquired: AcquiredMask
    cost: float  # mean feature cost over the validation rows
    # (n_validation,): price of the splits of each row, plus the coupled prices
    row_evaluation_costs: NDArray[np.float64]
    evaluation_cost: float  # mean of these prices
    merits: NDArray[np.float64]  # (n_validation,) or (n_queries,); the weighted mean is the score
    weights: NDArray[np.float64]  # weights of the merits, in the same shape

    @property
    def score(self) -> float:
        """Accuracy, R² or mean Average Precision@5."""
        return float(np.average(self.merits, weights=self.weights))

    def error_against(
        self, reference_fit: ScoredFit, groups: NDArray[np.int64] | None = None
    ) -> float:
        """Compute the standard error of the difference of two scores, paired by row.

        With `groups`, (n_validation,), it is not smaller than the error for new groups.
        """
        # standard error of a weighted mean: sqrt(sum (w_i / sum w)^2 (d_i - mean d)^2)
        difference = self.merits - reference_fit.merits
        weight_shares = self.weights / self.weights.sum()
        residuals = weight_shares * (difference - np.sum(weight_shares * difference))
        error = float(np.sqrt(np.sum(residuals**2)))
        if groups is None:
            return error
        group_splitter = RowSplitter(len(groups), groups)
        scaled_weights = len(difference) * weight_shares
        mean_difference = float(np.sum(weight_shares * difference))
        losses = group_splitter.group_sums(-scaled_weights * difference)
        variance = float(np.sum(weight_shares * (difference - mean_difference) ** 2))
        loss_bound = float(loss_bounds(losses, group_splitter.group_sums(scaled_weights), variance))
        return max(error, loss_bound + mean_difference)  # the mean loss is -mean_difference


@dataclass(frozen=True, eq=False)
class SweepTask:
    """Data and settings that the fits of all penalties share."""

    x: NDArray[np.float32]  # (n, n_features)
    target: Target  # of the same rows
    prices: SplitPrices
    growth: TreeGrowth
    round_shares: Sequence[float]  # shares of the rounds, ascending to 1
    seed: int

    def fit(
        self, penalty: float, rows: Rows, validation_rows: Rows | None, rounds: int | None = None
    ) -> GrownTrees:
        """Fit a model; the loss on `validation_rows`, or a number of rounds, ends the fit."""
        target = self.target.take(rows)
        if math.isinf(penalty) or rounds == 0:
            return GrownTrees(constant_model(target, self.x.shape[1]), 0)
        x = np.ascontiguousarray(self.x[rows])
        charge = Charge(self.prices, penalty, x)
        validation = None
        if validation_rows is not None:
            validation = (self.x[validation_rows], self.target.take(validation_rows))
        return boost_trees(
            x, target, self.growth, charge, validation=validation, rounds=rounds, seed=self.seed
        )

    def score_rounds(
        self,
        penalty: float,
        final_model: GrownTrees,
        fold_models: Sequence[GrownTrees],
        validation_rows: Sequence[Rows],
    ) -> list[ScoredFit]:
        """Score the models of the first rounds, and the whole model last."""
        fits = []
        last_n_trees = -1
        for round_share in self.round_shares:
            stage = self._make_stage(first_rounds(final_model.trees, round_share))
            if stage.n_trees == last_n_trees:
                continue
            last_n_trees = stage.n_trees
            fold_stages = [stage]
            if len(fold_models) > 1:
                fold_stages = [
                    self._make_stage(first_rounds(fold_model.trees, round_share))
                    for fold_model in fold_models
                ]
            fits.append(self.score(penalty, stage, fold_stages, validation_rows))
        return fits

    def score(
        self,
        penalty: float,
        stage: Stage,
        fold_stages: Sequence[Stage],
        validation_rows: Sequence[Rows],
    ) -> ScoredFit:
        """Score a stage by the outputs of the stages of all folds on their validation rows."""
        x_by_fold = [np.ascontiguousarray(self.x[rows]) for rows in validation_rows]
        stages_and_rows = list(zip(fold_stages, x_by_fold, strict=True))
        outputs = np.concatenate([fold_stage.margins(x) for fold_stage, x in stages_and_rows])
        target = self.target.take(np.concatenate(validation_rows))
        # features that the rows acquire, and their mean cost
        costs = self.prices.costs
        acquired = stage.feature_mask(self.x.shape[1])
        if stage.acquisition == "node":
            acquired = np.concatenate([fold_stage.acquired(x) for fold_stage, x in stages_and_rows])
            cost = float(np.average(costs.instance_costs(acquired), weights=target.row_weight))
        else:
            cost = costs.price(acquired)
        # prices of splits, and coupled prices
        row_costs = np.zeros(len(outputs))
        if np.any(self.prices.split):
            row_costs = np.concatenate(
                [
                    self.prices.evaluation_costs(*stage_and_rows)
                    for stage_and_rows in stages_and_rows
                ]
            )
        row_costs += self.prices.coupled_price(stage.features)
        merits, weights = target.merits(outputs)
        return ScoredFit(
            penalty=penalty,
            stage=stage,
            outputs=outputs,
            acquired=acquired,
            cost=cost,
            row_evaluation_costs=row_costs,
            evaluation_cost=float(np.average(row_costs, weights=target.row_weight)),
            merits=merits,
            weights=weights,
        )

    def _make_stage(self, trees: TreeEnsemble) -> Stage:
        acquisition: Acquisition = "node" if self.prices.accounting == "lazy" else "stage"
        return Stage.from_model(trees, self.target.link, acquisition=acquisition)


@dataclass(frozen=True)
class Goal:
    """Goal of a search: a budget, or an allowed loss of score."""

    budget: float | None  # mean cost per row
    max_loss: float  # without a budget: allowed loss against the unpenalised model
    counts_splits: bool = False  # whether the budget includes splits and coupled prices

    def cost(self, fit: ScoredFit) -> float:
        """Compute the cost of a fit that is compared with the budget."""
        return fit.cost + self.counts_splits * fit.evaluation_cost

    def next_penalty(self, fits: Mapping[float, ScoredFit]) -> float | None:
        """Find a penalty between the two neighbouring penalties around the goal.

        Returns None if a fit is close enough to the budget, or the neighbours are too close.
        """
        if self.budget is not None:
            min_cost = MIN_BUDGET_SHARE * self.budget
            if any(min_cost <= self.cost(fit) <= self.budget for fit in fits.values()):
                return None
        crossings = [
            (lower, higher)
            for lower, higher in pairwise(sorted(fits))
            if self._allows_higher_penalty(fits[lower], fits)
            and not self._allows_higher_penalty(fits[higher], fits)
        ]
        return middle_penalty(*crossings[-1], fits) if crossings else None

    def _allows_higher_penalty(self, fit: ScoredFit, fits: Mapping[float, ScoredFit]) -> bool:
        """Whether a fit exceeds the budget, or has a score that allows a higher penalty."""
        if self.budget is None:
            return fit.score >= fits[0.0].score - self.max_loss
        return self.cost(fit) > self.budget


def sweep_penalties(
    task: SweepTask,
    folds: Folds,
    *,
    penalties: Sequence[float] | None,
    n_penalties: int,
    goal: Goal,
    report_progress: Progress,
) -> list[ScoredFit]:
    """Fit the constant model, and the models of the given penalties or of a search.

    Returns the fits from the highest penalty down to 0, with all shares of the rounds of each.
    """
    if task.prices.accounting == "lazy":
        check_lazy_size(*task.x.shape)
    first_penalties = FIRST_PENALTIES[: n_penalties - 1] if penalties is None else penalties
    fits = _fit_all(task, folds, sorted({0.0, math.inf, *first_penalties}))
    # the constant model does not count as one of the `n_penalties`
    while penalties is None and len(fits) <= n_penalties and fits[0.0][-1].cost > 0:
        report_progress(len(fits) - 1, n_penalties, "sweeping the penalty")
        whole_models = {penalty: prefix_fits[-1] for penalty, prefix_fits in fits.items()}
        n_fits_left = n_penalties + 1 - len(fits)
        next_penalty = None
        # at least half of the fits spread over the costs
        if n_fits_left <= min(GOAL_FITS, n_penalties // 2):
            next_penalty = goal.next_penalty(whole_models)
        if next_penalty is None:
            cost_by_penalty = {penalty: fit.cost for penalty, fit in whole_models.items()}
            next_penalty = penalty_in_widest_gap(cost_by_penalty, task.prices.costs)
        if next_penalty is None:
            break
        fits |= _fit_all(task, folds, [next_penalty])
    return [fit for penalty in sorted(fits, reverse=True) for fit in fits[penalty]]


def _fit_all(
    task: SweepTask, folds: Folds, penalties: Sequence[float]
) -> dict[float, list[ScoredFit]]:
    """Fit and score each penalty on every fold.

    With several folds, the final model of a penalty is fitted on all rows, with the mean number of
    rounds of the folds.
    """
    delayed_fit = joblib.delayed(SweepTask.fit)
    n_folds = len(folds)
    fold_fits = (delayed_fit(penalty, *fold) for penalty in penalties for fold in folds)
    all_models = list(parallel_results(fold_fits, shared_data=task))
    fold_models = [
        all_models[index * n_folds : (index + 1) * n_folds] for index in range(len(penalties))
    ]
    final_models = [models[0] for models in fold_models]
    if n_folds > 1:
        all_rows = np.arange(len(task.x))
        mean_rounds = [
            round(float(np.mean([model.n_rounds for model in models]))) for models in fold_models
        ]
        final_fits = (
            delayed_fit(penalty, all_rows, None, n_rounds)
            for penalty, n_rounds in zip(penalties, mean_rounds, strict=True)
        )
        final_models = list(parallel_results(final_fits, shared_data=task))
    validation_rows = [rows for _, rows in folds]
    return {
        penalty: task.score_rounds(penalty, final_model, models, validation_rows)
        for penalty, final_model, models in zip(penalties, final_models, fold_models, strict=True)
    }


def spread_penalties(
    cost_at: Callable[[float], float], costs: FeatureCosts, n_penalties: int
) -> list[float]:
    """Find at most `n_penalties` penalties by the costs of their fits, from the highest down to 0.

    `cost_at` fits a penalty and returns the cost of the model.
    """
    first_penalties = (0.0, *FIRST_PENALTIES[: n_penalties - 1])
    cost_by_penalty = {penalty: cost_at(penalty) for penalty in first_penalties} | {math.inf: 0.0}
    while len(cost_by_penalty) <= n_penalties and cost_by_penalty[0.0] > 0:
        penalty = penalty_in_widest_gap(cost_by_penalty, costs)
        if penalty is None:
            break
        cost_by_penalty[penalty] = cost_at(penalty)
    return sorted((penalty for penalty in cost_by_penalty if penalty < math.inf), reverse=True)


def penalty_in_widest_gap(
    cost_by_penalty: Mapping[float, float], costs: FeatureCosts
) -> float | None:
    """Find a penalty in the widest gap between the known costs, or None if no gap is left.

    `cost_by_penalty` maps penalties, which include 0 and infinity, to the costs of their models.
    """
    prices = costs.standalone_prices[costs.standalone_prices > 0]
    half_price = float(prices.min()) / 2.0 if len(prices) else 1.0

    def log_cost(penalty: float) -> float:
        return math.log(max(cost_by_penalty[penalty], half_price))

    gaps = [
        (log_cost(lower) - log_cost(higher), lower, higher)
        for lower, higher in pairwise(sorted(cost_by_penalty))
    ]
    for gap, lower, higher in sorted(gaps, reverse=True):
        new_penalty = middle_penalty(lower, higher, cost_by_penalty)
        if gap > 0 and new_penalty is not None:
            return new_penalty
    return None


def middle_penalty(lower: float, higher: float, penalties: Iterable[float]) -> float | None:
    """Find a penalty between two neighbours among `penalties`, or None if they are too close."""
    finite_penalties = [penalty for penalty in penalties if 0 < penalty < math.inf]
    if not finite_penalties:
        return None
    if lower == 0.0:
        return min(finite_penalties) / STEP_FACTOR if min(finite_penalties) > MIN_PENALTY else None
    if math.isinf(higher):
        return max(finite_penalties) * STEP_FACTOR if max(finite_penalties) < MAX_PENALTY else None
    return math.sqrt(lower * higher) if higher > MIN_RATIO * lower else None
