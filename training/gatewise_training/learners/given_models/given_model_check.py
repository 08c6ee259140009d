"""Examine a given high-cost model: its accuracy on rows that it has not seen.

A model answers rows that it was fitted on partly from memory. Clones of a given classifier, fitted
without the rows, measure its real accuracy. For a model that cannot be cloned, reference models
show the accuracy that can be expected on these rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import joblib
import numpy as np
from numpy.typing import NDArray

from gatewise_training.data.input_checks import named_rows
from gatewise_training.data.parallel_fits import parallel_results
from gatewise_training.data.validation_split import Rows, ValidationSplit
from gatewise_training.learners.boosting import LARGE_ROWS
from gatewise_training.learners.given_models.estimator_fits import fit_weights, scalers
from gatewise_training.learners.high_cost_model import HighCostModel

CHANCE = 0.05
"""Largest probability of chance with which an excess over the reference is called memory."""


def can_be_cloned(estimator: Any) -> bool:
    """Whether a fitted classifier has unfitted clones: nothing in it is frozen."""
    if not hasattr(estimator, "fit") or not hasattr(estimator, "get_params"):
        return False
    estimators = [estimator, *estimator.get_params(deep=True).values()]
    return not any(type(inner).__name__ == "FrozenEstimator" for inner in estimators)


def unseen_answers(
    plan: ValidationSplit,
    estimator: Any,
    classes: NDArray[Any],
    x_calibration: NDArray[np.float32] | None,
    *,
    report: Callable[[str], None] = lambda _what: None,
) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.int64] | None]:
    """Get answers of clones of a fitted classifier that have not seen the rows.

    Shapes: `classes` (n_classes,) the data's labels, `x_calibration` (n_calibration, n_features).
    Returns, of the validation rows, `labels` (n_validation,) and `probabilities` (n_validation,
    n_classes), and of the calibration rows `calibration_labels` (n_calibration,).
    """
    training_rows = [rows for rows, _ in plan.folds]
    if x_calibration is not None and len(training_rows) > 1:
        training_rows.append(plan.fit_rows)
    models = []
    fits = (joblib.delayed(_clone)(estimator, classes, rows) for rows in training_rows)
    for model in parallel_results(fits, shared=plan):
        models.append(model)
        report(f"out-of-fold predictions of high_cost_model, {len(models)} of {len(training_rows)}")
    answers = [m.answers(plan.x[rows]) for m, (_, rows) in zip(models, plan.folds, strict=False)]
    calibration_labels = None if x_calibration is None else models[-1].labels(x_calibration)
    return (
        np.concatenate([label for label, _ in answers]),
        np.concatenate([chances for _, chances in answers]),
        calibration_labels,
    )


def _clone(
    plan: ValidationSplit, estimator: Any, classes: NDArray[Any], rows: Rows
) -> HighCostModel:
    """Fit a clone as the user fitted the original: on the data's labels and column names."""
    from sklearn.base import clone

    x = named_rows(estimator, plan.x[rows])
    fresh = clone(estimator)
    fresh.fit(x, classes[plan.y[rows]], **fit_weights(plan, fresh, rows))
    return HighCostModel.given(fresh, classes, plan.x.shape[1])


def excess_accuracy(
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
        kinds += [make_pipeline(scaler, SVC(C=10.0)) for _, scaler in scalers()]
    y = plan.y[plan.validation_rows]
    best_is_right = np.zeros(len(y), bool)
    splitter = plan.splitter.take(plan.validation_rows)
    for kind in kinds:
        predictions = [
            kind.fit(plan.x[rows], plan.y[rows]).predict(plan.x[unseen])
            for rows, unseen in plan.folds
        ]
        is_right = np.concatenate(predictions) == y
        best_is_right = is_right if is_right.sum() > best_is_right.sum() else best_is_right
    model_is_right = answers == y
    better = int((model_is_right & ~best_is_right).sum())
    worse = int((best_is_right & ~model_is_right).sum())
    if better <= worse:
        return None
    # the sign test of the rows, or a test of the groups' mean difference
    if splitter.n_groups is not None:  # its error is that of a normal distribution already
        gain = model_is_right.astype(float) - best_is_right
        error = splitter.clustered_error((gain - gain.mean()) / len(gain))
        pvalue = float(norm.sf(gain.mean() / max(error, 1e-12)))
    else:
        pvalue = binomtest(better, better + worse, alternative="greater").pvalue
    if pvalue > CHANCE:
        return None
    return float(model_is_right.mean()), float(best_is_right.mean())
