"""The pruning problem by column generation over trees: HiGHS as master, trees as sub-problems.

"Optimally pruning decision tree ensembles with feature cost" (2016), section 5. A master program
combines the prunings of each tree that are known so far, and pays for their acquisitions. The
multipliers of its ``y_h <= w_c`` charge first uses in the sub-problems: each tree's best pruning
then comes bottom up (:mod:`.tree_recursion`), and enters the master if it is new. The sum of the
sub-problems' optima is a lower bound, so the gap is proved at every step. As the master's optimum
may mix prunings, the best level set of the mixture is taken, which is an integral optimum.

Two masters choose a fractional pruning ``y``:

- :class:`ConvexMaster`: convex combinations of a tree's prunings, as Dantzig and Wolfe's and the
  paper's (LP3);
- :class:`PartitionMaster`, beyond the paper: any closed ``y`` that is constant on each class of
  nodes that no pruning distinguishes (Bienstock & Zuckerberg, "Solving LP relaxations of
  large-scale precedence constrained problems", 2010). It holds every convex combination and more,
  so far fewer prunings are needed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from gatewise.errors import InputError
from gatewise_training.prune.problem import Floats, Keep, PruneProblem, Solution, check_price
from gatewise_training.prune.solvers.highs import (
    closure_rows,
    incidence,
    minimise_shares,
)
from gatewise_training.prune.tree_recursion import (
    PricedTrees,
    even_shares,
    improved,
    level_sets,
    merged,
)


def solve(
    problem: PruneProblem,
    lam: float,
    *,
    master: Literal["partition", "convex"] = "partition",
    tolerance: float = 1e-11,
    max_iterations: int = 1000,
) -> Solution:
    """Prune by Dantzig-Wolfe decomposition."""
    lam = check_price(lam)
    if master not in _MASTERS:
        raise InputError(f"master must be one of {', '.join(_MASTERS)}, not {master!r}")
    problem = merged(problem)
    trees = PricedTrees(problem, lam)
    program = _MASTERS[master](problem, lam)
    keep, gain = trees.best(trees.charges(even_shares(problem, lam)))
    program.add(keep)
    best = np.zeros(problem.n_nodes, np.bool_)
    objective = problem.base_error
    bound = trees.bound(gain)
    step = 0
    while step < max_iterations and objective - bound > tolerance:
        step += 1
        share, multipliers = program.solve()
        for keep, value in (level_sets(problem, share, lam), improved(problem, best, lam)):
            if value < objective:
                best = keep
                objective = value
        keep, gain = trees.best(trees.charges(trees.feasible(multipliers)))
        bound = max(bound, trees.bound(gain))
        if not program.add(
            keep
        ):  # the master spans the best pruning under its multipliers: optimal
            break
    return Solution(best, objective, min(bound, objective), lam, step)


class Master(ABC):
    """Base of the two master programs."""

    def __init__(self, problem: PruneProblem, lam: float) -> None:
        self.problem = problem
        self.lam = lam
        self.tree = np.cumsum(problem.parent < 0) - 1  # (n_nodes,): number of each node's tree

    @abstractmethod
    def add(self, keep: Keep) -> bool:
        """Add a pruning of all trees; returns whether the master did not span it."""

    @abstractmethod
    def solve(self) -> tuple[Floats, Floats]:
        """Solve the master: get `share` (n_nodes,) and `multipliers` (len(column_nodes),)."""


class ConvexMaster(Master):
    """Convex combinations of the prunings of each tree; one pruning of each keeps no node."""

    def __init__(self, problem: PruneProblem, lam: float) -> None:
        super().__init__(problem, lam)
        self._prunings: dict[bytes, NDArray[np.intp]] = {}  # inner nodes of prunings of one tree

    def add(self, keep: Keep) -> bool:
        n_before = len(self._prunings)
        inner = np.flatnonzero(keep)
        for nodes in np.split(inner, np.flatnonzero(np.diff(self.tree[inner])) + 1):
            if len(nodes):
                self._prunings.setdefault(nodes.tobytes(), nodes)
        return len(self._prunings) > n_before

    def solve(self) -> tuple[Floats, Floats]:
        prunings = list(self._prunings.values())
        number = np.arange(len(prunings))
        node_matrix = incidence(
            np.concatenate(prunings),
            np.repeat(number, [len(nodes) for nodes in prunings]),
            (self.problem.n_nodes, len(prunings)),
        )
        tree = self.tree[[nodes[0] for nodes in prunings]]
        tree_rows = incidence(tree, number, (self.tree[-1] + 1, len(prunings)))
        return minimise_shares(self.problem, self.lam, node_matrix, tree_rows, 1.0)[:2]


class PartitionMaster(Master):
    """Closed fractional prunings that are constant on each class of nodes."""

    def __init__(self, problem: PruneProblem, lam: float) -> None:
        super().__init__(problem, lam)
        self.inner = np.flatnonzero(problem.inner)
        self._set_classes(self.tree[self.inner])

    def _set_classes(self, label: NDArray[np.intp]) -> None:
        names, number = np.unique(label, return_inverse=True)
        self.n_classes = len(names)
        self.label = np.full(self.problem.n_nodes, -1)  # class of each inner node
        self.label[self.inner] = number

    def add(self, keep: Keep) -> bool:
        n_before = self.n_classes
        self._set_classes(2 * self.label[self.inner] + keep[self.inner])
        return self.n_classes > n_before

    def solve(self) -> tuple[Floats, Floats]:
        problem = self.problem
        shape = problem.n_nodes, self.n_classes
        node_matrix = incidence(self.inner, self.label[self.inner], shape)
        share, multipliers, _ = minimise_shares(
            problem, self.lam, node_matrix, closure_rows(problem, node_matrix), 0.0
        )
        # nodes of one class pay for an acquisition in equal parts, because they do not differ
        pairs = np.stack([problem.use_column, self.label[problem.column_nodes]])
        _, pair, count = np.unique(pairs, axis=1, return_inverse=True, return_counts=True)
        return share, (np.bincount(pair, multipliers) / count)[pair]


_MASTERS = {"partition": PartitionMaster, "convex": ConvexMaster}
