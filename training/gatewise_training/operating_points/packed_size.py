"""Close upper bounds on the bytes of stages on a device, as tables of C99 without code."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gatewise.models.graph_model import GraphModel
from gatewise.models.kernel_machine import KernelModel
from gatewise.models.leaf_tables import leaf_rows, pack_leaves, unsigned_bytes
from gatewise.models.linear import LinearModel
from gatewise.models.stage import Stage
from gatewise.models.trees import TreeEnsemble
from gatewise.operating_point import OperatingPoint

MAX_THRESHOLDS_BY_RANK_BYTES = {1: 254, 2: 65534}
"""Largest number of thresholds of a feature, by the bytes of their ranks."""


@dataclass(frozen=True, eq=False)
class PackedSizes:
    """Bytes of a cascade's stages on a device.

    `forms` are the possible forms of the tables; the smallest is packed. A form has the bytes of
    the stages, (n_stages,), and a mask of the thresholds that they need, (n_stages, n_thresholds).
    Stages share thresholds, which take 4 bytes each.
    """

    forms: tuple[tuple[NDArray[np.int64], NDArray[np.bool_]], ...]

    @classmethod
    def without_shared_thresholds(cls, sizes: Sequence[int]) -> PackedSizes:
        """Make the sizes of stages that share no thresholds."""
        return cls(((np.array(sizes, np.int64), np.zeros((len(sizes), 0), np.bool_)),))

    @property
    def by_stage(self) -> tuple[int, ...]:
        """Bytes of each stage without the others."""
        return tuple(self.total([stage]) for stage in range(len(self.forms[0][0])))

    def total(self, stages: Sequence[int], *, free_thresholds: int = 0) -> int:
        """Bound the bytes of some stages; `free_thresholds` of their thresholds are not counted."""
        stage_numbers = np.array(stages, np.intp)
        return min(
            int(stage_bytes[stage_numbers].sum())
            + 4 * max(0, int(needs_threshold[stage_numbers].any(0).sum()) - free_thresholds)
            for stage_bytes, needs_threshold in self.forms
        )

    def bytes_on_device(self, stages: Sequence[int]) -> int:
        """Get the bytes of some stages, or of the smallest stage if there are none.

        >>> sizes = PackedSizes.without_shared_thresholds((30, 20, 0))
        >>> sizes.bytes_on_device((0, 1)), sizes.bytes_on_device(())
        (50, 20)
        """
        return self.total(stages) or min(filter(None, self.by_stage), default=0)


def packed_sizes(stages: Sequence[Stage]) -> PackedSizes:
    """Compute the sizes of a cascade's stages on a device."""
    return PackedSizes(tuple(_list_table_forms(stages)))


def packed_bytes(stages: Sequence[Stage]) -> int:
    """Compute an upper bound on the bytes of a cascade's stages."""
    return packed_sizes(stages).total(range(len(stages)))


def _list_table_forms(
    stages: Sequence[Stage],
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.bool_]]]:
    """Yield the forms of the tables: thresholds as floats and, if few, as ranks of 1 or 2 bytes."""
    read_columns = {int(column) for stage in stages for column in stage.features}
    tree_models = [stage.model for stage in stages if isinstance(stage.model, TreeEnsemble)]
    inner_node_counts = [_count_inner_nodes(trees) for trees in tree_models]
    largest_tree = max((int(counts.max(initial=0)) for counts in inner_node_counts), default=0)
    largest_forest = max((int(counts.sum()) for counts in inner_node_counts), default=0)
    # bytes of a node's test, of the offset of a right child, of a tree's first node
    has_nan = any(bool(trees.nan_left.any()) for trees in tree_models)
    node_widths = (
        slot_width(len(read_columns), has_nan=has_nan),
        unsigned_bytes(largest_tree),
        unsigned_bytes(largest_forest),
    )
    # floats and, where there are few, ranks among all stages' thresholds
    index_width = unsigned_bytes(max(read_columns, default=0) + 1)
    stage_thresholds = [_encode_tests(stage) for stage in stages]
    all_thresholds = _sort_distinct(np.concatenate([*stage_thresholds, np.zeros(0, np.int64)]))
    most_thresholds = int(np.unique(all_thresholds >> 32, return_counts=True)[1].max(initial=0))
    leaf_tables = [
        pack_leaves(leaf_rows(stage.model)[0]) if isinstance(stage.model, TreeEnsemble) else None
        for stage in stages
    ]
    all_widths = [leaf_table.index_widths for leaf_table in leaf_tables if leaf_table is not None]
    index_widths = np.max([(1, 1, 1, 1), *all_widths], axis=0).tolist()
    leaf_bytes = [
        0 if leaf_table is None else leaf_table.nbytes(index_widths) for leaf_table in leaf_tables
    ]
    rank_limits = MAX_THRESHOLDS_BY_RANK_BYTES.items()
    rank_bytes = [n_bytes for n_bytes, limit in rank_limits if 0 < most_thresholds <= limit]
    for threshold_bytes in (4, *rank_bytes):
        # a feature's column and its place in a stage's list, a flag whether the cloud needs it, and
        # with ranks the start of its thresholds in 4 bytes
        feature_bytes = 2 * index_width + (1 if threshold_bytes == 4 else 5)
        stage_bytes = [
            _count_table_bytes(stage, threshold_bytes, *node_widths)
            + n_leaf_bytes
            + feature_bytes * max(len(stage.features), 1)
            + 6  # number of its margins in 2 bytes, and end of all thresholds in 4
            for stage, n_leaf_bytes in zip(stages, leaf_bytes, strict=True)
        ]
        shared_thresholds = all_thresholds[:0] if threshold_bytes == 4 else all_thresholds
        needs = [np.isin(shared_thresholds, thresholds) for thresholds in stage_thresholds]
        needs_threshold = np.reshape(needs, (len(stage_bytes), len(shared_thresholds)))
        yield np.array(stage_bytes, np.int64), needs_threshold


