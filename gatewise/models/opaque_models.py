"""Models that are Python functions or objects.

Such a model computes probabilities, (n, n_classes), from float32 rows, (n, k). Its columns are the
classes in sorted order, and the label is the first class with the largest probability. Only users
and operators load such models. A name in a bundle never causes an import.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gatewise.errors import InputError, one_line

#: Prefix of the import path of a model, ``python:module:attribute``.
PYTHON_PREFIX: Final = "python:"

#: Largest difference between 1 and the sum of a row's probabilities, which may be rounded.
SUM_TOLERANCE: Final = 1e-3

#: A function that computes probabilities from rows.
ProbabilityFunction = Callable[[NDArray[np.float32]], Any]


class PythonModel:
    """Model that calls a Python function or object to compute probabilities.

    Parameters
    ----------
    source : callable, object or class
        A function of the rows, or an object with ``predict_proba`` and optionally ``classes_``, the
        labels of its columns. It may also be the class of such objects, which is called without
        arguments.
    classes : sequence
        The labels of the data, sorted.
    import_path : str, optional
        Import path of the object or its class, ``python:module:attribute``.

    Raises
    ------
    InputError
        If the source is of another kind, or has a class twice or one that is not in the data.

    Examples
    --------
    >>> model = PythonModel(lambda X: np.tile([0.25, 0.75], (len(X), 1)), ["no", "yes"])
    >>> model.predict_proba(np.zeros((1, 4), np.float32))
    array([[0.25, 0.75]])
    """

    def __init__(self, source: Any, classes: Sequence[Any], import_path: str | None = None) -> None:
        self.import_path = _find_import_path(source) if import_path is None else import_path
        if isinstance(source, type):
            source = source()
        self._call: ProbabilityFunction = getattr(source, "predict_proba", source)
        if not callable(self._call):
            raise InputError(
                f"{self.import_path} is neither a function of the rows nor an object with "
                "predict_proba"
            )
        self.n_classes = len(classes)
        #: The function or object; for a bound method, the object that it belongs to.
        self.model = getattr(source, "__self__", source)
        own_classes = list(getattr(self.model, "classes_", classes))
        data_classes = list(classes)
        unknown_labels = [label for label in own_classes if label not in data_classes]
        if unknown_labels:
            raise InputError(
                f"{self.import_path} has class {unknown_labels[0]!r}, which is not in the data"
            )
        for label in own_classes:
            if own_classes.count(label) > 1:
                raise InputError(f"{self.import_path} has class {label!r} twice in classes_")
        self._columns = np.array([data_classes.index(label) for label in own_classes], np.intp)

    def predict_proba(self, X: NDArray[np.float32]) -> NDArray[np.float64]:
        """Compute and check probabilities, shape (n, n_classes)."""
        shape = len(X), len(self._columns)
        probabilities = np.zeros((len(X), self.n_classes))
        probabilities[:, self._columns] = _check_output(self._call(X), shape, self.import_path)
        return probabilities


def _check_output(output: Any, shape: tuple[int, int], model_name: str) -> NDArray[np.float64]:
    """Convert the output of a model to probabilities; InputError if it is not valid."""
    try:
        probabilities = np.asarray(output, np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"{model_name} did not return a matrix of numbers: {one_line(error)}"
        ) from error
    if probabilities.shape != shape:
        raise InputError(
            f"{model_name} gave an array of shape {probabilities.shape}: it must give "
            f"probabilities of shape {shape}, a row for each instance and a column for each class"
        )
    # NaN is refused as well, because all comparisons with it are false
    sum_errors = np.abs(probabilities.sum(axis=1) - 1.0)
    if not ((probabilities >= 0).all() and (sum_errors <= SUM_TOLERANCE).all()):
        raise InputError(
            f"{model_name} returned invalid probabilities: a row must be >= 0 and add up to 1"
        )
    return probabilities


def _find_import_path(source: Any) -> str:
    """Return the import path of an object or of its class, for manifests and messages.

    It is only a name, so it may be the path of a lambda, which cannot be imported. The operator of
    a worker names what to import.
    """
    if getattr(source, "__self__", None) is not None:  # for a bound method, use its object
        source = source.__self__
    owner = source if hasattr(source, "__qualname__") else type(source)
    return f"{PYTHON_PREFIX}{owner.__module__}:{owner.__qualname__}"
