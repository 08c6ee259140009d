"""Checks of an estimator's input: parameters, tables, labels, weights, prices.

The checks convert features to float32. A device computes in float32, and on data with a large
offset a model that was trained in float64 makes up to 4 % of its decisions differently there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.exceptions import NotFittedError
from sklearn.utils._param_validation import Interval
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import check_is_fitted, validate_data

from gatewise.costs import FeatureCosts
from gatewise.errors import InputError, one_line, warn_caller
from gatewise.formats import plural
from gatewise_signals.signal_input import SignalInput
from gatewise_training.data.frames import as_pandas
from gatewise_training.data.row_splitter import RowSplitter, check_class_groups, check_splits

#: Allowed values of each parameter of an estimator, as scikit-learn writes them.
Constraints = dict[str, list[Any]]

#: A user's validation rows, their labels and, if the training rows have groups, their groups.
Validation = tuple[ArrayLike, ArrayLike] | tuple[ArrayLike, ArrayLike, ArrayLike]

AT_LEAST_1 = Interval(Integral, 1, None, closed="left")
NOT_NEGATIVE = Interval(Real, 0, np.inf, closed="left")
UNIT_INTERVAL = Interval(Real, 0, 1, closed="both")

#: Largest number of different whole numbers that may be classes although some occur only once.
MAX_NUMBERED_CLASSES = 20

#: Largest rounding error of float32 without a warning, as a share of the range of a column.
MAX_RELATIVE_ROUNDING = 1e-3


class FitArguments(NamedTuple):
    """Rows, labels and further data that a user gives to `fit`."""

    X: ArrayLike
    y: ArrayLike
    sample_weight: ArrayLike | None = None
    validation: Validation | None = None
    high_cost_predictions: ArrayLike | None = None
    groups: ArrayLike | None = None
    time: ArrayLike | None = None


@dataclass(frozen=True, eq=False)
class TrainingTable:
    """Checked training data."""

    x: NDArray[np.float32]  # (n, n_features)
    y: NDArray[np.int64]  # (n,): class indices
    classes: NDArray[Any]  # (n_classes,): the labels, sorted
    weight: NDArray[np.float64]  # (n,): scaled to a mean of 1; rows of weight 0 are left out
    validation: tuple[NDArray[np.float32], NDArray[np.int64]] | None  # x and y
    splitter: RowSplitter  # of the rows, followed by the validation rows
    # (n, n_classes): the user's out-of-fold probabilities of a high-cost model
    high_cost_probabilities: NDArray[np.float64] | None = None

    def take(self, rows: NDArray[np.intp]) -> TrainingTable:
        """Get some of the training rows; the table must have no validation rows."""
        probabilities = self.high_cost_probabilities
        return replace(
            self,
            x=self.x[rows],
            y=self.y[rows],
            weight=self.weight[rows],
            splitter=self.splitter.take(rows),
            high_cost_probabilities=None if probabilities is None else probabilities[rows],
        )


def is_fitted(estimator: Any) -> bool:
    """Whether an estimator is fitted."""
    try:
        check_is_fitted(estimator)
    except NotFittedError:
        return False
    except (AttributeError, TypeError):  # it does not extend scikit-learn's BaseEstimator
        return hasattr(estimator, "classes_")
    return True


def named_rows(estimator: Any, x: NDArray[np.float32]) -> Any:
    """Make a table of rows with the column names that the classifier was fitted with, if any."""
    names = getattr(estimator, "feature_names_in_", None)
    if names is None:
        return x
    import pandas as pd

    return pd.DataFrame(x, columns=names)


def check_rows(estimator: Any, X: Any) -> Any:
    """Check the names and values of rows; return them as float32 of shape (n, n_features)."""
    return _validate(estimator, X, reset=False)


def _validate(estimator: Any, X: Any, *other_arrays: Any, **options: Any) -> Any:
    """Validate rows by scikit-learn, with errors that name the column and the remedy.

    Windows become the features of the estimator's blocks. `options` are those of
    :func:`sklearn.utils.validation.validate_data`, which also gives the result.
    """
    signal: SignalInput | None = getattr(estimator, "signal_input_", None)
    X = as_pandas(X) if signal is None else signal.features(X)
    _refuse_times(X)
    try:
        with np.errstate(over="ignore"):  # values too large for float32 are refused below
            checked_arrays = validate_data(
                estimator,
                X,
                *other_arrays,
                dtype=np.float32,
                order="C",
                ensure_all_finite=False,
                **options,
            )
    # numpy raises several kinds of errors for dates, time zones, periods and intervals
    except (ValueError, TypeError, np.exceptions.DTypePromotionError) as error:
        if hasattr(X, "select_dtypes"):
            if (refusal := _refusal_of_columns(X)) is not None:
                raise InputError(refusal) from None
        elif type(error) is TypeError:  # scikit-learn's contract asks for a TypeError here
            raise
        message = one_line(error)
        if "could not convert string" in message:
            message = (
                "X contains text, but models need numbers: convert it to columns first (counts of "
                "words, an embedding), and give a high-cost model that reads them"
            )
        raise InputError(message) from error
    x = checked_arrays[0] if other_arrays else checked_arrays
    _check_finite(estimator, x)
    return checked_arrays


def _refuse_times(X: Any) -> None:
    """Refuse dates and durations, which numpy would read as numbers of an arbitrary unit."""
    if hasattr(X, "select_dtypes"):
        if any(getattr(dtype, "kind", None) in ("m", "M") for dtype in X.dtypes):
            raise InputError(_refusal_of_columns(X))
    elif getattr(getattr(X, "dtype", None), "kind", None) in ("m", "M"):
        raise InputError("X holds dates or durations: write them as numbers of one unit")


def _refusal_of_columns(X: Any) -> str | None:
    """Write which columns of a DataFrame hold no numbers, or return None."""
    columns = [
        *X.select_dtypes(exclude=["number", "bool"]).columns,
        *X.select_dtypes("timedelta").columns,
    ]
    if not columns:
        return None
    return f"columns {columns} hold no numbers: encode the table with TableEncoder, or drop them"


def _check_finite(estimator: Any, x: NDArray[np.float32]) -> None:
    """Raise InputError for infinite values, and for NaN unless it is allowed."""
    has_infinity = np.isinf(x).any(axis=0)
    if has_infinity.any():
        name = feature_names(estimator)[int(has_infinity.argmax())]
        raise InputError(
            f"column {name!r} contains infinity or a value too large for float32; drop or clip it"
        )
    has_nan = np.isnan(x).any(axis=0)
    if has_nan.any() and not estimator.allow_missing:
        name = feature_names(estimator)[int(has_nan.argmax())]
        raise InputError(
            f"column {name!r} contains NaN; fill it in, or fit with allow_missing=True"
        )


def warn_of_rounding(table: Any, rows: NDArray[np.float32], names: Sequence[str]) -> None:
    """Warn of columns that lose more than MAX_RELATIVE_ROUNDING of their range in float32.

    Their values are far from 0 and close together. `table` is an array or data frame, and `rows`
    are its values as float32, both of shape (n, n_features).
    """
    minimum = np.fmin.reduce(rows, axis=0).astype(np.float64)
    maximum = np.fmax.reduce(rows, axis=0).astype(np.float64)
    float32_step = np.finfo(np.float32).eps * np.maximum(-minimum, maximum)
    relative_losses: dict[str, float] = {}
    for column_index in np.flatnonzero(
        (maximum - minimum) * MAX_RELATIVE_ROUNDING <= float32_step
    ).tolist():
        if hasattr(table, "iloc"):
            column = table.iloc[:, column_index].to_numpy(np.float64, na_value=np.nan)
        else:
            column = np.asarray(table)[:, column_index].astype(np.float64)
        value_range = np.fmax.reduce(column) - np.fmin.reduce(column)
        largest_error = np.fmax.reduce(np.abs(column - rows[:, column_index]))
        if value_range > 0 and largest_error > MAX_RELATIVE_ROUNDING * value_range:
            relative_losses[names[column_index]] = min(1.0, float(largest_error / value_range))
    if relative_losses:
        warn_caller(
            f"columns {list(relative_losses)[:5]} lose up to {max(relative_losses.values()):.1%} "
            "of their range in float32, in which models and devices compute: subtract an offset, "
            "or scale them"
        )


def check_training(estimator: Any, arguments: FitArguments) -> TrainingTable:
    """Check the arguments of a fit; return them as one record."""
    table = as_pandas(arguments.X)
    check_labels_known(arguments.y)
    X, y = _validate(estimator, table, _convert_to_numpy(arguments.y))
    check_classes(y)
    if not hasattr(estimator, "signal_input_"):
        warn_of_rounding(table, X, feature_names(estimator))
    # leave out rows of weight 0
    weight, validation, splitter = check_splits(
        X, arguments.sample_weight, arguments.groups, arguments.time, arguments.validation
    )
    has_weight = weight > 0
    high_cost_probabilities = None
    if arguments.high_cost_predictions is not None:
        shape = len(X), len(np.unique(y[has_weight]))
        all_probabilities = _check_predictions(arguments.high_cost_predictions, shape)
        high_cost_probabilities = all_probabilities[has_weight]
    if not has_weight.all():
        X = X[has_weight]
        y = y[has_weight]
        weight = weight[has_weight]
    classes, class_index = _number_classes(y)
    validation_pair = None
    if validation is not None:
        X_val, y_val = validation
        validation_pair = _check_validation(estimator, X_val, y_val, classes)
    elif splitter.groups is not None:
        check_class_groups(classes, class_index, splitter.groups)
    return TrainingTable(
        x=X,
        y=class_index,
        classes=classes,
        weight=weight / weight.mean(),
        validation=validation_pair,
        splitter=splitter,
        high_cost_probabilities=high_cost_probabilities,
    )


def _number_classes(y: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Get the sorted classes, and the class index of each label.

    Raises InputError unless there are two classes or more, with two rows or more each.
    """
    classes, class_index, class_counts = np.unique(y, return_inverse=True, return_counts=True)
    if len(classes) < 2:
        raise InputError(f"y has one class only ({classes[:1].tolist()}); a cascade needs two")
    if class_counts.min() < 2:
        rare_class = classes.tolist()[class_counts.argmin()]
        raise InputError(f"class {rare_class!r} has one row only; give it more rows or drop it")
    return classes, class_index.astype(np.int64)


