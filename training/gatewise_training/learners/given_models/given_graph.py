"""A given ONNX classifier over flat rows: the form of its outputs, its margins and its answers.

It gives labels and probabilities (skl2onnx), probabilities, logits (networks) or labels alone. A
run on some rows shows the form, unless the user states it.
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
"""Rows per run; with more, a network's intermediate values would not fit the caches."""

RANDOM_ROWS = 32
"""Rows on which the form is found where none are given."""

N_SINGLE_ROWS = 4
"""Rows that are also run one by one: a graph must not mix the rows of a batch."""

FLOAT = 1
DOUBLE = 11
"""Types of a tensor in ONNX."""

MIN_PROBABILITY = 1e-30
"""A probability of 0 becomes this, so that its logarithm is finite."""


@dataclass(frozen=True, eq=False)
class OnnxModel:
    """An ONNX file with the labels of its classes and the meaning of its scores.

    Parameters
    ----------
    source : path, bytes, torch.nn.Module or torch.export program
        The file, or its content; or a PyTorch model, which is export_module.
    classes : sequence, optional
        Labels of the graph's columns, in their order. By default the file's own labels (a JSON
        list under "classes" in its metadata, or ZipMap's keys), or else 0, 1, ...
    scores : {"probabilities", "logits", "labels"}, optional
        What the graph gives. By default it is found by running rows: scores of every row that are
        at least 0 and add up to 1 are probabilities, others logits.

    Examples
    --------
    ``StagedCascade(OnnxModel("network.onnx", classes=["cat", "dog"], scores="logits"))``
    """

    source: Any
    classes: Sequence[Any] | None = None
    scores: Scores | None = None


class GraphForm(NamedTuple):
    """Meaning of a classifier's outputs.

    `label` and `score` are indices of outputs, None for a missing one. `columns` is the number of
    score columns; one column is the score of the second of two classes. `names` are the labels of
    the columns; `positions` says that the label output holds indices of them, not the labels.
    """

    scores: Scores
    label: int | None
    score: int | None
    columns: int
    names: tuple[Any, ...] | None = None
    positions: bool = True

    def __str__(self) -> str:
        """Describe the outputs that answers are read from."""
        if self.score is None:
            return f"labels alone, in output {self.label}"
        labels_text = "" if self.label is None else f" and labels in output {self.label}"
        return f"{self.scores} of {self.n_classes} classes in output {self.score}{labels_text}"

    @property
    def n_classes(self) -> int:
        """Number of the graph's own classes; 0 where it gives labels alone without names."""
        return 2 if self.columns == 1 else self.columns or len(self.names or ())

    @property
    def link(self) -> Link:
        """Link from logits to probabilities."""
        return "sigmoid" if self.columns == 1 else "softmax"


