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

from gatewise.console import Progress
from gatewise.costs import CostsLike, FeatureCosts
from gatewise.errors import InputError
from gatewise.models.trees import TreeEnsemble
from gatewise_training.cascades.budgeted_model import MAX_LOSS, BudgetedModel
from gatewise_training.cegb.growth import TreeGrowth
from gatewise_training.cegb.objectives import Target
from gatewise_training.cegb.penalties import Accounting, SplitPrices
from gatewise_training.cegb.sweep import (
    Folds,
    Goal,
    ScoredFit,
    SweepTask,
    sweep_penalties,
)
from gatewise_training.data.input_checks import AT_LEAST_1, NOT_NEGATIVE, Constraints
from gatewise_training.learners.growth_settings import check_prefixes


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
    """Settings of a CEGB fit, and its cost report.

    Parameters
    ----------
    feature_costs : FeatureCosts, optional
        Prices; 1 per feature by default. LightGBM updates the shared prices of groups between
        rounds (:mod:`gatewise_training.cegb.penalties`).
    accounting : {"lazy", "coupled"}
        With "lazy", each instance pays once for each feature on its paths (beta in the paper). With
        "coupled", every instance pays for each feature that some tree uses (gamma), as in
        GreedyMiser.
    coupled_costs : sequence of n_features floats, optional
        Prices that every instance pays in addition to lazy ones once some tree uses the feature
        (gamma in equation 13), such as a share of the price of installing a sensor. They require
        lazy accounting. Growth and :meth:`cost_report` count them. Budget, frontier and `cost`
        count them with ``budget_counts="total"``.
    budget : float, optional
        Mean cost per instance that may be spent, met on validation rows.
    budget_counts : {"features", "total"}, default "features"
        Costs that budget, frontier and `cost` include. "features" includes features only, as the
        device does. "total" adds `penalty_split` and `coupled_costs`; it excludes a guarantee.
    max_loss : float, default 0.01
        Without a budget, the cheapest operating point within this accuracy loss of the unpenalised
        model is chosen.
    penalty_split : float or sequence of n_features floats, default 0
        Price of each split that an instance passes (alpha), in the unit of the feature costs. It
        makes paths shorter. If the prices differ by feature (section 5.2 of the paper), a compiled
        grower replaces LightGBM and charges the prices of groups exactly. :meth:`cost_report`
        counts it.
    penalties : sequence of float, optional
        Nats of mean loss that a feature of mean price must save. The unpenalised model is always
        fitted as well. By default a search chooses penalties whose costs cover the whole range and
        come close to the budget.
    n_penalties : int, default 12
        Number of fits of that search.
    prefixes : sequence of float, default (0.0625, 0.125, 0.25, 0.5, 1.0)
        Shares of the rounds of a fit. The models of these first rounds are operating points as
        well.
    growth : {"best-first", "breadth-first"}
        Order in which the nodes of a tree are split, as compared in figure 3b of the paper.
        Breadth-first trees are full to `max_depth`, or to the depth that `num_leaves` leaves fill,
        except for splits that are not worth their price.
    n_rounds : int, default 200
        Maximum number of boosting rounds. Each round grows one tree per margin.
    patience : int or None, default 20
        A fit ends after this many rounds without improvement on validation rows. With None it runs
        all rounds.
    num_leaves : int, optional
        Maximum number of leaves of a tree. By default 31 or, on more than 5,000 training rows, the
        number that is best for an unpenalised model on validation rows.
    max_depth : int, optional
        Maximum depth of a tree; no bound by default.
    learning_rate : float, optional
        By default 0.1, or 0.2 for two classes on more than 5,000 training rows.
    newton : bool, default True
        Whether steps are second-order or first-order. First-order steps with
        ``accounting="coupled"``, ``growth="breadth-first"`` and ``max_depth=4`` are GreedyMiser
        (section 4.3).
    allow_missing : bool, default False
        Whether features may be NaN.
    random_state : int, RandomState or None
        Source of the random choices; an int makes a fit repeatable.
    """

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
            evaluation=prices.evaluation_costs(stage, x),
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
