"""Shapes of trees with which a stage of the cascade fits into the memory of a small device.

Bytes are counted in the tables of the C code, where each tree is a list of tests. A test has a
threshold of 4 bytes, a column number, and the offset of the right child. Trees with thresholds from
a coarse grid need fewer bytes (:mod:`.threshold_grid`).

Whether few large trees with a high learning rate or many small trees are best depends on the data,
so :func:`models_to_try` lists several shapes to try.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from gatewise.models.stage import Stage
from gatewise.models.trees import TreeEnsemble
from gatewise_training.learners.boosting import MAX_SMALL_ROWS, capacity_params
from gatewise_training.operating_points.packed_size import packed_sizes, tree_bytes

#: Numbers of leaves of a tree to try within a bound of bytes.
LEAVES_TO_TRY = (4, 8, 16, 31, 63, 127, 255)

#: Maximum size of a stage's flat arrays. The graph of a stage takes up to twice as many bytes, and
#: devices do not read more than 64 MB.
MAX_STAGE_BYTES = 32 << 20

#: Higher of the two learning rates to try within a bound of bytes. Few trees need large steps.
HIGH_LEARNING_RATE = 0.4

#: Limit on the absolute value of a leaf, before multiplication by the learning rate, in a model of
#: more than two classes within a bound of bytes. The Newton steps of a rare class have no bound: on
#: Forest there were leaves of 691. Without a bound of bytes the limit is lower, because more trees
#: need smaller steps.
MAX_STEP_OF_FEW_TREES = 4.0

#: Smallest number of boosting rounds that must fit; larger trees are not tried.
MIN_ROUNDS = 4

#: Number of trees for each output that must fit if no shape was searched. Otherwise the trees are
#: made smaller, down to MIN_LEAVES leaves.
MIN_TREES = 24

#: Smallest number of leaves to which trees are reduced if no shape was searched.
MIN_LEAVES = 8

#: Number of extra-trees of stages that answer all instances, on more than 5,000 rows. On 10 of the
#: 16 features of Letters, with leaves of 2 rows, the accuracy on validation rows is 96.0 % with 150
#: trees and 95.3 % with 50. On 15 features, with leaves of 1 row, it is 96.9 % and 95.9 %. If
#: instances may be offloaded, more trees are not better, and take four times as long on Forest.
N_FOREST_TREES = 150

#: Smallest numbers of rows per leaf to try for such a forest.
MIN_LEAF_ROWS_TO_TRY = (1, 2)


@dataclass(frozen=True)
class TreeShape:
    """Shape of boosted trees.

    Attributes
    ----------
    n_leaves : int
        Number of leaves of each tree.
    learning_rate : float
    n_bins : int or None
        Number of bins per feature. With None it depends on the number of rows.
    """

    n_leaves: int
    learning_rate: float
    n_bins: int | None = None


@dataclass(frozen=True)
class ForestShape:
    """Number of extra-trees, and smallest number of rows per leaf."""

    n_trees: int
    min_leaf_rows: int = 2


@dataclass(frozen=True)
class Bounds:
    """Bounds of a stage, and the shapes of its trees.

    Attributes
    ----------
    max_bytes : int or None
        Maximum size of the tables in C, without the thresholds of the grid. None for no bound.
    shape : TreeShape or None
        Shape of boosted trees, if it is known or one of several to try.
    n_bins : int or None
        Best number of bins per feature, if it is known.
    without_offloads : bool
        Whether a cap on the cost of an instance forbids offloads. The stages then answer all
        instances.
    forest_shape : ForestShape or None
        Shape of a forest, if it is one of several to try.
    n_thresholds : int or None
        Number of thresholds per feature in the grid, which the trees of all stages share.
    grid_bytes : int
        Bytes for the grid, in addition to `max_bytes`.
    """

    max_bytes: int | None = None
    shape: TreeShape | None = None
    n_bins: int | None = None
    without_offloads: bool = False
    forest_shape: ForestShape | None = None
    n_thresholds: int | None = None
    grid_bytes: int = 0

    def with_shape(self, shape: TreeShape | None) -> Bounds:
        """Return a copy with the best shape of trees.

        If there is a bound of bytes, only the number of bins is taken: the best shape was found
        without the bound, and :func:`models_to_try` lists the shapes within it.
        """
        if shape is None:
            return self
        return replace(self, n_bins=shape.n_bins, shape=shape if self.max_bytes is None else None)

    def add_bins(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Copy LightGBM's settings with the best number of bins."""
        return dict(params) | ({} if self.n_bins is None else {"max_bin": self.n_bins})

    def round_leaves(self, trees: TreeEnsemble) -> TreeEnsemble:
        """Round leaf values to 8 bits if there is a bound of bytes."""
        return trees if self.max_bytes is None else trees.with_centred_leaves().with_byte_leaves()

    def allows(self, stage: Stage) -> bool:
        """Whether a fitted stage is within the bounds."""
        if self.max_bytes is None:
            return stage.nbytes <= MAX_STAGE_BYTES
        n_free = self.grid_bytes // 4
        size = packed_sizes((stage,)).total((0,), free_thresholds=n_free)
        return stage.nbytes <= MAX_STAGE_BYTES and size <= self.max_bytes

    def max_rounds(self, stage_of: Callable[[int], Stage], rounds: int) -> int:
        """Find the largest number of rounds, at least one, with a stage within the bounds.

        ``stage_of(k)`` makes the stage of the first k rounds; there are `rounds` rounds.
        """
        if self.allows(stage_of(rounds)):
            return rounds
        # bisection: stages of `n_fitting` rounds fit, stages of `n_exceeding` rounds do not
        n_fitting = 1
        n_exceeding = rounds
        while n_exceeding - n_fitting > 1:
            middle = (n_fitting + n_exceeding) // 2
            if self.allows(stage_of(middle)):
                n_fitting = middle
            else:
                n_exceeding = middle
        return n_fitting

    def max_trees(
        self,
        n_leaves: int,
        n_columns: int,
        n_outputs: int,
        n_leaf_values: int = 1,
        *,
        shares_thresholds: bool = False,
    ) -> int | None:
        """Estimate the number of trees that fit into the bytes.

        The bytes of a fitted stage are computed exactly in :meth:`allows`.

        Parameters
        ----------
        n_leaves : int
            Number of leaves of each tree.
        n_columns : int
            Number of columns that the model reads.
        n_outputs : int
            Number of outputs of the model.
        n_leaf_values : int, default 1
            Number of values per leaf.
        shares_thresholds : bool, default False
            Whether to assume that the trees share nearly all of their thresholds, instead of no
            threshold.

        Returns
        -------
        int or None
            None if there is no bound.
        """
        if self.max_bytes is None:
            return None
        # number of trees = bytes for all trees / bytes per tree. In addition to its trees, a stage
        # has about 6 bytes of lists per column, a float32 base margin per output, and 16 bytes of
        # other fields; `packed_sizes` counts them exactly
        bytes_for_trees = self.max_bytes - (6 * n_columns + 4 * n_outputs + 16)
        output_bytes = int(n_outputs > 1)  # each tree stores the index of its output in a byte
        # leaf values have one byte, see `round_leaves`
        tree_size = (n_leaves, 1, n_leaf_values, n_columns)
        n_trees = bytes_for_trees // (
            tree_bytes(*tree_size, threshold_bytes=1 if shares_thresholds else 4) + output_bytes
        )
        if self.n_thresholds is None:
            return n_trees
        # with the grid, a test has a threshold of one byte, and each column the start of its
        # thresholds in 4 bytes; thresholds beyond the bytes of the grid take bytes of the trees
        grid_excess = max(0, 4 * n_columns * self.n_thresholds - self.grid_bytes)
        bytes_for_trees -= 4 * n_columns + grid_excess
        return max(
            n_trees, bytes_for_trees // (tree_bytes(*tree_size, threshold_bytes=1) + output_bytes)
        )

    def trees_and_leaves(
        self,
        n_trees: int,
        n_leaves: int,
        n_columns: int,
        n_outputs: int = 1,
        n_leaf_values: int = 1,
        *,
        shares_thresholds: bool = False,
    ) -> tuple[int, int]:
        """Estimate the numbers of trees and leaves that fit, up to `n_trees` and `n_leaves`.

        Without a shape, the leaves are halved until MIN_TREES trees for each output fit, but not
        below MIN_LEAVES. Other parameters are as for :meth:`max_trees`.
        """
        if self.shape is not None:
            # the shape was found on all rows; this fit may have fewer rows and need fewer leaves
            is_bounded = self.max_bytes is not None
            n_leaves = self.shape.n_leaves if is_bounded else min(n_leaves, self.shape.n_leaves)
        else:
            n_wanted_trees = min(n_trees, MIN_TREES * n_outputs)
            while n_leaves > MIN_LEAVES:
                n_fitting = self.max_trees(n_leaves, n_columns, n_outputs, n_leaf_values)
                if n_fitting is None or n_fitting >= n_wanted_trees:
                    break
                n_leaves = max(MIN_LEAVES, n_leaves // 2)
        n_fitting = self.max_trees(
            n_leaves, n_columns, n_outputs, n_leaf_values, shares_thresholds=shares_thresholds
        )
        return max(1, n_trees if n_fitting is None else min(n_trees, n_fitting)), n_leaves


class ModelVariant(NamedTuple):
    """A model family, and bounds that may have one of several shapes of its trees."""

    family: str
    bounds: Bounds


def models_to_try(
    families: Sequence[str], bounds: Bounds, n_rows: int, n_classes: int, n_columns: int
) -> dict[str, ModelVariant]:
    """List the variants of the families to try, by name.

    With `max_bytes`, boosted trees are tried with 4 leaves, and in each larger shape of which
    enough rounds fit. Without it, if the stages answer all instances and there are more than
    MAX_SMALL_ROWS rows, extra-trees are tried with several sizes of leaves.
    """
    variants = {family: ModelVariant(family, bounds) for family in families}
    if bounds.max_bytes is None:
        if bounds.without_offloads and n_rows > MAX_SMALL_ROWS and "extra-trees" in variants:
            del variants["extra-trees"]
            for min_leaf_rows in MIN_LEAF_ROWS_TO_TRY:
                forest_shape = ForestShape(N_FOREST_TREES, min_leaf_rows)
                name = f"extra-trees, leaves of {min_leaf_rows} rows"
                variants[name] = ModelVariant(
                    "extra-trees", replace(bounds, forest_shape=forest_shape)
                )
        return variants
    if variants.pop("boosting", None) is None:
        return variants
    # Shapes of boosted trees. Few trees may need more leaves than an unbounded fit, up to four
    # times as many.
    n_outputs = 1 if n_classes == 2 else n_classes
    max_leaves = 4 * int(capacity_params(n_rows, n_classes)["num_leaves"])
    for n_leaves in LEAVES_TO_TRY:
        max_trees = bounds.max_trees(n_leaves, n_columns, n_outputs, shares_thresholds=True) or 0
        max_rounds = max_trees // n_outputs
        if n_leaves > LEAVES_TO_TRY[0] and (n_leaves > max_leaves or max_rounds < MIN_ROUNDS):
            break
        # the lower learning rate is lower still if there are enough rounds for it
        for learning_rate in (HIGH_LEARNING_RATE, 0.2 if max_rounds < 100 else 0.1):
            shape = TreeShape(n_leaves, learning_rate)
            name = f"boosting, {n_leaves} leaves, rate {learning_rate:g}"
            variants[name] = ModelVariant("boosting", replace(bounds, shape=shape))
    return variants
