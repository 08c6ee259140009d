"""Bytes of stages as a device keeps them: as tables of C99, or as the files of a bundle.

Sizes are close upper bounds. A bundle's sample, its manifest and the code are not counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from gatewise.models.graph_model import GraphModel
from gatewise.models.kernel_machine import KernelModel
from gatewise.models.linear import LinearModel
from gatewise.models.stage import Stage
from gatewise.models.tree_attributes import attributes_of
from gatewise.models.trees import TreeEnsemble, byte_leaves
from gatewise.tiers import PackedAs
from gatewise_training.operating_points.operating_point import PackedSizes

TREES_GRAPH_BYTES, SUMS_GRAPH_BYTES = 256, 1536
"""What a graph of trees, or of any other model, takes beside its numbers, at most."""
CODES = 254
"""Distinct thresholds of a feature that ranks of 8 bits tell apart, missing values beside."""
ARRAYS_BYTES = 2560
"""What an npz file of trees takes beside them, at most."""


def packed_sizes(stages: Sequence[Stage], packed_as: PackedAs) -> PackedSizes:
    """Sizes of a cascade's stages as a device keeps them."""
    if packed_as == "onnx":
        return PackedSizes.plain([_file_bytes(s) if s.on_device else 0 for s in stages])
    return PackedSizes(tuple(_table_forms(stages)))


def packed_bytes(stages: Sequence[Stage], packed_as: PackedAs) -> int:
    """Bytes of the stages of a cascade at most."""
    return packed_sizes(stages, packed_as).total(range(len(stages)))


def _table_forms(
    stages: Sequence[Stage],
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.bool_]]]:
    """Tables of C: with thresholds as floats and, where there are few, as ranks of 8 bits.

    Numbers in the tables are as wide as the largest model needs.
    """
    here = [stage for stage in stages if stage.on_device]
    columns = {int(c) for stage in here for c in stage.features}
    forests = [stage.model for stage in here if isinstance(stage.model, TreeEnsemble)]
    inner = [_inner_nodes(forest) for forest in forests]
    widths = (
        slot_width(len(columns), nan=any(bool(f.nan_left.any()) for f in forests)),
        width(max((int(counts.max(initial=0)) for counts in inner), default=0)),
        width(max((int(counts.sum()) for counts in inner), default=0)),
    )
    listed = width(max(columns, default=0) + 1)
    needs = [_thresholds(stage) for stage in stages]
    known = _distinct(np.concatenate([*needs, np.zeros(0, np.int64)]))
    counts = np.unique(known >> 32, return_counts=True)[1]
    for key in (4, 1) if 0 < counts.max(initial=0) <= CODES else (4,):
        lists = 2 * listed + (1 if key == 4 else 5)  # with ranks, where a feature's edges begin
        own = [
            _table_bytes(stage, key, *widths) + lists * max(len(stage.features), 1) + 6
            if stage.on_device
            else 0
            for stage in stages
        ]
        shared = known[:0] if key == 4 else known
        needed = [np.isin(shared, found) for found in needs]
        yield np.array(own, np.int64), np.reshape(needed, (len(own), len(shared)))


def tree_bytes(
    leaves: int, leaf: int, values: int, n_columns: int, packed_as: PackedAs, *, key: int = 4
) -> int:
    """Bytes of a tree of so many leaves with so many values each, at most.

    In C's tables a value takes `leaf` bytes, a threshold `key`.
    """
    if packed_as == "onnx":  # node by node: ten numbers, a word, and the values' places
        return (2 * leaves - 1) * 34 + 11 * leaves * values
    inner = leaves - 1
    return (
        inner * (key + slot_width(n_columns, nan=False) + width(inner)) + leaf * leaves * values + 5
    )


def slot_width(n_columns: int, *, nan: bool) -> int:
    """Bytes of a node's test in C, which may carry where NaN goes."""
    return width(2 * n_columns if nan else max(n_columns - 1, 0))


def width(most: int) -> int:
    """Bytes of C's smallest type of unsigned integers up to `most`."""
    return 1 if most < 1 << 8 else 2 if most < 1 << 16 else 4


def _inner_nodes(trees: TreeEnsemble) -> NDArray[np.int64]:
    """Inner nodes of each tree."""
    ends = np.append(trees.roots, trees.n_nodes)
    found: NDArray[np.int64] = np.diff(np.append(0, np.cumsum(trees.feature >= 0))[ends])
    return found


def _thresholds(stage: Stage) -> NDArray[np.int64]:
    """Features that a stage's trees test on the device, and the bits of their thresholds."""
    trees = stage.model
    if not isinstance(trees, TreeEnsemble) or not stage.on_device:
        return np.zeros(0, np.int64)
    inner = trees.feature >= 0
    columns = stage.features[trees.feature[inner]]
    threshold = trees.threshold[inner] + np.float32(0)  # no negative zero
    return _distinct(columns.astype(np.int64) << 32 | threshold.view(np.uint32))


def _distinct(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Sort values without duplicates; numpy's ``unique`` hashes, slow on millions of them."""
    values = np.sort(values)
    found: NDArray[np.int64] = values[np.diff(values, prepend=-1) != 0]  # no value is negative
    return found


def _table_bytes(stage: Stage, key: int, test: int, skip: int, start: int) -> int:
    model = stage.model
    if isinstance(model, GraphModel):  # has no form in C
        return model.nbytes
    if isinstance(model, TreeEnsemble):
        n_inner = int((model.feature >= 0).sum())
        values = model.n_outputs if (model.output < 0).any() else 1
        leaf = 4 if byte_leaves(model.value[model.feature < 0]) is None else 1
        return (
            (model.n_trees + 1) * start
            + max(n_inner, 1) * (key + test + skip)
            + leaf * values * (model.n_nodes - n_inner)
            + (model.n_trees * width(model.n_outputs) if model.n_outputs > 1 else 0)
            + 4 * model.n_outputs
        )
    return _numbers(model)


def _numbers(model: LinearModel | KernelModel) -> int:
    """Bytes of the floats of a model without trees."""
    arrays = [model.mean, model.scale, model.weights, model.bias]
    if isinstance(model, KernelModel):
        arrays.append(model.landmarks)
    return sum(4 * max(array.size, 1) for array in arrays)


def _file_bytes(stage: Stage) -> int:
    model = stage.model
    if isinstance(model, GraphModel):
        return model.nbytes
    if not isinstance(model, TreeEnsemble):
        return _numbers(model) + SUMS_GRAPH_BYTES
    if stage.acquisition == "node":
        return int(model.nbytes) + 8 * model.n_trees + ARRAYS_BYTES
    from onnx import helper

    node = helper.make_node("TreeEnsembleRegressor", ["x"], ["margins"], **attributes_of(model))
    return int(node.ByteSize()) + TREES_GRAPH_BYTES
