"""Extraction of the part of an ONNX network that computes one value."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

from gatewise.errors import InputError, one_line

if TYPE_CHECKING:
    import onnx


def cut_network(content: bytes, output: str, path: str) -> tuple[bytes, tuple[int, ...]]:
    """Extract the graph that computes the value `output`, and the shape of its input.

    The new graph has the input ``x``, flat float32 rows, and the output ``margins``. The shape is
    the original one, without the axis of rows. Errors contain `path`.
    """
    # before the import, because its error explains how to install onnx
    model = _read_network(content, output, path)
    import onnx
    from onnx import helper

    part = _find_part(model.graph, f"g_{output}")
    if len(part.inputs) != 1:
        raise InputError(f"{path}: {output!r} needs {len(part.inputs)} inputs; a block has one")
    # convert x to the type and shape of the input, and the value to margins
    input_type = part.inputs[0].type.tensor_type
    shape = tuple(dimension.dim_value for dimension in input_type.shape.dim[1:])
    if not input_type.shape.dim or min(shape, default=0) < 1:
        raise InputError(f"{path}: its input has no fixed shape; export it with fixed sizes")
    int64 = onnx.TensorProto.INT64
    float32 = onnx.TensorProto.FLOAT
    nodes = [
        helper.make_node("Cast", ["x"], ["gw_cast"], to=input_type.elem_type),
        helper.make_node("Reshape", ["gw_cast", "gw_shape"], [part.inputs[0].name]),
        *part.nodes,
        helper.make_node("Cast", [f"g_{output}"], ["gw_float"], to=float32),
        helper.make_node("Flatten", ["gw_float"], ["margins"], axis=1),
    ]
    shape_constant = helper.make_tensor("gw_shape", int64, [len(shape) + 1], [-1, *shape])
    submodel = helper.make_graph(
        nodes,
        "block",
        [helper.make_tensor_value_info("x", float32, ["n", math.prod(shape)])],
        [helper.make_tensor_value_info("margins", float32, ["n", "features"])],
        [*part.constants, shape_constant],
    )
    new_model = helper.make_model(
        submodel, opset_imports=model.opset_import, ir_version=model.ir_version
    )
    new_model.functions.extend(model.functions)
    content_of_part: bytes = new_model.SerializeToString(deterministic=True)
    return content_of_part, shape


class _GraphPart(NamedTuple):
    """Nodes, constants and inputs that a value of a graph needs."""

    nodes: list[onnx.NodeProto]
    constants: list[onnx.TensorProto]
    inputs: list[onnx.ValueInfoProto]


def _find_part(graph: onnx.GraphProto, value_name: str) -> _GraphPart:
    """Find the part of a graph that computes a value."""
    needed_names = {value_name}
    nodes = []
    for node in reversed(graph.node):  # nodes are in the order of computation
        if needed_names & set(node.output):
            nodes.append(node)
            needed_names |= _list_read_names(node)
    constants = [tensor for tensor in graph.initializer if tensor.name in needed_names]
    constant_names = {tensor.name for tensor in constants}
    inputs = [
        graph_input
        for graph_input in graph.input
        if graph_input.name in needed_names and graph_input.name not in constant_names
    ]
    return _GraphPart(nodes[::-1], constants, inputs)


def _read_network(content: bytes, output: str, path: str) -> onnx.ModelProto:
    """Read a network with the value `output`; all names of values get the prefix ``g_``."""
    try:
        import onnx
    except ImportError:
        raise InputError(
            f"{path}: a block of a network needs onnx: install gatewise[export]"
        ) from None
    try:
        model = onnx.load_model_from_string(content)
        onnx.checker.check_model(model)
    except Exception as error:  # protobuf's DecodeError is not public
        raise InputError(f"{path} is not a usable ONNX file: {one_line(error)}") from error
    value_names = [name for node in model.graph.node for name in node.output]
    if output not in value_names:
        raise InputError(f"{path} has no value {output!r}; it has {', '.join(value_names[-8:])}")
    prefixed_model: onnx.ModelProto = onnx.compose.add_prefix(model, "g_")
    return prefixed_model


def _list_read_names(node: Any) -> set[str]:
    """List the names that a node and its subgraphs read."""
    subgraphs = [attribute.g for attribute in node.attribute if attribute.HasField("g")]
    subgraphs += [subgraph for attribute in node.attribute for subgraph in attribute.graphs]
    return set(node.input).union(
        *(_list_read_names(inner_node) for subgraph in subgraphs for inner_node in subgraph.node)
    )
