"""All optimal prunings of a forest, from the whole forest down to single leaves.

Pruning turns inner nodes into leaves. That saves acquisitions and adds training errors. At a price
``lam`` of cost the optimal pruning minimises ``error + lam * cost``.

**One number per node.** A node that is pruned at one price is pruned at every higher price. The
price at which a node is pruned is its breakpoint. The breakpoints give every optimal pruning: at
``lam`` the inner nodes are the nodes with a breakpoint above ``lam``.

**The search.** Take a set of undecided nodes, at first all nodes. Together they save ``worth``
errors and cost ``cost``, so that at ``lam = worth / cost`` keeping all is as good as keeping none.
Find the best choice among them at that price (one minimum cut):

- no choice is better than all or none: ``lam`` is the breakpoint of each of them;
- some choice is better: the nodes that it keeps have breakpoints above ``lam``, the nodes that it
  prunes below. Search both parts separately. In the pruned part, acquisitions of the kept nodes are
  free.

Each node and each acquisition is in one part at a time, and a minimum cut carries no flow from one
part to the other. So each part starts with the flow of the cut before. (This is the principal
partition of a submodular function; Gallo, Grigoriadis & Tarjan, 1989.)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from gatewise.costs import FeatureCosts
from gatewise.errors import InputError
from gatewise_training.prune.feature_dropping import greedy_prune
from gatewise_training.prune.forest import Forest
from gatewise_training.prune.nested_prunings import PruneSequence, keep_within
from gatewise_training.prune.presolve import DROPPED, FREE, Closure, Flow, reduce_problem
from gatewise_training.prune.problem import PruneProblem, Solution, check_price
from gatewise_training.prune.solvers.mincut import best_closure, first_flow
from gatewise_training.prune.tree_by_tree import per_tree

Solve = Callable[[PruneProblem, float], Solution]

ROUNDING = 1e-10
"""A gain of at most this share of the profits at stake is rounding."""


def breakpoints(problem: PruneProblem) -> NDArray[np.float64]:
    """Price of cost at which each node is pruned, by minimum cuts on ever smaller parts."""
    closure, number = reduce_problem(problem)
    prices = np.zeros(closure.n_nodes)
    parts: list[tuple[Closure, Flow | None, NDArray[np.intp]]]
    parts = [(closure, None, np.arange(closure.n_nodes))]
    while parts:
        part, flow, nodes = parts.pop()
        if not len(nodes):
            continue
        worth = part.worth
        if part.cost <= 0.0:  # everything is paid already
            prices[nodes] = np.inf
            continue
        lam = worth / part.cost
        if flow is None:
            flow = first_flow(part, lam)
        keep, reached, _ = best_closure(part, lam, flow)
        if worth - reached <= ROUNDING * worth or keep.all() or not keep.any():
            prices[nodes] = lam
            continue
        all_columns = np.ones(len(part.column_price), np.bool_)
        parts.append((*part.part(keep, all_columns, flow), nodes[keep]))
        parts.append((*part.part(~keep, ~part.acquired(keep), flow), nodes[~keep]))
    return _of_all_nodes(problem, number, prices)


def breakpoints_by(solve: Solve, problem: PruneProblem) -> NDArray[np.float64]:
    """Price of cost at which each node is pruned, by any exact solver of the whole problem."""
    inner = problem.inner
    _, number = reduce_problem(problem)
    is_free = number == FREE
    prices = np.where(inner, 0.0, -np.inf)
    prices[is_free] = np.inf
    ranges = [(inner & (number != DROPPED), is_free)]  # inner nodes at a low and at a high price
    while ranges:
        at_low, at_high = ranges.pop()
        undecided = at_low & ~at_high
        if not undecided.any():
            continue
        worth = float(problem.profit[undecided].sum())
        cost = problem.cost(at_low) - problem.cost(at_high)
        if cost <= 0.0:
            prices[undecided] = np.inf
            continue
        lam = worth / cost
        keep = (solve(problem, lam).keep | at_high) & at_low
        gain = problem.objective(at_low, lam) - problem.objective(keep, lam)
        if gain <= ROUNDING * worth or (keep == at_low).all() or (keep == at_high).all():
            prices[undecided] = lam
            continue
        ranges += [(keep, at_high), (at_low, keep)]
    return prices


def _of_all_nodes(
    problem: PruneProblem, number: NDArray[np.int32], prices: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Breakpoints of all nodes from the closure's; no child's is above its parent's."""
    until = np.append(prices, [0.0, np.inf])[number]
    until[~problem.inner] = -np.inf
    _cap(until, problem.parent)
    return np.asarray(until)


@numba.njit(cache=True, nogil=True)
def _cap(until: Any, parent: Any) -> None:
    for h in range(len(parent)):  # a parent's index is below its children's
        if parent[h] >= 0:
            until[h] = min(until[h], until[parent[h]])


