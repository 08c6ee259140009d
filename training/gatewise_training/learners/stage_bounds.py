"""Bounds of a stage for small devices: bytes and trees, and the shapes of trees that keep them.

Which shape is best depends on the data: few large trees at a high rate, or many small ones. In C's
tables trees share their thresholds: a table of them for each feature, and a byte in each node. That
trees should reuse thresholds is ToaD's idea (ICLR 2026); here they choose from a grid.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gatewise.models.stage import Stage
from gatewise.models.tree_sources import FLOAT32_MAX
from gatewise.models.trees import NODE_BYTES, TreeEnsemble
from gatewise_training.forests.grower.binning import Codes
from gatewise_training.graphs.packed_size import (
    packed_sizes,
    tree_bytes,
)
from gatewise_training.learners.boosting import LARGE_ROWS, capacity

LEAVES = (4, 8, 16, 31, 63, 127, 255)
"""Leaves of a tree that are tried within a bound of size."""
LARGEST_STAGE = 32 << 20
"""Bytes of any stage at most: as a graph it takes up to twice as many, and devices read 64 MB."""
HIGH_RATE = 0.4
"""Learning rate that makes much of few trees."""
LARGEST_STEP_OF_FEW = 4.0
"""Leaves of a tree for one of many classes at most, before the learning rate: few trees must go
further with each."""
FEWEST_ROUNDS = 4
"""Larger trees are not tried once fewer rounds of them fit."""
FEWEST_THRESHOLDS, MOST_THRESHOLDS = 64, 252
"""Of a feature with more values: trees on a coarser grid lost more than they gained in number, and
ranks of 8 bits tell 252 from two more, which tell NaN from all numbers."""
GRID_SHARE, GRID_COLUMNS = 8, 16
"""Of the bytes of all stages one in so many for the thresholds of so many features."""
SOME_TREES, FEW_LEAVES = 24, 8
"""Without a search, trees have fewer leaves until so many fit, and no fewer than so many."""
MANY_TREES, LEAF_ROWS = 150, (1, 2)
"""Extra-trees of stages that stand alone, on more than 5,000 rows, and the least rows of a leaf,
each tried. On 10 of Letters' 16 features 150 trees have 96.0 % of the validation rows right, with 2
rows, on 15 features 96.9, with 1; 50 trees with 2 rows have 95.3 and 95.9. Before a high-cost model
that gains nothing, and takes four times as long on Forest."""


@dataclass(frozen=True)
class TreeShape:
    """Leaves of each tree, the learning rate, and bins of a feature, None: by the data's size."""

    leaves: int
    rate: float
    bins: int | None = None


@dataclass(frozen=True)
class ForestShape:
    """Extra-trees of a stage, and rows that a leaf has at least."""

    trees: int
    leaf_rows: int = 2


