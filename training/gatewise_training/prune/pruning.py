"""The function :func:`prune`, which finds all optimal prunings of a forest."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.ensemble import ExtraTreesClassifier, RandomForestClassifier

from gatewise.errors import InputError
from gatewise_training.data.input_checks import check_costs, index_labels, is_fitted
from gatewise_training.prune.forest import Forest
from gatewise_training.prune.path import (
    PriceSolver,
    PruningPath,
    breakpoints,
    breakpoints_by_solver,
)
from gatewise_training.prune.problem import build_problem
from gatewise_training.prune.solvers import dantzig_wolfe, lp, primal_dual

#: Solvers for one price of cost. The minimum cut is missing, because it solves all prices.
_SOLVERS: dict[str, PriceSolver] = {
    "lp": lp.solve,
    "dantzig_wolfe": dantzig_wolfe.solve,
    "primal_dual": primal_dual.solve,
}

#: Names of the solvers; all but the last are exact.
SOLVERS = ("mincut", *_SOLVERS)


def prune(
    forest: Any,
    X_val: ArrayLike,
    y_val: ArrayLike | None,
    costs: Any,
    *,
    solver: str = "mincut",
    depth_cost: float = 0.0,
    training: tuple[ArrayLike, ArrayLike] | tuple[ArrayLike, ArrayLike, ArrayLike] | None = None,
) -> PruningPath:
    """Find every optimal pruning of a forest, from the whole forest to single leaves.

    Parameters
    ----------
    forest : Forest, fitted RandomForestClassifier or ExtraTreesClassifier, or an estimator with
        ``forest_``
    X_val : array-like of shape (n, n_features)
        Instances over which the cost is averaged.
    y_val : array-like of shape (n,), or None
        Labels of these instances. Only the accuracies of :meth:`PruningPath.frontier` need them.
    costs : FeatureCosts, dict or Series by name, or list
    solver : {"mincut", "lp", "dantzig_wolfe", "primal_dual"}, default "mincut"
        The solvers other than "mincut" solve the whole problem again for each price. They serve as
        checks.
    depth_cost : float, default 0.0
        Price of one unit of expected depth, which is one node passed in every tree.
    training : pair (X, y), optional
        Training rows from which the node errors are counted, as in "Optimally pruning decision
        tree ensembles with feature cost", 2016. By default they are counted from each tree's own
        bootstrap sample, as in BudgetPrune.

    Returns
    -------
    PruningPath

    Raises
    ------
    InputError
        For an unknown solver, another ensemble than a forest, labels outside the forest's classes,
        columns in another order than the forest's, or shapes that do not agree.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> from sklearn.ensemble import RandomForestClassifier
    >>> from gatewise.costs import FeatureCosts
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> forest = RandomForestClassifier(5, random_state=0).fit(X[:400], y[:400])
    >>> path = prune(forest, X[400:], y[400:], FeatureCosts.uniform(30))
    >>> path.at(budget=3.0).cost <= 3.0 < path.at(lam=0.0).cost
    True
    """
    if solver not in SOLVERS:
        raise InputError(f"no solver {solver!r}; the solvers are {', '.join(SOLVERS)}")
    trees = forest_of(forest)
    classes = np.asarray(getattr(forest, "classes_", np.arange(trees.n_classes)))
    x = _as_rows(X_val)
    column_names = getattr(X_val, "columns", None)
    check_columns(forest, column_names)
    names = range(x.shape[1]) if column_names is None else column_names
    costs = check_costs(costs, tuple(map(str, names)), column_names is not None)
    y = None
    if y_val is not None:
        unknown_label_text = "the forest has no class {}, which is in y_val"
        y = index_labels(np.asarray(y_val).tolist(), classes, unknown_label_text)
    training_counts = None
    if training is not None:
        unknown_label_text = "the forest has no class {}, which is in the training rows"
        labels = index_labels(np.asarray(training[1]).tolist(), classes, unknown_label_text)
        weight = np.ones(len(labels)) if len(training) == 2 else np.asarray(training[2], float)
        training_counts = trees.count_rows(_as_rows(training[0]), labels, weight)
    problem = build_problem(trees, x, costs, depth_cost=depth_cost, training_counts=training_counts)
    if solver == "mincut":
        prices = breakpoints(problem)
    else:
        prices = breakpoints_by_solver(_SOLVERS[solver], problem)
    return PruningPath(trees, problem, prices, x, y, costs)


def check_columns(forest: Any, column_names: Iterable[Any] | None) -> None:
    """Raise InputError if a forest was fitted on columns of other names, or in another order."""
    names_of_forest = getattr(forest, "feature_names_in_", None)
    if column_names is None or names_of_forest is None:
        return
    for index, (own_name, name) in enumerate(zip(names_of_forest, column_names, strict=False)):
        if own_name != name:
            raise InputError(
                f"the forest was fitted with {own_name!r} as column {index}, the data has "
                f"{name!r} there: give the columns in the forest's order"
            )


def _as_rows(X: ArrayLike) -> NDArray[np.float32]:
    return np.ascontiguousarray(np.asarray(X), np.float32)


def forest_of(estimator: Any) -> Forest:
    """Get the flat form of a forest, or of an estimator's forest."""
    forest = getattr(estimator, "forest_", estimator)
    if isinstance(forest, Forest):
        return forest
    is_forest = isinstance(estimator, RandomForestClassifier | ExtraTreesClassifier)
    if not is_forest or not is_fitted(estimator):  # other ensembles combine trees in another way
        raise InputError(
            "forest must be a Forest, a fitted RandomForestClassifier or ExtraTreesClassifier, or "
            f"an estimator with the attribute forest_, not {type(estimator).__name__}"
        )
    return Forest.from_sklearn(estimator)
