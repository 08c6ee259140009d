"""CEGBClassifier: boosted trees with prices on evaluation and features (NIPS 2017, section 3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from gatewise_training.cascades.base import BudgetedClassifier
from gatewise_training.cascades.fit_problem import FittedStages, Problem
from gatewise_training.cegb.base import CostEfficient
from gatewise_training.cegb.objectives import Classes
from gatewise_training.learners.boosting import LARGE_ROWS
from gatewise_training.learners.high_cost_training import tree_shape


@dataclass(eq=False, repr=False, kw_only=True)
class CEGBClassifier(CostEfficient, BudgetedClassifier):
    """Cost-efficient gradient boosting: one model; each instance pays for the paths it takes.

    Peter, Diego, Hamprecht & Nadler, "Cost efficient gradient boosting", NIPS 2017, section 3, on
    LightGBM's own implementation. A split is worth what it takes off the loss, less ``penalty *``
    what it costs (equations 12 and 13). One model is fitted for each penalty; each gives an
    operating point. There is no cloud.

    Parameters
    ----------
    feature_costs : FeatureCosts, optional
        Prices; 1 a feature by default. Groups' shared prices are renewed between rounds
        (:mod:`gatewise_training.cegb.penalties`).
    accounting : {"lazy", "coupled"}
        Who pays for a feature. Lazy: each instance on whose paths it lies, once (beta in the
        paper). Coupled: every instance, once some tree uses it (gamma), as in GreedyMiser.
    budget : float, optional
        Mean feature cost per instance that may be spent, met on validation rows.
    max_loss : float, default 0.01
        Without a budget: the cheapest operating point within this accuracy loss of the
        unpenalised model.
    guarantee : float, optional
        Confidence with which either shall hold on new instances; as for
        :class:`StagedCascade`.
    min_recall, min_precision, class_weight
        As for :class:`StagedCascade`.
    penalty_split : float, default 0
        Price of a split that an instance passes (alpha), in the unit of the feature costs. It
        makes paths short. Budget, frontier and `cost` count features, as devices do;
        :meth:`cost_report` counts both.
    penalties : sequence of float, optional
        Nats of mean loss that a feature of mean price must save; an unpenalised model is
        always fitted too. By default they are searched so that the costs cover the range and
        close in on the budget.
    n_penalties : int, default 12
        Fits of that search.
    growth : {"best-first", "breadth-first"}
        Order in which a tree's nodes are split; the paper compares them in figure 3b.
        Breadth-first trees are full to `max_depth`, or to the depth that `num_leaves` fill,
        wherever splits are worth their price.
    n_rounds : int, default 200
        Boosting rounds at most; each grows a tree for every margin.
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
    subsample : float, default 1
        Share of the rows that each round is fitted to. Prices stay right: rows that are not
        drawn do not count in the loss, and still pay. LightGBM's own bagging and GOSS, under
        which lazy prices are silently wrong, are refused.
    lightgbm_params : mapping, optional
        Further LightGBM parameters by their main names, of those that leave prices right.
    allow_missing, random_state
        As for :class:`StagedCascade`.

    Raises
    ------
    InputError
        In ``fit``: with lazy prices for 2**31 rows times features, which LightGBM cannot
        count, and for its sampling of rows.

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
            plan.x, target, plan.folds, problem.costs, problem.seed, problem.report, leaves
        )
        return [FittedStages((fit.stage,), (fit.outputs,), (fit.acquired,)) for fit in fits]
