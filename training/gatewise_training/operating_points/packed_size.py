"""Upper bounds on the bytes that the stages of a cascade occupy as C99 tables on a device.

Code is not counted. The search under `max_bytes` needs the sizes of many stages before there is a
bundle, so it counts them without writing the C. The sums here must follow the tables that
:mod:`gatewise_export.c99` writes; `tests/export/test_packed_size.py` compares them with generated
tables. Names in backquotes in this file, such as `edge`, are those of the tables in C.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gatewise.models.graph_model import GraphModel
from gatewise.models.kernel_machine import KernelModel
from gatewise.models.leaf_tables import leaf_rows, pack_leaves, unsigned_bytes
from gatewise.models.linear import LinearModel
from gatewise.models.stage import Stage
from gatewise.models.trees import TreeEnsemble
from gatewise.operating_point import OperatingPoint

#: Largest number of thresholds of a feature, by the bytes of their ranks. A value has one of n + 1
#: ranks among n thresholds, and NaN takes one more.
MAX_THRESHOLDS_BY_RANK_BYTES = {1: (1 << 8) - 2, 2: (1 << 16) - 2}

#: Bytes of a float32 in a table, such as a threshold.
FLOAT_BYTES = 4


class TableForm(NamedTuple):
    """Sizes of the stages in one form of the tables, with thresholds as floats or as ranks."""

    stage_bytes: NDArray[np.int64]  # (n_stages,)
    # (n_stages, n_thresholds): thresholds that each stage needs. Stages share them, and each takes
    # 4 bytes in addition to `stage_bytes`
    needs_threshold: NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class PackedSizes:
    """Bytes of a cascade's stages on a device, in the smallest of several forms."""

    forms: tuple[TableForm, ...]

    @classmethod
    def without_shared_thresholds(cls, sizes: Sequence[int]) -> PackedSizes:
        """Make the sizes of stages that share no thresholds."""
        return cls((TableForm(np.array(sizes, np.int64), np.zeros((len(sizes), 0), np.bool_)),))

    @property
    def by_stage(self) -> tuple[int, ...]:
        """Bytes of each stage without the others."""
        n_stages = len(self.forms[0].stage_bytes)
        return tuple(self.total([stage_number]) for stage_number in range(n_stages))

    def total(self, stage_numbers: Sequence[int], *, free_thresholds: int = 0) -> int:
        """Return an upper bound on the bytes of some stages together.

        `free_thresholds` of their thresholds are not counted.
        """
        indices = np.array(stage_numbers, np.intp)  # typed, because an empty list would be float
        form_bytes = []
        for stage_bytes, needs_threshold in self.forms:
            n_thresholds = int(needs_threshold[indices].any(axis=0).sum())
            threshold_bytes = FLOAT_BYTES * max(0, n_thresholds - free_thresholds)
            form_bytes.append(int(stage_bytes[indices].sum()) + threshold_bytes)
        return min(form_bytes)

    def stages_on_device(self, open_stages: Sequence[int]) -> list[int]:
        """List the numbers of the stages that a device needs.

        These are the stages that may stop an instance, `open_stages`. Without such a stage, the
        device needs the smallest stage, which answers while the cloud cannot be reached.

        >>> sizes = PackedSizes.without_shared_thresholds((30, 20))
        >>> sizes.stages_on_device((0, 1)), sizes.stages_on_device(())
        ([0, 1], [1])
        """
        stage_bytes = self.by_stage
        if open_stages or not stage_bytes:
            return list(open_stages)
        return [stage_bytes.index(min(stage_bytes))]

    def bytes_on_device(self, open_stages: Sequence[int]) -> int:
        """Get the bytes of the stages that a device needs (see :meth:`stages_on_device`)."""
        return self.total(self.stages_on_device(open_stages))


def packed_sizes(stages: Sequence[Stage]) -> PackedSizes:
    """Compute the sizes of a cascade's stages on a device."""
    return PackedSizes(tuple(_list_table_forms(stages)))


def packed_bytes(stages: Sequence[Stage]) -> int:
    """Compute an upper bound on the bytes of a cascade's stages."""
    return packed_sizes(stages).total(range(len(stages)))


