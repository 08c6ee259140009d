"""Classifiers' graphs from elsewhere, given the outputs that a worker expects.

skl2onnx's graphs and users' own give their own labels; a bundle's give class indices. A few nodes
at the end turn one into the other, and nothing inside changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from gatewise.models.tree_attributes import ML_DOMAIN, ML_OPSET
from gatewise_export.bundle.errors import ConversionError
from gatewise_export.packing.graph_parts import INPUT, GraphParts, tensor
from gatewise_training.graphs.given_graph import GraphForm
from gatewise_training.graphs.graph_files import inner_graphs
from gatewise_training.learners.high_cost_model import HighCostModel


def with_class_indices(
    model: onnx.ModelProto, own: Sequence[Any] | None, f0: HighCostModel, form: GraphForm
) -> onnx.ModelProto:
    """Put class indices and one column a class at the end of a classifier's graph, in place.

    Its outputs are of a form; `own` are the values of its label output, int64 or text, None where
    these are places among its classes. The result has the input ``x`` and the outputs ``label``,
    int64 (n,), and ``probabilities``, float32 (n, n_classes).
    """
    graph = model.graph
    _rename(graph, {})
    known = {t.name for t in graph.initializer}
    head, tail = GraphParts(), GraphParts()
    head.add("Identity", INPUT, next(i.name for i in graph.input if i.name not in known))
    if form.score is not None:
        _add_scores(tail, graph.output[form.score].name, form)
    if form.label is not None:
        label = graph.output[form.label]
        tail.value("flat", np.array([-1]))
        tail.add("Reshape", f"{label.name} flat", "own_label")
        _add_positions(tail, model, label, own)
    elif form.scores == "logits" and form.columns == 1:
        tail.value("zero", np.array(0, np.float32))
        tail.value("flat", np.array([-1]))
        tail.add("Reshape", "own_scores flat", "margin")
        tail.add("Greater", "margin zero", "is_second")
        tail.add("Cast", "is_second", "position", to=TensorProto.INT64)
    else:
        scores = "own_scores" if form.scores == "logits" else "own_columns"
        tail.add("ArgMax", scores, "position", axis=1, keepdims=0)
    lookup = np.arange(f0.n_classes) if f0.lookup is None else f0.lookup
    tail.value("lookup", lookup.astype(np.int64))
    tail.add("Gather", "lookup position", "label")
    if form.score is not None:
        _add_columns(tail, f0)
    else:
        _add_one_hot(tail, f0.n_classes)
    kept = [i for i in graph.input if i.name in known]
    body = list(graph.node)
    del graph.node[:], graph.input[:], graph.output[:]
    graph.node.extend([*head.nodes, *body, *tail.nodes])
    graph.initializer.extend([*head.constants, *tail.constants])
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


def _add_scores(parts: GraphParts, name: str, form: GraphForm) -> None:
    """Nodes from the graph's scores to probabilities, a column for each of its own classes."""
    parts.value("matrix", np.array([-1, form.columns]))
    parts.add("Cast", name, "scores", to=TensorProto.FLOAT)
    parts.add("Reshape", "scores matrix", "own_scores")
    logits = form.scores == "logits"
    if form.columns > 1:
        parts.add(
            "Softmax" if logits else "Identity",
            "own_scores",
            "own_columns",
            **({"axis": 1} if logits else {}),
        )
        return
    parts.add("Sigmoid" if logits else "Identity", "own_scores", "second")
    parts.value("one", np.array([1], np.float32))
    parts.add("Sub", "one second", "first")
    parts.add("Concat", "first second", "own_columns", axis=1)


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
        for inner in inner_graphs(node):
            _rename(inner, names)
        node.output[:] = [fresh(name) for name in node.output]
    for value in graph.output:
        value.name = fresh(value.name)
    graph.name, graph.doc_string = "f0", ""
    del graph.value_info[:], graph.quantization_annotation[:]


def _add_positions(
    parts: GraphParts,
    model: onnx.ModelProto,
    label: onnx.ValueInfoProto,
    own: Sequence[Any] | None,
) -> None:
    """Nodes from the graph's own labels to their places among its classes."""
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
