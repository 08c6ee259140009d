"""BudgetPrune: a random forest that is pruned exactly under feature cost.

The method is from Nan, Wang & Saligrama, "Pruning random forests for prediction on a budget", NIPS
2016, and its predecessor "Optimally pruning decision tree ensembles with feature cost", 2016. A
forest is grown, and all its trees are pruned together to minimise the training error plus ``lam``
times the mean cost per instance, for every ``lam`` at once (:mod:`gatewise_training.prune`). Beyond
the papers, the growth of the trees can also consider prices
(:mod:`gatewise_training.forests.grower`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any, ClassVar, Literal, NamedTuple

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
from gatewise_training.cascades.fit_problem import FitProblem, FittedStages
from gatewise_training.data.input_checks import (
    AT_LEAST_1,
    NOT_NEGATIVE,
    Constraints,
    index_labels,
    is_fitted,
    named_rows,
)
from gatewise_training.data.parallel_fits import parallel_results
from gatewise_training.data.validation_split import Rows
from gatewise_training.forests.base import FittedTrees, ForestModel, GrowingForest
from gatewise_training.forests.grower.binning import Codes
from gatewise_training.forests.grower.growth import SplitRule
from gatewise_training.learners.model_families import with_all_classes
from gatewise_training.prune import PruningPath, prune
from gatewise_training.prune.forest import Forest
from gatewise_training.prune.path import SOLVERS, check_columns, forest_of

#: Maximum number of pruning rows, each of which makes some hundred acquisitions.
PRUNING_ROWS = 16_000

#: Largest distance of an exact pruning's cost below a budget, in steps between two points, at which
#: no other pruning is tried.
MAX_GAP = 0.5

#: Bits that an acquisition of mean price must save, which cost-aware growth tries in this order.
MUS = (0.1, 0.03, 0.0)


@dataclass(eq=False, repr=False, kw_only=True)
class BudgetPrune(ForestModel):
    """A random forest pruned for a budget; each instance acquires the features on its own paths.

    Nan, Wang & Saligrama, "Pruning random forests for prediction on a budget", NIPS 2016, section 3
    (IP). The `solver` finds the optimum; "primal_dual" is algorithm 1 of the paper.

    It is a single model without a cloud. The operating points are prunings of one forest, and the
    last point is the whole forest. An instance pays once for each feature on its paths through all
    trees.

    The rows that grow the trees give the errors of the nodes. The *pruning rows* give the costs,
    and their labels are not used. The paper prunes on the validation rows, on which it also chooses
    the operating point. This underestimates the cost that pruning has just minimised, by 2 to 5 %
    on Letters (12,000 rows grow 20 trees, 4,000 rows prune them). By default the rows that grow the
    trees are the pruning rows. The prunings are then as good on unseen rows, their costs are
    estimated within 1 to 2 %, and neither growth nor pruning has seen the validation rows.

    Further parameters: :class:`.SingleModel`.

    Parameters
    ----------
    max_loss : float, default 0.01
        Without a budget, the cheapest pruning within this accuracy loss of the whole forest is
        chosen.
    estimator : forest, optional
        A scikit-learn RandomForestClassifier or ExtraTreesClassifier, or an estimator of this
        library with a ``forest_``. A fitted estimator, also inside a FrozenEstimator, is pruned
        without a refit; give `fit` rows that it has not seen. Otherwise a clone is fitted. The
        default is a forest of `n_estimators` entropy trees of full depth that choose from all
        features, as in the paper.
    n_estimators : int, default 40
        Number of trees of the default forest.
    growth : {"standard", "cost-aware"}, default "standard"
        Growth of the default forest. "standard" splits by the gain in entropy. "cost-aware"
        subtracts `mu` times the price of the features that instances at the node have not acquired
        in earlier splits or trees. It grows and prunes several forests, and the frontier consists
        of the best prunings of all of them.
    mu : float or "auto", default "auto"
        With "cost-aware", the gain in bits that an acquisition of mean price by one instance must
        bring. "auto" tries 0.1, 0.03 and 0.
    depth_cost : float, default 0.0
        Price of one node's evaluation, averaged over the trees, in the unit of the feature costs.
        Only the pruning counts it.
    solver : {"mincut", "lp", "dantzig_wolfe", "primal_dual"}, default "mincut"
        See :func:`gatewise_training.prune.prune`.
    n_points : int, default 30
        Number of prunings, evenly spaced in cost. If neighbours on the exact frontier lie further
        apart, the better of per-tree pruning and GreedyPrune fills the gap
        (:meth:`.PruningPath.within`).
    pruning_rows : {"training", "validation"}, default "training"
        Rows over which the cost is minimised. "training" means the rows that grow the trees (or,
        with a fitted forest, the rows of `fit`), at most 16,000 of them, as in the predecessor.
        "validation" means the validation rows, as in the paper.
    node_errors : {"in-bag", "training"}, default "in-bag"
        Rows from which the errors of a node are counted. "in-bag" means each tree's bootstrap
        sample, as in the paper. "training" means all rows that grow the trees, as in the
        predecessor. Leaves always predict from the bootstrap samples.

    Attributes
    ----------
    forest_ : Forest
        The whole forest of the operating point, before pruning.
    path_ : PruningPath
        All optimal prunings of this forest on the pruning rows, with the sequences of per-tree
        pruning and GreedyPrune.
    sources_ : tuple of ForestAndPath
        Forest and path of each operating point. The index of an entry is the `chain` of the point.

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
        """The whole forest of the operating point, before pruning."""
        forest: Forest = self.sources_[self.operating_point_.chain].forest
        return forest

    @property
    def path_(self) -> PruningPath:
        """All optimal prunings of this forest on the pruning rows."""
        path: PruningPath = self.sources_[self.operating_point_.chain].path
        return path

    def _fit_candidates(self, problem: FitProblem) -> Sequence[FittedStages]:
        split = problem.split
        fitted_forest = self._get_fitted_forest()
        mus = self._list_mus()
        row_pairs: list[tuple[Rows, Rows]] = list(split.folds)
        if len(row_pairs) > 1:
            row_pairs.append((split.fit_rows, split.validation_rows))
        n_forests = len(mus) * len(row_pairs)
        n_jobs = None if n_forests == 1 else 1  # a single forest grows its trees in parallel
        jobs = [
            joblib.delayed(self._grow_and_prune)(
                problem, rows, validation_rows, fitted_forest, mu, n_jobs
            )
            for mu in mus
            for rows, validation_rows in row_pairs
        ]
        fits: list[_PrunedForest] = []
        for fit in parallel_results(jobs, n_jobs=None if n_forests > 1 else 1, require="sharedmem"):
            fits.append(fit)
            problem.report_progress(len(fits), n_forests + 1, "pruning")
        # `fits` has the forests of one price after the other, each in the order of `row_pairs`
        candidates: list[FittedStages] = []
        for start in range(0, len(fits), len(row_pairs)):
            pruned_forests = fits[start : start + len(row_pairs)]
            candidates += _make_candidates(problem, pruned_forests, self.n_points)
        return candidates

    def _grow_and_prune(
        self,
        problem: FitProblem,
        rows: Rows,
        validation_rows: Rows,
        fitted_forest: Forest | None,
        mu: float | None,
        n_jobs: int | None,
    ) -> _PrunedForest:
        """Grow a forest, or take the fitted one, and prune it for all prices of cost."""
        split = problem.split
        forest = fitted_forest or self._grow(problem, rows, mu, n_jobs)
        pruning_rows = self._select_pruning_rows(problem.seed, rows, validation_rows)
        training = None
        if self.node_errors == "training":
            training = split.x[rows], split.y[rows], split.weight[rows]
        path = prune(
            forest,
            np.ascontiguousarray(split.x[pruning_rows]),
            split.y[pruning_rows],
            problem.costs,
            solver=self.solver,
            depth_cost=self.depth_cost,
            training=training,
        )
        max_gap = MAX_GAP * float(path.sequence.costs[0]) / self.n_points
        return _PrunedForest(forest, path, max_gap)

    def _grow(
        self, problem: FitProblem, rows: Rows, mu: float | None, n_jobs: int | None
    ) -> Forest:
        """Grow a forest; if acquisitions have a price `mu`, its trees grow in sequence."""
        split = problem.split
        seed = problem.seed
        x = np.ascontiguousarray(split.x[rows])
        if mu is not None:
            rule = SplitRule(criterion="entropy", mu=mu)
            forest = GrowingForest(problem, rows, Codes.of_table(x), (seed,), rule)
            forest.grow_trees(forest.reserve(self.n_estimators))
            return Forest.join(forest.trees)
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
        # fit on the user's labels, which its settings may name, as class_weight does
        labels = self.classes_[split.y[rows]]
        model.fit(named_rows(self, x), labels, sample_weight=split.weight[rows])
        indices = np.searchsorted(self.classes_, model.classes_)
        return _with_all_classes(forest_of(model), indices, problem.n_classes)

    def _list_mus(self) -> Sequence[float | None]:
        """List the prices of acquisitions to try, from the highest; None for standard growth."""
        if self.growth == "standard":
            return (None,)
        return MUS if self.mu == "auto" else (float(self.mu),)

    def _get_fitted_forest(self) -> Forest | None:
        """Get the forest of a fitted `estimator`, over the classes of the data, or None."""
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
                f"estimator with the attribute forest_, not {type(estimator).__name__}"
            )
        if not is_fitted(estimator):
            if isinstance(self.estimator, FrozenEstimator):
                raise InputError("estimator is frozen and not fitted: fit it, or do not freeze it")
            return None
        if estimator.n_features_in_ != self.n_features_in_:
            raise InputError(
                f"the forest has {estimator.n_features_in_} features, but the data has "
                f"{self.n_features_in_}"
            )
        check_columns(estimator, getattr(self, "feature_names_in_", None))
        forest_classes = np.asarray(estimator.classes_).tolist()
        indices = index_labels(forest_classes, self.classes_, "class {} of the forest is not in y")
        return _with_all_classes(forest_of(estimator), indices, len(self.classes_))

    def _select_pruning_rows(self, seed: int, rows: Rows, validation_rows: Rows) -> Rows:
        """Select the rows over which pruning minimises the cost; `rows` grow the trees."""
        if self.pruning_rows == "validation":
            return validation_rows
        if len(rows) <= PRUNING_ROWS:
            return rows
        return np.sort(np.random.default_rng(seed).choice(rows, PRUNING_ROWS, replace=False))

    def _check_settings(self) -> None:
        super()._check_settings()
        if self.growth == "cost-aware" and self.estimator is not None:
            raise InputError("growth='cost-aware' grows its own forest: leave out estimator")


