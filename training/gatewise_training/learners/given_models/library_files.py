"""High-cost boosters as files of their own libraries, for boosters without an exact graph."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gatewise.models.booster_files import BoosterFile, Library
from gatewise_training.learners.given_models.packable import Estimator, library_of
from gatewise_training.learners.given_models.probing import N_ROWS, Answers, ProbeFigures, probe
from gatewise_training.learners.given_models.sklearn_classifiers import inner_estimator
from gatewise_training.learners.high_cost_model import HighCostModel

MODEL_NAME = "high_cost_model"


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
