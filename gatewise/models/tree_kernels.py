"""Compiled walks through flat trees, for training; see :mod:`gatewise.models.trees`.

All take the rows and the arrays of ``TreeEnsemble``, and write their results into the last ones.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np


@numba.njit(cache=True, nogil=True)
def child(v: Any, node: Any, threshold: Any, left: Any, right: Any, nan_left: Any) -> Any:
    """Child to which a node sends the value of its feature."""
    if v <= threshold[node] or (np.isnan(v) and nan_left[node]):
        return left[node]
    return right[node]


@numba.njit(cache=True, nogil=True)
def add_leaves(
    x: Any, feature: Any, threshold: Any, left: Any, right: Any, nan_left: Any, roots: Any,
    value: Any, output: Any, base: Any, out: Any,
) -> None:  # fmt: skip
    """Add the leaves' values to the outputs (float32, zeros), tree after tree, then the base."""
    for i in range(len(x)):
        for t in range(len(roots)):
            node = roots[t]
            while feature[node] >= 0:
                node = child(x[i, feature[node]], node, threshold, left, right, nan_left)
            if output[t] >= 0:
                out[i, output[t]] += value[node, 0]
            else:
                for m in range(len(base)):
                    out[i, m] += value[node, m]
        for m in range(len(base)):
            out[i, m] += base[m]


@numba.njit(cache=True, nogil=True)
def mark_paths(
    x: Any, feature: Any, threshold: Any, left: Any, right: Any, nan_left: Any, roots: Any, out: Any
) -> None:
    """Mark the columns that each row's paths test."""
    for i in range(len(x)):
        for t in range(len(roots)):
            node = roots[t]
            while feature[node] >= 0:
                out[i, feature[node]] = True
                node = child(x[i, feature[node]], node, threshold, left, right, nan_left)


@numba.njit(cache=True, nogil=True)
def find_leaves(
    x: Any, feature: Any, threshold: Any, left: Any, right: Any, nan_left: Any, roots: Any,
    leaf: Any, first: Any,
) -> None:  # fmt: skip
    """Leaf of each row in each tree, and the first tree that tests each column for a row."""
    for t in range(len(roots)):
        for i in range(len(x)):
            node = roots[t]
            while feature[node] >= 0:
                k = feature[node]
                first[i, k] = min(first[i, k], t)
                node = child(x[i, k], node, threshold, left, right, nan_left)
            leaf[t, i] = node
