"""A given ONNX classifier: how its input and outputs are to be read, and its answers.

Graphs come in many forms: labels and probabilities (skl2onnx), a list of tables in place of the
second (ZipMap), probabilities alone, logits alone (networks), labels alone; rows as a matrix or
as images. The form is found on a few random rows, or given.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gatewise import _onnxruntime
from gatewise.decision import Link, labels, probabilities
from gatewise.errors import InputError, one_line

__all__ = ["FormedGraph", "GraphForm", "OnnxModel", "graph_answer"]

Scores = Literal["probabilities", "logits", "labels"]

BATCH = 256
"""Rows of a run: the values inside a network grow with them, and out of the caches."""

PROBES = 32
"""Random rows on which probabilities are told from logits."""

DTYPES = {
    "tensor(float)": np.float32,
    "tensor(double)": np.float64,
    "tensor(float16)": np.float16,
    "tensor(uint8)": np.uint8,
    "tensor(int8)": np.int8,
    "tensor(int32)": np.int32,
    "tensor(int64)": np.int64,
}


@dataclass(frozen=True, eq=False)
class OnnxModel:
    """An ONNX file with what it does not say itself, for `high_cost_model`.

    Parameters
    ----------
    source : path or bytes
    classes : sequence, optional
        Labels of the graph's columns, in their order. By default those that the file names (a
        JSON list under "classes" in its metadata, or ZipMap's keys), or else 0, 1, ...
    scores : {"probabilities", "logits", "labels"}, optional
        What the graph gives. By default it is found by running random rows: scores of every row
        that are at least 0 and add up to 1 are probabilities, others logits.

    Examples
    --------
    ``StagedCascade(OnnxModel("network.onnx", classes=["cat", "dog"], scores="logits"))``
    """

    source: str | Path | bytes
    classes: Sequence[Any] | None = None
    scores: Scores | None = None

    def content(self) -> bytes:
        """Read the graph's bytes."""
        if isinstance(self.source, bytes):
            return self.source
        path = Path(self.source)
        if not path.is_file():
            raise InputError(f"high_cost_model: file {path} does not exist")
        return path.read_bytes()


class GraphForm(NamedTuple):
    """How a classifier's graph is to be read.

    `label` and `score` are places among the outputs, None where there is none. `columns` is the
    number of score columns; one column is of the second of two classes. `shape` is that of an
    instance where it is no row of numbers. `names` are the labels of the columns; `positions` says
    that the label output holds places among them, not the labels themselves.
    """

    scores: Scores
    label: int | None
    score: int | None
    columns: int
    zipmap: bool = False
    shape: tuple[int, ...] | None = None
    names: tuple[Any, ...] | None = None
    positions: bool = True

    @property
    def n_classes(self) -> int:
        """Number of the graph's own classes; 0 where it gives labels alone without names."""
        return 2 if self.columns == 1 else self.columns or len(self.names or ())

    @property
    def link(self) -> Link:
        """Link from logits to probabilities."""
        return "sigmoid" if self.columns == 1 else "softmax"


class FormedGraph:
    """A given graph and its form.

    Parameters
    ----------
    model : OnnxModel
    n_features : int
    n_classes : int
        Of the data.

    Raises
    ------
    InputError
        If the graph does not load, takes other rows or gives nothing that can be read.
    """

    def __init__(self, model: OnnxModel, n_features: int, n_classes: int) -> None:
        self.content = model.content()
        try:
            session = _session(self.content)
        except Exception as error:  # onnxruntime raises types of its own, without a common base
            raise InputError(
                f"high_cost_model is not a usable ONNX graph: {one_line(error)}"
            ) from error
        shape = _row_shape(session, n_features)
        self.form = GraphForm("labels", None, None, 0, shape=shape)
        rng = np.random.default_rng(0)
        probes = rng.standard_normal((PROBES, n_features)).astype(np.float32)
        try:
            outputs = _run(self.content, self.form, probes)
        except Exception as error:  # as above
            raise InputError(
                f"high_cost_model: its graph does not run on rows of {n_features} features: "
                f"{one_line(error)}"
            ) from error
        self.form = _form(session, outputs, model, shape, n_classes)


