"""Cut the part of an ONNX network that computes one value."""

from __future__ import annotations

import math
from typing import Any

from gatewise.errors import InputError, one_line


def cut_network(content: bytes, output: str, path: str) -> tuple[bytes, tuple[int, ...]]:
    """Return the graph from ``x`` to one value as ``margins``, and the shape of a row."""
    try:
        import onnx
        from onnx import helper
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
    model = onnx.compose.add_prefix(model, "g_")
    graph = model.graph
    # Walk back from the output, and copy the nodes and constants that it needs.
    needed = {f"g_{output}"}
    needed_nodes = []
    for node in reversed(graph.node):  # nodes are in the order of computation
        if needed & set(node.output):
            needed_nodes.append(onnx.NodeProto.FromString(node.SerializeToString()))
            needed |= _reads(node)
    constants = [onnx.TensorProto.FromString(t.SerializeToString()) for t in graph.initializer]
    constants = [t for t in constants if t.name in needed]
    entries = [
        i for i in graph.input if i.name in needed and i.name not in {t.name for t in constants}
    ]
    if len(entries) != 1:
        raise InputError(f"{path}: {output!r} needs {len(entries)} inputs; a block has one")
    # Convert x, flat float32 rows, to the type and shape of the input, and the value to margins.
    entry = entries[0].type.tensor_type
    shape = tuple(d.dim_value for d in entry.shape.dim[1:])
    if not entry.shape.dim or min(shape, default=0) < 1:
        raise InputError(f"{path}: its input has no fixed shape; export it with fixed sizes")
    nodes = [
        helper.make_node("Cast", ["x"], ["gw_cast"], to=entry.elem_type),
        helper.make_node("Reshape", ["gw_cast", "gw_shape"], [entries[0].name]),
        *reversed(needed_nodes),
        helper.make_node("Cast", [f"g_{output}"], ["gw_float"], to=onnx.TensorProto.FLOAT),
        helper.make_node("Flatten", ["gw_float"], ["margins"], axis=1),
    ]
    constants.append(helper.make_tensor("gw_shape", 7, [len(shape) + 1], [-1, *shape]))
    submodel = helper.make_graph(
        nodes,
        "block",
        [helper.make_tensor_value_info("x", 1, ["n", math.prod(shape)])],
        [helper.make_tensor_value_info("margins", 1, ["n", "features"])],
        constants,
    )
    whole = helper.make_model(
        submodel, opset_imports=model.opset_import, ir_version=model.ir_version
    )
    whole.functions.extend(model.functions)
    data: bytes = whole.SerializeToString(deterministic=True)
    return data, shape


def _reads(node: Any) -> set[str]:
    """Names that a node and its subgraphs read."""
    inner = [a.g for a in node.attribute if a.HasField("g")]
    inner += [g for a in node.attribute for g in a.graphs]
    return set(node.input).union(*(_reads(n) for g in inner for n in g.node))
