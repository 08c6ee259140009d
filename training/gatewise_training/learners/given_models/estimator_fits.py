"""Fits of scikit-learn classifiers as high-cost models: given classifiers and a calibrated SVM."""

from __future__ import annotations

import copy
import inspect
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone

from gatewise.errors import InputError, warn_caller
from gatewise_training.data.validation_split import Rows, ValidationSplit
from gatewise_training.learners.given_models.packable import find_estimators, library_of

#: Options of boosters with a constraint for each column.
CONSTRAINT_OPTIONS = ("monotonic_cst", "monotone_constraints")


def selects_by_name(template: Any) -> bool:
    """Whether a classifier, or a part of it, selects columns by their names."""
    estimators = list(find_estimators(template))
    column_lists = [
        columns
        for estimator in estimators
        if type(estimator).__name__ == "ColumnTransformer"
        for *_, columns in estimator.transformers
    ]
    # boosters name the columns of constraints by the keys of a dict
    column_lists += [
        list(value)
        for estimator in estimators
        for option, value in estimator.get_params(deep=False).items()
        if option in CONSTRAINT_OPTIONS and isinstance(value, dict)
    ]
    return any(callable(columns) or _has_names(columns) for columns in column_lists)


def _has_names(columns: Any) -> bool:
    """Whether columns, given as a ColumnTransformer accepts them, are given by their names."""
    if isinstance(columns, slice):
        columns = [columns.start, columns.stop]
    return any(isinstance(column, str) for column in np.ravel(columns).tolist())


def labels_to_fit(template: Any, classes: NDArray[Any]) -> NDArray[Any]:
    """Get the label of each class for fits of a classifier, (n_classes,).

    Its `class_weight` may name the labels of the data, `classes`. XGBoost takes class indices only.
    """
    class_indices = np.arange(len(classes))
    takes_indices = any(
        library_of(estimator) == "xgboost" for estimator in find_estimators(template)
    )
    is_same = np.array_equal(classes, class_indices)  # also for booleans, and for whole floats
    return class_indices if takes_indices or is_same else classes


def unfitted_clone(template: Any) -> Any:
    """Make an unfitted copy of a classifier."""
    if library_of(template) == "catboost":  # it copies lists and dicts, which `clone` refuses
        return type(template)(**copy.deepcopy(template.get_params()))
    return clone(template)


def fit_clone(template: Any, x: Any, y: Any, weight: NDArray[np.float64] | None = None) -> Any:
    """Fit a clone of a given classifier; raise InputError if it refuses the rows.

    Rows get their `weight`, (n,), unless all are equal. A classifier that refuses weights is fitted
    without them, with a warning.
    """
    weights = {}
    # 1e-9 allows for rounding, as class weights may have been multiplied and divided
    if weight is not None and np.ptp(weight) > 1e-9 * weight.max():
        weights = _weight_arguments(template, weight)
    try:
        return unfitted_clone(template).fit(x, y, **weights)
    except Exception as error:  # a fit of the user's classifier may raise anything
        problem = str(error).partition("\n")[0].rstrip(".")
        if weights:
            estimator = fit_clone(template, x, y)
            _warn_of_equal_weights(f"{type(template).__name__} refuses sample_weight ({problem})")
            return estimator
        if "early stopping" in problem.lower():  # this fit has no eval_set
            problem += (
                "; leave out early stopping, or give the fitted model and validation=(X_val, y_val)"
            )
        raise InputError(f"{type(template).__name__} cannot be fitted: {problem}") from error


def _weight_arguments(estimator: Any, weight: NDArray[np.float64]) -> dict[str, Any]:
    """Make the keyword arguments that pass weights to a fit, in a pipeline to its last step.

    Ensembles and searches pass further arguments of their fit to the classifiers in them.
    """
    argument_prefix = ""
    last_step = estimator
    while hasattr(last_step, "steps"):
        step, last_step = last_step.steps[-1]
        argument_prefix += f"{step}__"
    parameters = inspect.signature(last_step.fit).parameters
    if "sample_weight" in parameters or any(
        parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()
    ):
        return {f"{argument_prefix}sample_weight": weight}
    _warn_of_equal_weights(f"{type(last_step).__name__} takes no sample_weight")
    return {}


def _warn_of_equal_weights(reason: str) -> None:
    warn_caller(f"{reason}: it is fitted with equal weights of all rows and classes")


def calibrated_svm(scaler: Any) -> Any:
    """Make an RBF-SVM after a scaler, with probabilities calibrated by Platt's sigmoid."""
    from sklearn.calibration import CalibratedClassifierCV
    from sklearn.pipeline import make_pipeline
    from sklearn.svm import SVC

    svm = make_pipeline(scaler, SVC(C=10.0, gamma="scale"))
    return CalibratedClassifierCV(svm, ensemble=False, cv=2)


def split_into_halves(split: ValidationSplit, rows: Rows) -> tuple[tuple[Rows, Rows], ...] | None:
    """Make two folds of some rows, by which a model calibrates itself in its fit.

    The result is None if the rows are independent, because any two folds may then be used.
    """
    fold_of_row = split.splitter.take(rows).inner_folds(0)
    if fold_of_row is None:
        return None
    even_rows = np.flatnonzero(fold_of_row % 2 == 0)
    odd_rows = np.flatnonzero(fold_of_row % 2 == 1)
    return (even_rows, odd_rows), (odd_rows, even_rows)


def has_halves(split: ValidationSplit) -> bool:
    """Whether both halves of the rows of every fit have all classes."""
    for rows in (split.fit_rows, *(rows for rows, _ in split.folds)):
        y = split.y[rows]
        for half_rows, _ in split_into_halves(split, rows) or ():
            if len(np.unique(y[half_rows])) < len(np.unique(y)):
                return False
    return True


def scalers() -> list[tuple[str, Any]]:
    """Make the scalers to try before an SVM, with their names."""
    from sklearn.preprocessing import MinMaxScaler, StandardScaler

    return [("standard scores", StandardScaler()), ("unit ranges", MinMaxScaler())]
