"""``stage_<i>.npz``: trees as flat node arrays, for a stage that acquires node by node.

A graph needs all of its inputs at once; a stage that acquires its features along the paths that
an instance takes is walked instead. The file holds the arrays of
:class:`gatewise.models.trees.TreeEnsemble`, stripped of what no walk reads. Nothing in it is
trusted: a file that was read can be walked for any row, ends, and gives finite margins.
Standard library and numpy alone: a device reads it.
"""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from gatewise.models.tree_sources import FLOAT32_MAX
from gatewise.models.trees import TreeEnsemble
from gatewise_export.bundle.arrays import read_arrays, write_arrays
from gatewise_export.bundle.errors import BundleError

MOST_BYTES = 64 << 20
"""An array takes at most this much memory: 16 million nodes, more than a device would hold."""

ARRAYS: dict[str, tuple[type, int]] = {
    "feature": (np.int32, 1),
    "threshold": (np.float32, 1),
    "left": (np.int32, 1),
    "right": (np.int32, 1),
    "nan_left": (np.bool_, 1),
    "value": (np.float32, 2),
    "roots": (np.int32, 1),
    "output": (np.int32, 1),
    "base": (np.float32, 1),
}
"""Type and number of dimensions of each array of the file."""


def write_trees(trees: TreeEnsemble) -> bytes:
    """Write trees as an npz file; the same trees give the same bytes."""
    inner = trees.feature >= 0
    wide = None if (trees.output < 0).any() else 1
    arrays: dict[str, NDArray[Any]] = {
        "feature": np.where(inner, trees.feature, -1),
        # scikit-learn tests whether a value is missing by an infinite threshold: float32's
        # largest number does the same
        "threshold": np.where(inner, np.minimum(trees.threshold, FLOAT32_MAX), 0),
        "left": np.where(inner, trees.left, -1),
        "right": np.where(inner, trees.right, -1),
        "nan_left": trees.nan_left & inner,
        "value": np.where(inner[:, None], 0, trees.value[:, :wide]),  # only leaves' are added
        "roots": trees.roots,
        "output": trees.output,
        "base": trees.base,
    }
    content = write_arrays({name: arrays[name].astype(kind) for name, (kind, _) in ARRAYS.items()})
    read_trees(content, "the stage's trees", n_features=trees.n_features, n_outputs=len(trees.base))
    return content


def read_trees(content: bytes, file: str, *, n_features: int, n_outputs: int) -> TreeEnsemble:
    """Read and check a file of trees."""
    arrays = read_arrays(content, file, most_arrays=len(ARRAYS), most_bytes=MOST_BYTES)
    unexpected = set(arrays) ^ set(ARRAYS)
    if unexpected:
        name = min(unexpected)
        word = "lacks" if name in ARRAYS else "has an unknown array"
        raise BundleError(f"{file} {word} {name[:64]!r}")
    for name, (kind, dimensions) in ARRAYS.items():
        array = arrays[name]
        if array.dtype != kind or array.ndim != dimensions:
            raise BundleError(
                f"{file}: {name!r} is {array.dtype} of {array.ndim} dimensions, "
                f"not {np.dtype(kind)} of {dimensions}"
            )
    trees = TreeEnsemble(**arrays, n_features=n_features)
    _Check(trees, file).all(n_outputs)
    return trees


class _Check:
    """The checks of what was read, one array after another."""

    def __init__(self, trees: TreeEnsemble, file: str) -> None:
        self.trees = trees
        self.file = file
        self.inner = trees.feature >= 0

    def all(self, n_outputs: int) -> None:
        trees = self.trees
        for name in ("threshold", "left", "right", "nan_left", "value"):
            if len(getattr(trees, name)) != len(trees.feature):
                self.fail(name, f"has another length than {len(trees.feature)} nodes")
        if len(trees.base) != n_outputs:
            self.fail("base", f"is of {len(trees.base)} outputs, the manifest says {n_outputs}")
        if len(trees.output) != len(trees.roots):
            self.fail("output", f"has another length than {len(trees.roots)} trees")
        for name in ("threshold", "value", "base"):
            if not np.isfinite(getattr(trees, name)).all():
                self.fail(name, "is not finite everywhere")
        if (trees.nan_left.view(np.uint8) > 1).any():
            self.fail("nan_left", "holds other bytes than true and false")
        if (trees.feature < -1).any() or (trees.feature >= trees.n_features).any():
            self.fail("feature", f"points outside the stage's {trees.n_features} inputs")
        self.structure()
        self.outputs()

    def structure(self) -> None:
        """Every node but the roots is the child of one node above it, in the same tree."""
        trees, inner = self.trees, self.inner
        n, roots = len(trees.feature), trees.roots
        if not len(roots) and not n:
            return  # no tree at all: the base alone
        if not len(roots) or roots[0] != 0 or not (roots[1:] > roots[:-1]).all() or roots[-1] >= n:
            self.fail("roots", "must ascend from 0, inside the array")
        nodes = np.arange(n)
        tree = np.searchsorted(roots, nodes, side="right")
        ends = np.append(roots[1:], n)[tree - 1]
        for name, side in (("left", trees.left), ("right", trees.right)):
            if (side[~inner] != -1).any():
                self.fail(name, "gives a leaf a child")
            if ((side <= nodes) | (side >= ends))[inner].any():
                self.fail(name, "must point to a later node of the same tree")
        parents = np.bincount(np.concatenate([trees.left[inner], trees.right[inner]]), minlength=n)
        parents[roots] += 1
        if (parents != 1).any():
            self.fail("left", "and 'right' reach a node twice, or not at all")

    def outputs(self) -> None:
        """Each tree adds to an output that there is, and no sum leaves float32."""
        trees = self.trees
        if (trees.output < -1).any() or (trees.output >= trees.n_outputs).any():
            self.fail("output", f"must be -1 to {trees.n_outputs - 1}")
        wide = trees.n_outputs if (trees.output < 0).any() else 1
        if trees.value.shape[1] != wide:
            self.fail("value", f"has {trees.value.shape[1]} columns, not {wide}")
        most = float(np.abs(trees.base).max())
        if len(trees.roots):
            largest = np.maximum.reduceat(np.abs(trees.value).max(axis=1), trees.roots)
            most += largest.sum(dtype=np.float64)
        if not most < FLOAT32_MAX / 2:
            self.fail("value", "is so large that margins could leave float32")

    def fail(self, name: str, why: str) -> NoReturn:
        raise BundleError(f"{self.file}: {name!r} {why}")
