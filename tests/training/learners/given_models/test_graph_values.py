"""Types of values in ONNX graphs, compared with the type promotion of numpy."""

from __future__ import annotations

import numpy as np
import pytest

from gatewise_training.learners.given_models.graph_values import GraphOfRows

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
