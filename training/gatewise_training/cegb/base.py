"""Bases of CEGB's estimators: settings and cost report of all, surface of regressor and ranker.

The classifier has the surface of every budgeted model
(:class:`.BudgetedClassifier`). Regressor and ranker have the same one, with a
score in the place of accuracy: `frontier_`, `operating_point_`, `at`, `cost`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

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
from gatewise_training.cegb.penalties import Accounting
from gatewise_training.cegb.sweep import Fitted, Task, sweep_penalties
from gatewise_training.data.input_checks import AT_LEAST_1, NOT_NEGATIVE, Constraints
from gatewise_training.data.validation_split import Rows
from gatewise_training.operating_points.frontier import Frontier


@dataclass(frozen=True, eq=False)
class CostReport:
    """Costs instance by instance, in the unit of the feature costs.

    Attributes
    ----------
    acquired : ndarray of bool, shape (n, n_features)
        Features that each instance acquires.
    features : ndarray of float64, shape (n,)
        Their price: own prices once, and the shared price of each group touched.
    splits : ndarray of int64, shape (n,)
        Splits that the instance passes, over all trees.
    evaluation : ndarray of float64, shape (n,)
        Price of those (CEGB, equation 6): `penalty_split` each.
    """

    acquired: NDArray[np.bool_]
    features: NDArray[np.float64]
    splits: NDArray[np.int64]
    evaluation: NDArray[np.float64]

    @property
    def total(self) -> NDArray[np.float64]:
        """Features and evaluation together, shape (n,)."""
        return self.features + self.evaluation


@dataclass(eq=False, repr=False, kw_only=True)
class CostEfficient(TreeGrowth, BudgetedModel):
    """Settings of a CEGB fit (documented at :class:`CEGBClassifier`), and its cost report."""

    feature_costs: CostsLike | None = field(default=None, kw_only=False)
    accounting: Accounting = "lazy"
    budget: float | None = None
    max_loss: float | None = 0.01
    penalty_split: float = 0.0
    penalties: Sequence[float] | None = None
    n_penalties: int = 12
    allow_missing: bool = False
    random_state: Any = None

    _parameter_constraints: ClassVar[Constraints] = {
        "accounting": [StrOptions({"lazy", "coupled"})],
        "penalty_split": [NOT_NEGATIVE],
        "n_penalties": [AT_LEAST_1],
    }

    def cost_report(self, X: ArrayLike) -> CostReport:
        """Count for each instance its features, their price, its splits and their price.

        Parameters
        ----------
        X : array-like of shape (n, n_features)

        Returns
        -------
        CostReport
        """
        x = self._rows(X)
        acquired, splits = np.zeros(x.shape, np.bool_), np.zeros(len(x), np.int64)
        for stage in self.stages_:
            acquired |= stage.acquired(x)
            assert isinstance(stage.model, TreeEnsemble)
            splits += stage.model.splits_passed(x[:, stage.features])
        features = self.feature_costs_.per_instance(acquired)
        evaluation = np.asarray(self.penalty_split * splits, np.float64)
        return CostReport(acquired, features, splits, evaluation)

    def _sweep(
        self,
        x: NDArray[np.float32],
        target: Target,
        folds: tuple[tuple[Rows, Rows], ...],
        costs: FeatureCosts,
        seed: int,
        report: Progress,
        best_leaves: int | None = None,
    ) -> list[Fitted]:
        split = float(self.penalty_split)
        growth = self if best_leaves is None else replace(self, num_leaves=best_leaves)
        return sweep_penalties(
            Task(x, target, costs, growth, self.accounting, split, seed),
            folds,
            penalties=self.penalties,
            n_penalties=self.n_penalties,
            budget=self.budget,
            max_loss=MAX_LOSS if self.max_loss is None else self.max_loss,
            report=report,
        )

    def _check_settings(self) -> None:
        super()._check_settings()
        if self.growth == "breadth-first" and (self.max_depth or 0) > 16:
            raise InputError(
                f"max_depth of breadth-first trees is at most 16, not {self.max_depth}"
            )


class Scored(CostEfficient):
    """Base of regressor and ranker; `accuracy` of an operating point is the score."""

    high_cost_model_ = None  # there is no cloud
    cloud_prices_ = CloudPrices()

    def _settle(
        self,
        x: NDArray[np.float32],
        target: Target,
        folds: tuple[tuple[Rows, Rows], ...],
        seed: int,
        groups: NDArray[np.int64] | None = None,
    ) -> None:
        """Fit at all penalties; keep the models that reach the frontier.

        `groups` are those of the merits (rows or queries) on the validation rows, fold after fold.
        """
        self._measure_ranges(x, x)
        self._check_costs()
        title = f"fit {type(self).__name__}"
        # one thread a fit: more would mostly wait for each other, joblib is what spreads work
        with threadpool_limits(1), progress(title) as report:
            fits = self._sweep(x, target, folds, self.feature_costs_, seed, report)
        points = [
            OperatingPoint(
                thresholds=(ALWAYS_STOP,),
                cost=fit.cost,
                accuracy=fit.score,
                offload_rate=0.0,
                accuracy_error=fit.error_against(fits[-1], groups),
                validation_groups=None if groups is None else len(np.unique(groups)),
                trees=float(fit.stage.n_trees),
                nbytes=fit.stage.nbytes,
                chain=number,
            )
            for number, fit in enumerate(fits)
        ]
        frontier = Frontier.from_points(points, reference_accuracy=fits[-1].score)
        self._keep([(fit.stage,) for fit in fits], frontier)
        self.operating_point_ = self._pick()

    def exit_stage(self, X: ArrayLike) -> NDArray[np.int64]:
        """Stage at which each row is answered: the only one, 0.

        Parameters
        ----------
        X : array-like of shape (n, n_features)

        Returns
        -------
        ndarray of int64, shape (n,)
        """
        return np.zeros(len(self._rows(X)), np.int64)

    def predict(self, X: ArrayLike) -> NDArray[np.float64]:
        """Predict a value (of a ranker: a document's score) for each row.

        Parameters
        ----------
        X : array-like of shape (n, n_features)

        Returns
        -------
        ndarray of float64, shape (n,)
        """
        return self.stages_[0].margins(self._rows(X))[:, 0].astype(np.float64)

    def cost(self, X: ArrayLike) -> NDArray[np.float64]:
        """Feature cost of each row.

        Parameters
        ----------
        X : array-like of shape (n, n_features)

        Returns
        -------
        ndarray of float64, shape (n,)
            In the unit of the feature costs.
        """
        return self.cost_report(X).features
