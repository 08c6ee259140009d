"""Export stages and high-cost models as ONNX graphs from rows to labels, for other programs.

Devices use graphs that output margins instead (:mod:`gatewise_export.onnx_writer`).
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from gatewise.decision import STOP_RULES
from gatewise.models.graph_model import GraphModel
from gatewise.models.stage import Stage
from gatewise_export.bundle.errors import ConversionError
from gatewise_export.onnx_writer import (
    INPUT,
    INT64,
    MARGINS,
    STRING,
    GraphWriter,
    Output,
    append_model,
)
from gatewise_export.packing.converters import convert_to_graph
from gatewise_training.learners.high_cost_model import HighCostModel


def to_onnx(
    model: Stage | HighCostModel,
    *,
    n_features: int | None = None,
    classes: NDArray[Any] | None = None,
) -> onnx.ModelProto:
    """Write a stage or the high-cost model of a fitted system as a self-contained graph.

    Parameters
    ----------
    model : Stage or HighCostModel
        One of ``system.stages_``, or ``system.high_cost_model_``.
    n_features : int, optional
        Number of columns of a whole row; required for a stage.
    classes : ndarray of shape (n_classes,), optional
        Labels that a stage outputs, whole numbers or text; by default class indices.

    Returns
    -------
    onnx.ModelProto
        A stage's graph has the input ``x``, float32 (n, n_features). A classifier's outputs are
        ``label``, int64 or text (n,), ``probabilities``, float32 (n, n_classes), and ``score``,
        float32 (n,). The stage answers if the score reaches the operating point's threshold. The
        only output of a regressor or ranker is ``value``, float32 (n,). The metadata holds
        ``classes`` as JSON. A high-cost model's graph is the worker's, with class indices.

    Raises
    ------
    ConversionError
        If `model` is neither a stage nor a high-cost model, `n_features` is missing or too small,
        the labels are neither whole numbers nor text or not as many as the stage has classes, or
        the high-cost model cannot be converted.

    Notes
    -----
    In a session with ``intra_op_num_threads = 1`` labels, scores and values equal the stage's bit
    for bit. Probabilities depend on ``exp`` and are equal to the precision of float32.
    """
    if isinstance(model, HighCostModel):
        return onnx.load_model_from_string(convert_to_graph(model).content)
    if not isinstance(model, Stage):
        raise ConversionError(
            f"to_onnx takes a Stage or a high-cost model, not {type(model).__name__}: give one of "
            "system.stages_, or pack the system as a bundle"
        )
    if n_features is None:
        raise ConversionError("to_onnx: give n_features, the number of columns of a whole row")
    graph = onnx.load_model_from_string(_stage_graph(model, n_features, classes))
    onnx.checker.check_model(graph, full_check=True)
    return graph


def _stage_graph(stage: Stage, n_features: int, classes: NDArray[Any] | None) -> bytes:
    """Write the graph of a stage from whole rows to labels or values."""
    if isinstance(stage.model, GraphModel):
        raise ConversionError(
            "to_onnx: the stage's model is a given graph: use that graph, or pack a bundle"
        )
    last_column = int(stage.features.max(initial=-1))
    if n_features <= last_column:
        raise ConversionError(
            f"to_onnx: n_features={n_features}, but the stage reads column {last_column}"
        )
    writer = GraphWriter()
    writer.add_constant("features", stage.features.astype(np.int64))
    writer.add_node("Gather", f"{INPUT} features", "stage_rows", axis=1)
    append_model(writer, stage.model, "stage_rows")
    n_margins = stage.n_margins
    if stage.link == "identity" and n_margins == 1:
        writer.add_constant("value_column", np.int64(0))
        writer.add_node("Gather", f"{MARGINS} value_column", "value", axis=1)
        return writer.encode(n_features, [Output("value")])
    n_classes = max(n_margins, 2)
    class_names = np.arange(n_classes) if classes is None else np.asarray(classes)
    if len(class_names) != n_classes:
        raise ConversionError(f"to_onnx: {len(class_names)} classes, but the stage has {n_classes}")
    _append_answers(writer, stage, n_margins)
    is_text = _is_text(class_names)
    writer.add_constant(
        "classes", class_names.astype(object) if is_text else class_names.astype(np.int64)
    )
    writer.add_node("Gather", "classes index", "label")
    outputs = [
        Output("label", STRING if is_text else INT64),
        Output("probabilities", n_columns=n_classes),
        Output("score"),
    ]
    return writer.encode(n_features, outputs, {"classes": json.dumps(class_names.tolist())})


def _is_text(classes: NDArray[Any]) -> bool:
    """Whether labels are text; raise ConversionError if they are not whole numbers either."""
    if classes.dtype.kind in "biu":
        return False
    if all(isinstance(label, str) for label in classes.tolist()):
        return True
    raise ConversionError(
        f"to_onnx: labels {classes.tolist()[:3]!r} are neither whole numbers nor text"
    )


def _append_answers(writer: GraphWriter, stage: Stage, n_margins: int) -> None:
    """Add nodes from ``margins`` to ``index``, ``probabilities`` and ``score``."""
    rule = STOP_RULES[stage.score]
    margins = MARGINS
    if rule.n_score_outputs:  # the last outputs are only for the score
        margins = "class_margins"
        writer.add_constant("class_columns", np.arange(n_margins))
        writer.add_node("Gather", f"{MARGINS} class_columns", margins, axis=1)
    constants, nodes = rule.graph_nodes(n_margins)
    for name, array in constants.items():
        writer.add_constant(name, array)
    for operator, inputs, outputs, attributes in nodes:
        writer.add_node(operator, inputs, outputs, **attributes)
    if stage.link == "sigmoid":
        writer.add_constant("zero_margin", np.float32(0))
        writer.add_constant("unit", np.float32(1))
        writer.add_constant("margin_column", np.int64(0))
        writer.add_node("Gather", f"{margins} margin_column", "margin", axis=1)
        writer.add_node("Greater", "margin zero_margin", "positive")
        writer.add_node("Cast", "positive", "index", to=INT64)
        writer.add_node("Sigmoid", margins, "second_class")
        writer.add_node("Sub", "unit second_class", "first_class")
        writer.add_node("Concat", "first_class second_class", "probabilities", axis=1)
        return
    writer.add_node("ArgMax", margins, "index", axis=1, keepdims=0)
    if stage.link == "softmax":
        writer.add_node("Softmax", margins, "probabilities", axis=1)
    else:
        writer.add_node("Identity", margins, "probabilities")
