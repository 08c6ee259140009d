"""Families of models for stages, each of which is fitted on some columns as a flat model.

A flat model gives the same float32 margins, bit by bit, on every platform. Each family fits its
models within the bounds of small devices (:mod:`.stage_bounds`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gatewise.decision import Link
from gatewise.models.graph_model import GraphModel
from gatewise.models.linear import LinearModel, standard_scores
from gatewise.models.stage import FlatModel, Stage
from gatewise.models.trees import TreeEnsemble
from gatewise_training.data.validation_split import Rows, ValidationSplit, cross_fit
from gatewise_training.learners.boosting import (
    LARGE_ROWS,
    RANDOM_THRESHOLDS,
    SVM_ROWS,
    capacity,
    fit_boosting,
    link_of,
)
from gatewise_training.learners.extra_trees import fit_extra_trees
from gatewise_training.learners.kernel_fitting import fit_kernel
from gatewise_training.learners.stage_bounds import (
    MAX_STAGE_BYTES,
    MAX_STEP_OF_FEW_TREES,
    Bounds,
    ForestShape,
    ThresholdGrid,
)

ROUNDS = 600
"""Maximum number of boosting rounds; early stopping usually ends a fit before."""

MAX_LANDMARKS = 512
"""Maximum number of landmarks of a kernel machine; they are also at most half of the rows."""

KERNEL_ROWS = 10_000
"""Maximum number of rows to fit a kernel machine on, which has only a few hundred weights."""


@dataclass(frozen=True, eq=False)
class _StageFit:
    """A fitted stage and its number of boosting rounds."""

    stage: Stage
    rounds: int = 0


@dataclass(frozen=True, eq=False)
class _Task:
    """Data and settings of one fit of a family; `x` has the columns of the stage."""

    plan: ValidationSplit
    x: NDArray[np.float32]
    rows: Rows
    unseen: Rows | None
    rounds: int | None
    n_classes: int
    seed: int
    bounds: Bounds

    @property
    def x_fit(self) -> NDArray[np.float32]:
        return self.x[self.rows]

    @property
    def y_fit(self) -> NDArray[np.int64]:
        return self.plan.y[self.rows]

    @property
    def weight(self) -> NDArray[np.float64]:
        return self.plan.weight[self.rows]

    @property
    def capacity(self) -> dict[str, Any]:
        grouped = self.plan.splitter.n_groups is not None
        return capacity(len(self.plan.fit_rows), self.n_classes, grouped=grouped)


_Fitted = tuple[FlatModel, Link, int]


def _boosting(task: _Task) -> _Fitted:
    return _boosted(task, task.capacity)


def _random_boosting(task: _Task) -> _Fitted:
    return _boosted(task, task.capacity | RANDOM_THRESHOLDS)


def _boosted(task: _Task, params: dict[str, Any]) -> _Fitted:
    outputs = 1 if task.n_classes == 2 else task.n_classes
    trees, leaves = task.bounds.tree_budget(
        ROUNDS * outputs, params["num_leaves"], task.x.shape[1], outputs, at_best=True
    )
    params = task.bounds.with_bins(params)
    if (shape := task.bounds.shape) is not None and task.bounds.max_bytes is not None:
        params["learning_rate"] = shape.rate
        if outputs > 1:
            params["max_delta_step"] = MAX_STEP_OF_FEW_TREES
    unseen = task.unseen
    model, n_rounds = fit_boosting(
        task.x_fit,
        task.y_fit,
        task.n_classes,
        weight=task.weight,
        validation=None
        if unseen is None
        else (task.x[unseen], *task.plan.labels_and_weights(unseen)),
        rounds=task.rounds or max(1, trees // outputs),
        seed=task.seed,
        params=params | {"num_leaves": leaves},
    )
    return model, link_of(task.n_classes), n_rounds


def _extra_trees(task: _Task) -> _Fitted:
    shape = task.bounds.forest or ForestShape(100 if len(task.rows) <= LARGE_ROWS else 50)
    if task.bounds.max_bytes is None:
        shape = ForestShape(shape.trees, _leaf_rows(task, shape.trees, shape.leaf_rows))
        return _forest(task, shape), "identity", 0
    from sklearn.ensemble import ExtraTreesClassifier

    trees, leaves = task.bounds.tree_budget(
        shape.trees, 256, task.x.shape[1], values=task.n_classes
    )
    forest = ExtraTreesClassifier(
        trees,
        min_samples_leaf=shape.leaf_rows,
        max_leaf_nodes=leaves,
        random_state=task.seed,
    )
    forest.fit(task.x_fit, task.y_fit, sample_weight=task.weight)
    model = TreeEnsemble.from_forest(forest)
    return with_all_classes(model, np.asarray(forest.classes_), task.n_classes), "identity", 0


def _forest(task: _Task, shape: ForestShape) -> TreeEnsemble:
    return fit_extra_trees(
        task.x_fit,
        task.y_fit,
        task.n_classes,
        weight=task.weight,
        n_trees=shape.trees,
        min_rows=shape.leaf_rows,
        seed=task.seed,
    )


def _leaf_rows(task: _Task, n_trees: int, min_rows: int) -> int:
    """Choose the smallest leaves with which a forest fits into a stage, measured on one tree."""
    max_bytes = 0.95 * MAX_STAGE_BYTES / n_trees
    rows = min_rows
    while rows < len(task.rows):
        size = _forest(task, ForestShape(1, rows)).nbytes
        if size <= max_bytes:
            break
        rows = max(rows + 1, int(rows * size / max_bytes))
    return rows


def _linear(task: _Task) -> _Fitted:
    from sklearn.linear_model import LogisticRegression

    x = task.x_fit
    n_classes = task.n_classes
    mean, scale = standard_scores(x)
    z = ((x - mean) * scale).astype(np.float64)
    model = LogisticRegression(C=1.0, max_iter=200, tol=1e-3)
    model.fit(z, task.y_fit, sample_weight=task.weight)
    weights = model.coef_.T
    bias = model.intercept_
    if n_classes > 2:  # a class without rows in this fold gets a very small margin
        classes = np.asarray(model.classes_)
        if len(classes) == 2:
            weights = weights * [[0.0, 1.0]]
            bias = np.append(0.0, bias)
        all_weights = np.zeros((x.shape[1], n_classes))
        all_weights[:, classes] = weights
        weights = all_weights
        all_bias = np.full(n_classes, -1e9)
        all_bias[classes] = bias
        bias = all_bias
    flat = LinearModel(mean, scale, weights.astype(np.float32), bias.astype(np.float32))
    return flat, link_of(n_classes), 0


def _svm(task: _Task) -> _Fitted:
    rows = task.rows
    if len(rows) > KERNEL_ROWS:
        rows = np.random.default_rng(task.seed).choice(rows, KERNEL_ROWS, replace=False)
    return _svm_left_out(replace(task, rows=rows))[0]


def _svm_left_out(task: _Task) -> tuple[_Fitted, NDArray[np.float32]]:
    """Fit a kernel machine; return it with its margins of left-out rows."""
    n_landmarks = min(MAX_LANDMARKS, len(task.rows) // 2)
    outputs = 1 if task.n_classes == 2 else task.n_classes
    if task.bounds.max_bytes is not None:
        n_fitting = task.bounds.max_bytes // (4 * (task.x.shape[1] + outputs)) - 4
        n_landmarks = min(n_landmarks, n_fitting)
    model, left_out = fit_kernel(
        task.x_fit,
        task.y_fit,
        task.n_classes,
        weight=task.weight,
        n_landmarks=max(1, n_landmarks),
        seed=task.seed,
        blocks=task.plan.splitter.take(task.rows).blocks(task.seed),
    )
    return (model, link_of(task.n_classes), 0), left_out


FAMILIES: dict[str, Callable[[_Task], _Fitted]] = {
    "boosting": _boosting,
    "random-boosting": _random_boosting,
    "extra-trees": _extra_trees,
    "linear": _linear,
    "svm": _svm,
}
"""Families by name. Only the two kinds of boosting accept NaN."""


def families_for(n_rows: int, *, allow_missing: bool = False) -> tuple[str, ...]:
    """List the families to try on `n_rows` rows.

    Random thresholds are worse on many rows. Kernel machines are worse on more than `SVM_ROWS`
    rows, because they are fitted on at most `KERNEL_ROWS` rows.

    >>> families_for(20_000)
    ('boosting', 'extra-trees', 'linear')
    """
    families = ["boosting"]
    if n_rows <= LARGE_ROWS:
        families.append("random-boosting")
    if not allow_missing:
        families += ["extra-trees", "linear"]
        if n_rows <= SVM_ROWS:
            families.append("svm")
    return tuple(families)


def cross_fitted_stage(
    plan: ValidationSplit,
    family: str,
    features: NDArray[np.intp],
    n_classes: int,
    seed: int,
    bounds: Bounds,
) -> tuple[Stage, NDArray[np.float32]]:
    """Fit a stage of one family.

    Returns the stage and its out-of-fold outputs on the validation rows, (n_validation, n_outputs).
    """
    # within a bound of bytes, trees are fitted on columns that are rounded to the threshold grid
    x = np.ascontiguousarray(plan.x[:, features])
    grid = None
    if bounds.thresholds is not None and family not in ("linear", "svm"):
        grid = ThresholdGrid.of_table(x[plan.fit_rows], bounds.thresholds)
        x = grid.rounded(x)

    def task(rows: Rows, unseen: Rows | None, rounds: int | None) -> _Task:
        return _Task(
            plan=plan,
            x=x,
            rows=rows,
            unseen=unseen,
            rounds=rounds,
            n_classes=n_classes,
            seed=seed,
            bounds=bounds,
        )

    def fit(rows: Rows, unseen: Rows | None, rounds: int | None) -> _StageFit:
        return stage_fit(FAMILIES[family](task(rows, unseen, rounds)))

    def stage_fit(fitted: _Fitted) -> _StageFit:
        model, link, n_grown = fitted

        def stage_of(rounds: int) -> Stage:
            flat = model
            if isinstance(flat, TreeEnsemble):
                if rounds < n_grown:
                    flat, _ = flat.select_trees(np.arange(flat.n_trees * rounds // n_grown))
                flat = bounds.rounded(flat if grid is None else grid.snapped(flat))
            stage = Stage.from_model(flat, link)
            return replace(stage, features=features[stage.features])

        # as many rounds as the bounds allow
        rounds = bounds.max_rounds(stage_of, n_grown)
        return _StageFit(stage_of(rounds), rounds)

    # margins of left-out rows replace five folds: they are cheaper, and all have the same scale
    if family == "svm" and len(plan.folds) > 1:
        fitted, left_out = _svm_left_out(task(plan.fit_rows, None, None))
        return stage_fit(fitted).stage, left_out[plan.validation_rows]
    final_fit, outputs = cross_fit(plan, fit, lambda fold, rows: fold.stage.margins(plan.x[rows]))
    return final_fit.stage, outputs


def family_of(stage: Stage) -> str:
    """Get the name of the family of a stage's model; "given" for a graph."""
    if isinstance(stage.model, TreeEnsemble):
        return "extra-trees" if stage.link == "identity" else "boosting"
    if isinstance(stage.model, GraphModel):
        return "given"
    return "linear" if isinstance(stage.model, LinearModel) else "svm"


def with_all_classes(trees: TreeEnsemble, classes: NDArray[Any], n_classes: int) -> TreeEnsemble:
    """Add columns of zeros to a forest for the classes that did not occur in its rows."""
    if len(classes) == n_classes:
        return trees
    value = np.zeros((trees.n_nodes, n_classes), np.float32)
    value[:, classes] = trees.value
    return replace(trees, value=value, base=np.zeros(n_classes, np.float32))
