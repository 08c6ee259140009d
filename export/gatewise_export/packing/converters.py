"""The high-cost model as a graph that a cloud worker runs.

Tree ensembles (our own boosted model, a given forest or LightGBM model) become flat trees and
go through the one writer of :mod:`gatewise_export.onnx_writer`: output ``margins``. Other
scikit-learn classifiers go through skl2onnx, and a given ONNX graph stays as it is inside:
these answer with ``label``, the class index, and ``probabilities``, one column a class.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import onnx

from gatewise.decision import Link
from gatewise.errors import InputError
from gatewise.models.trees import TreeEnsemble
from gatewise_export.bundle.errors import ConversionError
from gatewise_export.bundle.manifest import CloudKind
from gatewise_export.onnx_writer import write_graph
from gatewise_export.packing.classifier_graph import with_class_indices
from gatewise_training.learners.given_models.flat_forms import flat_trees
from gatewise_training.learners.given_models.given_graph import GraphForm
from gatewise_training.learners.given_models.sklearn_graphs import sklearn_graph, unwrapped
from gatewise_training.learners.high_cost_model import HighCostModel

NEVER = np.float32(-1e30)
"""Margin of a class that the model does not know."""


class CloudGraph(NamedTuple):
    """A high-cost model's graph, and how its outputs are to be read."""

    content: bytes
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
    estimator = unwrapped(model.estimator)
    if trees is None and estimator is not None:
        try:
            found = flat_trees(estimator)
        except InputError as error:
            raise ConversionError(f"high-cost model: {error}") from error
        if found is not None:
            trees, link = _over_all_classes(*found, model)
    if trees is not None:
        return CloudGraph(write_graph(trees.canonical()), "margins", link)
    if model.onnx is not None:
        assert model.form is not None
        graph, form = onnx.load_model_from_string(model.onnx), model.form
        own = None if form.positions or form.names is None else list(form.names)
    else:
        try:
            graph = sklearn_graph(estimator, len(model.features), "high-cost model")
        except InputError as error:
            raise ConversionError(str(error)) from error
        own = np.asarray(estimator.classes_).tolist()
        has_probabilities = hasattr(estimator, "predict_proba")
        form = GraphForm(
            "probabilities" if has_probabilities else "labels",
            label=0,
            score=1 if has_probabilities else None,
            columns=len(own),
        )
    return CloudGraph(with_class_indices(graph, own, model, form), "classifier", "identity")


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
