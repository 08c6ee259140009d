"""All optimal prunings of a forest, from the whole forest down to single leaves.

Pruning turns inner nodes into leaves. That saves acquisitions and adds training errors. At a price
``lam`` of cost the optimal pruning minimises ``error + lam * cost``.

**One number a node.** A node that goes at one price goes at every higher one. So each node has a
breakpoint, the price at which it goes, and the breakpoints hold every optimal pruning: at ``lam``
those nodes stay whose breakpoint is above it.

**How they are found.** Take a set of nodes whose fate is open, at first all of them. Together they
save ``worth`` errors and cost ``cost``, so that at ``lam = worth / cost`` keeping all is as good as
keeping none. Ask for the best choice among them at that price (one minimum cut):

- nothing is better than all or none: they go together, and ``lam`` is the breakpoint of each;
- some choice is better: what it keeps has breakpoints above ``lam``, what it drops below. Go on
  with both parts by themselves. In the dropped part, what the kept nodes acquire is free already.

Each node and each acquisition is in one part at a time, and a minimum cut carries no flow from one
part to the other, so that each part starts with the flow that the cut before has found. (This is
the principal partition of a submodular function; Gallo, Grigoriadis & Tarjan, 1989.)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from gatewise.errors import InputError
from gatewise_training.prune.forest import Forest
from gatewise_training.prune.nested_prunings import PruneSequence
from gatewise_training.prune.presolve import DROPPED, FREE, Closure, Flow, reduce_problem
from gatewise_training.prune.problem import PruneProblem, Solution, check_price
from gatewise_training.prune.solvers.mincut import best_closure, first_flow

Solve = Callable[[PruneProblem, float], Solution]

NOTHING = 1e-10
"""A gain so small beside the profits at stake is rounding: nothing lies between."""


def breakpoints(problem: PruneProblem) -> NDArray[np.float64]:
    """Price of cost at which each node goes, by minimum cuts on ever smaller parts.

    Shapes: returns (n_nodes,).
    """
    closure, place = reduce_problem(problem)
    found = np.zeros(closure.n_nodes)
    parts: list[tuple[Closure, Flow | None, NDArray[np.intp]]]
    parts = [(closure, None, np.arange(closure.n_nodes))]
    while parts:
        part, flow, nodes = parts.pop()
        if not len(nodes):
            continue
        worth, cost = part.worth, part.cost
        if cost <= 0.0:  # all that is left is paid already
            found[nodes] = np.inf
            continue
        lam = worth / cost
        if flow is None:
            flow = first_flow(part, lam)
        kept, reached, _ = best_closure(part, lam, flow)
        if worth - reached <= NOTHING * worth or kept.all() or not kept.any():
            found[nodes] = lam
            continue
        every = np.ones(len(part.column_price), np.bool_)
        parts.append((*part.part(kept, every, flow), nodes[kept]))
        parts.append((*part.part(~kept, ~part.acquired(kept), flow), nodes[~kept]))
    return _spread(problem, place, found)


def breakpoints_by(solve: Solve, problem: PruneProblem) -> NDArray[np.float64]:
    """Price of cost at which each node goes, by any exact solver of the whole problem.

    Slower than :func:`breakpoints`, and there to check it.
    """
    inner = problem.inner
    place = reduce_problem(problem)[1]
    everything, free = inner & (place != DROPPED), place == FREE
    until = np.where(inner, 0.0, -np.inf)
    until[free] = np.inf
    parts = [(everything, free)]  # what stays at the low and at the high end
    while parts:
        low, high = parts.pop()
        worth = float(problem.profit[low & ~high].sum())
        cost = problem.cost(low) - problem.cost(high)
        between = low & ~high
        if not between.any():
            continue
        if cost <= 0.0:
            until[between] = np.inf
            continue
        lam = worth / cost
        keep = (solve(problem, lam).keep | high) & low
        gain = problem.objective(low, lam) - problem.objective(keep, lam)
        if gain <= NOTHING * worth or (keep == low).all() or (keep == high).all():
            until[between] = lam
            continue
        parts += [(keep, high), (low, keep)]
    return until


def _spread(
    problem: PruneProblem, place: NDArray[np.int32], found: NDArray[np.float64]
) -> NDArray[np.float64]:
    """From the reduced problem's nodes to all; a child's breakpoint is never above its parent's."""
    until = np.append(found, [0.0, np.inf])[place]
    until[~problem.inner] = -np.inf
    _cap(until, problem.parent)
    return np.asarray(until)


@numba.njit(cache=True, nogil=True)
def _cap(until: Any, parent: Any) -> None:
    for h in range(len(parent)):  # parents come first
        if parent[h] >= 0:
            until[h] = min(until[h], until[parent[h]])


