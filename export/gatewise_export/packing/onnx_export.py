"""Graphs for other people's tools: whole rows in, labels and probabilities out.

Gatewise's own runtime does not use them: it decides from raw margins, which is smaller and
faster (:mod:`gatewise_export.packing.onnx_graph`).
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

from gatewise.models.stage import Stage
from gatewise_export.bundle.errors import ConversionError
from gatewise_export.packing.graph_parts import GraphParts, Output
from gatewise_export.packing.skl2onnx_converters import pipeline_graph
from gatewise_export.packing.system_graph import append_stage, label_tensor, make_system_graph

if TYPE_CHECKING:
    from sklearn.base import BaseEstimator

    from gatewise_training.cascades.base import BudgetedClassifier


def to_onnx(
    model: BudgetedClassifier | Stage | BaseEstimator,
    *,
    n_features: int | None = None,
    classes: NDArray[Any] | None = None,
) -> onnx.ModelProto:
    """Write a fitted system, one of its stages, or a pipeline as a self-contained graph.

    Parameters
    ----------
    model : fitted system, Stage, or scikit-learn pipeline
        A system is written at the active operating point. A pipeline goes through skl2onnx
        (:mod:`gatewise_export.packing.skl2onnx_converters`).
    n_features : int, optional
        Columns of a whole row; needed for a Stage, known of the others.
    classes : ndarray of shape (n_classes,), optional
        A Stage's labels, whole numbers or text; class indices by default.

    Returns
    -------
    onnx.ModelProto
        Input ``x``, float32 (n, n_features); of a pipeline float64, so that scalers compute as
        in scikit-learn. Outputs of a system: ``label``, int64 or text (n,); ``probabilities``,
        float32 (n, n_classes); with a high-cost model ``offload``, bool (n,), the rows that go to
        it, for which `label` is the last stage's answer; where stages acquire as a whole ``cost``,
        float64 (n,). Outputs of a Stage: ``label``, ``probabilities`` and ``score``, float32 (n,),
        the stop score: its answer stands where that reaches the operating point's threshold. A
        model of values (a regressor, a ranker) has ``value``, float32 (n,), for the first two.
        Metadata: ``classes`` (JSON).

    Raises
    ------
    ConversionError
        If `n_features` is missing, the labels are neither whole numbers nor text, or skl2onnx
        cannot convert a step of a pipeline.

    Notes
    -----
    Labels, offload, score, cost and value are the system's, bit for bit, in a session with
    ``intra_op_num_threads = 1``; probabilities to float32's precision, since they need ``exp``.
    """
    if not isinstance(model, Stage):
        return make_system_graph(model) if hasattr(model, "stages_") else pipeline_graph(model)
    if n_features is None:
        raise ConversionError("to_onnx: say n_features, the number of columns of a whole row")
    return _stage_graph(model, n_features, classes)


def _stage_graph(stage: Stage, n_features: int, classes: NDArray[Any] | None) -> onnx.ModelProto:
    parts = GraphParts()
    own = append_stage(parts, "s_", stage)
    n_margins = stage.n_margins
    if stage.link == "identity" and n_margins == 1:
        parts.add("Identity", f"{own}value", "value")
        return parts.model(n_features, [Output("value", TensorProto.FLOAT)], full_check=True)
    n_classes = max(n_margins, 2)
    labels = label_tensor(np.arange(n_classes) if classes is None else np.asarray(classes))
    parts.constants.append(labels)
    parts.add("Gather", f"classes {own}index", "label")
    parts.add("Identity", f"{own}probabilities", "probabilities")
    parts.add("Identity", f"{own}score", "score")
    outputs = [
        Output("label", labels.data_type),
        Output("probabilities", TensorProto.FLOAT, n_classes),
        Output("score", TensorProto.FLOAT),
    ]
    model = parts.model(n_features, outputs, full_check=True)
    named = range(n_classes) if classes is None else np.asarray(classes).tolist()
    helper.set_model_props(model, {"classes": json.dumps(list(named))})
    return model
