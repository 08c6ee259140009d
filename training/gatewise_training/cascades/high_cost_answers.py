"""Answers of the high-cost model on rows that it has not seen.

A model that is trained here gives out-of-fold answers. A fitted model may have seen the rows. It is
measured on the user's validation rows, by the user's out-of-fold predictions, or by clones that are
fitted without the rows. If it cannot be cloned, it is compared with models of our own.
"""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from gatewise.errors import InputError, one_line
from gatewise_training.cascades.fit_problem import Problem, UnseenAnswers
from gatewise_training.cascades.fitting import ClassifierFit
from gatewise_training.data.input_checks import Table
from gatewise_training.learners.given_models.given_classifiers import check_conversion
from gatewise_training.learners.given_models.given_model_check import (
    can_be_cloned,
    excess_accuracy,
    unseen_answers,
)
from gatewise_training.learners.high_cost_model import HighCostModel
from gatewise_training.learners.high_cost_training import train_high_cost_model

WARNING_LEVEL = 7
"""Stack level of a warning of this module that names the caller of `fit`."""


def trained_answers(system: ClassifierFit, problem: Problem, table: Table) -> UnseenAnswers:
    """Train a high-cost model, or fit clones of the unfitted one that is given."""
    if table.high_cost is not None:
        raise InputError(
            "high_cost_predictions are the answers of a fitted high_cost_model: give it as well"
        )
    problem.report(0, 1, "high-cost model")
    trained = train_high_cost_model(
        problem.cloud_plan,
        problem.n_classes,
        template=system._high_cost_model,
        names=getattr(system, "feature_names_in_", None),
        allow_missing=system.allow_missing,
        seed=problem.seed,
        report=lambda what: problem.report(0, 1, what),
    )
    if system.high_cost_model is not None and trained.model.estimator is not None:
        check_conversion(trained.model, problem.cloud_plan.x, missing=system.allow_missing)
    return UnseenAnswers(
        trained.model, trained.labels, trained.probabilities, tree_shape=trained.shape
    )


def given_answers(system: ClassifierFit, problem: Problem, table: Table) -> UnseenAnswers:
    """Get answers of a given model on rows that it has not seen; it is never refitted."""
    plan = problem.cloud_plan
    model = HighCostModel.given(
        system._high_cost_model,
        system.classes_,
        plan.x.shape[1],
        getattr(system, "feature_names_in_", None),
        system.signal_input_.shape if system._reads_windows else None,
    )
    if model.estimator is not None:
        check_conversion(model, plan.x, missing=system.allow_missing)
    # by predictions, by validation rows, by clones, or else by comparison
    if table.high_cost is not None:
        return _by_predictions(model, problem, table, table.high_cost)
    if table.validation is not None:
        return UnseenAnswers(model, *model.answers(plan.x[plan.validation_rows]))
    if not can_be_cloned(system._high_cost_model):
        return _by_comparison(system, model, problem, "it cannot be cloned")
    try:
        return _by_clones(system, model, problem)
    except Exception as error:  # a fit of the user's classifier may raise anything
        reason = f"clones of it cannot be fitted ({one_line(error)})"
    return _by_comparison(system, model, problem, reason)


def _by_predictions(
    model: HighCostModel, problem: Problem, table: Table, predictions: NDArray[np.float64]
) -> UnseenAnswers:
    """Take the user's out-of-fold probabilities of the training rows."""
    plan = problem.cloud_plan
    rows = plan.validation_rows
    if table.validation is not None:
        labels, of_validation = model.answers(plan.x[len(table.x) :])
        predictions = np.concatenate([predictions, of_validation])
    else:
        labels = np.asarray(predictions[rows].argmax(axis=1), np.int64)
    calibration = problem.calibration
    calibration_labels = None
    if calibration is not None and calibration.high_cost is not None:
        calibration_labels = np.asarray(calibration.high_cost.argmax(axis=1), np.int64)
    return UnseenAnswers(model, labels, predictions[rows], predictions, calibration_labels)


def _by_clones(system: ClassifierFit, model: HighCostModel, problem: Problem) -> UnseenAnswers:
    """Take the answers of clones that are fitted without the rows and without class weights."""
    plan = problem.cloud_plan
    if system.class_weights_ is not None:
        plan = replace(plan, weight=plan.weight / system.class_weights_[plan.y])
    labels, chances, calibration_labels = unseen_answers(
        plan,
        system._high_cost_model,
        system.classes_,
        problem.cloud_calibration,
        report=lambda what: problem.report(0, 1, what),
    )
    row_chances = None
    if len(plan.folds) > 1:
        row_chances = np.empty_like(chances)
        row_chances[plan.validation_rows] = chances
    return UnseenAnswers(model, labels, chances, row_chances, calibration_labels)


def _by_comparison(
    system: ClassifierFit, model: HighCostModel, problem: Problem, reason: str
) -> UnseenAnswers:
    """Take the model's own answers; warn if only memory explains their accuracy."""
    plan = problem.cloud_plan
    rows = plan.validation_rows
    all_labels, chances = model.answers(plan.x)
    labels = all_labels[rows]
    problem.report(0, 1, "reference for high_cost_model")
    excess = excess_accuracy(plan, labels, allow_missing=system.allow_missing, seed=problem.seed)
    if excess is not None:
        warnings.warn(
            f"high_cost_model is right on {excess[0]:.1%} of these rows, the best of our own "
            f"models, on rows that it has not seen, on {excess[1]:.1%}: it may remember "
            f"them, and {reason}. Then all accuracies here are too high, and too little is "
            "answered on the device. Give rows that it has not seen, validation=(X_val, "
            "y_val), or its out-of-fold probabilities, high_cost_predictions=",
            UserWarning,
            stacklevel=WARNING_LEVEL,
        )
    return UnseenAnswers(model, labels, chances[rows], chances)
