"""Values of an ONNX graph under construction, with the arithmetic and type promotion of numpy.

The converters of scikit-learn's classifiers and transformers write the formula of an estimator with
these values. The graph then rounds wherever scikit-learn rounds. For example, float32 rows stay
float32 after a scaler, and their products with float64 coefficients are float64.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from gatewise.models.tree_attributes import ML_DOMAIN, ML_OPSET, OPSET, tree_ensemble_attributes
from gatewise.models.trees import TreeEnsemble

#: Name of the graph's input.
INPUT = "x"

#: Version of ONNX's file format in the release that introduced the opset :data:`.OPSET`. Each
#: runtime with these operators can read it.
IR_VERSION = 8


class GraphOfRows:
    """A graph under construction; its input is a table of rows, float32 (n, n_features)."""

    def __init__(self, n_features: int) -> None:
        self._nodes: list[onnx.NodeProto] = []  # in the order of their making, which ONNX requires
        # by type, shape and bytes
        self._constants: dict[tuple[Any, ...], onnx.TensorProto] = {}
        self._n_features = n_features
        self.rows = Value(self, INPUT, np.dtype(np.float32))

    def constant(self, array: Any, dtype: Any) -> Value:
        """Add a constant, of its own type if `dtype` is None, unless the graph already has it."""
        constant = np.asarray(array, dtype)
        type_shape_bytes = (constant.dtype, constant.shape, constant.tobytes())
        if type_shape_bytes not in self._constants:
            name = f"c{len(self._constants)}"
            self._constants[type_shape_bytes] = numpy_helper.from_array(constant, name)
        return Value(self, self._constants[type_shape_bytes].name, constant.dtype)

    def node(self, operator: str, inputs: Sequence[Value], dtype: Any, **attributes: Any) -> Value:
        """Add an operator, and return its output, of type `dtype`."""
        output_name = f"v{len(self._nodes)}"
        input_names = [value.name for value in inputs]
        self._nodes.append(helper.make_node(operator, input_names, [output_name], **attributes))
        return Value(self, output_name, np.dtype(dtype))

    def model(self, outputs: dict[str, Value]) -> onnx.ModelProto:
        """Make the model with the outputs, by name; all but the vector "label" are matrices."""
        # a value may be several outputs, or the input, so each output gets a node of its name
        output_nodes = [
            helper.make_node("Identity", [value.name], [name]) for name, value in outputs.items()
        ]
        describe_tensor = helper.make_tensor_value_info
        graph = helper.make_graph(
            [*self._nodes, *output_nodes],
            "given",
            [describe_tensor(INPUT, onnx.TensorProto.FLOAT, ["n", self._n_features])],
            [
                describe_tensor(name, _find_element_type(value.dtype), _find_output_shape(name))
                for name, value in outputs.items()
            ],
            list(self._constants.values()),
        )
        opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(ML_DOMAIN, ML_OPSET)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION)


def _find_output_shape(output_name: str) -> list[str]:
    return ["n"] if output_name == "label" else ["n", "m"]


def _find_element_type(dtype: Any) -> int:
    """Find ONNX's number of a numpy type."""
    return int(helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))


