"""Training, numpy and onnxruntime give the same margins for flat models, bit for bit."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.datasets import load_wine

from gatewise.models.trees import TreeEnsemble
from gatewise_edge.device.stages import FlatRunner
from gatewise_export.bundle.flat_models import canonical_model, model_kind, read_model, write_model
from gatewise_export.onnx_writer import FlatModel, _varints, write_graph
from gatewise_training.learners.kernel_fitting import fit_kernel
from tests.support.bundle_files import run_onnx
from tests.support.flat_models import draw_kernel_machine, draw_linear_model, draw_rows
from tests.support.processes import run_python
from tests.support.trees import OutputForm, make_trees

Floats = NDArray[np.float32]
float32 = np.float32
#: Few thresholds, so that many nodes share one and rows hit them.
THRESHOLDS = np.round(np.linspace(-2, 2, 41), 1).astype(float32)


def assert_same_bits(model: FlatModel, rows: Floats) -> None:
    """Compare training's margins with a device's margins of the model read from its file."""
    training_margins = model.margins(rows)
    content = write_model(canonical_model(model))
    sizes = {"n_inputs": model.n_features, "n_outputs": model.n_outputs}
    restored_model = read_model(content, model_kind(model, is_lazy=False), "stage.npz", **sizes)
    assert write_model(restored_model) == content
    graph = write_graph(restored_model)
    assert graph == write_graph(canonical_model(model))
    outputs = run_onnx(graph, rows)
    assert list(outputs) == ["margins"]
    runner = FlatRunner(restored_model)
    first_rows = rows[:20]
    row_by_row = np.array([runner.run_row(row) for row in first_rows], float32)
    row_by_row = row_by_row.reshape(len(first_rows), -1)
    for margins, expected_margins in (
        (outputs["margins"], training_margins),
        (runner.run(rows), training_margins),
        (row_by_row, training_margins[: len(first_rows)]),
    ):
        assert margins.dtype == np.float32
        assert margins.shape == expected_margins.shape == (len(margins), model.n_outputs)
        is_nan = np.isnan(expected_margins)
        assert (np.isnan(margins) == is_nan).all()
        margin_bits = np.ascontiguousarray(margins).view(np.uint32)
        assert (margin_bits == expected_margins.view(np.uint32))[~is_nan].all()


def list_with_neighbours(numbers: Floats) -> Floats:
    """List numbers, their neighbouring float32 numbers, both zeros and subnormal numbers."""
    neighbours = [np.nextafter(numbers, float32(side)) for side in (-np.inf, np.inf)]
    tiny_numbers = float32([0.0, -0.0, 1e-45, -1e-45, 1e-38, -1e-38])
    return np.concatenate([numbers, *neighbours, tiny_numbers])


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    n_trees=st.integers(1, 40),
    n_features=st.integers(1, 8),
    n_outputs=st.integers(1, 7),
    n_rows=st.sampled_from([1, 2, 31, 200]),
    form=st.sampled_from(["one", "all", "mixed"]),
    has_special_values=st.booleans(),
)
def test_trees_give_the_same_bits(
    seed: int,
    n_trees: int,
    n_features: int,
    n_outputs: int,
    n_rows: int,
    form: OutputForm,
    has_special_values: bool,
) -> None:
    rng = np.random.default_rng(seed)
    trees = make_trees(
        rng, n_trees, n_features, n_outputs, output_form=form, threshold_values=THRESHOLDS
    )
    assert_same_bits(
        trees, draw_rows(rng, n_rows, n_features, has_special_values=has_special_values)
    )


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), has_missing=st.booleans())
def test_rows_at_thresholds_and_their_neighbours_give_the_same_bits(
    seed: int, has_missing: bool
) -> None:
    rng = np.random.default_rng(seed)
    trees = make_trees(rng, 10, 3, 2, output_form="mixed", threshold_values=THRESHOLDS)
    cells = list_with_neighbours(trees.threshold[trees.feature >= 0])
    if has_missing:
        cells = np.append(cells, float32(np.nan))
    assert_same_bits(trees, rng.choice(cells, (300, 3)).astype(float32))


@pytest.mark.parametrize("n_rows", [1, 50, 3000])
@pytest.mark.parametrize("form", ["one", "all"])
def test_many_trees_and_outputs_give_the_same_bits(n_rows: int, form: OutputForm) -> None:
    rng = np.random.default_rng(n_rows)
    trees = make_trees(rng, 300, 16, 27, output_form=form, threshold_values=THRESHOLDS)
    assert_same_bits(trees, draw_rows(rng, n_rows, 16, has_special_values=True))


@pytest.mark.parametrize("n_features", [0, 1, 3])
@pytest.mark.parametrize("n_rows", [1, 4])
def test_trees_of_a_single_leaf_give_the_same_bits(n_features: int, n_rows: int) -> None:
    leaf = np.full(2, -1, np.int32)  # of two trees; -1 also stands for all outputs
    value = np.array([[0.25, 0, 1e-9], [0, 0, 0]], float32)
    base = np.array([-0.0, 0.1, 0.2], float32)
    roots = np.arange(2, dtype=np.int32)
    trees = TreeEnsemble(
        feature=leaf, threshold=np.zeros(2, float32), left=leaf, right=leaf,
        nan_left=np.zeros(2, bool), value=value, roots=roots, output=leaf, base=base,
        n_features=n_features,
    )  # fmt: skip
    assert_same_bits(trees, np.full((n_rows, n_features), np.nan, float32))


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    n_features=st.integers(0, 40),
    n_outputs=st.integers(1, 12),
    n_rows=st.sampled_from([1, 2, 33, 500]),
    has_special_values=st.booleans(),
)
def test_linear_models_give_the_same_bits(
    seed: int, n_features: int, n_outputs: int, n_rows: int, has_special_values: bool
) -> None:
    rng = np.random.default_rng(seed)
    model = draw_linear_model(rng, n_features, n_outputs)
    assert_same_bits(
        model, draw_rows(rng, n_rows, n_features, has_special_values=has_special_values)
    )


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    n_features=st.integers(0, 20),
    n_landmarks=st.integers(1, 40),
    n_outputs=st.integers(1, 6),
    n_rows=st.sampled_from([1, 2, 33, 200]),
    has_special_values=st.booleans(),
)
def test_kernel_machines_give_the_same_bits(
    seed: int,
    n_features: int,
    n_landmarks: int,
    n_outputs: int,
    n_rows: int,
    has_special_values: bool,
) -> None:
    rng = np.random.default_rng(seed)
    model = draw_kernel_machine(rng, n_features, n_landmarks, n_outputs)
    assert_same_bits(
        model, draw_rows(rng, n_rows, n_features, has_special_values=has_special_values)
    )


@pytest.mark.slow
@pytest.mark.parametrize("offset", [0.0, 1e6])
def test_a_fitted_kernel_machine_gives_the_same_bits(offset: float) -> None:
    X, y = load_wine(return_X_y=True)
    X = (X + offset).astype(float32)
    model, _ = fit_kernel(X[::2], y[::2], 3, n_landmarks=60)
    assert_same_bits(model, X)
    assert np.mean(model.margins(X[1::2]).argmax(axis=1) == y[1::2]) > 0.9  # it has learned


# -- files ---------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 2**35 - 1), max_size=20))
def test_arrays_of_integers_are_encoded_as_protobuf_does(integers: list[int]) -> None:
    message = onnx.AttributeProto(ints=integers)
    content = _varints(np.array(integers, np.int64))
    # field 8, length-delimited: the packed form of the same field
    parsed = onnx.AttributeProto.FromString(b"\x42" + _encode_length(len(content)) + content)
    assert list(parsed.ints) == list(message.ints)


def _encode_length(n_bytes: int) -> bytes:
    """Encode a length below 2^14 as a varint: seven bits per byte, the lowest first."""
    return bytes([n_bytes]) if n_bytes < 128 else bytes([n_bytes & 127 | 128, n_bytes >> 7])


def test_a_graph_has_few_nodes_and_old_operator_sets() -> None:
    rng = np.random.default_rng(2)
    trees = write_graph(make_trees(rng, 20, 4, 3, output_form="all", threshold_values=THRESHOLDS))
    linear = write_graph(draw_linear_model(rng, 5, 3))
    kernel = write_graph(draw_kernel_machine(rng, 5, 4, 1))
    models = [onnx.load_model_from_string(content) for content in (trees, linear, kernel)]
    assert [node.op_type for node in models[0].graph.node] == ["TreeEnsembleRegressor"]
    assert len(models[1].graph.node) == 7
    for model in models:
        assert {opset.domain: opset.version for opset in model.opset_import} == {
            "": 17,
            "ai.onnx.ml": 3,
        }
        assert model.ir_version == 8
        onnx.checker.check_model(model, full_check=True)
        input_names = {name for node in model.graph.node for name in node.input}
        assert {constant.name for constant in model.graph.initializer} <= input_names


#: Writes the graphs of three models; prints their digests and the heavy packages it loaded.
WRITE_GRAPHS = """
import hashlib, json, sys
import numpy as np
from gatewise.models.linear import LinearModel
from gatewise.models.trees import TreeEnsemble
from gatewise_export.bundle.flat_models import read_model
from gatewise_export.onnx_writer import write_graph
digests = {}
for kind in ("trees", "linear", "kernel"):
    content = open(f"{sys.argv[1]}/{kind}.npz", "rb").read()
    graph = write_graph(read_model(content, kind, kind, n_inputs=4, n_outputs=3))
    digests[kind] = hashlib.sha256(graph).hexdigest()
heavy_packages = {"onnx", "onnxruntime", "numba", "scipy", "sklearn"} & set(sys.modules)
print(json.dumps([digests, sorted(heavy_packages)]))
"""


def test_a_device_writes_the_same_graph_without_other_packages(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    models = {
        "trees": make_trees(
            rng, 12, 4, 3, output_form="mixed", threshold_values=THRESHOLDS
        ).in_canonical_order(),
        "linear": draw_linear_model(rng, 4, 3),
        "kernel": draw_kernel_machine(rng, 4, 5, 3),
    }
    for kind, model in models.items():
        (tmp_path / f"{kind}.npz").write_bytes(write_model(model))
    digests, heavy_packages = json.loads(run_python(WRITE_GRAPHS, tmp_path))
    assert heavy_packages == []
    assert digests == {
        kind: hashlib.sha256(write_graph(model)).hexdigest() for kind, model in models.items()
    }
    for model in models.values():
        onnxruntime.InferenceSession(write_graph(model), providers=["CPUExecutionProvider"])
