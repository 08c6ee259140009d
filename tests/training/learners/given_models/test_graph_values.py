"""Types and functions of values in ONNX graphs, compared with numpy."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit
from sklearn.datasets import load_digits
from sklearn.linear_model import SGDClassifier

from gatewise.imports import open_session
from gatewise_training.learners.given_models.given_classifiers import GivenClassifier
from gatewise_training.learners.given_models.graph_values import GraphOfRows, sigmoid

OPERANDS = [
    2, 0.5, np.float64(0.5), np.float32(0.5), np.int64(2),
    np.ones(3, np.float32), np.ones(3), np.ones(3, np.int64),
]  # fmt: skip


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64])
def test_operands_get_the_type_that_numpy_gives_them(dtype):
    rows = GraphOfRows(3).rows.astype(dtype)
    array = np.ones((2, 3), dtype)
    for operand in OPERANDS:
        assert (rows + operand).dtype == (array + operand).dtype, operand


def test_a_constant_is_stored_once_for_each_type():
    graph = GraphOfRows(1)
    constant = graph.constant([1.0], np.float32)
    assert graph.constant([1.0], np.float32).name == constant.name
    assert graph.constant([1.0], np.float64).name != constant.name


def test_small_probabilities_are_not_rounded_to_0():
    graph = GraphOfRows(4)
    model = graph.model({"probabilities": sigmoid(graph.rows.double())})
    margins = np.array([[-700, -40, -20, -1], [0, 1, 20, 1000]], np.float32)
    (probabilities,) = open_session(model.SerializeToString()).run(None, {"x": margins})
    np.testing.assert_allclose(probabilities, expit(margins.astype(np.float64)), rtol=1e-14)


def test_classes_against_the_others_are_normalised_if_no_class_is_likely():
    X, y = load_digits(return_X_y=True)
    X = X.astype(np.float32)
    model = SGDClassifier(loss="log_loss", random_state=0).fit(X, y)
    assert (model.decision_function(X).max(axis=1) < -40).any()
    GivenClassifier.read_and_compare(model, X, X.shape[1:], "model", as_stage=False)
