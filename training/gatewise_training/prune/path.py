"""All optimal prunings of a forest, from the whole forest down to single leaves.

Pruning turns inner nodes into leaves, which saves acquisitions and adds training errors. At a price
``lam`` of cost the optimal pruning minimises ``error + lam * cost``.

**One number per node.** A node that is pruned at one price is pruned at every higher price. The
price at which a node is pruned is its breakpoint. The breakpoints give every optimal pruning: at
``lam`` the inner nodes are the nodes with a breakpoint above ``lam``.

**The search.** The search starts with the set of all nodes. The nodes of a set together save
``saved_errors`` and cost ``cost``. At ``lam = saved_errors / cost``, keeping all of them is as good
as keeping no node. One minimum cut finds the best subset to keep at that price:

- If no subset is better than all or no nodes, ``lam`` is the breakpoint of every node of the set.
- If a subset is better, the nodes that it keeps have breakpoints above ``lam``, and the nodes that
  it prunes have breakpoints below. The search continues in both parts separately. In the pruned
  part, acquisitions of the kept nodes are free.

Each node and each acquisition is in one part at a time, and a minimum cut carries no flow from one
part to the other. Each part therefore starts with the flow of the previous cut. This is the
principal partition of a submodular function (Gallo, Grigoriadis & Tarjan, 1989).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numba
import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.ensemble import ExtraTreesClassifier, RandomForestClassifier

from gatewise.costs import FeatureCosts
from gatewise.errors import InputError
from gatewise_training.data.input_checks import check_costs, index_labels, is_fitted
from gatewise_training.prune.forest import Forest
from gatewise_training.prune.nested_prunings import PruneSequence, pruning_within
from gatewise_training.prune.other_prunings import greedy_prune, prune_each_tree
from gatewise_training.prune.presolve import DROPPED, FREE, Closure, Flow, reduce_problem
from gatewise_training.prune.problem import PruneProblem, Solution, build_problem, check_price
from gatewise_training.prune.solvers import dantzig_wolfe, lp, primal_dual
from gatewise_training.prune.solvers.mincut import best_closure, first_flow

#: A solver of a pruning problem at one price of cost.
PriceSolver = Callable[[PruneProblem, float], Solution]

#: Gains up to this share of the undecided nodes' profits are attributed to rounding; the minimum
#: cut leaves up to 1e-12 of them unsent.
ROUNDING = 1e-10


#: Solvers for one price of cost. The minimum cut is missing, because it solves all prices.
_SOLVERS: dict[str, PriceSolver] = {
    "lp": lp.solve,
    "dantzig_wolfe": dantzig_wolfe.solve,
    "primal_dual": primal_dual.solve,
}

#: Names of the solvers; all but the last are exact.
SOLVERS = ("mincut", *_SOLVERS)


class _OpenPart(NamedTuple):
    """A set of nodes that a minimum cut may still divide."""

    nodes: NDArray[np.intp]  # nodes of the reduced problem
    closure: Closure  # the problem of these nodes alone
    flow: Flow | None  # the flow of the previous cut, if there was one


def breakpoints(problem: PruneProblem) -> NDArray[np.float64]:
    """Find the price of cost at which each node is pruned, by minimum cuts on smaller parts."""
    closure, closure_number = reduce_problem(problem)
    prices = np.zeros(closure.n_nodes)
    open_parts = [_OpenPart(np.arange(closure.n_nodes), closure, None)]
    while open_parts:
        nodes, sub_closure, flow = open_parts.pop()
        if not len(nodes):
            continue
        total_profit = sub_closure.total_profit
        if sub_closure.cost <= 0.0:  # all acquisitions are already paid
            prices[nodes] = np.inf
            continue
        lam = total_profit / sub_closure.cost
        if flow is None:
            flow = first_flow(sub_closure, lam)
        is_kept, cut_value, _ = best_closure(sub_closure, lam, flow)
        is_undivided = is_kept.all() or not is_kept.any()
        if total_profit - cut_value <= ROUNDING * total_profit or is_undivided:
            prices[nodes] = lam
            continue
        all_columns = np.ones(len(sub_closure.column_price), np.bool_)
        is_unpaid = ~sub_closure.acquired(is_kept)
        open_parts += [
            _OpenPart(nodes[is_kept], *sub_closure.restrict(is_kept, all_columns, flow)),
            _OpenPart(nodes[~is_kept], *sub_closure.restrict(~is_kept, is_unpaid, flow)),
        ]
    # breakpoints of all nodes from the breakpoints of the closure
    all_prices = np.append(prices, [0.0, np.inf])[closure_number]
    all_prices[~problem.is_inner] = -np.inf
    _cap_at_parent(all_prices, problem.parent)
    return np.asarray(all_prices)


def breakpoints_by_solver(solve: PriceSolver, problem: PruneProblem) -> NDArray[np.float64]:
    """Find the price of cost at which each node is pruned, by a solver of the whole problem."""
    is_inner = problem.is_inner
    _, closure_number = reduce_problem(problem)
    is_free = closure_number == FREE
    prices = np.where(is_inner, 0.0, -np.inf)
    prices[is_free] = np.inf
    # masks of the nodes that are kept at a low and at a high price
    open_ranges = [(is_inner & (closure_number != DROPPED), is_free)]
    while open_ranges:
        is_kept_at_low, is_kept_at_high = open_ranges.pop()
        is_undecided = is_kept_at_low & ~is_kept_at_high
        if not is_undecided.any():
            continue
        saved_errors = float(problem.profit[is_undecided].sum())
        cost = problem.cost(is_kept_at_low) - problem.cost(is_kept_at_high)
        if cost <= 0.0:
            prices[is_undecided] = np.inf
            continue
        lam = saved_errors / cost
        is_kept = (solve(problem, lam).is_kept | is_kept_at_high) & is_kept_at_low
        gain = problem.objective(is_kept_at_low, lam) - problem.objective(is_kept, lam)
        is_undivided = (is_kept == is_kept_at_low).all() or (is_kept == is_kept_at_high).all()
        if gain <= ROUNDING * saved_errors or is_undivided:
            prices[is_undecided] = lam
            continue
        open_ranges += [(is_kept, is_kept_at_high), (is_kept_at_low, is_kept)]
    return prices


@numba.njit(cache=True, nogil=True)
def _cap_at_parent(prices: Any, parent: Any) -> None:
    """Lower each node's breakpoint to its parent's, in place."""
    for node in range(len(parent)):  # a parent's index is below its children's
        if parent[node] >= 0:
            prices[node] = min(prices[node], prices[parent[node]])


@dataclass(frozen=True, eq=False)
class PrunedPoint:
    """One pruning of the frontier.

    Attributes
    ----------
    lam : float
        A price of cost at which the pruning is optimal. For a pruning between two optimal ones it
        is the price at which the two have equal objectives.
    objective : float
        Training error plus ``lam`` times the cost.
    cost : float
        Mean cost over the instances of the problem.
    training_error : float
        Share of misclassified training rows, averaged over the trees.
    is_kept : ndarray of bool, shape (n_nodes,)
        Mask of the nodes that stay inner nodes.
    """

    lam: float
    objective: float
    cost: float
    training_error: float
    is_kept: NDArray[np.bool_]
    _forest: Forest = field(repr=False)

    @cached_property
    def forest(self) -> Forest:
        """The pruned forest."""
        return self._forest.pruned(self.is_kept)


@dataclass(frozen=True, eq=False)
class PruningPath:
    """All optimal prunings of a forest.

    Attributes
    ----------
    forest : Forest
    problem : PruneProblem
    breakpoints : ndarray of float64, shape (n_nodes,)
        Each node is an inner node at every ``lam`` below its breakpoint.
    x : ndarray of float32, shape (n, n_features), or None
        Rows on which accuracies are measured.
    y : ndarray of int64, shape (n,), or None
        Class indices of these rows.
    costs : FeatureCosts or None
        Feature costs, which GreedyPrune needs.
    """

    forest: Forest
    problem: PruneProblem
    breakpoints: NDArray[np.float64]
    x: NDArray[np.float32] | None = field(default=None, repr=False)
    y: NDArray[np.int64] | None = field(default=None, repr=False)
    costs: FeatureCosts | None = field(default=None, repr=False)

    @cached_property
    def sequence(self) -> PruneSequence:
        """All optimal prunings by price, with their costs and training errors."""
        return PruneSequence(self.problem, self.breakpoints)

    @cached_property
    def per_tree(self) -> PruneSequence:
        """Optimal prunings of each tree alone, by price; "ind. pruning" in the papers."""
        return prune_each_tree(self.problem)

    @cached_property
    def greedy(self) -> PruneSequence:
        """Prunings by GreedyPrune, which drops one feature after the other."""
        if self.costs is None:
            raise InputError("GreedyPrune needs the costs: give PruningPath the feature costs")
        return greedy_prune(self.problem, self.forest, self.costs)

    def __len__(self) -> int:
        """Number of optimal prunings."""
        return len(self.sequence.levels)

    def at(self, *, lam: float | None = None, budget: float | None = None) -> PrunedPoint:
        """Get the optimal pruning for a price, or the most accurate optimal one within a budget.

        Parameters
        ----------
        lam : float, optional
            Price of cost, at least 0. Exactly at a breakpoint two prunings are optimal, and the
            cheaper one is returned.
        budget : float, optional
            Largest mean cost per instance. :meth:`within` also considers prunings between two
            optimal ones.

        Raises
        ------
        InputError
            Unless exactly one of `lam` and `budget` is given, or if no pruning is within the
            budget.
        """
        if (lam is None) == (budget is None):
            raise InputError("give exactly one of lam and budget")
        if lam is None:
            assert budget is not None
            lam = self.sequence.level_at(budget=budget)
        lam = check_price(lam)
        return self._make_point(lam, self.sequence.kept_at(lam))

    def within(self, *, budget: float, gap: float = 0.0) -> PrunedPoint:
        """Get the most accurate known pruning within a budget, as :class:`.BudgetPrune` does.

        Between two neighbouring optimal prunings, this is the more accurate one of per-tree pruning
        and GreedyPrune.

        Parameters
        ----------
        budget : float
            Largest mean cost per instance.
        gap : float, default 0.0
            The optimal pruning is returned if its cost is at most this much below the budget.

        Raises
        ------
        InputError
            If no pruning is within the budget.
        """
        is_kept = pruning_within(self.sequence, budget, (self.per_tree, self.greedy), gap=gap)
        return self._make_point(self.sequence.level_at(budget=budget), is_kept)

    def frontier(self, n_points: int | None = None) -> dict[str, NDArray[np.float64]]:
        """Tabulate price, cost, training error and accuracy of the prunings, by falling cost.

        Parameters
        ----------
        n_points : int, optional
            Approximate number of prunings, about evenly spaced in cost. By default the table has
            all of them.

        Returns
        -------
        dict of ndarray, each of shape (n_points,)
            The columns ``lam``, ``cost``, ``training_error`` and, if the path has labels,
            ``accuracy``.
        """
        sequence = self.sequence
        levels = sequence.levels if n_points is None else sequence.evenly_spaced_levels(n_points)
        level_index = np.searchsorted(sequence.levels, levels)
        table = {
            "lam": levels,
            "cost": sequence.costs[level_index],
            "training_error": sequence.errors[level_index],
        }
        if self.x is not None and self.y is not None:
            table["accuracy"] = np.array([self._measure_accuracy(level) for level in levels])
        return table

    def _measure_accuracy(self, level: float) -> float:
        assert self.x is not None
        predictions = self.forest.pruned(self.sequence.kept_at(level)).proba(self.x).argmax(axis=1)
        return float(np.mean(predictions == self.y))

    def _make_point(self, lam: float, is_kept: NDArray[np.bool_]) -> PrunedPoint:
        cost = self.problem.cost(is_kept)
        error = self.problem.training_error(is_kept)
        return PrunedPoint(lam, error + lam * cost, cost, error, is_kept, self.forest)


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
