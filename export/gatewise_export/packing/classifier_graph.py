"""Classifiers' graphs from elsewhere: checked, and given the outputs that a worker expects.

skl2onnx's graphs and users' own give their own labels; a bundle's give class indices. A few nodes
at the end turn one into the other, and nothing inside changes.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from gatewise.errors import one_line
from gatewise_export.bundle.errors import ConversionError
from gatewise_export.packing.graph_parts import INPUT, ML_DOMAIN, ML_OPSET, GraphParts, tensor
from gatewise_training.learners.high_cost_model import HighCostModel

__all__ = ["labels_in_metadata", "read_given", "with_class_indices"]


def read_given(content: bytes) -> onnx.ModelProto:
    """Read and check a graph that a user gave."""
    try:
        model = onnx.load_model_from_string(content)
    except Exception as error:  # protobuf's DecodeError is not public
        raise ConversionError(f"high-cost model: not an ONNX file: {error}") from error
    outside = [t.name for t in _tensors(model.graph) if t.data_location == TensorProto.EXTERNAL]
    if outside:
        raise ConversionError(
            f"high-cost model: its ONNX file keeps {outside[0]!r} in another file; save it as one"
        )
    strange = {o.domain for o in model.opset_import} - {"", "ai.onnx", ML_DOMAIN}
    if strange or model.functions:
        raise ConversionError(
            "high-cost model: its ONNX file uses operators that onnxruntime alone does not know "
            f"({', '.join(sorted(strange)) or 'functions'})"
        )
    try:
        onnx.checker.check_model(model)
    except onnx.checker.ValidationError as error:
        raise ConversionError(
            f"high-cost model: its ONNX file is malformed: {one_line(error)}"
        ) from error
    known = {t.name for t in model.graph.initializer}
    inputs = [i.type.tensor_type.elem_type for i in model.graph.input if i.name not in known]
    if inputs != [TensorProto.FLOAT]:
        raise ConversionError("high-cost model: its ONNX file must have one float32 input")
    outputs = model.graph.output[:2]
    if len(outputs) < 2 or not all(o.type.HasField("tensor_type") for o in outputs):
        raise ConversionError(
            "high-cost model: its ONNX file must give labels and probabilities as tensors "
            "(skl2onnx: options={'zipmap': False})"
        )
    return model


def _tensors(graph: onnx.GraphProto) -> list[onnx.TensorProto]:
    found = list(graph.initializer)
    for node in graph.node:
        for attribute in node.attribute:
            found += [attribute.t, *attribute.tensors]
        for inner in _inner_graphs(node):
            found += _tensors(inner)
    return found


def _inner_graphs(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    """Bodies of a node that loops or branches."""
    single = [a.g for a in node.attribute if a.HasField("g")]
    return single + [g for a in node.attribute for g in a.graphs]


def labels_in_metadata(model: onnx.ModelProto) -> list[Any] | None:
    """Labels of the graph's classes; None where its label output is the class index."""
    text = next((p.value for p in model.metadata_props if p.key == "classes"), None)
    return None if text is None else list(json.loads(text))


# -- the same outputs for all --------------------------------------------------------------


def with_class_indices(
    model: onnx.ModelProto, own: Sequence[Any] | None, f0: HighCostModel, *, has_probabilities: bool
) -> onnx.ModelProto:
    """Put class indices and one column a class at the end of a classifier's graph, in place.

    Its first output is labels, int64 or text, of its `own` classes (None: positions already), its
    second one column for each of these: probabilities, or else they become 0 and 1. The result has
    the input ``x`` and the outputs ``label``, int64 (n,), and ``probabilities``, float32 (n,
    n_classes).
    """
    graph = model.graph
    _rename(graph, {})
    known = {t.name for t in graph.initializer}
    source = next(i for i in graph.input if i.name not in known)
    label, scores = graph.output[0], graph.output[1]
    head, tail = GraphParts(), GraphParts()
    head.add("Identity", INPUT, source.name)
    tail.value("flat", np.array([-1]))
    tail.add("Reshape", f"{label.name} flat", "own_label")
    _add_indices(tail, model, label, own, f0)
    if has_probabilities:
        tail.add("Cast", scores.name, "own_columns", to=TensorProto.FLOAT)
        _add_columns(tail, f0)
    else:
        _add_one_hot(tail, f0.n_classes)
    kept = [i for i in graph.input if i.name in known]
    body = list(graph.node)
    del graph.node[:], graph.input[:], graph.output[:]
    graph.node.extend([*head.nodes, *body, *tail.nodes])
    graph.initializer.extend(tail.constants)
    graph.input.extend([tensor(INPUT, TensorProto.FLOAT, "n", len(f0.features)), *kept])
    graph.output.extend(
        [
            tensor("label", TensorProto.INT64, "n"),
            tensor("probabilities", TensorProto.FLOAT, "n", f0.n_classes),
        ]
    )
    model.opset_import.sort(key=lambda opset: opset.domain)  # skl2onnx's order differs run by run
    onnx.checker.check_model(model)
    return model


