"""Boosters of LightGBM, XGBoost and CatBoost, and their files, as fitted classifiers.

A booster has no labels, so its classes are 0, 1, ... in the order of its outputs. Only CatBoost's
files have labels. A fitted booster without an exact graph is written as a file of its library.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gatewise.errors import InputError, one_line
from gatewise.models.booster_files import BoosterFile, Library
from gatewise.models.booster_sources import CategoricalSplitsError
from gatewise_training.learners.given_models.flat_forms import flat_trees
from gatewise_training.learners.given_models.given_graph import OnnxModel
from gatewise_training.learners.given_models.packable import Estimator, library_of
from gatewise_training.learners.given_models.probing import N_ROWS, Answers, ProbeFigures, probe
from gatewise_training.learners.given_models.sklearn_classifiers import inner_estimator
from gatewise_training.learners.high_cost_model import HighCostModel
from gatewise_training.learners.torch_models import is_torch

#: Library of a booster's file, by the suffix of its name.
LIBRARY_OF_SUFFIX = {".txt": "lightgbm", ".json": "xgboost", ".ubj": "xgboost", ".cbm": "catboost"}

#: Classifier of each library that converts to the same trees as the library's boosters.
CLASS_OF_LIBRARY = {
    "lightgbm": "LGBMClassifier",
    "xgboost": "XGBClassifier",
    "catboost": "CatBoostClassifier",
}


MODEL_NAME = "high_cost_model"


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


def write_library_file(model: HighCostModel) -> tuple[Library, bytes] | None:
    """Write a high-cost booster in the format of its library, or None if it is not a booster.

    The result is also None if the booster's classes differ from the classes of the data or have
    another order, because the file of a library has no labels.
    """
    estimator = inner_estimator(model.estimator)
    library = library_of(estimator)
    data_order = np.arange(model.n_classes)
    if library is None or not np.array_equal(
        data_order if model.class_indices is None else model.class_indices, data_order
    ):
        return None
    return library, WRITERS[library](getattr(estimator, "library_model", estimator))


def probe_library_file(
    model: HighCostModel, sample: NDArray[np.float32], *, allow_missing: bool, n_rows: int = N_ROWS
) -> tuple[Library, bytes, ProbeFigures] | None:
    """Write a booster in the format of its library, and compare both on adversarial rows.

    Parameters
    ----------
    model : HighCostModel
    sample : ndarray of float32, shape (n, n_used)
        Rows of the features that the model reads.
    allow_missing : bool
        Whether rows may have NaN.
    n_rows : int
        Number of adversarial rows.

    Returns
    -------
    library, content, figures
        Or None if the model cannot be written in this format.

    Raises
    ------
    InputError
        If the booster loaded from the file gives another answer for a row.
    """
    library_and_content = write_library_file(model)
    if library_and_content is None:
        return None
    library, content = library_and_content
    booster = BoosterFile(library, content, model.n_classes)

    def answer_from_file(rows: NDArray[Any]) -> Answers:
        probabilities = booster.predict_proba(rows)
        return np.asarray(probabilities.argmax(axis=1), np.int64), probabilities

    source = HighCostModel(
        np.arange(sample.shape[1]), model.n_classes, model.kind, estimator=model.estimator
    )
    figures = probe(
        model.estimator,
        source,
        answer_from_file,
        sample,
        MODEL_NAME,
        allow_missing=allow_missing,
        n_rows=n_rows,
    )
    return library, content, figures


def _write_lightgbm(estimator: Estimator) -> bytes:
    booster: Any = getattr(estimator, "booster_", estimator)
    return bytes(booster.model_to_string().encode())


def _write_xgboost(estimator: Estimator) -> bytes:
    booster = estimator.get_booster()
    # after early stopping a classifier predicts with its best rounds, but its booster with all
    best_round = booster.attributes().get("best_iteration")
    if best_round is not None:
        booster = booster[: int(best_round) + 1]
    return bytes(booster.save_raw("ubj"))


def _write_catboost(estimator: Estimator) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.cbm")
        estimator.save_model(str(path))
        return path.read_bytes()


WRITERS: Final[Mapping[Library, Callable[[Estimator], bytes]]] = {
    "lightgbm": _write_lightgbm,
    "xgboost": _write_xgboost,
    "catboost": _write_catboost,
}
