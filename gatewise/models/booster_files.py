"""Boosters in the file formats of their libraries.

A library is imported only when a file of its format is loaded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from gatewise.errors import InputError, one_line

#: Name of a library, which is also the name of its Python package.
Library: TypeAlias = Literal["lightgbm", "xgboost", "catboost"]
LIBRARIES: Final[tuple[Library, ...]] = get_args(Library)
#: File name extensions of LightGBM's text, XGBoost's universal binary JSON and CatBoost's binary.
FILE_EXTENSIONS: Final[dict[Library, str]] = {
    "lightgbm": "txt",
    "xgboost": "ubj",
    "catboost": "cbm",
}

#: Function from rows to class probabilities.
Predict = Callable[[NDArray[np.float32]], Any]


class BoosterFile:
    """Booster that its library loads from the content of a file.

    Parameters
    ----------
    library : {"lightgbm", "xgboost", "catboost"}
    content : bytes
    n_classes : int
    n_threads : int, default 1
        Number of threads of a prediction.

    Raises
    ------
    InputError
        If the library is not installed or cannot read the file.
    """

    def __init__(
        self, library: Library, content: bytes, n_classes: int, *, n_threads: int = 1
    ) -> None:
        self.library = library
        self.n_classes = n_classes
        try:
            self._predict = LOADERS[library](content, n_threads)
        except ImportError:
            raise InputError(f"the model is a file of {library}: install {library}") from None
        except Exception as error:  # the libraries' errors have no common base class
            message = one_line(error) or type(error).__name__
            raise InputError(f"{library} cannot read the model: {message}") from error

    def predict_proba(self, x: NDArray[np.float32]) -> NDArray[np.float64]:
        """Compute class probabilities of rows (n, n_inputs), float64 (n, n_classes)."""
        output = np.asarray(self._predict(np.ascontiguousarray(x, np.float32)), np.float64)
        # a binary booster may return only the probability of the second class
        probabilities = np.column_stack([1.0 - output, output]) if output.ndim == 1 else output
        if probabilities.shape != (len(x), self.n_classes):
            raise InputError(
                f"{self.library} returned an array of shape {output.shape} for {len(x)} rows and "
                f"{self.n_classes} classes"
            )
        return probabilities


def _load_lightgbm(content: bytes, n_threads: int) -> Predict:
    import lightgbm

    booster = lightgbm.Booster(model_str=content.decode())
    return lambda x: booster.predict(x, num_threads=n_threads)


def _load_xgboost(content: bytes, n_threads: int) -> Predict:
    import xgboost

    booster = xgboost.Booster({"nthread": n_threads})
    booster.load_model(bytearray(content))
    return lambda x: booster.predict(xgboost.DMatrix(x, nthread=n_threads), validate_features=False)


def _load_catboost(content: bytes, n_threads: int) -> Predict:
    import catboost

    classifier = catboost.CatBoostClassifier()
    classifier.load_model(blob=content)
    return lambda x: classifier.predict_proba(x, thread_count=n_threads)


LOADERS: Final[dict[Library, Callable[[bytes, int], Predict]]] = {
    "lightgbm": _load_lightgbm,
    "xgboost": _load_xgboost,
    "catboost": _load_catboost,
}
