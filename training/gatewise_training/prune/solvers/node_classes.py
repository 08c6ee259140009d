"""Classes of nodes that all prunings so far treat the same, and acquisitions of the same classes.

The master of a column generation needs one row for them all: :mod:`.dantzig_wolfe`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gatewise_training.prune.problem import PruneProblem

Keep = NDArray[np.bool_]
Floats = NDArray[np.float64]


class NodeClasses:
    """Classes of nodes: of the same tree, and kept by the same prunings.

    `tree`, of shape (n_nodes,), is the number of each node's tree; `members` are the trees' nodes.
    """

    def __init__(self, problem: PruneProblem) -> None:
        self.problem = problem
        n = problem.n_nodes
        root = np.where(problem.parent < 0, np.arange(n), problem.parent)
        while (root != root[root]).any():
            root = root[root]
        _, self.tree = np.unique(root, return_inverse=True)
        order = np.argsort(self.tree, kind="stable")
        self.members = np.split(order, np.flatnonzero(np.diff(self.tree[order])) + 1)
        self._random = np.random.default_rng(0)
        # a sum of random numbers stands for the set of prunings that keep a node
        self._signature = np.zeros(n, np.uint64)

    def add(self, kept: NDArray[np.intp]) -> None:
        """Separate the nodes that a new pruning keeps from the others."""
        self._signature[kept] += self._random.integers(1, 2**64, dtype=np.uint64)

    def numbered(self) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Class of each node, -1 where no pruning keeps it, and a first node of each class."""
        salt = np.random.default_rng(1).integers(1, 2**64, len(self.members), dtype=np.uint64)
        there = np.flatnonzero(self._signature)
        _, first, inverse = np.unique(
            self._signature[there] + salt[self.tree[there]], return_index=True, return_inverse=True
        )
        number = np.full(self.problem.n_nodes, -1)
        number[there] = inverse
        return number, there[first]

    def rows(self) -> MasterRows:
        """Merge nodes of the same class, then acquisitions of the same classes."""
        problem = self.problem
        number, node = self.numbered()
        n_rows = len(node)
        column = np.repeat(np.arange(problem.n_columns), np.diff(problem.column_start))
        use_row = number[problem.column_nodes]
        live = (use_row >= 0) & (problem.column_price[column] > 0)
        pair, which, count = np.unique(
            column[live] * n_rows + use_row[live], return_inverse=True, return_counts=True
        )
        of, member = pair // max(n_rows, 1), pair % max(n_rows, 1)
        name = np.random.default_rng(2).integers(1, 2**64, n_rows, dtype=np.uint64)
        key = np.zeros(problem.n_columns, np.uint64)
        np.add.at(key, of, name[member])
        acquired = np.unique(of)
        _, chosen, group = np.unique(key[acquired], return_index=True, return_inverse=True)
        acquisition = np.full(problem.n_columns, -1)
        acquisition[acquired] = group
        price = np.bincount(group, weights=problem.column_price[acquired], minlength=len(chosen))
        stands = np.zeros(problem.n_columns, np.bool_)
        stands[acquired[chosen]] = True
        main = stands[of]
        # rows of the master, sorted by acquisition and member, and where each use finds its own
        order = np.lexsort((member[main], acquisition[of[main]]))
        known = (acquisition[of[main]] * n_rows + member[main])[order]
        place = np.searchsorted(known, acquisition[of] * n_rows + member)
        part = problem.column_price[of] / (price[acquisition[of]] * count)
        return MasterRows(
            number=number,
            node=node,
            acquisition=acquisition[of[main]][order],
            member=member[main][order],
            price=np.asarray(price, np.float64),
            use=np.flatnonzero(live),
            use_row=place[which],
            use_part=part[which],
            n_uses=len(live),
        )


@dataclass(frozen=True, eq=False)
class MasterRows:
    """Merged rows of a master, and how their multipliers go back to the first uses."""

    number: NDArray[np.intp]  # (n_nodes,): class of each node, -1 where no pruning keeps it
    node: NDArray[np.intp]  # (n_classes,): a node of each class
    # (n_rows,): which merged acquisition, and which class of nodes, a row of the master couples
    acquisition: NDArray[np.intp]
    member: NDArray[np.intp]
    price: Floats  # (n_acquisitions,)
    use: NDArray[np.intp]  # (n_live,): first uses, indices of column_nodes
    use_row: NDArray[np.intp]  # (n_live,): their rows
    use_part: Floats  # (n_live,): their parts of the rows' multipliers
    n_uses: int

    def spread(self, multipliers: Floats) -> Floats:
        """Multipliers of all first uses, shape (len(column_nodes),)."""
        beta = np.zeros(self.n_uses)
        beta[self.use] = multipliers[self.use_row] * self.use_part
        return beta
