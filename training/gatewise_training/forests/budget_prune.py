"""BudgetPrune: a random forest, pruned exactly under feature cost.

Nan, Wang & Saligrama, "Pruning random forests for prediction on a budget", NIPS 2016, and its
predecessor "Optimally pruning decision tree ensembles with feature cost", 2016. A forest is grown,
and all its trees are pruned together so that training error plus ``lam`` times the mean cost of an
instance is least, for every ``lam`` at once (:mod:`gatewise_training.prune`). Beyond the papers
the trees may be grown with prices in view too (:mod:`gatewise_training.forests.grower`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any, ClassVar, Literal

import joblib
import numpy as np
from sklearn.ensemble import ExtraTreesClassifier, RandomForestClassifier
from sklearn.frozen import FrozenEstimator
from sklearn.utils._param_validation import Interval, StrOptions

from gatewise.errors import InputError
from gatewise_training.cascades.base import BudgetedClassifier
from gatewise_training.cascades.fit_problem import FittedStages, Problem
from gatewise_training.data.input_checks import AT_LEAST_1, NOT_NEGATIVE, Constraints, is_fitted
from gatewise_training.data.validation_split import Rows
from gatewise_training.forests.base import ForestModel
from gatewise_training.forests.pruned_forest import (
    Pruned,
    Recipe,
    candidates_of,
    forest_of,
    widened,
)
from gatewise_training.prune import PruningPath
from gatewise_training.prune.forest import Forest
from gatewise_training.prune.pruning import SOLVERS

PRUNING_ROWS = 16_000
"""Of more growing rows so many are drawn: each makes some hundred acquisitions."""

PruningRows = Literal["training", "validation"]
Growth = Literal["standard", "cost-aware"]

MUS = (0.1, 0.03, 0.0)
"""Bits that an acquisition of mean price must save, tried by cost-aware growth; 0 is last."""


@dataclass(eq=False, repr=False, kw_only=True)
class BudgetPrune(ForestModel):
    """A random forest pruned for a budget; an instance acquires the features on its own paths.

    Nan, Wang & Saligrama, "Pruning random forests for prediction on a budget", NIPS 2016, section 3
    (IP), whose optimum the `solver` finds; "primal_dual" is its algorithm 1.

    A single model, and no cloud: operating points are prunings of one forest, the last of them the
    whole forest. An instance pays for the features on the paths that it takes, each once, over all
    trees.

    Errors at the nodes are those of the growing rows. Costs are those of the *pruning rows*, whose
    labels are not used. The paper takes the validation rows for them, where the operating point is
    chosen too, which flatters the cost that pruning has just minimised: by 2 to 5 % on Letters
    (12,000 rows grow 20 trees, 4,000 prune). With the growing rows instead, prunings are as good on
    unseen rows, their costs are estimated within 1 to 2 %, and the validation rows are unseen: that
    is the default.

    Parameters
    ----------
    feature_costs, budget, min_recall, min_precision, class_weight, guarantee
        As for :class:`StagedCascade`.
    allow_missing, random_state, n_jobs, verbose
        As for :class:`StagedCascade`.
    max_loss : float, default 0.01
        Without a budget: the cheapest pruning within this accuracy loss of the whole forest.
    estimator : forest, optional
        A scikit-learn RandomForestClassifier or ExtraTreesClassifier, or an estimator of this
        library with a ``forest_``. Fitted (also inside a FrozenEstimator) it is pruned as it is:
        give `fit` rows that it has not seen. Not fitted, a copy is fitted. By default
        `n_estimators` entropy trees of full depth that choose from all features, as in the paper.
    n_estimators : int, default 40
        Trees of the default forest.
    growth : {"standard", "cost-aware"}, default "standard"
        How the default forest grows: by the gain in entropy, or by that less `mu` times what
        instances at the node have not acquired in earlier splits or trees. With "cost-aware"
        several forests are grown and pruned, and the frontier takes the best of all.
    mu : float or "auto", default "auto"
        For "cost-aware": the gain in bits that one instance's acquisition of mean price must
        bring.
        "auto" tries 0.1, 0.03 and 0.
    depth_cost : float, default 0.0
        Price of one node evaluated, averaged over the trees, in the unit of the feature costs; it
        takes part in the pruning only.
    solver : {"mincut", "lp", "dantzig_wolfe", "primal_dual"}, default "mincut"
        See :func:`gatewise_training.prune.prune`.
    n_points : int, default 30
        Prunings tried, evenly spaced in cost. Between neighbours of the exact frontier that lie
        further apart, the better of per-tree pruning and GreedyPrune fills the gap
        (:func:`gatewise_training.prune.nested_prunings.keep_within`); `path_` holds the exact
        frontier alone.
    pruning_rows : {"training", "validation"}, default "training"
        Rows of which the costs are minimised. "training": the rows that grow the trees (or, for a
        fitted forest, the rows given), at most 16,000 of them, as in the predecessor. "validation":
        the validation rows, as in the paper.

    Attributes
    ----------
    forest_ : Forest
        The forest of which the operating point is a pruning, before pruning.
    path_ : PruningPath
        The whole exact frontier of its prunings, on the pruning rows.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> pruned = BudgetPrune(budget=5.0, n_estimators=5, random_state=0).fit(X, y)
    >>> bool(pruned.operating_point_.cost <= 5.0)
    True
    """

    estimator: Any = None
    n_estimators: int = 40
    growth: Growth = "standard"
    mu: float | Literal["auto"] = "auto"
    depth_cost: float = 0.0
    solver: str = "mincut"
    n_points: int = 30
    pruning_rows: PruningRows = "training"

    _parameter_constraints: ClassVar[Constraints] = {
        "n_estimators": [AT_LEAST_1],
        "growth": [StrOptions({"standard", "cost-aware"})],
        "mu": [StrOptions({"auto"}), NOT_NEGATIVE],
        "depth_cost": [NOT_NEGATIVE],
        "solver": [StrOptions(set(SOLVERS))],
        "n_points": [Interval(Integral, 2, None, closed="left")],
        "pruning_rows": [StrOptions({"training", "validation"})],
    }

    @property
    def forest_(self) -> Forest:
        """The forest of which the operating point is a pruning, before pruning."""
        forest: Forest = self.grown_[self.operating_point_.chain][0]
        return forest

    @property
    def path_(self) -> PruningPath:
        """The exact frontier of that forest's prunings, on the pruning rows."""
        path: PruningPath = self.grown_[self.operating_point_.chain][1]
        return path

    def _fit_candidates(self, problem: Problem) -> Sequence[FittedStages]:
        plan = problem.plan
        given = self._given()
        parts: list[tuple[Rows, Rows]] = list(plan.folds)
        if len(parts) > 1:
            parts.append((plan.fit_rows, plan.validation_rows))
        mus = self._mus()
        jobs = []
        for mu in mus:
            for rows, held in parts:
                pruning = self._pruning_rows(problem.seed, rows, held)
                jobs.append(
                    Recipe(
                        problem=problem,
                        growing=rows,
                        pruning=pruning,
                        given=given,
                        estimator=self.estimator,
                        n_estimators=self.n_estimators,
                        mu=mu,
                        solver=self.solver,
                        depth_cost=self.depth_cost,
                        n_points=self.n_points,
                    )
                )
        fits: list[Pruned] = []
        n_jobs = problem.n_jobs if len(jobs) > 1 else 1  # one forest grows its trees in parallel
        for fit in joblib.Parallel(n_jobs, prefer="threads", return_as="generator")(
            joblib.delayed(job)(n_jobs=problem.n_jobs if len(jobs) == 1 else 1) for job in jobs
        ):
            fits.append(fit)
            problem.report(len(fits), len(jobs) + 1, "pruning")
        candidates: list[FittedStages] = []
        for first in range(0, len(fits), len(parts)):
            candidates += candidates_of(problem, fits[first : first + len(parts)], self.n_points)
        return candidates

    def _mus(self) -> Sequence[float | None]:
        """Prices of growth to try; the least stands last."""
        if self.growth == "standard":
            return (None,)
        return MUS if self.mu == "auto" else (float(self.mu),)

    def _given(self) -> Forest | None:
        """The forest of a fitted `estimator`, its classes those of the data; else None."""
        estimator = self.estimator
        if isinstance(estimator, FrozenEstimator):
            estimator = estimator.estimator
        if estimator is None:
            return None
        if not isinstance(
            estimator, RandomForestClassifier | ExtraTreesClassifier | BudgetedClassifier
        ):
            raise InputError(
                "estimator must be a RandomForestClassifier, an ExtraTreesClassifier or an "
                f"estimator with a forest_, not {type(estimator).__name__}"
            )
        if not is_fitted(estimator):
            return None
        if estimator.n_features_in_ != self.n_features_in_:
            raise InputError(
                f"the forest reads {estimator.n_features_in_} features, the data has "
                f"{self.n_features_in_}"
            )
        known = np.asarray(estimator.classes_)
        place = np.searchsorted(self.classes_, known).clip(max=len(self.classes_) - 1)
        missing = self.classes_[place] != known
        if missing.any():
            raise InputError(f"class {known[missing].tolist()[0]!r} of the forest is not in y")
        return widened(forest_of(estimator), place, len(self.classes_))

    def _pruning_rows(self, seed: int, rows: Rows, held: Rows) -> Rows:
        """Rows of which the costs are minimised, of growing and validation rows."""
        if self.pruning_rows == "validation":
            return held
        if len(rows) <= PRUNING_ROWS:
            return rows
        return np.sort(np.random.default_rng(seed).choice(rows, PRUNING_ROWS, replace=False))

    def _check_settings(self) -> None:
        super()._check_settings()
        if self.growth == "cost-aware" and self.estimator is not None:
            raise InputError("growth='cost-aware' grows its own forest; leave out the estimator")
