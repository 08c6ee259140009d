"""Graphs of given stages: common classifiers pass, what could harm a device does not."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnxruntime.capi import onnxruntime_pybind11_state

from gatewise.imports import open_session
from gatewise_export.bundle.errors import BundleError
from gatewise_export.onnx_files.graph_rules import check_stage_graph
from gatewise_training.graphs.given_graph import FormedGraph
from tests.support.image_models import conv_graph, digit_images
from tests.support.onnx_graphs import edited, external_data, graph_of, node


def check(*nodes: Any, n_inputs: int = 16, n_outputs: int = 4, **constants: Any) -> None:
    constants = {"square": SQUARE, "flat": FLAT} | constants
    content = graph_of(
        nodes, ("x", 1, ["n", n_inputs]), ("margins", 1, ["n", n_outputs]), **constants
    )
    check_stage_graph(
        content, file="stage_0.onnx", n_inputs=n_inputs, n_outputs=n_outputs, given=True
    )


IMAGE = node("Reshape", "x square", "image")
ORT_ERRORS = tuple(
    getattr(onnxruntime_pybind11_state, name)
    for name in ("Fail", "InvalidArgument", "InvalidGraph", "NotImplemented", "RuntimeException")
)
SQUARE = np.array([-1, 1, 4, 4])
LAST = node("Reshape", "pooled flat", "margins")
FLAT = np.array([-1, 4])


def ones(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


def test_the_operators_of_image_classifiers_pass() -> None:
    check(
        IMAGE,
        node("Conv", "image w b", "c", pads=[1, 1, 1, 1]),
        node("BatchNormalization", "c b b b b", "n"),
        node("Clip", "n zero six", "r"),
        node("Conv", "r depthwise", "d", group=2, auto_pad=b"SAME_UPPER", strides=[2, 2]),
        node("Add", "d d", "s"),
        node("GlobalAveragePool", "s", "g"),
        node("Flatten", "g", "f"),
        node("Gemm", "f last", "margins", transB=1),
        w=ones(2, 1, 3, 3), b=ones(2), depthwise=ones(2, 1, 3, 3), zero=ones(),
        six=ones(), last=ones(4, 2),
    )  # fmt: skip


def test_a_shape_that_is_read_from_the_rows_is_followed() -> None:
    """As torch writes ``x.view(x.size(0), -1)``."""
    check(
        IMAGE,
        node("AveragePool", "image", "pooled", kernel_shape=[2, 2], strides=[2, 2]),
        node("Shape", "pooled", "shape"),
        node("Gather", "shape first", "rows"),
        node("Unsqueeze", "rows axis", "row"),
        node("Concat", "row rest", "wanted", axis=0),
        node("Reshape", "pooled wanted", "margins"),
        first=np.array(0), axis=np.array([0]), rest=np.array([-1]),
    )  # fmt: skip


def test_windows_of_samples_pass() -> None:
    check(
        node("Reshape", "x window", "w"),
        node("Transpose", "w", "steps", perm=[1, 0, 2]),
        helper.make_node("GRU", ["steps", "wx", "wr"], ["", "last"], hidden_size=4),
        node("Squeeze", "last first", "m"),
        node("Softmax", "m", "margins"),
        window=np.array([-1, 8, 2]), wx=ones(1, 12, 2), wr=ones(1, 12, 4), first=np.array([0]),
    )  # fmt: skip


POOL = {"kernel_shape": [2, 2], "strides": [2, 2]}

REFUSED: dict[str, tuple[str, list[Any], dict[str, Any]]] = {
    "a loop": ("no given stage may use", [helper.make_node("Loop", ["", ""], ["margins"])], {}),
    "a size that a value says": (
        "no given stage may use",
        [node("ConstantOfShape", "shape", "margins")],
        {"shape": np.array([1, 4])},
    ),
    "another domain": (
        "no given stage may use",
        [helper.make_node("TreeEnsemble", ["x"], ["margins"], domain="ai.onnx.ml")],
        {},
    ),
    "a window beyond the image": (
        "a window of 9 over 4",
        [IMAGE, node("MaxPool", "image", "pooled", kernel_shape=[9, 9]), LAST],
        {},
    ),
    "nothing parted among none": (
        "inputs or attributes that fit no rule",
        [helper.make_node("Split", ["x"], [], axis=1), node("Identity", "x", "margins")],
        {},
    ),
    "much padding": (
        "more than 33554432 numbers",
        [IMAGE, node("MaxPool", "image", "pooled", kernel_shape=[2, 2], pads=[9000] * 4), LAST],
        {},
    ),
    "an outer product": (
        "more than 33554432 numbers",
        [
            node("Reshape", "x column", "c"),
            node("Mul", "c wide", "grown"),
            node("MatMul", "grown wide", "margins"),
        ],
        {"column": np.array([-1, 16, 1]), "wide": ones(1, 1, 3_000_000)},
    ),
    "much work": (
        "multiplications a row",
        [node("MatMul", "wide wide", f"again{i}") for i in range(17)],
        {"wide": ones(1024, 1024)},
    ),
    "rows that are mixed": (
        "mixes rows",
        [node("ReduceMean", "x", "m", axes=[0], keepdims=1), node("Gemm", "m w", "margins")],
        {"w": ones(16, 4)},
    ),
    "one row alone": (
        "one row alone",
        [node("Reshape", "x fixed", "f"), node("Gemm", "f w", "margins")],
        {"fixed": np.array([1, 16]), "w": ones(16, 4)},
    ),
    "an index that is none": (
        "an index beyond 16",
        [node("Gather", "x columns", "margins", axis=1)],
        {"columns": np.array([0, 1, 2, 16])},
    ),
    "a value that nothing makes": ("no earlier node makes", [node("Relu", "y", "margins")], {}),
    "another width": ("not (n, 4)".replace("(", r"\(").replace(")", r"\)"),
                      [node("Relu", "x", "margins")], {}),
    "weights that do not fit": (
        r"the product of \(n, 16\) and \(15, 4\)",
        [node("MatMul", "x w", "margins")],
        {"w": ones(15, 4)},
    ),
    "attributes of another type": (
        "a window of other dimensions",
        [IMAGE, helper.make_node("MaxPool", ["image"], ["pooled"], kernel_shape="2"), LAST],
        {},
    ),
    "coefficients that are missing": (
        "coefficients",
        [helper.make_node("LinearRegressor", ["x"], ["margins"], domain="ai.onnx.ml",
                          coefficients=[1.0] * 15, targets=4)],
        {},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_could_harm_a_device_is_refused(name: str) -> None:
    message, nodes, constants = REFUSED[name]
    with pytest.raises(BundleError, match=message):
        check(*nodes, **constants)


def test_data_in_another_file_and_graphs_inside_are_refused() -> None:
    content = graph_of(
        [node("MatMul", "x w", "margins")],
        ("x", 1, ["n", 16]),
        ("margins", 1, ["n", 4]),
        w=ones(16, 4),
    )
    check_stage_graph(content, file="s", n_inputs=16, n_outputs=4, given=True)
    with pytest.raises(BundleError, match="another file"):
        check_stage_graph(
            edited(content, external_data), file="s", n_inputs=16, n_outputs=4, given=True
        )
    more = helper.make_tensor_value_info("more", TensorProto.FLOAT, ["n", 2])
    wide = edited(content, lambda m: m.graph.input.append(more))
    with pytest.raises(BundleError, match="are not 'x' alone"):
        check_stage_graph(wide, file="s", n_inputs=16, n_outputs=4, given=True)


def test_changed_graphs_that_pass_give_what_was_inferred() -> None:
    """Random changes: refused in words, or what onnxruntime computes has the shape that follows."""
    images, y = digit_images()
    model = FormedGraph(conv_graph(images[:200], y[:200]), (8, 8), "model").margins_model(None)[0]
    rng, operators = np.random.default_rng(0), ["MaxPool", "Flatten", "Gemm", "Split", "TopK"]
    good = onnx.load_model_from_string(model.content)
    names = [name for node in good.graph.node for name in node.output]
    passed = 0
    for _ in range(300):
        changed = onnx.ModelProto()
        changed.CopyFrom(good)
        one = changed.graph.node[rng.integers(len(changed.graph.node))]
        whole = [a for a in one.attribute if a.ints]
        if whole:
            numbers = whole[rng.integers(len(whole))].ints
            numbers[rng.integers(len(numbers))] = int(rng.integers(-2, 12))
        elif rng.integers(2):
            one.op_type = str(rng.choice(operators))
        else:
            one.input[0] = str(rng.choice(names))
        content = changed.SerializeToString()
        try:
            check_stage_graph(content, file="s", n_inputs=64, n_outputs=10, given=True)
            session = open_session(content)
        except (BundleError, *ORT_ERRORS):
            continue
        passed += 1
        assert session.run(None, {"x": np.ones((2, 64), np.float32)})[0].shape == (2, 10)
    assert passed > 10
