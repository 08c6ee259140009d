"""Conversion of given ONNX files to graphs over rows of numbers.

The given nodes are not changed. Nodes before them convert rows to the shape and type of the input.
Nodes after them convert the outputs to the outputs of a stage or a worker.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gatewise.errors import InputError, one_line
from gatewise.models.graph_model import GraphModel
from gatewise.models.tree_attributes import ML_DOMAIN, ML_OPSET

if TYPE_CHECKING:
    import onnx

Shape = tuple[int, ...]

#: Numbers of the tensor types float32 and float64 in ONNX.
FLOAT_TYPE = 1
DOUBLE_TYPE = 11

#: Numbers of the tensor types that are read: integers of 8 to 64 bits, and float16, float32 and
#: float64.
NUMBER_TYPES = (FLOAT_TYPE, 2, 3, 4, 5, 6, 7, 10, DOUBLE_TYPE, 12, 13)


class GraphFile(NamedTuple):
    """A graph of a file, from the input ``x``, float32 (n, n_values), to its outputs.

    `names` are the labels of the classes, if the file has them. `batch_size` is the size of the
    batch dimension, or None if it is free. `input_description` describes how rows become the input.
    """

    model: onnx.ModelProto
    names: list[Any] | None
    batch_size: int | None
    input_description: str


def read_graph(source: str | Path | bytes, shape: Shape, model_name: str) -> GraphFile:
    """Read and check a graph for instances of this shape.

    `source` is the path of a file, which may have its tensors in other files, or the bytes of a
    file. The result has no ZipMap nodes, no shapes of inner values and no documentation.
    `model_name` is the name of the model in errors.
    """
    import onnx
    from onnx import inliner

    # load the file, replace its functions by their operators, and check it
    try:
        if isinstance(source, bytes):
            model = onnx.load_model_from_string(source)
        else:
            path = Path(source)
            if not path.is_file():
                raise InputError(f"{model_name}: file {path} does not exist")
            model = onnx.load(path)  # also loads tensors from other files
        external_tensors = [
            tensor.name
            for tensor in _list_tensors(model.graph)
            if tensor.data_location == onnx.TensorProto.EXTERNAL
        ]
        if not external_tensors:
            if model.functions:  # torch's exporter writes functions
                own_domains = {function.domain for function in model.functions}
                model = inliner.inline_local_functions(model)
                unused_domains = own_domains - _list_domains(model.graph)
                for opset in [
                    opset for opset in model.opset_import if opset.domain in unused_domains
                ]:
                    model.opset_import.remove(opset)
            onnx.checker.check_model(model)
    except InputError:
        raise
    except Exception as error:  # protobuf's DecodeError is not public
        raise InputError(f"{model_name} is not a usable ONNX file: {one_line(error)}") from error
    if external_tensors:
        raise InputError(
            f"{model_name} has the tensor {external_tensors[0]!r} in another file; give the path "
            "of its file"
        )
    unknown_domains = {opset.domain for opset in model.opset_import} - {"", "ai.onnx", ML_DOMAIN}
    if unknown_domains:
        raise InputError(
            f"{model_name} uses operators that onnxruntime alone does not have "
            f"({', '.join(sorted(unknown_domains))})"
        )
    # with a prefix, no name of the graph can equal the names of the nodes that are added
    model = onnx.compose.add_prefix(model, "g_")
    del model.graph.value_info[:]
    model.graph.doc_string = ""
    class_names = _read_classes(model, model_name)
    batch_size, input_description = _flatten_input(model, shape, model_name)
    return GraphFile(model, class_names, batch_size, input_description)


def _list_domains(graph: onnx.GraphProto) -> set[str]:
    """Get the domains of a graph's operators."""
    domains = {node.domain for node in graph.node}
    return domains.union(
        *(_list_domains(inner_graph) for node in graph.node for inner_graph in inner_graphs(node))
    )


def _list_tensors(graph: onnx.GraphProto) -> list[onnx.TensorProto]:
    tensors = list(graph.initializer)
    for node in graph.node:
        for attribute in node.attribute:
            tensors += [attribute.t, *attribute.tensors]
        for inner_graph in inner_graphs(node):
            tensors += _list_tensors(inner_graph)
    return tensors


