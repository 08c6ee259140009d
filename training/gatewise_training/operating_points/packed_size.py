"""Close upper bounds on the bytes of stages on a device, as tables of C99 without code."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gatewise.models.graph_model import GraphModel
from gatewise.models.kernel_machine import KernelModel
from gatewise.models.leaf_tables import leaf_rows, pack_leaves, width
from gatewise.models.linear import LinearModel
from gatewise.models.stage import Stage
from gatewise.models.trees import TreeEnsemble
from gatewise.operating_point import OperatingPoint

CODES = {1: 254, 2: 65534}
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
    def plain(cls, sizes: Sequence[int]) -> PackedSizes:
        """Make the sizes of stages that share no thresholds."""
        return cls(((np.array(sizes, np.int64), np.zeros((len(sizes), 0), np.bool_)),))

    @property
    def by_stage(self) -> tuple[int, ...]:
        """Bytes of each stage without the others."""
        return tuple(self.total([s]) for s in range(len(self.forms[0][0])))

    def total(self, stages: Sequence[int], *, free_thresholds: int = 0) -> int:
        """Bound the bytes of some stages; `free_thresholds` of their thresholds are not counted."""
        numbers = np.array(stages, np.intp)
        return min(
            int(stage_bytes[numbers].sum())
            + 4 * max(0, int(needs[numbers].any(0).sum()) - free_thresholds)
            for stage_bytes, needs in self.forms
        )

    def bytes_on_device(self, numbers: Sequence[int]) -> int:
        """Get the bytes of some stages, or of the smallest stage if there are none.

        >>> sizes = PackedSizes.plain((30, 20, 0))
        >>> sizes.bytes_on_device((0, 1)), sizes.bytes_on_device(())
        (50, 20)
        """
        return self.total(numbers) or min(filter(None, self.by_stage), default=0)


def packed_sizes(stages: Sequence[Stage]) -> PackedSizes:
    """Compute the sizes of a cascade's stages on a device."""
    return PackedSizes(tuple(_table_forms(stages)))


def packed_bytes(stages: Sequence[Stage]) -> int:
    """Compute an upper bound on the bytes of a cascade's stages."""
    return packed_sizes(stages).total(range(len(stages)))


def _table_forms(
    stages: Sequence[Stage],
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.bool_]]]:
    """Yield the forms of the tables: thresholds as floats and, if few, as ranks of 1 or 2 bytes."""
    columns = {int(c) for stage in stages for c in stage.features}
    forests = [stage.model for stage in stages if isinstance(stage.model, TreeEnsemble)]
    inner_counts = [_inner_nodes(forest) for forest in forests]
    largest_tree = max((int(n.max(initial=0)) for n in inner_counts), default=0)
    largest_forest = max((int(n.sum()) for n in inner_counts), default=0)
    # bytes of a node's test, of the offset of a right child, of a tree's first node
    widths = (
        slot_width(len(columns), nan=any(bool(f.nan_left.any()) for f in forests)),
        width(largest_tree),
        width(largest_forest),
    )
    # floats and, where there are few, ranks among all stages' thresholds
    index_width = width(max(columns, default=0) + 1)
    needs = [_thresholds(stage) for stage in stages]
    all_thresholds = _distinct(np.concatenate([*needs, np.zeros(0, np.int64)]))
    most_thresholds = int(np.unique(all_thresholds >> 32, return_counts=True)[1].max(initial=0))
    leaves = [
        pack_leaves(leaf_rows(stage.model)[0]) if isinstance(stage.model, TreeEnsemble) else None
        for stage in stages
    ]
    all_widths = [tables.index_widths for tables in leaves if tables is not None]
    index_widths = np.max([(1, 1, 1, 1), *all_widths], axis=0).tolist()
    leaf_bytes = [0 if tables is None else tables.nbytes(index_widths) for tables in leaves]
    for key in (4, *(key for key, limit in CODES.items() if 0 < most_thresholds <= limit)):
        edge_bytes = 1 if key == 4 else 5  # ranks need the start of each feature's edges
        list_bytes = 2 * index_width + edge_bytes
        stage_bytes = [
            _table_bytes(stage, key, *widths)
            + n_leaf_bytes
            + list_bytes * max(len(stage.features), 1)
            + 6
            for stage, n_leaf_bytes in zip(stages, leaf_bytes, strict=True)
        ]
        shared = all_thresholds[:0] if key == 4 else all_thresholds
        needed = [np.isin(shared, thresholds) for thresholds in needs]
        yield np.array(stage_bytes, np.int64), np.reshape(needed, (len(stage_bytes), len(shared)))


def tree_bytes(leaves: int, leaf: int, values: int, n_columns: int, *, key: int = 4) -> int:
    """Bound the bytes of a tree; each of its `leaves` has `values` values of `leaf` bytes each."""
    inner = leaves - 1
    return (
        inner * (key + slot_width(n_columns, nan=False) + width(inner)) + leaf * leaves * values + 5
    )


def slot_width(n_columns: int, *, nan: bool) -> int:
    """Get the bytes of a node's test in C, which includes the direction of NaN if `nan` is set."""
    return width(2 * n_columns if nan else max(n_columns - 1, 0))


def _inner_nodes(trees: TreeEnsemble) -> NDArray[np.int64]:
    """Count the inner nodes of each tree."""
    bounds = np.append(trees.roots, trees.n_nodes)
    counts: NDArray[np.int64] = np.diff(np.append(0, np.cumsum(trees.feature >= 0))[bounds])
    return counts


def _thresholds(stage: Stage) -> NDArray[np.int64]:
    """Get feature << 32 | bits of the threshold, for each distinct test of a stage's trees."""
    trees = stage.model
    if not isinstance(trees, TreeEnsemble):
        return np.zeros(0, np.int64)
    inner = trees.feature >= 0
    columns = stage.features[trees.feature[inner]]
    threshold = trees.threshold[inner] + np.float32(0)  # no negative zero
    return _distinct(columns.astype(np.int64) << 32 | threshold.view(np.uint32))


def _distinct(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Sort values without duplicates; ``numpy.unique`` hashes, which is slow on millions."""
    values = np.sort(values)
    distinct: NDArray[np.int64] = values[np.diff(values, prepend=-1) != 0]  # no value is negative
    return distinct


def _table_bytes(stage: Stage, key: int, test: int, skip: int, start: int) -> int:
    """Compute the bytes of a stage's model without its leaves."""
    model = stage.model
    if isinstance(model, GraphModel):  # has no form in C
        return model.nbytes
    if isinstance(model, TreeEnsemble):
        # starts of trees, tests of inner nodes, numbers of outputs, base margins
        n_inner = int((model.feature >= 0).sum())
        return (
            (model.n_trees + 1) * start
            + max(n_inner, 1) * (key + test + skip)
            + (model.n_trees * width(model.n_outputs) if model.n_outputs > 1 else 0)
            + 4 * model.n_outputs
        )
    return _numbers(model)


def _numbers(model: LinearModel | KernelModel) -> int:
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
    sizes = packed_sizes(stages).by_stage
    numbers = [s for s, threshold in enumerate(point.thresholds) if threshold is not None]
    if any(sizes) and not any(sizes[s] for s in numbers):
        smallest = min(filter(None, sizes))
        numbers = sorted([*numbers, sizes.index(smallest)])
    return numbers