class ForestAndPath(NamedTuple):
    """A forest, and all its optimal prunings."""

    forest: Forest
    path: PruningPath


@dataclass(frozen=True, eq=False)
class _PrunedForest:
    """A forest of one fit, with its prunings."""

    forest: Forest
    path: PruningPath
    max_gap: float  # see :meth:`.PruningPath.within`

    def stage(self, budget: float | None) -> Stage:
        """Make a stage of the pruning within a budget, or of the whole forest."""
        forest = self.forest
        if budget is not None:
            forest = self.path.within(budget=budget, gap=self.max_gap).forest
        return Stage.from_model(forest.trees, "identity", acquisition="node")


def _make_candidates(
    problem: FitProblem, pruned_forests: Sequence[_PrunedForest], n_points: int
) -> list[FittedStages]:
    """Make candidates with the same budgets in all folds, from single leaves to the whole forest.

    The last forest is the final one. If there are several folds, each has a forest before it.
    """
    split = problem.split
    final_forest = pruned_forests[-1]
    highest_cost = float(final_forest.path.sequence.costs[0])
    budgets = np.linspace(0.0, highest_cost, n_points) if highest_cost > 0 else np.zeros(0)
    candidates: list[FittedStages] = []
    fold_x = [np.ascontiguousarray(split.x[rows]) for _, rows in split.folds]
    for budget in (*budgets.tolist(), None):
        stages = [pruned_forest.stage(budget) for pruned_forest in pruned_forests[: len(fold_x)]]
        stages_and_x = list(zip(stages, fold_x, strict=True))
        outputs = np.concatenate([fold_stage.margins(x) for fold_stage, x in stages_and_x])
        acquired = np.concatenate([fold_stage.acquired(x) for fold_stage, x in stages_and_x])
        stage = stages[0] if len(pruned_forests) == 1 else final_forest.stage(budget)
        source = ForestAndPath(final_forest.forest, final_forest.path)
        candidates.append(FittedTrees((stage,), (outputs,), (acquired,), source=source))
    return candidates


def _with_all_classes(forest: Forest, classes: NDArray[np.intp], n_classes: int) -> Forest:
    """Add columns of zeros to a forest for the classes that it has not seen."""
    if len(classes) == n_classes:
        return forest
    counts = np.zeros((forest.n_nodes, n_classes))
    counts[:, classes] = forest.counts
    trees = with_all_classes(forest.trees, classes, n_classes)
    return replace(forest, trees=trees, counts=counts)
