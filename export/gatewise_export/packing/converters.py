"""Convert a high-cost model to a file that a cloud worker runs.

Tree ensembles (the built-in boosted model, forests and LightGBM models) become flat trees, which
:mod:`gatewise_export.onnx_writer` writes as a graph with the output ``margins``. Other scikit-learn
classifiers become graphs that compute as scikit-learn does, and ONNX graphs that the user gives are
extended. Graphs of both kinds output ``label``, the class index, and ``probabilities``, with a
column for each class. A booster without an exact graph becomes a model file of its library, which
workers then need.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import onnx
from numpy.typing import NDArray

from gatewise.decision import Link
from gatewise.errors import InputError
from gatewise.models.booster_files import FILE_EXTENSIONS
from gatewise.models.trees import TreeEnsemble
from gatewise_export.bundle.decisions import CloudAnswers
from gatewise_export.bundle.errors import ConversionError
from gatewise_export.bundle.manifest_records import CloudKind, ProbeSpec
from gatewise_export.onnx_writer import write_graph
from gatewise_export.packing.classifier_graph import with_class_indices
from gatewise_export.packing.verification import run_cloud
from gatewise_training.learners.given_models.flat_forms import FOREST_CLASSES, flat_trees
from gatewise_training.learners.given_models.given_graph import GraphForm
from gatewise_training.learners.given_models.packable import library_class_name
from gatewise_training.learners.given_models.probing import N_ROWS, ProbeFigures, probe
from gatewise_training.learners.given_models.raw_boosters import probe_library_file
from gatewise_training.learners.given_models.sklearn_classifiers import inner_estimator
from gatewise_training.learners.given_models.sklearn_graphs import sklearn_graph
from gatewise_training.learners.high_cost_model import HighCostModel

#: Largest number of characters of a text in a manifest.
MAX_PROBLEM_LENGTH = 256
#: Margin of a class that the model was not fitted on. Its softmax is 0, and sums stay finite.
ABSENT_CLASS_MARGIN = np.float32(-1e30)


class CloudFile(NamedTuple):
    """A high-cost model's file, and the meaning of its outputs.

    Attributes
    ----------
    content : bytes
    kind : {"margins", "classifier", "lightgbm", "xgboost", "catboost"}
        As in :class:`.CloudSpec`.
    link : {"identity", "sigmoid", "softmax"}
    n_classes : int
    probed : ProbeSpec or None
        Rows on which the file was compared with the model.
    graph_problem : str or None
        Why the file is not a graph; None if it is one.
    """

    content: bytes
    kind: CloudKind
    link: Link
    n_classes: int
    probed: ProbeSpec | None = None
    graph_problem: str | None = None

    @property
    def name(self) -> str:
        """Name of the file in a bundle."""
        # two comparisons, because mypy does not narrow by `in`
        if self.kind == "margins" or self.kind == "classifier":
            return "cloud.onnx"
        return f"cloud.{FILE_EXTENSIONS[self.kind]}"

    def answers(self, rows: NDArray[np.float32]) -> CloudAnswers:
        """Compute the file's answers to rows of the model's own columns, (n, n_used)."""
        return run_cloud(self.content, rows, self.kind, self.link, self.n_classes)


def convert_to_graph(model: HighCostModel, *, allows_flat_trees: bool = True) -> CloudFile:
    """Convert a high-cost model to a graph with the input ``x``, float32 (n, n_used).

    The columns of ``x`` are the features that the model uses. The graph outputs either ``margins``,
    or ``label``, int64 (n,), and ``probabilities``, float32 (n, n_classes). If `allows_flat_trees`
    is False, a forest's graph sums in float64 instead of float32.
    """
    if model.python_model is not None:
        raise ConversionError(f"high-cost model: {model.backend} cannot be converted to a graph")
    if model.onnx is not None:
        return _extend_given_graph(model, model.onnx)
    if model.trees is not None:
        return _write_trees(model.trees, model.link, model.n_classes)
    estimator = inner_estimator(model.estimator)
    if allows_flat_trees:
        try:
            flat_form = flat_trees(estimator)
        except InputError as error:
            raise ConversionError(f"high-cost model: {error}") from error
        if flat_form is not None:
            return _write_trees(*_with_all_classes(*flat_form, model), model.n_classes)
    return _convert_classifier(model, estimator)


def _write_trees(trees: TreeEnsemble, link: Link, n_classes: int) -> CloudFile:
    return CloudFile(write_graph(trees.in_canonical_order()), "margins", link, n_classes)


def _extend_given_graph(model: HighCostModel, content: bytes) -> CloudFile:
    """Add the outputs ``label`` and ``probabilities`` to the user's graph."""
    form = model.form
    assert form is not None  # each given graph has a form
    graph = onnx.load_model_from_string(content)
    labels = None if form.label_is_index or form.names is None else list(form.names)
    extended_graph = with_class_indices(graph, labels, model, form)
    return CloudFile(extended_graph, "classifier", "identity", model.n_classes)


