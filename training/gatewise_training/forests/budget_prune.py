"""BudgetPrune: a random forest, pruned exactly under feature cost.

Nan, Wang & Saligrama, "Pruning random forests for prediction on a budget", NIPS 2016, and its
predecessor "Optimally pruning decision tree ensembles with feature cost", 2016. A forest is grown,
and all its trees are pruned together so that training error plus ``lam`` times the mean cost of an
instance is least, for every ``lam`` at once (:mod:`gatewise_training.prune`). Beyond the papers,
the growth of the trees may consider prices as well (:mod:`gatewise_training.forests.grower`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any, ClassVar, Literal

import joblib
import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.ensemble import ExtraTreesClassifier, RandomForestClassifier
from sklearn.frozen import FrozenEstimator
from sklearn.utils._param_validation import Interval, StrOptions

from gatewise.errors import InputError
from gatewise.models.stage import Stage
from gatewise_training.cascades.base import BudgetedClassifier
from gatewise_training.cascades.fit_problem import FittedStages, Problem
from gatewise_training.data.input_checks import AT_LEAST_1, NOT_NEGATIVE, Constraints, is_fitted
from gatewise_training.data.parallel_fits import parallel_results
from gatewise_training.data.validation_split import Rows
from gatewise_training.forests.base import FittedTrees, ForestModel, GrowingForest
from gatewise_training.forests.grower.binning import Codes
from gatewise_training.forests.grower.growth import SplitRule
from gatewise_training.learners.model_families import with_all_classes
from gatewise_training.prune import PruningPath, prune
from gatewise_training.prune.forest import Forest
from gatewise_training.prune.pruning import SOLVERS, forest_of

PRUNING_ROWS = 16_000
"""Most growing rows that pruning uses, because each makes some hundred acquisitions."""

GAP = 0.5
"""Share of the step between two points by which an exact pruning may stay below a budget."""

MUS = (0.1, 0.03, 0.0)
"""Bits that an acquisition of mean price must save, tried by cost-aware growth; 0 is last."""


@dataclass(eq=False, repr=False, kw_only=True)
class BudgetPrune(ForestModel):
    """A random forest pruned for a budget; an instance acquires the features on its own paths.

    Nan, Wang & Saligrama, "Pruning random forests for prediction on a budget", NIPS 2016, section 3
    (IP), whose optimum the `solver` finds; "primal_dual" is its algorithm 1.

    A single model without a cloud. Operating points are prunings of one forest, the last of them
    the whole forest. An instance pays once for each feature on its paths, over all trees.

    The growing rows give the errors of the nodes, the *pruning rows* the costs; labels of pruning
    rows are not used. The paper prunes on the validation rows, where it also chooses the operating
    point. That understates the cost that pruning has just minimised, by 2 to 5 % on Letters (12,000
    rows grow 20 trees, 4,000 prune). By default the growing rows are the pruning rows: prunings are
    as good on unseen rows, their costs are estimated within 1 to 2 %, and the validation rows are
    unseen.

    Further parameters: :class:`.SingleModel`.

    Parameters
    ----------
    allow_missing, random_state
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
        Growth of the default forest: by the gain in entropy, or by this gain less `mu` times the
        price of features that instances at the node have not acquired in earlier splits or trees.
        With "cost-aware" several forests are grown and pruned, and the frontier takes the best
        prunings of all.
    mu : float or "auto", default "auto"
        For "cost-aware": the gain in bits that one instance's acquisition of mean price must
        bring. "auto" tries 0.1, 0.03 and 0.
    depth_cost : float, default 0.0
        Price of one node's evaluation, averaged over the trees, in the unit of the feature costs;
        only the pruning counts it.
    solver : {"mincut", "lp", "dantzig_wolfe", "primal_dual"}, default "mincut"
        See :func:`gatewise_training.prune.prune`.
    n_points : int, default 30
        Number of prunings, evenly spaced in cost. Between neighbours of the exact frontier that lie
        further apart, the better of per-tree pruning and GreedyPrune fills the gap
        (:meth:`.PruningPath.within`).
    pruning_rows : {"training", "validation"}, default "training"
        Rows whose costs are minimised. "training": the rows that grow the trees (or, for a
        fitted forest, the rows of `fit`), at most 16,000 of them, as in the predecessor.
        "validation": the validation rows, as in the paper.
    node_errors : {"in-bag", "training"}, default "in-bag"
        Rows whose errors count at a node: each tree's bootstrap sample, as in the paper, or all
        rows that grow the trees, as in the predecessor. Leaves answer by the bootstrap samples.

    Attributes
    ----------
    forest_ : Forest
        The forest of which the operating point is a pruning, before pruning.
    path_ : PruningPath
        The whole exact frontier of its prunings, on the pruning rows, with the sequences of
        per-tree pruning and GreedyPrune.
    grown_ : tuple of pairs (Forest, PruningPath)
        The forest and the frontier of each operating point, by its `chain`.

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
    growth: Literal["standard", "cost-aware"] = "standard"
    mu: float | Literal["auto"] = "auto"
    depth_cost: float = 0.0
    solver: str = "mincut"
    n_points: int = 30
    pruning_rows: Literal["training", "validation"] = "training"
    node_errors: Literal["in-bag", "training"] = "in-bag"

    _parameter_constraints: ClassVar[Constraints] = {
        "n_estimators": [AT_LEAST_1],
        "growth": [StrOptions({"standard", "cost-aware"})],
        "mu": [StrOptions({"auto"}), NOT_NEGATIVE],
        "depth_cost": [NOT_NEGATIVE],
        "solver": [StrOptions(set(SOLVERS))],
        "n_points": [Interval(Integral, 2, None, closed="left")],
        "pruning_rows": [StrOptions({"training", "validation"})],
        "node_errors": [StrOptions({"in-bag", "training"})],
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
        fitted_forest = self._fitted_forest()
        mus = self._mus()
        row_pairs: list[tuple[Rows, Rows]] = list(plan.folds)
        if len(row_pairs) > 1:
            row_pairs.append((plan.fit_rows, plan.validation_rows))
        n_forests = len(mus) * len(row_pairs)
        n_jobs = None if n_forests == 1 else 1  # one forest grows its trees in parallel
        jobs = [
            joblib.delayed(self._grow_and_prune)(
                problem, rows, validation_rows, fitted_forest, mu, n_jobs
            )
            for mu in mus
            for rows, validation_rows in row_pairs
        ]
        fits: list[_Pruned] = []
        for fit in parallel_results(jobs, n_jobs=None if n_forests > 1 else 1, require="sharedmem"):
            fits.append(fit)
            problem.report(len(fits), n_forests + 1, "pruning")
        candidates: list[FittedStages] = []
        for start in range(0, len(fits), len(row_pairs)):
            members = fits[start : start + len(row_pairs)]
            candidates += _candidates(problem, members, self.n_points)
        return candidates

    def _grow_and_prune(
        self,
        problem: Problem,
        rows: Rows,
        validation_rows: Rows,
        fitted_forest: Forest | None,
        mu: float | None,
        n_jobs: int | None,
    ) -> _Pruned:
        """Grow a forest, or take the fitted one, and prune it for all prices of cost."""
        plan = problem.plan
        forest = fitted_forest or self._grow(problem, rows, mu, n_jobs)
        pruning = self._pruning_rows(problem.seed, rows, validation_rows)
        training = None
        if self.node_errors == "training":
            training = plan.x[rows], plan.y[rows]
        path = prune(
            forest,
            np.ascontiguousarray(plan.x[pruning]),
            plan.y[pruning],
            problem.costs,
            solver=self.solver,
            depth_cost=self.depth_cost,
            training=training,
        )
        gap = GAP * float(path.sequence.costs[0]) / self.n_points
        return _Pruned(forest, path, gap)

    def _grow(self, problem: Problem, rows: Rows, mu: float | None, n_jobs: int | None) -> Forest:
        """Grow trees independently or, at a price of acquisitions, one after another."""
        plan = problem.plan
        seed = problem.seed
        x = np.ascontiguousarray(plan.x[rows])
        if mu is not None:  # acquisitions of earlier trees are free
            rule = SplitRule(criterion="entropy", mu=mu)
            growing = GrowingForest(problem, rows, Codes.of_table(x), (seed,), rule)
            growing.add(growing.append_places(self.n_estimators))
            return Forest.join(growing.trees)
        model = RandomForestClassifier(
            self.n_estimators,
            criterion="entropy",
            max_features=None,
            random_state=seed,
            n_jobs=n_jobs,
        )
        if self.estimator is not None:
            model = clone(self.estimator)
            if model.get_params().get("random_state", 0) is None:
                model.set_params(random_state=seed)
        model.fit(x, plan.y[rows], sample_weight=plan.weight[rows])
        return _widened(forest_of(model), np.asarray(model.classes_, np.intp), problem.n_classes)

    def _mus(self) -> Sequence[float | None]:
        """Prices of growth to try, the least one last."""
        if self.growth == "standard":
            return (None,)
        return MUS if self.mu == "auto" else (float(self.mu),)

    def _fitted_forest(self) -> Forest | None:
        """The forest of a fitted `estimator`, over the classes of the data; None without one."""
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
        classes = np.asarray(estimator.classes_)
        index = np.searchsorted(self.classes_, classes).clip(max=len(self.classes_) - 1)
        is_missing = self.classes_[index] != classes
        if is_missing.any():
            raise InputError(f"class {classes[is_missing].tolist()[0]!r} of the forest is not in y")
        return _widened(forest_of(estimator), index, len(self.classes_))

    def _pruning_rows(self, seed: int, rows: Rows, validation_rows: Rows) -> Rows:
        """Rows for the costs that pruning minimises, among growing and validation rows."""
        if self.pruning_rows == "validation":
            return validation_rows
        if len(rows) <= PRUNING_ROWS:
            return rows
        return np.sort(np.random.default_rng(seed).choice(rows, PRUNING_ROWS, replace=False))

    def _check_settings(self) -> None:
        super()._check_settings()
        if self.growth == "cost-aware" and self.estimator is not None:
            raise InputError("growth='cost-aware' grows its own forest; leave out the estimator")


@dataclass(frozen=True, eq=False)
class _Pruned:
    """A forest and its exact path."""

    forest: Forest
    path: PruningPath
    gap: float  # how far the cost may stay below a budget before a gap is filled

    def stage(self, budget: float | None) -> Stage:
        """The pruning within a budget, or the whole forest, as a device runs it."""
        forest = self.forest
        if budget is not None:
            forest = self.path.within(budget=budget, gap=self.gap).forest
        return Stage.from_model(forest.trees, "identity", acquisition="node")


def _candidates(problem: Problem, members: Sequence[_Pruned], n_points: int) -> list[FittedStages]:
    """Prunings of a forest at the same costs in all folds, from leaves to the whole forest."""
    plan = problem.plan
    final = members[-1]
    highest = float(final.path.sequence.costs[0])
    budgets = np.linspace(0.0, highest, n_points) if highest > 0 else np.zeros(0)
    candidates: list[FittedStages] = []
    fold_x = [np.ascontiguousarray(plan.x[rows]) for _, rows in plan.folds]
    for budget in (*budgets.tolist(), None):
        stages = [member.stage(budget) for member in members[: len(fold_x)]]
        outputs = np.concatenate([s.margins(x) for s, x in zip(stages, fold_x, strict=True)])
        acquired = np.concatenate([s.acquired(x) for s, x in zip(stages, fold_x, strict=True)])
        stage = stages[0] if len(members) == 1 else final.stage(budget)
        source = final.forest, final.path
        candidates.append(FittedTrees((stage,), (outputs,), (acquired,), source=source))
    return candidates


def _widened(forest: Forest, classes: NDArray[np.intp], n_classes: int) -> Forest:
    """Give a forest of some classes columns for all of them."""
    if len(classes) == n_classes:
        return forest
    counts = np.zeros((forest.n_nodes, n_classes))
    counts[:, classes] = forest.counts
    trees = with_all_classes(forest.trees, classes, n_classes)
    return replace(forest, trees=trees, counts=counts)
