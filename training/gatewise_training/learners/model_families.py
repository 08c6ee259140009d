"""Families of models for stages, each of which is fitted on some columns as a flat model.

A flat model gives the same float32 margins, bit by bit, on every platform. Each family fits its
models within the bounds of small devices (:mod:`.stage_bounds`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gatewise.decision import Link
from gatewise.models.graph_model import GraphModel
from gatewise.models.linear import LinearModel, standard_scaling
from gatewise.models.stage import FlatModel, Stage
from gatewise.models.trees import TreeEnsemble
from gatewise_training.data.validation_split import Rows, ValidationSplit, cross_fit
from gatewise_training.learners.boosting import (
    MAX_SMALL_ROWS,
    RANDOM_THRESHOLDS,
    capacity_params,
    fit_boosting,
    link_of,
)
from gatewise_training.learners.extra_trees import fit_extra_trees
from gatewise_training.learners.kernel_fitting import MAX_SVM_ROWS, fit_kernel
from gatewise_training.learners.stage_bounds import (
    MAX_STAGE_BYTES,
    MAX_STEP_OF_FEW_TREES,
    Bounds,
    ForestShape,
)
from gatewise_training.learners.threshold_grid import ThresholdGrid

#: Maximum number of boosting rounds; early stopping usually ends a fit before.
MAX_ROUNDS = 600

#: Maximum number of landmarks of a kernel machine; they are also at most half of the rows.
MAX_LANDMARKS = 512

#: Maximum number of rows to fit a kernel machine on, which has only a few hundred weights.
MAX_KERNEL_ROWS = 10_000


@dataclass(frozen=True, eq=False)
class _StageFit:
    """A fitted stage and its number of boosting rounds."""

    stage: Stage
    rounds: int = 0


@dataclass(frozen=True, eq=False)
class _FamilyTask:
    """Data and settings of one fit of a family; `x` has the columns of the stage.

    If there is a `grid`, the values of `x` are rounded to its thresholds.
    """

    split: ValidationSplit
    features: NDArray[np.intp]
    x: NDArray[np.float32]
    grid: ThresholdGrid | None
    rows: Rows
    unseen_rows: Rows | None
    rounds: int | None
    n_classes: int
    seed: int
    bounds: Bounds

    @property
    def x_fit(self) -> NDArray[np.float32]:
        return self.x[self.rows]

    @property
    def y_fit(self) -> NDArray[np.int64]:
        return self.split.y[self.rows]

    @property
    def weight(self) -> NDArray[np.float64]:
        return self.split.weight[self.rows]

    @property
    def boosting_params(self) -> dict[str, Any]:
        n_rows = len(self.split.fit_rows)
        return capacity_params(n_rows, self.n_classes, has_groups=self.split.has_groups)


class _FamilyFit(NamedTuple):
    """A fitted model of a family, the link of its margins, and its boosting rounds, else 0."""

    model: FlatModel
    link: Link
    rounds: int = 0


def _fit_boosted_trees(task: _FamilyTask, param_changes: Mapping[str, Any]) -> _FamilyFit:
    """Fit boosted trees of the bounds' shape; `param_changes` override LightGBM's settings."""
    params = task.boosting_params | dict(param_changes)
    n_outputs = 1 if task.n_classes == 2 else task.n_classes
    n_trees, n_leaves = task.bounds.trees_and_leaves(
        MAX_ROUNDS * n_outputs,
        params["num_leaves"],
        task.x.shape[1],
        n_outputs,
        shares_thresholds=True,
    )
    params = task.bounds.add_bins(params)
    if (shape := task.bounds.shape) is not None and task.bounds.max_bytes is not None:
        params["learning_rate"] = shape.learning_rate
        if n_outputs > 1:
            params["max_delta_step"] = MAX_STEP_OF_FEW_TREES
    unseen_rows = task.unseen_rows
    model, n_rounds = fit_boosting(
        task.x_fit,
        task.y_fit,
        task.n_classes,
        weight=task.weight,
        validation=None
        if unseen_rows is None
        else (task.x[unseen_rows], *task.split.labels_and_weights(unseen_rows)),
        max_rounds=task.rounds or max(1, n_trees // n_outputs),
        seed=task.seed,
        params=params | {"num_leaves": n_leaves},
    )
    return _FamilyFit(model, link_of(task.n_classes), n_rounds)


def _fit_extra_trees_family(task: _FamilyTask) -> _FamilyFit:
    """Fit extra-trees, with scikit-learn's bound on leaves if there is a bound on bytes."""
    # more trees vary less on few rows, and take too long on many
    shape = task.bounds.forest_shape or ForestShape(100 if len(task.rows) <= MAX_SMALL_ROWS else 50)
    if task.bounds.max_bytes is None:
        leaf_rows = _choose_leaf_rows(task, shape.n_trees, shape.min_leaf_rows)
        return _FamilyFit(_fit_forest(task, ForestShape(shape.n_trees, leaf_rows)), "identity")
    from sklearn.ensemble import ExtraTreesClassifier

    n_trees, n_leaves = task.bounds.trees_and_leaves(
        shape.n_trees, 256, task.x.shape[1], n_leaf_values=task.n_classes
    )
    classifier = ExtraTreesClassifier(
        n_trees,
        min_samples_leaf=shape.min_leaf_rows,
        max_leaf_nodes=n_leaves,
        random_state=task.seed,
    )
    classifier.fit(task.x_fit, task.y_fit, sample_weight=task.weight)
    trees = TreeEnsemble.from_forest(classifier)
    own_classes = np.asarray(classifier.classes_)
    return _FamilyFit(with_all_classes(trees, own_classes, task.n_classes), "identity")


