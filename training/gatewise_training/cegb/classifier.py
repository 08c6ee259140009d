"""CEGBClassifier: boosted trees with prices on evaluation and features (NIPS 2017, section 3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gatewise.errors import InputError
from gatewise_training.cascades.base import BudgetedClassifier
from gatewise_training.cascades.fit_problem import FittedStages, Problem
from gatewise_training.cegb.base import CostEfficient
from gatewise_training.cegb.objectives import Classes
from gatewise_training.learners.boosting import LARGE_ROWS
from gatewise_training.learners.high_cost_training import tree_shape
from gatewise_training.learners.row_acquisitions import Accounting


@dataclass(eq=False, repr=False, kw_only=True)
class CEGBClassifier(CostEfficient, BudgetedClassifier):
    """Cost-efficient gradient boosting: one model; each instance pays for the paths it takes.

    Peter, Diego, Hamprecht & Nadler, "Cost efficient gradient boosting", NIPS 2017, section 3, on
    LightGBM's own implementation. A split is worth its decrease of the loss less ``penalty *`` its
    cost (equations 12 and 13). One model is fitted for each penalty. The model and its first rounds
    give operating points, without a cloud.

    Parameters
    ----------
    feature_costs : FeatureCosts, optional
        Prices; 1 per feature by default. Groups' shared prices change between rounds
        (:mod:`gatewise_training.cegb.penalties`).
    accounting : {"lazy", "coupled"}
        Lazy: each instance pays once for the features on its paths (beta in the paper). Coupled:
        every instance pays for each feature that some tree uses (gamma), as in GreedyMiser.
    coupled_costs : sequence of n_features floats, optional
        With lazy accounting: prices that every instance pays in addition once some tree uses the
        feature (gamma and beta of equation 13), such as its share of installing a sensor. Growth
        and :meth:`cost_report` count them; budget, frontier and `cost` count them with
        ``budget_counts="total"``.
    budget : float, optional
        Mean cost per instance that may be spent, met on validation rows.
    budget_counts : {"features", "total"}, default "features"
        Costs of budget, frontier and `cost`: features alone, which is the cost on devices, or
        features, `penalty_split` and `coupled_costs`. Not with a guarantee.
    max_loss : float, default 0.01
        Without a budget: the cheapest operating point within this accuracy loss of the
        unpenalised model.
    guarantee : float, optional
        Confidence with which budget or `max_loss` holds on new instances; as for
        :class:`StagedCascade`.
    min_recall, min_precision, class_weight
        As for :class:`StagedCascade`.
    penalty_split : float or sequence of n_features floats, default 0
        Price of a split that an instance passes (alpha), in the unit of the feature costs, which
        makes paths short. By feature (section 5.2 of the paper) trees grow in a grower of our own,
        and the prices of groups are exact. :meth:`cost_report` counts it.
    penalties : sequence of float, optional
        Nats of mean loss that a feature of mean price must save; the unpenalised model is
        always fitted as well. By default they are searched so that the costs cover the range and
        close in on the budget.
    n_penalties : int, default 12
        Fits of that search.
    prefixes : sequence of float, default (0.0625, 0.125, 0.25, 0.5, 1.0)
        Shares of a fit's rounds: the models of its first rounds give operating points as well.
    growth : {"best-first", "breadth-first"}
        Order in which a tree's nodes are split; the paper compares them in figure 3b.
        Breadth-first trees are full to `max_depth`, or to the depth that `num_leaves` fill,
        wherever splits are worth their price.
    n_rounds : int, default 200
        Most boosting rounds; each grows a tree for every margin.
    patience : int or None, default 20
        Rounds without improvement on validation rows that end a fit; None never does.
    num_leaves : int, optional
        By default 31; on more than 5,000 training rows as many as are best, on validation rows,
        without penalties.
    max_depth : int, optional
        Bound on the trees' depth; none by default.
    learning_rate : float, optional
        By default 0.1, or 0.2 for two classes on more than 5,000 training rows.
    newton : bool, default True
        Second-order steps; False gives first-order ones. With ``accounting="coupled"``,
        ``growth="breadth-first"`` and ``max_depth=4`` that is GreedyMiser (section 4.3).
    allow_missing, random_state
        As for :class:`StagedCascade`.

    Raises
    ------
    InputError
        In ``fit``: with lazy prices for 2**31 rows times features, which LightGBM cannot count.

    Notes
    -----
    LightGBM credits the other open leaves of a tree too highly when a coupled feature is first
    used below the root; about 3 % of splits differ for it. Reported costs are counted on the
    finished trees and exact.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> model = CEGBClassifier(budget=2.0, penalties=(0.1, 0.05), n_rounds=20, random_state=0)
    >>> bool(model.fit(X, y).operating_point_.cost <= 2.0)
    True
    >>> report = model.cost_report(X[:100])
    >>> bool((report.features == model.cost(X[:100])).all())
    True
    """

    guarantee: float | None = None
    min_recall: Mapping[Any, float] | None = None
    min_precision: Mapping[Any, float] | None = None
    class_weight: Mapping[Any, float] | Literal["balanced"] | None = None

    def _fit_candidates(self, problem: Problem) -> Sequence[FittedStages]:
        plan = problem.plan
        target = Classes(plan.y, plan.weight, problem.n_classes)
        leaves = None
        if self.num_leaves is None and len(plan.fit_rows) > LARGE_ROWS:
            problem.report(0, 1, "choosing the trees' size")
            leaves = tree_shape(plan, problem.n_classes, problem.seed).leaves
        fits = self._sweep(
            plan.x,
            target,
            plan.folds,
            problem.costs,
            seed=problem.seed,
            report=problem.report,
            best_leaves=leaves,
        )
        return [
            FittedStages(
                (fit.stage,),
                (fit.outputs,),
                (fit.acquired,),
                evaluation=fit.evaluation_by_row if self._counts_splits else None,
            )
            for fit in fits
        ]

    def cost(self, X: ArrayLike, accounting: Accounting | None = None) -> NDArray[np.float64]:
        """Cost of each row, in the unit of the feature costs.

        Splits and `coupled_costs` are added where `budget_counts` is "total".

        Parameters
        ----------
        X : array-like of shape (n, n_features)
        accounting : {"union", "paper", "paths", "paper-paths"}, optional
            Of no effect without a cloud.

        Returns
        -------
        ndarray of float64, shape (n,)
        """
        if not self._counts_splits:
            return super().cost(X, accounting)
        return self._costs_of_report(X)

    def _check_settings(self) -> None:
        super()._check_settings()
        if self._counts_splits and self.guarantee is not None:
            raise InputError("a guarantee is about feature costs: budget_counts='features'")
