"""What is accepted runs, alike in two runtimes; what is not has its reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from gatewise.models.kernel_machine import KernelModel
from gatewise.models.linear import LinearModel
from gatewise_edge.device.graph_runner import GraphRunner
from gatewise_export.bundle.errors import BundleError
from gatewise_export.onnx_files.graph_rules import (
    check_cloud_graph,
    check_stage_graph,
    read_stage_graph,
)
from gatewise_export.packing.graph_parts import constant, tensor
from gatewise_export.packing.onnx_graph import flat_graph
from gatewise_export.packing.verification import run_graph
from tests.support.onnx_graphs import edited, node, one_output_graph
from tests.support.trees import random_trees

F = np.float32
Edit = Callable[[onnx.ModelProto], object]


def linear() -> LinearModel:
    rng = np.random.default_rng(0)
    return LinearModel(
        *(rng.normal(size=3).astype(F) for _ in "12"),
        rng.normal(size=(3, 2)).astype(F),
        rng.normal(size=2).astype(F),
    )


def kernel() -> KernelModel:
    rng, plain = np.random.default_rng(1), linear()
    return KernelModel(
        plain.mean,
        plain.scale,
        rng.normal(size=(4, 3)).astype(F),
        F(0.01),
        rng.normal(size=(4, 2)).astype(F),
        plain.bias,
    )


def check(content: bytes) -> None:
    check_stage_graph(content, file="s.onnx", n_inputs=3, n_outputs=2)


def attribute(model: onnx.ModelProto, kind: str, name: str, value: Any) -> None:
    node = next(n for n in model.graph.node if n.op_type == kind)
    kept = [a for a in node.attribute if a.name != name]
    del node.attribute[:]
    node.attribute.extend([*kept, helper.make_attribute(name, value)])


def initializer(model: onnx.ModelProto, name: str, array: Any) -> None:
    tensor = next(t for t in model.graph.initializer if t.name == name)
    tensor.CopyFrom(constant(name, np.asarray(array)))


STAGES: dict[str, tuple[Edit, str]] = {
    "index": (lambda m: initializer(m, "last", 3), r"Gather: index 3 on axis 1 of \(n, 3, 2\)"),
    "negative index": (lambda m: initializer(m, "last", -1), "Gather: index -1"),
    "another axis": (lambda m: initializer(m, "columns", 0), "CumSum: it must add along axis 1"),
    "an axis that is no number": (lambda m: initializer(m, "columns", [1, 1]), "not one constant"),
    "backwards": (lambda m: attribute(m, "CumSum", "reverse", 1), "'reverse' must be 0"),
    "strange attribute": (lambda m: attribute(m, "Sub", "axis", 1), "'axis', which no stage uses"),
    "shapes": (lambda m: initializer(m, "mean", np.zeros(5, F)), r"\(n, 3\) and \(5\) do not fit"),
    "double": (lambda m: initializer(m, "mean", np.zeros(3)), "neither float32 nor int64"),
    "integers": (lambda m: initializer(m, "mean", [1, 2, 3]), "inputs of the wrong"),
    "order": (lambda m: m.graph.node.reverse(), "which no earlier node makes"),
    "twice": (lambda m: m.graph.node.append(m.graph.node[0]), "is made twice"),
    "no node": (lambda m: m.graph.ClearField("node"), "its nodes give nothing as 'margins'"),
    "renamed input": (lambda m: setattr(m.graph.input[0], "name", "y"), r"inputs are \[y tensor"),
    "two inputs": (lambda m: m.graph.input.append(m.graph.input[0]), r"inputs are \[x .*, x "),
    "two outputs": (lambda m: m.graph.output.append(m.graph.input[0]), r"outputs are \["),
    "inner shapes": (lambda m: m.graph.value_info.append(m.graph.input[0]), "shapes of inner"),
    "operator set": (lambda m: setattr(m.opset_import[0], "version", 99), "of version 99"),
    "IR version": (lambda m: setattr(m, "ir_version", 99), "IR version 99"),
    "no operator set": (lambda m: m.opset_import.pop(0), "which is not imported"),
    "training": (lambda m: m.training_info.add(), "instructions for training"),
    "sparse": (lambda m: m.graph.sparse_initializer.add(), "sparse tensors"),
    "a batch of fixed size": (
        lambda m: setattr(m.graph.input[0].type.tensor_type.shape.dim[0], "dim_value", 1),
        "its graph's inputs are",
    ),
    "many nodes": (
        lambda m: m.graph.node.extend(
            helper.make_node("Abs", ["x"], [f"v{i}"]) for i in range(100)
        ),
        "it has 107 nodes, more than 64",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", STAGES)
def test_stages_that_are_refused(name: str) -> None:
    edit, why = STAGES[name]
    good = flat_graph(linear()).SerializeToString()
    check(good)
    with pytest.raises(BundleError, match=f"^s.onnx is refused: .*{why}"):
        check(edited(good, edit))


TREES: dict[str, tuple[str, Any, str]] = {
    "another transform": ("post_transform", "SOFTMAX", "'post_transform' must be NONE"),
    "another sum": ("aggregate_function", "MAX", "'aggregate_function' must be SUM"),
    "hitrates": ("nodes_hitrates", [1.0], "'nodes_hitrates', which no stage uses"),
    "one threshold less": ("nodes_values", [0.5], "'nodes_values' has 1 entries for"),
    "text for numbers": ("nodes_values", ["a"], "'nodes_values' is of the wrong type"),
    "numbers for text": ("nodes_modes", [1, 2], "'nodes_modes' is of the wrong type"),
    "no outputs": ("n_targets", 0, "trees of 0 outputs"),
    "billions of outputs": ("n_targets", 1 << 40, "trees of 1099511627776 outputs"),
    "base": ("base_values", [float("nan"), 0.0], "'base_values' is not finite"),
    "weights": ("target_weights", "inf", "'target_weights' is not finite"),
    "thresholds": ("nodes_values", "nan", "'nodes_values' holds NaN"),
    "modes": ("nodes_modes", "BRANCH_EQ", "'nodes_modes' holds b'BRANCH_EQ'"),
    "order": ("nodes_treeids", "reversed", "must ascend"),
    "entries": ("target_nodeids", "first", "'target_nodeids' and 'target_ids' must ascend|no leaf"),
    "missing": ("nodes_missing_value_tracks_true", "twos", "other numbers than 0 and 1"),
}  # fmt: skip


def change(found: list[Any], how: Any) -> Any:
    """The value itself, or a list like the one that is there."""
    return {
        "inf": lambda: [float("inf")] * len(found),
        "nan": lambda: [float("nan")] * len(found),
        "BRANCH_EQ": lambda: [b"BRANCH_EQ"] * len(found),
        "reversed": lambda: found[::-1],
        "first": lambda: [found[0]] * len(found),
        "twos": lambda: [2] * len(found),
    }.get(how if isinstance(how, str) else "", lambda: how)()


def tree_model() -> Any:
    """Trees with tests, two outputs and missing values that go left somewhere."""
    candidates = (random_trees(seed)[0] for seed in range(1, 500))
    return next(
        t
        for t in candidates
        if t.n_outputs == 2 and len(t.roots) > 2 and (t.nan_left & (t.feature >= 0)).any()
    )


@pytest.mark.parametrize("name", TREES)
def test_trees_that_are_refused(name: str) -> None:
    attribute_name, value, why = TREES[name]
    model = tree_model()

    def edit(proto: onnx.ModelProto) -> None:
        node = proto.graph.node[0]
        there = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        new = change(there.get(attribute_name, []), value)
        attribute(proto, "TreeEnsembleRegressor", attribute_name, new)

    content = edited(flat_graph(model).SerializeToString(), edit)
    with pytest.raises(BundleError, match=why):
        check_stage_graph(
            content, file="s.onnx", n_inputs=model.n_features, n_outputs=model.n_outputs
        )


# -- what is accepted ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def bases() -> list[tuple[Any, bytes]]:
    models = (linear(), kernel(), tree_model())
    return [(m, flat_graph(m).SerializeToString()) for m in models]


@settings(max_examples=400, deadline=None)
@given(data=st.data())
def test_changed_graphs_that_are_accepted_run_alike(
    data: st.DataObject, bases: list[tuple[Any, bytes]]
) -> None:
    """A reader that understood a file otherwise than onnxruntime does would let harm through."""
    model, whole = bases[data.draw(st.integers(0, len(bases) - 1))]
    content = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 2))):
        content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    try:
        graph = read_stage_graph(
            bytes(content), file="s", n_inputs=model.n_features, n_outputs=model.n_outputs
        )
        runner = GraphRunner(graph, "s")
    except BundleError:
        return
    x = np.random.default_rng(0).normal(size=(5, model.n_features)).astype(F)
    (expected,) = run_graph(bytes(content), x, "s")
    np.testing.assert_array_equal(runner.run(x), expected)


# -- cloud models --------------------------------------------------------------------------


SMALL, LARGE = np.array([4, 4]), np.array([1 << 15, 1 << 15])


@pytest.mark.parametrize(
    ("nodes", "size", "why"),
    [
        ([node("ConstantOfShape", "size", "m")], LARGE, "more than 67108864 numbers"),
        ([node("ConstantOfShape", "size", "m")], SMALL, None),
        ([node("Expand", "one size", "m")], LARGE, "more than 67108864 numbers"),
        ([node("Expand", "one size", "m")], SMALL, None),
        ([node("Tile", "x size", "m")], LARGE, "more than 67108864 numbers"),
        ([node("Tile", "x size", "m")], SMALL, None),
        ([node("Shape", "x", "s"), node("Expand", "x s", "m")], SMALL, "only a run will know"),
        ([node("RandomNormal", "", "m", shape=[1 << 20, 1 << 20])], SMALL, "more than 67108864"),
        ([node("RandomNormal", "", "m", shape=[2, 2])], SMALL, None),
        ([node("RandomNormal", "", "m", shape="wide")], SMALL, "attributes that fit no rule"),
        ([node("Concat", "x x", "m", axis="last")], SMALL, None),
        ([node("TreeEnsemble", "x", "m")], SMALL, "a form that is not checked"),
        ([node("Relu", "x", "m", domain="org.pytorch")], SMALL, "custom domain 'org.pytorch'"),
    ],
)
def test_sizes_in_cloud_models(nodes: list[Any], size: Any, why: str | None) -> None:
    content = one_output_graph(*nodes, columns=3, size=size, one=np.ones((1, 1), F))
    if why is None:
        check_cloud_graph(content, file="cloud.onnx")
        return
    with pytest.raises(BundleError, match=f"^cloud.onnx is refused: .*{why}"):
        check_cloud_graph(content, file="cloud.onnx")


def test_shapes_are_followed_from_node_to_node() -> None:
    nodes = [
        node("Unsqueeze", "long axis", "column"),
        node("Exp", "column", "more"),
        node("Concat", "more more", "twice", axis=1),
        node("Transpose", "twice", "rows"),
        node("MatMul", "twice rows", "many"),
        node("ReduceSum", "many", "margins"),
    ]
    with pytest.raises(BundleError, match="MatMul: a result of more than"):
        check_cloud_graph(one_output_graph(*nodes, long=np.ones(20_000, F), axis=[1]), file="c")


def test_a_scan_may_stand_in_a_cloud_model_but_no_graph_in_it() -> None:
    def scan(*body: onnx.NodeProto) -> bytes:
        inner = helper.make_graph(
            list(body),
            "body",
            [tensor("row", TensorProto.FLOAT, 3)],
            [tensor("out", TensorProto.FLOAT, 3)],
        )
        outer = node("Scan", "x", "margins", body=inner, num_scan_inputs=1)
        return one_output_graph(outer, columns=3)

    check_cloud_graph(scan(node("Identity", "row", "out")), file="c")
    with pytest.raises(BundleError, match="ConstantOfShape: a result of a size that only"):
        check_cloud_graph(scan(node("ConstantOfShape", "row", "out")), file="c")
    nothing = helper.make_graph([], "b", [], [])
    with pytest.raises(BundleError, match="If: an operator that a cloud model may not use"):
        check_cloud_graph(
            scan(node("If", "row", "out", then_branch=nothing, else_branch=nothing)), file="c"
        )