def _list_table_forms(stages: Sequence[Stage]) -> Iterator[TableForm]:
    """Yield the forms of the tables: thresholds as floats and, if few, as ranks of 1 or 2 bytes."""
    read_columns = {int(column) for stage in stages for column in stage.features}
    node_widths = _compute_node_widths(stages, len(read_columns))
    column_width = unsigned_bytes(max(read_columns, default=0) + 1)
    tests_of_stages = [_encode_tests(stage) for stage in stages]
    all_tests = _sort_distinct(np.concatenate([*tests_of_stages, np.zeros(0, np.int64)]))
    _, n_tests_of_features = np.unique(all_tests >> 32, return_counts=True)
    max_tests_of_feature = int(n_tests_of_features.max(initial=0))
    leaf_bytes = _count_leaf_bytes(stages)
    rank_limits = MAX_THRESHOLDS_BY_RANK_BYTES.items()
    rank_bytes = [n_bytes for n_bytes, limit in rank_limits if 0 < max_tests_of_feature <= limit]
    for threshold_bytes in (FLOAT_BYTES, *rank_bytes):
        has_ranks = threshold_bytes != FLOAT_BYTES
        # for each feature: its column in `columns`, its number in `inputs`, a flag in `required`,
        # and with ranks the start of its thresholds in `edge_start`
        feature_bytes = 2 * column_width + 1 + (4 if has_ranks else 0)
        stage_bytes = [
            _count_table_bytes(stage, threshold_bytes, node_widths)
            + n_leaf_bytes
            + feature_bytes * max(len(stage.features), 1)  # C has no empty arrays
            + 6  # 2 bytes in `margins`, and 4 for the end of all thresholds in `edge_start`
            for stage, n_leaf_bytes in zip(stages, leaf_bytes, strict=True)
        ]
        # with ranks, the thresholds are in `edge`, which all stages share; with floats, in `key`
        shared_tests = all_tests if has_ranks else all_tests[:0]
        is_test_of_stage = [np.isin(shared_tests, tests) for tests in tests_of_stages]
        # reshape, because the list is empty if there are no stages
        needs_threshold = np.reshape(is_test_of_stage, (len(stage_bytes), len(shared_tests)))
        yield TableForm(np.array(stage_bytes, np.int64), needs_threshold)


class _NodeWidths(NamedTuple):
    """Bytes of three numbers in C, which have equal widths in all stages."""

    slot: int  # the test of a node
    skip: int  # the offset of a right child
    start: int  # the number of the first node of a tree


def _compute_node_widths(stages: Sequence[Stage], n_columns: int) -> _NodeWidths:
    """Compute the widths for stages that read `n_columns` columns."""
    tree_models = [stage.model for stage in stages if isinstance(stage.model, TreeEnsemble)]
    inner_node_counts = [_count_inner_nodes(trees) for trees in tree_models]
    largest_tree = max((int(counts.max(initial=0)) for counts in inner_node_counts), default=0)
    largest_forest = max((int(counts.sum()) for counts in inner_node_counts), default=0)
    has_nan = any(bool(trees.nan_left.any()) for trees in tree_models)
    return _NodeWidths(
        slot=slot_width(n_columns, has_nan=has_nan),
        skip=unsigned_bytes(largest_tree),
        start=unsigned_bytes(largest_forest),
    )


def _count_leaf_bytes(stages: Sequence[Stage]) -> list[int]:
    """Count the bytes of the leaves of each stage; 0 for models without trees."""
    leaf_tables = [
        pack_leaves(leaf_rows(stage.model)[0]) if isinstance(stage.model, TreeEnsemble) else None
        for stage in stages
    ]
    all_widths = [leaf_table.index_widths for leaf_table in leaf_tables if leaf_table is not None]
    # in C, an array of indices has the same type in all stages, the widest that one of them needs
    index_widths = np.max([(1, 1, 1, 1), *all_widths], axis=0).tolist()
    return [
        0 if leaf_table is None else leaf_table.nbytes(index_widths) for leaf_table in leaf_tables
    ]


