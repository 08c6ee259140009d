"""Checks of an estimator's input: parameters, tables, labels, weights, prices.

Features are float32 from here on. A device computes in float32, and a model trained in float64
flips up to 4 % of its decisions there on data with a large offset.
"""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import NotFittedError
from sklearn.utils._param_validation import (
    Interval,
    InvalidParameterError,
    validate_parameter_constraints,
)
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from gatewise.costs import FeatureCosts
from gatewise.errors import InputError

__all__ = [
    "AT_LEAST_1",
    "NOT_NEGATIVE",
    "Constraints",
    "Table",
    "check_classes",
    "check_costs",
    "check_parameters",
    "check_rows",
    "check_training",
    "check_values",
    "feature_names",
    "is_fitted",
]

Constraints = dict[str, list[Any]]
"""What values each parameter of an estimator takes, in scikit-learn's terms."""

AT_LEAST_1 = Interval(Integral, 1, None, closed="left")
NOT_NEGATIVE = Interval(Real, 0, np.inf, closed="left")


@dataclass(frozen=True, eq=False)
class Table:
    """Checked training data."""

    x: NDArray[np.float32]  # (n, n_features)
    y: NDArray[np.int64]  # (n,): class indices
    classes: NDArray[Any]  # (n_classes,): the labels, sorted
    weight: NDArray[np.float64]  # (n,): of mean 1; rows of weight 0 are gone
    validation: tuple[NDArray[np.float32], NDArray[np.int64]] | None  # x and y
    # (n, n_classes): the user's out-of-fold probabilities of a high-cost model
    high_cost: NDArray[np.float64] | None = None


def check_parameters(estimator: Any) -> None:
    """Check parameters against the ``_parameter_constraints`` of the class and its bases."""
    constraints: Constraints = {}
    for base in reversed(type(estimator).__mro__):
        constraints |= base.__dict__.get("_parameter_constraints", {})
    given = estimator.get_params(deep=False)
    try:
        validate_parameter_constraints(constraints, given, type(estimator).__name__)
    except InvalidParameterError as error:
        raise InputError(str(error)) from None


def is_fitted(estimator: Any) -> bool:
    """Whether a scikit-learn estimator is fitted."""
    try:
        check_is_fitted(estimator)
    except NotFittedError:
        return False
    return True


def check_rows(estimator: Any, X: Any, *, allow_missing: bool) -> Any:
    """Check rows: names, finiteness; float32 of shape (n, n_features)."""
    rows = _validated(estimator, X, reset=False)
    _check_finite(estimator, rows, allow_missing)
    return rows


def _validated(estimator: Any, X: Any, *others: Any, **how: Any) -> Any:
    try:
        with np.errstate(over="ignore"):  # what float32 cannot hold is refused as infinite
            return validate_data(
                estimator, X, *others, dtype=np.float32, order="C", ensure_all_finite=False, **how
            )
    except ValueError as error:
        raise InputError(str(error)) from error


def _check_finite(estimator: Any, rows: NDArray[np.float32], allow_missing: bool) -> None:
    for what, bad in (("infinity", np.isinf), ("NaN", np.isnan)):
        if what == "NaN" and allow_missing:
            continue
        found = bad(rows).any(axis=0)
        if found.any():
            name = feature_names(estimator)[int(found.argmax())]
            advice = "set allow_missing=True" if what == "NaN" else "drop or clip it"
            kind = "infinity or a value too large for float32" if what == "infinity" else "NaN"
            raise InputError(f"column {name!r} contains {kind}; {advice}")


def check_training(
    estimator: Any,
    X: Any,
    y: Any,
    sample_weight: Any,
    validation: Any,
    *,
    allow_missing: bool,
    high_cost_predictions: Any = None,
) -> Table:
    """Check training rows, labels, weights, validation rows and out-of-fold probabilities."""
    X, y = _validated(estimator, X, y)
    _check_finite(estimator, X, allow_missing)
    check_classes(y)
    weight = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
    seen = weight > 0
    n_classes = len(np.unique(y[seen]))
    high_cost = None
    if high_cost_predictions is not None:
        high_cost = _check_predictions(high_cost_predictions, (len(X), n_classes))[seen]
    if not seen.all():
        X, y, weight = X[seen], y[seen], weight[seen]
    classes, index, counts = np.unique(y, return_inverse=True, return_counts=True)
    if len(classes) < 2:
        raise InputError(f"y has one class only ({classes[:1].tolist()}); a cascade needs two")
    if counts.min() < 2:
        rare = classes.tolist()[counts.argmin()]
        raise InputError(f"class {rare!r} has one row only; give it more rows or drop it")
    pair = None
    if validation is not None:
        try:
            X_val, y_val = validation
        except (TypeError, ValueError):
            raise InputError("validation must be a pair (X_val, y_val)") from None
        X_val = check_rows(estimator, X_val, allow_missing=allow_missing)
        y_val = np.asarray(y_val).ravel()
        if len(y_val) != len(X_val):
            raise InputError(f"validation has {len(X_val)} rows but {len(y_val)} labels")
        place = np.searchsorted(classes, y_val).clip(max=len(classes) - 1)
        unknown = classes[place] != y_val
        if unknown.any():
            label = y_val[unknown].tolist()[0]
            raise InputError(f"validation label {label!r} is not in the training data")
        pair = X_val, place.astype(np.int64)
    return Table(X, index.astype(np.int64), classes, weight / weight.mean(), pair, high_cost)


