"""Random trees, for bitwise comparisons of their evaluation."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from gatewise.models.trees import TreeEnsemble

#: Whether each tree adds to one output or to all outputs.
OutputForm = Literal["one", "all", "mixed"]


def make_trees(
    rng: np.random.Generator,
    n_trees: int,
    n_features: int,
    n_outputs: int,
    *,
    output_form: OutputForm,
    threshold_values: NDArray[np.float32],
) -> TreeEnsemble:
    """Make random trees of depth 0 to 4 with thresholds from `threshold_values`.

    The values have very different magnitudes, so that a different order of summation gives
    different bits.
    """
    nodes: list[tuple[int, int, int]] = []  # column, left, right

    def add_node(depth: int) -> int:
        node = len(nodes)
        nodes.append((-1, -1, -1))
        if depth and n_features and rng.random() < 0.8:
            column = int(rng.integers(n_features))
            nodes[node] = (column, add_node(depth - 1), add_node(depth - 1))
        return node

    roots = [add_node(int(rng.integers(0, 5))) for _ in range(n_trees)]
    feature, left, right = np.array(nodes, np.int32).reshape(-1, 3).T.copy()
    output = np.full(n_trees, -1) if output_form == "all" else rng.integers(0, n_outputs, n_trees)
    if output_form == "mixed":
        output[rng.random(n_trees) < 0.5] = -1
    n_values = n_outputs if (output < 0).any() else 1
    signs = rng.choice([-1, 0.0, -0.0, 1], (len(nodes), n_values))
    magnitudes = 10.0 ** rng.integers(-6, 6, (len(nodes), n_values))
    return TreeEnsemble(
        feature=feature,
        threshold=rng.choice(threshold_values, len(nodes)),
        left=left,
        right=right,
        nan_left=rng.random(len(nodes)) < rng.choice([0.0, 0.5, 0.5, 1.0]),
        value=(signs * rng.random(magnitudes.shape) * magnitudes).astype(np.float32),
        roots=np.array(roots, np.int32),
        output=output.astype(np.int32),
        base=rng.choice(np.float32([0, -0.0, 0.3, -7e4]), n_outputs),
        n_features=n_features,
    )


def draw_trees(
    seed: int, *, has_mixed_outputs: bool = False
) -> tuple[TreeEnsemble, NDArray[np.float32]]:
    """Make random trees, and rows with their thresholds, signed zeros and NaN as values."""
    rng = np.random.default_rng(seed)
    n_features = int(rng.integers(1, 7))
    n_outputs = int(rng.integers(1, 5))
    threshold_values = np.append(rng.normal(0, 1, 6), [0.0, -0.0]).astype(np.float32)
    output_form: OutputForm = (
        "mixed" if has_mixed_outputs else "one" if rng.random() < 0.5 else "all"
    )
    n_trees = int(rng.integers(1, 12))
    trees = make_trees(
        rng,
        n_trees,
        n_features,
        n_outputs,
        output_form=output_form,
        threshold_values=threshold_values,
    )
    rows = rng.choice(np.append(threshold_values, np.float32([np.nan, 1e6])), (40, n_features))
    return trees, np.append(rows, rng.normal(0, 1, rows.shape), axis=0).astype(np.float32)
