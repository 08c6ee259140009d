"""Train the high-cost model f0 when none is given, and examine one that was given.

A model that has seen the rows it is measured on answers some of them from memory. Clones of a
given classifier, fitted without the rows, measure what it is worth; where it cannot be cloned, a
reference of our own says what can be expected on these rows.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import joblib
import numpy as np
from numpy.typing import NDArray

from gatewise_training.data.input_checks import named_rows
from gatewise_training.data.validation_split import Rows, ValidationSplit, cross_fit
from gatewise_training.learners.boosting import (
    LARGE_ROWS,
    MANY_ROWS,
    RANDOM_THRESHOLDS,
    capacity,
    fit_boosting,
)
from gatewise_training.learners.extra_trees import fit_extra_trees
from gatewise_training.learners.high_cost_model import HighCostModel
from gatewise_training.learners.packable import needs_backend
from gatewise_training.learners.stage_bounds import TreeShape

Fit = Callable[[Rows, Rows | None, int | None], HighCostModel]

SVM_ROWS = 16000
"""Above this many rows the kernel machine, quadratic in them, is not tried."""

TREES, TRIAL_TREES = (300, 150, 100), 30
"""Trees of extra-trees by size of the data; above 5,000 rows a few are tried first, above 50,000 on
some of the rows, as boosting is."""

NEAR = 0.01
"""What is tried first is fitted whole if it is that close to the best accuracy."""

FEWER_LEAVES = (1023, 255, 63, 15, 4)
"""Leaves of a boosted tree that are tried on more than 5,000 rows, from `capacity`'s on."""

FINE_BINS = 255
"""Bins of a feature that are tried on fewer, after `capacity`'s."""

LEAST_CHANCE = 1e-12
"""No probability is less in a log loss."""


class TrainedModel(NamedTuple):
    """A high-cost model, its out-of-fold answers, and what boosted trees are best on the rows.

    Shapes: `labels` (n_validation,) class indices, `probabilities` (n_validation, n_classes).
    """

    model: HighCostModel
    labels: NDArray[np.int64]
    probabilities: NDArray[np.float64]
    shape: TreeShape | None = None  # None: none were tried


def train_high_cost_model(
    plan: ValidationSplit,
    n_classes: int,
    *,
    template: Any = None,
    names: Sequence[str] | None = None,
    allow_missing: bool = False,
    seed: int = 0,
    n_jobs: int | None = None,
    report: Callable[[str], None] = lambda _what: None,
) -> TrainedModel:
    """Train f0: the most accurate, on validation rows, of the families that fit the data.

    Boosted trees always, in several shapes, and up to 5,000 rows with random thresholds too;
    extra-trees and an RBF-SVM (calibrated by Platt's sigmoid) unless values may be missing, the SVM
    up to 16,000 rows; above 50,000 all are tried on some of the rows first. Or else clones of
    `template`, an unfitted scikit-learn classifier; one that finds columns by their names gets the
    rows under `names`.
    """
    y, weight = plan.y[plan.validation_rows], plan.weight[plan.validation_rows]
    tried: list[TrainedModel] = []
    right: list[float] = []

    def cross_fit_all(fits: list[tuple[str, _CrossFit]]) -> None:
        parallel = joblib.Parallel(n_jobs=n_jobs, return_as="generator")
        results = parallel(joblib.delayed(fit)(plan) for _, fit in fits)
        for (kind, _), result in zip(fits, results, strict=True):
            report(f"high-cost model: {kind}")
            tried.append(result)
            right.append(float(np.average(result.labels == y, weights=weight)))

    recipes = partial(_recipes, plan, n_classes, template, names, allow_missing, seed)
    cross_fit_all([(recipe.kind, recipe.trial or recipe.fit) for recipe in recipes(None)])
    shape = next((found.shape for found in tried if found.shape), None)
    near = max(right) - NEAR
    tries = zip(recipes(shape), right.copy(), strict=True)
    cross_fit_all([(r.kind, r.fit) for r, accuracy in tries if r.trial and accuracy >= near])
    return tried[int(np.argmax(right))]._replace(shape=shape)