@dataclass(frozen=True, eq=False)
class Value:
    """A value inside a graph: a matrix with a row per instance, or a constant.

    Operands may be values of the same graph, arrays, or numbers. As in numpy, they are cast to
    their common type, and shapes are broadcast.
    """

    graph: GraphOfRows
    name: str
    dtype: np.dtype[Any]

    def _as_value(self, operand: Any) -> Value:
        """Make a constant of an operand, unless it is a value.

        A Python number gets the type that numpy gives it in an operation with this value: float32
        with float32, but float64 for a float with integers.
        """
        if isinstance(operand, Value):
            return operand
        # np.float64 is a subclass of float, but has a type of its own
        is_python_number = isinstance(operand, int | float) and not isinstance(operand, np.generic)
        dtype = np.result_type(self.dtype, operand) if is_python_number else None
        return self.graph.constant(operand, dtype)

    def _apply_binary(self, operator: str, other: Any, output_dtype: Any = None) -> Value:
        """Apply an operator to both operands in their common type, which the output also gets."""
        operand = self._as_value(other)
        common_dtype = np.result_type(self.dtype, operand.dtype)
        operands = [self.astype(common_dtype), operand.astype(common_dtype)]
        return self.graph.node(operator, operands, output_dtype or common_dtype)

    def _apply_unary(self, operator: str, output_dtype: Any = None, **attributes: Any) -> Value:
        return self.graph.node(operator, [self], output_dtype or self.dtype, **attributes)

    def astype(self, dtype: Any) -> Value:
        """Cast to a type."""
        if self.dtype == np.dtype(dtype):
            return self
        return self._apply_unary("Cast", dtype, to=_find_element_type(dtype))

    def double(self) -> Value:
        """Cast to float64."""
        return self.astype(np.float64)

    def __add__(self, other: Any) -> Value:
        return self._apply_binary("Add", other)

    def __sub__(self, other: Any) -> Value:
        return self._apply_binary("Sub", other)

    def __mul__(self, other: Any) -> Value:
        return self._apply_binary("Mul", other)

    def __truediv__(self, other: Any) -> Value:
        return self._apply_binary("Div", other)

    def __matmul__(self, other: Any) -> Value:
        return self._apply_binary("MatMul", other)

    def __neg__(self) -> Value:
        return self._apply_unary("Neg")

    def __gt__(self, other: Any) -> Value:
        return self._apply_binary("Greater", other, np.bool_)

    def __lt__(self, other: Any) -> Value:
        return self._apply_binary("Less", other, np.bool_)

    def __ge__(self, other: Any) -> Value:
        return self._apply_binary("GreaterOrEqual", other, np.bool_)

    def equals(self, other: Any) -> Value:
        """Mark the entries that are equal in both values."""
        return self._apply_binary("Equal", other, np.bool_)

    def maximum(self, other: Any) -> Value:
        """Compute the larger of two values, entry by entry."""
        return self._apply_binary("Max", other)

    def minimum(self, other: Any) -> Value:
        """Compute the smaller of two values, entry by entry."""
        return self._apply_binary("Min", other)

    def apply(self, operator: str) -> Value:
        """Apply an operator with one input, such as Exp, to each entry."""
        return self._apply_unary(operator)

    def isnan(self) -> Value:
        """Mark the entries that are NaN."""
        return self._apply_unary("IsNaN", np.bool_)

    def where(self, true_value: Any, false_value: Any) -> Value:
        """Select entries of `true_value` if this value is true, else of `false_value`.

        At least one of the two must be a :class:`Value`, because its type decides the type of a
        Python number.
        """
        true_branch = (
            true_value if isinstance(true_value, Value) else false_value._as_value(true_value)
        )
        false_branch = true_branch._as_value(false_value)
        common_dtype = np.result_type(true_branch.dtype, false_branch.dtype)
        operands = [self, true_branch.astype(common_dtype), false_branch.astype(common_dtype)]
        return self.graph.node("Where", operands, common_dtype)

    def sum(self, axis: int = 1, *, keepdims: bool = True) -> Value:
        """Sum the entries of each row, as one column."""
        # in opset 17 the axes are an input of ReduceSum, but an attribute of ReduceMax
        axes = self.graph.constant([axis], np.int64)
        return self.graph.node("ReduceSum", [self, axes], self.dtype, keepdims=int(keepdims))

    def max(self) -> Value:
        """Compute the largest entry of each row, as one column."""
        return self._apply_unary("ReduceMax", axes=[1], keepdims=1)

    def argmax(self) -> Value:
        """Get the index of the first largest entry of each row, int64 (n,)."""
        return self._apply_unary("ArgMax", np.int64, axis=1, keepdims=0)

    def softmax(self) -> Value:
        """Compute the softmax of each row."""
        return self._apply_unary("Softmax", axis=1)

    def columns(self, indices: Any) -> Value:
        """Select columns by their indices."""
        column_indices = self.graph.constant(np.ravel(indices), np.int64)
        return self.graph.node("Gather", [self, column_indices], self.dtype, axis=1)

    def ravel(self) -> Value:
        """Change a single column to a vector (n,)."""
        return self.reshape([-1])

    def reshape(self, shape: list[int]) -> Value:
        """Change the shape; -1 stands for the length that keeps all entries."""
        shape_constant = self.graph.constant(shape, np.int64)
        return self.graph.node("Reshape", [self, shape_constant], self.dtype)

    def tree_sums(self, trees: TreeEnsemble) -> Value:
        """Sum the values of the leaves that each row reaches, in float32, as (n, n_outputs)."""
        rows = [self.astype(np.float32)]
        attributes = tree_ensemble_attributes(trees)
        operator = "TreeEnsembleRegressor"
        return self.graph.node(operator, rows, np.float32, domain=ML_DOMAIN, **attributes)

    def leaf_sums(self, trees: TreeEnsemble, values: NDArray[np.float64]) -> Value:
        """Sum the values of the leaves that each row reaches, in float64, as (n, n_values).

        Each tree of `trees` must have an output of its own, the index of the leaf that a row
        reaches, counted from the root. Indices pass through float32, which is exact below 2**24
        nodes of a tree. `values`, (n_nodes, n_values), holds the values of all nodes.
        """
        leaves = self.tree_sums(trees).astype(np.int64) + trees.roots.astype(np.int64)
        node_values = self.graph.constant(values, np.float64)
        # (n, n_trees, n_values)
        leaf_values = self.graph.node("Gather", [node_values, leaves], np.float64, axis=0)
        return leaf_values.sum(keepdims=False)


