"""Reader of flat models' graphs back into flat arrays, the reverse of :mod:`.onnx_graph`.

So a bundle can be checked without the system that it was made from: onnxruntime runs the graph,
the flat arrays are summed beside it, and both must agree bit for bit.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gatewise.models.kernel_machine import SQUARINGS, KernelModel
from gatewise.models.linear import LinearModel
from gatewise.models.stage import FlatModel, Stage
from gatewise_export.bundle.errors import BundleError
from gatewise_export.bundle.flat_trees import read_trees
from gatewise_export.bundle.manifest import StageSpec
from gatewise_export.onnx_files.onnx_parts import Graph
from gatewise_export.onnx_files.onnx_reader import read_model
from gatewise_export.onnx_files.protobuf import Malformed
from gatewise_export.onnx_files.tree_rules import read_trees_node

MOST_NODES = 1 << 24
"""Of a tree ensemble: a high-cost model may be large."""
LINEAR = (
    ("Sub", "Mul", "Mul", "CumSum", "Gather", "Add"),
    ("Sub", "Mul", "Unsqueeze", "Mul", "CumSum", "Gather", "Add"),
)
KERNEL = ("Sub", "Mul", "Unsqueeze", "Sub", "Mul", "CumSum", "Gather", "Mul", "Add", "Div") + (
    "Mul",
) * SQUARINGS
KERNELS = tuple(KERNEL + form[2:] for form in LINEAR)
CONSTANT = ("ReduceSum", "Add")
TREES = ("TreeEnsembleRegressor",)


def read_stage(spec: StageSpec, features: NDArray[np.intp], content: bytes) -> Stage:
    """Read a stage's file back into flat arrays; `features` are the columns of its inputs."""
    if spec.kind == "lazy":
        trees = read_trees(content, spec.file, n_features=len(features), n_outputs=spec.outputs)
        return Stage(trees, features, spec.link, spec.score, "node")
    return Stage(read_flat(content), features, spec.link, spec.score)


def read_flat(content: bytes) -> FlatModel:
    """Read an ONNX file that :func:`.flat_graph` wrote."""
    graph = read_model(content).graph
    try:
        forms = tuple(node.op_type for node in graph.nodes)
        if forms == TREES:
            width = _columns(graph)
            found = read_trees_node(
                graph.nodes[0], width=width, ordered=True, most_nodes=MOST_NODES
            )
            return found.ensemble(width)
        if forms in KERNELS:
            return _kernel(graph)
        if forms in LINEAR or forms == CONSTANT:
            return _linear(graph, constant=forms == CONSTANT)
    except (KeyError, IndexError, ValueError, TypeError) as error:  # Malformed is a ValueError
        raise BundleError(f"a graph with flat arrays that do not fit together: {error}") from error
    raise BundleError("a graph of another form than Gatewise writes: it cannot be read back")


def _columns(graph: Graph) -> int:
    """Columns of the first input."""
    shape = graph.inputs[0].shape
    columns = None if shape is None else shape[1]
    if not isinstance(columns, int):
        raise Malformed("the input has no number of columns")
    return columns


def _linear(graph: Graph, *, constant: bool) -> LinearModel:
    arrays = _arrays(graph)
    if constant:
        none = np.zeros(0, np.float32)
        value = arrays["value"]
        return LinearModel(none, none, np.zeros((0, len(value)), np.float32), value)
    return LinearModel(arrays["mean"], arrays["scale"], _weights(arrays), arrays["bias"])


def _kernel(graph: Graph) -> KernelModel:
    arrays = _arrays(graph)
    return KernelModel(
        mean=arrays["mean"],
        scale=arrays["scale"],
        landmarks=np.ascontiguousarray(arrays["landmarks"].T),
        rate=np.float32(arrays["rate"]),
        weights=_weights(arrays),
        bias=arrays["bias"],
    )


def _arrays(graph: Graph) -> dict[str, NDArray[Any]]:
    return {t.name: t.array().copy() for t in graph.initializers}


def _weights(arrays: dict[str, NDArray[Any]]) -> NDArray[np.float32]:
    weights: NDArray[np.float32] = arrays["weights"]
    return weights[:, None] if weights.ndim == 1 else weights