def tree_shape(plan: ValidationSplit, n_classes: int, seed: int) -> TreeShape:
    """Find out what boosted trees are best on the rows, on validation rows."""
    return _best_shape(n_classes, seed, plan)[0]


_CrossFit = Callable[[ValidationSplit], TrainedModel]


@dataclass(frozen=True)
class _F0Recipe:
    """One kind of model, and perhaps a cheap trial of whether it is worth its fit."""

    kind: str
    fit: _CrossFit
    trial: _CrossFit | None = None


def _cross_fitted(fit: Fit, plan: ValidationSplit) -> TrainedModel:
    def answers(model: HighCostModel, rows: Rows) -> NDArray[np.float64]:
        return np.column_stack(model.answers(plan.x[rows]))

    model, unseen = cross_fit(plan, fit, answers)
    return TrainedModel(model, unseen[:, 0].astype(np.int64), unseen[:, 1:])


def _boosting(
    n_classes: int, seed: int, shape: TreeShape | None, plan: ValidationSplit
) -> TrainedModel:
    """Cross-fit boosted trees of a shape; None: of the best one, on the rows of a trial."""
    if shape is None:
        shape, found = _best_shape(n_classes, seed, plan)
    else:
        found = _boosted(n_classes, seed, _tree_params(shape), plan)
    return found._replace(shape=shape)


def _forest(n_classes: int, seed: int, n_trees: int, plan: ValidationSplit) -> TrainedModel:
    return _cross_fitted(_forest_fit(plan, n_classes, n_trees, seed), plan)


def _forest_trial(n_classes: int, seed: int, plan: ValidationSplit) -> TrainedModel:
    return _forest(n_classes, seed, TRIAL_TREES, _trial_plan(plan, seed))


def _trial_plan(plan: ValidationSplit, seed: int) -> ValidationSplit:
    """Get the plan with no more rows to fit than comparing models takes."""
    return plan.with_fit_rows(MANY_ROWS, seed) if len(plan.folds) == 1 else plan


def _tree_params(shape: TreeShape) -> dict[str, Any]:
    bins = {} if shape.bins is None else {"max_bin": shape.bins}
    return {"num_leaves": shape.leaves, "learning_rate": shape.rate} | bins


def _best_shape(n_classes: int, seed: int, plan: ValidationSplit) -> tuple[TreeShape, TrainedModel]:
    """Try one change after the other as long as the log loss of validation rows falls.

    On more than 5,000 rows fewer leaves: the best number depends on the data by a factor of 60, 255
    on Forest, 4 on the 349 features of HAPT, where 63 lose 4 points of accuracy. On few rows more
    bins: 63 are better on MiniBooNE, and lose half a point on Thyroid's sharp thresholds.
    """
    params, rows = _capacity(plan, n_classes), plan.validation_rows
    plan = _trial_plan(plan, seed)
    leaves, rate, bins = params["num_leaves"], params["learning_rate"], params.get("max_bin")
    changes = [(fewer, bins) for fewer in FEWER_LEAVES if fewer <= leaves]
    if len(plan.fit_rows) <= LARGE_ROWS:
        changes = [(leaves, bins), (leaves, FINE_BINS)]
    tried: list[tuple[float, TreeShape, TrainedModel]] = []
    for n_leaves, n_bins in changes:
        shape = TreeShape(n_leaves, rate, n_bins)
        found = _boosted(n_classes, seed, _tree_params(shape), plan)
        chance = found.probabilities[np.arange(len(rows)), plan.y[rows]]
        loss = np.average(-np.log(np.maximum(chance, LEAST_CHANCE)), weights=plan.weight[rows])
        if tried and loss >= tried[-1][0]:
            break
        tried.append((float(loss), shape, found))
    return tried[-1][1:]


