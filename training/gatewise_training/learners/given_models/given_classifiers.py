"""Conversion of the user's fitted classifiers into stages, with a comparison of the answers.

A classifier that consists of trees becomes flat trees, and any other classifier an ONNX graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from gatewise.decision import Link, labels, probabilities
from gatewise.errors import InputError
from gatewise.models.stage import Stage
from gatewise.models.trees import TreeEnsemble
from gatewise_training.data.input_checks import is_fitted, named_rows
from gatewise_training.data.validation_split import ValidationSplit
from gatewise_training.learners.given_models.estimator_fits import fit_clone
from gatewise_training.learners.given_models.flat_forms import FOREST_CLASSES, flat_trees
from gatewise_training.learners.given_models.given_graph import GivenGraph, OnnxModel, graph_answer
from gatewise_training.learners.given_models.given_model_check import can_be_cloned
from gatewise_training.learners.given_models.packable import (
    ADVICE,
    STAGE_ADVICE,
    Estimator,
    check_packable,
    is_same_column,
    library_class_name,
)
from gatewise_training.learners.given_models.probing import Answers, probe
from gatewise_training.learners.given_models.raw_boosters import (
    RawBooster,
    as_classifier,
    probe_library_file,
)
from gatewise_training.learners.given_models.sklearn_classifiers import inner_estimator
from gatewise_training.learners.given_models.sklearn_graphs import sklearn_graph
from gatewise_training.learners.high_cost_model import HighCostModel, is_graph

#: Number of rows on which a fit probes a conversion; packing uses more.
N_FIT_PROBE_ROWS = 1000


def check_fitted(model: Estimator, model_name: str) -> None:
    """Refuse a model that is neither a fitted classifier nor an ONNX file."""
    if model is None or (isinstance(model, type) and hasattr(model, "fit")):
        raise InputError(
            f"{model_name} must be a fitted classifier, or an ONNX file, not {model!r}"
        )
    if is_graph(model) or isinstance(model, RawBooster):
        return
    if not hasattr(model, "predict") or not (is_fitted(model) and hasattr(model, "classes_")):
        raise InputError(
            f"{model_name} is not a fitted classifier but a {type(model).__name__}: fit it first, "
            "or give an ONNX file; clone() and cross-validation need FrozenEstimator(model)"
        )


@dataclass(frozen=True, eq=False)
class GivenClassifier:
    """A classifier that the user gives, with either its flat trees or its graph."""

    model_name: str  # name of the classifier in errors
    classes: Sequence[Any] | None  # labels, or None if a graph does not name them
    # 0 if a graph gives only labels and does not name them; `stage` then takes the user's classes
    n_classes: int
    flat_form: tuple[TreeEnsemble, Link] | None = None
    graph: GivenGraph | None = None

    @classmethod
    def read(
        cls, model: Estimator, x: NDArray[np.float32], shape: tuple[int, ...], model_name: str
    ) -> Self:
        """Convert a model for instances of `shape`; a graph is run on the flat rows `x`."""
        if is_graph(model):
            return cls.of_graph(GivenGraph(model, shape, model_name, x), model_name)
        n_features = int(getattr(model, "n_features_in_", None) or x.shape[1])
        if n_features != x.shape[1]:
            raise InputError(
                f"{model_name} was fitted on {n_features} features, an instance has {x.shape[1]} "
                "values"
            )
        try:
            flat_form = flat_trees(inner_estimator(model))
        except InputError as error:
            raise InputError(f"{model_name}: {error}") from error
        if flat_form is None:
            return cls.of_estimator(model, x, shape, model_name)
        classes = np.asarray(model.classes_).tolist()
        return cls(model_name, classes, len(classes), flat_form)

    @classmethod
    def of_graph(cls, graph: GivenGraph, model_name: str) -> Self:
        """Make a classifier from a graph."""
        return cls(model_name, graph.form.names, graph.form.n_classes, graph=graph)

    @classmethod
    def of_estimator(
        cls, model: Estimator, x: NDArray[np.float32], shape: tuple[int, ...], model_name: str
    ) -> Self:
        """Convert a classifier to a graph, even if it consists of trees."""
        graph_proto = sklearn_graph(model, x.shape[1], model_name)
        has_probabilities = any(
            output.name == "probabilities" for output in graph_proto.graph.output
        )
        onnx_model = OnnxModel(
            graph_proto.SerializeToString(deterministic=True),
            np.asarray(model.classes_).tolist(),
            "probabilities" if has_probabilities else None,
        )
        graph = GivenGraph(onnx_model, shape, model_name, x)
        # also if all indices that it gives for `x` happen to be labels
        graph.form = graph.form._replace(label_is_index=True)
        return cls.of_graph(graph, model_name)

    @classmethod
    def read_and_compare(
        cls,
        model: Estimator,
        x: NDArray[np.float32],
        shape: tuple[int, ...],
        model_name: str,
        *,
        as_stage: bool = True,
        allow_missing: bool = False,
    ) -> Self:
        """Convert a model, and compare the result with the model on adversarial rows.

        These rows lie at the boundaries where rounding changes an answer. If the flat trees of a
        forest differ there, the forest becomes a graph, which sums in float64 as scikit-learn does.
        With `as_stage` the stage is compared, otherwise labels and probabilities. ONNX graphs are
        not converted, and therefore not compared.
        """
        classifier = cls.read(model, x, shape, model_name)
        if is_graph(model):
            return classifier
        try:
            classifier._probe(model, x, as_stage=as_stage, allow_missing=allow_missing)
        except InputError:
            # for another reason than rounding, the graph is refused with the same error
            if (
                classifier.flat_form is None
                or library_class_name(inner_estimator(model)) not in FOREST_CLASSES
            ):
                raise
            classifier = cls.of_estimator(model, x, shape, model_name)
            classifier._probe(model, x, as_stage=as_stage, allow_missing=allow_missing)
        return classifier

    def _probe(
        self, model: Estimator, x: NDArray[np.float32], *, as_stage: bool, allow_missing: bool
    ) -> None:
        """Compare the conversion with its source `model`."""
        classes = np.asarray(model.classes_)
        source = HighCostModel.from_model(model, classes, x.shape[1])
        has_probabilities = hasattr(model, "predict_proba")
        runs_graph = self.graph is not None and not as_stage
        stage = None if runs_graph else self.stage(classes, np.arange(x.shape[1]))

        def answer_converted(rows: NDArray[Any]) -> Answers:
            if stage is None:
                assert self.graph is not None
                label, class_probabilities = graph_answer(self.graph.content, self.graph.form, rows)
            else:
                margins = stage.margins(rows)
                label, class_probabilities = labels(margins), probabilities(margins, stage.link)
            if not has_probabilities:  # the source returns only labels
                return label, np.eye(len(classes))[label]
            return label, class_probabilities

        probe(
            model,
            source,
            answer_converted,
            x,
            self.model_name,
            allow_missing=allow_missing,
            n_rows=N_FIT_PROBE_ROWS,
            advice=STAGE_ADVICE if as_stage else ADVICE,
        )

    def stage(self, classes: NDArray[Any], features: NDArray[np.intp]) -> Stage:
        """Make a stage on the columns `features`, with outputs in the order of `classes`."""
        class_labels = classes.tolist()
        own_labels = list(
            (self.graph.named_form(class_labels).names if self.graph else self.classes) or ()
        )
        if set(own_labels) != set(class_labels):
            raise InputError(
                f"{self.model_name} has the classes {own_labels[:8]} instead of "
                f"{class_labels[:8]}: all models must have the same classes"
            )
        label_order = None
        if own_labels != class_labels:
            label_order = np.array([own_labels.index(label) for label in class_labels], np.int64)
        if self.graph is not None:
            model, link = self.graph.margins_model(label_order)
            return Stage(model, features, link)
        assert self.flat_form is not None
        if label_order is not None:
            raise InputError(f"the classes of {self.model_name} are in another order: sort them")
        return Stage(self.flat_form[0], features, self.flat_form[1])


def check_conversion(model: HighCostModel, x: NDArray[np.float32], *, allow_missing: bool) -> None:
    """Refuse a fitted high-cost model that packing could not convert, before stages are fitted.

    `x`, float32 (n, n_features), are training rows. A booster without an exact graph is accepted if
    a file of its own library gives the same answers.
    """
    columns = x[:, model.features]
    try:
        GivenClassifier.read_and_compare(
            model.estimator,
            columns,
            columns.shape[1:],
            "high_cost_model",
            as_stage=False,
            allow_missing=allow_missing,
        )
    except InputError:
        if (
            probe_library_file(model, columns, allow_missing=allow_missing, n_rows=N_FIT_PROBE_ROWS)
            is None
        ):
            raise


def check_first_stages(models: Any, *, allow_missing: bool) -> None:
    """Refuse a value of `first_stages` that a fit cannot use."""
    if isinstance(models, str | bytes) or not isinstance(models, Sequence):
        raise InputError(f"first_stages must be a list of models, not {type(models).__name__}")
    if len(models) and allow_missing:
        raise InputError("first_stages cannot handle NaN: leave out allow_missing")
    for stage_number, model_or_pair in enumerate(models):
        name = f"first_stages[{stage_number}]"
        classifier = as_classifier(
            model_or_pair[0] if _is_pair(model_or_pair) else model_or_pair, name
        )
        check_fitted(classifier, name)
        check_packable(classifier, name, as_stage=True)


def given_stages(
    models: Sequence[Any],
    split: ValidationSplit,
    classes: NDArray[Any],
    column_names: tuple[str, ...],
    *,
    by_clones: bool,
) -> list[tuple[Stage, NDArray[np.float32]]]:
    """Make stages from given models, and compute the outputs of each on the validation rows.

    With `by_clones`, the outputs on the validation rows of each fold come from a clone that was
    fitted on the other rows. Models that cannot be cloned compute all outputs themselves.
    """
    stages = []
    for stage_number, model_or_pair in enumerate(models):
        name = f"first_stages[{stage_number}]"
        model, columns = model_and_columns(model_or_pair, column_names, name)
        x = split.x[:, columns]
        classifier = GivenClassifier.read_and_compare(model, x, x.shape[1:], name)
        stage = classifier.stage(classes, columns)
        if not by_clones or is_graph(model) or not can_be_cloned(model):
            stages.append((stage, stage.margins(split.x[split.validation_rows])))
            continue
        # the order of the folds is the order of `split.validation_rows`
        outputs = []
        for rows, unseen_rows in split.folds:
            fitted_clone = fit_clone(
                model, named_rows(model, x[rows]), classes[split.y[rows]], split.weight[rows]
            )
            fold_classifier = GivenClassifier.read(fitted_clone, x, x.shape[1:], name)
            fold_stage = fold_classifier.stage(classes, columns)
            outputs.append(fold_stage.margins(split.x[unseen_rows]))
        stages.append((stage, np.concatenate(outputs)))
    return stages


def _is_pair(model_or_pair: Any) -> bool:
    return isinstance(model_or_pair, tuple) and len(model_or_pair) == 2


def model_and_columns(
    model_or_pair: Any, column_names: tuple[str, ...], model_name: str
) -> tuple[Any, NDArray[np.intp]]:
    """Separate a given model from the columns that it reads.

    The columns are given by name, by index or as a mask. By default they are the columns that the
    model was fitted with, or else all columns. Raises InputError if a column is unknown or occurs
    twice.
    """
    model, given_columns = model_or_pair if _is_pair(model_or_pair) else (model_or_pair, None)
    model = as_classifier(model, model_name)
    if given_columns is None:
        given_columns = getattr(model, "feature_names_in_", None)
    if given_columns is None:
        return model, np.arange(len(column_names))
    given_columns = np.asarray(given_columns)
    if given_columns.dtype == bool:
        if given_columns.shape != (len(column_names),):
            raise InputError(
                f"{model_name}: a mask of {given_columns.size} columns, but the data have "
                f"{len(column_names)}"
            )
        given_columns = np.flatnonzero(given_columns)
    columns = []
    for column in given_columns.tolist():
        matching_indices = (
            data_index
            for data_index, name in enumerate(column_names)
            if is_same_column(column, name)
        )
        index = next(matching_indices, column if isinstance(column, int) else -1)
        if not 0 <= index < len(column_names):
            raise InputError(f"{model_name} reads {column!r}, which is not a column of the data")
        if index in columns:
            raise InputError(f"{model_name} reads the column {column_names[index]!r} twice")
        columns.append(index)
    return model, np.array(columns, np.intp)
