"""Read and write ``stage_<i>.npz``, a stage's model as flat arrays.

Graphs and C are written from these arrays. The classes in :mod:`gatewise.models` define their types
and dimensions. Files are untrusted, so checks ensure that every walk through the trees ends, with
finite margins. Devices use this module, so it needs only the standard library and numpy.
"""

from __future__ import annotations

from typing import Any, Final, Literal, NoReturn, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gatewise.models.kernel_machine import KernelModel
from gatewise.models.linear import LinearModel
from gatewise.models.tree_sources import FLOAT32_MAX
from gatewise.models.trees import TreeEnsemble
from gatewise_export.bundle.arrays import read_arrays, write_arrays
from gatewise_export.bundle.errors import BundleError

FlatModel: TypeAlias = TreeEnsemble | LinearModel | KernelModel
FlatKind = Literal["trees", "lazy", "linear", "kernel"]
#: Class of each kind's arrays. Kinds with the same class differ in how a stage acquires features.
MODEL_CLASSES: Final[dict[str, type[FlatModel]]] = {
    "trees": TreeEnsemble,
    "lazy": TreeEnsemble,
    "linear": LinearModel,
    "kernel": KernelModel,
}

#: Largest size of a stage's file, and of its arrays in memory, in bytes.
MAX_MODEL_BYTES: Final = 64 << 20


def model_kind(model: FlatModel, *, is_lazy: bool) -> FlatKind:
    """Name the kind of a stage with this model; `is_lazy` trees acquire features node by node."""
    if isinstance(model, TreeEnsemble):
        return "lazy" if is_lazy else "trees"
    return "kernel" if isinstance(model, KernelModel) else "linear"


def canonical_model(model: FlatModel) -> FlatModel:
    """Return the model in the form that is written; its margins keep their bits."""
    return model.in_canonical_order() if isinstance(model, TreeEnsemble) else model


def write_model(model: FlatModel) -> bytes:
    """Write a canonical model as an npz file; equal models give equal bytes."""
    arrays = {
        array_name: np.asarray(getattr(model, array_name)).astype(dtype)
        for array_name, (dtype, _) in model.ARRAYS.items()
    }
    content = write_arrays(arrays)
    # reading it back raises BundleError if the model breaks a rule of the format
    kind = model_kind(model, is_lazy=False)
    read_model(content, kind, "the stage", n_inputs=model.n_features, n_outputs=model.n_outputs)
    return content


def read_model(
    content: bytes, kind: FlatKind, file: str, *, n_inputs: int, n_outputs: int
) -> FlatModel:
    """Read and check a model of this kind and size from an npz file."""
    model_class = MODEL_CLASSES[kind]
    arrays = read_arrays(
        content, file, max_arrays=len(model_class.ARRAYS), max_bytes=MAX_MODEL_BYTES
    )
    mismatched_arrays = set(arrays) ^ set(model_class.ARRAYS)
    if mismatched_arrays:
        array_name = min(mismatched_arrays)
        problem = "lacks the array" if array_name in model_class.ARRAYS else "has an unknown array"
        raise BundleError(f"{file} {problem} {array_name[:64]!r}")
    lengths = {"inputs": n_inputs, "outputs": n_outputs}
    for array_name, (dtype, dimensions) in model_class.ARRAYS.items():
        _check_array(file, array_name, arrays[array_name], dtype, dimensions, lengths)
    if model_class is TreeEnsemble:
        trees = TreeEnsemble(**arrays, n_features=n_inputs)
        _check_trees(trees, file)
        return trees
    if model_class is KernelModel:
        arrays["rate"] = arrays["rate"][()]  # a float32 scalar instead of a 0-d array
    return model_class(**arrays)  # type: ignore[arg-type]


def _check_array(
    file: str,
    array_name: str,
    array: NDArray[Any],
    dtype: type[np.generic],
    dimensions: tuple[str, ...],
    lengths: dict[str, int],
) -> None:
    """Check an array's type, shape and finiteness; record the lengths of new dimensions."""
    if array.dtype != dtype or array.ndim != len(dimensions):
        raise BundleError(
            f"{file}: {array_name!r} is {array.dtype} with {array.ndim} dimensions, "
            f"not {np.dtype(dtype)} with {len(dimensions)}"
        )
    for dimension, length in zip(dimensions, array.shape, strict=True):
        if lengths.setdefault(dimension, length) != length:
            raise BundleError(
                f"{file}: {array_name!r} has {length} {dimension}, not {lengths[dimension]}"
            )
    if dtype is np.float32 and not np.isfinite(array).all():
        raise BundleError(f"{file}: {array_name!r} holds values that are not finite")


# -- trees -----------------------------------------------------------------------------------


def _check_trees(trees: TreeEnsemble, file: str) -> None:
    """Check that every walk ends at a leaf, and that no sum overflows float32."""

    def refuse(array_name: str, problem: str) -> NoReturn:
        raise BundleError(f"{file}: {array_name!r} {problem}")

    if (trees.nan_left.view(np.uint8) > 1).any():
        refuse("nan_left", "holds bytes other than true and false")
    if (trees.feature < -1).any() or (trees.feature >= trees.n_features).any():
        refuse("feature", f"points outside the stage's {trees.n_features} inputs")
    if (trees.output < -1).any() or (trees.output >= trees.n_outputs).any():
        refuse("output", f"must be -1 to {trees.n_outputs - 1}")
    n_values = trees.n_outputs if (trees.output < 0).any() else 1
    if trees.value.shape[1] != n_values:
        refuse("value", f"has {trees.value.shape[1]} columns, not {n_values}")
    # half of the range, because a difference of two margins must be finite as well
    largest_base = np.abs(trees.base).max()
    if not largest_base < FLOAT32_MAX / 2:
        refuse("base", "is so large that margins could overflow float32")
    if not trees.n_trees and not trees.n_nodes:
        return  # the model is only its base
    problem = _find_structure_problem(trees)
    if problem is not None:
        refuse(*problem)
    largest_leaf_values = np.maximum.reduceat(np.abs(trees.value).max(axis=1), trees.roots)
    if not largest_base + largest_leaf_values.sum(dtype=np.float64) < FLOAT32_MAX / 2:
        refuse("value", "is so large that margins could overflow float32")


def _find_structure_problem(trees: TreeEnsemble) -> tuple[str, str] | None:
    """Return the array that breaks the form of trees and the reason; None if the trees are valid.

    Every node except the roots must be the child of exactly one earlier node of its tree.
    """
    n_nodes = trees.n_nodes
    roots = trees.roots
    is_ascending = len(roots) and roots[0] == 0 and (roots[1:] > roots[:-1]).all()
    if not is_ascending or roots[-1] >= n_nodes:
        return "roots", "must ascend from 0 and stay inside the array"
    nodes = np.arange(n_nodes)
    is_inner = trees.feature >= 0
    tree_of_node = np.searchsorted(roots, nodes, side="right") - 1
    end_of_tree = np.append(roots[1:], n_nodes)[tree_of_node]
    for name, children in (("left", trees.left), ("right", trees.right)):
        if (children[~is_inner] != -1).any():
            return name, "gives a leaf a child"
        if ((children <= nodes) | (children >= end_of_tree))[is_inner].any():
            return name, "must point to a later node of the same tree"
    n_parents = np.bincount(
        np.concatenate([trees.left[is_inner], trees.right[is_inner]]), minlength=n_nodes
    )
    n_parents[roots] += 1  # a root counts as its own parent
    if (n_parents != 1).any():
        return "left", "and 'right' reach a node twice, or not at all"
    return None
