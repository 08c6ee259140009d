"""ONNX graphs made by hand, changed and broken, as bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from gatewise_export.packing.graph_parts import constant, tensor


def node(kind: str, inputs: str, outputs: str, **attributes: Any) -> onnx.NodeProto:
    """Make a node; names of its inputs and outputs stand with blanks between them."""
    return helper.make_node(kind, inputs.split(), outputs.split(), **attributes)


Declared = tuple[str, int, Sequence[int | str]]
"""Name, ONNX type and shape of an input or output."""


def graph_of(
    nodes: Sequence[onnx.NodeProto], source: Declared, *outputs: Declared, **constants: Any
) -> bytes:
    """An unchecked graph with one input."""
    graph = helper.make_graph(
        list(nodes),
        "hand-made",
        [tensor(source[0], source[1], *source[2])],
        [tensor(name, kind, *shape) for name, kind, shape in outputs],
        [constant(name, np.asarray(array)) for name, array in constants.items()],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    return bytes(helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString())


def one_output_graph(*nodes: onnx.NodeProto, columns: int = 2, **constants: Any) -> bytes:
    """An unchecked graph from ``x``, float32 (n, columns), to ``margins``, float32 (n, 1)."""
    x = ("x", TensorProto.FLOAT, ["n", columns])
    return graph_of(nodes, x, ("margins", TensorProto.FLOAT, ["n", 1]), **constants)


def edited(content: bytes, edit: Callable[[onnx.ModelProto], object]) -> bytes:
    """A graph after a change of its parts."""
    model = onnx.load_model_from_string(content)
    edit(model)
    return bytes(model.SerializeToString())


def external_data(model: onnx.ModelProto) -> None:
    """Move the first constant's data into another file."""
    weights = model.graph.initializer[0]
    weights.ClearField("raw_data")
    weights.data_location = TensorProto.EXTERNAL
    weights.external_data.add(key="location", value="/etc/passwd")


def delimited(number: int, content: bytes) -> bytes:
    """A field of protocol buffers that holds bytes."""
    return _head(number, len(content)) + content


def _head(number: int, size: int) -> bytes:
    """What stands before the bytes of a field."""
    head = bytearray([number << 3 | 2])
    while size > 127:
        head.append(size & 127 | 128)
        size >>= 7
    return bytes(head) + bytes([size])


def nested_graphs(depth: int) -> bytes:
    """A file of graphs in attributes of nodes of graphs."""
    tail, size, heads = b"\xa0\x01\x05", 0, []
    for _ in range(depth):  # from the innermost; joined once, for they are many
        head = delimited(1, b"body") + _head(6, size)
        size += len(tail)
        for number in (5, 1):  # an attribute of a node
            head = _head(number, len(head) + size) + head
        size += len(head)
        heads.append(head)
    return _head(7, size) + b"".join(reversed(heads)) + tail * depth
