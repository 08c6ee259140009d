"""Train the high-cost model f0 when none is given: the best of several kinds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import joblib
import numpy as np
from numpy.typing import NDArray

from gatewise_training.data.validation_split import Rows, ValidationSplit, cross_fit
from gatewise_training.learners.boosting import (
    LARGE_ROWS,
    RANDOM_THRESHOLDS,
    capacity,
    fit_boosting,
)
from gatewise_training.learners.high_cost_model import HighCostModel

__all__ = ["train_high_cost_model"]

Fit = Callable[[Rows, Rows | None, int | None], HighCostModel]

SVM_ROWS = 16000
"""Above this many rows the kernel machine, quadratic in them, is not tried."""

TREES, TRIAL_TREES = 300, 50
"""Trees of extra-trees; on many rows a few of them are tried first."""

NEAR = 0.01
"""They are if the few are that close to the best accuracy."""


def train_high_cost_model(
    plan: ValidationSplit,
    n_classes: int,
    *,
    template: Any = None,
    allow_missing: bool = False,
    seed: int = 0,
    n_jobs: int | None = None,
    report: Callable[[str], None] = lambda _what: None,
) -> tuple[HighCostModel, NDArray[np.int64], NDArray[np.float64]]:
    """Train f0: the most accurate, on validation rows, of the families that fit the data.

    Boosted trees always, up to 5,000 rows with random thresholds too; extra-trees and an
    RBF-SVM (calibrated by Platt's sigmoid) unless values may be missing, the SVM up to 16,000
    rows. Or else clones of `template`, an unfitted scikit-learn classifier.

    Shapes: returns `labels` (n_validation,), `probabilities` (n_validation, n_classes).
    """
    y, weight = plan.y[plan.validation_rows], plan.weight[plan.validation_rows]
    tried: list[_CrossFitted] = []
    right: list[float] = []

    def cross_fit_all(fits: list[tuple[str, Fit]]) -> None:
        parallel = joblib.Parallel(n_jobs=n_jobs, return_as="generator")
        results = parallel(joblib.delayed(_cross_fitted)(plan, fit) for _, fit in fits)
        for (kind, _), result in zip(fits, results, strict=True):
            report(f"high-cost model: {kind}")
            tried.append(result)
            right.append(float(np.average(result[1] == y, weights=weight)))

    recipes = _recipes(plan, n_classes, template, allow_missing, seed)
    cross_fit_all([(recipe.kind, recipe.trial or recipe.fit) for recipe in recipes])
    near = max(right) - NEAR
    tries = zip(recipes, right.copy(), strict=True)
    cross_fit_all([(r.kind, r.fit) for r, accuracy in tries if r.trial and accuracy >= near])
    return tried[int(np.argmax(right))]


_CrossFitted = tuple[HighCostModel, NDArray[np.int64], NDArray[np.float64]]


@dataclass(frozen=True)
class _F0Recipe:
    """One kind of model, and perhaps a cheap trial of whether it is worth its fit."""

    kind: str
    fit: Fit
    trial: Fit | None = None


def _cross_fitted(plan: ValidationSplit, fit: Fit) -> _CrossFitted:
    def answers(model: HighCostModel, rows: Rows) -> NDArray[np.float64]:
        return np.column_stack([model.labels(plan.x[rows]), model.predict_proba(plan.x[rows])])

    model, unseen = cross_fit(plan, fit, answers)
    return model, unseen[:, 0].astype(np.int64), unseen[:, 1:]


def _recipes(
    plan: ValidationSplit, n_classes: int, template: Any, allow_missing: bool, seed: int
) -> list[_F0Recipe]:
    if template is not None:
        kind = type(template).__name__
        return [_F0Recipe(kind, _estimator_fit(plan, n_classes, "given", template))]
    params = capacity(len(plan.fit_rows), n_classes)
    recipes = [_F0Recipe("boosting", _boosting_fit(plan, n_classes, params, seed))]
    large = len(plan.fit_rows) > LARGE_ROWS
    if not large:
        params = params | RANDOM_THRESHOLDS
        recipes.append(_F0Recipe("random boosting", _boosting_fit(plan, n_classes, params, seed)))
    if not allow_missing:
        from sklearn.ensemble import ExtraTreesClassifier

        some, many = (
            _estimator_fit(
                plan, n_classes, "extra-trees", ExtraTreesClassifier(n, random_state=seed)
            )
            for n in (TRIAL_TREES, TREES)
        )
        recipes.append(_F0Recipe("extra-trees", many, some if large else None))
        smallest = np.bincount(plan.y[plan.fit_rows]).min()
        even = np.ptp(plan.weight) == 0  # a scaler before the SVM could not see weights
        if len(plan.fit_rows) <= SVM_ROWS and smallest >= 2 * len(plan.folds) and even:
            for name, scaler in _scalers():
                svm = _calibrated_svm(scaler)
                fit = _estimator_fit(plan, n_classes, "svm", svm)
                recipes.append(_F0Recipe(f"svm on {name}", fit))
    return recipes


def _scalers() -> list[tuple[str, Any]]:
    from sklearn.preprocessing import MinMaxScaler, StandardScaler

    return [("standard scores", StandardScaler()), ("unit ranges", MinMaxScaler())]


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
            validation=None if unseen is None else (plan.x[unseen], plan.y[unseen]),
            rounds=rounds or 600,
            seed=seed,
            params=params,
        )
        every = np.arange(plan.x.shape[1])
        return HighCostModel(every, n_classes, "boosting", trees=trees, rounds=kept)

    return fit


def _estimator_fit(plan: ValidationSplit, n_classes: int, kind: str, template: Any) -> Fit:
    from sklearn.base import clone
    from sklearn.utils.validation import has_fit_parameter

    def fit(rows: Rows, unseen: Rows | None, rounds: int | None) -> HighCostModel:
        x, y, weight = plan.x[rows], plan.y[rows], plan.weight[rows]
        weighted = np.ptp(weight) > 0 and has_fit_parameter(template, "sample_weight")
        estimator = clone(template).fit(x, y, **({"sample_weight": weight} if weighted else {}))
        lookup = np.asarray(estimator.classes_, np.int64)
        every = np.arange(x.shape[1])
        return HighCostModel(every, n_classes, kind, estimator=estimator, lookup=lookup)

    return fit