def _boosted(
    n_classes: int, seed: int, changes: Mapping[str, Any], plan: ValidationSplit
) -> TrainedModel:
    params = _capacity(plan, n_classes) | dict(changes)
    return _cross_fitted(_boosting_fit(plan, n_classes, params, seed), plan)


def _capacity(plan: ValidationSplit, n_classes: int) -> dict[str, Any]:
    grouped = plan.splitter.n_groups is not None
    return capacity(len(plan.fit_rows), n_classes, grouped=grouped)


def _recipes(
    plan: ValidationSplit,
    n_classes: int,
    template: Any,
    names: Sequence[str] | None,
    allow_missing: bool,
    seed: int,
    shape: TreeShape | None,
) -> list[_F0Recipe]:
    """List what to try; `shape`: that of boosted trees, once it is known."""
    if template is not None:
        kind = type(template).__name__
        wanted = names if _finds_by_name(template) else None
        fit = _estimator_fit(plan, n_classes, "given", template, wanted)
        return [_F0Recipe(kind, partial(_cross_fitted, fit))]
    large, many = (len(plan.fit_rows) > n for n in (LARGE_ROWS, MANY_ROWS))
    boosting = partial(_boosting, n_classes, seed, shape)
    tried_first = many and len(plan.folds) == 1
    recipes = [_F0Recipe("boosting", boosting, boosting if tried_first else None)]
    if not large:
        random = partial(_boosted, n_classes, seed, RANDOM_THRESHOLDS)
        recipes.append(_F0Recipe("random boosting", random))
    if not allow_missing:
        forest = partial(_forest, n_classes, seed, TREES[large + many])
        trial = partial(_forest_trial, n_classes, seed) if large else None
        recipes.append(_F0Recipe("extra-trees", forest, trial))
        smallest = np.bincount(plan.y[plan.fit_rows]).min()
        even = np.ptp(plan.weight) == 0  # a scaler before the SVM could not see weights
        few = len(plan.fit_rows) <= SVM_ROWS and smallest >= 2 * len(plan.folds)
        if few and even and _has_halves(plan):
            for name, scaler in _scalers():
                svm = _calibrated_svm(scaler)
                fit = _estimator_fit(plan, n_classes, "svm", svm)
                recipes.append(_F0Recipe(f"svm on {name}", partial(_cross_fitted, fit)))
    return recipes


def _halves(plan: ValidationSplit, rows: Rows) -> tuple[tuple[Rows, Rows], ...] | None:
    """Two folds of some rows, for a model that is calibrated inside its fit; None: any two."""
    block = plan.splitter.take(rows).blocks(0)
    if block is None:
        return None
    half = block % 2
    even, odd = np.flatnonzero(half == 0), np.flatnonzero(half == 1)
    return (even, odd), (odd, even)


def _has_halves(plan: ValidationSplit) -> bool:
    """Whether the halves of every fit have rows of every class."""
    for rows in (plan.fit_rows, *(rows for rows, _ in plan.folds)):
        y = plan.y[rows]
        for half, _ in _halves(plan, rows) or ():
            if len(np.unique(y[half])) < len(np.unique(y)):
                return False
    return True


def _scalers() -> list[tuple[str, Any]]:
    from sklearn.preprocessing import MinMaxScaler, StandardScaler

    return [("standard scores", StandardScaler()), ("unit ranges", MinMaxScaler())]


# -- a given model -------------------------------------------------------------------------

CHANCE = 0.05
"""Probability at most that an excess over the reference is chance, for it to be called memory."""


def can_be_cloned(estimator: Any) -> bool:
    """Whether a fitted classifier has unfitted clones: nothing in it is frozen."""
    if not hasattr(estimator, "fit") or not hasattr(estimator, "get_params"):
        return False
    parts = [estimator, *estimator.get_params(deep=True).values()]
    return not any(type(part).__name__ == "FrozenEstimator" for part in parts)


