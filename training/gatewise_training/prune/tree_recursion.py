"""Prune each tree optimally, given a charge for each node, and improve a pruning.

The solvers that decompose the problem by trees share this module. An acquisition is a column of the
problem: the nodes at which an instance may first use a feature or a group. Each pair of an
acquisition c and one of its nodes h is a use. The multiplier of a use, ``beta[h, c] >= 0``, charges
node h for its part in the price of c. With fixed charges the trees share nothing, and a recursion
from the leaves up finds the best pruning of each tree (the shortest path of BudgetPrune, NIPS 2016,
section 6.2)::

    cost(h) = min(e_h, charge_h + lam * depth_price_h + cost(left) + cost(right))

Here ``charge_h`` is the sum of the multipliers of the uses at h. With
``profit_h = e_h - e_left - e_right`` the gain ``e_h - cost(h)`` follows an equivalent recursion,
which can be computed from the array of parents alone::

    gain(h) = max(0, profit_h - charge_h - lam * depth_price_h + gain(left) + gain(right))

Multipliers are feasible if those of each acquisition add up to at most ``lam * price``. The summed
cost of the trees under any feasible multipliers is a lower bound on the optimum, by Lagrangian
duality.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numba
import numpy as np

from gatewise_training.prune.problem import Floats, NodeMask, PruneProblem

#: Maximum number of rounds of :func:`repair`, each of which passes all acquisitions twice.
MAX_REPAIRS = 3

#: Maximum number of level sets that :func:`best_level_set` compares, which bounds its time.
MAX_LEVEL_SETS = 20


@dataclass(frozen=True, eq=False)
class PricedTrees:
    """Trees of a pruning problem at one weight `lam` of the cost."""

    problem: PruneProblem
    lam: float

    @property
    def full_price(self) -> Floats:
        """``lam * price`` of each acquisition, shape (n_columns,)."""
        return self.lam * self.problem.column_price

    def charges(self, beta: Floats) -> Floats:
        """Sum of the multipliers of each node's uses, shape (n_nodes,)."""
        nodes = self.problem.column_nodes
        charge = np.bincount(nodes, weights=beta, minlength=self.problem.n_nodes)
        return np.asarray(charge, np.float64)

    def make_feasible(self, beta: Floats) -> Floats:
        """Make the multipliers of each acquisition add up to ``lam * price``.

        Multipliers whose sum is too large are scaled down. If the sum is too small, the difference
        is divided equally among the nodes, which can only raise the bound.
        """
        use_column = self.problem.use_column
        n_uses = np.diff(self.problem.column_start)
        beta = np.maximum(beta, 0.0)
        beta_sums = np.bincount(use_column, beta, len(n_uses))
        full_price = self.full_price
        scale = np.ones(len(n_uses))
        np.divide(full_price, beta_sums, out=scale, where=beta_sums > full_price)
        addition = np.maximum(full_price - beta_sums, 0.0) / n_uses
        return np.asarray(beta * scale[use_column] + addition[use_column])

    def prune(self, charge: Floats) -> tuple[NodeMask, Floats]:
        """Prune each tree optimally, given a charge for each node, (n_nodes,).

        Returns the mask of the inner nodes and the gain of each node's subtree, both of shape
        (n_nodes,).
        """
        problem = self.problem
        gain = problem.profit - self.lam * problem.depth_price - charge
        is_kept = prune_by_gain(problem.parent, gain)
        return is_kept, gain

    def bound_from_gains(self, gain: Floats) -> float:
        """Lower bound on the optimum, from the gains that :meth:`prune` returns."""
        # sum over trees of cost(root) = e_root - gain(root)
        roots = self.problem.parent < 0
        return float(self.problem.base_error - gain[roots].sum())

    def bound_from_multipliers(self, beta: Floats) -> float:
        """Lower bound on the optimum, from any multipliers, which are made feasible first."""
        _, gain = self.prune(self.charges(self.make_feasible(beta)))
        return self.bound_from_gains(gain)


def merge_columns(problem: PruneProblem) -> PruneProblem:
    """Merge acquisitions that the same nodes make, which does not change the optimum."""
    if not problem.n_columns:
        return problem
    start = problem.column_start
    # the sum of the random keys of its nodes identifies a column
    node_keys = np.random.default_rng(0).integers(1, 2**64, problem.n_nodes, dtype=np.uint64)
    column_keys = np.add.reduceat(node_keys[problem.column_nodes], start[:-1])
    _, representatives, merged_number = np.unique(
        column_keys, return_index=True, return_inverse=True
    )
    n_uses_of_column = np.diff(start)[representatives]
    merged_start = np.concatenate([[0], np.cumsum(n_uses_of_column)]).astype(np.int64)
    use_indices = np.repeat(
        start[representatives] - merged_start[:-1], n_uses_of_column
    ) + np.arange(merged_start[-1])
    merged_price = np.bincount(
        merged_number, weights=problem.column_price, minlength=len(representatives)
    )
    return replace(
        problem,
        column_start=merged_start,
        column_nodes=problem.column_nodes[use_indices],
        column_price=np.asarray(merged_price, np.float64),
    )