def grid_of(x: NDArray[np.float32], max_bytes: int) -> tuple[int, int] | None:
    """Thresholds of a feature for all stages of a device, and their bytes.

    None where the room is for too few. Shapes: `x` (n, n_features). Ten features with values 0 and
    1 take a threshold each:

    >>> grid_of(np.tile(np.float32([[0], [1]]), 10), 8192)
    (25, 40)
    """
    room, n_columns = max_bytes // (4 * GRID_SHARE), min(x.shape[1], GRID_COLUMNS)
    most = min(room // n_columns, MOST_THRESHOLDS)
    needed = [len(np.unique(x[:, k])) - 1 for k in range(x.shape[1])]
    if most < min(max(needed), FEWEST_THRESHOLDS):
        return None
    return most, 4 * min(room, sum(min(most, n) for n in needed))


@dataclass(frozen=True, eq=False)
class ThresholdGrid:
    """The thresholds that trees may have: quantiles of each column, rising."""

    edges: tuple[NDArray[np.float32], ...]

    @classmethod
    def of_table(cls, x: NDArray[np.float32], most: int) -> ThresholdGrid:
        """Choose at most so many thresholds of each column."""
        codes = Codes.of_table(x, most=most + 1)
        return cls(tuple(np.split(codes.upper, codes.start[1:-1])))

    def rounded(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        """Replace each value by the least threshold that is not below it, the last for others."""
        out = x.copy()
        for k, edges in enumerate(self.edges):
            real = ~np.isnan(x[:, k])
            place = np.searchsorted(edges, x[real, k])
            out[real, k] = edges[np.minimum(place, len(edges) - 1)] if len(edges) else 0
        return out

    def snapped(self, trees: TreeEnsemble) -> TreeEnsemble:
        """Move the thresholds of trees that were fitted on rounded rows to the grid.

        Rounded rows go where they went, and other rows go where their rounded ones go.
        """
        threshold = trees.threshold.copy()
        for k, edges in enumerate(self.edges):
            here = np.flatnonzero(trees.feature == k)
            place = np.searchsorted(edges, threshold[here], side="right")
            # before the first edge and from the last on a test tells NaN from all numbers
            threshold[here] = np.concatenate([[-FLOAT32_MAX], edges[:-1], [FLOAT32_MAX]])[place]
        return replace(trees, threshold=threshold)


@dataclass(frozen=True)
class Bounds:
    """What a stage must keep; None: no bound.

    `stage_bytes`: size of its flat arrays; `trees`: their number; `packed_bytes`: size as C's
    tables. `shape`: that of boosted trees, where it is known or
    searched. `bins`: of a feature, where they are known to be best. `alone`: no high-cost model
    stands behind the stages. `forest`: the shape of extra-trees, where it is searched.
    `thresholds`: of a feature, in the trees of all stages; `grid_bytes` are for them, beside.
    """

    stage_bytes: int | None = None
    trees: int | None = None
    packed_bytes: int | None = None
    shape: TreeShape | None = None
    bins: int | None = None
    alone: bool = False
    forest: ForestShape | None = None
    thresholds: int | None = None
    grid_bytes: int = 0

    def with_shape(self, shape: TreeShape | None) -> Bounds:
        """Get the bounds with the best shape of trees, where size is bounded its bins alone."""
        if shape is None:
            return self
        return replace(self, bins=shape.bins, shape=None if self.of_size else shape)

    def with_bins(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Get LightGBM's settings with the best number of bins."""
        return dict(params) | ({} if self.bins is None else {"max_bin": self.bins})

    @property
    def of_size(self) -> bool:
        """Whether any bound is one of size."""
        return self.stage_bytes is not None or self.packed_bytes is not None

    def rounded(self, trees: TreeEnsemble) -> TreeEnsemble:
        """Round leaves to 8 bits where the size of C's tables is bounded."""
        return trees if self.packed_bytes is None else trees.centred().with_byte_leaves()

    def most_rounds(self, stage_of: Callable[[int], Stage], rounds: int) -> int:
        """Find how many of so many rounds a stage within the bounds can keep; at least one.

        `stage_of` makes the stage of the first rounds.
        """
        if self.admit(stage_of(rounds)):
            return rounds
        low, above = 1, rounds
        while above - low > 1:
            middle = (low + above) // 2
            low, above = (middle, above) if self.admit(stage_of(middle)) else (low, middle)
        return low

    def admit(self, stage: Stage) -> bool:
        """Whether a fitted stage is within the bounds."""
        fits = stage.nbytes <= (LARGEST_STAGE if self.stage_bytes is None else self.stage_bytes)
        if fits and self.packed_bytes is not None:
            sizes = packed_sizes((stage,))
            fits = sizes.total((0,), free_thresholds=self.grid_bytes // 4) <= self.packed_bytes
        return fits and (self.trees is None or stage.n_trees <= self.trees)

    def trees_of(
        self, leaves: int, n_columns: int, outputs: int, values: int = 1, *, at_best: bool = False
    ) -> int | None:
        """Get how many trees of so many leaves surely fit, of a model that reads so many columns.

        `values` are the numbers of a leaf. `at_best`: how many may fit, if trees share nearly all
        of their thresholds. None: as many as one likes.
        """
        most = [] if self.trees is None else [self.trees]
        if self.stage_bytes is not None:
            flat = (2 * leaves - 1) * (NODE_BYTES + 4 * (values - 1))
            most.append(self.stage_bytes // flat)
        if self.packed_bytes is not None:
            beside = 6 * n_columns + 4 * outputs + 16
            size = (leaves, 1, values, n_columns)  # leaves as `rounded` has them
            room, more = self.packed_bytes - beside, int(outputs > 1)
            fitting = room // (tree_bytes(*size, key=1 if at_best else 4) + more)
            if self.thresholds is not None:
                room -= 4 * n_columns + max(0, 4 * n_columns * self.thresholds - self.grid_bytes)
                fitting = max(fitting, room // (tree_bytes(*size, key=1) + more))
            most.append(fitting)
        return min(most, default=None)

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
        """Get trees and leaves of each that fit: few leaves rather than few trees, but not tiny.

        `at_best`: see :meth:`trees_of`.
        """
        if self.shape is not None:  # found on all rows; what fewer rows can bear is fewer leaves
            n_leaves = self.shape.leaves if self.of_size else min(n_leaves, self.shape.leaves)
        wanted, of_size = min(n_trees, SOME_TREES * outputs), replace(self, trees=None)
        while self.shape is None and n_leaves > FEW_LEAVES:
            fitting = of_size.trees_of(n_leaves, n_columns, outputs, values)
            if fitting is None or fitting >= wanted:
                break
            n_leaves = max(FEW_LEAVES, n_leaves // 2)
        fitting = self.trees_of(n_leaves, n_columns, outputs, values, at_best=at_best)
        return max(1, n_trees if fitting is None else min(n_trees, fitting)), n_leaves


def shaped(
    families: Sequence[str], bounds: Bounds, n_rows: int, n_classes: int, n_columns: int
) -> dict[str, tuple[str, Bounds]]:
    """List what to try: within bounds of size boosted trees in each shape that is worth it.

    Stages that stand alone have extra-trees of several shapes.
    """
    found = {family: (family, bounds) for family in families}
    if bounds.alone and not bounds.of_size and n_rows > LARGE_ROWS and "extra-trees" in found:
        del found["extra-trees"]
        for rows in LEAF_ROWS:
            forest = replace(bounds, forest=ForestShape(MANY_TREES, rows))
            found[f"extra-trees, leaves of {rows} rows"] = "extra-trees", forest
    if not bounds.of_size or "boosting" not in found:
        return found
    outputs = 1 if n_classes == 2 else n_classes
    most = 4 * int(capacity(n_rows, n_classes)["num_leaves"])
    del found["boosting"]
    for leaves in LEAVES:
        rounds = (bounds.trees_of(leaves, n_columns, outputs, at_best=True) or 0) // outputs
        if leaves > LEAVES[0] and (leaves > most or rounds < FEWEST_ROUNDS):
            break
        for rate in (HIGH_RATE, 0.2 if rounds < 100 else 0.1):
            shape = replace(bounds, shape=TreeShape(leaves, rate))
            found[f"boosting, {leaves} leaves, rate {rate:g}"] = "boosting", shape
    return found
