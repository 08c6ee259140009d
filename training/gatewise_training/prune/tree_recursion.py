"""Trees pruned one by one, when acquisitions are charged node by node.

The solvers that split the problem by trees share this. A multiplier ``beta[h, c] >= 0`` charges
node h for its part in acquisition c; with the charges given, trees share nothing, and the best
pruning of each comes bottom up (the shortest path of BudgetPrune, NIPS 2016, section 6.2)::

    cost(h) = min(e_h, charge_h + lam * depth_price_h + cost(left) + cost(right))

where ``charge_h`` is the sum of the multipliers of the first uses at h. As profits are ``e_h -
e_left - e_right``, the gain ``e_h - cost(h) = max(0, profit_h - charge_h - lam * depth_price_h +
gain(left) + gain(right))`` says the same and needs only the parents.

If the multipliers of every acquisition add up to at most ``lam * price``, the sum of the trees'
costs is a lower bound of the optimum (Lagrangian duality), whatever the multipliers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numba
import numpy as np

from gatewise_training.prune.problem import Floats, Keep, PruneProblem

REPAIRS = 3
"""Rounds of :func:`improved` at most."""


@dataclass(frozen=True, eq=False)
class PricedTrees:
    """The trees of a problem at one price of cost."""

    problem: PruneProblem
    lam: float

    @property
    def full_price(self) -> Floats:
        """``lam * price`` of each acquisition: what its multipliers may add up to, (n_columns,)."""
        return self.lam * self.problem.column_price

    def charges(self, beta: Floats) -> Floats:
        """Sum the multipliers of each node's first uses, shape (n_nodes,)."""
        nodes = self.problem.column_nodes
        charge = np.bincount(nodes, weights=beta, minlength=self.problem.n_nodes)
        return np.asarray(charge, np.float64)

    def feasible(self, beta: Floats) -> Floats:
        """Make the multipliers of each acquisition add up to ``lam * price``.

        Too large ones are scaled down. What is missing is divided equally among the nodes, which
        only raises the bound.
        """
        column, size = self.problem.use_column, np.diff(self.problem.column_start)
        beta = np.maximum(beta, 0.0)
        total, allowed = np.bincount(column, beta, len(size)), self.full_price
        shrink = np.ones(len(size))
        np.divide(allowed, total, out=shrink, where=total > allowed)
        spare = np.maximum(allowed - total, 0.0) / size
        return np.asarray(beta * shrink[column] + spare[column])

    def best(self, charge: Floats) -> tuple[Keep, Floats]:
        """Prune every tree by itself, given what each node pays for its first uses, (n_nodes,).

        Shapes: returns `keep` (n_nodes,), `gain` (n_nodes,).
        """
        problem = self.problem
        gain = problem.profit - self.lam * problem.depth_price - charge
        keep = np.empty(problem.n_nodes, np.bool_)
        _prune(problem.parent, gain, keep)
        return keep, gain

    def bound(self, gain: Floats) -> float:
        """Lower bound of the optimum that the gains of :meth:`best` prove."""
        roots = self.problem.parent < 0
        return float(self.problem.base_error - gain[roots].sum())

    def lower_bound(self, beta: Floats) -> float:
        """Lower bound of the optimum that any multipliers prove, made feasible first."""
        return self.bound(self.best(self.charges(self.feasible(beta)))[1])


def merged(problem: PruneProblem) -> PruneProblem:
    """Make one acquisition of all that are made at the same nodes; the optimum is the same."""
    start = problem.column_start
    # a sum of random numbers stands for a column's set of nodes
    names = np.random.default_rng(0).integers(1, 2**64, problem.n_nodes, dtype=np.uint64)
    key = np.add.reduceat(names[problem.column_nodes], start[:-1])
    _, first, inverse = np.unique(key, return_index=True, return_inverse=True)
    size = np.diff(start)[first]
    begin = np.concatenate([[0], np.cumsum(size)]).astype(np.int64)
    places = np.repeat(start[first] - begin[:-1], size) + np.arange(begin[-1])
    price = np.bincount(inverse, weights=problem.column_price, minlength=len(first))
    return replace(
        problem,
        column_start=begin,
        column_nodes=problem.column_nodes[places],
        column_price=np.asarray(price, np.float64),
    )


def even_shares(problem: PruneProblem, lam: float) -> Floats:
    """Multipliers that divide each price equally among the nodes that would share it."""
    share = lam * problem.column_price / np.diff(problem.column_start)
    return np.asarray(share[problem.use_column])


def level_sets(problem: PruneProblem, share: Floats, lam: float) -> tuple[Keep, float]:
    """Best of the prunings that a fractional solution mixes, and its objective.

    A fractional solution's objective is an average over thresholds of the objectives of ``{h :
    share_h > threshold}``, so the best of these is no worse than the mixture. `share`, of shape
    (n_nodes,), is in [0, 1]; no child's is above its parent's.
    """
    share = np.round(share, 9)
    levels = np.unique(share.clip(0.0, 1.0))
    levels = levels[levels < 1.0] if len(levels) > 1 else np.array([0.5])
    middles = levels[np.unique(np.linspace(0, len(levels) - 1, 20).round().astype(int))]
    found = [share > level for level in middles]
    values = [problem.objective(keep, lam) for keep in found]
    first = int(np.argmin(values))
    return found[first], float(values[first])


def improved(problem: PruneProblem, keep: Keep, lam: float) -> tuple[Keep, float]:
    """Improve a pruning; returns it with its objective.

    Each round drops what pays for itself alone and does not, and adds what is paid already. Each
    half is a tree recursion with charges that never understate the cost of a change, so the
    objective cannot rise.
    """
    start, nodes = problem.column_start, problem.column_nodes
    best, value = keep, float(problem.objective(keep, lam))
    for _ in range(REPAIRS):
        found = best
        for adding in (False, True):
            gain = problem.profit - lam * problem.depth_price
            _charge_changes(start, nodes, lam * problem.column_price, found, adding, gain)
            if not adding:
                gain[~found] = -np.inf
            found = np.empty_like(best)
            _prune(problem.parent, gain, found)
        other = float(problem.objective(found, lam))
        if other >= value - 1e-15:
            break
        best, value = found, other
    return best, value


@numba.njit(cache=True, nogil=True)
def _prune(parent: Any, gain: Any, keep: Any) -> None:
    """Children come after their parents: one pass up for the gains, one down for what stays."""
    for h in range(len(parent) - 1, -1, -1):
        if gain[h] > 0:
            if parent[h] >= 0:
                gain[parent[h]] += gain[h]
        else:
            gain[h] = 0.0
    for h in range(len(parent)):
        keep[h] = gain[h] > 0 and (parent[h] < 0 or keep[parent[h]])


@numba.njit(cache=True, nogil=True)
def _charge_changes(start: Any, nodes: Any, price: Any, keep: Any, adding: bool, gain: Any) -> None:
    """Take from the gains what adding a node would newly pay, or what dropping it would save."""
    for c in range(len(price)):
        count = 0
        for j in range(start[c], start[c + 1]):
            if keep[nodes[j]]:
                count += 1
        if count == 0 and adding:
            for j in range(start[c], start[c + 1]):
                gain[nodes[j]] -= price[c]
        elif count == 1 and not adding:
            for j in range(start[c], start[c + 1]):
                if keep[nodes[j]]:
                    gain[nodes[j]] -= price[c]