def _check_validation(
    estimator: Any, X_val: Any, y_val: Any, classes: NDArray[Any]
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Check the user's validation rows; return them with their class indices."""
    x = check_rows(estimator, X_val)
    labels = np.asarray(_convert_to_numpy(y_val)).ravel().tolist()
    if len(labels) != len(x):
        raise InputError(f"validation has {len(x)} rows but {len(labels)} labels: give one each")
    unknown_label_text = "validation label {} is not in the training data"
    return x, index_labels(labels, classes, unknown_label_text)


def index_labels(
    labels: Sequence[Any], classes: NDArray[Any], unknown_label_text: str
) -> NDArray[np.int64]:
    """Find the index of each label among the classes, (n,).

    Raises InputError with `unknown_label_text`, in which ``{}`` stands for an unknown label.
    """
    index_of_label = {label: index for index, label in enumerate(classes.tolist())}
    unknown_labels = [label for label in labels if label not in index_of_label]
    if unknown_labels:
        raise InputError(unknown_label_text.replace("{}", repr(unknown_labels[0])))
    return np.array([index_of_label[label] for label in labels], np.int64)


def check_labels_known(y: Any) -> None:
    """Raise InputError if labels are missing."""
    import pandas as pd

    is_missing = pd.isna(np.ravel(np.asarray(y, object)))
    if y is not None and is_missing.any():
        rows = plural(is_missing.sum(), "row")
        raise InputError(f"y is missing (NaN or None) in {rows}: leave out rows without a label")


def _convert_to_numpy(y: Any) -> Any:
    """Get labels of pandas' nullable types as numpy's whole numbers or booleans.

    scikit-learn would make floats of them, which cannot tell large whole numbers apart.
    """
    dtype = getattr(getattr(y, "dtype", None), "numpy_dtype", None)
    if dtype is None or np.ndim(y) != 1 or y.isna().any():
        return y
    return y.to_numpy(dtype)


def _check_predictions(predictions: Any, shape: tuple[int, int]) -> NDArray[np.float64]:
    """Check out-of-fold probabilities of `shape`, the numbers of rows and classes."""
    try:
        probabilities = np.asarray(predictions, np.float64)
    except (TypeError, ValueError):
        raise InputError("high_cost_predictions must be a matrix of probabilities") from None
    if probabilities.shape != shape:
        raise InputError(
            f"high_cost_predictions must have shape {shape}: a row for each row of X and a column "
            f"for each class, sorted; not {probabilities.shape}"
        )
    # probabilities may be rounded, or come from float32
    is_valid = (probabilities >= 0).all(axis=1) & (np.abs(probabilities.sum(axis=1) - 1.0) <= 1e-3)
    if not is_valid.all():
        raise InputError(
            f"high_cost_predictions: row {int(is_valid.argmin())} holds no probabilities "
            "(at least 0, with sum 1); logits need a softmax first"
        )
    return probabilities


def check_values(
    estimator: Any, X: Any, y: Any, *, reset: bool = True
) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
    """Check rows and measured values; return them, float32 (n, n_features) and float64 (n,).

    With `reset` the rows are training rows. Otherwise they must have the columns of these.
    """
    min_rows = 2 if reset else 1
    table = as_pandas(X)
    if np.asarray(y).dtype.kind in "USO":
        try:
            y = np.asarray(y, np.float64)
        except (TypeError, ValueError):
            raise InputError("y must hold numbers, because a value is learned") from None
    X, y = _validate(estimator, table, y, y_numeric=True, reset=reset, ensure_min_samples=min_rows)
    y = np.asarray(y, np.float64)
    if reset and not hasattr(estimator, "signal_input_"):
        warn_of_rounding(table, X, feature_names(estimator))
    largest_magnitude = np.abs(y).max()
    float32_limits = np.finfo(np.float32)
    if largest_magnitude > float32_limits.max:
        raise InputError("y contains values too large for float32 predictions: scale it")
    if reset and 0 < np.ptp(y) * MAX_RELATIVE_ROUNDING <= float32_limits.eps * largest_magnitude:
        raise InputError(
            f"y varies by {np.ptp(y):.3g} around {np.mean(y):.6g}, which is too little for "
            "float32 predictions: subtract its mean"
        )
    return X, y


def check_classes(y: NDArray[Any]) -> None:
    """Check that labels are classes and not measured values; whole floats may be classes.

    >>> check_classes(np.array([1.0, 2.0, 1.0]))
    >>> check_classes(np.array([20.5, 21.3, 19.8]))
    Traceback (most recent call last):
    ...
    gatewise.errors.InputError: Unknown label type: continuous. ...
    """
    _check_not_measured(y)
    try:
        check_classification_targets(y)
    except TypeError as error:  # labels of bytes
        raise InputError(f"y: {one_line(error)}") from error
    except ValueError as error:
        target_type = type_of_target(y)
        advice = "give one class label for each row"
        if target_type.startswith("continuous"):
            advice = (
                "bin measured values into classes first, e.g. with pandas.qcut(y, 3, labels=False)"
            )
        raise InputError(
            f"Unknown label type: {target_type}. This learns classes: {advice}"
        ) from error


def _check_not_measured(y: NDArray[Any]) -> None:
    """Raise InputError if labels are many different whole numbers, and some occur only once."""
    if getattr(y, "dtype", np.dtype(object)).kind not in "iuf" or not np.all(y == np.round(y)):
        return
    distinct_numbers, counts = np.unique(y, return_counts=True)
    n_once = int(np.sum(counts == 1))
    if len(distinct_numbers) > MAX_NUMBERED_CLASSES and n_once:
        raise InputError(
            f"y has {len(distinct_numbers)} different numbers, {n_once} of them once, as measured "
            "values have. This learns classes: bin the values, e.g. with pandas.qcut(y, 3, "
            "labels=False); if the numbers are classes, give two rows or more of each"
        )


def feature_names(estimator: Any) -> tuple[str, ...]:
    """Get the names of the columns or of a signal's features, by default x0, x1, ..."""
    signal: SignalInput | None = getattr(estimator, "signal_input_", None)
    if signal is not None:
        return signal.feature_names
    names = getattr(estimator, "feature_names_in_", None)
    if names is None:
        return tuple(f"x{index}" for index in range(estimator.n_features_in_))
    return tuple(str(name) for name in names)


def check_costs(prices: Any, names: tuple[str, ...], has_names: bool) -> FeatureCosts:
    """Check prices against the columns, by name if both have names, or else by position.

    Prices are a FeatureCosts, a dict or Series by name, a list in the order of the columns, or None
    for 1 per feature. `has_names` says whether `names` are names of the table.
    """
    if prices is None:
        return FeatureCosts.uniform(len(names))
    if not isinstance(prices, FeatureCosts) and (
        isinstance(prices, str | bytes) or not hasattr(prices, "__len__")
    ):
        raise InputError(
            "feature_costs must be a FeatureCosts (FeatureCosts.from_file reads a file), a dict or "
            "Series by name, or a list, not "
            f"{type(prices).__name__}"
        )
    costs = prices if isinstance(prices, FeatureCosts) else FeatureCosts(prices)
    if costs.names is not None and (has_names or costs.names == names):
        try:
            return costs.in_order(names)
        except InputError as error:
            raise InputError(f"feature_costs: {error}") from None
    if costs.names is not None and not isinstance(prices, FeatureCosts):
        raise InputError(
            "feature_costs are given by name, but the data has no names, which must be texts: "
            "give a table"
        )
    if costs.n_features != len(names):
        raise InputError(
            f"{costs.n_features} feature costs for {len(names)} features: give one for each"
        )
    return costs
