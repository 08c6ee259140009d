"""Opaque models: a Python object, or one by its import path.

All keep one contract: float32 rows of shape (n, k) in, probabilities of shape (n, n_classes) out,
a column for each class in sorted order; the label is the first of the likeliest classes. Nothing
here is ever loaded because a bundle names it: only a user or an operator does, by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gatewise.errors import InputError, one_line

PYTHON: Final = "python:"
"""Before the import path of a model: ``python:module:attribute``."""

CLOSE_TO_ONE: Final = 1e-3

Function = Callable[[NDArray[np.float32]], Any]


class PythonModel:
    """A Python object that gives probabilities: a function, an instance, or a class of such.

    Parameters
    ----------
    source : callable, object or class
        A function of the rows; an object with ``predict_proba`` and perhaps ``classes_``, the
        labels of its columns; or a class of such objects, made without arguments.
    classes : sequence
        The data's labels, sorted: the order of the columns of probabilities.
    spec : str, optional
        Import path of the object or its class, ``python:module:attribute``.

    Raises
    ------
    InputError
        If the source has another form, or a class that the data lacks.

    Examples
    --------
    >>> model = PythonModel(lambda X: np.tile([0.25, 0.75], (len(X), 1)), ["no", "yes"])
    >>> model.predict_proba(np.zeros((1, 4), np.float32))
    array([[0.25, 0.75]])
    """

    def __init__(self, source: Any, classes: Sequence[Any], spec: str | None = None) -> None:
        self.spec = _import_path(source) if spec is None else spec
        if isinstance(source, type):
            source = source()
        self._call: Function = getattr(source, "predict_proba", source)
        if not callable(self._call):
            raise InputError(
                f"{self.spec} is neither a function of the rows nor an object with predict_proba"
            )
        self.n_classes = len(classes)
        self.model = getattr(source, "__self__", source)
        """The object that answers: of a bound method, its owner."""
        own_classes = list(getattr(self.model, "classes_", classes))
        data_classes = list(classes)
        unknown = [label for label in own_classes if label not in data_classes]
        if unknown:
            raise InputError(f"{self.spec} has class {unknown[0]!r}, the data has not")
        self._columns = np.array([data_classes.index(label) for label in own_classes], np.intp)

    def predict_proba(self, X: NDArray[np.float32]) -> NDArray[np.float64]:
        """Get checked probabilities, shape (n, n_classes)."""
        raw = _probabilities(self._call(X), (len(X), len(self._columns)), self.spec)
        out = np.zeros((len(X), self.n_classes))
        out[:, self._columns] = raw
        return out


def _probabilities(output: Any, shape: tuple[int, int], source: str) -> NDArray[np.float64]:
    try:
        chances = np.asarray(output, np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"{source} did not return a matrix of numbers: {one_line(error)}"
        ) from error
    if chances.shape != shape:
        raise InputError(
            f"{source} gave an array of shape {chances.shape}: it must give probabilities of "
            f"shape {shape}, a row for each instance and a column for each class"
        )
    # not one comparison holds for NaN
    if not ((chances >= 0).all() and (np.abs(chances.sum(axis=1) - 1.0) <= CLOSE_TO_ONE).all()):
        raise InputError(f"{source} gave no probabilities: each row must be >= 0 and add up to 1")
    return chances


def _import_path(source: Any) -> str:
    """Import path of an object or its class, which a worker has to serve."""
    if getattr(source, "__self__", None) is not None:  # a bound method: its object is served
        source = source.__self__
    owner = source if hasattr(source, "__qualname__") else type(source)
    return f"{PYTHON}{owner.__module__}:{owner.__qualname__}"
