"""ONNX files with external data, functions and fixed batches."""

from __future__ import annotations

import logging

import numpy as np
import onnx
import pytest
from onnx import helper

from gatewise.errors import InputError
from gatewise_training.learners.given_models.given_graph import GivenGraph, graph_answer
from tests.support.onnx_graphs import graph_of, node

RNG = np.random.default_rng(0)
WEIGHTS = RNG.normal(size=(12, 3)).astype(np.float32)
ROWS = RNG.normal(size=(40, 12)).astype(np.float32)
EXPECTED_LABELS = (ROWS @ WEIGHTS).argmax(axis=1)


def make_network(batch: int | str, *, reshape_to: int | None = None) -> bytes:
    """Make a graph from ``v``, (batch, 3, 4), to ``logits``; its reshape may fix the batch."""
    shape = np.array([reshape_to or -1, 12])
    nodes = [node("Reshape", "v shape", "flat"), node("MatMul", "flat weights", "logits")]
    graph_input = ("v", 1, [batch, 3, 4])
    return graph_of(nodes, graph_input, ("logits", 1, [batch, 3]), shape=shape, weights=WEIGHTS)


def predict_labels(graph: GivenGraph) -> np.ndarray:
    return graph_answer(graph.content, graph.form, ROWS)[0]


def test_external_data_is_read_from_the_folder_of_the_file(tmp_path):
    path = tmp_path / "network.onnx"
    model = onnx.load_model_from_string(make_network("n"))
    onnx.save(model, path, save_as_external_data=True, size_threshold=0, location="weights.bin")
    content = path.read_bytes()
    graph = GivenGraph(path, (3, 4), "model")
    np.testing.assert_array_equal(predict_labels(graph), EXPECTED_LABELS)
    (tmp_path / "weights.bin").unlink()
    with pytest.raises(InputError, match="is not a usable ONNX file"):
        GivenGraph(path, (3, 4), "model")
    with pytest.raises(InputError, match="in another file; give the path of its file"):
        GivenGraph(content, (3, 4), "model")


@pytest.mark.parametrize("batch", [1, 4])
def test_fixed_batch_is_removed_if_no_operator_depends_on_it(batch, caplog):
    with caplog.at_level(logging.INFO, "gatewise_training"):
        graph = GivenGraph(make_network(batch), (3, 4), "model")
    np.testing.assert_array_equal(predict_labels(graph), EXPECTED_LABELS)
    assert "the input 'v' gets float instances of shape (3, 4)" in caplog.text
    assert "it gives logits of 3 classes in output 0" in caplog.text


@pytest.mark.parametrize("batch", [1, 4])
def test_fixed_batch_that_operators_depend_on_runs_row_by_row(batch):
    with pytest.warns(RuntimeWarning, match=f"model has a fixed batch of {batch}.*one by one"):
        graph = GivenGraph(make_network(batch, reshape_to=batch), (3, 4), "model")
    np.testing.assert_array_equal(predict_labels(graph), EXPECTED_LABELS)
    margins, link = graph.margins_model(np.array([2, 0, 1]))
    np.testing.assert_allclose(margins.margins(ROWS), (ROWS @ WEIGHTS)[:, [2, 0, 1]], atol=1e-5)
    assert link == "softmax"


def test_functions_of_a_file_are_inlined():
    double_function = helper.make_function(
        "own", "Double", ["a"], ["b"], [node("Add", "a a", "b")], [helper.make_opsetid("", 17)]
    )
    nodes = [node("MatMul", "v weights", "product"), node("Double", "product", "out", domain="own")]
    content = graph_of(nodes, ("v", 1, ["n", 12]), ("out", 1, ["n", 3]), weights=WEIGHTS)
    model = onnx.load_model_from_string(content)
    model.functions.append(double_function)
    model.opset_import.append(helper.make_opsetid("own", 1))
    graph = GivenGraph(model.SerializeToString(), (12,), "model")
    np.testing.assert_array_equal(predict_labels(graph), EXPECTED_LABELS)
    del model.functions[:]
    with pytest.raises(InputError, match=r"onnxruntime alone does not have \(own\)"):
        GivenGraph(model.SerializeToString(), (12,), "model")
