"""Random trees, to compare implementations of their evaluation bit for bit."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from gatewise.models.trees import TreeEnsemble

Form = Literal["one", "all", "mixed"]
"""Whether a tree adds to one output or to all of them."""


def make_trees(
    rng: np.random.Generator,
    n_trees: int,
    n_features: int,
    n_outputs: int,
    *,
    form: Form,
    marks: NDArray[np.float32],
) -> TreeEnsemble:
    """Make random trees of depth 0 to 4 with `marks` as thresholds; there may be none.

    Values differ widely in size, so that another order of summation gives other bits.
    """
    nodes: list[tuple[int, int, int]] = []  # column, left, right

    def node(depth: int) -> int:
        here = len(nodes)
        nodes.append((-1, -1, -1))
        if depth and n_features and rng.random() < 0.8:
            column = int(rng.integers(n_features))
            nodes[here] = (column, node(depth - 1), node(depth - 1))
        return here

    roots = [node(int(rng.integers(0, 5))) for _ in range(n_trees)]
    feature, left, right = np.array(nodes, np.int32).reshape(-1, 3).T.copy()
    output = np.full(n_trees, -1) if form == "all" else rng.integers(0, n_outputs, n_trees)
    if form == "mixed":
        output[rng.random(n_trees) < 0.5] = -1
    wide = n_outputs if (output < 0).any() else 1
    signs = rng.choice([-1, 0.0, -0.0, 1], (len(nodes), wide))
    size = 10.0 ** rng.integers(-6, 6, (len(nodes), wide))
    return TreeEnsemble(
        feature=feature,
        threshold=rng.choice(marks, len(nodes)),
        left=left,
        right=right,
        nan_left=rng.random(len(nodes)) < rng.choice([0.0, 0.5, 0.5, 1.0]),
        value=(signs * rng.random(size.shape) * size).astype(np.float32),
        roots=np.array(roots, np.int32),
        output=output.astype(np.int32),
        base=rng.choice(np.float32([0, -0.0, 0.3, -7e4]), n_outputs),
        n_features=n_features,
    )


def random_trees(seed: int, *, mixed: bool = False) -> tuple[TreeEnsemble, NDArray[np.float32]]:
    """Make random trees, and rows that meet their thresholds.

    Rows hold the thresholds themselves, zeros of both signs and NaN.
    """
    rng = np.random.default_rng(seed)
    n_features, n_outputs = int(rng.integers(1, 7)), int(rng.integers(1, 5))
    marks = np.append(rng.normal(0, 1, 6), [0.0, -0.0]).astype(np.float32)
    form: Form = "mixed" if mixed else "one" if rng.random() < 0.5 else "all"
    n_trees = int(rng.integers(1, 12))
    trees = make_trees(rng, n_trees, n_features, n_outputs, form=form, marks=marks)
    rows = rng.choice(np.append(marks, np.float32([np.nan, 1e6])), (40, n_features))
    return trees, np.append(rows, rng.normal(0, 1, rows.shape), axis=0).astype(np.float32)
