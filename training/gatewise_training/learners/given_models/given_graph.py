"""Given ONNX classifiers over flat rows: the form of their outputs, their margins and answers.

A graph gives labels and probabilities (skl2onnx), probabilities, logits (networks) or only labels.
The form of its outputs is detected by running some rows, unless the user states it.
"""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gatewise.decision import Link, labels, probabilities
from gatewise.errors import InputError, one_line
from gatewise.imports import open_session
from gatewise.models.graph_model import GraphModel
from gatewise_training.learners.given_models.graph_files import (
    GraphTail,
    read_graph,
    row_by_row,
)
from gatewise_training.learners.torch_models import export_module, is_torch

Scores = Literal["probabilities", "logits", "labels"]

_LOG = logging.getLogger("gatewise_training")

BATCH = 256
"""Number of rows per run. With more rows, a network's intermediate values would not fit into the
caches of the processor."""

N_RANDOM_ROWS = 32
"""Number of random rows on which the form is detected if no rows are given."""

N_SINGLE_ROWS = 4
"""Number of rows that are also run one by one, because a graph must not mix the rows of a batch."""

FLOAT = 1
DOUBLE = 11
"""Codes of tensor types in ONNX."""

LOG_FLOOR = 1e-30
"""Lower bound of a probability before its logarithm is computed."""


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
        least 0 and add up to 1 in every row are probabilities, and others are logits.

    Examples
    --------
    ``StagedCascade(OnnxModel("network.onnx", classes=["cat", "dog"], scores="logits"))``
    """

    source: Any
    classes: Sequence[Any] | None = None
    scores: Scores | None = None


class GraphForm(NamedTuple):
    """Meaning of a classifier's outputs.

    `label` and `score` are indices of outputs, or None if the output is missing. `columns` is the
    number of score columns; a single column is the score of the second of two classes. `names` are
    the labels of the columns. `positions` says whether the label output holds indices into `names`
    instead of labels.
    """

    scores: Scores
    label: int | None
    score: int | None
    columns: int
    names: tuple[Any, ...] | None = None
    positions: bool = True

    def __str__(self) -> str:
        """Describe the outputs from which predictions are read."""
        if self.score is None:
            return f"labels only, in output {self.label}"
        labels_text = "" if self.label is None else f" and labels in output {self.label}"
        return f"{self.scores} of {self.n_classes} classes in output {self.score}{labels_text}"

    @property
    def n_classes(self) -> int:
        """Number of classes of the graph; 0 if it gives only labels and has no names."""
        return 2 if self.columns == 1 else self.columns or len(self.names or ())

    @property
    def link(self) -> Link:
        """Link from logits to probabilities."""
        return "sigmoid" if self.columns == 1 else "softmax"


class FormedGraph:
    """A given graph over flat rows, and the form of its outputs.

    `model` must have one input tensor of numbers, for instances of `shape`. `what` is its name in
    errors. The form is detected on `x`, float32 (n, n_values), or on random numbers. The attribute
    `content` is the graph with the input ``x``. Raises InputError if the model has another input or
    another instance shape, if onnxruntime cannot run it, or if it returns neither labels nor
    scores.
    """

    def __init__(
        self,
        model: str | Path | bytes | OnnxModel,
        shape: tuple[int, ...],
        what: str,
        x: NDArray[np.float32] | None = None,
    ) -> None:
        onnx_model = model if isinstance(model, OnnxModel) else OnnxModel(model)
        self._what = what
        self._required_scores = onnx_model.scores
        self._n_values = math.prod(shape)
        source = onnx_model.source
        if is_torch(source):
            source = export_module(source, shape, what)
        graph, names, batch, reading = read_graph(source, shape, what)
        self.content: bytes = graph.SerializeToString(deterministic=True)
        rows = x
        if rows is None:
            rng = np.random.default_rng(0)
            rows = rng.standard_normal((N_RANDOM_ROWS, self._n_values)).astype(np.float32)
        rows = np.ascontiguousarray(rows[:BATCH])
        try:
            self.form, values = self._detect_form(rows)
        except InputError:
            if batch is None:
                raise
            self.content = row_by_row(graph, batch).SerializeToString(deterministic=True)
            self.form, values = self._detect_form(rows)
            warnings.warn(
                f"{what} has a fixed batch of {batch}, and its operators depend on it, so that its "
                "rows run one by one: export it with a free first dimension to make it faster",
                RuntimeWarning,
                stacklevel=2,
            )
        label = self.form.label
        score = self.form.score
        if x is not None and score is not None and not np.isfinite(values[score]).all():
            raise InputError(f"{what} gives scores that are not finite for some rows")
        self._observed_labels = set() if label is None else set(values[label].ravel().tolist())
        labels_are_text = any(isinstance(c, str) for c in self._observed_labels)
        if onnx_model.classes is not None:
            names = np.asarray(onnx_model.classes).tolist()
        if names is None:
            self.form = self.form._replace(positions=not labels_are_text)
        else:
            names_are_numbers = all(type(c) in (int, float) for c in names)
            positions = not (labels_are_text or names_are_numbers)
            self.form = self._with_names(names, positions)
        _LOG.info("%s: %s; it gives %s", what, reading, self.form)

    def named(self, classes: Sequence[Any]) -> GraphForm:
        """Get the form with names; `classes` are the names if the graph has none."""
        if self.form.names is not None:
            return self.form
        return self._with_names(classes, self._observed_labels <= set(range(len(classes))))

    def margins_model(self, order: NDArray[np.int64] | None) -> tuple[GraphModel, Link]:
        """Make a graph from rows to margins, and get their link to probabilities.

        Logarithms of probabilities are used as margins, because softmax maps them back to the
        probabilities. `order` gives the column of each class if the graph has another order.
        Raises InputError if the graph gives only labels.
        """
        form = self.form
        if form.score is None:
            raise InputError(
                f"{self._what} gives labels alone, but a stage needs probabilities or logits: "
                "export the graph with such an output"
            )
        tail = GraphTail(self.content)
        output = tail.model.graph.output[form.score]
        # float64 margins are rounded to float32 only at the end, so that different margins do not
        # become equal before
        is_double = output.type.tensor_type.elem_type == DOUBLE
        dtype = np.float64 if is_double else np.float32
        scores = tail.add("Cast", [output.name], to=DOUBLE if is_double else FLOAT)
        scores = tail.add("Reshape", [scores, tail.value([-1, form.columns], np.int64)])
        if order is not None and form.columns > 1:
            scores = tail.add("Gather", [scores, tail.value(order, np.int64)], axis=1)
        # margins: log p, or log p - log (1 - p) for a single column
        if form.scores == "probabilities":
            chances = scores
            floor = tail.value(LOG_FLOOR, dtype)
            scores = tail.add("Log", [tail.add("Max", [chances, floor])])
            if form.columns == 1:
                complement = tail.add("Sub", [tail.value(1.0, dtype), chances])
                complement = tail.add("Log", [tail.add("Max", [complement, floor])])
                scores = tail.add("Sub", [scores, complement])
        if is_double and form.columns > 1:
            largest = tail.add("ReduceMax", [scores], axes=[1], keepdims=1)
            scores = tail.add("Sub", [scores, largest])
        if order is not None and form.columns == 1:
            scores = tail.add("Neg", [scores])
        tail.add("Cast", [scores], "margins", to=FLOAT)
        return tail.finish(self._n_values, form.columns), form.link

    # -- detection of the form -------------------------------------------------------------

    def _detect_form(self, x: NDArray[np.float32]) -> tuple[GraphForm, list[Any]]:
        """Detect the form, without names, on some rows; return it and the outputs."""
        try:
            session = open_session(self.content)
            values = session.run(None, {"x": x})
            single_runs = [
                session.run(None, {"x": x[i : i + 1]}) for i in range(min(N_SINGLE_ROWS, len(x)))
            ]
        except Exception as error:  # onnxruntime's errors have no common base class
            raise InputError(
                f"{self._what}: onnxruntime cannot run it on one and on many instances of this "
                f"shape: {one_line(error)}; export it with a free first dimension"
            ) from error
        names = [output.name for output in session.get_outputs()]
        label, score = self._output_indices(names, values, len(x))
        for k in (label, score):
            if k is not None and not _is_by_row(values[k], [outputs[k] for outputs in single_runs]):
                raise InputError(
                    f"{self._what}: the output {names[k].removeprefix('g_')!r} of a row depends on "
                    "the other rows of the batch; export it with a free first dimension"
                )
        if score is None:
            return GraphForm("labels", label, None, 0), values
        scores = _matrix(values[score])
        kind = self._required_scores or _kind(scores)
        if kind == "logits" and scores.shape[1] == 2 and (scores[:, 0] == -scores[:, 1]).all():
            # skl2onnx writes a decision function and its negative, which softmax would count twice
            self._keep_second_column(score)
            return GraphForm(kind, label, score, 1), values
        return GraphForm(kind, label, score, scores.shape[1]), values

    def _output_indices(
        self, names: list[str], values: list[Any], n: int
    ) -> tuple[int | None, int | None]:
        """Find the indices of labels and scores among the outputs of `n` rows."""
        has_rows = [np.shape(value)[:1] == (n,) and hasattr(value, "dtype") for value in values]
        candidates = [k for k, is_candidate in enumerate(has_rows) if is_candidate]
        labels_ = [k for k in candidates if values[k].dtype.kind != "f" and values[k].size == n]
        scores = [k for k in candidates if values[k].dtype.kind == "f"]
        if len(scores) > 1:
            listed = ", ".join(names[k].removeprefix("g_") for k in scores)
            words = ("prob", "logit")
            scores = [k for k in scores if any(word in names[k].lower() for word in words)]
            if not scores:
                raise InputError(
                    f"{self._what} has several outputs of scores ({listed}); keep one of them"
                )
        if self._required_scores == "labels":
            scores = []
        if (not scores and not labels_) or (
            not scores and self._required_scores not in (None, "labels")
        ):
            listed = ", ".join(
                f"{name} {getattr(value, 'dtype', 'table')} {np.shape(value)}"
                for name, value in zip(names, values, strict=True)
            )
            raise InputError(
                f"{self._what} must give "
                f"{self._required_scores or 'labels, probabilities or logits'}, one row per "
                f"instance; its outputs are [{listed}]"
            )
        return next(iter(labels_), None), next(iter(scores), None)

    def _keep_second_column(self, index: int) -> None:
        """Reduce an output to the second of its two columns."""
        tail = GraphTail(self.content)
        output = tail.model.graph.output[index]
        scores = tail.add("Reshape", [output.name, tail.value([-1, 2], np.int64)])
        output.name = tail.add("Gather", [scores, tail.value([1], np.int64)], axis=1)
        self.content = tail.model.SerializeToString(deterministic=True)

    def _with_names(self, names: Sequence[Any], positions: bool) -> GraphForm:
        form = self.form
        if form.columns and form.n_classes != len(names):
            if form.label is None or self._required_scores is not None:
                raise InputError(
                    f"{self._what} gives scores of {form.n_classes} classes; "
                    f"{len(names)} names are given"
                )
            # scores that are not by class, such as scores of pairs of classes, are not used
            form = form._replace(scores="labels", score=None, columns=0)
        return form._replace(names=tuple(names), positions=positions)


def _is_by_row(values: NDArray[Any], single_runs: list[NDArray[Any]]) -> bool:
    """Whether the outputs of single rows equal the outputs of the same rows in a batch."""
    if any(row.shape != values[:1].shape for row in single_runs):
        return False
    single = np.concatenate(single_runs)
    batch = values[: len(single_runs)]
    if batch.dtype.kind == "f":
        return np.allclose(batch, single, rtol=1e-3, atol=1e-4, equal_nan=True)
    return bool((batch == single).all())


def _kind(scores: NDArray[np.float32]) -> Scores:
    """Decide by the rows of finite values whether scores are probabilities or logits."""
    chances = scores[np.isfinite(scores).all(axis=1)].astype(np.float64)
    is_in_unit_range = bool(((chances > -1e-6) & (chances < 1 + 1e-6)).all())
    row_sums = chances.sum(axis=1)
    sums_to_one = scores.shape[1] == 1 or bool((np.abs(row_sums - 1.0) < 1e-3).all())
    return "probabilities" if is_in_unit_range and sums_to_one else "logits"


# -- answers -------------------------------------------------------------------------------


def graph_answer(
    content: bytes, form: GraphForm, x: NDArray[np.float32]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Run a graph; return the class index (n,) and the probabilities (n, n_classes) of each row.

    Classes are the graph's own, in its order.
    """
    session = _session(content)
    runs = [
        session.run(None, {"x": np.ascontiguousarray(x[start : start + BATCH])})
        for start in range(0, max(len(x), 1), BATCH)
    ]
    position = None
    if form.label is not None:
        position = _positions(np.concatenate([outputs[form.label] for outputs in runs]), form)
        if form.score is None:
            return position, np.eye(form.n_classes)[position]
    assert form.score is not None
    scores = _matrix(np.concatenate([outputs[form.score] for outputs in runs]))
    if form.scores == "logits":
        chances = probabilities(scores, form.link)
    else:
        if form.columns == 1:
            scores = np.column_stack([np.float32(1) - scores, scores])
        chances = scores.astype(np.float64)
    return labels(scores) if position is None else position, chances


@cache
def _session(content: bytes) -> Any:
    """Open a session of a graph once per process, because sessions cannot be pickled."""
    return open_session(content)


def _matrix(scores: NDArray[Any]) -> NDArray[np.float32]:
    return scores.astype(np.float32).reshape(len(scores), -1)


def _positions(labels_: NDArray[Any], form: GraphForm) -> NDArray[np.int64]:
    """Convert the label output of a graph to indices of its own classes."""
    class_names = range(form.n_classes) if form.positions else form.names or ()
    index_of = {name: i for i, name in enumerate(class_names)}
    values, inverse = np.unique(labels_.ravel(), return_inverse=True)
    unknown = [label for label in values.tolist() if label not in index_of]
    if unknown:
        raise InputError(f"the graph gives label {unknown[0]!r}, which is not among its classes")
    return np.array([index_of[label] for label in values.tolist()], np.int64)[inverse]
