"""Dantzig-Wolfe decomposition of the pruning problem: column generation over trees.

The problem (:mod:`gatewise_training.prune.problem`) is to choose the inner nodes of a forest that
stay, so that the training error plus ``lam`` times the cost is smallest. ``y_h = 1`` if node h
stays, and ``w_c = 1`` if acquisition c is paid. The method is in "Optimally pruning decision tree
ensembles with feature cost" (2016), section 5.

A master program, which HiGHS solves, combines the known prunings of each tree and pays for their
acquisitions. It keeps ``y_h <= w_c`` for each first use h of acquisition c. The multipliers of
these constraints are the charges of the first uses in the sub-problems. The sub-problem of a tree
is to find its best pruning under these charges (:mod:`.tree_recursion`), which enters the master if
it is new. The sub-problems' optima add up to a lower bound on the objective, so each step proves
how far the best known pruning can be from the optimum. The master's optimum may be a mixture of
prunings. The best level set of the mixture is then an integral optimum.

In the paper (LP3), the master's fractional pruning ``y`` is a convex combination of the known
prunings of each tree. Here the master divides the nodes into classes: two nodes are in one class if
each known pruning keeps both or neither. It uses any ``y`` that is equal within each class, and not
larger at a child than at its parent (Bienstock & Zuckerberg, "Solving LP relaxations of large-scale
precedence constrained problems", 2010). All convex combinations are among these ``y``, so the
master needs far fewer prunings.

The master numbers the trees by their roots. It requires that the nodes of a tree are stored one
after another, with the root first, as :class:`.Forest` does.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gatewise_training.prune.problem import Floats, NodeMask, PruneProblem, Solution, check_price
from gatewise_training.prune.solvers.lp import closure_rows, incidence, minimise_shares
from gatewise_training.prune.tree_recursion import (
    PricedTrees,
    best_level_set,
    even_shares,
    merge_columns,
    repair,
)

#: Gap at which a pruning is taken as optimal. It is far below the error of one row in one tree, and
#: above the rounding of the sums.
MAX_GAP = 1e-11


def solve(problem: PruneProblem, lam: float, *, max_iterations: int = 1000) -> Solution:
    """Prune by Dantzig-Wolfe decomposition; `iterations` counts the master programs."""
    lam = check_price(lam)
    problem = merge_columns(problem)
    trees = PricedTrees(problem, lam)
    master_program = PartitionMaster(problem, lam)
    is_kept, gains = trees.prune(trees.charges(even_shares(problem, lam)))
    # if this pruning keeps no node, its gains are 0, so the bound is the objective and no master
    # is solved
    master_program.add_pruning(is_kept)
    best_pruning = np.zeros(problem.n_nodes, np.bool_)
    objective = problem.base_error
    bound = trees.bound_from_gains(gains)
    step = 0
    while step < max_iterations and objective - bound > MAX_GAP:
        step += 1
        shares, multipliers = master_program.solve()
        candidates = best_level_set(problem, shares, lam), repair(problem, best_pruning, lam)
        for is_kept, candidate_objective in candidates:
            if candidate_objective < objective:
                best_pruning = is_kept
                objective = candidate_objective
        is_kept, gains = trees.prune(trees.charges(trees.make_feasible(multipliers)))
        bound = max(bound, trees.bound_from_gains(gains))
        # the master is optimal if it spans the best pruning under its multipliers
        if not master_program.add_pruning(is_kept):
            break
    return Solution(best_pruning, objective, min(bound, objective), lam, step)


class PartitionMaster:
    """Fractional prunings that are equal within each class of nodes.

    Two nodes of a tree are in one class if every pruning that was added keeps both or neither.
    """

    def __init__(self, problem: PruneProblem, lam: float) -> None:
        self.problem = problem
        self.lam = lam
        self.inner_nodes = np.flatnonzero(problem.is_inner)
        tree_of_node = np.cumsum(problem.parent < 0) - 1
        self._set_classes(tree_of_node[self.inner_nodes])

    def _set_classes(self, class_keys: NDArray[np.intp]) -> None:
        """Put the inner nodes with equal keys, (n_inner,), in one class."""
        unique_keys, class_index = np.unique(class_keys, return_inverse=True)
        self.n_classes = len(unique_keys)
        self.node_class = np.full(self.problem.n_nodes, -1)  # -1 at leaves
        self.node_class[self.inner_nodes] = class_index

    def add_pruning(self, is_kept: NodeMask) -> bool:
        """Add a pruning of all trees; return whether it is new to the master."""
        n_before = self.n_classes
        # split each class into its kept and its dropped nodes
        nodes = self.inner_nodes
        self._set_classes(2 * self.node_class[nodes] + is_kept[nodes])
        return self.n_classes > n_before

    def solve(self) -> tuple[Floats, Floats]:
        """Solve the master; return node shares (n_nodes,) and multipliers (n_uses,)."""
        problem = self.problem
        shape = problem.n_nodes, self.n_classes
        node_matrix = incidence(self.inner_nodes, self.node_class[self.inner_nodes], shape)
        # y_child - y_parent <= 0
        shares, multipliers, _ = minimise_shares(
            problem, self.lam, node_matrix, closure_rows(problem, node_matrix), 0.0
        )
        # the nodes of a class are alike in the master, so they share an acquisition's multipliers
        # equally
        column_and_class = np.stack([problem.use_column, self.node_class[problem.column_nodes]])
        _, pair_index, n_uses_of_pair = np.unique(
            column_and_class, axis=1, return_inverse=True, return_counts=True
        )
        return shares, (np.bincount(pair_index, multipliers) / n_uses_of_pair)[pair_index]
