"""Bounds of a stage on a small device, and the shapes of trees that keep them.

Bytes are counted in C's tables, where each tree is a list of tests: a threshold of 4 bytes, a
column number, and the offset of the right child. Where few thresholds are in use, all trees
share one table of thresholds for each feature, and a test holds the threshold's rank in it, one
byte. Trees that choose their thresholds from a coarse grid (:class:`ThresholdGrid`) therefore take
fewer bytes (the idea of ToaD, ICLR 2026).

Whether few large trees with a high learning rate or many small ones are best depends on the data,
so :func:`shaped` lists several shapes to try.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gatewise.models.stage import Stage
from gatewise.models.trees import TreeEnsemble
from gatewise_training.forests.grower.binning import Codes
from gatewise_training.learners.boosting import LARGE_ROWS, capacity
from gatewise_training.operating_points.packed_size import packed_sizes, tree_bytes

LEAVES = (4, 8, 16, 31, 63, 127, 255)
"""Leaves of a tree that are tried within a bound of bytes."""

LARGEST_STAGE = 32 << 20
"""Largest size of any stage's flat arrays, in bytes: as a graph it takes up to twice as many, and
devices read no more than 64 MB."""

HIGH_RATE = 0.4
"""Learning rate for few trees."""

LARGEST_STEP_OF_FEW = 4.0
"""Bound on the leaves of a tree for one of many classes, before the learning rate. It is higher
than without a bound of bytes, since each of few trees must go further."""

MIN_ROUNDS = 4
"""Larger trees are not tried where fewer boosting rounds of them fit."""

MIN_THRESHOLDS = 64
"""Smallest grid of a feature with more values: coarser ones lost more than they gained."""

MAX_THRESHOLDS = 252
"""Largest grid: ranks of 8 bits tell 252 thresholds from two more, which part NaN from numbers."""

GRID_SHARE = 8
"""One in this many bytes of all stages is for thresholds, of GRID_COLUMNS features."""

GRID_COLUMNS = 16

MIN_TREES = 24
"""Without a search, trees shrink until this many fit for each output, but not below MIN_LEAVES."""

MIN_LEAVES = 8

FOREST_TREES = 150
"""Extra-trees of stages without a high-cost model, on more than 5,000 rows. On 10 of Letters' 16
features 150 trees with leaves of 2 rows are right on 96.0 % of the validation rows, 50 on 95.3; on
15 features with leaves of 1 row 96.9 and 95.9. With a high-cost model that gains nothing, and takes
four times as long on Forest."""

LEAF_ROWS = (1, 2)
"""Least rows of a leaf of such a forest that are tried."""


@dataclass(frozen=True)
class TreeShape:
    """Shape of boosted trees.

    Attributes
    ----------
    leaves : int
        Of each tree.
    rate : float
        Learning rate.
    bins : int or None
        Bins per feature; None: by the number of rows.
    """

    leaves: int
    rate: float
    bins: int | None = None


@dataclass(frozen=True)
class ForestShape:
    """Number of extra-trees, and least rows of a leaf."""

    trees: int
    leaf_rows: int = 2


def grid_of(x: NDArray[np.float32], max_bytes: int) -> tuple[int, int] | None:
    """Get the thresholds of a feature for all stages of a device, and the bytes of all of them.

    None where the bytes are enough for too few. Shapes: `x` (n, n_features). Ten features with
    values 0 and 1 take a threshold each:

    >>> grid_of(np.tile(np.float32([[0], [1]]), 10), 8192)
    (25, 40)
    """
    n_thresholds = max_bytes // (4 * GRID_SHARE)
    n_columns = min(x.shape[1], GRID_COLUMNS)
    by_feature = min(n_thresholds // n_columns, MAX_THRESHOLDS)
    needed = [len(np.unique(x[:, k])) - 1 for k in range(x.shape[1])]
    if by_feature < min(max(needed), MIN_THRESHOLDS):
        return None
    return by_feature, 4 * min(n_thresholds, sum(min(by_feature, n) for n in needed))


@dataclass(frozen=True, eq=False)
class ThresholdGrid:
    """Grid of the thresholds of trees: quantiles of each column in rising order."""

    edges: tuple[NDArray[np.float32], ...]

    @classmethod
    def of_table(cls, x: NDArray[np.float32], max_thresholds: int) -> ThresholdGrid:
        """Choose at most `max_thresholds` of each column."""
        codes = Codes.of_table(x, max_codes=max_thresholds + 1)
        return cls(tuple(np.split(codes.upper, codes.start[1:-1])))

    def rounded(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        """Round each value up to a threshold, or down to the last threshold."""
        out = x.copy()
        for k, edges in enumerate(self.edges):
            real = ~np.isnan(x[:, k])
            index = np.searchsorted(edges, x[real, k])
            out[real, k] = edges[np.minimum(index, len(edges) - 1)] if len(edges) else 0
        return out

    def snapped(self, trees: TreeEnsemble) -> TreeEnsemble:
        """Move the thresholds of trees that were fitted on rounded rows to the grid.

        Rounded rows reach the same leaves as before, and other rows reach the leaves of their
        rounded copies.
        """
        threshold = trees.threshold.copy()
        largest = np.finfo(np.float32).max
        for k, edges in enumerate(self.edges):
            nodes = np.flatnonzero(trees.feature == k)
            index = np.searchsorted(edges, threshold[nodes], side="right")
            # before the first edge and from the last on a test tells NaN from all numbers
            threshold[nodes] = np.concatenate([[-largest], edges[:-1], [largest]])[index]
        return replace(trees, threshold=threshold)


@dataclass(frozen=True)
class Bounds:
    """Bounds that a stage keeps, and shapes that are known or tried.

    Attributes
    ----------
    max_bytes : int or None
        Size as C's tables, without the thresholds of the grid; None: no bound.
    shape : TreeShape or None
        Of boosted trees, where it is known or tried.
    bins : int or None
        Best number of bins per feature, where it is known.
    alone : bool
        Whether no high-cost model stands behind the stages.
    forest : ForestShape or None
        Of extra-trees, where several are tried.
    thresholds : int or None
        Thresholds per feature in the grid of all stages' trees.
    grid_bytes : int
        Bytes for them, in addition to `max_bytes`.
    """

    max_bytes: int | None = None
    shape: TreeShape | None = None
    bins: int | None = None
    alone: bool = False
    forest: ForestShape | None = None
    thresholds: int | None = None
    grid_bytes: int = 0

    def with_shape(self, shape: TreeShape | None) -> Bounds:
        """Get the bounds with the best shape of trees; with `max_bytes` only its bins."""
        if shape is None:
            return self
        return replace(self, bins=shape.bins, shape=shape if self.max_bytes is None else None)

    def with_bins(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Get LightGBM's settings with the best number of bins."""
        return dict(params) | ({} if self.bins is None else {"max_bin": self.bins})

    def rounded(self, trees: TreeEnsemble) -> TreeEnsemble:
        """Round leaves to 8 bits where bytes are bounded."""
        return trees if self.max_bytes is None else trees.centred().with_byte_leaves()

    def admit(self, stage: Stage) -> bool:
        """Whether a fitted stage keeps the bounds."""
        if self.max_bytes is None:
            return stage.nbytes <= LARGEST_STAGE
        n_free = self.grid_bytes // 4
        size = packed_sizes((stage,)).total((0,), free_thresholds=n_free)
        return stage.nbytes <= LARGEST_STAGE and size <= self.max_bytes

    def most_rounds(self, stage_of: Callable[[int], Stage], rounds: int) -> int:
        """Find the largest number of rounds, at least one, of which `stage_of` keeps the bounds."""
        if self.admit(stage_of(rounds)):
            return rounds
        # bisection: the first `fitting` rounds fit, `too_many` do not
        fitting = 1
        too_many = rounds
        while too_many - fitting > 1:
            middle = (fitting + too_many) // 2
            if self.admit(stage_of(middle)):
                fitting = middle
            else:
                too_many = middle
        return fitting

    def trees_of(
        self, leaves: int, n_columns: int, outputs: int, values: int = 1, *, at_best: bool = False
    ) -> int | None:
        """Get how many trees fit.

        Parameters
        ----------
        leaves : int
            Of each tree.
        n_columns : int
            Columns that the model reads.
        outputs : int
            Of the model.
        values : int, default 1
            Numbers of a leaf.
        at_best : bool, default False
            Count as if the trees shared nearly all of their thresholds, rather than none.

        Returns
        -------
        int or None
            None without a bound.
        """
        if self.max_bytes is None:
            return None
        # bytes left for trees, over the bytes of one
        room = self.max_bytes - (6 * n_columns + 4 * outputs + 16)
        output_number = int(outputs > 1)  # a byte for each tree
        size = (leaves, 1, values, n_columns)  # leaves of a byte, as `rounded` makes them
        n_trees = room // (tree_bytes(*size, key=1 if at_best else 4) + output_number)
        if self.thresholds is None:
            return n_trees
        room -= 4 * n_columns + max(0, 4 * n_columns * self.thresholds - self.grid_bytes)
        return max(n_trees, room // (tree_bytes(*size, key=1) + output_number))

    def tree_budget(
        self,
        n_trees: int,
        n_leaves: int,
        n_columns: int,
        outputs: int = 1,
        values: int = 1,
        *,
        at_best: bool = False,
    ) -> tuple[int, int]:
        """Get numbers of trees and leaves that fit, up to `n_trees` and `n_leaves`.

        Without a shape, trees lose leaves until MIN_TREES for each output fit, but they keep
        MIN_LEAVES. Other parameters are as for :meth:`trees_of`.
        """
        if self.shape is not None:
            # a shape that was found on all rows; on fewer rows trees bear fewer leaves
            bounded = self.max_bytes is not None
            n_leaves = self.shape.leaves if bounded else min(n_leaves, self.shape.leaves)
        else:
            min_fitting = min(n_trees, MIN_TREES * outputs)
            while n_leaves > MIN_LEAVES:
                fitting = self.trees_of(n_leaves, n_columns, outputs, values)
                if fitting is None or fitting >= min_fitting:
                    break
                n_leaves = max(MIN_LEAVES, n_leaves // 2)
        fitting = self.trees_of(n_leaves, n_columns, outputs, values, at_best=at_best)
        return max(1, n_trees if fitting is None else min(n_trees, fitting)), n_leaves


def shaped(
    families: Sequence[str], bounds: Bounds, n_rows: int, n_classes: int, n_columns: int
) -> dict[str, tuple[str, Bounds]]:
    """Map the names of the models to try to their families and bounds with shapes.

    Within `max_bytes` boosted trees have each shape of which enough rounds fit. Without a high-cost
    model extra-trees have several sizes of leaves.
    """
    kinds = {family: (family, bounds) for family in families}
    if bounds.max_bytes is None:
        if bounds.alone and n_rows > LARGE_ROWS and "extra-trees" in kinds:
            del kinds["extra-trees"]
            for rows in LEAF_ROWS:
                forest = replace(bounds, forest=ForestShape(FOREST_TREES, rows))
                kinds[f"extra-trees, leaves of {rows} rows"] = "extra-trees", forest
        return kinds
    if kinds.pop("boosting", None) is None:
        return kinds
    # shapes of boosted trees, up to four times the leaves of an unbounded fit
    outputs = 1 if n_classes == 2 else n_classes
    most_leaves = 4 * int(capacity(n_rows, n_classes)["num_leaves"])
    for leaves in LEAVES:
        rounds = (bounds.trees_of(leaves, n_columns, outputs, at_best=True) or 0) // outputs
        if leaves > LEAVES[0] and (leaves > most_leaves or rounds < MIN_ROUNDS):
            break
        for rate in (HIGH_RATE, 0.2 if rounds < 100 else 0.1):
            shape = replace(bounds, shape=TreeShape(leaves, rate))
            kinds[f"boosting, {leaves} leaves, rate {rate:g}"] = "boosting", shape
    return kinds