def unseen_answers(
    plan: ValidationSplit,
    estimator: Any,
    classes: NDArray[Any],
    x_calibration: NDArray[np.float32] | None,
    *,
    n_jobs: int | None = None,
    report: Callable[[str], None] = lambda _what: None,
) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.int64] | None]:
    """Get answers of clones of a fitted classifier that have not seen the rows.

    Shapes: `classes` (n_classes,) the data's labels, `x_calibration` (n_calibration, n_features);
    returns `labels` (n_validation,), `probabilities` (n_validation, n_classes), those of the
    validation rows, and `calibration_labels` (n_calibration,).
    """
    parts = [rows for rows, _ in plan.folds]
    if x_calibration is not None and len(parts) > 1:
        parts.append(plan.fit_rows)
    parallel = joblib.Parallel(n_jobs=n_jobs, return_as="generator")
    models = []
    for model in parallel(joblib.delayed(_clone)(plan, estimator, classes, p) for p in parts):
        models.append(model)
        report(f"out-of-fold predictions of high_cost_model, {len(models)} of {len(parts)}")
    found = [m.answers(plan.x[rows]) for m, (_, rows) in zip(models, plan.folds, strict=False)]
    aside = None if x_calibration is None else models[-1].labels(x_calibration)
    return (
        np.concatenate([label for label, _ in found]),
        np.concatenate([chances for _, chances in found]),
        aside,
    )


def _clone(
    plan: ValidationSplit, estimator: Any, classes: NDArray[Any], rows: Rows
) -> HighCostModel:
    """Fit a clone as the user fitted the original: on the data's labels and column names."""
    from sklearn.base import clone

    x, fresh = named_rows(estimator, plan.x[rows]), clone(estimator)
    fresh.fit(x, classes[plan.y[rows]], **_weights(plan, fresh, rows))
    return HighCostModel.given(fresh, classes, plan.x.shape[1])


def _weights(plan: ValidationSplit, estimator: Any, rows: Rows) -> dict[str, Any]:
    """Weights of rows for a fit, where they differ; a pipeline's last step gets them."""
    from sklearn.utils.validation import has_fit_parameter

    weight, prefix, last = plan.weight[rows], "", estimator
    while hasattr(last, "steps"):
        step, last = last.steps[-1]
        prefix += f"{step}__"
    if np.ptp(weight) == 0:
        return {}
    if not has_fit_parameter(last, "sample_weight"):
        warnings.warn(
            f"{type(last).__name__} takes no sample_weight: the high-cost model is fitted as if "
            "all rows and classes counted alike",
            stacklevel=2,
        )
        return {}
    return {f"{prefix}sample_weight": weight}


def memorised(
    plan: ValidationSplit, answers: NDArray[np.int64], *, allow_missing: bool, seed: int
) -> tuple[float, float] | None:
    """Compare a model that may have seen the rows with references that have not.

    The references are extra-trees and, on few rows, an RBF-SVM. Returns the accuracies of the model
    and of the best reference on the validation rows if the model's is higher by more than chance
    (a one-sided sign test of the rows on which just one is right; where rows have groups, a test of
    these), else None.

    Shapes: `answers` (n_validation,) class indices.
    """
    from scipy.stats import binomtest, norm
    from sklearn.ensemble import ExtraTreesClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.svm import SVC

    kinds: list[Any] = [ExtraTreesClassifier(100, random_state=seed)]
    if not allow_missing and len(plan.fit_rows) <= LARGE_ROWS:
        kinds += [make_pipeline(scaler, SVC(C=10.0)) for _, scaler in _scalers()]
    y = plan.y[plan.validation_rows]
    best = np.zeros(len(y), bool)
    splitter = plan.splitter.take(plan.validation_rows)
    for kind in kinds:
        found = [
            kind.fit(plan.x[rows], plan.y[rows]).predict(plan.x[unseen])
            for rows, unseen in plan.folds
        ]
        right = np.concatenate(found) == y
        best = right if right.sum() > best.sum() else best
    model = answers == y
    better, worse = int((model & ~best).sum()), int((best & ~model).sum())
    if better <= worse:
        return None
    if splitter.n_groups is not None:  # its error is that of a normal distribution already
        gain = model.astype(float) - best
        error = splitter.clustered_error((gain - gain.mean()) / len(gain))
        pvalue = float(norm.sf(gain.mean() / max(error, 1e-12)))
    else:
        pvalue = binomtest(better, better + worse, alternative="greater").pvalue
    if pvalue > CHANCE:
        return None
    return float(model.mean()), float(best.mean())


