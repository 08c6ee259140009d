"""ONNX graphs under construction: nodes by name, constants, inputs and outputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from gatewise import __version__
from gatewise.models.tree_attributes import ML_DOMAIN, ML_OPSET, OPSET

INPUT = "x"
MARGINS = "margins"
IR_VERSION = 8


class Output(NamedTuple):
    """One output of a graph: its name, ONNX element type and columns (None: shape (n,))."""

    name: str
    kind: int
    columns: int | None = None


class GraphParts:
    """Nodes and constants of a graph, in the order in which they were added."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def add(self, kind: str, inputs: str, outputs: str, **attributes: Any) -> None:
        """Add a node; names of its inputs and outputs stand with blanks between them."""
        self.nodes.append(helper.make_node(kind, inputs.split(), outputs.split(), **attributes))

    def value(self, name: str, array: Any) -> None:
        """Add a constant."""
        self.constants.append(constant(name, np.asarray(array)))

    def model(
        self, n_features: int, outputs: Sequence[Output], *, full_check: bool = False
    ) -> onnx.ModelProto:
        """Make a model that reads ``x``, float32 (n, n_features), and check it."""
        inputs = [tensor(INPUT, TensorProto.FLOAT, "n", n_features)]
        described = [
            tensor(name, kind, *(("n",) if columns is None else ("n", columns)))
            for name, kind, columns in outputs
        ]
        graph = helper.make_graph(self.nodes, "gatewise", inputs, described, self.constants)
        model = helper.make_model(
            graph,
            producer_name="gatewise",
            producer_version=__version__,
            ir_version=IR_VERSION,
            opset_imports=[
                helper.make_opsetid("", OPSET),
                helper.make_opsetid(ML_DOMAIN, ML_OPSET),
            ],
        )
        onnx.checker.check_model(model, full_check=full_check)
        return model


def tensor(name: str, kind: int, *shape: int | str) -> onnx.ValueInfoProto:
    """Describe a graph's input or output."""
    return helper.make_tensor_value_info(name, kind, list(shape))


def constant(name: str, array: NDArray[Any]) -> onnx.TensorProto:
    """Make a named constant of a graph."""
    return numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name)
