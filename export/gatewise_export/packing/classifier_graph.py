"""Extend a classifier's graph by the outputs that a worker expects.

Graphs of skl2onnx and of users output labels, but a bundle's graphs must output class indices.
Nodes at the end of the graph convert the labels; the other nodes stay as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import onnx
from onnx import TensorProto, helper

from gatewise.models.tree_attributes import ML_DOMAIN, ML_OPSET
from gatewise_export.bundle.errors import ConversionError
from gatewise_export.onnx_writer import INPUT
from gatewise_training.learners.given_models.given_graph import GraphForm
from gatewise_training.learners.given_models.graph_files import GraphTail, inner_graphs
from gatewise_training.learners.high_cost_model import HighCostModel

#: Name of the original graph's scores as a matrix.
_SCORES: Final = "original_scores"


def with_class_indices(
    model: onnx.ModelProto,
    labels: Sequence[Any] | None,
    high_cost_model: HighCostModel,
    form: GraphForm,
) -> bytes:
    """Add nodes that output class indices, and one probability column per class.

    Parameters
    ----------
    model : onnx.ModelProto
    labels : sequence or None
        Values of the graph's label output, int64 or text; None if it outputs positions.
    high_cost_model : HighCostModel
    form : GraphForm
        Meaning of the graph's outputs.

    Returns
    -------
    bytes
        A graph with the input ``x`` and the outputs ``label``, int64 (n,), and ``probabilities``,
        float32 (n, n_classes).
    """
    _rename_values(model.graph, {})
    tail = GraphTail(model.SerializeToString())
    graph = tail.model.graph
    # find the position of each row's label among the graph's classes
    columns = (
        None
        if form.score_output is None
        else _add_scores(tail, graph.output[form.score_output].name, form)
    )
    if form.label_output is not None:
        position = _add_positions(tail, graph.output[form.label_output], labels)
    elif form.scores == "logits" and form.n_columns == 1:
        margin = tail.add("Reshape", [_SCORES, tail.constant([-1], np.int64)])
        is_second = tail.add("Greater", [margin, tail.constant(0.0)])
        position = tail.add("Cast", [is_second], to=TensorProto.INT64)
    else:
        scores = _SCORES if form.scores == "logits" else columns
        assert scores is not None
        position = tail.add("ArgMax", [scores], axis=1, keepdims=0)
    # turn positions and columns into class indices and a column for each class
    class_indices = (
        np.arange(high_cost_model.n_classes)
        if high_cost_model.class_indices is None
        else high_cost_model.class_indices
    )
    label = tail.add("Gather", [tail.constant(class_indices, np.int64), position], "label")
    if columns is None:
        _add_one_hot(tail, label, high_cost_model.n_classes)
    else:
        _add_columns(tail, columns, high_cost_model)
    return _encode_graph(tail.model, len(high_cost_model.features), high_cost_model.n_classes)


def _encode_graph(model: onnx.ModelProto, n_features: int, n_classes: int) -> bytes:
    """Declare the graph's input and outputs, check it, and encode it."""
    graph = model.graph
    constants = {initializer.name for initializer in graph.initializer}
    original_input = next(
        graph_input.name for graph_input in graph.input if graph_input.name not in constants
    )
    listed_constants = [graph_input for graph_input in graph.input if graph_input.name in constants]
    nodes = [helper.make_node("Identity", [INPUT], [original_input]), *graph.node]
    del graph.node[:], graph.input[:], graph.output[:]
    graph.node.extend(nodes)
    value_info = helper.make_tensor_value_info
    graph.input.extend([value_info(INPUT, TensorProto.FLOAT, ["n", n_features]), *listed_constants])
    graph.output.append(value_info("label", TensorProto.INT64, ["n"]))
    graph.output.append(value_info("probabilities", TensorProto.FLOAT, ["n", n_classes]))
    # skl2onnx lists opsets in an order that differs between runs
    model.opset_import.sort(key=lambda opset: opset.domain)
    onnx.checker.check_model(model)
    content: bytes = model.SerializeToString(deterministic=True)
    return content