def tree_bytes(
    n_leaves: int, value_bytes: int, n_values: int, n_columns: int, *, threshold_bytes: int = 4
) -> int:
    """Bound the bytes of a tree with `n_leaves` leaves of `n_values` values each."""
    n_inner = n_leaves - 1
    return (
        n_inner * (threshold_bytes + slot_width(n_columns, has_nan=False) + unsigned_bytes(n_inner))
        + value_bytes * n_leaves * n_values
        + 5  # start of the tree in up to 4 bytes, and number of its output
    )


def slot_width(n_columns: int, *, has_nan: bool) -> int:
    """Get the bytes of a node's test in C, with the direction of NaN if `has_nan`."""
    return unsigned_bytes(2 * n_columns if has_nan else max(n_columns - 1, 0))


def _count_inner_nodes(trees: TreeEnsemble) -> NDArray[np.int64]:
    """Count the inner nodes of each tree."""
    tree_ends = np.append(trees.roots, trees.n_nodes)
    counts: NDArray[np.int64] = np.diff(np.append(0, np.cumsum(trees.feature >= 0))[tree_ends])
    return counts


def _encode_tests(stage: Stage) -> NDArray[np.int64]:
    """Get feature << 32 | bits of the threshold, for each distinct test of a stage's trees."""
    trees = stage.model
    if not isinstance(trees, TreeEnsemble):
        return np.zeros(0, np.int64)
    is_inner = trees.feature >= 0
    columns = stage.features[trees.feature[is_inner]]
    thresholds = trees.threshold[is_inner] + np.float32(0)  # no negative zero
    return _sort_distinct(columns.astype(np.int64) << 32 | thresholds.view(np.uint32))


def _sort_distinct(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Sort values without duplicates; ``numpy.unique`` hashes, which is slow on millions."""
    values = np.sort(values)
    distinct: NDArray[np.int64] = values[np.diff(values, prepend=-1) != 0]  # no value is negative
    return distinct


def _count_table_bytes(
    stage: Stage, threshold_bytes: int, test_bytes: int, offset_bytes: int, start_bytes: int
) -> int:
    """Compute the bytes of a stage's model without its leaves."""
    model = stage.model
    if isinstance(model, GraphModel):  # has no form in C
        return model.nbytes
    if isinstance(model, TreeEnsemble):
        # starts of trees, tests of inner nodes, numbers of outputs, base margins
        n_inner = int((model.feature >= 0).sum())
        return (
            (model.n_trees + 1) * start_bytes
            + max(n_inner, 1) * (threshold_bytes + test_bytes + offset_bytes)
            + (model.n_trees * unsigned_bytes(model.n_outputs) if model.n_outputs > 1 else 0)
            + 4 * model.n_outputs
        )
    return _count_float_bytes(model)


def _count_float_bytes(model: LinearModel | KernelModel) -> int:
    """Count the bytes of the floats of a model without trees."""
    arrays = [model.mean, model.scale, model.weights, model.bias]
    if isinstance(model, KernelModel):
        arrays.append(model.landmarks)
    return sum(4 * max(array.size, 1) for array in arrays)


def stages_on_device(stages: Sequence[Stage], point: OperatingPoint) -> list[int]:
    """List the stages that a device needs.

    These are the stages that may stop an instance, or else the smallest stage, which answers while
    the cloud cannot be reached.
    """
    stage_bytes = packed_sizes(stages).by_stage
    stage_numbers = [
        stage for stage, threshold in enumerate(point.thresholds) if threshold is not None
    ]
    if any(stage_bytes) and not any(stage_bytes[stage] for stage in stage_numbers):
        smallest_bytes = min(filter(None, stage_bytes))
        stage_numbers = sorted([*stage_numbers, stage_bytes.index(smallest_bytes)])
    return stage_numbers
