"""Hostile graphs: operators, trees, structure; cloud models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from gatewise_export.packing.graph_parts import tensor
from gatewise_export.packing.onnx_graph import flat_graph
from tests.support.hostile_bundles.good_bundle import (
    FILES,
    Cases,
    F,
    Make,
    deep_tree,
    holding,
    linear,
)
from tests.support.onnx_graphs import (
    delimited,
    edited,
    external_data,
    nested_graphs,
    node,
    one_output_graph,
)


def stage_0(content: Callable[[], bytes]) -> Make:
    return holding("stage_0.onnx", content)


def cloud(content: Callable[[], bytes]) -> Make:
    return holding("cloud.onnx", content)


def bomb() -> bytes:
    return one_output_graph(
        node("ConstantOfShape", "size", "many"),
        node("ReduceSum", "many", "sum"),
        node("ReduceSum", "x one", "own"),
        node("Add", "own sum", "margins"),
        size=[1 << 29],
        one=[1],
    )


def tiles() -> bytes:
    nodes = node("Tile", "one times", "many"), node("ReduceSum", "many", "margins")
    return one_output_graph(*nodes, one=np.ones(1, F), times=[1 << 30])


def product_of_two_long_vectors() -> bytes:
    """Operators that are allowed; onnxruntime would fold the constants while it loads."""
    long = np.ones((20_000, 1), F)
    return one_output_graph(
        node("Mul", "column row", "many"),
        node("CumSum", "many axis", "sums"),
        node("ReduceSum", "x axes", "sum"),
        node("Add", "sum zero", "margins"),
        column=long,
        row=long.T,
        axis=1,
        axes=[1],
        zero=np.zeros(1, F),
    )


def matrix_product_of_long_vectors() -> bytes:
    long = np.ones((10_000, 1), F)
    nodes = node("MatMul", "column row", "many"), node("ReduceSum", "many", "margins")
    return one_output_graph(*nodes, column=long, row=long.T)


def size_from_its_input() -> bytes:
    return one_output_graph(
        node("ReduceMax", "x", "most", keepdims=0),
        node("Range", "zero most one", "many"),
        node("ReduceSum", "many", "margins"),
        zero=F(0),
        one=F(1),
    )


def loop() -> bytes:
    body = helper.make_graph(
        [node("Identity", "go", "again"), node("Identity", "v", "w")],
        "body",
        [
            tensor("i", TensorProto.INT64),
            tensor("go", TensorProto.BOOL),
            tensor("v", TensorProto.FLOAT, "n", 1),
        ],
        [tensor("again", TensorProto.BOOL), tensor("w", TensorProto.FLOAT, "n", 1)],
    )
    nodes = node("ReduceSum", "x axes", "sum"), node("Loop", "turns go sum", "margins", body=body)
    return one_output_graph(*nodes, axes=[1], turns=1 << 60, go=True)


def first_stage(edit: Callable[[onnx.ModelProto], object]) -> Make:
    """The first stage's graph with a change."""
    return stage_0(lambda: edited(FILES["stage_0.onnx"], edit))


def custom_domain(model: onnx.ModelProto) -> None:
    model.opset_import.append(helper.make_opsetid("com.evil", 1))
    model.graph.node[0].domain = "com.evil"


def function(model: onnx.ModelProto) -> None:
    opsets = [helper.make_opsetid("", 17)]
    body = [node("Identity", "a", "c")]
    model.functions.append(helper.make_function("", "Sub", ["a", "b"], ["c"], body, opsets))


def two_outputs_said_to_be_one() -> bytes:
    def edit(model: onnx.ModelProto) -> None:
        model.graph.output[0].type.tensor_type.shape.dim[1].dim_value = 1

    return edited(flat_graph(linear(2, 2)).SerializeToString(), edit)


def tree_of_numbers_alone() -> bytes:
    """30 MB that would be 120 MB as numbers, once a list."""
    ints = b"\x40\x01" * (15 << 20)
    attribute = delimited(1, b"nodes_nodeids") + ints + b"\xa0\x01\x07"
    tree = b"".join(
        [
            delimited(1, b"x"), delimited(2, b"margins"), delimited(4, b"TreeEnsembleRegressor"),
            delimited(5, attribute), delimited(7, b"ai.onnx.ml"),
        ]
    )  # fmt: skip
    frame = onnx.load_model_from_string(FILES["stage_1.onnx"])
    del frame.graph.node[:]
    graph = frame.graph.SerializeToString() + delimited(1, tree)
    frame.ClearField("graph")
    return frame.SerializeToString() + delimited(7, graph)


Change = Callable[[list[Any]], list[Any]]


def put(*changes: tuple[int, Any]) -> Change:
    """Put values at places of a list."""
    return lambda found: [dict(changes).get(i, v) for i, v in enumerate(found)]


def tree_graph(**changes: Change) -> bytes:
    """The second stage's trees with lists changed."""

    def edit(model: onnx.ModelProto) -> None:
        for attribute in model.graph.node[0].attribute:
            if attribute.name in changes:
                found = list(helper.get_attribute_value(attribute))
                new = helper.make_attribute(attribute.name, changes[attribute.name](found))
                attribute.CopyFrom(new)

    return edited(FILES["stage_1.onnx"], edit)


