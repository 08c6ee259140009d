"""Handwritten, changed and invalid ONNX graphs, as bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def node(kind: str, inputs: str, outputs: str, **attributes: Any) -> onnx.NodeProto:
    """Make a node; names of inputs and outputs are separated by spaces."""
    return helper.make_node(kind, inputs.split(), outputs.split(), **attributes)


def tensor(name: str, kind: int, *shape: int | str) -> onnx.ValueInfoProto:
    """Describe a graph's input or output."""
    return helper.make_tensor_value_info(name, kind, list(shape))


Declared = tuple[str, int, Sequence[int | str]]
"""Name, ONNX type and shape of an input or output."""


def graph_of(
    nodes: Sequence[onnx.NodeProto], source: Declared, *outputs: Declared, **constants: Any
) -> bytes:
    """Make an unchecked graph with one input."""
    graph = helper.make_graph(
        list(nodes),
        "hand-made",
        [tensor(source[0], source[1], *source[2])],
        [tensor(name, kind, *shape) for name, kind, shape in outputs],
        [numpy_helper.from_array(np.array(array), name) for name, array in constants.items()],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    return bytes(helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString())


def one_output_graph(*nodes: onnx.NodeProto, columns: int = 2, **constants: Any) -> bytes:
    """Make an unchecked graph from ``x``, float32 (n, columns), to ``margins``, float32 (n, 1)."""
    x = ("x", TensorProto.FLOAT, ["n", columns])
    return graph_of(nodes, x, ("margins", TensorProto.FLOAT, ["n", 1]), **constants)


def edited(content: bytes, edit: Callable[[onnx.ModelProto], object]) -> bytes:
    """Apply a change to a graph."""
    model = onnx.load_model_from_string(content)
    edit(model)
    return bytes(model.SerializeToString())


def external_data(model: onnx.ModelProto) -> None:
    """Move the data of the first constant to an external file."""
    weights = model.graph.initializer[0]
    weights.ClearField("raw_data")
    weights.data_location = TensorProto.EXTERNAL
    weights.external_data.add(key="location", value="/etc/passwd")