def tree_bytes(
    n_leaves: int, value_bytes: int, n_values: int, n_columns: int, *, threshold_bytes: int = 4
) -> int:
    """Return an upper bound on the bytes of a tree.

    Each of the `n_leaves` leaves has `n_values` values. `n_columns` is the number of columns that
    the stages read. The bound holds for trees in which no node sends NaN to the left.
    """
    n_inner = n_leaves - 1
    return (
        n_inner * (threshold_bytes + slot_width(n_columns, has_nan=False) + unsigned_bytes(n_inner))
        + value_bytes * n_leaves * n_values
        + 5  # up to 4 bytes in `start`, and 1 in `output`
    )


def slot_width(n_columns: int, *, has_nan: bool) -> int:
    """Get the bytes of a node's test in C, with the direction of NaN if `has_nan`.

    C numbers the columns that the stages read, from 0. The direction of NaN doubles the numbers.
    """
    return unsigned_bytes(2 * n_columns if has_nan else max(n_columns - 1, 0))


def _count_inner_nodes(trees: TreeEnsemble) -> NDArray[np.int64]:
    """Count the inner nodes of each tree; a tree's nodes are in one run that starts at its root."""
    tree_bounds = np.append(trees.roots, trees.n_nodes)
    n_inner_before_node = np.append(0, np.cumsum(trees.feature >= 0))
    counts: NDArray[np.int64] = np.diff(n_inner_before_node[tree_bounds])
    return counts


def _encode_tests(stage: Stage) -> NDArray[np.int64]:
    """Get feature << 32 | bits of the threshold, for each distinct test of a stage's trees.

    The numbers say only which tests are equal; their order is not that of the thresholds.
    """
    trees = stage.model
    if not isinstance(trees, TreeEnsemble):
        return np.zeros(0, np.int64)
    is_inner = trees.feature >= 0
    columns = stage.features[trees.feature[is_inner]]
    # -0 becomes 0: the two are equal as thresholds, but have other bits
    thresholds = trees.threshold[is_inner] + np.float32(0)
    return _sort_distinct(columns.astype(np.int64) << 32 | thresholds.view(np.uint32))


def _sort_distinct(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Sort values without duplicates; no value may be negative.

    ``numpy.unique`` hashes, which is slow on millions.
    """
    sorted_values = np.sort(values)
    is_new = np.diff(sorted_values, prepend=-1) != 0
    distinct_values: NDArray[np.int64] = sorted_values[is_new]
    return distinct_values


def _count_table_bytes(stage: Stage, threshold_bytes: int, node_widths: _NodeWidths) -> int:
    """Count the bytes of a stage's model without its leaves."""
    model = stage.model
    if isinstance(model, GraphModel):  # has no form in C, so its file counts
        return model.nbytes
    if isinstance(model, TreeEnsemble):
        n_inner = max(int((model.feature >= 0).sum()), 1)  # C has no empty arrays
        start_bytes = (model.n_trees + 1) * node_widths.start
        node_bytes = n_inner * (threshold_bytes + node_widths.slot + node_widths.skip)
        output_bytes = model.n_trees * unsigned_bytes(model.n_outputs) if model.n_outputs > 1 else 0
        base_margin_bytes = FLOAT_BYTES * model.n_outputs
        return start_bytes + node_bytes + output_bytes + base_margin_bytes
    return _count_float_bytes(model)


def _count_float_bytes(model: LinearModel | KernelModel) -> int:
    """Count the bytes of the floats of a model without trees."""
    arrays = [model.mean, model.scale, model.weights, model.bias]
    if isinstance(model, KernelModel):
        arrays.append(model.landmarks)
    return sum(FLOAT_BYTES * max(array.size, 1) for array in arrays)  # C has no empty arrays


def stages_on_device(stages: Sequence[Stage], point: OperatingPoint) -> list[int]:
    """List the numbers of the stages that a device needs at an operating point."""
    open_stages = [
        stage_number
        for stage_number, threshold in enumerate(point.thresholds)
        if threshold is not None
    ]
    return open_stages or packed_sizes(stages).stages_on_device(())
