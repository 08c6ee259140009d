"""Flat models as ONNX graphs: fewest nodes, raw margins out, the same bits as in training.

A graph has one input ``x``, float32 (n, k), and one output ``margins``, float32 (n, outputs).
Labels, probabilities and the decision to stop are the runtime's, so a graph stays as small
and as fast as can be (:func:`gatewise_export.to_onnx` adds them for other tools).

- Trees become one ``TreeEnsembleRegressor`` with all outputs as targets. onnxruntime adds
  leaves in the order of the trees and the base last, in float32, as
  :meth:`TreeEnsemble.margins` does (with ``intra_op_num_threads = 1``).
- Linear models add their terms with ``CumSum``, one after another, as
  :meth:`LinearModel.margins` does; ``Gemm`` adds in an order of its own.
- Kernel machines add squared gaps feature by feature, then landmark by landmark, with
  ``CumSum`` too; division and squarings are rounded alike everywhere.
"""

from __future__ import annotations

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto

from gatewise.models.kernel_machine import SQUARINGS, KernelModel
from gatewise.models.linear import LinearModel
from gatewise.models.stage import FlatModel
from gatewise.models.tree_attributes import ML_DOMAIN
from gatewise.models.tree_attributes import attributes_of as tree_attributes
from gatewise.models.trees import TreeEnsemble
from gatewise_export.packing.graph_parts import INPUT, MARGINS, GraphParts, Output


def flat_graph(model: FlatModel) -> onnx.ModelProto:
    """Write a flat model as a graph from ``x`` to ``margins``; the same model gives the same bytes.

    >>> import numpy as np
    >>> one = np.ones(1, np.float32)
    >>> graph = flat_graph(LinearModel(0 * one, one, np.array([[2]], np.float32), one)).graph
    >>> [node.op_type for node in graph.node]
    ['Sub', 'Mul', 'Mul', 'CumSum', 'Gather', 'Add']
    """
    parts = GraphParts()
    if model.n_features == 0:
        _add_constant(parts, model.margins(np.zeros((1, 0), np.float32))[0])
    elif isinstance(model, TreeEnsemble):
        kind, settings = "TreeEnsembleRegressor", tree_attributes(model)
        parts.add(kind, INPUT, MARGINS, domain=ML_DOMAIN, name="trees", **settings)
    elif isinstance(model, KernelModel):
        _add_kernels(parts, model)
    else:
        _add_linear(parts, model)
    return parts.model(model.n_features, [Output(MARGINS, TensorProto.FLOAT, model.n_outputs)])


def _add_constant(parts: GraphParts, margins: NDArray[np.float32]) -> None:
    """The same margins for every row of a matrix without columns."""
    parts.value("columns", np.array([1]))
    parts.value("value", margins)
    parts.add("ReduceSum", f"{INPUT} columns", "zero", keepdims=1)
    parts.add("Add", "zero value", MARGINS)


def _add_linear(parts: GraphParts, model: LinearModel) -> None:
    """Standardise, weigh, add up in the order of the features, add the bias."""
    parts.value("mean", model.mean)
    parts.value("scale", model.scale)
    parts.add("Sub", f"{INPUT} mean", "centred")
    parts.add("Mul", "centred scale", "z")
    if model.n_outputs == 1:
        parts.value("weights", model.weights[:, 0])
        parts.add("Mul", "z weights", "terms")
    else:
        parts.value("weights", model.weights)
        parts.value("depth", np.array([2]))
        parts.add("Unsqueeze", "z depth", "z_column")
        parts.add("Mul", "z_column weights", "terms")
    _add_up(parts, model.n_features, model.bias)


def _add_kernels(parts: GraphParts, model: KernelModel) -> None:
    """Standardise, squared distances, kernel values, weigh, add up, add the bias."""
    for name, array in (
        ("mean", model.mean),
        ("scale", model.scale),
        ("landmarks", model.landmarks.T),
        ("rate", np.array(model.rate, np.float32)),
        ("one", np.array(1, np.float32)),
        ("depth", np.array([2])),
        ("rows", np.array(1)),
        ("last_feature", np.array(model.n_features - 1)),
    ):
        parts.value(name, array)
    parts.add("Sub", f"{INPUT} mean", "centred")
    parts.add("Mul", "centred scale", "z")
    parts.add("Unsqueeze", "z depth", "z_column")
    parts.add("Sub", "z_column landmarks", "gaps")  # (n, k, landmarks)
    parts.add("Mul", "gaps gaps", "squares")
    parts.add("CumSum", "squares rows", "distances")
    parts.add("Gather", "distances last_feature", "distance", axis=1)
    parts.add("Mul", "distance rate", "scaled")
    parts.add("Add", "scaled one", "shifted")
    parts.add("Div", "one shifted", "power_0")
    for i in range(SQUARINGS):
        parts.add("Mul", f"power_{i} power_{i}", f"power_{i + 1}")
    value = f"power_{SQUARINGS}"
    if model.n_outputs == 1:
        parts.value("weights", model.weights[:, 0])
    else:
        parts.value("weights", model.weights)
        parts.add("Unsqueeze", f"{value} depth", "value_column")
        value = "value_column"
    parts.add("Mul", f"{value} weights", "terms")
    _add_up(parts, len(model.landmarks), model.bias)


def _add_up(parts: GraphParts, n_terms: int, bias: NDArray[np.float32]) -> None:
    """Add ``terms`` along axis 1 one after another, then the bias."""
    parts.value("columns", np.array(1))
    # for a single output the list of one index keeps the sums a column
    parts.value("last", np.array([n_terms - 1] if len(bias) == 1 else n_terms - 1))
    parts.value("bias", bias + np.float32(0))  # -0 becomes 0, as in a sum with 0
    parts.add("CumSum", "terms columns", "sums")
    parts.add("Gather", "sums last", "sum", axis=1)
    parts.add("Add", "sum bias", MARGINS)
