"""Python functions and parts of ONNX networks as blocks."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys

import numpy as np
import onnx
import onnx.helper as helper
import pytest

import gatewise_signals as sig
from gatewise.errors import InputError
from gatewise_signals.blocks.block import FunctionBlock, OnnxBlock


def extremes(windows):
    return np.stack([windows.max(axis=1), windows.min(axis=1)], axis=1)


@pytest.fixture
def network(tmp_path):
    """Saved network x (n, 4, 2) -> hidden (n, 5) -> logits (n, 3), and its weights."""
    rng = np.random.default_rng(0)
    first_weights = rng.normal(size=(8, 5))
    second_weights = rng.normal(size=(5, 3))
    constants = {"w1": first_weights, "w2": second_weights, "shape": np.asarray([-1, 8], np.int64)}
    nodes = [
        helper.make_node("Reshape", ["x", "shape"], ["flat"]),
        helper.make_node("MatMul", ["flat", "w1"], ["sum"]),
        helper.make_node("Relu", ["sum"], ["hidden"]),
        helper.make_node("MatMul", ["hidden", "w2"], ["logits"]),
    ]
    graph = helper.make_graph(
        nodes,
        "two layers",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", 4, 2])],
        [helper.make_tensor_value_info("logits", onnx.TensorProto.FLOAT, ["n", 3])],
        [
            onnx.numpy_helper.from_array(
                array.astype(np.int64 if name == "shape" else np.float32), name
            )
            for name, array in constants.items()
        ],
    )
    opsets = [helper.make_opsetid("", 17)]
    path = tmp_path / "small.onnx"
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path)
    return path, first_weights, second_weights


def test_a_function_computes_the_features_of_a_block():
    block = sig.Block.from_function(extremes, ["high", "low"], price=12.5)
    graph = sig.SignalGraph([sig.Mean(sig.Channels()), block])
    x = np.random.default_rng(0).normal(size=(300, 9))
    np.testing.assert_allclose(graph.transform(x)[:, 1:], extremes(x), rtol=1e-6)
    assert graph.feature_names[1:] == ("high", "low")
    assert (block.label, block.price, block.path) == ("extremes", 12.5, f"{__name__}:extremes")
    assert sig.measured([block], x[:3])[0].function is extremes


def test_blocks_of_equal_functions_are_equal_and_can_be_copied():
    block = sig.Block.from_function(extremes, ["high", "low"])
    assert block == sig.Block.from_function(extremes, ["high", "low"], 3.0)
    assert block != sig.Block.from_function(extremes, ["high", "low"], name="other")
    block_without_function = FunctionBlock(block.name, block.features, block.path)
    assert block_without_function == block
    with pytest.raises(InputError, match=r"'extremes' is .*give blocks={'extremes': function}"):
        block_without_function.run(np.asarray([[1.0, 3.0]]))
    for duplicate in (copy.deepcopy(block), pickle.loads(pickle.dumps(block))):
        assert duplicate == block
        assert duplicate.run(np.asarray([[1.0, 3.0]])).tolist() == [[3, 1]]


def test_a_function_is_never_imported_by_its_path():
    block = FunctionBlock("system", ("a",), "os:system")
    with pytest.raises(InputError, match=r"os:system in training\), which the bundle does"):
        block.run(np.zeros((1, 4)))


def test_functions_that_cannot_be_imported_have_no_path():
    block = sig.Block.from_function(lambda x: x.sum(axis=1), ["sum"], name="total")
    assert block.path == ""
    assert block.run(np.ones((2, 4))).tolist() == [[4], [4]]


def overwrite_windows(windows):
    windows[:] = 0
    return windows


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: x[:, :2], r"shape \(3, 2\) for 3 windows; with its 1 names"),
        (lambda x: 1 / 0, "ZeroDivisionError"),
        (lambda x: ["a"] * 3, "did not return numbers"),
        (overwrite_windows, "read-only"),
    ],
)
def test_an_error_of_a_function_names_the_block(function, message):
    block = sig.Block.from_function(function, ["a"], name="mine")
    with pytest.raises(InputError, match=f"mine.*{message}"):
        block.run(np.ones((3, 4)))


@pytest.mark.parametrize(
    ("make_block", "message"),
    [
        (lambda: sig.Block.from_function(lambda x: x, ["a"]), "lambda needs a name"),
        (lambda: sig.Block.from_function(3, ["a"]), "not a function"),
        (lambda: sig.Block.from_function(extremes, "ab"), "give a list"),
        (lambda: sig.Block.from_function(extremes, ["a", "a"]), "must be unique"),
        (lambda: sig.Block.from_function(extremes, [""]), "printable"),
        (lambda: sig.Block.from_function(extremes, ["a"], price=-1), "extremes"),
    ],
)
def test_invalid_settings_of_functions_are_refused(make_block, message):
    with pytest.raises(InputError, match=message):
        make_block()


def test_a_block_computes_an_intermediate_output_of_a_network(network):
    path, first_weights, second_weights = network
    x = np.random.default_rng(1).normal(size=(20, 4, 2)).astype(np.float32)
    hidden = np.maximum(x.reshape(20, 8) @ first_weights, 0)
    logits_block = sig.Block.from_onnx(path, "logits", names=["a", "b", "c"])
    hidden_block = sig.Block.from_onnx(path, output="hidden", price=3.0)
    graph = sig.SignalGraph([hidden_block, logits_block])
    features = graph.transform(x)
    np.testing.assert_allclose(
        features, np.concatenate([hidden, hidden @ second_weights], 1), atol=1e-5
    )
    row_by_row = np.concatenate([graph.transform(row[None]) for row in x])
    np.testing.assert_array_equal(features, row_by_row)
    np.testing.assert_array_equal(features, graph.transform(x.reshape(20, 8)))
    assert hidden_block.names[0] == "small.hidden.0"
    assert logits_block.names == ("a", "b", "c")
    assert len(hidden_block.model) < len(logits_block.model)
    assert hidden_block.price == 3.0


def test_blocks_of_networks_are_equal_if_their_bytes_are(network, tmp_path):
    path, *_ = network
    block = sig.Block.from_onnx(path, "hidden")
    block_without_model = OnnxBlock(
        block.name, block.features, block.output, block.shape, block.sha256
    )
    assert block_without_model == block == sig.Block.from_onnx(path, "hidden")
    with pytest.raises(InputError, match="its model is missing"):
        block_without_model.run(np.zeros((1, 4, 2)))
    with pytest.raises(InputError, match="does not match its sha256"):
        OnnxBlock(block.name, block.features, block.output, block.shape, "0" * 64, block.model)
    duplicate = pickle.loads(pickle.dumps(block))
    np.testing.assert_array_equal(duplicate.run(np.ones((2, 4, 2))), block.run(np.ones((2, 4, 2))))
    assert block.run(np.ones((0, 4, 2))).shape == (0, 5)


def test_unusable_networks_are_refused(network, tmp_path):
    path, *_ = network
    with pytest.raises(InputError, match=r"no value 'nowhere'; it has .*hidden"):
        sig.Block.from_onnx(path, "nowhere")
    with pytest.raises(InputError, match="3 values but 1 names"):
        sig.Block.from_onnx(path, "logits", names=["a"])
    with pytest.raises(InputError, match=r"absent\.onnx"):
        sig.Block.from_onnx(tmp_path / "absent.onnx", "logits")
    (tmp_path / "text.onnx").write_text("no graph")
    with pytest.raises(InputError, match="is not a usable ONNX file"):
        sig.Block.from_onnx(tmp_path / "text.onnx", "logits")
    with pytest.raises(InputError, match=r"shape \(9,\), but the network reads \(4, 2\)"):
        sig.SignalGraph([sig.Block.from_onnx(path, "logits")]).transform(np.zeros((1, 9)))


def test_blocks_import_no_heavy_packages():
    code = (
        "import sys, numpy as np, gatewise_signals as sig\n"
        "blocks = sig.standard_blocks(rate_hz=8000, channels=['a'])\n"
        "sig.SignalGraph(blocks).transform(np.ones((2, 1024)))\n"
        "sig.Block.from_function(np.mean, ['m'])\n"
        "heavy_packages = {'scipy', 'sklearn', 'onnx', 'onnxruntime'}\n"
        "print(*heavy_packages & set(sys.modules))"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (process.returncode, process.stdout.split()) == (0, []), process.stderr
