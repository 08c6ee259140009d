"""Write flat arrays as ONNX graphs, with the same bytes on every machine.

A device writes a stage's graph from the checked arrays instead of trusting a file. Therefore this
module encodes protocol buffers without the ``onnx`` package. Field numbers are from
``onnx.proto3``.

A graph has one input ``x``, float32 (n, k), and one output ``margins``, float32 (n, outputs), from
which the runtime computes labels, probabilities and decisions. The margins equal those of the
model's ``run`` method bit for bit:

- Trees become one ``TreeEnsembleRegressor`` with all outputs as targets. With
  ``intra_op_num_threads = 1`` onnxruntime sums leaves in tree order and the base last, in float32.
- Linear models sum their terms in order with ``CumSum``, because ``Gemm`` defines no order.
- Kernel machines sum squared differences in feature order, then kernel values in landmark order,
  also with ``CumSum``. Division and squaring round the same way on every machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gatewise.models.kernel_machine import SQUARINGS, KernelModel
from gatewise.models.linear import LinearModel
from gatewise.models.tree_attributes import ML_DOMAIN, ML_OPSET, OPSET, tree_ensemble_attributes
from gatewise.models.trees import TreeEnsemble
from gatewise_export.bundle.flat_models import FlatModel

#: Names of a graph's input and output.
INPUT: Final = "x"
MARGINS: Final = "margins"
#: Version of the file format; runtimes refuse files of a later version than theirs.
IR_VERSION: Final = 8

#: Element types, as numbers of the enum TensorProto.DataType.
FLOAT: Final = 1
INT64: Final = 7
STRING: Final = 8
BOOL: Final = 9

AttributeValue: TypeAlias = int | str | NDArray[Any]


# -- protocol buffers --------------------------------------------------------------------------
# The tag of a field is its number << 3, plus 2 for bytes with a length or 0 for an integer.


@lru_cache(4096)  # lengths and tags repeat
def _varint(value: int) -> bytes:
    """Encode a non-negative integer with 7 bits per byte, lowest bits first."""
    content = bytearray()
    while value > 0x7F:
        content.append(value & 0x7F | 0x80)
        value >>= 7
    content.append(value)
    return bytes(content)


def _varints(values: NDArray[np.int64]) -> bytes:
    """Encode an array of non-negative integers, each as :func:`_varint` does."""
    largest = int(values.max(initial=0))
    if largest < 0x80:
        return values.astype(np.uint8).tobytes()
    shifts = 7 * np.arange(-(-largest.bit_length() // 7))
    remainders = values[:, np.newaxis] >> shifts
    is_continued = remainders > 0x7F
    groups = (remainders & 0x7F | is_continued * 0x80).astype(np.uint8)
    is_written = np.ones(groups.shape, np.bool_)
    is_written[:, 1:] = is_continued[:, :-1]
    return groups[is_written].tobytes()


def _word_fields(field: int, words: NDArray[np.bytes_]) -> bytes:
    """Encode an array of short words, each as :func:`_text_fields` does."""
    # remove numpy's padding: tags, lengths and letters are never zero
    letters = np.frombuffer(words.tobytes(), np.uint8).reshape(len(words), words.itemsize)
    field_heads = np.full((len(words), 2), field << 3 | 2, np.uint8)
    field_heads[:, 1] = (letters != 0).sum(axis=1)
    field_rows = np.hstack([field_heads, letters])
    content: bytes = field_rows[field_rows != 0].tobytes()
    return content


def _integer_field(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _bytes_field(field: int, content: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(content)) + content


@lru_cache(4096)
def _text_fields(field: int, *texts: str) -> bytes:
    return b"".join([_bytes_field(field, text.encode()) for text in texts])


def _attribute_proto(name: str, value: AttributeValue) -> bytes:
    """Encode an AttributeProto: the name, the value in the field for its type, and the type."""
    if isinstance(value, int):
        content = _integer_field(3, value) + _integer_field(20, 2)
    elif isinstance(value, str):
        content = _text_fields(4, value) + _integer_field(20, 3)
    elif value.dtype.kind == "S":
        content = _word_fields(9, value) + _integer_field(20, 8)
    elif value.dtype.kind == "f":
        content = _bytes_field(7, value.astype("<f4").tobytes()) + _integer_field(20, 6)
    else:
        content = _bytes_field(8, _varints(value.astype(np.int64))) + _integer_field(20, 7)
    return _text_fields(1, name) + content


def _tensor_proto(name: str, array: NDArray[Any]) -> bytes:
    """Encode a TensorProto of float32, int64 or text."""
    shape_fields = b"".join([_integer_field(1, length) for length in array.shape])
    if array.dtype.kind in "OU":
        return (
            shape_fields
            + _integer_field(2, STRING)
            + _text_fields(6, *array.tolist())
            + _text_fields(8, name)
        )
    dtype, element_type = ("<f4", FLOAT) if array.dtype.kind == "f" else ("<i8", INT64)
    raw_data = np.ascontiguousarray(array).astype(dtype).tobytes()
    return (
        shape_fields
        + _integer_field(2, element_type)
        + _text_fields(8, name)
        + _bytes_field(9, raw_data)
    )


def _value_info_proto(name: str, element_type: int, n_columns: int | None) -> bytes:
    """Encode the ValueInfoProto of a value of shape (n,) or (n, n_columns)."""
    shape_proto = _bytes_field(1, _text_fields(2, "n"))
    if n_columns is not None:
        shape_proto += _bytes_field(1, _integer_field(1, n_columns))
    tensor_type = _integer_field(1, element_type) + _bytes_field(2, shape_proto)
    return _text_fields(1, name) + _bytes_field(2, _bytes_field(1, tensor_type))


# -- graphs ------------------------------------------------------------------------------------


class Output(NamedTuple):
    """An output of a graph: name, ONNX element type and columns; None for shape (n,)."""

    name: str
    element_type: int = FLOAT
    n_columns: int | None = None


class GraphWriter:
    """Collects nodes and constants, and encodes them as a graph in the order of their addition."""

    def __init__(self) -> None:
        self._nodes: list[bytes] = []
        self._constants: list[bytes] = []

    def add_node(
        self,
        operator: str,
        inputs: str,
        outputs: str,
        *,
        domain: str = "",
        **attributes: AttributeValue,
    ) -> None:
        """Add a node; `inputs` and `outputs` are names separated by spaces."""
        node = (
            _text_fields(1, *inputs.split())
            + _text_fields(2, *outputs.split())
            + _text_fields(4, operator)
        )
        node += b"".join(
            [_bytes_field(5, _attribute_proto(*attribute)) for attribute in attributes.items()]
        )
        self._nodes.append(node + (_text_fields(7, domain) if domain else b""))

    def add_constant(self, name: str, array: ArrayLike) -> str:
        """Add a constant and return its name."""
        self._constants.append(_tensor_proto(name, np.asarray(array)))
        return name

    def encode(
        self, n_features: int, outputs: Sequence[Output], metadata: Mapping[str, str] | None = None
    ) -> bytes:
        """Encode the ModelProto of a graph that reads ``x``, float32 (n, n_features)."""
        graph = b"".join([_bytes_field(1, node) for node in self._nodes])
        graph += _text_fields(2, "gatewise")
        graph += b"".join([_bytes_field(5, constant) for constant in self._constants])
        graph += _bytes_field(11, _value_info_proto(INPUT, FLOAT, n_features))
        graph += b"".join(_bytes_field(12, _value_info_proto(*output)) for output in outputs)
        opsets = (("", OPSET), (ML_DOMAIN, ML_OPSET))
        return b"".join(
            (
                _integer_field(1, IR_VERSION),
                _text_fields(2, "gatewise"),
                _bytes_field(7, graph),
                *(
                    _bytes_field(8, _text_fields(1, domain) + _integer_field(2, value))
                    for domain, value in opsets
                ),
                *(
                    _bytes_field(14, _text_fields(1, key) + _text_fields(2, value))
                    for key, value in (metadata or {}).items()
                ),
            )
        )


# -- flat models -------------------------------------------------------------------------------


def write_graph(model: FlatModel) -> bytes:
    """Write a flat model as a graph from ``x`` to ``margins``; equal arrays give equal bytes."""
    writer = GraphWriter()
    append_model(writer, model)
    return writer.encode(model.n_features, [Output(MARGINS, FLOAT, model.n_outputs)])


def append_model(writer: GraphWriter, model: FlatModel, rows: str = INPUT) -> None:
    """Add the nodes of a model from the value `rows` to ``margins``."""
    if model.n_features == 0:
        _append_constant(writer, rows, model.run(np.zeros((1, 0), np.float32))[0])
    elif isinstance(model, TreeEnsemble):
        writer.add_node(
            "TreeEnsembleRegressor",
            rows,
            MARGINS,
            domain=ML_DOMAIN,
            **tree_ensemble_attributes(model),
        )
    elif isinstance(model, KernelModel):
        _append_kernels(writer, rows, model)
    else:
        _append_scaling(writer, rows, model)
        _append_weighted_sum(writer, "z", model.weights, model.bias)


def _append_constant(writer: GraphWriter, rows: str, margins: NDArray[np.float32]) -> None:
    """Add nodes that give every row the same margins, for a model without inputs."""
    writer.add_constant("columns", np.array([1]))
    # only graphs of other programs read other rows, and may have an output named "value"
    name = writer.add_constant("value" if rows == INPUT else "constant_margins", margins)
    # the sum of no columns is 0, in one column per row
    writer.add_node("ReduceSum", f"{rows} columns", "zero", keepdims=1)
    writer.add_node("Add", f"zero {name}", MARGINS)


def _append_scaling(writer: GraphWriter, rows: str, model: LinearModel | KernelModel) -> None:
    """Add nodes for ``z = (x - mean) * scale``, and a constant for the axis of sums."""
    writer.add_constant("mean", model.mean)
    writer.add_constant("scale", model.scale)
    writer.add_constant("columns", np.array(1))
    writer.add_node("Sub", f"{rows} mean", "centred")
    writer.add_node("Mul", "centred scale", "z")


def _append_kernels(writer: GraphWriter, rows: str, model: KernelModel) -> None:
    """Add nodes for squared distances, kernel values and their weighted sum."""
    _append_scaling(writer, rows, model)
    # power_0 = 1 / (1 + rate * distance); six squarings raise it to the power 64
    writer.add_constant("landmarks", model.landmarks.T)
    writer.add_constant("rate", model.rate)
    writer.add_constant("one", np.float32(1))
    writer.add_constant("last_feature", np.array(model.n_features - 1))
    writer.add_constant("landmark_axis", np.array([2]))
    writer.add_node("Unsqueeze", "z landmark_axis", "z_column")
    writer.add_node("Sub", "z_column landmarks", "gaps")  # (n, k, landmarks)
    writer.add_node("Mul", "gaps gaps", "squares")
    writer.add_node("CumSum", "squares columns", "distances")
    writer.add_node("Gather", "distances last_feature", "distance", axis=1)
    writer.add_node("Mul", "distance rate", "scaled")
    writer.add_node("Add", "scaled one", "shifted")
    writer.add_node("Div", "one shifted", "power_0")
    for squaring in range(SQUARINGS):
        writer.add_node("Mul", f"power_{squaring} power_{squaring}", f"power_{squaring + 1}")
    _append_weighted_sum(writer, f"power_{SQUARINGS}", model.weights, model.bias)


def _append_weighted_sum(
    writer: GraphWriter, values: str, weights: NDArray[np.float32], bias: NDArray[np.float32]
) -> None:
    """Add nodes for ``margins = sum_t values_t weights_t + bias``, summed in the order of t."""
    n_terms, n_outputs = weights.shape
    # for a single output, gather a list of one index, which keeps the sums a column
    writer.add_constant("last", np.array([n_terms - 1] if n_outputs == 1 else n_terms - 1))
    writer.add_constant("weights", weights[:, 0] if n_outputs == 1 else weights)
    # adding 0 turns -0 into 0, because numpy's sums start from 0
    writer.add_constant("bias", bias + np.float32(0))
    if n_outputs > 1:
        writer.add_constant("output_axis", np.array([2]))
        writer.add_node("Unsqueeze", f"{values} output_axis", "value_column")
        values = "value_column"
    writer.add_node("Mul", f"{values} weights", "terms")
    writer.add_node("CumSum", "terms columns", "sums")
    writer.add_node("Gather", "sums last", "sum", axis=1)
    writer.add_node("Add", "sum bias", MARGINS)
