"""The public function of the package: a forest, rows and prices in, all optimal prunings out."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from gatewise.costs import FeatureCosts
from gatewise.errors import InputError
from gatewise_training.prune.forest import Forest
from gatewise_training.prune.path import PruningPath, Solve, breakpoints, breakpoints_by
from gatewise_training.prune.problem import build_problem
from gatewise_training.prune.solvers import dantzig_wolfe, lp, primal_dual

_SOLVERS: dict[str, Solve] = {
    "lp": lp.solve,
    "dantzig_wolfe": dantzig_wolfe.solve,
    "primal_dual": primal_dual.solve,
}
"""Solvers for one price of cost; the minimum cut has a way of its own to all prices."""

SOLVERS = ("mincut", *_SOLVERS)
"""Names of the solvers; all but the last are exact."""


def prune(
    forest: Any,
    X_val: ArrayLike,
    y_val: ArrayLike | None,
    costs: FeatureCosts,
    *,
    solver: str = "mincut",
    depth_cost: float = 0.0,
    **settings: Any,
) -> PruningPath:
    """Find every optimal pruning of a forest, from the whole one to single leaves.

    Parameters
    ----------
    forest : Forest, fitted RandomForestClassifier or ExtraTreesClassifier, or an estimator with
        ``forest_``
    X_val : array-like of shape (n, n_features)
        Instances whose mean cost counts.
    y_val : array-like of shape (n,), or None
        Their labels, for the accuracies of :meth:`PruningPath.frontier` only.
    costs : FeatureCosts
    solver : {"mincut", "lp", "dantzig_wolfe", "primal_dual"}, default "mincut"
        The others solve the whole problem again for each price, and are for checking.
    depth_cost : float, default 0.0
        Price of a unit of expected depth: of passing one node in every tree.
    **settings
        The solver's own.

    Returns
    -------
    PruningPath

    Raises
    ------
    InputError
        For an unknown solver, labels that are no class of the forest, or shapes that do not agree.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> from sklearn.ensemble import RandomForestClassifier
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> forest = RandomForestClassifier(5, random_state=0).fit(X[:400], y[:400])
    >>> path = prune(forest, X[400:], y[400:], FeatureCosts.uniform(30))
    >>> path.at(budget=3.0).cost <= 3.0 < path.at(lam=0.0).cost
    True
    """
    if solver not in SOLVERS:
        raise InputError(f"no solver {solver!r}; there are {', '.join(SOLVERS)}")
    known = forest_of(forest)
    classes = np.asarray(getattr(forest, "classes_", np.arange(known.n_classes)))
    x = np.ascontiguousarray(np.asarray(X_val), np.float32)
    y = None
    if y_val is not None:
        place = np.searchsorted(classes, np.asarray(y_val)).clip(max=len(classes) - 1)
        unknown = classes[place] != np.asarray(y_val)
        if unknown.any():
            example = np.asarray(y_val)[unknown].tolist()[0]
            raise InputError(f"the forest does not know class {example!r} of y_val")
        y = place.astype(np.int64)
    problem = build_problem(known, x, costs, depth_cost=depth_cost)
    if solver == "mincut":
        until = breakpoints(problem)
    else:
        until = breakpoints_by(partial(_SOLVERS[solver], **settings), problem)
    return PruningPath(known, problem, until, x, y)


def forest_of(estimator: Any) -> Forest:
    """Get the flat form of a forest, or of an estimator's."""
    own = getattr(estimator, "forest_", estimator)
    if isinstance(own, Forest):
        return own
    if not hasattr(estimator, "estimators_") or not hasattr(estimator, "classes_"):
        raise InputError(
            "forest must be a Forest, a fitted RandomForestClassifier or ExtraTreesClassifier, or "
            f"an estimator with a forest_, not {type(estimator).__name__}"
        )
    return Forest.from_sklearn(estimator)
