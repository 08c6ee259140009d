"""Restricted master programs of column generation over trees, solved by HiGHS.

Both choose a fractional pruning ``y`` of each tree out of what prunings seen so far span, and the
acquisitions ``w`` that it needs, and hand back the multipliers of ``y_h <= w_c``:

- :class:`ConvexMaster`: convex combinations of a tree's prunings, Dantzig and Wolfe's and the 2016
  paper's (LP3);
- :class:`PartitionMaster`: any closed ``y`` that is constant on each class of nodes that no pruning
  tells apart (Bienstock & Zuckerberg, "Solving LP relaxations of large-scale precedence constrained
  problems", 2010). It holds every convex combination and more, so far fewer prunings are needed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from gatewise_training.prune.solvers.highs import minimise
from gatewise_training.prune.solvers.node_classes import MasterRows, NodeClasses
from gatewise_training.prune.tree_recursion import PricedTrees

Keep = NDArray[np.bool_]
Floats = NDArray[np.float64]


class Master(ABC):
    """Base of the two master programs."""

    def __init__(self, trees: PricedTrees) -> None:
        self.trees = trees
        problem = trees.problem
        self.classes = NodeClasses(problem)
        self.price = trees.lam * problem.depth_price - problem.profit

    @abstractmethod
    def add(self, keep: Keep) -> bool:
        """Add a pruning of all trees; whether the master did not span it."""

    @abstractmethod
    def solve(self) -> tuple[Floats, Floats]:
        """Solve the master.

        Shapes: returns `beta` (len(column_nodes),), `share` (n_nodes,).
        """

    def _solve(
        self, rows: MasterRows, cost: Floats, kept_by: list[NDArray[np.intp]], **program: Any
    ) -> tuple[Floats, Floats]:
        """Solve over variables and acquisitions, given which variables keep each class of nodes.

        `program` may hold more rows, over the variables alone.
        """
        n, n_acquired, n_uses = len(cost), len(rows.price), len(rows.acquisition)
        sizes = np.array([len(k) for k in kept_by], np.intp)
        kept = np.concatenate([kept_by[r] for r in rows.member] or [np.zeros(0, np.intp)])
        uses = np.arange(n_uses)
        upper = sp.csr_array(
            (
                np.concatenate([np.ones(len(kept)), -np.ones(n_uses)]),
                (
                    np.concatenate([np.repeat(uses, sizes[rows.member]), uses]),
                    np.concatenate([kept, n + rows.acquisition]),
                ),
            ),
            shape=(n_uses, n + n_acquired),
        )
        for key in ("A_eq", "A_ub"):
            if key in program:
                more = program[key]
                blank = sp.csr_array((more.shape[0], n_acquired))
                program[key] = sp.hstack([more, blank], format="csr")
        if "A_ub" in program:
            upper = sp.vstack([upper, program.pop("A_ub")], format="csr")
        x, multipliers, _ = minimise(
            np.concatenate([cost, self.trees.lam * rows.price]),
            what="the master",
            A_ub=upper,
            b_ub=np.zeros(upper.shape[0]),
            **program,
        )
        return self.trees.feasible(rows.spread(multipliers[:n_uses])), x[:n]


class ConvexMaster(Master):
    """Convex combinations of the prunings of each tree."""

    def __init__(self, trees: PricedTrees) -> None:
        super().__init__(trees)
        problem = trees.problem
        roots = np.where(problem.parent < 0, problem.error, 0.0)
        self._base = np.bincount(self.classes.tree, weights=roots)
        self._known: set[tuple[int, bytes]] = set()
        self._owner: list[int] = []
        self._kept: list[NDArray[np.intp]] = []
        self._cost: list[float] = []
        self.add(np.zeros(problem.n_nodes, np.bool_))
        self.add(problem.left >= 0)

    def add(self, keep: Keep) -> bool:
        new = False
        for t, members in enumerate(self.classes.members):
            key = (t, np.packbits(keep[members]).tobytes())
            if key in self._known:
                continue
            self._known.add(key)
            kept = members[keep[members]]
            self._owner.append(t)
            self._kept.append(kept)
            self._cost.append(float(self._base[t] + self.price[kept].sum()))
            self.classes.add(kept)
            new = True
        return new

    def solve(self) -> tuple[Floats, Floats]:
        rows = self.classes.rows()
        n_plans, n_trees = len(self._owner), len(self.classes.members)
        plans = np.repeat(np.arange(n_plans), [len(k) for k in self._kept])
        nodes = np.concatenate(self._kept)
        stands = np.zeros(self.trees.problem.n_nodes, np.bool_)
        stands[rows.node] = True
        of, plan = rows.number[nodes[stands[nodes]]], plans[stands[nodes]]
        order = np.argsort(of, kind="stable")
        edges = np.searchsorted(of[order], np.arange(1, len(rows.node)))
        beta, x = self._solve(
            rows,
            np.array(self._cost),
            np.split(plan[order], edges),
            A_eq=sp.csr_array(
                (np.ones(n_plans), (self._owner, np.arange(n_plans))), shape=(n_trees, n_plans)
            ),
            b_eq=np.ones(n_trees),
            bounds=(0.0, None),
        )
        share = np.bincount(nodes, weights=x[plans], minlength=self.trees.problem.n_nodes)
        return beta, share.clip(0.0, 1.0)


class PartitionMaster(Master):
    """Closed fractional prunings that are constant on each class of nodes."""

    def __init__(self, trees: PricedTrees) -> None:
        super().__init__(trees)
        self.classes.add(np.flatnonzero(trees.problem.left >= 0))

    def add(self, keep: Keep) -> bool:
        number, node = self.classes.numbered()
        there = number >= 0
        size = np.bincount(number[there], minlength=len(node))
        kept = np.bincount(number[there], weights=keep[there], minlength=len(node))
        if not ((kept > 0) & (kept < size)).any():
            return False
        self.classes.add(np.flatnonzero(keep))
        return True

    def solve(self) -> tuple[Floats, Floats]:
        problem = self.trees.problem
        rows = self.classes.rows()
        n = len(rows.node)
        there = rows.number >= 0
        inner = np.flatnonzero(there & (problem.parent >= 0))
        below, above = rows.number[inner], rows.number[problem.parent[inner]]
        pair = np.unique((below * n + above)[below != above])
        both = np.concatenate([pair // max(n, 1), pair % max(n, 1)])
        signs = np.concatenate([np.ones(len(pair)), -np.ones(len(pair))])
        index = np.concatenate([np.arange(len(pair))] * 2)
        beta, x = self._solve(
            rows,
            np.asarray(np.bincount(rows.number[there], self.price[there], n), np.float64),
            [np.array([r]) for r in range(n)],
            A_ub=sp.csr_array((signs, (index, both)), shape=(len(pair), n)),
            bounds=(0.0, 1.0),
        )
        share = np.zeros(problem.n_nodes)
        share[there] = x[rows.number[there]]
        return beta, share.clip(0.0, 1.0)
