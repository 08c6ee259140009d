"""CEGBClassifier: boosted trees with prices on splits and features (NIPS 2017, section 3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gatewise.errors import InputError
from gatewise_training.cascades.fit_problem import FitProblem, FittedStages
from gatewise_training.cascades.single_model import SingleModel
from gatewise_training.cegb.base import CostEfficientModel
from gatewise_training.cegb.objectives import ClassTarget
from gatewise_training.learners.boosting import MAX_SMALL_ROWS
from gatewise_training.learners.high_cost_model import Accounting
from gatewise_training.learners.high_cost_training import tree_shape


@dataclass(eq=False, repr=False, kw_only=True)
class CEGBClassifier(CostEfficientModel, SingleModel):
    """Cost-efficient gradient boosting, where each instance pays for its paths through the trees.

    Peter, Diego, Hamprecht & Nadler, "Cost efficient gradient boosting", NIPS 2017, section 3, in
    LightGBM's implementation. The gain of a split is the decrease of the loss minus ``penalty``
    times the cost of the split (equations 12 and 13). One model is fitted for each penalty. Each
    model, and the models of its first rounds, give operating points. There is no cloud.

    Further parameters: :class:`.CostEfficientModel` and :class:`.SingleModel`.

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