def tree_stage(**changes: Change) -> Make:
    return holding("stage_1.onnx", lambda: tree_graph(**changes))


GRAPH_CASES: Cases = {
    # operators
    "constant of shape": (stage_0(bomb), r"stage_0\.onnx is refused: ConstantOfShape"),
    "tile": (stage_0(tiles), r"stage_0\.onnx is refused: Tile"),
    "product of two long vectors": (
        stage_0(product_of_two_long_vectors),
        "Mul: .* more than 16777216 numbers",
    ),
    "loop in a stage": (stage_0(loop), "is refused: "),
    "custom domain": (first_stage(custom_domain), "asks for the custom domain 'com.evil'"),
    "domain of a runtime": (
        first_stage(lambda model: setattr(model.graph.node[0], "domain", "com.microsoft")),
        "Sub: .* domain 'com.microsoft'",
    ),
    "function": (first_stage(function), "it brings along the function 'Sub'"),
    "external data": (first_stage(external_data), "keeps its data in another file"),
    "tensor larger than its bytes": (
        first_stage(lambda model: model.graph.initializer[0].dims.__setitem__(0, 1 << 40)),
        "'mean' has an impossible shape",
    ),
    # trees
    "cyclic tree": (tree_stage(nodes_truenodeids=put((1, 0))), r"stage_1\.onnx .* a cyclic tree"),
    # every node has one parent, and yet nodes 1 and 4 are a cycle; the root leads to 2 and 3
    "cycle apart from the root": (
        tree_stage(
            nodes_truenodeids=put((0, 2), (1, 4), (4, 5)),
            nodes_falsenodeids=put((0, 3), (1, 6), (4, 1)),
        ),
        "nodes that no root leads to",
    ),
    "feature id out of range": (
        tree_stage(nodes_featureids=put((0, 3))),
        "feature id 3, out of range",
    ),
    "negative feature id": (tree_stage(nodes_featureids=put((0, -1))), "featureids' .* negative"),
    "child out of range": (
        tree_stage(nodes_falsenodeids=put((0, 1 << 30))),
        "falsenodeids' points to a child",
    ),
    "target out of range": (
        tree_stage(target_ids=put((0, 7))),
        "'target_ids' holds 7, out of range",
    ),
    "leaf that is none": (
        tree_stage(target_nodeids=put((0, 0))),
        "'target_nodeids' names .* no leaf",
    ),
    "lists of several lengths": (
        tree_stage(nodes_values=lambda found: found[:-1]),
        "'nodes_values' has 20 entries for 21 nodes",
    ),
    "tree as deep as a stack": (
        holding("stage_1.onnx", lambda: flat_graph(deep_tree(5_000)).SerializeToString()),
        "a tree deeper than 1024 nodes",
    ),
    "tree of numbers alone": (
        holding("stage_1.onnx", tree_of_numbers_alone),
        "has 0 entries for|entries for .* nodes|2097152 are allowed",
    ),
    # other graphs
    "mismatched outputs": (
        stage_0(lambda: flat_graph(linear(2, 2)).SerializeToString()),
        r"outputs are \[margins .* not 'margins', float32 \(n, 1\)",
    ),
    "outputs that are not what they say": (
        stage_0(two_outputs_said_to_be_one),
        r"give \(n, 2\) as 'margins'",
    ),
    "deep nesting": (stage_0(lambda: nested_graphs(400)), "graphs inside graphs"),
    "huge length": (
        stage_0(lambda: b"\x08\x08\x3a" + b"\xff" * 9 + b"\x01" + b"\0" * 20),
        "a length of 18446744073709551615",
    ),
    "truncated graph": (stage_0(lambda: FILES["stage_0.onnx"][:-7]), "not a usable ONNX file"),
    "graph of empty nodes": (
        stage_0(lambda: delimited(7, b"\x0a\x00" * 8_000_000)),
        "too many nodes",
    ),
    "graph beyond its size": (
        stage_0(lambda: bytes(80 << 20)),
        r"stage_0\.onnx is too large: 83886080 B",
    ),
    # cloud models: a device passes them over, a worker must not
    "cloud with constant of shape": (cloud(bomb), r"cloud\.onnx .* ConstantOfShape: .* more than"),
    "cloud with a loop": (cloud(loop), r"cloud\.onnx is refused: Loop"),
    "cloud with external data": (
        cloud(lambda: edited(FILES["stage_0.onnx"], external_data)),
        r"cloud\.onnx is refused: .*in another file",
    ),
    "cloud with a cyclic tree": (
        cloud(lambda: tree_graph(nodes_truenodeids=put((1, 0)))),
        r"cloud\.onnx .* a cyclic tree",
    ),
    "cloud with a size from its input": (
        cloud(size_from_its_input),
        r"cloud\.onnx .* Range: .* only a run",
    ),
    "cloud with a product of long vectors": (
        cloud(matrix_product_of_long_vectors),
        r"cloud\.onnx .* MatMul: .* more than",
    ),
}