class FormedGraph:
    """A given graph over flat rows, and its form.

    `model` has one input tensor of numbers, for instances of any `shape`; `what` is its name in
    errors. Its form is detected on `x`, float32 (n, n_values), or on random numbers. `content` is
    the graph with the input ``x``. Raises InputError if it is no such model, takes instances of
    another shape, cannot be run by onnxruntime, or gives neither labels nor scores.
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
            rows = rng.standard_normal((RANDOM_ROWS, self._n_values)).astype(np.float32)
        rows = np.ascontiguousarray(rows[:BATCH])
        try:
            self.form, values = self._detect_form(rows)
        except InputError:
            if batch is None:
                raise
            self.content = row_by_row(graph, batch).SerializeToString(deterministic=True)
            self.form, values = self._detect_form(rows)
            warnings.warn(
                f"{what} has a fixed batch of {batch}, and its operators depend on it: its rows "
                "run one by one; export it with a free first dimension to make it faster",
                RuntimeWarning,
                stacklevel=2,
            )
        label = self.form.label
        score = self.form.score
        if x is not None and score is not None and not np.isfinite(values[score]).all():
            raise InputError(f"{what} gives scores that are not finite on the rows")
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
        """Get the form; `classes` are the labels of its columns if the graph names none."""
        if self.form.names is not None:
            return self.form
        return self._with_names(classes, self._observed_labels <= set(range(len(classes))))

    def margins_model(self, order: NDArray[np.int64] | None) -> tuple[GraphModel, Link]:
        """Make the graph from rows to margins, and their link to probabilities.

        The logarithms of probabilities serve as margins, because softmax maps them back to the
        probabilities. `order` is the column of each class where the graph has another order.
        Raises InputError if it gives labels alone.
        """
        form = self.form
        if form.score is None:
            raise InputError(
                f"{self._what} gives labels alone; a gate needs its probabilities or logits: "
                "export the graph with that output"
            )
        tail = GraphTail(self.content)
        output = tail.model.graph.output[form.score]
        # float64 margins are rounded to float32 only at the end, so that margins that differ stay
        # different
        is_double = output.type.tensor_type.elem_type == DOUBLE
        dtype = np.float64 if is_double else np.float32
        scores = tail.add("Cast", [output.name], to=DOUBLE if is_double else FLOAT)
        scores = tail.add("Reshape", [scores, tail.value([-1, form.columns], np.int64)])
        if order is not None and form.columns > 1:
            scores = tail.add("Gather", [scores, tail.value(order, np.int64)], axis=1)
        # log p, or log p - log (1 - p) of a single column
        if form.scores == "probabilities":
            chances = scores
            floor = tail.value(MIN_PROBABILITY, dtype)
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

    # -- reading ---------------------------------------------------------------------------

    def _detect_form(self, x: NDArray[np.float32]) -> tuple[GraphForm, list[Any]]:
        """Find the form, without names, on some rows; get it and the outputs."""
        try:
            session = open_session(self.content)
            values = session.run(None, {"x": x})
            single_runs = [
                session.run(None, {"x": x[i : i + 1]}) for i in range(min(N_SINGLE_ROWS, len(x)))
            ]
        except Exception as error:  # onnxruntime's own errors share no base
            raise InputError(
                f"{self._what}: onnxruntime does not run it on instances of this shape, one or "
                f"many at a time: {one_line(error)}; export it with a free first dimension"
            ) from error
        names = [output.name for output in session.get_outputs()]
        label, score = self._output_indices(names, values, len(x))
        for k in (label, score):
            if k is not None and not _is_by_row(values[k], [outputs[k] for outputs in single_runs]):
                raise InputError(
                    f"{self._what}: the output {names[k].removeprefix('g_')!r} of a batch is not "
                    "that of its rows; export it with a free first dimension"
                )
        if score is None:
            return GraphForm("labels", label, None, 0), values
        scores = _matrix(values[score])
        kind = self._required_scores or _kind(scores)
        if kind == "logits" and scores.shape[1] == 2 and (scores[:, 0] == -scores[:, 1]).all():
            # skl2onnx writes a decision function and its negative, which softmax would double
            self._keep_second_column(score)
            return GraphForm(kind, label, score, 1), values
        return GraphForm(kind, label, score, scores.shape[1]), values

    def _output_indices(
        self, names: list[str], values: list[Any], n: int
    ) -> tuple[int | None, int | None]:
        """Find the indices of labels and scores among the outputs."""
        rows = [k for k, v in enumerate(values) if np.shape(v)[:1] == (n,) and hasattr(v, "dtype")]
        labels_ = [k for k in rows if values[k].dtype.kind != "f" and values[k].size == n]
        scores = [k for k in rows if values[k].dtype.kind == "f"]
        if len(scores) > 1:
            listed = ", ".join(names[k].removeprefix("g_") for k in scores)
            scores = [k for k in scores if any(w in names[k].lower() for w in ("prob", "logit"))]
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
                f"{name} {getattr(v, 'dtype', 'table')} {np.shape(v)}"
                for name, v in zip(names, values, strict=True)
            )
            raise InputError(
                f"{self._what} must give "
                f"{self._required_scores or 'labels, probabilities or logits'}, one row per "
                f"instance; its outputs are [{listed}]"
            )
        return next(iter(labels_), None), next(iter(scores), None)

    def _keep_second_column(self, index: int) -> None:
        """Let an output have the second of two columns alone."""
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
            # such as scores of pairs of classes, which say nothing about single classes
            form = form._replace(scores="labels", score=None, columns=0)
        return form._replace(names=tuple(names), positions=positions)


def _is_by_row(values: NDArray[Any], single_runs: list[NDArray[Any]]) -> bool:
    """Whether the outputs of single rows equal those of a batch."""
    if any(row.shape != values[:1].shape for row in single_runs):
        return False
    single = np.concatenate(single_runs)
    batch = values[: len(single_runs)]
    if batch.dtype.kind == "f":
        return np.allclose(batch, single, rtol=1e-3, atol=1e-4, equal_nan=True)
    return bool((batch == single).all())


def _kind(scores: NDArray[np.float32]) -> Scores:
    """Decide from the finite rows whether scores are probabilities or logits."""
    chances = scores[np.isfinite(scores).all(axis=1)].astype(np.float64)
    is_in_unit_range = bool(((chances > -1e-6) & (chances < 1 + 1e-6)).all())
    row_sums = chances.sum(axis=1)
    sums_to_one = scores.shape[1] == 1 or bool((np.abs(row_sums - 1.0) < 1e-3).all())
    return "probabilities" if is_in_unit_range and sums_to_one else "logits"


# -- answers -------------------------------------------------------------------------------


def graph_answer(
    content: bytes, form: GraphForm, x: NDArray[np.float32]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Get each row's place among the graph's own classes, and probabilities, in one run."""
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
    """Open a session on a graph, once in each process, because sessions cannot be pickled."""
    return open_session(content)


def _matrix(scores: NDArray[Any]) -> NDArray[np.float32]:
    return scores.astype(np.float32).reshape(len(scores), -1)


def _positions(labels_: NDArray[Any], form: GraphForm) -> NDArray[np.int64]:
    """Get the indices of the graph's labels among its own classes."""
    class_names = range(form.n_classes) if form.positions else form.names or ()
    index_of = {name: i for i, name in enumerate(class_names)}
    values, inverse = np.unique(labels_.ravel(), return_inverse=True)
    unknown = [label for label in values.tolist() if label not in index_of]
    if unknown:
        raise InputError(f"the graph gives label {unknown[0]!r}, which is not among its classes")
    return np.array([index_of[label] for label in values.tolist()], np.int64)[inverse]
