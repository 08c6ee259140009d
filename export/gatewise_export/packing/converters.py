"""The high-cost model as a graph that a cloud worker runs.

Tree ensembles (our own boosted model, a given forest or LightGBM model) become flat trees and
go through the one builder of :mod:`gatewise_export.packing.onnx_graph`: output ``margins``. Other
scikit-learn classifiers go through skl2onnx, and a given ONNX graph stays as it is inside:
these answer with ``label``, the class index, and ``probabilities``, one column a class.
"""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import onnx

from gatewise.decision import Link
from gatewise.errors import one_line
from gatewise.models.trees import TreeEnsemble
from gatewise_export.bundle.errors import ConversionError
from gatewise_export.bundle.manifest import CloudKind
from gatewise_export.packing.classifier_graph import read_given, with_class_indices
from gatewise_export.packing.flat_converters import flat_trees, taught_converters
from gatewise_export.packing.graph_parts import INPUT, ML_DOMAIN, ML_OPSET, OPSET
from gatewise_export.packing.onnx_graph import flat_graph
from gatewise_training.learners.given_graph import GraphForm
from gatewise_training.learners.high_cost_model import HighCostModel

__all__ = ["CloudGraph", "high_cost_graph"]

NEVER = np.float32(-1e30)
"""Margin of a class that the model does not know."""


class CloudGraph(NamedTuple):
    """A high-cost model's graph, and how its outputs are to be read."""

    model: onnx.ModelProto
    kind: CloudKind
    link: Link


def high_cost_graph(model: HighCostModel) -> CloudGraph:
    """Write a high-cost model as a graph with the input ``x``, float32 (n, n_used).

    It is of kind ``margins`` (one output) or ``classifier`` (outputs ``label``, int64 (n,), the
    class index, and ``probabilities``, float32 (n, n_classes)).
    """
    if model.opaque is not None:
        raise ConversionError(f"high-cost model: {model.backend} has no form as a graph")
    trees = model.trees
    link = model.link
    estimator = _unwrapped(model.estimator)
    if trees is None and estimator is not None:
        found = flat_trees(estimator)
        if found is not None:
            trees, link = _over_all_classes(*found, model)
    if trees is not None:
        return CloudGraph(flat_graph(trees), "margins", link)
    if model.onnx is not None:
        graph, form = read_given(model.onnx), model.form
        if form is None:
            form = GraphForm("probabilities", 0, 1, model.n_classes)
        own = None if form.positions or form.names is None else list(form.names)
    else:
        graph = _converted(estimator, len(model.features))
        own = np.asarray(estimator.classes_).tolist()
        has_probabilities = hasattr(estimator, "predict_proba")
        form = GraphForm(
            "probabilities" if has_probabilities else "labels",
            label=0,
            score=1 if has_probabilities else None,
            columns=len(own),
        )
    return CloudGraph(with_class_indices(graph, own, model, form), "classifier", "identity")


def _unwrapped(estimator: Any) -> Any:
    """Look into scikit-learn's FrozenEstimator and searches, which have no converter."""
    while True:
        if type(estimator).__name__ == "FrozenEstimator":
            estimator = estimator.estimator
        elif hasattr(estimator, "best_estimator_"):
            estimator = estimator.best_estimator_
        else:
            return estimator


# -- flat trees ----------------------------------------------------------------------------


def _over_all_classes(
    trees: TreeEnsemble, link: Link, model: HighCostModel
) -> tuple[TreeEnsemble, Link]:
    """Give a model that was not fitted on every class an output for each."""
    lookup = model.lookup
    if lookup is None or np.array_equal(lookup, np.arange(model.n_classes)):
        return trees, link
    if link == "identity":
        value = np.zeros((trees.n_nodes, model.n_classes), np.float32)
        value[:, lookup] = trees.value
        return replace(trees, value=value, base=np.zeros(model.n_classes, np.float32)), link
    base = np.full(model.n_classes, NEVER)
    base[lookup] = trees.base if link == "softmax" else np.append(np.float32(0), trees.base)
    own = lookup if link == "softmax" else lookup[1:]  # sigmoid(m) is softmax(0, m)
    return replace(trees, output=own[trees.output].astype(np.int32), base=base), "softmax"


# -- scikit-learn --------------------------------------------------------------------------


def _converted(estimator: Any, n_features: int) -> onnx.ModelProto:
    import skl2onnx

    with warnings.catch_warnings(), taught_converters(estimator):
        # the converter of SVC reads what scikit-learn 1.9 calls deprecated
        warnings.filterwarnings("ignore", "Attribute `prob[AB]_` was deprecated", FutureWarning)
        try:
            graph: onnx.ModelProto = skl2onnx.to_onnx(
                estimator,
                name="f0",
                initial_types=_inputs(estimator, n_features),
                options=_options(estimator),
                target_opset={"": OPSET, ML_DOMAIN: ML_OPSET},
            )
        except Exception as error:  # skl2onnx raises types of every kind
            raise ConversionError(
                f"high-cost model: skl2onnx cannot convert {type(estimator).__name__}: "
                f"{one_line(error)}; give another classifier, or an ONNX file"
            ) from error
    return graph


def _inputs(estimator: Any, n_features: int) -> list[tuple[str, Any]]:
    """One matrix; one input a column where the estimator finds columns by their names."""
    from skl2onnx.common.data_types import FloatTensorType

    names = getattr(estimator, "feature_names_in_", None)
    if names is None or not _takes_names(estimator):
        return [(INPUT, FloatTensorType([None, n_features]))]
    return [(str(name), FloatTensorType([None, 1])) for name in names]


def _takes_names(estimator: Any) -> bool:
    """Whether a ColumnTransformer, perhaps of a pipeline, is the first to see the rows."""
    while hasattr(estimator, "steps"):
        estimator = estimator.steps[0][1]
    return type(estimator).__name__ == "ColumnTransformer"


def _options(estimator: Any) -> dict[Any, dict[str, Any]]:
    """Options with which skl2onnx computes what scikit-learn computes."""
    from sklearn.calibration import CalibratedClassifierCV
    from sklearn.pipeline import Pipeline
    from sklearn.preprocessing import StandardScaler

    # a division, not the product with the inverse: one bit can move a row across a split
    options: dict[Any, dict[str, Any]] = {StandardScaler: {"div": "div"}}
    if hasattr(estimator, "predict_proba"):
        options[id(estimator)] = {"zipmap": False}
    last = estimator[-1] if isinstance(estimator, Pipeline) else estimator
    for part in getattr(last, "calibrated_classifiers_", ()):
        inner = part.estimator
        # without this, a pipeline inside a calibration is calibrated on its probabilities
        # where scikit-learn takes its decision function (sklearn-onnx issue 1246)
        if (
            isinstance(last, CalibratedClassifierCV)
            and isinstance(inner, Pipeline)
            and hasattr(inner, "decision_function")
        ):
            options[id(inner)] = options[id(inner[-1])] = {"raw_scores": True}
    return options
