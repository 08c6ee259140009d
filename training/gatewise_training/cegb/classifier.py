"""CEGBClassifier: boosted trees with prices on splits and features (NIPS 2017, section 3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gatewise.errors import InputError
from gatewise_training.cascades.base import BudgetedClassifier
from gatewise_training.cascades.fit_problem import FitProblem, FittedStages
from gatewise_training.cegb.base import CostEfficientModel
from gatewise_training.cegb.objectives import ClassTarget
from gatewise_training.learners.boosting import MAX_SMALL_ROWS
from gatewise_training.learners.high_cost_training import tree_shape
from gatewise_training.learners.row_acquisitions import Accounting


@dataclass(eq=False, repr=False, kw_only=True)
class CEGBClassifier(CostEfficientModel, BudgetedClassifier):
    """Cost-efficient gradient boosting, where each instance pays for its paths through the trees.

    Peter, Diego, Hamprecht & Nadler, "Cost efficient gradient boosting", NIPS 2017, section 3, in
    LightGBM's implementation. The gain of a split is the decrease of the loss minus ``penalty``
    times the cost of the split (equations 12 and 13). One model is fitted for each penalty. Each
    model, and the models of its first rounds, give operating points. There is no cloud.

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
    guarantee : float, optional
        Confidence with which `budget` or `max_loss` holds on new instances, as for
        :class:`StagedCascade`.
    min_recall, min_precision, class_weight
        As for :class:`StagedCascade`.
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
    allow_missing, random_state
        As for :class:`StagedCascade`.

    Raises
    ------
    InputError
        In ``fit``, with lazy prices, if the number of rows times the number of features is 2**31 or
        more, which LightGBM cannot count.

    Notes
    -----
    When a coupled feature is first used below the root, LightGBM overestimates the gains of the
    other open leaves of the tree, which changes about 3 % of the splits. Reported costs are counted
    on the finished trees and are exact.

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

    def _fit_candidates(self, problem: FitProblem) -> Sequence[FittedStages]:
        split = problem.split
        target = ClassTarget(split.y, split.weight, split.row_weight, problem.n_classes)
        n_leaves = None
        if self.num_leaves is None and len(split.fit_rows) > MAX_SMALL_ROWS:
            problem.report_progress(0, 1, "choosing the size of the trees")
            n_leaves = tree_shape(split, problem.n_classes, problem.seed).n_leaves
        fits = self._sweep(
            split.x,
            target,
            split.folds,
            problem.costs,
            seed=problem.seed,
            report_progress=problem.report_progress,
            best_leaves=n_leaves,
        )
        return [
            FittedStages(
                (fit.stage,),
                (fit.outputs,),
                (fit.acquired,),
                evaluation_costs=fit.row_evaluation_costs if self._counts_splits else None,
            )
            for fit in fits
        ]

    def cost(self, X: ArrayLike, accounting: Accounting | None = None) -> NDArray[np.float64]:
        """Compute the cost of each row, in the unit of the feature costs.

        With `budget_counts` "total" it includes the prices of splits and `coupled_costs`.

        Parameters
        ----------
        X : array-like of shape (n, n_features)
        accounting : {"union", "paper", "paths", "paper-paths"}, optional
            Ignored, because there is no cloud.

        Returns
        -------
        ndarray of float64, shape (n,)
        """
        if not self._counts_splits:
            return super().cost(X, accounting)
        return self._compute_report_costs(X)

    def _check_settings(self) -> None:
        super()._check_settings()
        if self._counts_splits and self.guarantee is not None:
            raise InputError(
                "a guarantee counts feature costs only: set budget_counts='features' or leave out "
                "guarantee"
            )