def _check_predictions(given: Any, shape: tuple[int, int]) -> NDArray[np.float64]:
    """Check probabilities: a row for each row of X, a column for each class, sums of 1."""
    try:
        chances = np.asarray(given, np.float64)
    except (TypeError, ValueError):
        raise InputError("high_cost_predictions must be a matrix of probabilities") from None
    if chances.shape != shape:
        raise InputError(
            f"high_cost_predictions must have shape {shape}: a row for each row of X and a column "
            f"for each class, sorted; not {chances.shape}"
        )
    bad = ~((chances >= 0).all(axis=1) & (np.abs(chances.sum(axis=1) - 1.0) <= 1e-3))
    if bad.any():
        raise InputError(
            f"high_cost_predictions: row {int(bad.argmax())} holds no probabilities "
            "(at least 0, with sum 1); logits need a softmax first"
        )
    return chances


def check_values(
    estimator: Any, X: Any, y: Any, *, allow_missing: bool, reset: bool = True
) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
    """Check rows and measured values: float32 of shape (n, n_features), float64 of (n,).

    With `reset` they are training rows, else rows of the same columns.
    """
    least = 2 if reset else 1
    X, y = _validated(estimator, X, y, y_numeric=True, reset=reset, ensure_min_samples=least)
    _check_finite(estimator, X, allow_missing)
    return X, np.asarray(y, np.float64)


def check_classes(y: NDArray[Any]) -> None:
    """Check that labels are classes and not measured values; floats may be, if whole.

    Examples
    --------
    >>> check_classes(np.array([1.0, 2.0, 1.0]))
    >>> check_classes(np.array([20.5, 21.3, 19.8]))
    Traceback (most recent call last):
    ...
    gatewise.errors.InputError: Unknown label type: continuous. ...
    """
    try:
        check_classification_targets(y)
    except ValueError as error:
        kind = type_of_target(y)
        how = "give one class label for each row"
        if kind.startswith("continuous"):
            how = "bin measured values into classes first, with pandas.qcut(y, 3, labels=False) say"
        raise InputError(f"Unknown label type: {kind}. This learns classes: {how}") from error


def feature_names(estimator: Any) -> tuple[str, ...]:
    """Get the columns' names; x0, x1, ... where the table had none."""
    names = getattr(estimator, "feature_names_in_", None)
    if names is None:
        return tuple(f"x{k}" for k in range(estimator.n_features_in_))
    return tuple(str(n) for n in names)


def check_costs(given: Any, names: tuple[str, ...], named: bool) -> FeatureCosts:
    """Check prices against the columns, by name where both have names; uniform without any.

    They may be a FeatureCosts, a dict or Series by name, or a list in the columns' order.
    """
    if given is None:
        return FeatureCosts.uniform(len(names))
    if not isinstance(given, FeatureCosts) and (
        isinstance(given, str | bytes) or not hasattr(given, "__len__")
    ):
        raise InputError(
            "feature_costs must be a FeatureCosts, a dict or Series by name, or a list, not "
            f"{type(given).__name__}"
        )
    by_name = not isinstance(given, FeatureCosts)
    costs = given if isinstance(given, FeatureCosts) else FeatureCosts(given)
    if costs.names is not None and (named or costs.names == names):
        try:
            return costs.in_order(names)
        except InputError as error:
            raise InputError(f"feature_costs: {error}") from None
    if by_name and costs.names is not None:
        raise InputError("feature_costs are by name, and the data has no names: give a table")
    if costs.n_features != len(names):
        raise InputError(f"{costs.n_features} feature costs for {len(names)} features")
    return costs
