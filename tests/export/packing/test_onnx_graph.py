"""The graphs give the same bits as the flat models: `==`, no tolerance."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.datasets import load_wine

from gatewise.models.trees import TreeEnsemble
from gatewise_edge.device.graph_runner import GraphRunner
from gatewise_export.packing.onnx_graph import flat_graph
from gatewise_training.learners.kernel_fitting import fit_kernel
from tests.support.bundle_files import run_onnx
from tests.support.flat_models import (
    Model,
    random_kernel,
    random_linear,
    random_rows,
    stage_graph,
)
from tests.support.trees import Form, make_trees

Floats = NDArray[np.float32]
F = np.float32


def assert_same_bits(model: Model, x: Floats) -> None:
    """By onnxruntime, by numpy alone, and by numpy row by row."""
    with np.errstate(all="ignore"):  # 3e38 squared
        expected = model.margins(x)
    outputs = run_onnx(flat_graph(model), x)
    assert list(outputs) == ["margins"]
    runner = GraphRunner(stage_graph(model), "stage.onnx")
    few = x[:20]
    singly = np.concatenate([runner.run(row[None]) for row in few])
    for got, own in ((outputs["margins"], expected), (runner.run(x), expected),
                     (singly, expected[: len(few)])):  # fmt: skip
        assert got.dtype == np.float32
        assert got.shape == own.shape == (len(got), model.n_outputs)
        nan = np.isnan(own)
        assert (np.isnan(got) == nan).all()
        same = np.ascontiguousarray(got).view(np.uint32) == own.view(np.uint32)
        assert same[~nan].all()


MARKS = np.round(np.linspace(-2, 2, 41), 1).astype(F)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    n_trees=st.integers(1, 40),
    n_features=st.integers(1, 8),
    n_outputs=st.integers(1, 7),
    rows=st.sampled_from([1, 2, 31, 200]),
    form=st.sampled_from(["one", "all", "mixed"]),
    strange=st.booleans(),
)
def test_trees_give_the_same_bits(
    seed: int, n_trees: int, n_features: int, n_outputs: int, rows: int, form: Form, strange: bool
) -> None:
    rng = np.random.default_rng(seed)
    trees = make_trees(rng, n_trees, n_features, n_outputs, form=form, marks=MARKS)
    assert_same_bits(trees, random_rows(rng, rows, n_features, strange=strange))


@pytest.mark.parametrize("rows", [1, 50, 3000])
@pytest.mark.parametrize("form", ["one", "all"])
def test_many_trees_and_outputs(rows: int, form: Form) -> None:
    rng = np.random.default_rng(rows)
    trees = make_trees(rng, 300, 16, 27, form=form, marks=MARKS)
    assert_same_bits(trees, random_rows(rng, rows, 16, strange=True))


@pytest.mark.parametrize("n_features", [0, 1, 3])
@pytest.mark.parametrize("rows", [1, 4])
def test_trees_of_a_single_leaf(n_features: int, rows: int) -> None:
    none = np.full(2, -1, np.int32)
    value, base = np.array([[0.25, 0, 1e-9], [0, 0, 0]], F), np.array([-0.0, 0.1, 0.2], F)
    roots = np.arange(2, dtype=np.int32)
    trees = TreeEnsemble(
        none, np.zeros(2, F), none, none, np.zeros(2, bool), value, roots, none, base, n_features
    )
    assert_same_bits(trees, np.full((rows, n_features), np.nan, F))


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    n_features=st.integers(0, 40),
    n_outputs=st.integers(1, 12),
    rows=st.sampled_from([1, 2, 33, 500]),
    strange=st.booleans(),
)
def test_linear_models_give_the_same_bits(
    seed: int, n_features: int, n_outputs: int, rows: int, strange: bool
) -> None:
    rng = np.random.default_rng(seed)
    model = random_linear(rng, n_features, n_outputs)
    assert_same_bits(model, random_rows(rng, rows, n_features, strange=strange))


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    n_features=st.integers(0, 20),
    n_landmarks=st.integers(1, 40),
    n_outputs=st.integers(1, 6),
    rows=st.sampled_from([1, 2, 33, 200]),
    strange=st.booleans(),
)
def test_kernel_machines_give_the_same_bits(
    seed: int, n_features: int, n_landmarks: int, n_outputs: int, rows: int, strange: bool
) -> None:
    rng = np.random.default_rng(seed)
    model = random_kernel(rng, n_features, n_landmarks, n_outputs)
    assert_same_bits(model, random_rows(rng, rows, n_features, strange=strange))


@pytest.mark.parametrize("offset", [0.0, 1e6])
def test_a_fitted_kernel_machine(offset: float) -> None:
    x, y = load_wine(return_X_y=True)
    x = (x + offset).astype(F)
    model, _ = fit_kernel(x[::2], y[::2], 3, n_landmarks=60)
    assert_same_bits(model, x)
    assert np.mean(model.margins(x[1::2]).argmax(axis=1) == y[1::2]) > 0.9


def test_a_graph_has_few_nodes_and_old_operator_sets() -> None:
    rng = np.random.default_rng(2)
    trees = flat_graph(make_trees(rng, 20, 4, 3, form="all", marks=MARKS))
    assert [n.op_type for n in trees.graph.node] == ["TreeEnsembleRegressor"]
    linear = flat_graph(random_linear(rng, 5, 3))
    assert len(linear.graph.node) == 7
    for model in (trees, linear):
        assert {o.domain: o.version for o in model.opset_import} == {"": 17, "ai.onnx.ml": 3}
        assert model.ir_version == 8
        onnx.checker.check_model(model, full_check=True)