def _calibrated_svm(scaler: Any) -> Any:
    from sklearn.calibration import CalibratedClassifierCV
    from sklearn.pipeline import make_pipeline
    from sklearn.svm import SVC

    machine = make_pipeline(scaler, SVC(C=10.0, gamma="scale"))
    return CalibratedClassifierCV(machine, ensemble=False, cv=2)


def _boosting_fit(plan: ValidationSplit, n_classes: int, params: dict[str, Any], seed: int) -> Fit:
    def fit(rows: Rows, unseen: Rows | None, rounds: int | None) -> HighCostModel:
        trees, kept = fit_boosting(
            plan.x[rows],
            plan.y[rows],
            n_classes,
            weight=plan.weight[rows],
            validation=None if unseen is None else (plan.x[unseen], *plan.truth(unseen)),
            rounds=rounds or 600,
            seed=seed,
            params=params,
        )
        every = np.arange(plan.x.shape[1])
        return HighCostModel(every, n_classes, "boosting", trees=trees, rounds=kept)

    return fit


def _forest_fit(plan: ValidationSplit, n_classes: int, n_trees: int, seed: int) -> Fit:
    def fit(rows: Rows, unseen: Rows | None, rounds: int | None) -> HighCostModel:
        x, y, weight = plan.x[rows], plan.y[rows], plan.weight[rows]
        trees = fit_extra_trees(x, y, n_classes, weight=weight, n_trees=n_trees, seed=seed)
        return HighCostModel(np.arange(x.shape[1]), n_classes, "extra-trees", trees=trees)

    return fit


def _finds_by_name(template: Any) -> bool:
    """Whether a ColumnTransformer in a classifier names its columns, or selects them."""
    parts = [template, *template.get_params(deep=True).values()]
    transformers = [p.transformers for p in parts if type(p).__name__ == "ColumnTransformer"]
    wanted = [columns for each in transformers for *_, columns in each]
    return any(
        callable(columns) or any(isinstance(one, str) for one in np.ravel(columns).tolist())
        for columns in wanted
    )


def _estimator_fit(
    plan: ValidationSplit,
    n_classes: int,
    kind: str,
    template: Any,
    names: Sequence[str] | None = None,
) -> Fit:
    from sklearn.base import clone

    def fit(rows: Rows, unseen: Rows | None, rounds: int | None) -> HighCostModel:
        x: Any = plan.x[rows]
        y = plan.y[rows]
        if names is not None:
            import pandas as pd

            x = pd.DataFrame(x, columns=list(names))
        estimator = clone(template)
        if kind == "svm" and (halves := _halves(plan, rows)) is not None:
            estimator.set_params(cv=halves)
        estimator.fit(x, y, **_weights(plan, template, rows))
        if needs_backend(template):
            return HighCostModel.given(estimator, np.arange(n_classes), x.shape[1])
        lookup = np.asarray(estimator.classes_, np.int64)
        every = np.arange(x.shape[1])
        return HighCostModel(every, n_classes, kind, estimator=estimator, lookup=lookup)

    return fit
