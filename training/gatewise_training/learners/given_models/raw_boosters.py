"""Boosters of LightGBM, XGBoost and CatBoost, and their files, as fitted classifiers.

A booster has no labels, so its classes are 0, 1, ... in the order of its outputs. Only CatBoost's
files have labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gatewise.errors import InputError, one_line
from gatewise.models.booster_sources import CategoricalSplitsError
from gatewise_training.learners.given_models.flat_forms import flat_trees
from gatewise_training.learners.given_models.given_graph import OnnxModel
from gatewise_training.learners.torch_models import is_torch

#: Library of a booster's file, by the suffix of its name.
LIBRARY_OF_SUFFIX = {".txt": "lightgbm", ".json": "xgboost", ".ubj": "xgboost", ".cbm": "catboost"}

#: Classifier of each library that converts to the same trees as the library's boosters.
CLASS_OF_LIBRARY = {
    "lightgbm": "LGBMClassifier",
    "xgboost": "XGBClassifier",
    "catboost": "CatBoostClassifier",
}


class RawBooster:
    """A booster of LightGBM, XGBoost or CatBoost, as a classifier that is never refitted.

    Parameters
    ----------
    library_model : lightgbm.Booster, XGBClassifier or CatBoostClassifier
        Model that was loaded from a file or made from a booster.

    Attributes
    ----------
    classes_ : ndarray, shape (n_classes,)
    n_features_in_ : int
    feature_names_in_ : ndarray of str, shape (n_features,)
        Only if the booster was trained on named columns.
    """

    def __init__(self, library_model: Any) -> None:
        self.library_model = library_model
        self.library_class = CLASS_OF_LIBRARY[_find_package(library_model)]
        if _find_package(library_model) == "lightgbm":
            self.booster_ = library_model
            n_outputs = int(library_model.num_model_per_iteration())
            self.classes_: NDArray[Any] = np.arange(max(n_outputs, 2))
            self.n_features_in_ = int(library_model.num_feature())
            column_names = library_model.feature_name()
        else:
            self.classes_ = np.asarray(library_model.classes_)
            column_names = getattr(
                library_model, "feature_names_in_", getattr(library_model, "feature_names_", [])
            )
            self.n_features_in_ = int(library_model.n_features_in_) or len(column_names)
        if _are_user_names(column_names):
            self.feature_names_in_ = np.array(column_names, object)

    def predict_proba(self, X: ArrayLike) -> NDArray[np.float64]:
        """Predict class probabilities of rows (n, n_features), float64 (n, n_classes)."""
        if _find_package(self.library_model) != "lightgbm":
            return np.asarray(self.library_model.predict_proba(X), np.float64)
        probabilities = np.asarray(
            self.library_model.predict(np.asarray(X, np.float32)), np.float64
        )
        return (
            np.column_stack([1.0 - probabilities, probabilities])
            if probabilities.ndim == 1
            else probabilities
        )

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Predict labels of rows (n, n_features), shape (n,)."""
        if _find_package(self.library_model) == "lightgbm":
            labels: NDArray[Any] = self.classes_[self.predict_proba(X).argmax(axis=1)]
            return labels
        return np.ravel(self.library_model.predict(X))


def as_classifier(model: Any, model_name: str = "high_cost_model") -> Any:
    """Convert a booster to a classifier and a PyTorch model to a graph; return others unchanged.

    Parameters
    ----------
    model : object
        A ``lightgbm.Booster`` or ``xgboost.Booster``; the path of a LightGBM text (``.txt``), an
        XGBoost model (``.json``, ``.ubj``) or a CatBoost model (``.cbm``); a ``torch.nn.Module``
        or ``torch.export`` program, which becomes an OnnxModel; or anything else.
    model_name : str
        Name of the model in errors.

    Raises
    ------
    InputError
        If a file cannot be read, or the booster is not a classifier that can be converted exactly
        to trees. Splits by category are accepted in a high-cost model of XGBoost.
    """
    if is_torch(model):
        return OnnxModel(model)
    library = LIBRARY_OF_SUFFIX.get(Path(model).suffix) if isinstance(model, str | Path) else None
    if library is not None:
        if not Path(model).is_file():
            raise InputError(f"{model_name}: {model} does not exist")
        path_or_booster: Any = str(model)
    elif type(model).__name__ == "Booster" and _find_package(model) in ("lightgbm", "xgboost"):
        library = _find_package(model)
        path_or_booster = model
    else:
        return model
    try:
        booster = RawBooster(_load_model(path_or_booster, library))
    except ImportError:
        raise InputError(f"{model_name} is a model of {library}: install {library}") from None
    except Exception as error:  # the libraries raise various types
        raise InputError(
            f"{model_name} is not a classifier of {library}: {one_line(error)}"
        ) from error
    try:
        flat_trees(booster)
    except CategoricalSplitsError as error:
        if model_name != "high_cost_model":  # a worker can run XGBoost, but a device cannot
            raise InputError(f"{model_name}: {error}") from None
    except InputError as error:
        raise InputError(f"{model_name}: {error}") from None
    return booster


def _find_package(model: Any) -> str:
    return type(model).__module__.partition(".")[0]


def _load_model(path_or_booster: Any, library: str) -> Any:
    """Load the file or the booster `path_or_booster` with its library."""
    if library == "lightgbm":
        import lightgbm

        return (
            lightgbm.Booster(model_file=path_or_booster)
            if isinstance(path_or_booster, str)
            else path_or_booster
        )
    if library == "xgboost":
        import xgboost

        classifier = xgboost.XGBClassifier()
        classifier.load_model(
            path_or_booster if isinstance(path_or_booster, str) else path_or_booster.save_raw("ubj")
        )
        return classifier
    import catboost

    return catboost.CatBoostClassifier().load_model(path_or_booster)


def _are_user_names(names: Sequence[str]) -> bool:
    """Whether the user named the columns, and not the library (``Column_0``, ``f0``, ``0``)."""
    return any(
        name not in (str(index), f"Column_{index}", f"f{index}") for index, name in enumerate(names)
    )
