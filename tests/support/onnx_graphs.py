"""Handwritten, changed and invalid ONNX graphs, as bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def node(operator: str, inputs: str, outputs: str, **attributes: Any) -> onnx.NodeProto:
    """Make a node; names of inputs and outputs are separated by spaces."""
    return helper.make_node(operator, inputs.split(), outputs.split(), **attributes)


def tensor(name: str, element_type: int, *shape: int | str) -> onnx.ValueInfoProto:
    """Describe a graph's input or output."""
    return helper.make_tensor_value_info(name, element_type, list(shape))


#: Name, ONNX type and shape of an input or output.
TensorSpec = tuple[str, int, Sequence[int | str]]


def graph_of(
    nodes: Sequence[onnx.NodeProto], graph_input: TensorSpec, *outputs: TensorSpec, **constants: Any
) -> bytes:
    """Make an unchecked graph with one input."""
    graph = helper.make_graph(
        list(nodes),
        "hand-made",
        [tensor(graph_input[0], graph_input[1], *graph_input[2])],
        [tensor(name, element_type, *shape) for name, element_type, shape in outputs],
        [numpy_helper.from_array(np.array(array), name) for name, array in constants.items()],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    return bytes(helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString())


def one_output_graph(*nodes: onnx.NodeProto, columns: int = 2, **constants: Any) -> bytes:
    """Make an unchecked graph from ``x``, float32 (n, columns), to ``margins``, float32 (n, 1)."""
    x = ("x", TensorProto.FLOAT, ["n", columns])
    return graph_of(nodes, x, ("margins", TensorProto.FLOAT, ["n", 1]), **constants)


def edit_graph(content: bytes, edit: Callable[[onnx.ModelProto], object]) -> bytes:
    """Apply a change to a graph."""
    model = onnx.load_model_from_string(content)
    edit(model)
    return bytes(model.SerializeToString())
