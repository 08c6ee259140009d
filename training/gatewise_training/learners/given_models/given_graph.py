"""Given ONNX classifiers over flat rows: the form of their outputs, their margins and answers.

A graph gives labels and probabilities (skl2onnx), probabilities, logits (networks) or only labels.
The form of its outputs is detected by running some rows, unless the user states it.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gatewise.decision import Link, labels, probabilities
from gatewise.errors import InputError, one_line, warn_caller
from gatewise.imports import open_session
from gatewise.models.graph_model import GraphModel
from gatewise_training.learners.given_models.graph_files import (
    DOUBLE_TYPE,
    FLOAT_TYPE,
    GraphTail,
    read_graph,
    row_by_row,
)
from gatewise_training.learners.torch_models import export_module, is_torch

Scores = Literal["probabilities", "logits", "labels"]

_LOG = logging.getLogger("gatewise_training")

#: Number of rows per run. With more rows, a network's intermediate values would not fit into the
#: caches of the processor.
BATCH_ROWS = 256

#: Number of random rows on which the form is detected if no rows are given.
N_RANDOM_ROWS = 32

#: Number of rows that are also run one by one, because a graph must not mix the rows of a batch.
N_SINGLE_ROWS = 4


#: Lower bound of a probability before its logarithm is computed, so that margins stay finite. It is
#: far below every probability that a float32 softmax usually gives.
LOG_FLOOR = 1e-30


@dataclass(frozen=True, eq=False)
class OnnxModel:
    """An ONNX file, with the labels of its classes and the meaning of its scores.

    Parameters
    ----------
    source : path, bytes, torch.nn.Module or torch.export program
        The path or the content of the file, or a PyTorch model, which is exported.
    classes : sequence, optional
        Labels of the graph's columns, in their order. By default these are the labels in the file
        (a JSON list under "classes" in its metadata, or the keys of ZipMap), or else 0, 1, ...
    scores : {"probabilities", "logits", "labels"}, optional
        Kind of the graph's scores. By default it is detected by running rows: scores that are at
        least 0 and add up to 1 in every row, or a single column from 0 to 1, are probabilities, and
        others are logits. A graph without scores gives labels.

    Examples
    --------
    ``StagedCascade(OnnxModel("network.onnx", classes=["cat", "dog"], scores="logits"))``
    """

    source: Any
    classes: Sequence[Any] | None = None
    scores: Scores | None = None


class GraphForm(NamedTuple):
    """Meaning of a classifier's outputs.

    `label_output` and `score_output` are indices of outputs, or None if the output is missing.
    `n_columns` is the number of score columns; a single column is the score of the second of two
    classes. `names` are the labels of the columns. `label_is_index` says whether the label output
    holds indices into `names` instead of labels.
    """

    scores: Scores
    label_output: int | None
    score_output: int | None
    n_columns: int
    names: tuple[Any, ...] | None = None
    label_is_index: bool = True

    def __str__(self) -> str:
        """Describe the outputs from which predictions are read."""
        if self.score_output is None:
            return f"labels only, in output {self.label_output}"
        labels_text = (
            "" if self.label_output is None else f" and labels in output {self.label_output}"
        )
        return (
            f"{self.scores} of {self.n_classes} classes in output {self.score_output}{labels_text}"
        )

    @property
    def n_classes(self) -> int:
        """Number of classes of the graph; 0 if it gives only labels and has no names."""
        return 2 if self.n_columns == 1 else self.n_columns or len(self.names or ())

    @property
    def link(self) -> Link:
        """Link from logits to probabilities."""
        return "sigmoid" if self.n_columns == 1 else "softmax"


class GivenGraph:
    """A given graph over flat rows, and the form of its outputs.

    `model` must have one input tensor of numbers, for instances of `shape`. `model_name` is its
    name in errors. The form is detected on `x`, float32 (n, n_values), or on random numbers. The
    attribute `content` holds the bytes of the graph, with the input ``x``. Raises InputError if
    the model has another input or another instance shape, if onnxruntime cannot run it, or if it
    returns neither labels nor scores.
    """

    def __init__(
        self,
        model: str | Path | bytes | OnnxModel,
        shape: tuple[int, ...],
        model_name: str,
        x: NDArray[np.float32] | None = None,
    ) -> None:
        onnx_model = model if isinstance(model, OnnxModel) else OnnxModel(model)
        self._model_name = model_name
        self._required_scores = onnx_model.scores
        self._n_values = math.prod(shape)
        source = onnx_model.source
        if is_torch(source):
            source = export_module(source, shape, model_name)
        graph, class_names, batch_size, input_description = read_graph(source, shape, model_name)
        self.content: bytes = graph.SerializeToString(deterministic=True)
        # detect the form of the outputs; a graph that needs its fixed batch runs row by row
        form_rows = x
        if form_rows is None:
            rng = np.random.default_rng(0)
            form_rows = rng.standard_normal((N_RANDOM_ROWS, self._n_values)).astype(np.float32)
        # spread over all rows, because sorted rows may begin with few classes
        n_form_rows = min(BATCH_ROWS, len(form_rows))
        form_rows = form_rows[np.linspace(0, len(form_rows) - 1, n_form_rows).astype(int)]
        try:
            self.form, outputs = self._detect_form(form_rows)
        except InputError:
            if batch_size is None:
                raise
            self.content = row_by_row(graph, batch_size).SerializeToString(deterministic=True)
            self.form, outputs = self._detect_form(form_rows)
            warn_caller(
                f"{model_name} has a fixed batch of {batch_size}, and its operators depend on it, "
                "so that its rows run one by one: export it with a free first dimension to make it "
                "faster",
                RuntimeWarning,
            )
        label_output = self.form.label_output
        score_output = self.form.score_output
        if (
            x is not None
            and score_output is not None
            and not np.isfinite(outputs[score_output]).all()
        ):
            raise InputError(f"{model_name} gives scores that are not finite for some rows")
        self._observed_labels = (
            set() if label_output is None else set(outputs[label_output].ravel().tolist())
        )
        if onnx_model.classes is not None:
            class_names = np.asarray(onnx_model.classes).tolist()
        self._name_classes(class_names)
        _LOG.info("%s: %s; it gives %s", model_name, input_description, self.form)

    def _name_classes(self, class_names: list[Any] | None) -> None:
        """Set the names in the form, and whether the labels that the graph gives are indices."""
        if class_names is not None:
            self.form = self._with_names(class_names, self._gives_indices(class_names))
            return
        gives_text = any(isinstance(label, str) for label in self._observed_labels)
        self.form = self.form._replace(label_is_index=not gives_text)

    def _gives_indices(self, class_names: Sequence[Any]) -> bool:
        """Whether the labels that the graph gave are indices of names, and not names."""
        observed_labels = self._observed_labels
        gives_text = any(isinstance(label, str) for label in observed_labels)
        return not gives_text and not (observed_labels and observed_labels <= set(class_names))

    def named_form(self, classes: Sequence[Any]) -> GraphForm:
        """Get the form with names; `classes` are the names if the graph has none."""
        if self.form.names is not None:
            return self.form
        return self._with_names(classes, self._gives_indices(classes))

    def margins_model(self, order: NDArray[np.int64] | None) -> tuple[GraphModel, Link]:
        """Make a graph from rows to margins, and get their link to probabilities.

        Logarithms of probabilities are used as margins, because softmax maps them back to the
        probabilities. `order` gives the column of each class if the graph has another order.
        Raises InputError if the graph gives only labels.
        """
        form = self.form
        if form.score_output is None:
            raise InputError(
                f"{self._model_name} gives labels alone, but a stage needs probabilities or "
                "logits: export the graph with such an output"
            )
        tail = GraphTail(self.content)
        output = tail.model.graph.output[form.score_output]
        # float64 margins are rounded to float32 only at the end, because margins that become equal
        # earlier would lose their order
        is_float64 = output.type.tensor_type.elem_type == DOUBLE_TYPE
        dtype = np.float64 if is_float64 else np.float32
        scores_name = tail.add("Cast", [output.name], to=DOUBLE_TYPE if is_float64 else FLOAT_TYPE)
        scores_name = tail.add(
            "Reshape", [scores_name, tail.constant([-1, form.n_columns], np.int64)]
        )
        if order is not None and form.n_columns > 1:
            scores_name = tail.add("Gather", [scores_name, tail.constant(order, np.int64)], axis=1)
        # margins: log p, or log p - log (1 - p) for a single column
        if form.scores == "probabilities":
            probabilities_name = scores_name
            floor_name = tail.constant(LOG_FLOOR, dtype)
            scores_name = tail.add("Log", [tail.add("Max", [probabilities_name, floor_name])])
            if form.n_columns == 1:
                complement_name = tail.add("Sub", [tail.constant(1.0, dtype), probabilities_name])
                complement_name = tail.add("Log", [tail.add("Max", [complement_name, floor_name])])
                scores_name = tail.add("Sub", [scores_name, complement_name])
        if is_float64 and form.n_columns > 1:
            largest_name = tail.add("ReduceMax", [scores_name], axes=[1], keepdims=1)
            scores_name = tail.add("Sub", [scores_name, largest_name])
        if order is not None and form.n_columns == 1:
            scores_name = tail.add("Neg", [scores_name])
        tail.add("Cast", [scores_name], "margins", to=FLOAT_TYPE)
        return tail.finish(self._n_values, form.n_columns), form.link

    # -- detection of the form -------------------------------------------------------------

    def _detect_form(self, x: NDArray[np.float32]) -> tuple[GraphForm, list[Any]]:
        """Detect the form, without names, on some rows; return it and the outputs."""
        # run all rows in a batch, and some of them alone
        try:
            session = open_session(self.content)
            batch_outputs = session.run(None, {"x": x})
            single_runs = [
                session.run(None, {"x": x[row : row + 1]})
                for row in range(min(N_SINGLE_ROWS, len(x)))
            ]
        except Exception as error:  # onnxruntime's errors have no common base class
            raise InputError(
                f"{self._model_name}: onnxruntime cannot run it on one and on many instances of "
                f"this shape: {one_line(error)}; export it with a free first dimension"
            ) from error
        # find the outputs, which must not depend on the batch
        names = [output.name for output in session.get_outputs()]
        label_output, score_output = self._find_outputs(names, batch_outputs, len(x))
        for output_index in (label_output, score_output):
            if output_index is not None and not _is_by_row(
                batch_outputs[output_index],
                [row_outputs[output_index] for row_outputs in single_runs],
            ):
                raise InputError(
                    f"{self._model_name}: the output {names[output_index].removeprefix('g_')!r} of "
                    "a row depends on the other rows of the batch; export it with a free first "
                    "dimension"
                )
        # detect the kind of the scores
        if score_output is None:
            return GraphForm("labels", label_output, None, 0), batch_outputs
        scores = _as_matrix(batch_outputs[score_output])
        scores_kind = self._required_scores or _detect_scores(scores)
        if (
            scores_kind == "logits"
            and scores.shape[1] == 2
            and (scores[:, 0] == -scores[:, 1]).all()
        ):
            # skl2onnx writes a decision function and its negative, which softmax would count twice
            self._keep_second_column(score_output)
            return GraphForm(scores_kind, label_output, score_output, 1), batch_outputs
        return GraphForm(scores_kind, label_output, score_output, scores.shape[1]), batch_outputs

    def _find_outputs(
        self, names: list[str], outputs: list[Any], n_rows: int
    ) -> tuple[int | None, int | None]:
        """Find the indices of labels and scores among the outputs of `n_rows` rows."""
        # outputs with a row per instance are labels or, if they are floats, scores
        candidates = [
            output_index
            for output_index, output in enumerate(outputs)
            if np.shape(output)[:1] == (n_rows,) and hasattr(output, "dtype")
        ]
        label_outputs = [
            output_index
            for output_index in candidates
            if outputs[output_index].dtype.kind != "f" and outputs[output_index].size == n_rows
        ]
        score_outputs = [
            output_index for output_index in candidates if outputs[output_index].dtype.kind == "f"
        ]
        # among several outputs of scores, the names decide
        if len(score_outputs) > 1:
            outputs_text = ", ".join(
                names[output_index].removeprefix("g_") for output_index in score_outputs
            )
            score_outputs = [
                output_index
                for output_index in score_outputs
                if "prob" in names[output_index].lower() or "logit" in names[output_index].lower()
            ]
            if not score_outputs:
                raise InputError(
                    f"{self._model_name} has several outputs of scores ({outputs_text}); keep one "
                    "of them"
                )
        if self._required_scores == "labels":
            score_outputs = []
        needs_scores = self._required_scores not in (None, "labels")
        if not score_outputs and (needs_scores or not label_outputs):
            outputs_text = ", ".join(
                f"{name} {getattr(output, 'dtype', 'table')} {np.shape(output)}"
                for name, output in zip(names, outputs, strict=True)
            )
            raise InputError(
                f"{self._model_name} must give "
                f"{self._required_scores or 'labels, probabilities or logits'}, one row per "
                f"instance; its outputs are [{outputs_text}]"
            )
        return next(iter(label_outputs), None), next(iter(score_outputs), None)

    def _keep_second_column(self, index: int) -> None:
        """Reduce an output to the second of its two columns."""
        tail = GraphTail(self.content)
        output = tail.model.graph.output[index]
        scores = tail.add("Reshape", [output.name, tail.constant([-1, 2], np.int64)])
        output.name = tail.add("Gather", [scores, tail.constant([1], np.int64)], axis=1)
        self.content = tail.model.SerializeToString(deterministic=True)

    def _with_names(self, names: Sequence[Any], label_is_index: bool) -> GraphForm:
        form = self.form
        if form.n_columns and form.n_classes != len(names):
            if form.label_output is None or self._required_scores is not None:
                raise InputError(
                    f"{self._model_name} gives scores of {form.n_classes} classes; "
                    f"{len(names)} names are given"
                )
            # scores that are not by class, such as scores of pairs of classes, are not used
            form = form._replace(scores="labels", score_output=None, n_columns=0)
        return form._replace(names=tuple(names), label_is_index=label_is_index)


def _is_by_row(batch_output: NDArray[Any], single_outputs: list[NDArray[Any]]) -> bool:
    """Whether the outputs of single rows equal the outputs of the same rows in a batch."""
    if any(output.shape != batch_output[:1].shape for output in single_outputs):
        return False
    single_rows = np.concatenate(single_outputs)
    batch_rows = batch_output[: len(single_outputs)]
    if batch_rows.dtype.kind == "f":
        # for another size of the batch, onnxruntime may add up in another order
        return np.allclose(batch_rows, single_rows, rtol=1e-3, atol=1e-4, equal_nan=True)
    return bool((batch_rows == single_rows).all())


def _detect_scores(scores: NDArray[np.float32]) -> Scores:
    """Decide by the rows of finite values whether scores are probabilities or logits."""
    # the tolerances allow for float32 rounding, and for a sum over many classes
    finite_scores = scores[np.isfinite(scores).all(axis=1)].astype(np.float64)
    is_in_unit_range = bool(((finite_scores > -1e-6) & (finite_scores < 1 + 1e-6)).all())
    row_sums = finite_scores.sum(axis=1)
    sums_to_one = scores.shape[1] == 1 or bool((np.abs(row_sums - 1.0) < 1e-3).all())
    return "probabilities" if is_in_unit_range and sums_to_one else "logits"


# -- answers -------------------------------------------------------------------------------


def graph_answer(
    content: bytes, form: GraphForm, x: NDArray[np.float32]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Run a graph; return the class index (n,) and the probabilities (n, n_classes) of each row.

    Classes are the graph's own, in its order.
    """
    session = _open_session(content)
    runs = [
        session.run(None, {"x": np.ascontiguousarray(x[start : start + BATCH_ROWS])})
        for start in range(0, max(len(x), 1), BATCH_ROWS)
    ]
    class_index = None
    if form.label_output is not None:
        class_index = _find_class_indices(
            np.concatenate([outputs[form.label_output] for outputs in runs]), form
        )
        if form.score_output is None:
            return class_index, np.eye(form.n_classes)[class_index]
    assert form.score_output is not None
    scores = _as_matrix(np.concatenate([outputs[form.score_output] for outputs in runs]))
    if form.scores == "logits":
        class_probabilities = probabilities(scores, form.link)
    else:
        if form.n_columns == 1:
            scores = np.column_stack([np.float32(1) - scores, scores])
        class_probabilities = scores.astype(np.float64)
    return labels(scores) if class_index is None else class_index, class_probabilities


@cache
def _open_session(content: bytes) -> Any:
    """Open a session of a graph once per process, because sessions cannot be pickled."""
    return open_session(content)


def _as_matrix(scores: NDArray[Any]) -> NDArray[np.float32]:
    return scores.astype(np.float32).reshape(len(scores), -1)


def _find_class_indices(label_output: NDArray[Any], form: GraphForm) -> NDArray[np.int64]:
    """Convert the label output of a graph to indices of its own classes."""
    class_names = range(form.n_classes) if form.label_is_index else form.names or ()
    index_of_name = {name: index for index, name in enumerate(class_names)}
    distinct_labels, label_number = np.unique(label_output.ravel(), return_inverse=True)
    unknown_labels = [label for label in distinct_labels.tolist() if label not in index_of_name]
    if unknown_labels:
        raise InputError(
            f"the graph gives label {unknown_labels[0]!r}, which is not among its classes"
        )
    return np.array([index_of_name[label] for label in distinct_labels.tolist()], np.int64)[
        label_number
    ]
