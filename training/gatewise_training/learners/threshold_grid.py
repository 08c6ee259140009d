"""The grid of thresholds that the trees of all stages share within a bound of bytes.

In C, trees with few thresholds share one table of thresholds per feature. A test then stores the
one-byte rank of its threshold instead of 4 bytes (the idea of ToaD, ICLR 2026). Trees are fitted on
rows that are rounded to the grid (:meth:`ThresholdGrid.round_rows`), and their thresholds are then
moved to the grid (:meth:`ThresholdGrid.move_thresholds`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gatewise.models.trees import TreeEnsemble
from gatewise_training.forests.grower.binning import Codes

#: Smallest grid of a feature that has more values. On Forest with two classes, cascades within 8 KB
#: save 48 % of the cost with grids of 16 thresholds, instead of 50 %.
MIN_THRESHOLDS = 64

#: Largest grid. Ranks have 8 bits, and two ranks are needed to separate NaN from numbers.
MAX_THRESHOLDS = 252

#: The grid gets an eighth of the bytes of all stages; the other bytes are for the trees.
GRID_BYTES_DIVISOR = 8

#: Number of features that the bytes of the grid are divided among if a table has more features. The
#: stages of a small device read only some of the columns.
N_GRID_FEATURES = 16


class GridSize(NamedTuple):
    """Largest number of thresholds per feature in a grid, and the bytes of the whole grid."""

    n_thresholds: int
    n_bytes: int


def choose_grid_size(x: NDArray[np.float32], max_bytes: int) -> GridSize | None:
    """Choose the size of the grid for stages of at most `max_bytes` bytes together.

    Return None if the bytes do not suffice for a useful number of thresholds. Shapes: `x`
    (n, n_features). Ten features with values 0 and 1 need one threshold each:

    >>> choose_grid_size(np.tile(np.float32([[0], [1]]), 10), 8192)
    GridSize(n_thresholds=25, n_bytes=40)
    """
    n_thresholds = max_bytes // (4 * GRID_BYTES_DIVISOR)
    n_columns = min(x.shape[1], N_GRID_FEATURES)
    n_per_feature = min(n_thresholds // n_columns, MAX_THRESHOLDS)
    boundary_counts = [len(np.unique(x[:, column])) - 1 for column in range(x.shape[1])]
    if n_per_feature < min(max(boundary_counts), MIN_THRESHOLDS):
        return None
    n_grid_thresholds = sum(min(n_per_feature, count) for count in boundary_counts)
    # 4 bytes per float32 threshold
    return GridSize(n_per_feature, 4 * min(n_thresholds, n_grid_thresholds))


@dataclass(frozen=True, eq=False)
class ThresholdGrid:
    """Grid of thresholds for trees: ascending quantiles of each column."""

    thresholds: tuple[NDArray[np.float32], ...]

    @classmethod
    def of_table(cls, x: NDArray[np.float32], max_thresholds: int) -> ThresholdGrid:
        """Choose at most `max_thresholds` thresholds per column."""
        codes = Codes.of_table(x, max_codes=max_thresholds + 1)
        return cls(tuple(np.split(codes.upper, codes.start[1:-1])))

    def round_rows(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        """Round each value up to a threshold, and values above the last one down to it.

        Values of a column without thresholds become 0, and NaN remains.
        """
        rounded_x = x.copy()
        for column, thresholds in enumerate(self.thresholds):
            is_number = ~np.isnan(x[:, column])
            index = np.searchsorted(thresholds, x[is_number, column]).clip(max=len(thresholds) - 1)
            rounded_x[is_number, column] = thresholds[index] if len(thresholds) else 0
        return rounded_x

    def move_thresholds(self, trees: TreeEnsemble) -> TreeEnsemble:
        """Move the thresholds of trees that were fitted on rounded rows to the grid.

        Rounded rows reach the same leaves as before, and other rows reach the leaves of their
        rounded copies.
        """
        node_thresholds = trees.threshold.copy()
        largest = np.finfo(np.float32).max
        for column, thresholds in enumerate(self.thresholds):
            nodes = np.flatnonzero(trees.feature == column)
            index = np.searchsorted(thresholds, node_thresholds[nodes], side="right")
            # no rounded value is below the first threshold or above the last one, so tests there
            # only separate NaN from numbers
            moved_thresholds = np.concatenate([[-largest], thresholds[:-1], [largest]])
            node_thresholds[nodes] = moved_thresholds[index]
        return replace(trees, threshold=node_thresholds)