def _fit_forest(task: _FamilyTask, shape: ForestShape) -> TreeEnsemble:
    return fit_extra_trees(
        task.x_fit,
        task.y_fit,
        task.n_classes,
        weight=task.weight,
        n_trees=shape.n_trees,
        min_rows=shape.min_leaf_rows,
        seed=task.seed,
    )


def _choose_leaf_rows(task: _FamilyTask, n_trees: int, min_rows: int) -> int:
    """Choose the smallest leaves with which a forest fits into a stage, measured on one tree."""
    max_bytes = 0.95 * MAX_STAGE_BYTES / n_trees  # 5 % of room, because trees differ in size
    leaf_rows = min_rows
    while leaf_rows < len(task.rows):
        tree_bytes = _fit_forest(task, ForestShape(1, leaf_rows)).nbytes
        if tree_bytes <= max_bytes:
            break
        leaf_rows = max(leaf_rows + 1, int(leaf_rows * tree_bytes / max_bytes))
    return leaf_rows


def _fit_linear(task: _FamilyTask) -> _FamilyFit:
    """Fit a logistic regression of standardised features."""
    from sklearn.linear_model import LogisticRegression

    x = task.x_fit
    n_classes = task.n_classes
    mean, scale = standard_scaling(x)
    scaled_x = ((x - mean) * scale).astype(np.float64)
    regression = LogisticRegression(C=1.0, max_iter=200, tol=1e-3)
    regression.fit(scaled_x, task.y_fit, sample_weight=task.weight)
    weights = regression.coef_.T
    bias = regression.intercept_
    if n_classes > 2:
        classes = np.asarray(regression.classes_)
        # two classes have one margin m: softmax (0, m) = (1 - p, p) with p = 1 / (1 + exp(-m))
        if len(classes) == 2:
            weights = weights * [[0.0, 1.0]]
            bias = np.append(0.0, bias)
        # a class without rows in this fold has probability 0: exp(-1e9) = 0 in softmax
        all_weights = np.zeros((x.shape[1], n_classes))
        all_weights[:, classes] = weights
        weights = all_weights
        all_bias = np.full(n_classes, -1e9)
        all_bias[classes] = bias
        bias = all_bias
    linear_model = LinearModel(mean, scale, weights.astype(np.float32), bias.astype(np.float32))
    return _FamilyFit(linear_model, link_of(n_classes))


def _fit_svm(task: _FamilyTask) -> _FamilyFit:
    rows = task.rows
    if len(rows) > MAX_KERNEL_ROWS:
        rows = np.random.default_rng(task.seed).choice(rows, MAX_KERNEL_ROWS, replace=False)
    return _fit_svm_with_left_out(replace(task, rows=rows))[0]


