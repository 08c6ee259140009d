"""Model families of a stage: what may answer on the device, each as a flat model.

A family fits a small model on some columns and hands back flat arrays whose float32 margins
are the same bits everywhere. Which family a stage takes is decided on judging rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gatewise_training.boosting import fit_boosting, link_of
from gatewise_training.decision import Link
from gatewise_training.kernel import fit_kernel
from gatewise_training.linear import LinearModel
from gatewise_training.resampling import Resampling, Rows, cross_fit
from gatewise_training.stage import FlatModel, Stage
from gatewise_training.trees import TreeEnsemble

__all__ = ["FAMILIES", "StageModel", "judged_stage"]


@dataclass(frozen=True, eq=False)
class StageModel:
    """A fitted stage and the family it is of."""

    stage: Stage
    family: str
    rounds: int = 0


_Fitted = tuple[FlatModel, Link, int]


def _boosting(
    plan: Resampling, x: NDArray[np.float32], rows: Rows, held: Rows | None,
    rounds: int | None, n_classes: int, seed: int,
) -> _Fitted:  # fmt: skip
    large = len(plan.fit_rows) > 5000
    trees, kept = fit_boosting(
        x[rows],
        plan.y[rows],
        n_classes,
        weight=plan.weight[rows],
        validation=None if held is None else (x[held], plan.y[held]),
        rounds=rounds or 300,
        seed=seed,
        params={"num_leaves": 63 if large else 15, "learning_rate": 0.15 if large else 0.1},
    )
    return trees, link_of(n_classes), kept


def _extra_trees(
    plan: Resampling, x: NDArray[np.float32], rows: Rows, held: Rows | None,
    rounds: int | None, n_classes: int, seed: int,
) -> _Fitted:  # fmt: skip
    from sklearn.ensemble import ExtraTreesClassifier

    forest = ExtraTreesClassifier(100, min_samples_leaf=2, random_state=seed)
    forest.fit(x[rows], plan.y[rows], sample_weight=plan.weight[rows])
    trees = TreeEnsemble.from_forest(forest)
    return _all_classes(trees, np.asarray(forest.classes_), n_classes), "identity", 0


def _linear(
    plan: Resampling, x: NDArray[np.float32], rows: Rows, held: Rows | None,
    rounds: int | None, n_classes: int, seed: int,
) -> _Fitted:  # fmt: skip
    from sklearn.linear_model import LogisticRegression

    part = x[rows].astype(np.float64)
    mean = part.mean(axis=0).astype(np.float32)
    spread = part.std(axis=0)
    scale = np.where(spread > 0, 1 / np.where(spread > 0, spread, 1), 0).astype(np.float32)
    z = (x[rows] - mean) * scale
    model = LogisticRegression(C=1.0, max_iter=200, tol=1e-3)
    model.fit(z.astype(np.float64), plan.y[rows], sample_weight=plan.weight[rows])
    weights, bias = model.coef_.T, model.intercept_
    if n_classes > 2:
        full = np.zeros((x.shape[1], n_classes)), np.full(n_classes, -1e9)
        full[0][:, model.classes_] = weights if len(model.classes_) > 2 else [[0, 1]] * weights
        full[1][model.classes_] = bias if len(model.classes_) > 2 else [0.0, bias[0]]
        weights, bias = full
    flat = LinearModel(mean, scale, weights.astype(np.float32), bias.astype(np.float32))
    return flat, link_of(n_classes), 0


def _svm(
    plan: Resampling, x: NDArray[np.float32], rows: Rows, held: Rows | None,
    rounds: int | None, n_classes: int, seed: int,
) -> _Fitted:  # fmt: skip
    model, _ = fit_kernel(x[rows], plan.y[rows], n_classes, weight=plan.weight[rows], seed=seed)
    return model, link_of(n_classes), 0


FAMILIES: dict[str, Callable[..., _Fitted]] = {
    "boosting": _boosting,
    "extra-trees": _extra_trees,
    "linear": _linear,
    "svm": _svm,
}
"""Families by name. Only boosting takes NaN."""


def judged_stage(
    plan: Resampling, family: str, features: NDArray[np.intp], n_classes: int, seed: int
) -> tuple[StageModel, NDArray[np.float32]]:
    """Fit a stage of one family on some columns, with honest outputs on the judging rows.

    Parameters
    ----------
    plan : Resampling
    family : str
        A key of `FAMILIES`.
    features : ndarray of intp
        Columns that the stage may read; the model may use fewer.
    n_classes : int
    seed : int

    Returns
    -------
    stage : StageModel
    outputs : ndarray of float32, shape (n_held, n_outputs)
        In the order of ``plan.held``.
    """
    if family == "svm" and len(plan.folds) > 1:  # leaving one out is cheaper than five folds
        x = np.ascontiguousarray(plan.x[:, features])
        model, left_out = fit_kernel(x, plan.y, n_classes, weight=plan.weight, seed=seed)
        stage = _placed(model, link_of(n_classes), features)
        return StageModel(stage, family), left_out[plan.held]
    fit = _stage_fit(plan, family, features, n_classes, seed)
    return cross_fit(plan, fit, lambda m, rows: m.stage.margins(plan.x[rows]))


def _stage_fit(
    plan: Resampling, family: str, features: NDArray[np.intp], n_classes: int, seed: int
) -> Callable[[Rows, Rows | None, int | None], StageModel]:
    x = np.ascontiguousarray(plan.x[:, features])

    def fit(rows: Rows, held: Rows | None, rounds: int | None) -> StageModel:
        model, link, kept = FAMILIES[family](plan, x, rows, held, rounds, n_classes, seed)
        return StageModel(_placed(model, link, features), family, kept)

    return fit


def _placed(model: FlatModel, link: Link, features: NDArray[np.intp]) -> Stage:
    """A stage of a model over some columns, as a stage over whole instances."""
    stage = Stage.of(model, link)
    return Stage(stage.model, features[stage.features], stage.link, stage.score)


def _all_classes(trees: TreeEnsemble, seen: NDArray[Any], n_classes: int) -> TreeEnsemble:
    """Widen a forest that has not seen every class (a rare one may miss a fold)."""
    if len(seen) == n_classes:
        return trees
    from dataclasses import replace

    value = np.zeros((trees.n_nodes, n_classes), np.float32)
    value[:, seen] = trees.value
    return replace(trees, value=value, base=np.zeros(n_classes, np.float32))
