"""Compiled evaluation of flat trees and kernel machines.

Each function writes its results into its last arguments.
"""

from __future__ import annotations

import numba
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Indices = NDArray[np.int32]
Flags = NDArray[np.bool_]

BLOCK_ROWS = 1024
"""Number of rows that descend a tree together."""


@numba.njit(cache=True, nogil=True)
def child(
    value: np.float32, node: int, threshold: Floats, left: Indices, right: Indices, nan_left: Flags
) -> int:
    """Select the child for a value, without a branch, which processors would mispredict."""
    goes_left = (value <= threshold[node]) | (np.isnan(value) & nan_left[node])
    child_node: int = right[node] + (left[node] - right[node]) * goes_left
    return child_node


@numba.njit(cache=True, nogil=True)
def add_leaves(
    x: Floats,
    feature: Indices,
    threshold: Floats,
    left: Indices,
    right: Indices,
    nan_left: Flags,
    roots: Indices,
    value: Floats,
    output: Indices,
    base: Floats,
    out: Floats,
) -> None:
    """Add the values of leaves to `out`, which holds zeros, tree after tree, and then the base.

    Rows descend a tree together, one level at a time, so that their memory accesses overlap.
    """
    nodes = np.empty(BLOCK_ROWS, np.int32)
    inner_rows = np.empty(BLOCK_ROWS, np.int32)
    for start in range(0, len(x), BLOCK_ROWS):
        n = min(BLOCK_ROWS, len(x) - start)
        for t in range(len(roots)):
            for i in range(n):
                nodes[i] = roots[t]
                inner_rows[i] = i
            # all rows at inner nodes descend one level
            n_inner = n
            while n_inner:
                n_remaining = 0
                for j in range(n_inner):
                    i = inner_rows[j]
                    k = feature[nodes[i]]
                    if k >= 0:
                        v = x[start + i, k]
                        nodes[i] = child(v, nodes[i], threshold, left, right, nan_left)
                        inner_rows[n_remaining] = i
                        n_remaining += 1
                n_inner = n_remaining
            for i in range(n):
                # add float32 values in tree order, as onnxruntime does
                if output[t] >= 0:
                    out[start + i, output[t]] += value[nodes[i], 0]
                else:
                    for m in range(len(base)):
                        out[start + i, m] += value[nodes[i], m]
        for i in range(start, start + n):
            for m in range(len(base)):
                out[i, m] += base[m]


@numba.njit(cache=True, nogil=True)
def mark_paths(
    x: Floats,
    feature: Indices,
    threshold: Floats,
    left: Indices,
    right: Indices,
    nan_left: Flags,
    roots: Indices,
    out: Flags,
) -> None:
    """Mark the columns that are tested on each row's paths."""
    for i in range(len(x)):
        for t in range(len(roots)):
            node = roots[t]
            while feature[node] >= 0:
                out[i, feature[node]] = True
                node = child(x[i, feature[node]], node, threshold, left, right, nan_left)


@numba.njit(cache=True, nogil=True)
def find_leaves(
    x: Floats,
    feature: Indices,
    threshold: Floats,
    left: Indices,
    right: Indices,
    nan_left: Flags,
    roots: Indices,
    leaf: Indices,
    first_tree: Indices,
) -> None:
    """Find the leaf of each row in each tree, and the first tree that tests each column."""
    for t in range(len(roots)):
        for i in range(len(x)):
            node = roots[t]
            while feature[node] >= 0:
                k = feature[node]
                first_tree[i, k] = min(first_tree[i, k], t)
                node = child(x[i, k], node, threshold, left, right, nan_left)
            leaf[t, i] = node


@numba.njit(cache=True, nogil=True)
def add_kernels(
    z: Floats,
    landmarks: Floats,
    rate: np.float32,
    weights: Floats,
    bias: Floats,
    squarings: int,
    out: Floats,
) -> None:
    """Add the weighted kernel values of scaled rows to `out`, which holds zeros, then the bias."""
    unit = np.float32(1.0)  # a Python float would promote the computation to float64
    for i in range(len(z)):
        for m in range(len(landmarks)):
            distance = np.float32(0.0)
            for j in range(z.shape[1]):
                # squared distance, added feature by feature
                gap = z[i, j] - landmarks[m, j]
                distance += gap * gap
            # (1 + rate * distance) ** -(2 ** squarings)
            power = unit / (distance * rate + unit)
            for _ in range(squarings):
                power = power * power
            for o in range(len(bias)):
                out[i, o] += power * weights[m, o]
        for o in range(len(bias)):
            out[i, o] += bias[o]
