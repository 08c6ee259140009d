"""The high-cost model: trained by this library, or given by the user.

Users give a classifier, an ONNX graph or a callable. A given model is never refitted. In this
module classes are indices 0..M-1.

If the high-cost model is a forest, a row needs only the features on its paths, as in figure 4 of
Adapt (NIPS 2017). If it is a cascade (remark 2), a row needs only the features of the stages that
it reaches (:func:`acquired_by_high_cost`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import ExtraTreesClassifier, RandomForestClassifier

from gatewise.decision import Link, class_positions, labels, probabilities
from gatewise.errors import InputError
from gatewise.imports import import_object
from gatewise.models.opaque_models import PYTHON_PREFIX, PythonModel
from gatewise.models.trees import TreeEnsemble
from gatewise_training.data.input_checks import index_labels, named_rows
from gatewise_training.learners.boosting import link_of
from gatewise_training.learners.given_models.given_graph import (
    GivenGraph,
    GraphForm,
    OnnxModel,
    graph_answer,
)
from gatewise_training.learners.given_models.packable import is_same_column, needs_backend

Accounting = Literal["union", "paper", "paths", "paper-paths"]


def is_given(model: Any) -> bool:
    """Whether a `high_cost_model` is complete, because it has no ``fit`` method.

    Such models are an ONNX file, a function, an import path, and an object or class with
    ``predict_proba`` only. A classifier with ``fit`` may or may not be fitted.
    """
    return not hasattr(model, "fit")


def is_graph(model: Any) -> bool:
    """Whether a model is an ONNX graph: a path, the bytes of a file, or an OnnxModel."""
    if isinstance(model, str):
        return not model.startswith(PYTHON_PREFIX)
    return isinstance(model, Path | bytes | OnnxModel)


@dataclass(frozen=True, eq=False)
class HighCostModel:
    """A fitted high-cost model of any kind.

    Exactly one of `trees`, `estimator`, `onnx` and `python_model` is not None: it is the model.

    Attributes
    ----------
    features : ndarray of intp, shape (n_used,)
        Columns of an instance that the model reads, in the order of its inputs.
    n_classes : int
    kind : str
        Kind of model, for display: "svm", "boosting", "extra-trees", "given", "onnx" or "python".
    trees : TreeEnsemble or None
        Flat trees over `features`, if the model was trained here as trees.
    estimator : object or None
        Fitted scikit-learn classifier over `features`.
    onnx : bytes or None
        Given ONNX graph, with the input ``x`` over `features`.
    form : GraphForm or None
        Meaning of the outputs of this graph, or None without a graph.
    python_model : PythonModel or None
        Function that returns probabilities of all classes and cannot become a graph.
    class_indices : ndarray of int64, shape (n_own_classes,) or None
        Class index of each class of the estimator or the graph. None if the order is the same.
    rounds : int
        Number of boosting rounds; 0 for other kinds.
    """

    features: NDArray[np.intp]
    n_classes: int
    kind: str
    trees: TreeEnsemble | None = None
    estimator: Any = None
    onnx: bytes | None = None
    form: GraphForm | None = None
    python_model: PythonModel | None = None
    class_indices: NDArray[np.int64] | None = None
    rounds: int = 0

    @property
    def link(self) -> Link:
        """Link from the margins of `trees` to probabilities; identity for forests."""
        return "identity" if self.kind == "extra-trees" else link_of(self.n_classes)

    @property
    def backend(self) -> str | None:
        """Backend with which a worker serves an opaque model, ``python:...``; else None."""
        return None if self.python_model is None else self.python_model.import_path

    def shifted(self, first_column: int) -> HighCostModel:
        """Make the same model for instances with its columns from `first_column` on."""
        return replace(self, features=self.features + first_column)

    def answers(self, x: NDArray[np.float32]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Get :meth:`labels` and :meth:`predict_proba` of instances `x` in one run of the model."""
        columns = x[:, self.features]
        if self.trees is not None:
            margins = self.trees.margins(columns)
            return labels(margins), probabilities(margins, self.link)
        if self.python_model is not None:
            proba = self.python_model.predict_proba(columns)
            return np.asarray(proba.argmax(axis=1), np.int64), proba
        if self.onnx is not None:
            assert self.form is not None
            own_index, own_probabilities = graph_answer(self.onnx, self.form, columns)
            class_index = own_index if self.class_indices is None else self.class_indices[own_index]
            return class_index, self._move_to_all_classes(own_probabilities)
        class_index = self._predict_labels(columns)
        if hasattr(self.estimator, "predict_proba"):
            return class_index, self._predict_estimator_proba(columns)
        one_hot = np.zeros((len(columns), self.n_classes))
        one_hot[np.arange(len(columns)), class_index] = 1.0
        return class_index, one_hot

    def predict_proba(self, x: NDArray[np.float32]) -> NDArray[np.float64]:
        """Get class probabilities of instances, float64 (n, n_classes).

        If the model gives no probabilities, they are one-hot labels. `x`, float32 (n, n_features),
        has all features of the instances.
        """
        if self.estimator is not None and hasattr(self.estimator, "predict_proba"):
            return self._predict_estimator_proba(x[:, self.features])
        return self.answers(x)[1]

    def labels(self, x: NDArray[np.float32]) -> NDArray[np.int64]:
        """Get class indices of instances `x`, int64 (n,), by the ``predict`` of the model."""
        if self.estimator is not None:
            return self._predict_labels(x[:, self.features])
        return self.answers(x)[0]

    def _predict_labels(self, x_used: NDArray[np.float32]) -> NDArray[np.int64]:
        predicted_labels = np.asarray(self.estimator.predict(named_rows(self.estimator, x_used)))
        if predicted_labels.size > len(x_used):  # XGBoost marks one of two classes by columns
            own_index = np.asarray(predicted_labels.argmax(axis=1), np.int64)
        else:  # CatBoost returns a column, so ravel
            own_classes = np.asarray(self.estimator.classes_)
            own_index = class_positions(own_classes, predicted_labels.ravel())
        return own_index if self.class_indices is None else self.class_indices[own_index]

    def _predict_estimator_proba(self, x_used: NDArray[np.float32]) -> NDArray[np.float64]:
        own_probabilities = self.estimator.predict_proba(named_rows(self.estimator, x_used))
        return self._move_to_all_classes(own_probabilities)

    def _move_to_all_classes(self, own_probabilities: NDArray[Any]) -> NDArray[np.float64]:
        """Move the columns of the model's own classes to their class indices."""
        if n_nan_rows := int(np.isnan(own_probabilities).any(axis=1).sum()):
            raise InputError(
                f"high_cost_model gives no probabilities (NaN) for {n_nan_rows} of "
                f"{len(own_probabilities)} rows, which a worker cannot send: repair the model or "
                "give another one"
            )
        proba = np.zeros((len(own_probabilities), self.n_classes))
        proba[
            :,
            np.arange(own_probabilities.shape[1])
            if self.class_indices is None
            else self.class_indices,
        ] = own_probabilities
        return proba

    @classmethod
    def from_model(
        cls,
        model: Any,
        classes: NDArray[Any],
        n_features: int,
        names: Sequence[str] | None = None,
        shape: tuple[int, ...] | None = None,
    ) -> HighCostModel:
        """Make a high-cost model from a given model, without a refit.

        Parameters
        ----------
        model : object
            One of the following. A fitted classifier of scikit-learn, LightGBM, XGBoost or
            CatBoost. A path, bytes or :class:`.OnnxModel` of an ONNX graph that takes one row per
            instance and returns labels, probabilities or logits, or a :class:`.GivenGraph`. An
            opaque model, which is a function from rows to probabilities, an object or a class with
            ``predict_proba``, or the import path ``python:module:attribute`` of one of these.
        classes : ndarray, shape (n_classes,)
            Class labels of the data. If a GivenGraph has no names, its outputs are in this order.
        n_features : int
        names : sequence of str, optional
            Column names of the data. They must equal the model's column names, if it has any.
        shape : tuple of int, optional
            Shape of an instance for a graph; by default (n_features,).

        Returns
        -------
        HighCostModel
            Of kind "given", "onnx" or "python".

        Raises
        ------
        InputError
            If the model reads other features or has other classes than the data, or returns no
            probabilities.
        """
        all_columns = np.arange(n_features)
        if is_graph(model):
            model = GivenGraph(model, shape or (n_features,), "high_cost_model")
            _check_output_names(model.form, classes)
        if isinstance(model, GivenGraph):
            form = model.named_form(classes.tolist())
            class_indices = _find_class_indices(list(form.names or ()), classes)
            return cls(
                all_columns,
                len(classes),
                "onnx",
                onnx=model.content,
                form=form,
                class_indices=class_indices,
            )
        python_model = _as_python_model(model, classes)
        if python_model is not None:
            return cls(all_columns, len(classes), "python", python_model=python_model)
        _check_model_columns(model, n_features, names)
        own_classes = np.asarray(getattr(model, "classes_", ()))
        class_indices = _find_class_indices(own_classes.tolist(), classes)
        return cls(all_columns, len(classes), "given", estimator=model, class_indices=class_indices)


