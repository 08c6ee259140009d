"""The high-cost model as a graph that a cloud worker runs.

Tree ensembles (our own boosted model, a given forest or LightGBM model) become flat trees and go
through the one writer of :mod:`gatewise_export.onnx_writer`: output ``margins``. Other classifiers
of scikit-learn are written in its own arithmetic, and a given ONNX graph stays as it is inside:
these answer with ``label``, the class index, and ``probabilities``, a column per class.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import onnx
from numpy.typing import NDArray

from gatewise.decision import Link
from gatewise.errors import InputError
from gatewise.models.trees import TreeEnsemble
from gatewise_export.bundle.errors import ConversionError
from gatewise_export.bundle.manifest_records import CloudKind, ProbeSpec
from gatewise_export.onnx_writer import write_graph
from gatewise_export.packing.classifier_graph import with_class_indices
from gatewise_export.packing.verification import run_cloud
from gatewise_training.learners.given_models.flat_forms import FORESTS, flat_trees
from gatewise_training.learners.given_models.given_graph import GraphForm, Scores
from gatewise_training.learners.given_models.packable import library_name
from gatewise_training.learners.given_models.probe_rows import N_ROWS
from gatewise_training.learners.given_models.probing import probe
from gatewise_training.learners.given_models.sklearn_classifiers import unwrapped
from gatewise_training.learners.given_models.sklearn_graphs import sklearn_graph
from gatewise_training.learners.high_cost_model import HighCostModel

NEVER = np.float32(-1e30)
"""Margin of a class that the model does not know."""


class CloudGraph(NamedTuple):
    """A high-cost model's graph, and the meaning of its outputs."""

    content: bytes
    kind: CloudKind
    link: Link

    def answers(self, x: NDArray[np.float32]) -> tuple[NDArray[np.int64], NDArray[Any]]:
        """Run it: class indices and probabilities of rows, (n, n_used)."""
        return run_cloud(self.content, x, self.kind, self.link)


def high_cost_graph(model: HighCostModel, *, flat: bool = True) -> CloudGraph:
    """Write a high-cost model as a graph with the input ``x``, float32 (n, n_used).

    It is of kind ``margins`` (one output) or ``classifier`` (outputs ``label``, int64 (n,), the
    class index, and ``probabilities``, float32 (n, n_classes)). Without `flat` a forest adds up in
    float64.
    """
    if model.opaque is not None:
        raise ConversionError(f"high-cost model: {model.backend} has no form as a graph")
    trees = model.trees
    link = model.link
    estimator = unwrapped(model.estimator)
    if trees is None and estimator is not None and flat:
        try:
            form = flat_trees(estimator)
        except InputError as error:
            raise ConversionError(f"high-cost model: {error}") from error
        if form is not None:
            trees, link = _over_all_classes(*form, model)
    if trees is not None:
        return CloudGraph(write_graph(trees.canonical()), "margins", link)
    if model.onnx is not None:
        assert model.form is not None
        graph = onnx.load_model_from_string(model.onnx)
        graph_form = model.form
        own = None if graph_form.positions or graph_form.names is None else list(graph_form.names)
    else:
        try:
            graph = sklearn_graph(estimator, len(model.features), "high-cost model")
        except InputError as error:
            raise ConversionError(str(error)) from error
        own = None
        scores: Scores = "probabilities" if hasattr(estimator, "predict_proba") else "labels"
        score = 1 if scores == "probabilities" else None
        graph_form = GraphForm(scores, label=0, score=score, columns=len(estimator.classes_))
    content = with_class_indices(graph, own, model, graph_form)
    return CloudGraph(content, "classifier", "identity")


def probed_graph(
    model: HighCostModel,
    sample: NDArray[np.float32],
    *,
    missing: bool,
    n_rows: int = N_ROWS,
) -> tuple[CloudGraph, ProbeSpec | None]:
    """Write a high-cost model as a graph, and compare the two on adversarial rows.

    A forest whose flat trees round differently adds up in float64 instead. A graph that was given
    is not converted, so that it has nothing to compare. `sample`, float32 (n, n_features), has
    whole instances.

    Raises
    ------
    ConversionError
        If a row has another label or another probability.
    """
    if model.onnx is not None:
        return high_cost_graph(model), None
    columns = np.arange(len(model.features))
    source = replace(model, features=columns)
    is_forest = library_name(unwrapped(model.estimator)) in FORESTS
    for flat in (True, False) if is_forest else (True,):
        graph = high_cost_graph(model, flat=flat)
        try:
            figures = probe(
                model.trees if model.estimator is None else model.estimator,
                source,
                graph.answers,
                sample[:, model.features],
                "high-cost model",
                missing=missing,
                n_rows=n_rows,
            )
        except InputError as error:
            if flat and is_forest:
                continue
            raise ConversionError(str(error)) from error
        return graph, ProbeSpec(figures.rows, figures.undecided, figures.kinds)
    raise AssertionError


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