def _rename_values(graph: onnx.GraphProto, new_names: dict[str, str]) -> None:
    """Number all values, because names could clash and would depend on skl2onnx's counters."""

    def new_name(name: str) -> str:
        return new_names.setdefault(name, f"v{len(new_names)}") if name else ""

    for value in (*graph.input, *graph.initializer):
        value.name = new_name(value.name)
    for sparse_initializer in graph.sparse_initializer:
        sparse_initializer.values.name = new_name(sparse_initializer.values.name)
    for node in graph.node:
        node.name = node.doc_string = ""
        node.input[:] = [new_name(name) for name in node.input]
        for inner_graph in inner_graphs(node):
            _rename_values(inner_graph, new_names)
        node.output[:] = [new_name(name) for name in node.output]
    for value in graph.output:
        value.name = new_name(value.name)
    graph.name, graph.doc_string = "f0", ""
    del graph.value_info[:], graph.quantization_annotation[:]


def _add_scores(tail: GraphTail, name: str, form: GraphForm) -> str:
    """Add nodes from the graph's scores to probabilities, one column per class of the graph."""
    scores = tail.add("Cast", [name], to=TensorProto.FLOAT)
    scores = tail.add("Reshape", [scores, tail.constant([-1, form.n_columns], np.int64)], _SCORES)
    has_logits = form.scores == "logits"
    if form.n_columns > 1:
        return tail.add("Softmax", [scores], axis=1) if has_logits else scores
    second_class = tail.add("Sigmoid", [scores]) if has_logits else scores
    first_class = tail.add("Sub", [tail.constant([1.0]), second_class])
    return tail.add("Concat", [first_class, second_class], axis=1)


def _add_positions(
    tail: GraphTail, label: onnx.ValueInfoProto, labels: Sequence[Any] | None
) -> str:
    """Add nodes from the graph's labels to their positions among its classes."""
    flat_labels = tail.add("Reshape", [label.name, tail.constant([-1], np.int64)])
    if labels is None or list(labels) == list(range(len(labels))):
        return tail.add("Cast", [flat_labels], to=TensorProto.INT64)
    if label.type.tensor_type.elem_type == TensorProto.STRING:
        label_texts = [str(label_value) for label_value in labels]
        versions = {opset.domain: opset.version for opset in tail.model.opset_import}
        encoder_attributes: dict[str, Any] = {
            "keys_strings": label_texts,
            "values_int64s": list(range(len(label_texts))),
        }
        # version 1 of LabelEncoder has another attribute
        if versions.get(ML_DOMAIN, ML_OPSET) == 1:
            encoder_attributes = {"classes_strings": label_texts}
        return tail.add("LabelEncoder", [flat_labels], domain=ML_DOMAIN, **encoder_attributes)
    label_numbers = np.array([int(label_value) for label_value in labels], np.int64)
    if label_numbers.tolist() != list(labels):
        raise ConversionError(
            f"high-cost model: class labels {labels[:3]!r} are neither whole numbers nor text"
        )
    column = tail.add("Cast", [flat_labels], to=TensorProto.INT64)
    column = tail.add("Reshape", [column, tail.constant([-1, 1], np.int64)])
    is_label = tail.add("Equal", [column, tail.constant(label_numbers[None, :], np.int64)])
    is_label = tail.add("Cast", [is_label], to=TensorProto.INT64)
    return tail.add("ArgMax", [is_label], axis=1, keepdims=0)


def _add_columns(tail: GraphTail, columns: str, high_cost_model: HighCostModel) -> None:
    """Add nodes that sort the graph's columns by class index."""
    class_indices = high_cost_model.class_indices
    if class_indices is None or np.array_equal(class_indices, np.arange(high_cost_model.n_classes)):
        tail.add("Identity", [columns], "probabilities")
        return
    permutation = np.zeros((len(class_indices), high_cost_model.n_classes), np.float32)
    # each sum of the product has one nonzero term, so it is exact
    permutation[np.arange(len(class_indices)), class_indices] = 1
    tail.add("MatMul", [columns, tail.constant(permutation)], "probabilities")


def _add_one_hot(tail: GraphTail, label: str, n_classes: int) -> None:
    """Add nodes from labels to probabilities of 0 and 1, for a classifier without scores."""
    column = tail.add("Reshape", [label, tail.constant([-1, 1], np.int64)])
    classes = tail.constant(np.arange(n_classes)[None, :], np.int64)
    is_class = tail.add("Equal", [column, classes])
    tail.add("Cast", [is_class], "probabilities", to=TensorProto.FLOAT)
