"""The reader says what the `onnx` package says; on damaged files it says so, and nothing else."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from sklearn.datasets import load_iris
from sklearn.ensemble import GradientBoostingClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from gatewise.models.linear import LinearModel
from gatewise_export.bundle.errors import BundleError
from gatewise_export.onnx_files.graph_rules import check_cloud_graph, check_stage_graph
from gatewise_export.onnx_files.onnx_parts import Graph, Model, Tensor
from gatewise_export.onnx_files.onnx_reader import read_model
from gatewise_export.onnx_files.protobuf import Malformed, Wire
from gatewise_export.packing.converters import high_cost_graph
from gatewise_export.packing.onnx_export import to_onnx
from gatewise_export.packing.onnx_graph import flat_graph
from gatewise_training.learners.high_cost_model import HighCostModel
from tests.support.onnx_graphs import delimited, nested_graphs
from tests.support.trees import random_trees

pytestmark = pytest.mark.slow  # fits models or starts processes

F = np.float32


def assert_same(mine: Graph, theirs: onnx.GraphProto) -> None:
    assert mine.name == theirs.name
    for node, twin in zip(mine.nodes, theirs.node, strict=True):
        assert (node.op_type, node.domain, node.name) == (twin.op_type, twin.domain, twin.name)
        assert node.inputs == tuple(twin.input)
        assert node.outputs == tuple(twin.output)
        assert list(node.attributes) == [a.name for a in twin.attribute]
        for attribute in twin.attribute:
            value, expected = node.get(attribute.name), helper.get_attribute_value(attribute)
            if isinstance(value, Tensor):
                assert_same_tensor(value, expected)
            elif isinstance(value, Graph):
                assert_same(value, expected)
            elif isinstance(value, np.ndarray | tuple):
                assert list(value) == list(expected)
                assert len(node.attributes[attribute.name]) == len(expected)
            else:
                assert value == expected
    for tensor, twin_tensor in zip(mine.initializers, theirs.initializer, strict=True):
        assert tensor.name == twin_tensor.name
        assert_same_tensor(tensor, twin_tensor)
    for values, twins in ((mine.inputs, theirs.input), (mine.outputs, theirs.output)):
        for value_info, twin_info in zip(values, twins, strict=True):
            assert value_info.name == twin_info.name
            if twin_info.type.HasField("tensor_type"):
                kind = twin_info.type.tensor_type
                shape = tuple(
                    d.dim_value if d.HasField("dim_value") else d.dim_param or None
                    for d in kind.shape.dim
                )
                assert (value_info.element, value_info.shape or ()) == (kind.elem_type, shape)


def assert_same_tensor(mine: Tensor, theirs: onnx.TensorProto) -> None:
    mine.check()
    if theirs.data_type == TensorProto.STRING:
        return
    expected = numpy_helper.to_array(theirs)
    got = mine.array()
    assert got.dtype == expected.dtype
    np.testing.assert_array_equal(got, expected, strict=True)


def assert_read(content: bytes) -> Model:
    model, twin = read_model(content), onnx.load_model_from_string(content)
    assert_same(model.graph, twin.graph)
    assert model.ir_version == twin.ir_version
    assert model.opsets == {o.domain: o.version for o in twin.opset_import}
    return model


def test_every_graph_of_the_systems(fitted: Any) -> None:
    system = fitted.system
    chains = getattr(system, "chains_", (system.stages_,))
    for stage in {id(s): s for chain in chains for s in chain}.values():
        content = flat_graph(stage.model).SerializeToString()
        assert_read(content)
        model = stage.model
        check_stage_graph(content, file="f", n_inputs=model.n_features, n_outputs=model.n_outputs)
        friendly = to_onnx(stage, n_features=system.n_features_in_, classes=system.classes_)
        assert_read(friendly.SerializeToString())
    if system.high_cost_model_ is not None:
        cloud = high_cost_graph(system.high_cost_model_).model.SerializeToString()
        assert_read(cloud)
        check_cloud_graph(cloud, file="cloud.onnx")


@pytest.mark.parametrize(
    "estimator",
    [
        make_pipeline(StandardScaler(), SVC()),
        GradientBoostingClassifier(n_estimators=4),
        make_pipeline(StandardScaler(), MLPClassifier((5,), max_iter=30, random_state=0)),
    ],
    ids=lambda e: type(e).__name__ if not hasattr(e, "steps") else type(e[-1]).__name__,
)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_graphs_of_other_converters(estimator: Any) -> None:
    x, y = load_iris(return_X_y=True)
    words = np.array(["setosa", "versicolor", "virginica"])[y]
    f0 = HighCostModel.given(estimator.fit(x.astype(F), words), np.unique(words), 4)
    content = high_cost_graph(f0).model.SerializeToString()
    assert_read(content)
    check_cloud_graph(content, file="cloud.onnx")


KINDS = (
    np.float32, np.uint8, np.int8, np.uint16, np.int16, np.int32, np.int64, np.bool_, np.float16,
    np.float64, np.uint32, np.uint64,
)  # fmt: skip


@settings(max_examples=80, deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    shape=st.lists(st.integers(0, 4), max_size=4).map(tuple),
    raw=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_tensors_of_every_type(kind: Any, shape: tuple[int, ...], raw: bool, seed: int) -> None:
    rng = np.random.default_rng(seed)
    size = int(np.prod(shape, dtype=int)) * np.dtype(kind).itemsize
    numbers = np.frombuffer(rng.bytes(size), np.uint8)
    if kind == np.bool_:
        numbers = numbers & 1
    array = np.ascontiguousarray(numbers).view(kind).reshape(shape)
    if np.dtype(kind).kind == "f":
        array = np.nan_to_num(array)
    if raw:
        tensor = numpy_helper.from_array(array, "t")
    else:
        code = helper.np_dtype_to_tensor_dtype(np.dtype(kind))
        tensor = helper.make_tensor("t", code, shape, array.ravel())
    graph = helper.make_graph([], "g", [], [], [tensor])
    assert_read(helper.make_model(graph).SerializeToString())


@settings(max_examples=60, deadline=None)
@given(
    ints=st.lists(st.integers(-(2**63), 2**63 - 1), max_size=400),
    floats=st.lists(st.floats(width=32, allow_nan=False), max_size=400),
    texts=st.lists(st.binary(max_size=200), max_size=50),
    single=st.integers(-(2**63), 2**63 - 1),
)
def test_attributes_of_every_type(
    ints: list[int], floats: list[float], texts: list[bytes], single: int
) -> None:
    node = helper.make_node("Op", ["a", ""], ["b"], domain="d", i=single, f=0.1, s="text")
    for name, kind, value in (
        ("ints", onnx.AttributeProto.INTS, ints),
        ("floats", onnx.AttributeProto.FLOATS, floats),
        ("strings", onnx.AttributeProto.STRINGS, texts),
    ):
        attribute = node.attribute.add(name=name, type=kind)
        getattr(attribute, name).extend(value)
    assert_read(helper.make_model(helper.make_graph([node], "g", [], [])).SerializeToString())


def test_long_lists_cross_the_reader_s_blocks() -> None:
    rng = np.random.default_rng(0)
    ints = rng.integers(-(2**63), 2**63 - 1, 60_000) >> rng.integers(0, 64, 60_000)
    floats = rng.normal(size=60_000).astype(F)
    node = helper.make_node("Op", [], ["b"], ints=ints.tolist(), floats=floats.tolist())
    model = read_model(
        helper.make_model(helper.make_graph([node], "g", [], [])).SerializeToString()
    )
    assert model.graph.nodes[0].get("ints").tolist() == ints.tolist()
    assert model.graph.nodes[0].get("floats").tolist() == floats.tolist()


def test_packed_lists_are_the_same_lists() -> None:
    """Protobuf readers take both forms, whichever the schema names."""
    wire = Wire(bytes([3, 0x96, 0x01]))
    assert wire.integers(wire.packed(0, 3, 0)).tolist() == [3, 150]
    with pytest.raises(Malformed, match="ends within a number"):
        wire.packed(0, 2, 0)
    with pytest.raises(Malformed, match="packed numbers of 4 B"):
        wire.packed(0, 3, 5)


# -- damage --------------------------------------------------------------------------------


def small_graph() -> bytes:
    """A linear model: every kind of field but lists in attributes."""
    rng = np.random.default_rng(0)
    model = LinearModel(
        *(rng.normal(size=3).astype(F) for _ in "12"),
        rng.normal(size=(3, 2)).astype(F),
        np.zeros(2, F),
    )
    return flat_graph(model).SerializeToString()


def tree_graph() -> bytes:
    trees, _ = random_trees(3)
    return flat_graph(trees).SerializeToString()


def try_all(content: bytes) -> None:
    """Whatever the bytes, reading and checking ends soon, with a BundleError or in peace."""
    started = time.perf_counter()
    for check in (
        lambda: read_model(content),
        lambda: check_stage_graph(content, file="f.onnx", n_inputs=3, n_outputs=2),
        lambda: check_cloud_graph(content, file="f.onnx"),
    ):
        said = "fine"
        try:
            check()
        except BundleError as error:
            said = str(error)
        assert "\n" not in said
        assert len(said) < 600
    assert time.perf_counter() - started < 20  # not a measure: hours would be a fault


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_damaged_graphs_are_refused_or_read(data: st.DataObject) -> None:
    content = bytearray(data.draw(st.sampled_from([small_graph(), tree_graph()])))
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(content) - 1))
        what = data.draw(st.sampled_from(["flip", "set", "cut", "drop", "double"]))
        if what == "flip":
            content[place] ^= 1 << data.draw(st.integers(0, 7))
        elif what == "set":
            content[place] = data.draw(st.integers(0, 255))
        elif what == "cut":
            del content[max(place, 1) :]
        elif what == "drop":
            del content[place : place + data.draw(st.integers(1, 9))]
        else:
            content[place:place] = content[place : place + data.draw(st.integers(1, 40))]
        if not content:
            content = bytearray(b"\0")
    try_all(bytes(content))


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=300))
def test_noise_is_refused_or_read(content: bytes) -> None:
    try_all(content)


def types_in_types(depth: int) -> bytes:
    kind = b""
    for _ in range(depth):
        kind = delimited(4, delimited(1, kind))
    return delimited(7, delimited(11, delimited(2, kind)))


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "holds no graph"),
        (b"\x08", "ends within a number"),
        (b"\x3a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "a length of 18446744073709551615 B"),
        (b"\x08" + b"\xff" * 11, "more than 10 bytes"),
        (b"\x3b\x3c", "kind 3, which nothing writes"),
        (b"\x07\x00", "impossible number 0"),
        (b"\x3a\x00\x3a\x00", r"field \(7\) twice"),
        (b"\xfa\x07\x00", r"field \(127\) of an unknown number"),
        (b"\x38\x00", r"field \(7\) of an unknown kind"),
        (nested_graphs(400), "graphs inside graphs"),
        (nested_graphs(20_000), "graphs inside graphs"),
        (types_in_types(400), "types inside types"),
        (delimited(7, delimited(2, b"\xff\xfe")), "not UTF-8"),
        (delimited(7, delimited(2, b"n" * 5000)), "name longer than 4096"),
        (delimited(7, b"\x0a\x00" * 300_000), "too many nodes"),
    ],
)
def test_what_is_wrong_is_said(content: bytes, why: str) -> None:
    with pytest.raises(BundleError, match=f"^m.onnx is not a usable ONNX file: .*{why}"):
        read_model(content, "m.onnx")
    with pytest.raises(BundleError, match=f"too large: {len(content)} B, -1 are allowed"):
        read_model(content, most_bytes=-1)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"dims": [2**40, 2**40]}, "impossible shape"),
        ({"dims": [-1]}, "impossible shape"),
        ({"dims": [1_000_000]}, "does not hold 1000000 elements"),
        ({"data_type": 99}, "unknown type 99"),
        ({"float_data": [1.0]}, "several kinds"),
        ({"data_location": 1}, "in another file"),
    ],
)
def test_tensors_that_lie(change: dict[str, Any], why: str) -> None:
    tensor = numpy_helper.from_array(np.zeros(3, F), "t")
    for name, value in change.items():
        if isinstance(value, list):
            del getattr(tensor, name)[:]
            getattr(tensor, name).extend(value)
        else:
            setattr(tensor, name, value)
    content = helper.make_model(helper.make_graph([], "g", [], [], [tensor])).SerializeToString()
    with pytest.raises(BundleError, match=f"^f is refused: tensor 't' .*{why}"):
        check_cloud_graph(content, file="f")