def _convert_classifier(model: HighCostModel, estimator: Any) -> CloudFile:
    """Write a graph that computes as a scikit-learn classifier does."""
    try:
        graph = sklearn_graph(estimator, len(model.features), "high-cost model")
    except InputError as error:
        raise ConversionError(str(error)) from error
    has_probabilities = hasattr(estimator, "predict_proba")
    form = GraphForm(
        "probabilities" if has_probabilities else "labels",
        label_output=0,
        score_output=1 if has_probabilities else None,
        n_columns=len(estimator.classes_),
    )
    content = with_class_indices(graph, None, model, form)
    return CloudFile(content, "classifier", "identity", model.n_classes)


def convert_and_probe(
    model: HighCostModel, sample: NDArray[np.float32], *, allow_missing: bool, n_rows: int = N_ROWS
) -> CloudFile:
    """Convert a high-cost model to a file, and compare the two on adversarial rows.

    The files are tried in order until one gives the model's answers: a graph of flat trees, which
    sum in float32; for a forest, a graph that sums in float64; for a booster, its library's model
    file. A given graph is neither converted nor compared. `sample`, float32 (n, n_features), holds
    whole instances.

    Raises
    ------
    ConversionError
        If no file gives the model's answers on all rows; the message names a row on which the
        first one fails.
    """
    if model.onnx is not None:
        return convert_to_graph(model)
    # the file reads only the columns of the model, so compare it with a model of these columns
    model_rows = sample[:, model.features]
    reduced_model = replace(model, features=np.arange(len(model.features)))
    is_forest = library_class_name(inner_estimator(model.estimator)) in FOREST_CLASSES
    # flat trees that were trained here were not converted from a classifier
    probed_classifier = model.trees if model.estimator is None else model.estimator
    graph_errors: list[ConversionError] = []
    for allows_flat_trees in (True, False) if is_forest else (True,):
        try:
            graph_file = convert_to_graph(model, allows_flat_trees=allows_flat_trees)
            probe_figures = probe(
                probed_classifier,
                reduced_model,
                graph_file.answers,
                model_rows,
                "high-cost model",
                allow_missing=allow_missing,
                n_rows=n_rows,
            )
        except (ConversionError, InputError) as error:
            graph_errors.append(ConversionError(str(error)))
            continue
        return graph_file._replace(probed=_probe_spec(probe_figures))
    try:
        library_file = probe_library_file(
            model, model_rows, allow_missing=allow_missing, n_rows=n_rows
        )
    except InputError as error:
        raise ConversionError(f"{graph_errors[0]}; {error}") from error
    if library_file is None:
        raise graph_errors[0]
    library, content, probe_figures = library_file
    # Leave out the advice after the semicolon, which is for the user who packs the model.
    graph_problem = str(graph_errors[0]).partition(";")[0][:MAX_PROBLEM_LENGTH]
    return CloudFile(
        content, library, "identity", model.n_classes, _probe_spec(probe_figures), graph_problem
    )


def _probe_spec(figures: ProbeFigures) -> ProbeSpec:
    return ProbeSpec(figures.rows, figures.undecided, figures.kinds)


# -- flat trees ----------------------------------------------------------------------------


def _with_all_classes(
    trees: TreeEnsemble, link: Link, model: HighCostModel
) -> tuple[TreeEnsemble, Link]:
    """Add outputs for the classes that a model was not fitted on."""
    class_indices = model.class_indices
    if class_indices is None or np.array_equal(class_indices, np.arange(model.n_classes)):
        return trees, link
    if link == "identity":
        node_values = np.zeros((trees.n_nodes, model.n_classes), np.float32)
        node_values[:, class_indices] = trees.value
        base = np.zeros(model.n_classes, np.float32)
        base[class_indices] = trees.base
        return replace(trees, value=node_values, base=base), link
    base = np.full(model.n_classes, ABSENT_CLASS_MARGIN)
    # two classes with sigmoid(m) are softmax(0, m): the first class has no trees and the base 0
    base[class_indices] = trees.base if link == "softmax" else np.append(np.float32(0), trees.base)
    classes = class_indices if link == "softmax" else class_indices[1:]
    return replace(trees, output=classes[trees.output].astype(np.int32), base=base), "softmax"