@dataclass(frozen=True, eq=False)
class PrunedPoint:
    """One pruning of the frontier.

    `lam` is a price of cost at which it is optimal, `objective` the training error plus ``lam``
    times the cost, `cost` the mean over the instances that the problem was set up for,
    `training_error` a share of the training rows, averaged over the trees, and `keep`, bool
    (n_nodes,), the nodes that stay inner nodes.
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
class Mixture:
    """Two neighbouring prunings of the hull, drawn at random: a budget is met exactly on average.

    `share` is the probability of `expensive`, to be drawn for each instance.
    """

    cheap: PrunedPoint
    expensive: PrunedPoint
    share: float

    @property
    def cost(self) -> float:
        """Expected cost of an instance."""
        return (1.0 - self.share) * self.cheap.cost + self.share * self.expensive.cost

    @property
    def training_error(self) -> float:
        """Expected training error, averaged over the trees."""
        low, high = self.cheap.training_error, self.expensive.training_error
        return (1.0 - self.share) * low + self.share * high

    def proba(self, x: NDArray[np.float32], random_state: Any = None) -> NDArray[np.float32]:
        """Averaged leaf distributions, each row of a pruning drawn for it, (n, n_classes)."""
        from sklearn.utils import check_random_state

        drawn = check_random_state(random_state).uniform(size=len(x)) < self.share
        out = self.cheap.forest.proba(x)
        out[drawn] = self.expensive.forest.proba(x[drawn])
        return out


@dataclass(frozen=True, eq=False)
class PruningPath:
    """All optimal prunings of a forest.

    A node stays an inner node for every ``lam`` below its own of the `breakpoints`, (n_nodes,). `x`
    and `y` are rows and class indices for accuracies, or None.
    """

    forest: Forest
    problem: PruneProblem
    breakpoints: NDArray[np.float64]
    x: NDArray[np.float32] | None = field(default=None, repr=False)
    y: NDArray[np.int64] | None = field(default=None, repr=False)

    @cached_property
    def sequence(self) -> PruneSequence:
        """The prunings by price, with all costs and training errors."""
        return PruneSequence(self.problem, self.breakpoints)

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
            Mean cost of an instance at most. Hull gaps are left to :meth:`mixed`.

        Raises
        ------
        InputError
            If not exactly one is given, or nothing is within the budget.
        """
        if (lam is None) == (budget is None):
            raise InputError("give exactly one of lam and budget")
        if lam is None:
            assert budget is not None
            lam = self.sequence.level_at(budget=budget)
        return self._point(check_price(lam))

    def mixed(self, *, budget: float) -> Mixture:
        """Meet a budget exactly on average, by drawing one of the two prunings on its sides.

        Raises
        ------
        InputError
            If the budget is below the cheapest pruning's cost.
        """
        sequence = self.sequence
        cheap = self._point(sequence.level_at(budget=budget))
        at = int(np.searchsorted(sequence.levels, cheap.lam))
        expensive = self._point(float(sequence.levels[max(at - 1, 0)]))
        gap = expensive.cost - cheap.cost
        share = 0.0 if gap <= 0 else float(np.clip((budget - cheap.cost) / gap, 0.0, 1.0))
        return Mixture(cheap, expensive, share)

    def frontier(self, n_points: int | None = None) -> dict[str, NDArray[np.float64]]:
        """Price, cost, training error and accuracy of the prunings, costly to cheap.

        Parameters
        ----------
        n_points : int, optional
            So many, about evenly spaced in cost; all by default.

        Returns
        -------
        dict
            Columns ``lam``, ``cost``, ``training_error`` and, where labels were given,
            ``accuracy``; each of shape (n_points,).
        """
        sequence = self.sequence
        levels = sequence.levels if n_points is None else sequence.thinned(n_points)
        at = np.searchsorted(sequence.levels, levels)
        table = {"lam": levels, "cost": sequence.costs[at], "training_error": sequence.errors[at]}
        if self.x is not None and self.y is not None:
            table["accuracy"] = np.array([self._accuracy(level) for level in levels])
        return table

    def _accuracy(self, level: float) -> float:
        assert self.x is not None
        answers = self.forest.pruned(self.sequence.keep(level)).proba(self.x).argmax(axis=1)
        return float(np.mean(answers == self.y))

    def _point(self, lam: float) -> PrunedPoint:
        keep = self.sequence.keep(lam)
        cost, error = self.problem.cost(keep), self.problem.training_error(keep)
        return PrunedPoint(lam, error + lam * cost, cost, error, keep, self.forest)
