"""Bytes of stages as a device keeps them: as tables of C99, or as the files of a bundle.

Sizes are bounds, and close ones: a device never keeps more. With a bundle's sample, its manifest
and the code beside them, models are what grows.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gatewise.models.graph_model import GraphModel
from gatewise.models.kernel_machine import KernelModel
from gatewise.models.linear import LinearModel
from gatewise.models.stage import Stage
from gatewise.models.trees import TreeEnsemble, byte_leaves
from gatewise.tiers import PackedAs
from gatewise_training.graphs.tree_attributes import attributes_of

TREES_GRAPH_BYTES, SUMS_GRAPH_BYTES = 256, 1536
"""What a graph of trees, or of any other model, takes beside its numbers, at most."""
ARRAYS_BYTES = 2560
"""What an npz file of trees takes beside them, at most."""


def packed_bytes(stages: Sequence[Stage], packed_as: PackedAs) -> tuple[int, ...]:
    """Bytes of each stage of a cascade at most, 0 of one that runs beyond the device.

    Those of some of the stages hold for a cascade of these alone, too: numbers in C's tables are as
    wide as the largest model needs.
    """
    if packed_as == "onnx":
        return tuple(_file_bytes(stage) if stage.on_device else 0 for stage in stages)
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
    return tuple(
        _table_bytes(stage, *widths) + (2 * listed + 1) * max(len(stage.features), 1) + 2
        if stage.on_device
        else 0
        for stage in stages
    )


def tree_bytes(leaves: int, leaf: int, values: int, n_columns: int, packed_as: PackedAs) -> int:
    """Bytes of a tree of so many leaves with so many values each, at most; `leaf`: of one in C."""
    if packed_as == "onnx":  # node by node: ten numbers, a word, and the values' places
        return (2 * leaves - 1) * 34 + 11 * leaves * values
    inner = leaves - 1
    return (
        inner * (4 + slot_width(n_columns, nan=False) + width(inner)) + leaf * leaves * values + 5
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


def _table_bytes(stage: Stage, test: int, skip: int, start: int) -> int:
    model = stage.model
    if isinstance(model, GraphModel):  # has no form in C
        return model.nbytes
    if isinstance(model, TreeEnsemble):
        n_inner = int((model.feature >= 0).sum())
        values = model.n_outputs if (model.output < 0).any() else 1
        return (
            (model.n_trees + 1) * start
            + max(n_inner, 1) * (4 + test + skip)
            + _leaf_bytes(model) * values * (model.n_nodes - n_inner)
            + (model.n_trees * width(model.n_outputs) if model.n_outputs > 1 else 0)
            + 4 * model.n_outputs
        )
    return _numbers(model)


def _leaf_bytes(trees: TreeEnsemble) -> int:
    """Bytes of a leaf's value in C."""
    return 4 if byte_leaves(trees.value[trees.feature < 0]) is None else 1


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
