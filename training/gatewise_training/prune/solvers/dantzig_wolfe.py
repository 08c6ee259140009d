"""Dantzig-Wolfe decomposition of the pruning problem: column generation over trees.

The method is in "Optimally pruning decision tree ensembles with feature cost" (2016), section 5. A
master program, which HiGHS solves, combines the known prunings of each tree and pays for their
acquisitions. The multipliers of its constraints ``y_h <= w_c`` charge first uses in the
sub-problems. The sub-problem of a tree is to find its best pruning under these charges
(:mod:`.tree_recursion`), which enters the master if it is new. The sum of the sub-problems' optima
is a lower bound, so the gap is proved at every step. The master's optimum may be a mixture of
prunings. The best level set of the mixture is then an integral optimum.

Two masters choose a fractional pruning ``y``:

- :class:`ConvexMaster` uses convex combinations of a tree's prunings, as Dantzig and Wolfe and the
  paper (LP3) do.
- :class:`PartitionMaster`, which goes beyond the paper, uses any closed ``y`` that is constant on
  each class of nodes that no pruning distinguishes (Bienstock & Zuckerberg, "Solving LP relaxations
  of large-scale precedence constrained problems", 2010). These include all convex combinations and
  more, so the master needs far fewer prunings.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from gatewise.errors import InputError
from gatewise_training.prune.problem import Floats, NodeMask, PruneProblem, Solution, check_price
from gatewise_training.prune.solvers.highs import closure_rows, incidence, minimise_shares
from gatewise_training.prune.tree_recursion import (
    PricedTrees,
    best_level_set,
    even_shares,
    merge_columns,
    repair,
)


def solve(
    problem: PruneProblem,
    lam: float,
    *,
    master: Literal["partition", "convex"] = "partition",
    tolerance: float = 1e-11,
    max_iterations: int = 1000,
) -> Solution:
    """Prune by Dantzig-Wolfe decomposition; `iterations` counts the master programs."""
    lam = check_price(lam)
    if master not in _MASTERS:
        raise InputError(f"master must be one of {', '.join(_MASTERS)}, not {master!r}")
    problem = merge_columns(problem)
    trees = PricedTrees(problem, lam)
    master_program = _MASTERS[master](problem, lam)
    is_kept, gains = trees.prune(trees.charges(even_shares(problem, lam)))
    master_program.add(is_kept)
    best_pruning = np.zeros(problem.n_nodes, np.bool_)
    objective = problem.base_error
    bound = trees.bound(gains)
    step = 0
    while step < max_iterations and objective - bound > tolerance:
        step += 1
        share, multipliers = master_program.solve()
        candidates = best_level_set(problem, share, lam), repair(problem, best_pruning, lam)
        for is_kept, candidate_objective in candidates:
            if candidate_objective < objective:
                best_pruning = is_kept
                objective = candidate_objective
        is_kept, gains = trees.prune(trees.charges(trees.make_feasible(multipliers)))
        bound = max(bound, trees.bound(gains))
        # the master is optimal if it spans the best pruning under its multipliers
        if not master_program.add(is_kept):
            break
    return Solution(best_pruning, objective, min(bound, objective), lam, step)


class Master(ABC):
    """Base class of the two master programs."""

    def __init__(self, problem: PruneProblem, lam: float) -> None:
        self.problem = problem
        self.lam = lam
        self.tree = np.cumsum(problem.parent < 0) - 1  # (n_nodes,): number of each node's tree

    @abstractmethod
    def add(self, is_kept: NodeMask) -> bool:
        """Add a pruning of all trees; return whether it is new to the master."""

    @abstractmethod
    def solve(self) -> tuple[Floats, Floats]:
        """Solve the master; return `share` (n_nodes,) and `multipliers` (n_uses,)."""


class ConvexMaster(Master):
    """Convex combinations of the prunings of each tree.

    The pruning of a tree that keeps no node is always included.
    """

    def __init__(self, problem: PruneProblem, lam: float) -> None:
        super().__init__(problem, lam)
        self._prunings: dict[bytes, NDArray[np.intp]] = {}  # inner nodes of each tree's prunings

    def add(self, is_kept: NodeMask) -> bool:
        n_before = len(self._prunings)
        kept_nodes = np.flatnonzero(is_kept)
        for nodes in np.split(kept_nodes, np.flatnonzero(np.diff(self.tree[kept_nodes])) + 1):
            if len(nodes):
                self._prunings.setdefault(nodes.tobytes(), nodes)
        return len(self._prunings) > n_before

    def solve(self) -> tuple[Floats, Floats]:
        prunings = list(self._prunings.values())
        pruning_index = np.arange(len(prunings))
        node_matrix = incidence(
            np.concatenate(prunings),
            np.repeat(pruning_index, [len(nodes) for nodes in prunings]),
            (self.problem.n_nodes, len(prunings)),
        )
        tree = self.tree[[nodes[0] for nodes in prunings]]
        tree_rows = incidence(tree, pruning_index, (self.tree[-1] + 1, len(prunings)))
        return minimise_shares(self.problem, self.lam, node_matrix, tree_rows, 1.0)[:2]


class PartitionMaster(Master):
    """Closed fractional prunings that are constant on each class of nodes.

    Two nodes of a tree are in one class if every pruning that was added keeps both or neither.
    """

    def __init__(self, problem: PruneProblem, lam: float) -> None:
        super().__init__(problem, lam)
        self.inner = np.flatnonzero(problem.inner)
        self._set_classes(self.tree[self.inner])

    def _set_classes(self, label: NDArray[np.intp]) -> None:
        unique_labels, class_index = np.unique(label, return_inverse=True)
        self.n_classes = len(unique_labels)
        self.node_class = np.full(self.problem.n_nodes, -1)  # -1 at leaves
        self.node_class[self.inner] = class_index

    def add(self, is_kept: NodeMask) -> bool:
        n_before = self.n_classes
        self._set_classes(2 * self.node_class[self.inner] + is_kept[self.inner])
        return self.n_classes > n_before

    def solve(self) -> tuple[Floats, Floats]:
        problem = self.problem
        shape = problem.n_nodes, self.n_classes
        node_matrix = incidence(self.inner, self.node_class[self.inner], shape)
        share, multipliers, _ = minimise_shares(
            problem, self.lam, node_matrix, closure_rows(problem, node_matrix), 0.0
        )
        # the nodes of a class are alike in the master, so they share an acquisition's multipliers
        # equally
        column_and_class = np.stack([problem.use_column, self.node_class[problem.column_nodes]])
        _, pair_index, count = np.unique(
            column_and_class, axis=1, return_inverse=True, return_counts=True
        )
        return share, (np.bincount(pair_index, multipliers) / count)[pair_index]


_MASTERS = {"partition": PartitionMaster, "convex": ConvexMaster}