def _fit_svm_with_left_out(task: _FamilyTask) -> tuple[_FamilyFit, NDArray[np.float32]]:
    """Fit a kernel machine; return it with its margins of left-out rows."""
    n_landmarks = min(MAX_LANDMARKS, len(task.rows) // 2)
    n_outputs = 1 if task.n_classes == 2 else task.n_classes
    if task.bounds.max_bytes is not None:
        # a landmark has a float32 for each column and for its weight in each output; mean, scale
        # and bias take the bytes of up to four landmarks
        n_fitting = task.bounds.max_bytes // (4 * (task.x.shape[1] + n_outputs)) - 4
        n_landmarks = min(n_landmarks, n_fitting)
    model, left_out_margins = fit_kernel(
        task.x_fit,
        task.y_fit,
        task.n_classes,
        weight=task.weight,
        n_landmarks=max(1, n_landmarks),
        seed=task.seed,
        fold_of_row=task.split.splitter.take(task.rows).inner_folds(task.seed),
    )
    return _FamilyFit(model, link_of(task.n_classes)), left_out_margins


#: Families by name. Only the two kinds of boosting accept NaN.
FAMILIES: dict[str, Callable[[_FamilyTask], _FamilyFit]] = {
    "boosting": partial(_fit_boosted_trees, param_changes={}),
    "random-boosting": partial(_fit_boosted_trees, param_changes=RANDOM_THRESHOLDS),
    "extra-trees": _fit_extra_trees_family,
    "linear": _fit_linear,
    "svm": _fit_svm,
}


def families_for(n_rows: int, *, allow_missing: bool = False) -> tuple[str, ...]:
    """List the families to try on `n_rows` rows.

    Random thresholds are worse on many rows. Kernel machines are worse on more than `MAX_SVM_ROWS`
    rows, because they are fitted on at most `MAX_KERNEL_ROWS` rows.

    >>> families_for(20_000)
    ('boosting', 'extra-trees', 'linear')
    """
    families = ["boosting"]
    if n_rows <= MAX_SMALL_ROWS:
        families.append("random-boosting")
    if not allow_missing:
        families += ["extra-trees", "linear"]
        if n_rows <= MAX_SVM_ROWS:
            families.append("svm")
    return tuple(families)


def cross_fitted_stage(
    split: ValidationSplit,
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
    x = np.ascontiguousarray(split.x[:, features])
    grid = None
    if bounds.n_thresholds is not None and family not in ("linear", "svm"):
        grid = ThresholdGrid.of_table(x[split.fit_rows], bounds.n_thresholds)
        x = grid.round_rows(x)
    task = _FamilyTask(
        split=split,
        features=features,
        x=x,
        grid=grid,
        rows=split.fit_rows,
        unseen_rows=None,
        rounds=None,
        n_classes=n_classes,
        seed=seed,
        bounds=bounds,
    )
    # margins of left-out rows replace five folds: they are cheaper, and all have the same scale
    if family == "svm" and len(split.folds) > 1:
        family_fit, left_out_margins = _fit_svm_with_left_out(task)
        return _shorten_to_bounds(task, family_fit).stage, left_out_margins[split.validation_rows]
    final_fit, outputs = cross_fit(
        split,
        partial(_fit_stage, task, family),
        lambda fold_fit, rows: fold_fit.stage.margins(split.x[rows]),
    )
    return final_fit.stage, outputs


def _fit_stage(
    task: _FamilyTask, family: str, rows: Rows, unseen_rows: Rows | None, rounds: int | None
) -> _StageFit:
    """Fit a stage with the data and settings of a task, but on the rows of one fold."""
    fold_task = replace(task, rows=rows, unseen_rows=unseen_rows, rounds=rounds)
    return _shorten_to_bounds(fold_task, FAMILIES[family](fold_task))


def _shorten_to_bounds(task: _FamilyTask, family_fit: _FamilyFit) -> _StageFit:
    """Make a stage with as many rounds as the bounds allow."""
    rounds = task.bounds.max_rounds(partial(_make_stage, task, family_fit), family_fit.rounds)
    return _StageFit(_make_stage(task, family_fit, rounds), rounds)


def _make_stage(task: _FamilyTask, family_fit: _FamilyFit, rounds: int) -> Stage:
    """Make the stage of the first `rounds` rounds; other models than boosted trees stay whole."""
    model = family_fit.model
    if isinstance(model, TreeEnsemble):
        if rounds < family_fit.rounds:
            n_trees = model.n_trees * rounds // family_fit.rounds
            model, _ = model.select_trees(np.arange(n_trees))
        if task.grid is not None:
            model = task.grid.move_thresholds(model)
        model = task.bounds.round_leaves(model)
    stage = Stage.from_model(model, family_fit.link)
    return replace(stage, features=task.features[stage.features])


def family_of(stage: Stage) -> str:
    """Get the name of the family of a stage's model; "given" for a graph."""
    if isinstance(stage.model, TreeEnsemble):
        return "extra-trees" if stage.link == "identity" else "boosting"
    if isinstance(stage.model, GraphModel):
        return "given"
    return "linear" if isinstance(stage.model, LinearModel) else "svm"


def with_all_classes(
    trees: TreeEnsemble, own_classes: NDArray[Any], n_classes: int
) -> TreeEnsemble:
    """Add columns of zeros to a forest for the classes that did not occur in its rows."""
    if len(own_classes) == n_classes:
        return trees
    value = np.zeros((trees.n_nodes, n_classes), np.float32)
    value[:, own_classes] = trees.value
    return replace(trees, value=value, base=np.zeros(n_classes, np.float32))
