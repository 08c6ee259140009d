"""A stage as a graph for other people's tools: whole rows in, labels and probabilities out.

Gatewise's own runtime does not use it: it decides from raw margins, which is smaller and
faster (:mod:`gatewise_export.onnx_graph`).
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

from gatewise_export.errors import ConversionError
from gatewise_export.onnx_graph import INPUT, MARGINS, constant, flat_graph, tensor
from gatewise_training.decision import Link, Score
from gatewise_training.stage import Stage

if TYPE_CHECKING:
    from gatewise_training.budgeted import Budgeted

__all__ = ["to_onnx"]


def to_onnx(
    system_or_stage: Budgeted | Stage,
    *,
    n_features: int | None = None,
    classes: NDArray[Any] | None = None,
) -> onnx.ModelProto:
    """Write the low-cost model of a stage as a self-contained graph.

    Parameters
    ----------
    system_or_stage : fitted system of one stage, or Stage
    n_features : int, optional
        Columns of a whole row; needed for a Stage, known of a system.
    classes : ndarray of shape (n_classes,), optional
        Labels, whole numbers or text; a system's own by default, else class indices.

    Returns
    -------
    onnx.ModelProto
        Input ``x``, float32 (n, n_features). Outputs ``label``, int64 or text (n,);
        ``probabilities``, float32 (n, n_classes); ``score``, float32 (n,), the stop score: the
        answer stands where it reaches the operating point's threshold. Metadata: ``classes``
        (JSON). A model of values instead of classes (a regressor, a ranker) has one output
        ``value``, float32 (n,), and no metadata.

    Raises
    ------
    ConversionError
        If a system has several stages (give one of ``system.stages_``), if `n_features` is
        missing, or if the labels are neither whole numbers nor text.
    """
    if isinstance(system_or_stage, Stage):
        stage = system_or_stage
        if n_features is None:
            raise ConversionError("to_onnx: say n_features, the number of columns of a whole row")
    else:
        stages = system_or_stage.stages_
        if len(stages) != 1:
            raise ConversionError(
                f"to_onnx: the system has {len(stages)} stages; give one of system.stages_"
            )
        stage = stages[0]
        n_features = system_or_stage.n_features_in_
        own = getattr(system_or_stage, "classes_", None)  # a regressor has none
        classes = own if classes is None else classes
    model = _of_whole_rows(stage, n_features)
    if stage.link == "identity" and stage.model.n_outputs == 1:
        _value(model.graph)
    else:
        _classify(model, stage, classes)
    onnx.checker.check_model(model, full_check=True)
    return model


def _of_whole_rows(stage: Stage, n_features: int) -> onnx.ModelProto:
    """The stage's graph without outputs, from rows of all features."""
    model = flat_graph(stage.model)
    graph = model.graph
    body = list(graph.node)
    for node in body:  # the model reads its own columns of a whole row
        node.input[:] = ["inputs" if name == INPUT else name for name in node.input]
    pick = helper.make_node("Gather", [INPUT, "features"], ["inputs"], axis=1)
    del graph.node[:], graph.input[:], graph.output[:]
    graph.node.extend([pick, *body])
    graph.initializer.append(constant("features", stage.features.astype(np.int64)))
    graph.input.append(tensor(INPUT, TensorProto.FLOAT, "n", n_features))
    return model


def _value(graph: onnx.GraphProto) -> None:
    """End with the one margin as it is."""
    graph.initializer.append(constant("value_column", np.asarray(0)))
    graph.node.append(helper.make_node("Gather", [MARGINS, "value_column"], ["value"], axis=1))
    graph.output.append(tensor("value", TensorProto.FLOAT, "n"))


def _classify(model: onnx.ModelProto, stage: Stage, classes: NDArray[Any] | None) -> None:
    """End with label, probabilities and stop score."""
    graph, n_classes = model.graph, _n_classes(stage)
    labels = _label_tensor(np.arange(n_classes) if classes is None else np.asarray(classes))
    graph.initializer.append(labels)
    _answers(graph, stage.link, stage.score, n_classes)
    graph.output.extend(
        [
            tensor("label", labels.data_type, "n"),
            tensor("probabilities", TensorProto.FLOAT, "n", n_classes),
            tensor("score", TensorProto.FLOAT, "n"),
        ]
    )
    own = range(n_classes) if classes is None else np.asarray(classes).tolist()
    helper.set_model_props(model, {"classes": json.dumps(list(own))})


def _n_classes(stage: Stage) -> int:
    margins = stage.model.n_outputs - (stage.score == "column")
    return max(margins, 2)


def _label_tensor(classes: NDArray[Any]) -> onnx.TensorProto:
    if classes.dtype.kind in "biu":
        return constant("classes", classes.astype(np.int64))
    if all(isinstance(c, str) for c in classes.tolist()):
        words = [c.encode() for c in classes.tolist()]
        return helper.make_tensor("classes", TensorProto.STRING, [len(words)], words)
    raise ConversionError(
        f"to_onnx: labels {classes.tolist()[:3]!r} are neither whole numbers nor text"
    )


def _answers(graph: onnx.GraphProto, link: Link, score: Score, n_classes: int) -> None:
    """Append nodes from ``margins`` to ``label``, ``probabilities`` and ``score``."""

    def node(kind: str, inputs: str, outputs: str, **attributes: Any) -> None:
        graph.node.append(helper.make_node(kind, inputs.split(), outputs.split(), **attributes))

    def value(name: str, array: Any) -> None:
        graph.initializer.append(constant(name, np.asarray(array)))

    margins = MARGINS
    if score == "column":
        margins = "class_margins"
        columns = n_classes if n_classes > 2 or link != "sigmoid" else 1
        value("class_columns", np.arange(columns))
        value("score_column", columns)
        node("Gather", f"{MARGINS} class_columns", margins, axis=1)
        node("Gather", f"{MARGINS} score_column", "score", axis=1)
    if link == "sigmoid":
        value("nought", np.float32(0))
        value("unit", np.float32(1))
        value("margin_column", 0)
        node("Gather", f"{margins} margin_column", "margin", axis=1)
        node("Greater", "margin nought", "positive")
        node("Cast", "positive", "index", to=TensorProto.INT64)
        node("Sigmoid", margins, "second")
        node("Sub", "unit second", "first_class")
        node("Concat", "first_class second", "probabilities", axis=1)
        if score == "margin":
            node("Abs", "margin", "score")
    else:
        node("ArgMax", margins, "index", axis=1, keepdims=0)
        if link == "softmax":
            node("Softmax", margins, "probabilities", axis=1)
        else:
            node("Identity", margins, "probabilities")
        if score == "margin":
            value("two", [2])
            value("best", 0)
            value("next", 1)
            node("TopK", f"{margins} two", "top places", axis=1)
            node("Gather", "top best", "largest", axis=1)
            node("Gather", "top next", "second_largest", axis=1)
            node("Sub", "largest second_largest", "score")
    node("Gather", "classes index", "label")