def graph_answer(
    content: bytes, form: GraphForm, x: NDArray[np.float32]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Get each row's place among the graph's own classes, and probabilities, in one run."""
    outputs = _run(content, form, x)
    n = form.n_classes
    if form.score is None:
        position = _positions(np.asarray(outputs[form.label or 0]), form)
        chances = np.zeros((len(x), n or int(position.max(initial=0)) + 1))
        chances[np.arange(len(x)), position] = 1.0
        return position, chances
    scores = _matrix(outputs[form.score], form)
    if form.scores == "logits":
        position, chances = labels(scores), probabilities(scores, form.link)
    else:
        if form.columns == 1:
            scores = np.column_stack([np.float32(1) - scores, scores])
        position, chances = labels(scores), scores.astype(np.float64)
    if form.label is not None:
        position = _positions(np.asarray(outputs[form.label]), form)
    return position, chances


_SESSIONS: dict[bytes, Any] = {}


def _session(content: bytes) -> Any:
    """Get the session on a graph; made again in each process, since sessions are not pickled."""
    if content not in _SESSIONS:
        onnxruntime = _onnxruntime.load()
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.log_severity_level = 4
        _SESSIONS[content] = onnxruntime.InferenceSession(
            content, options, providers=["CPUExecutionProvider"]
        )
    return _SESSIONS[content]


def _run(content: bytes, form: GraphForm, x: NDArray[np.float32]) -> list[Any]:
    """Run all rows, some at a time; outputs in the graph's order."""
    session = _session(content)
    source = session.get_inputs()[0]
    dtype = DTYPES[source.type]
    parts = []
    for start in range(0, max(len(x), 1), BATCH):
        rows = np.ascontiguousarray(x[start : start + BATCH]).astype(dtype, copy=False)
        if form.shape is not None:
            rows = rows.reshape(-1, *form.shape)
        parts.append(session.run(None, {source.name: rows}))
    return [
        [row for part in outputs for row in part]
        if isinstance(outputs[0], list)
        else np.concatenate(outputs)
        for outputs in zip(*parts, strict=True)
    ]


def _row_shape(session: Any, n_features: int) -> tuple[int, ...] | None:
    inputs = session.get_inputs()
    if len(inputs) != 1:
        raise InputError(f"high_cost_model's graph must have one input, not {len(inputs)}")
    if inputs[0].type not in DTYPES:
        raise InputError(f"high_cost_model's graph takes {inputs[0].type}, not a tensor of numbers")
    if inputs[0].shape and isinstance(inputs[0].shape[0], int):
        raise InputError(
            f"high_cost_model's graph takes exactly {inputs[0].shape[0]} row(s) a run: export it "
            "with a free first dimension (PyTorch: dynamic_axes)"
        )
    shape = list(inputs[0].shape)[1:]
    known = [d for d in shape if isinstance(d, int)]
    free = len(shape) - len(known)
    fits = math.prod(known) == n_features if not free else len(shape) == 1
    if not shape or not fits:
        raise InputError(
            f"high_cost_model's graph must have one input of shape (n, {n_features}), or of as "
            f"many numbers an instance, not {list(inputs[0].shape)}"
        )
    return None if len(shape) == 1 else tuple(known)


def _form(
    session: Any,
    outputs: list[Any],
    model: OnnxModel,
    shape: tuple[int, ...] | None,
    n_classes: int,
) -> GraphForm:
    label, score, zipmap = _places(session, outputs)
    wanted = model.scores
    if wanted == "labels":
        score = None
    if (score is None and label is None) or (score is None and wanted not in (None, "labels")):
        shown = ", ".join(o.type for o in session.get_outputs())
        raise InputError(
            f"high_cost_model's graph must give {wanted or 'labels, probabilities or logits'}, one "
            f"row an instance; its outputs are {shown}"
        )
    keys = list(outputs[score][0]) if zipmap and score is not None else None
    names = _names(session, model, keys)
    form = GraphForm("labels", label, score, 0, zipmap and score is not None, shape, names)
    if score is not None:
        columns = _matrix(outputs[score], form)
        form = form._replace(scores=wanted or _kind(columns), columns=columns.shape[1])
        expected = n_classes if names is None else len(names)
        if form.n_classes != expected and label is not None and wanted is None:
            # scores of pairs of classes, say: the labels alone can be read
            form = form._replace(scores="labels", score=None, columns=0, zipmap=False)
        elif form.n_classes != expected:
            raise InputError(
                f"high_cost_model's graph gives scores of {form.n_classes} classes; "
                f"{'the data has' if names is None else 'named are'} {expected}"
            )
    if label is None:
        return form
    text = session.get_outputs()[label].type == "tensor(string)"
    if text and names is None:
        raise InputError(
            "high_cost_model's graph gives labels as text and does not list them: give "
            'OnnxModel(file, classes=[...]), or a JSON list "classes" in its metadata'
        )
    numbers = names is not None and all(type(c) in (int, float) for c in names)
    return form._replace(positions=not (text or numbers))


def _places(session: Any, outputs: list[Any]) -> tuple[int | None, int | None, bool]:
    """Places of labels and scores among the outputs, and whether the scores are a ZipMap's."""
    label = score = None
    zipmap = False
    for place, (spec, values) in enumerate(zip(session.get_outputs(), outputs, strict=True)):
        if isinstance(values, list):
            if score is None and values and isinstance(values[0], dict):
                score, zipmap = place, True
        elif len(values.reshape(-1)) % PROBES or not values.ndim or len(values) != PROBES:
            continue
        elif spec.type in ("tensor(float)", "tensor(double)", "tensor(float16)"):
            score = place if score is None else score
        elif label is None and values.size == PROBES:
            label = place
    return label, score, zipmap


def _kind(scores: NDArray[np.float32]) -> Scores:
    """Whether rows of scores are probabilities; those that are not finite say nothing."""
    chances = scores[np.isfinite(scores).all(axis=1)].astype(np.float64)
    if scores.shape[1] == 1:
        sums_fit = bool((chances <= 1.0 + 1e-6).all())
    else:
        sums_fit = bool((np.abs(chances.sum(axis=1) - 1.0) < 1e-3).all())
    return "probabilities" if sums_fit and bool((chances >= 0).all()) else "logits"


def _names(session: Any, model: OnnxModel, keys: list[Any] | None) -> tuple[Any, ...] | None:
    if model.classes is not None:
        return tuple(np.asarray(model.classes).tolist())
    text = session.get_modelmeta().custom_metadata_map.get("classes")
    if text is not None:
        try:
            return tuple(json.loads(text))
        except (ValueError, TypeError) as error:
            raise InputError(
                'high_cost_model\'s graph: its metadata "classes" must be a JSON list'
            ) from error
    return None if keys is None else tuple(keys)


def _matrix(values: Any, form: GraphForm) -> NDArray[np.float32]:
    """Scores as a matrix."""
    if form.zipmap:  # a table's keys come in one order in every row
        return np.array([list(row.values()) for row in values], np.float32)
    array = np.asarray(values, np.float32)
    return array.reshape(len(array), -1)


def _positions(found: NDArray[Any], form: GraphForm) -> NDArray[np.int64]:
    if form.positions or form.names is None:
        return found.astype(np.int64).ravel()
    place = {name: i for i, name in enumerate(form.names)}
    unknown = [label for label in np.unique(found).tolist() if label not in place]
    if unknown:
        raise InputError(
            f"high_cost_model's graph gives label {unknown[0]!r}, which it does not name"
        )
    return np.array([place[c] for c in found.ravel().tolist()], np.int64)
