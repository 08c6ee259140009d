"""Random trees, to compare implementations of their evaluation bit for bit."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gatewise.models.trees import TreeEnsemble

__all__ = ["random_trees"]


def random_trees(seed: int, *, mixed: bool = False) -> tuple[TreeEnsemble, NDArray[np.float32]]:
    """Make random trees, and rows that meet their thresholds.

    Values differ widely in size, so that another order of summation gives other bits; rows hold
    the thresholds themselves, zeros of both signs and NaN.
    """
    rng = np.random.default_rng(seed)
    n_features, n_outputs = int(rng.integers(1, 7)), int(rng.integers(1, 5))
    marks = np.append(rng.normal(0, 1, 6), [0.0, -0.0]).astype(np.float32)
    nodes: list[tuple[int, int, int]] = []  # column, left, right

    def node(depth: int) -> int:
        here = len(nodes)
        nodes.append((-1, -1, -1))
        if depth and rng.random() < 0.8:
            column = int(rng.integers(n_features))
            nodes[here] = (column, node(depth - 1), node(depth - 1))
        return here

    roots = [node(int(rng.integers(0, 5))) for _ in range(int(rng.integers(1, 12)))]
    feature, left, right = np.array(nodes, np.int32).T
    output = rng.integers(0, n_outputs, len(roots))
    if mixed:
        output[rng.random(len(roots)) < 0.5] = -1
    elif rng.random() < 0.5:
        output[:] = -1
    wide = n_outputs if (output < 0).any() else 1
    signs = rng.choice([-1, 0.0, -0.0, 1], (len(nodes), wide))
    size = 10.0 ** rng.integers(-6, 6, (len(nodes), wide))
    trees = TreeEnsemble(
        feature=feature,
        threshold=rng.choice(marks, len(nodes)),
        left=left,
        right=right,
        nan_left=rng.random(len(nodes)) < 0.5,
        value=(signs * rng.random(size.shape) * size).astype(np.float32),
        roots=np.array(roots, np.int32),
        output=output.astype(np.int32),
        base=rng.choice(np.float32([0, -0.0, 0.3, -7e4]), n_outputs),
        n_features=n_features,
    )
    rows = rng.choice(np.append(marks, np.float32([np.nan, 1e6])), (40, n_features))
    return trees, np.append(rows, rng.normal(0, 1, rows.shape), axis=0).astype(np.float32)