def _as_python_model(model: Any, classes: NDArray[Any]) -> PythonModel | None:
    """Make the model of an import path, a function, or a classifier of an unknown library.

    The result is None for a classifier of a known library.
    """
    if isinstance(model, str):  # other texts are paths of graphs
        python_object = import_object(model, model.removeprefix(PYTHON_PREFIX))
        return PythonModel(python_object, classes.tolist(), model)
    has_predictions = hasattr(model, "predict_proba") or hasattr(model, "predict")
    if not has_predictions and not callable(model):
        raise InputError(
            f"high_cost_model is a {type(model).__name__}: give a classifier, an ONNX file, "
            "a function that gives probabilities, or None"
        )
    if not has_predictions or needs_backend(model):
        return PythonModel(model, classes.tolist())
    return None


def _check_model_columns(model: Any, n_features: int, names: Sequence[str] | None) -> None:
    """Raise InputError if a classifier was fitted on other columns than those of the data."""
    n_model_features = int(getattr(model, "n_features_in_", n_features))
    if n_model_features != n_features:
        raise InputError(
            f"high_cost_model was fitted on {n_model_features} features, but the data has "
            f"{n_features}"
        )
    names_of_model = getattr(model, "feature_names_in_", None)
    if names is None or names_of_model is None:
        return
    for index, (model_name, name) in enumerate(zip(names_of_model, names, strict=True)):
        if not is_same_column(model_name, name):
            raise InputError(
                f"high_cost_model was fitted with {str(model_name)!r} as column {index}, "
                f"the data has {name!r} there; give the columns in the model's order"
            )