def _rename(graph: onnx.GraphProto, names: dict[str, str]) -> None:
    """Number all values: names of ours cannot clash, and skl2onnx's global counters are gone."""

    def fresh(name: str) -> str:
        return names.setdefault(name, f"v{len(names)}") if name else ""

    for value in (*graph.input, *graph.initializer):
        value.name = fresh(value.name)
    for sparse in graph.sparse_initializer:
        sparse.values.name = fresh(sparse.values.name)
    for node in graph.node:
        node.name = node.doc_string = ""
        node.input[:] = [fresh(name) for name in node.input]
        for inner in _inner_graphs(node):
            _rename(inner, names)
        node.output[:] = [fresh(name) for name in node.output]
    for value in graph.output:
        value.name = fresh(value.name)
    graph.name, graph.doc_string = "f0", ""
    del graph.value_info[:], graph.quantization_annotation[:]


def _add_indices(
    parts: GraphParts,
    model: onnx.ModelProto,
    label: onnx.ValueInfoProto,
    own: Sequence[Any] | None,
    f0: HighCostModel,
) -> None:
    """Nodes from the graph's own labels to class indices."""
    if own is None or list(own) == list(range(len(own))):
        parts.add("Cast", "own_label", "position", to=TensorProto.INT64)
    elif label.type.tensor_type.elem_type == TensorProto.STRING:
        words = [str(c) for c in own]
        versions = {o.domain: o.version for o in model.opset_import}
        if ML_DOMAIN not in versions:
            model.opset_import.append(helper.make_opsetid(ML_DOMAIN, ML_OPSET))
        table: dict[str, Any] = (
            {"classes_strings": words}
            if versions.get(ML_DOMAIN) == 1
            else {"keys_strings": words, "values_int64s": list(range(len(words)))}
        )
        parts.add("LabelEncoder", "own_label", "position", domain=ML_DOMAIN, **table)
    else:
        numbers = np.array([int(c) for c in own], np.int64)
        if numbers.tolist() != list(own):
            raise ConversionError(
                f"high-cost model: class labels {own[:3]!r} are neither whole numbers nor text"
            )
        parts.value("own_classes", numbers[None, :])
        parts.value("own_column", np.array([-1, 1]))
        parts.add("Cast", "own_label", "whole_label", to=TensorProto.INT64)
        parts.add("Reshape", "whole_label own_column", "label_column")
        parts.add("Equal", "label_column own_classes", "is_own")
        parts.add("Cast", "is_own", "one_own", to=TensorProto.INT64)
        parts.add("ArgMax", "one_own", "position", axis=1, keepdims=0)
    lookup = np.arange(f0.n_classes) if f0.lookup is None else f0.lookup
    parts.value("lookup", lookup.astype(np.int64))
    parts.add("Gather", "lookup position", "label")


def _add_columns(parts: GraphParts, f0: HighCostModel) -> None:
    """Nodes from the graph's own columns to one column a class."""
    lookup = f0.lookup
    if lookup is None or np.array_equal(lookup, np.arange(f0.n_classes)):
        parts.add("Identity", "own_columns", "probabilities")
        return
    place = np.zeros((len(lookup), f0.n_classes), np.float32)
    place[np.arange(len(lookup)), lookup] = 1  # each sum has one term: nothing is rounded
    parts.value("place", place)
    parts.add("MatMul", "own_columns place", "probabilities")


def _add_one_hot(parts: GraphParts, n_classes: int) -> None:
    """Nodes from labels to probabilities of 0 and 1, for a classifier that gives none."""
    parts.value("classes", np.arange(n_classes)[None, :])
    parts.value("column", np.array([-1, 1]))
    parts.add("Reshape", "label column", "index_column")
    parts.add("Equal", "index_column classes", "is_class")
    parts.add("Cast", "is_class", "probabilities", to=TensorProto.FLOAT)
