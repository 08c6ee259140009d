"""Bases of CEGB's estimators: settings and cost report of all, surface of regressor and ranker.

The classifier has the surface of every budgeted model
(:class:`.BudgetedClassifier`). Regressor and ranker have the same one, with a
score in the place of accuracy: `frontier_`, `operating_point_`, `at`, `cost`.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted
from threadpoolctl import threadpool_limits

from gatewise.console import Progress, progress
from gatewise.costs import CloudPrices, FeatureCosts
from gatewise.decision import ALWAYS_STOP
from gatewise.errors import InputError
from gatewise.models.stage import Stage
from gatewise_training.cascades.base import MAX_LOSS
from gatewise_training.cegb.growth import Order, TreeGrowth
from gatewise_training.cegb.objectives import Target
from gatewise_training.cegb.penalties import Accounting
from gatewise_training.cegb.sweep import Fitted, Goal, PenaltySweep, Task
from gatewise_training.data.input_checks import check_costs, check_rows, feature_names
from gatewise_training.data.validation_split import Rows
from gatewise_training.operating_points.frontier import SLACK, Frontier, OperatingPoint

__all__ = ["CostEfficient", "CostReport", "Scored"]


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
class CostEfficient:
    """Settings of a CEGB fit (documented at :class:`CEGBClassifier`), and its cost report."""

    feature_costs: FeatureCosts | None = field(default=None, kw_only=False)
    accounting: Accounting = "lazy"
    budget: float | None = None
    max_loss: float | None = 0.01
    penalty_split: float = 0.0
    penalties: Sequence[float] | None = None
    n_penalties: int = 12
    growth: Order = "best-first"
    n_rounds: int = 200
    patience: int | None = 20
    num_leaves: int | None = None
    max_depth: int | None = None
    learning_rate: float | None = None
    newton: bool = True
    subsample: float = 1.0
    lightgbm_params: Mapping[str, Any] | None = None
    allow_missing: bool = False
    random_state: Any = None
    n_jobs: int | None = None
    verbose: int = 0

    def cost_report(self, X: ArrayLike) -> CostReport:
        """Count for each instance its features, their price, its splits and their price.

        Shapes: `X` (n, n_features).
        """
        system: Any = self  # an estimator
        x: NDArray[np.float32] = system._rows(X)
        acquired, splits = np.zeros(x.shape, np.bool_), np.zeros(len(x), np.int64)
        for stage in system.stages_:
            acquired |= stage.acquired(x)
            splits += stage.model.splits_passed(x[:, stage.features])
        features = system.feature_costs_.per_instance(acquired)
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
    ) -> list[Fitted]:
        growth, split = self._growth(), float(self.penalty_split)
        task = Task(x, target, costs, growth, self.accounting, split, seed)
        loss = MAX_LOSS if self.max_loss is None else self.max_loss
        sweep = PenaltySweep(task, folds, self.n_jobs, report)
        return sweep.run(self.penalties, self.n_penalties, Goal(self.budget, loss))

    def _growth(self) -> TreeGrowth:
        return TreeGrowth(
            order=self.growth,
            n_rounds=self.n_rounds,
            patience=self.patience,
            num_leaves=self.num_leaves,
            max_depth=self.max_depth,
            learning_rate=self.learning_rate,
            newton=self.newton,
            subsample=self.subsample,
            params=self.lightgbm_params,
        )

    def _check_growth(self) -> None:
        self._growth().check()
        if self.accounting not in ("lazy", "coupled"):
            raise InputError(f"accounting must be 'lazy' or 'coupled', not {self.accounting!r}")
        if not 0.0 <= self.penalty_split < np.inf:
            raise InputError(f"penalty_split must be at least 0, not {self.penalty_split!r}")
        if self.penalties is not None and not all(0.0 <= p < np.inf for p in self.penalties):
            raise InputError(f"penalties must be at least 0, not {list(self.penalties)}")
        if self.n_penalties < 1:
            raise InputError(f"n_penalties must be at least 1, not {self.n_penalties}")


class Scored(CostEfficient, BaseEstimator):
    """Base of regressor and ranker.

    Attributes
    ----------
    n_features_in_ : int
    feature_names_ : tuple of str
    feature_costs_ : FeatureCosts
    frontier_ : Frontier
        Operating points on validation rows, one a penalty; `accuracy` is the score.
    operating_point_ : OperatingPoint
        The active one.
    """

    feature_costs_: FeatureCosts
    high_cost_model_ = None  # there is no cloud
    cloud_prices_ = CloudPrices()

    def _settle(
        self,
        x: NDArray[np.float32],
        target: Target,
        folds: tuple[tuple[Rows, Rows], ...],
        seed: int,
    ) -> None:
        """Fit at all penalties; keep the models that reach the frontier."""
        self.feature_names_ = feature_names(self)
        self.feature_costs_ = check_costs(
            self.feature_costs, self.feature_names_, hasattr(self, "feature_names_in_")
        )
        title = f"fit {type(self).__name__}"
        # one thread a fit: more would mostly wait for each other, n_jobs is what spreads work
        with threadpool_limits(1), progress(title, quiet=not self.verbose) as report:
            fits = self._sweep(x, target, folds, self.feature_costs_, seed, report)
        points = [
            OperatingPoint(
                thresholds=(ALWAYS_STOP,),
                cost=fit.cost,
                accuracy=fit.score,
                offload_rate=0.0,
                accuracy_error=fit.error_against(fits[-1]),
                trees=float(fit.stage.n_trees),
                nbytes=fit.stage.nbytes,
                chain=number,
            )
            for number, fit in enumerate(fits)
        ]
        found = Frontier.from_points(points, reference_accuracy=fits[-1].score)
        self.chains_ = tuple((fits[p.chain].stage,) for p in found.points)
        numbered = (replace(p, chain=i) for i, p in enumerate(found.points))
        self.frontier_ = Frontier(tuple(numbered), found.reference_accuracy)
        loss = MAX_LOSS if self.max_loss is None else self.max_loss
        wanted = {"max_loss": loss} if self.budget is None else {"budget": self.budget}
        self.operating_point_ = self.frontier_.at(**wanted, slack=SLACK)

    def _check_settings(self) -> None:
        self._check_growth()
        for name in ("budget", "max_loss"):
            value = getattr(self, name)
            if value is not None and not (np.isfinite(value) and value >= 0):
                raise InputError(f"{name} must be a number of at least 0, not {value!r}")

    @property
    def stages_(self) -> tuple[Stage, ...]:
        """The stage of the operating point."""
        check_is_fitted(self, "operating_point_")
        return self.chains_[self.operating_point_.chain]

    @property
    def operating_points_(self) -> tuple[OperatingPoint, ...]:
        """The frontier's points, by cost."""
        check_is_fitted(self, "operating_point_")
        return self.frontier_.points

    @property
    def missing_(self) -> dict[str, Literal["allowed", "refused"]]:
        """Whether NaN is a value."""
        check_is_fitted(self, "operating_point_")
        word: Literal["allowed", "refused"] = "allowed" if self.allow_missing else "refused"
        return {"stages": word, "cloud": word}

    def exit_stage(self, X: ArrayLike) -> NDArray[np.int64]:
        """Stage at which each row is answered, shape (n,): the only one, 0."""
        return np.zeros(len(self._rows(X)), np.int64)

    def predict(self, X: ArrayLike) -> NDArray[np.float64]:
        """Predict a value (of a ranker: a document's score) for each row, shape (n,)."""
        return self.stages_[0].margins(self._rows(X))[:, 0].astype(np.float64)

    def cost(self, X: ArrayLike) -> NDArray[np.float64]:
        """Feature cost of each row, in the unit of the feature costs.

        Shapes: `X` (n, n_features); returns (n,).
        """
        return self.cost_report(X).features

    def at(self, *, budget: float | None = None, max_loss: float | None = None) -> Self:
        """Get the same fitted models at another operating point; nothing is refitted."""
        check_is_fitted(self, "operating_point_")
        other = copy.copy(self)
        other.operating_point_ = self.frontier_.at(budget=budget, max_loss=max_loss, slack=SLACK)
        return other

    def _rows(self, X: ArrayLike) -> NDArray[np.float32]:
        check_is_fitted(self, "operating_point_")
        rows: NDArray[np.float32] = check_rows(self, X, allow_missing=self.allow_missing)
        return rows

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = self.allow_missing
        return tags
