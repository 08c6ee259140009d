"""Base classes of CEGB's estimators, which hold their settings and their cost report.

The classifier has the interface of every budgeted classifier (:class:`.BudgetedClassifier`). The
regressor and the ranker have the same members `frontier_`, `operating_point_`, `at` and `cost`, but
with a score instead of accuracy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils._param_validation import StrOptions
from threadpoolctl import threadpool_limits

from gatewise.console import Progress, progress
from gatewise.costs import CloudPrices, CostsLike, FeatureCosts
from gatewise.decision import ALWAYS_STOP
from gatewise.errors import InputError
from gatewise.models.trees import TreeEnsemble
from gatewise.operating_point import OperatingPoint
from gatewise_training.cascades.budgeted_model import MAX_LOSS, BudgetedModel
from gatewise_training.cegb.growth import TreeGrowth
from gatewise_training.cegb.objectives import Target
from gatewise_training.cegb.penalties import Accounting, SplitPrices
from gatewise_training.cegb.sweep import (
    Folds,
    Goal,
    ScoredFit,
    SweepTask,
    evaluation_costs,
    sweep_penalties,
)
from gatewise_training.data.input_checks import AT_LEAST_1, NOT_NEGATIVE, Constraints
from gatewise_training.learners.growth_settings import check_prefixes
from gatewise_training.operating_points.frontier import Frontier


@dataclass(frozen=True, eq=False)
class CostReport:
    """Costs of each instance, in the unit of the feature costs."""

    acquired: NDArray[np.bool_]  # (n, n_features): features that each instance acquires
    features: NDArray[np.float64]  # (n,): own prices of these features and prices of their groups
    splits: NDArray[np.int64]  # (n,): number of splits that the instance passes in all trees
    evaluation: NDArray[np.float64]  # (n,): price of these splits (CEGB, equation 6)
    coupled: float = 0.0  # sum of `coupled_costs` over the features that some tree uses

    @property
    def total(self) -> NDArray[np.float64]:
        """Sum of feature, evaluation and coupled costs, shape (n,)."""
        return self.features + self.evaluation + self.coupled


@dataclass(eq=False, repr=False, kw_only=True)
class CostEfficientModel(TreeGrowth, BudgetedModel):
    """Settings of a CEGB fit, which :class:`CEGBClassifier` documents, and its cost report."""

    feature_costs: CostsLike | None = field(default=None, kw_only=False)
    accounting: Accounting = "lazy"
    budget: float | None = None
    max_loss: float | None = 0.01
    penalty_split: float | Sequence[float] = 0.0
    coupled_costs: Sequence[float] | None = None
    budget_counts: Literal["features", "total"] = "features"
    penalties: Sequence[float] | None = None
    n_penalties: int = 12
    prefixes: Sequence[float] = (0.0625, 0.125, 0.25, 0.5, 1.0)
    allow_missing: bool = False
    random_state: Any = None

    _parameter_constraints: ClassVar[Constraints] = {
        "accounting": [StrOptions({"lazy", "coupled"})],
        "penalty_split": [NOT_NEGATIVE, "array-like"],
        "coupled_costs": ["array-like", None],
        "budget_counts": [StrOptions({"features", "total"})],
        "prefixes": ["array-like"],
        "n_penalties": [AT_LEAST_1],
    }

    def cost_report(self, X: ArrayLike) -> CostReport:
        """Count the features and splits of each instance, and their prices.

        Parameters
        ----------
        X : array-like of shape (n, n_features)

        Returns
        -------
        CostReport
        """
        x = self._rows(X)
        prices = self._split_prices(self.feature_costs_)
        (stage,) = self.stages_
        assert isinstance(stage.model, TreeEnsemble)
        acquired = np.broadcast_to(stage.acquired(x), x.shape).copy()
        return CostReport(
            acquired=acquired,
            features=self.feature_costs_.instance_costs(acquired),
            splits=stage.model.splits_passed(x[:, stage.features]),
            evaluation=evaluation_costs(stage, x, prices),
            coupled=prices.coupled_price(stage.features),
        )

    def _split_prices(self, costs: FeatureCosts) -> SplitPrices:
        return SplitPrices.of_settings(
            costs, self.accounting, self.penalty_split, self.coupled_costs
        )

    def _sweep(
        self,
        x: NDArray[np.float32],
        target: Target,
        folds: Folds,
        costs: FeatureCosts,
        seed: int,
        report_progress: Progress,
        best_leaves: int | None = None,
    ) -> list[ScoredFit]:
        """Fit the models of all penalties; `best_leaves` replaces `num_leaves` if it is known."""
        task = SweepTask(
            x=x,
            target=target,
            prices=self._split_prices(costs),
            growth=self if best_leaves is None else replace(self, num_leaves=best_leaves),
            round_shares=sorted({*self.prefixes, 1.0}),
            seed=seed,
        )
        goal = Goal(
            budget=self.budget,
            max_loss=MAX_LOSS if self.max_loss is None else self.max_loss,
            counts_splits=self._counts_splits,
        )
        return sweep_penalties(
            task,
            folds,
            penalties=self.penalties,
            n_penalties=self.n_penalties,
            goal=goal,
            report_progress=report_progress,
        )

    @property
    def _counts_splits(self) -> bool:
        return self.budget_counts == "total"

    def _compute_report_costs(self, X: ArrayLike) -> NDArray[np.float64]:
        """Compute the cost of each row with the parts that `budget_counts` names, shape (n,)."""
        cost_report = self.cost_report(X)
        return cost_report.total if self._counts_splits else cost_report.features

    def _check_settings(self) -> None:
        super()._check_settings()
        check_prefixes(self.prefixes)
        # the arrays of a breadth-first tree have room for 2^depth leaves
        if self.growth == "breadth-first" and (self.max_depth or 0) > 16:
            raise InputError(
                f"max_depth of breadth-first trees must be at most 16, not {self.max_depth}"
            )


class ScoredModel(CostEfficientModel):
    """Base class of the regressor and the ranker; `accuracy` of their points is the score."""

    high_cost_model_ = None
    cloud_prices_ = CloudPrices()

    def _fit_frontier(
        self,
        x: NDArray[np.float32],
        target: Target,
        folds: Folds,
        seed: int,
        groups: NDArray[np.int64] | None = None,
    ) -> None:
        """Fit the models of all penalties, and keep the models on the frontier."""
        self._measure_ranges(x, x)
        self._check_costs()
        title = f"fit {type(self).__name__}"
        # one thread per fit, because joblib runs several fits at a time
        with threadpool_limits(1), progress(title) as report_progress:
            fits = self._sweep(x, target, folds, self.feature_costs_, seed, report_progress)
        points = [
            OperatingPoint(
                thresholds=(ALWAYS_STOP,),
                cost=fit.cost + self._counts_splits * fit.evaluation_cost,
                accuracy=fit.score,
                offload_rate=0.0,
                accuracy_error=fit.error_against(fits[-1], groups),
                validation_groups=None if groups is None else len(np.unique(groups)),
                trees=float(fit.stage.n_trees),
                nbytes=fit.stage.nbytes,
                chain=index,
            )
            for index, fit in enumerate(fits)
        ]
        frontier = Frontier.from_points(points, reference_accuracy=fits[-1].score)
        self._set_frontier([(fit.stage,) for fit in fits], frontier)
        self.operating_point_ = self._choose_by_settings()

    def exit_stage(self, X: ArrayLike) -> NDArray[np.int64]:
        """Get the index of the stage that answers each row, which is always 0.

        Parameters
        ----------
        X : array-like of shape (n, n_features)

        Returns
        -------
        ndarray of int64, shape (n,)
        """
        return np.zeros(len(self._rows(X)), np.int64)

    def predict(self, X: ArrayLike) -> NDArray[np.float64]:
        """Predict the value of each row or, when ranking, the score of each document.

        Parameters
        ----------
        X : array-like of shape (n, n_features)

        Returns
        -------
        ndarray of float64, shape (n,)
        """
        return self.stages_[0].margins(self._rows(X))[:, 0].astype(np.float64)

    def cost(self, X: ArrayLike) -> NDArray[np.float64]:
        """Compute the cost of each row, in the unit of the feature costs.

        With `budget_counts` "total" it includes the prices of splits and `coupled_costs`.

        Parameters
        ----------
        X : array-like of shape (n, n_features)

        Returns
        -------
        ndarray of float64, shape (n,)
        """
        return self._compute_report_costs(X)
