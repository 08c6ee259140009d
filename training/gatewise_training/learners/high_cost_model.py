"""The high-cost model f0, trained here or given as a classifier, an ONNX graph or a callable.

In this module classes are indices 0..M-1. A given fitted model is never refitted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gatewise.decision import Link, class_positions, labels, probabilities
from gatewise.errors import InputError
from gatewise.imports import import_object
from gatewise.models.opaque_models import PYTHON, PythonModel
from gatewise.models.trees import TreeEnsemble
from gatewise_training.data.input_checks import named_rows
from gatewise_training.learners.boosting import link_of
from gatewise_training.learners.given_models.given_graph import (
    FormedGraph,
    GraphForm,
    OnnxModel,
    graph_answer,
)
from gatewise_training.learners.given_models.packable import is_column, needs_backend


def is_given(model: Any) -> bool:
    """Whether a `high_cost_model` answers as it is, with nothing to fit.

    Such models are an ONNX file, a function, an import path, an object or a class with
    ``predict_proba`` and without ``fit``. A classifier may be fitted or not.
    """
    return not hasattr(model, "fit")


def is_graph(model: Any) -> bool:
    """Whether a model is given as an ONNX file: its path, its bytes or an OnnxModel."""
    if isinstance(model, str):
        return not model.startswith(PYTHON)
    return isinstance(model, Path | bytes | OnnxModel)


@dataclass(frozen=True, eq=False)
class HighCostModel:
    """A fitted high-cost model of any kind.

    Attributes
    ----------
    features : ndarray of intp, shape (n_used,)
        Columns of the instance that it reads, in its own order.
    n_classes : int
    kind : str
        Name of its kind, for display: "svm", "boosting", "extra-trees", "given", "onnx", "python".
    trees : TreeEnsemble or None
        Its margins as flat arrays over `features`, if it was trained here as trees.
    estimator : object or None
        A fitted scikit-learn classifier over `features`.
    onnx : bytes or None
        A given ONNX graph, with the input ``x`` over `features`.
    form : GraphForm or None
        Meaning of this graph's outputs.
    opaque : PythonModel or None
        A function that answers with probabilities of all classes, and has no form as a graph.
    lookup : ndarray of int64, shape (n_own_classes,) or None
        Class index of each of the estimator's (or the graph's) own classes.
    rounds : int
        Boosting rounds, 0 for other kinds.
    """

    features: NDArray[np.intp]
    n_classes: int
    kind: str
    trees: TreeEnsemble | None = None
    estimator: Any = None
    onnx: bytes | None = None
    form: GraphForm | None = None
    opaque: PythonModel | None = None
    lookup: NDArray[np.int64] | None = None
    rounds: int = 0

    @property
    def link(self) -> Link:
        """Link from the margins of `trees` to probabilities; identity for a forest's margins."""
        return "identity" if self.kind == "extra-trees" else link_of(self.n_classes)

    @property
    def backend(self) -> str | None:
        """Backend with which a worker serves an opaque model, ``python:...``; None for a graph."""
        return None if self.opaque is None else self.opaque.spec

    def shifted(self, first: int) -> HighCostModel:
        """Get the same model with its features counted from column `first` on."""
        return replace(self, features=self.features + first)

    def answers(self, x: NDArray[np.float32]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Get :meth:`labels` and :meth:`predict_proba` of instances `x`, each computed once."""
        columns = x[:, self.features]
        if self.trees is not None:
            margins = self.trees.margins(columns)
            return labels(margins), probabilities(margins, self.link)
        if self.opaque is not None:
            chances = self.opaque.predict_proba(columns)
            return np.asarray(chances.argmax(axis=1), np.int64), chances
        if self.onnx is not None:
            assert self.form is not None
            position, raw = graph_answer(self.onnx, self.form, columns)
            indices = position if self.lookup is None else self.lookup[position]
            return indices, self._over_all_classes(raw)
        indices = self._estimator_labels(columns)
        return indices, self._estimator_chances(columns, indices)

    def predict_proba(self, x: NDArray[np.float32]) -> NDArray[np.float64]:
        """Get class probabilities, float64 (n, n_classes).

        They are one-hot labels if the model gives no probabilities. `x`, float32 (n, n_features),
        has whole instances.
        """
        if self.estimator is not None and hasattr(self.estimator, "predict_proba"):
            return self._estimator_chances(x[:, self.features], np.empty(0, np.int64))
        return self.answers(x)[1]

    def labels(self, x: NDArray[np.float32]) -> NDArray[np.int64]:
        """Get class indices of instances `x`, int64 (n,), by its own ``predict``."""
        if self.estimator is not None:
            return self._estimator_labels(x[:, self.features])
        return self.answers(x)[0]

    def _estimator_labels(self, x_used: NDArray[np.float32]) -> NDArray[np.int64]:
        predicted = np.ravel(
            self.estimator.predict(named_rows(self.estimator, x_used))
        )  # CatBoost gives a column
        position = class_positions(np.asarray(self.estimator.classes_), predicted)
        return position if self.lookup is None else self.lookup[position]

    def _estimator_chances(
        self, x_used: NDArray[np.float32], class_indices: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        if hasattr(self.estimator, "predict_proba"):
            return self._over_all_classes(
                self.estimator.predict_proba(named_rows(self.estimator, x_used))
            )
        out = np.zeros((len(x_used), self.n_classes))
        out[np.arange(len(x_used)), class_indices] = 1.0
        return out

    def _over_all_classes(self, raw: NDArray[Any]) -> NDArray[np.float64]:
        if n_nan_rows := int(np.isnan(raw).any(axis=1).sum()):
            raise InputError(
                f"high_cost_model gives no probabilities (NaN) for {n_nan_rows} of {len(raw)} "
                "rows, which a worker cannot send: repair the model or give another one"
            )
        out = np.zeros((len(raw), self.n_classes))
        out[:, np.arange(raw.shape[1]) if self.lookup is None else self.lookup] = raw
        return out

    @classmethod
    def given(
        cls,
        model: Any,
        classes: NDArray[Any],
        n_features: int,
        names: Sequence[str] | None = None,
        shape: tuple[int, ...] | None = None,
    ) -> HighCostModel:
        """Wrap a fitted classifier or an ONNX file; nothing is refitted.

        Parameters
        ----------
        model : object
            A fitted classifier of scikit-learn, LightGBM, XGBoost or CatBoost; path, bytes or
            :class:`.OnnxModel` of an ONNX graph that takes one row per instance and gives labels,
            probabilities or logits; a :class:`.FormedGraph`; or an opaque model: a function of the
            rows that gives probabilities, an object or a class with ``predict_proba``, or their
            import path ``python:module:attribute``.
        classes : ndarray, shape (n_classes,)
            The data's class labels, in the order of a FormedGraph's outputs if it names none.
        n_features : int
        names : sequence of str, optional
            The data's column names, which must be the model's where it has any.
        shape : tuple of int, optional
            Shape of instances for a graph; by default (n_features,).

        Returns
        -------
        HighCostModel
            Of kind "given", "onnx" or "python".

        Raises
        ------
        InputError
            If it reads other features or has other classes than the data, or gives no
            probabilities.
        """
        all_columns = np.arange(n_features)
        # an import path
        if isinstance(model, str) and model.startswith(PYTHON):
            opaque = PythonModel(
                import_object(model, model.removeprefix(PYTHON)), classes.tolist(), model
            )
            return cls(all_columns, len(classes), "python", opaque=opaque)
        # an ONNX graph
        if is_graph(model):
            model = FormedGraph(model, shape or (n_features,), "high_cost_model")
            _check_named(model.form, classes)
        if isinstance(model, FormedGraph):
            form = model.named(classes.tolist())
            lookup = _match(list(form.names or ()), classes)
            return cls(
                all_columns, len(classes), "onnx", onnx=model.content, form=form, lookup=lookup
            )
        # a function, or a classifier of an unknown library
        predicts = hasattr(model, "predict_proba") or hasattr(model, "predict")
        if not predicts and not callable(model):
            raise InputError(
                f"high_cost_model is a {type(model).__name__}: give a classifier, an ONNX file, "
                "a function that gives probabilities, or None"
            )
        if not predicts or needs_backend(model):
            opaque = PythonModel(model, classes.tolist())
            return cls(all_columns, len(classes), "python", opaque=opaque)
        # a classifier of a known library
        n_model_features = int(getattr(model, "n_features_in_", n_features))
        if n_model_features != n_features:
            raise InputError(
                f"high_cost_model was fitted on {n_model_features} features, the data has "
                f"{n_features}"
            )
        names_of_model = getattr(model, "feature_names_in_", None)
        if names is not None and names_of_model is not None:
            for number, (own_name, name) in enumerate(zip(names_of_model, names, strict=True)):
                if not is_column(own_name, name):
                    raise InputError(
                        f"high_cost_model was fitted with {str(own_name)!r} as column {number}, "
                        f"the data has {name!r} there; give the columns in the model's order"
                    )
        own_classes = np.asarray(getattr(model, "classes_", ()))
        lookup = _match(own_classes.tolist(), classes)
        return cls(all_columns, len(classes), "given", estimator=model, lookup=lookup)


def _match(own_classes: list[Any], classes: NDArray[Any]) -> NDArray[np.int64]:
    data_classes = classes.tolist()
    unknown = [c for c in own_classes if c not in data_classes]
    if unknown:
        raise InputError(
            f"high_cost_model has class {unknown[0]!r}, which the data lacks: "
            "y must hold the labels that it was fitted on"
        )
    if not own_classes:
        raise InputError("high_cost_model is not a fitted classifier: it has no classes_")
    return np.array([data_classes.index(c) for c in own_classes], np.int64)


def _check_named(form: GraphForm, classes: NDArray[Any]) -> None:
    """Refuse a graph that does not say which of the data's classes its outputs are."""
    names_are_numbers = form.positions and classes.tolist() == list(range(len(classes)))
    if form.names is None and not names_are_numbers:
        raise InputError(
            "high_cost_model's graph does not name the labels of its outputs: give "
            "OnnxModel(file, classes=[...]) or write a JSON list of them into its metadata as "
            '"classes", or train with labels 0, 1, ...'
        )