def _find_class_indices(own_classes: list[Any], classes: NDArray[Any]) -> NDArray[np.int64]:
    """Find the index of each class of a model among the classes of the data."""
    if not own_classes:
        raise InputError("high_cost_model is not a fitted classifier: it has no classes_")
    return index_labels(
        own_classes,
        classes,
        "high_cost_model has class {}, which the data lacks: y must hold the labels that it was "
        "fitted on",
    )


def _check_output_names(form: GraphForm, classes: NDArray[Any]) -> None:
    """Refuse a graph without names for its outputs, unless the classes are 0, 1, ..."""
    classes_are_indices = form.label_is_index and classes.tolist() == list(range(len(classes)))
    if form.names is None and not classes_are_indices:
        raise InputError(
            "high_cost_model's graph does not name the labels of its outputs: give "
            "OnnxModel(file, classes=[...]) or write a JSON list of them into its metadata as "
            '"classes", or train with labels 0, 1, ...'
        )


def acquired_by_high_cost(model: HighCostModel, x: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Mark the features that the high-cost model needs for each row, shape (n, n_features)."""
    x_used = np.ascontiguousarray(x[:, model.features])
    is_acquired = np.zeros(x.shape, np.bool_)
    is_acquired[:, model.features] = True
    trees = model.trees
    if isinstance(model.estimator, RandomForestClassifier | ExtraTreesClassifier):
        trees = TreeEnsemble.from_forest(model.estimator)
    if trees is not None:
        is_acquired[:, model.features] = trees.visited_features(x_used)
    system = model.estimator if model.python_model is None else model.python_model.model
    if hasattr(system, "stages_"):
        is_acquired[:, model.features] = acquired_by_system(system, x_used, paths=True)
    return is_acquired


def acquired_by_system(system: Any, x: NDArray[np.float32], *, paths: bool) -> NDArray[np.bool_]:
    """Mark the features that a fitted system acquires for each row, shape (n, n_features).

    With `paths`, an offloaded row acquires only the features that the high-cost model needs for it.
    Otherwise it acquires all features of the high-cost model.
    """
    exit_stages = system._find_exits(x)
    is_acquired = np.zeros(x.shape, np.bool_)
    for stage_number, stage in enumerate(system.stages_):
        reaches_stage = exit_stages >= stage_number
        stage_features = np.broadcast_to(stage.acquired(x), is_acquired.shape)
        is_acquired[reaches_stage] |= stage_features[reaches_stage]
    high_cost_model = system.high_cost_model_
    is_offloaded = exit_stages == len(system.stages_)
    if high_cost_model is not None and is_offloaded.any():
        if paths:
            is_acquired[is_offloaded] |= acquired_by_high_cost(high_cost_model, x[is_offloaded])
        else:
            is_acquired[is_offloaded] |= system.feature_costs_.mask(high_cost_model.features)
    return is_acquired