@dataclass(frozen=True, eq=False)
class PrunedPoint:
    """One pruning of the frontier.

    Attributes
    ----------
    lam : float
        A price of cost at which it is optimal; for a pruning between two optimal ones the price at
        which they are equal.
    objective : float
        Training error plus ``lam`` times the cost.
    cost : float
        Mean over the instances that the problem was set up for.
    training_error : float
        Share of the training rows, averaged over the trees.
    keep : ndarray of bool, shape (n_nodes,)
        The inner nodes.
    """

    lam: float
    objective: float
    cost: float
    training_error: float
    keep: NDArray[np.bool_]
    _forest: Forest = field(repr=False)

    @cached_property
    def forest(self) -> Forest:
        """The pruned forest."""
        return self._forest.pruned(self.keep)


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
        Rows for accuracies.
    y : ndarray of int64, shape (n,), or None
        Their class indices.
    costs : FeatureCosts or None
        Prices, for prunings between two optimal ones.
    """

    forest: Forest
    problem: PruneProblem
    breakpoints: NDArray[np.float64]
    x: NDArray[np.float32] | None = field(default=None, repr=False)
    y: NDArray[np.int64] | None = field(default=None, repr=False)
    costs: FeatureCosts | None = field(default=None, repr=False)

    @cached_property
    def sequence(self) -> PruneSequence:
        """The prunings by price, with all costs and training errors."""
        return PruneSequence(self.problem, self.breakpoints)

    @cached_property
    def per_tree(self) -> PruneSequence:
        """Optimal prunings of each tree alone, by price: the papers' "ind. pruning"."""
        return per_tree(self.problem)

    @cached_property
    def greedy(self) -> PruneSequence:
        """Prunings of GreedyPrune, which drops one feature after the other."""
        if self.costs is None:
            raise InputError("GreedyPrune needs the costs of the path")
        return greedy_prune(self.problem, self.forest, self.costs)

    def __len__(self) -> int:
        """Number of prunings, from the whole forest (as far as it saves errors) to the least."""
        return len(self.sequence.levels)

    def at(self, *, lam: float | None = None, budget: float | None = None) -> PrunedPoint:
        """Take the optimal pruning for a price, or the most accurate within a budget.

        Parameters
        ----------
        lam : float, optional
            At least 0. Exactly at a breakpoint both neighbours are optimal; this is the cheaper.
        budget : float, optional
            Largest mean cost of an instance. :meth:`within` fills gaps of the hull. InputError if
            no pruning is within it, or unless exactly one of both is given.
        """
        if (lam is None) == (budget is None):
            raise InputError("give exactly one of lam and budget")
        if lam is None:
            assert budget is not None
            lam = self.sequence.level_at(budget=budget)
        return self._point(check_price(lam))

    def within(self, *, budget: float, gap: float = 0.0) -> PrunedPoint:
        """Take the most accurate known pruning within a budget, as :class:`.BudgetPrune` does.

        Between two neighbours of the hull it is the better of per-tree pruning and GreedyPrune.

        Parameters
        ----------
        budget : float
            Largest mean cost of an instance; InputError if no pruning is within it.
        gap : float, default 0.0
            A pruning of the hull is taken if its cost is at most this much below the budget.
        """
        keep = keep_within(self.sequence, budget, (self.per_tree, self.greedy), gap=gap)
        return self._pruned(self.sequence.level_at(budget=budget), keep)

    def frontier(self, n_points: int | None = None) -> dict[str, NDArray[np.float64]]:
        """Price, cost, training error and accuracy of the prunings, costly to cheap, as columns.

        The columns are ``lam``, ``cost``, ``training_error`` and, where labels were given,
        ``accuracy``; each has shape (n_points,).

        Parameters
        ----------
        n_points : int, optional
            Number of prunings, about evenly spaced in cost; all by default.
        """
        sequence = self.sequence
        levels = sequence.levels if n_points is None else sequence.thinned(n_points)
        number = np.searchsorted(sequence.levels, levels)
        table = {
            "lam": levels,
            "cost": sequence.costs[number],
            "training_error": sequence.errors[number],
        }
        if self.x is not None and self.y is not None:
            table["accuracy"] = np.array([self._accuracy(level) for level in levels])
        return table

    def _accuracy(self, level: float) -> float:
        assert self.x is not None
        answers = self.forest.pruned(self.sequence.keep(level)).proba(self.x).argmax(axis=1)
        return float(np.mean(answers == self.y))

    def _point(self, lam: float) -> PrunedPoint:
        return self._pruned(lam, self.sequence.keep(lam))

    def _pruned(self, lam: float, keep: NDArray[np.bool_]) -> PrunedPoint:
        cost = self.problem.cost(keep)
        error = self.problem.training_error(keep)
        return PrunedPoint(lam, error + lam * cost, cost, error, keep, self.forest)
