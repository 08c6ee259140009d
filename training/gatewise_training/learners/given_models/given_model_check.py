"""Estimates of the accuracy of a given high-cost model on rows that it has not seen.

On rows that a model was fitted on, its accuracy is too high. The accuracy of a given classifier is
therefore measured with clones that are fitted without these rows. For a model that cannot be
cloned, reference models show the accuracy that can be expected.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import joblib
import numpy as np
from numpy.typing import NDArray

from gatewise_training.data.input_checks import named_rows
from gatewise_training.data.parallel_fits import parallel_results
from gatewise_training.data.row_splitter import RowSplitter
from gatewise_training.data.validation_split import Rows, ValidationSplit
from gatewise_training.learners.boosting import MAX_SMALL_ROWS
from gatewise_training.learners.given_models.estimator_fits import (
    fit_clone,
    scalers,
    unfitted_clone,
)
from gatewise_training.learners.high_cost_model import HighCostModel

#: Up to this p-value, an accuracy above that of the reference models is taken as a sign that the
#: model has seen the rows.
MAX_PVALUE = 0.05


def can_be_cloned(estimator: Any) -> bool:
    """Whether a fitted classifier can be cloned and refitted; a frozen part prevents it."""
    from sklearn.frozen import FrozenEstimator

    if not hasattr(estimator, "fit") or not hasattr(estimator, "get_params"):
        return False
    try:
        unfitted_clone(estimator)
    except Exception:  # a constructor of the user may raise anything
        return False
    estimators = [estimator, *estimator.get_params(deep=True).values()]
    return not any(isinstance(inner, FrozenEstimator) for inner in estimators)


def unseen_answers(
    split: ValidationSplit,
    estimator: Any,
    classes: NDArray[Any],
    x_calibration: NDArray[np.float32] | None,
    *,
    report_step: Callable[[str], None] = lambda _step_name: None,
) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.int64] | None]:
    """Predict validation and calibration rows by clones that have not seen them.

    Shapes: `classes` (n_classes,), labels of the data, `x_calibration` (n_calibration, n_features).
    Returns labels (n_validation,) and probabilities (n_validation, n_classes) of the validation
    rows, and labels (n_calibration,) of the calibration rows. Labels are class indices.
    """
    # the final model is needed for the calibration rows only
    n_folds = len(split.folds)
    training_rows = split.rows_of_all_fits[: n_folds if x_calibration is None else None]
    models = []
    fits = (joblib.delayed(_fit_clone_on)(estimator, classes, rows) for rows in training_rows)
    for model in parallel_results(fits, shared_data=split):
        models.append(model)
        report_step(
            f"out-of-fold predictions of high_cost_model, {len(models)} of {len(training_rows)}"
        )
    answers = [
        model.answers(split.x[rows]) for model, (_, rows) in zip(models, split.folds, strict=False)
    ]
    calibration_labels = None if x_calibration is None else models[-1].labels(x_calibration)
    return (
        np.concatenate([labels for labels, _ in answers]),
        np.concatenate([probabilities for _, probabilities in answers]),
        calibration_labels,
    )


def _fit_clone_on(
    split: ValidationSplit, estimator: Any, classes: NDArray[Any], rows: Rows
) -> HighCostModel:
    """Fit a clone on some rows, with the labels and column names that the user's fit had."""
    x = named_rows(estimator, split.x[rows])
    fitted_clone = fit_clone(estimator, x, classes[split.y[rows]], split.weight[rows])
    return HighCostModel.from_model(fitted_clone, classes, split.x.shape[1])


class SuspiciousAccuracy(NamedTuple):
    """Accuracy of a model that has probably seen the rows, and of the best reference model."""

    of_model: float
    of_reference: float


def find_suspicious_accuracy(
    split: ValidationSplit, predicted_labels: NDArray[np.int64], *, allow_missing: bool, seed: int
) -> SuspiciousAccuracy | None:
    """Compare a model that may have seen the rows with reference models that have not.

    The references are extra-trees and, on few rows, RBF-SVMs. If the accuracy of the model on the
    validation rows is not significantly higher than the accuracy of the best reference, the result
    is None. The test is a one-sided sign test on the rows for which only one of the two is right.
    If rows have groups, the mean difference is tested with a standard error that is clustered by
    group.

    Shapes: `predicted_labels` (n_validation,), class indices.
    """
    from sklearn.ensemble import ExtraTreesClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.svm import SVC

    references: list[Any] = [ExtraTreesClassifier(100, random_state=seed)]
    if not allow_missing and len(split.fit_rows) <= MAX_SMALL_ROWS:
        references += [make_pipeline(scaler, SVC(C=10.0)) for _, scaler in scalers()]
    y = split.y[split.validation_rows]
    reference_is_correct = np.zeros(len(y), bool)
    splitter = split.splitter.take(split.validation_rows)
    for reference in references:
        predictions = [
            reference.fit(split.x[rows], split.y[rows]).predict(split.x[unseen_rows])
            for rows, unseen_rows in split.folds
        ]
        is_correct = np.concatenate(predictions) == y
        if is_correct.sum() > reference_is_correct.sum():
            reference_is_correct = is_correct
    model_is_correct = predicted_labels == y
    if _compute_pvalue(model_is_correct, reference_is_correct, splitter) > MAX_PVALUE:
        return None
    return SuspiciousAccuracy(float(model_is_correct.mean()), float(reference_is_correct.mean()))


def _compute_pvalue(
    model_is_correct: NDArray[np.bool_],
    reference_is_correct: NDArray[np.bool_],
    splitter: RowSplitter,
) -> float:
    """Compute the p-value of the hypothesis that the model is not better than the reference."""
    from scipy.stats import binomtest, norm

    n_better = int((model_is_correct & ~reference_is_correct).sum())
    n_worse = int((reference_is_correct & ~model_is_correct).sum())
    if n_better <= n_worse:
        return 1.0
    # a test of the mean difference of the groups, or a sign test of the rows
    if splitter.n_groups is not None:
        correctness_difference = model_is_correct.astype(float) - reference_is_correct
        mean_difference = correctness_difference.mean()
        standard_error = splitter.clustered_error(
            (correctness_difference - mean_difference) / len(correctness_difference)
        )
        # the error is 0 if all groups have the same difference
        return float(norm.sf(mean_difference / max(standard_error, 1e-12)))
    return float(binomtest(n_better, n_better + n_worse, alternative="greater").pvalue)