def inner_graphs(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    """Get the graphs inside a node, which loops and branches have."""
    single_graphs = [attribute.g for attribute in node.attribute if attribute.HasField("g")]
    return single_graphs + [
        inner_graph for attribute in node.attribute for inner_graph in attribute.graphs
    ]


def _read_classes(model: onnx.ModelProto, model_name: str) -> list[Any] | None:
    """Get the labels of the classes from the metadata or ZipMap nodes, and remove these nodes."""
    classes_json = next(
        (prop.value for prop in model.metadata_props if prop.key == "classes"), None
    )
    try:
        classes = None if classes_json is None else list(json.loads(classes_json))
    except (ValueError, TypeError) as error:
        raise InputError(f'{model_name}: its metadata "classes" must be a JSON list') from error
    graph = model.graph
    for node in [candidate for candidate in graph.node if candidate.op_type == "ZipMap"]:
        for attribute in node.attribute:
            text_labels = [text.decode() for text in attribute.strings]
            classes = classes or text_labels or list(attribute.ints) or None
        for output in graph.output:
            if output.name == node.output[0]:
                output.name = node.input[0]
                output.ClearField("type")
                output.type.tensor_type.elem_type = FLOAT_TYPE
        graph.node.remove(node)
    return classes


def _flatten_input(model: onnx.ModelProto, shape: Shape, model_name: str) -> tuple[int | None, str]:
    """Add nodes before a graph that convert ``x``, float32 (n, n_values), to its input.

    Returns `batch_size` and `input_description` of :class:`GraphFile`.
    """
    from onnx import TensorProto, helper

    graph = model.graph
    graph_input = _find_input(graph, model_name)
    input_type = graph_input.type.tensor_type.elem_type
    input_dims = [
        dim.dim_value if dim.HasField("dim_value") and dim.dim_value > 0 else None
        for dim in graph_input.type.tensor_type.shape.dim
    ]
    instance_shape, axis_order = _find_layout(input_dims, shape, model_name)
    # cast, reshape and transpose, as needed
    new_nodes = []
    tensor_name = "x"
    if input_type != TensorProto.FLOAT:
        new_nodes.append(helper.make_node("Cast", [tensor_name], ["gw_cast"], to=input_type))
        tensor_name = "gw_cast"
    reshaped_shape: Shape = shape if axis_order is not None else instance_shape
    if reshaped_shape != (math.prod(shape),):
        graph.initializer.append(
            helper.make_tensor(
                "gw_shape", TensorProto.INT64, [1 + len(reshaped_shape)], [-1, *reshaped_shape]
            )
        )
        new_nodes.append(helper.make_node("Reshape", [tensor_name, "gw_shape"], ["gw_shaped"]))
        tensor_name = "gw_shaped"
    if axis_order is not None:
        new_nodes.append(
            helper.make_node("Transpose", [tensor_name], ["gw_layout"], perm=axis_order)
        )
        tensor_name = "gw_layout"
    new_nodes.append(helper.make_node("Identity", [tensor_name], [graph_input.name]))
    # the new nodes come first, because ONNX requires topological order
    given_nodes = list(graph.node)
    constant_inputs = [given_input for given_input in graph.input if given_input != graph_input]
    input_name = graph_input.name.removeprefix("g_")
    del graph.node[:], graph.input[:]
    graph.node.extend([*new_nodes, *given_nodes])
    rows_input = helper.make_tensor_value_info("x", FLOAT_TYPE, ["n", math.prod(shape)])
    graph.input.extend([rows_input, *constant_inputs])
    for output in graph.output:  # declared shapes may be wrong, and a run shows the actual ones
        if output.type.HasField("tensor_type"):
            output.type.tensor_type.ClearField("shape")
    type_name = TensorProto.DataType.Name(input_type).lower()
    input_description = (
        f"the input {input_name!r} gets {type_name} instances of shape {instance_shape}"
    )
    if axis_order is not None:
        input_description += f", axes moved from {shape}"
    return (input_dims[0] if input_dims else None), input_description


def _find_input(graph: onnx.GraphProto, model_name: str) -> onnx.ValueInfoProto:
    """Find the only input that is no constant; InputError unless it is a tensor of numbers."""
    from onnx import TensorProto

    constant_names = {tensor.name for tensor in graph.initializer}
    inputs = [graph_input for graph_input in graph.input if graph_input.name not in constant_names]
    if len(inputs) != 1 or not inputs[0].type.HasField("tensor_type"):
        listed_inputs = ", ".join(graph_input.name.removeprefix("g_") for graph_input in inputs)
        raise InputError(f"{model_name} must have one input, a tensor; it has [{listed_inputs}]")
    input_type = inputs[0].type.tensor_type.elem_type
    if input_type not in NUMBER_TYPES:
        raise InputError(
            f"{model_name}'s input must be numbers, not {TensorProto.DataType.Name(input_type)}"
        )
    input_of_rows: onnx.ValueInfoProto = inputs[0]
    return input_of_rows


def _find_layout(
    dims: list[int | None], shape: Shape, model_name: str
) -> tuple[Shape, tuple[int, ...] | None]:
    """Get the shape of an instance in the graph, and the permutation of its axes or None.

    >>> _find_layout([None, 1, 8, 8], (8, 8), "model")
    ((1, 8, 8), None)
    >>> _find_layout([None, 3, 32, 32], (32, 32, 3), "model")
    ((3, 32, 32), (0, 3, 1, 2))
    """
    graph_dims = dims[1:]
    size = math.prod(shape)
    long_dims = [dim for dim in graph_dims if dim != 1]
    long_shape = [dim for dim in shape if dim != 1]
    if len(graph_dims) == 1 and graph_dims[0] in (None, size):
        return (size,), None
    if len(graph_dims) == len(shape) and all(
        dim in (None, row_dim) for dim, row_dim in zip(graph_dims, shape, strict=True)
    ):
        return shape, None
    if len(long_dims) == len(long_shape) and all(
        dim in (None, row_dim) for dim, row_dim in zip(long_dims, long_shape, strict=True)
    ):
        remaining_dims = iter(long_shape)
        return tuple(1 if dim == 1 else next(remaining_dims) for dim in graph_dims), None
    if len(shape) == 3 and len(graph_dims) == 3:
        for axes, axis_order in (((2, 0, 1), (0, 3, 1, 2)), ((1, 2, 0), (0, 2, 3, 1))):
            moved_shape = tuple(shape[axis] for axis in axes)
            if all(
                dim in (None, row_dim) for dim, row_dim in zip(graph_dims, moved_shape, strict=True)
            ):
                return moved_shape, axis_order
    if (
        len(shape) == 1
        and None not in graph_dims
        and math.prod(dim or 0 for dim in graph_dims) == size
    ):
        return tuple(dim or 0 for dim in graph_dims), None
    dims_text = ", ".join("n" if dim is None else str(dim) for dim in graph_dims)
    raise InputError(
        f"{model_name} takes instances of shape ({dims_text}), but the rows have {shape}"
    )


def row_by_row(model: onnx.ModelProto, n_fixed: int) -> onnx.ModelProto:
    """Change a graph to run each row alone, in a batch of `n_fixed` copies of the row."""
    from onnx import TensorProto, helper, numpy_helper

    graph = model.graph
    inner_names = {output.name: f"gw_inner_{output.name}" for output in graph.output}
    constants = {"gw_first": np.array(0, np.int64), "gw_repeats": np.array([n_fixed, 1], np.int64)}
    constants["gw_axis"] = np.array([0], np.int64)
    # the body of the loop: one row, its copies, the graph, and the first row of each output
    body_nodes = [
        helper.make_node("Unsqueeze", ["gw_row", "gw_axis"], ["gw_one"]),
        helper.make_node("Tile", ["gw_one", "gw_repeats"], ["gw_copies"]),
    ]
    for node in graph.node:
        node.input[:] = [
            "gw_copies" if name == "x" else inner_names.get(name, name) for name in node.input
        ]
        node.output[:] = [inner_names.get(name, name) for name in node.output]
        body_nodes.append(node)
    row_outputs = []
    for output_index, output in enumerate(graph.output):
        body_nodes.append(
            helper.make_node(
                "Gather",
                [inner_names[output.name], "gw_first"],
                [f"gw_of_row_{output_index}"],
                axis=0,
            )
        )
        output_type = output.type.tensor_type.elem_type
        row_outputs.append(
            helper.make_tensor_value_info(f"gw_of_row_{output_index}", output_type, None)
        )
    n_values = graph.input[0].type.tensor_type.shape.dim[1].dim_value
    row_input = helper.make_tensor_value_info("gw_row", TensorProto.FLOAT, [n_values])
    # Scan runs the body for each row, and stacks the outputs
    scan = helper.make_node(
        "Scan",
        ["x"],
        list(inner_names),
        body=helper.make_graph(body_nodes, "row", [row_input], row_outputs),
        num_scan_inputs=1,
    )
    graph.initializer.extend(
        numpy_helper.from_array(array, name) for name, array in constants.items()
    )
    del graph.node[:]
    graph.node.append(scan)
    return model


class GraphTail:
    """Builder that adds nodes after a graph, until :meth:`finish` makes the model of a stage."""

    def __init__(self, content: bytes) -> None:
        import onnx

        self.model = onnx.load_model_from_string(content)
        node_names = [name for node in self.model.graph.node for name in node.output]
        # new names contain the number of names of an earlier tail, which makes them unique
        self._n_earlier = sum(name.startswith("gw_") for name in node_names)

    def add(
        self,
        operator: str,
        inputs: list[str],
        name: str = "",
        n_outputs: int = 1,
        **attributes: Any,
    ) -> str:
        """Add a node and return the name of its first output."""
        from onnx import helper

        domain = attributes.get("domain", "")
        if domain and domain not in {opset.domain for opset in self.model.opset_import}:
            self.model.opset_import.append(helper.make_opsetid(domain, ML_OPSET))
        output = name or f"gw_{self._n_earlier}_{len(self.model.graph.node)}"
        outputs = [output, *(f"{output}_{k}" for k in range(1, n_outputs))]
        self.model.graph.node.append(helper.make_node(operator, inputs, outputs, **attributes))
        return output

    def constant(self, numbers: Any, dtype: Any = np.float32) -> str:
        """Add a constant, and return its name."""
        from onnx import numpy_helper

        name = f"gw_{self._n_earlier}_value_{len(self.model.graph.initializer)}"
        array = np.asarray(numbers, dtype)
        self.model.graph.initializer.append(numpy_helper.from_array(array, name))
        return name

    def finish(self, n_features: int, n_outputs: int) -> GraphModel:
        """Declare ``margins``, float32 (n, n_outputs), as the only output, and check the graph.

        Nodes that the margins do not depend on are removed.
        """
        import onnx
        from onnx import helper

        graph = self.model.graph
        del graph.output[:], self.model.metadata_props[:]
        graph.output.append(helper.make_tensor_value_info("margins", FLOAT_TYPE, ["n", n_outputs]))
        if not any(inner_graphs(node) for node in graph.node):
            _remove_unused(graph)
        for node in graph.node:
            node.name = node.doc_string = ""
        graph.name = "given"
        self.model.opset_import.sort(key=lambda opset: opset.domain)
        onnx.checker.check_model(self.model)
        content = self.model.SerializeToString(deterministic=True)
        return GraphModel(content, n_features, n_outputs)


def _remove_unused(graph: onnx.GraphProto) -> None:
    """Remove nodes and constants that no output depends on."""
    used_names = {output.name for output in graph.output}
    used_nodes = []
    for node in reversed(graph.node):
        if used_names & set(node.output):
            used_names |= set(node.input)
            used_nodes.append(node)
    constants = [tensor for tensor in graph.initializer if tensor.name in used_names]
    inputs = [graph_input for graph_input in graph.input if graph_input.name in used_names | {"x"}]
    del graph.node[:], graph.initializer[:], graph.input[:]
    graph.node.extend(reversed(used_nodes))
    graph.initializer.extend(constants)
    graph.input.extend(inputs)