@dataclass(frozen=True, eq=False)
class GraphAnswers:
    """Predictions of a classifier in a graph.

    `label`, int64 (n,), holds class indices. `probabilities`, (n, n_classes), and `decision`,
    (n, n_classes) or (n, 1) for two classes, are None if the classifier does not have them.
    `response` holds the values that other estimators read, unless these are in `decision`.
    """

    label: Value
    probabilities: Value | None = None
    decision: Value | None = None
    response: Value | None = None

    @classmethod
    def of_margins(cls, decision: Value, n_columns: int) -> Self:
        """Make answers with the label of the largest margin, or of the sign of a single margin."""
        if n_columns > 1:
            return cls(decision.argmax(), decision=decision)
        return cls((decision > 0.0).astype(np.int64).ravel(), decision=decision)

    @classmethod
    def of_probabilities(cls, probabilities: Value, decision: Value | None = None) -> Self:
        """Make answers with the label of the largest probability."""
        return cls(probabilities.argmax(), probabilities, decision)


def hstack(matrices: Sequence[Value]) -> Value:
    """Concatenate matrices by columns, cast to their common type."""
    if len(matrices) == 1:
        return matrices[0]
    common_dtype = np.result_type(*(matrix.dtype for matrix in matrices))
    operands = [matrix.astype(common_dtype) for matrix in matrices]
    return matrices[0].graph.node("Concat", operands, common_dtype, axis=1)


def binary_probabilities(second_probability: Value) -> Value:
    """Compute the probabilities of two classes from the probability of the second class."""
    return hstack([second_probability._as_value(1.0) - second_probability, second_probability])


def sigmoid(margin: Value) -> Value:
    """Compute the logistic function of margins, without the operator Sigmoid.

    onnxruntime's Sigmoid is 0 from -40 down, so that small probabilities lose their order.
    """
    # 1 / (1 + exp(-m)) for m >= 0, and exp(m) / (1 + exp(m)) below, where neither overflows
    numerator = margin.minimum(0.0).apply("Exp")
    return numerator / ((-margin.apply("Abs")).apply("Exp") + 1.0)


def normalise_rows(probabilities: Value) -> Value:
    """Divide each row by its sum; a row of zeros gets equal shares, as in scikit-learn."""
    is_zero = probabilities.sum().equals(0.0)
    ones = (probabilities * 0.0) + 1.0  # in the shape of the probabilities, for any number of rows
    nonzero_rows = is_zero.where(ones, probabilities)
    return nonzero_rows / nonzero_rows.sum()
