"""Compiled evaluation of flat trees and kernel machines.

Each function writes its results into its last arguments.
"""

from __future__ import annotations

import numba
import numpy as np
from numpy.typing import NDArray

# the arrays of nodes and of the trees are those of TreeEnsemble
Floats = NDArray[np.float32]
Indices = NDArray[np.int32]
Flags = NDArray[np.bool_]

#: Number of rows that descend a tree together; few enough for the caches, and enough to overlap
#: memory accesses.
BLOCK_ROWS = 1024


@numba.njit(cache=True, nogil=True)
def child(
    cell: np.float32, node: int, threshold: Floats, left: Indices, right: Indices, nan_left: Flags
) -> int:
    """Select the child for a value, without a branch, which processors would mispredict."""
    goes_left = (cell <= threshold[node]) | (np.isnan(cell) & nan_left[node])
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
    margins: Floats,
) -> None:
    """Add the values of leaves, tree after tree, and then the base to `margins`, which are 0.

    Rows descend a tree together, one level at a time, because their memory accesses then overlap.
    """
    nodes = np.empty(BLOCK_ROWS, np.int32)
    inner_rows = np.empty(BLOCK_ROWS, np.int32)
    for start in range(0, len(x), BLOCK_ROWS):
        n_block_rows = min(BLOCK_ROWS, len(x) - start)
        for tree in range(len(roots)):
            for row in range(n_block_rows):
                nodes[row] = roots[tree]
                inner_rows[row] = row
            # all rows at inner nodes descend one level
            n_inner = n_block_rows
            while n_inner:
                n_remaining = 0
                for position in range(n_inner):
                    row = inner_rows[position]
                    column = feature[nodes[row]]
                    if column >= 0:
                        cell = x[start + row, column]
                        nodes[row] = child(cell, nodes[row], threshold, left, right, nan_left)
                        inner_rows[n_remaining] = row
                        n_remaining += 1
                n_inner = n_remaining
            for row in range(n_block_rows):
                # add float32 values in tree order, as onnxruntime does
                if output[tree] >= 0:
                    margins[start + row, output[tree]] += value[nodes[row], 0]
                else:
                    for output_index in range(len(base)):
                        margins[start + row, output_index] += value[nodes[row], output_index]
        for row in range(start, start + n_block_rows):
            for output_index in range(len(base)):
                margins[row, output_index] += base[output_index]


@numba.njit(cache=True, nogil=True)
def mark_paths(
    x: Floats,
    feature: Indices,
    threshold: Floats,
    left: Indices,
    right: Indices,
    nan_left: Flags,
    roots: Indices,
    is_visited: Flags,
) -> None:
    """Mark the columns that are tested on each row's paths."""
    for row in range(len(x)):
        for tree in range(len(roots)):
            node = roots[tree]
            while feature[node] >= 0:
                is_visited[row, feature[node]] = True
                node = child(x[row, feature[node]], node, threshold, left, right, nan_left)


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
    for tree in range(len(roots)):
        for row in range(len(x)):
            node = roots[tree]
            while feature[node] >= 0:
                column = feature[node]
                first_tree[row, column] = min(first_tree[row, column], tree)
                node = child(x[row, column], node, threshold, left, right, nan_left)
            leaf[tree, row] = node


@numba.njit(cache=True, nogil=True)
def add_kernels(
    scaled_x: Floats,
    landmarks: Floats,
    rate: np.float32,
    weights: Floats,
    bias: Floats,
    squarings: int,
    margins: Floats,
) -> None:
    """Add the weighted kernel values of scaled rows and then the bias to `margins`, which are 0."""
    unit = np.float32(1.0)  # a Python float would promote the computation to float64
    for row in range(len(scaled_x)):
        for landmark in range(len(landmarks)):
            distance = np.float32(0.0)
            for feature in range(scaled_x.shape[1]):
                # squared distance, added feature by feature
                difference = scaled_x[row, feature] - landmarks[landmark, feature]
                distance += difference * difference
            # (1 + rate * distance) ** -(2 ** squarings)
            power = unit / (distance * rate + unit)
            for _ in range(squarings):
                power = power * power
            for output in range(len(bias)):
                margins[row, output] += power * weights[landmark, output]
        for output in range(len(bias)):
            margins[row, output] += bias[output]