def even_shares(problem: PruneProblem, lam: float) -> Floats:
    """Multipliers that divide each price equally among the nodes that share it, (n_uses,)."""
    # lam price_c / |nodes of c|; the price is already divided by the number of instances
    share = lam * problem.column_price / np.diff(problem.column_start)
    return np.asarray(share[problem.use_column])


@numba.njit(cache=True, nogil=True)
def prune_by_gain(parent: Any, gain: Any) -> Any:
    """Add up the gains from the leaves to the roots; return a mask of the nodes to keep.

    `gain` holds the gain of each node alone and is changed in place to the gain of its subtree.
    Each parent must have a lower index than its children.
    """
    for node in range(len(parent) - 1, -1, -1):
        if gain[node] > 0:
            if parent[node] >= 0:
                gain[parent[node]] += gain[node]
        else:
            gain[node] = 0.0
    is_kept = np.empty(len(parent), np.bool_)
    for node in range(len(parent)):
        is_kept[node] = gain[node] > 0 and (parent[node] < 0 or is_kept[parent[node]])
    return is_kept


def best_level_set(problem: PruneProblem, fraction: Floats, lam: float) -> tuple[NodeMask, float]:
    """Find the best level set of a fractional solution, and its objective.

    A level set is the pruning ``{h : fraction_h > threshold}``. The objective of the fractional
    solution is an average of the objectives of its level sets, so the best level set is at least as
    good. `fraction`, of shape (n_nodes,), is the part of each node that is kept, in [0, 1]; it is
    not larger at a node than at the node's parent. At most MAX_LEVEL_SETS level sets are compared.
    """
    fraction = np.round(fraction, 9)  # HiGHS's numbers are equal only up to its tolerance
    thresholds = np.unique(fraction.clip(0.0, 1.0))
    thresholds = thresholds[thresholds < 1.0] if len(thresholds) > 1 else np.array([0.5])
    indices = np.linspace(0, len(thresholds) - 1, MAX_LEVEL_SETS).round().astype(int)
    prunings = [fraction > threshold for threshold in thresholds[np.unique(indices)]]
    objectives = [problem.objective(is_kept, lam) for is_kept in prunings]
    best_index = int(np.argmin(objectives))
    return prunings[best_index], float(objectives[best_index])


def repair(problem: PruneProblem, is_kept: NodeMask, lam: float) -> tuple[NodeMask, float]:
    """Improve a pruning by dropping and adding nodes, and return it with its objective.

    Each round first drops nodes that earn less than the acquisitions that only they make. It then
    adds nodes that earn more than the new acquisitions that they make. The objective cannot rise.
    """
    start, nodes = problem.column_start, problem.column_nodes
    objective = float(problem.objective(is_kept, lam))
    for _ in range(MAX_REPAIRS):
        new_is_kept = is_kept
        # gain of a node = profit - lam * (depth price + prices of its acquisitions that count): if
        # nodes are dropped, those that it alone makes; if they are added, those that no node makes
        for is_adding in (False, True):
            gain = problem.profit - lam * problem.depth_price
            _charge_changes(start, nodes, lam * problem.column_price, new_is_kept, is_adding, gain)
            if not is_adding:
                gain[~new_is_kept] = -np.inf
            new_is_kept = prune_by_gain(problem.parent, gain)
        new_objective = float(problem.objective(new_is_kept, lam))
        if new_objective >= objective - 1e-15:  # no decrease beyond rounding
            break
        is_kept = new_is_kept
        objective = new_objective
    return is_kept, objective


@numba.njit(cache=True, nogil=True)
def _charge_changes(
    start: Any, nodes: Any, price: Any, is_kept: Any, is_adding: bool, gain: Any
) -> None:
    """Subtract prices of acquisitions from the gains of nodes, in place.

    When adding, each node pays for the acquisitions that no kept node makes yet. Otherwise, a kept
    node pays for the acquisitions that only this node makes.
    """
    for column in range(len(price)):
        n_kept = 0
        for use in range(start[column], start[column + 1]):
            if is_kept[nodes[use]]:
                n_kept += 1
        if n_kept == 0 and is_adding:
            for use in range(start[column], start[column + 1]):
                gain[nodes[use]] -= price[column]
        elif n_kept == 1 and not is_adding:
            for use in range(start[column], start[column + 1]):
                if is_kept[nodes[use]]:
                    gain[nodes[use]] -= price[column]
