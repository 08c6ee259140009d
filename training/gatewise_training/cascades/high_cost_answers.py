"""Answers of the high-cost model on rows that it has not seen.

A model that is trained here gives out-of-fold answers. A fitted model may have seen the rows. It is
measured on the user's validation rows, by the user's out-of-fold predictions, or by clones that are
fitted without the rows. If it cannot be cloned, it is compared with Gatewise's own models.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gatewise.errors import InputError, one_line, warn_caller
from gatewise_training.cascades.fit_problem import FitProblem, UnseenAnswers
from gatewise_training.cascades.fitting import ClassifierFit
from gatewise_training.data.input_checks import TrainingTable
from gatewise_training.learners.given_models.given_classifiers import check_conversion
from gatewise_training.learners.given_models.given_model_check import (
    can_be_cloned,
    find_suspicious_accuracy,
    unseen_answers,
)
from gatewise_training.learners.high_cost_model import HighCostModel
from gatewise_training.learners.high_cost_training import train_high_cost_model


def trained_answers(
    system: ClassifierFit, problem: FitProblem, table: TrainingTable
) -> UnseenAnswers:
    """Train a high-cost model, or fit the user's unfitted model."""
    if table.high_cost_probabilities is not None:
        raise InputError(
            "high_cost_predictions are the answers of a fitted high_cost_model: give it as well"
        )
    problem.report_progress(0, 1, "high-cost model")
    trained_model = train_high_cost_model(
        problem.cloud_split,
        problem.n_classes,
        template=system._high_cost_model,
        classes=system.classes_,
        names=getattr(system, "feature_names_in_", None),
        allow_missing=system.allow_missing,
        seed=problem.seed,
        report_step=lambda step_name: problem.report_progress(0, 1, step_name),
    )
    if system.high_cost_model is not None and trained_model.model.estimator is not None:
        check_conversion(
            trained_model.model, problem.cloud_split.x, allow_missing=system.allow_missing
        )
    return UnseenAnswers(
        trained_model.model,
        trained_model.labels,
        trained_model.probabilities,
        tree_shape=trained_model.shape,
    )


def given_answers(
    system: ClassifierFit, problem: FitProblem, table: TrainingTable
) -> UnseenAnswers:
    """Get answers of a given model, which is never refitted, on rows that it has not seen."""
    split = problem.cloud_split
    model = HighCostModel.from_model(
        system._high_cost_model,
        system.classes_,
        split.x.shape[1],
        getattr(system, "feature_names_in_", None),
        system.signal_input_.shape if system._cloud_reads_windows else None,
    )
    if model.estimator is not None:
        check_conversion(model, split.x, allow_missing=system.allow_missing)
    # use predictions, validation rows or clones, or else a comparison
    if table.high_cost_probabilities is not None:
        return _use_predictions(model, problem, table, table.high_cost_probabilities)
    if table.validation is not None:
        return UnseenAnswers(model, *model.answers(split.x[split.validation_rows]))
    if not can_be_cloned(system._high_cost_model):
        return _use_own_answers(system, model, problem, "it cannot be cloned")
    try:
        return _predict_by_clones(system, model, problem)
    except Exception as error:  # a fit of the user's classifier may raise anything
        clone_problem = f"clones of it cannot be fitted ({one_line(error)})"
    return _use_own_answers(system, model, problem, clone_problem)


def _use_predictions(
    model: HighCostModel,
    problem: FitProblem,
    table: TrainingTable,
    predictions: NDArray[np.float64],
) -> UnseenAnswers:
    """Use the user's out-of-fold probabilities of the training rows."""
    split = problem.cloud_split
    rows = split.validation_rows
    if table.validation is not None:
        labels, validation_predictions = model.answers(split.x[len(table.x) :])
        predictions = np.concatenate([predictions, validation_predictions])
    else:
        labels = np.asarray(predictions[rows].argmax(axis=1), np.int64)
    calibration = problem.calibration
    calibration_labels = None
    if calibration is not None and calibration.high_cost_probabilities is not None:
        calibration_labels = np.asarray(
            calibration.high_cost_probabilities.argmax(axis=1), np.int64
        )
    return UnseenAnswers(model, labels, predictions[rows], predictions, calibration_labels)


def _predict_by_clones(
    system: ClassifierFit, model: HighCostModel, problem: FitProblem
) -> UnseenAnswers:
    """Use the answers of clones that are fitted without the rows and without class weights."""
    split = problem.cloud_split.without_class_weights()
    labels, class_probabilities, calibration_labels = unseen_answers(
        split,
        system._high_cost_model,
        system.classes_,
        problem.cloud_calibration,
        report_step=lambda step_name: problem.report_progress(0, 1, step_name),
    )
    row_probabilities = None
    if len(split.folds) > 1:
        row_probabilities = np.empty_like(class_probabilities)
        row_probabilities[split.validation_rows] = class_probabilities
    return UnseenAnswers(model, labels, class_probabilities, row_probabilities, calibration_labels)


def _use_own_answers(
    system: ClassifierFit, model: HighCostModel, problem: FitProblem, clone_problem: str
) -> UnseenAnswers:
    """Use the model's own answers; warn if only memory of the rows explains their accuracy."""
    split = problem.cloud_split
    rows = split.validation_rows
    all_labels, class_probabilities = model.answers(split.x)
    labels = all_labels[rows]
    problem.report_progress(0, 1, "reference for high_cost_model")
    accuracy = find_suspicious_accuracy(
        split, labels, allow_missing=system.allow_missing, seed=problem.seed
    )
    if accuracy is not None:
        warn_caller(
            f"high_cost_model is right on {accuracy.of_model:.1%} of these rows, and the best of "
            f"Gatewise's models on {accuracy.of_reference:.1%} of rows that it has not seen: it "
            f"may remember them, and {clone_problem}. If it does, all accuracies are too high, "
            "and too few instances are answered on the device. Give rows that it has not seen, "
            "validation=(X_val, y_val), or its out-of-fold probabilities, high_cost_predictions="
        )
    return UnseenAnswers(model, labels, class_probabilities[rows], class_probabilities)
