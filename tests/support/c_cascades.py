"""Synthetic cascades for tests of the C99 code."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gatewise.decision import ALWAYS_STOP, split_outputs
from gatewise.models.kernel_machine import KernelModel
from gatewise.models.linear import LinearModel
from gatewise.models.stage import FlatModel, Stage
from gatewise.models.trees import TreeEnsemble
from gatewise_export.c99.cascade import Cascade
from tests.support.trees import make_trees

Matrix = NDArray[np.float32]

#: Thresholds and values that are difficult to compare: signed zeros, denormals, large offsets.
DIFFICULT_VALUES = np.array(
    [0.0, -0.0, 1e-45, -1e-45, 1e-39, 0.5, -0.5, 1e6, 1e6 + 0.0625, 1e6 + 1, -1e6, 3e38], np.float32
)


def draw_flat_model(rng: Any, kind: str, n_columns: int, n_outputs: int) -> FlatModel:
    """Draw a flat model of `n_columns` features; `kind` is linear, kernel or trees."""

    def draw_floats(*shape: int) -> Matrix:
        return (rng.normal(size=shape) * 10.0 ** rng.integers(-3, 3, shape)).astype(np.float32)

    if kind == "linear":
        return LinearModel(
            rng.choice(DIFFICULT_VALUES, n_columns),
            draw_floats(n_columns),
            draw_floats(n_columns, n_outputs),
            draw_floats(n_outputs),
        )
    if kind == "kernel":
        n_landmarks = int(rng.integers(1, 9))
        return KernelModel(
            rng.choice(DIFFICULT_VALUES, n_columns), draw_floats(n_columns),
            draw_floats(n_landmarks, n_columns), np.float32(rng.random()),
            draw_floats(n_landmarks, n_outputs), draw_floats(n_outputs),
        )  # fmt: skip
    output_form = str(rng.choice(["one", "all", "mixed"]))
    trees = make_trees(
        rng,
        int(rng.integers(0, 9)),
        n_columns,
        n_outputs,
        output_form=output_form,
        threshold_values=DIFFICULT_VALUES,
    )
    leaf_kind = str(rng.choice(["floats", "bytes", "few", "pure"]))
    if leaf_kind == "bytes":
        return trees.with_byte_leaves()
    if leaf_kind == "few":  # two distinct numbers in three distinct rows
        leaf_rows = rng.choice(draw_floats(2), (3, trees.value.shape[1]))
        return replace(trees, value=leaf_rows[rng.integers(0, 3, trees.n_nodes)])
    if leaf_kind == "pure":  # leaves of one class, as in a fully grown forest
        pure_values = np.eye(trees.value.shape[1], dtype=np.float32) * np.float32(0.1)
        return replace(trees, value=pure_values[rng.integers(0, len(pure_values), trees.n_nodes)])
    return trees


def draw_stage(rng: Any, n_features: int, n_classes: int) -> Stage:
    """Draw a stage of a random kind on random features."""
    kind = str(rng.choice(["trees", "trees", "lazy", "linear", "kernel", "gated"]))
    features = rng.permutation(n_features)[: int(rng.integers(0, n_features + 1))]
    n_columns = len(features)
    n_margins = 1 if n_classes == 2 else n_classes
    if kind == "lazy":
        model = draw_flat_model(rng, "trees", n_columns, n_margins)
        return Stage(model, features, "softmax", acquisition="node")
    if kind == "gated":
        model = draw_flat_model(rng, str(rng.choice(["trees", "linear"])), n_columns, n_margins + 1)
        return Stage(model, features, "softmax", "column")
    return Stage(draw_flat_model(rng, kind, n_columns, n_margins), features, "softmax")


def draw_cascade(seed: int) -> Cascade:
    """Draw a cascade with rows of difficult values and thresholds."""
    rng = np.random.default_rng(seed)
    n_features = int(rng.integers(1, 8))
    n_classes = int(rng.integers(2, 5))
    stages = [draw_stage(rng, n_features, n_classes) for _ in range(int(rng.integers(1, 5)))]
    rows = rng.choice(DIFFICULT_VALUES, (12, n_features))
    thresholds: list[float | None] = []
    for stage in stages:
        scores = split_outputs(stage.margins(rows), stage.score)[1]
        # a threshold that equals a score of a row, or a special threshold
        threshold_candidates = [*scores[np.isfinite(scores)].tolist(), None, ALWAYS_STOP]
        thresholds.append(threshold_candidates[int(rng.integers(len(threshold_candidates)))])
    takes_missing = bool(rng.random() < 0.5)
    offloads = bool(rng.random() < 0.7)
    if takes_missing:
        rows[rng.random(rows.shape) < 0.2] = np.nan
    return Cascade(
        title=f"random {seed}", stages=tuple(stages), thresholds=tuple(thresholds),
        # names that would end a comment of C
        feature_names=tuple(f"f*/{i}\\" for i in range(n_features)),
        classes=tuple(range(n_classes)), takes_missing=takes_missing, offloads=offloads,
        cloud_takes_missing=bool(rng.random() < 0.5), rows=rows, is_lean=bool(rng.random() < 0.4),
        request_features=np.flatnonzero(np.random.default_rng(seed).random(n_features) < 0.6),
    )  # fmt: skip


def make_step_cascade(n_thresholds: int, *, takes_missing: bool) -> Cascade:
    """Make a stage with a tree for each threshold 0, 1, 2, ...

    Its margin is the number of thresholds below the value.
    """
    n_trees = n_thresholds
    stumps = TreeEnsemble(
        feature=np.tile(np.int32([0, -1, -1]), n_trees),
        threshold=np.repeat(np.arange(n_trees, dtype=np.float32), 3),
        left=np.int32([[3 * i + 1, -1, -1] for i in range(n_trees)]).ravel(),
        right=np.int32([[3 * i + 2, -1, -1] for i in range(n_trees)]).ravel(),
        nan_left=np.tile([True, False, False], n_trees),
        value=np.tile(np.float32([0, 0, 1]), n_trees)[:, None],
        roots=np.arange(0, 3 * n_trees, 3, dtype=np.int32),
        output=np.zeros(n_trees, np.int32),
        base=np.zeros(1, np.float32),
        n_features=1,
    )
    return Cascade(
        title="steps", stages=(Stage(stumps, np.arange(1), "sigmoid"),),
        thresholds=(ALWAYS_STOP,), feature_names=("x",), classes=(0, 1),
        takes_missing=takes_missing, offloads=False, cloud_takes_missing=False,
        rows=np.zeros((0, 1), np.float32),
    )  # fmt: skip
