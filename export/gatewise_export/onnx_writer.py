"""Write flat arrays as ONNX graphs, with the same bytes on every machine.

The module encodes protocol buffers without the ``onnx`` package, so that a device can write a
stage's graph from its checked arrays instead of trusting a file. Field numbers are from
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
from gatewise.models.tree_attributes import ML_DOMAIN, ML_OPSET, OPSET, attributes_of
from gatewise.models.trees import TreeEnsemble

INPUT: Final = "x"
MARGINS: Final = "margins"
IR_VERSION: Final = 8

FLOAT: Final = 1
INT64: Final = 7
STRING: Final = 8
BOOL: Final = 9

FlatModel = TreeEnsemble | LinearModel | KernelModel
AttributeValue: TypeAlias = int | str | NDArray[Any]


# -- protocol buffers --------------------------------------------------------------------------


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


def _words(field: int, words: NDArray[np.bytes_]) -> bytes:
    """Encode an array of short words, each as :func:`_texts` does."""
    # tags, lengths and letters are never zero, so zero bytes are numpy's padding
    letters = np.frombuffer(words.tobytes(), np.uint8).reshape(len(words), words.itemsize)
    heads = np.full((len(words), 2), field << 3 | 2, np.uint8)
    heads[:, 1] = (letters != 0).sum(axis=1)
    encoded = np.hstack([heads, letters])
    content: bytes = encoded[encoded != 0].tobytes()
    return content


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _bytes(field: int, content: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(content)) + content


@lru_cache(4096)
def _texts(field: int, *texts: str) -> bytes:
    return b"".join([_bytes(field, text.encode()) for text in texts])


def _attribute(name: str, value: AttributeValue) -> bytes:
    """Encode an AttributeProto: the name, the value in the field for its type, and the type."""
    if isinstance(value, int):
        content = _number(3, value) + _number(20, 2)
    elif isinstance(value, str):
        content = _texts(4, value) + _number(20, 3)
    elif value.dtype.kind == "S":
        content = _words(9, value) + _number(20, 8)
    elif value.dtype.kind == "f":
        content = _bytes(7, value.astype("<f4").tobytes()) + _number(20, 6)
    else:
        content = _bytes(8, _varints(value.astype(np.int64))) + _number(20, 7)
    return _texts(1, name) + content


def _tensor(name: str, array: NDArray[Any]) -> bytes:
    """Encode a TensorProto of float32, int64 or text."""
    dims = b"".join([_number(1, length) for length in array.shape])
    if array.dtype.kind in "OU":
        return dims + _number(2, STRING) + _texts(6, *array.tolist()) + _texts(8, name)
    kind, code = ("<f4", FLOAT) if array.dtype.kind == "f" else ("<i8", INT64)
    raw = np.ascontiguousarray(array).astype(kind).tobytes()
    return dims + _number(2, code) + _texts(8, name) + _bytes(9, raw)


def _value_info(name: str, kind: int, n_columns: int | None) -> bytes:
    """Encode the ValueInfoProto of a value of shape (n,) or (n, n_columns)."""
    dims = _bytes(1, _texts(2, "n"))
    if n_columns is not None:
        dims += _bytes(1, _number(1, n_columns))
    tensor_type = _number(1, kind) + _bytes(2, dims)
    return _texts(1, name) + _bytes(2, _bytes(1, tensor_type))


# -- graphs ------------------------------------------------------------------------------------


class Output(NamedTuple):
    """An output of a graph: name, ONNX element type and columns; None for shape (n,)."""

    name: str
    kind: int = FLOAT
    columns: int | None = None


class GraphWriter:
    """Collects nodes and constants, and encodes them as a graph in the order of their addition."""

    def __init__(self) -> None:
        self._nodes: list[bytes] = []
        self._constants: list[bytes] = []

    def add(
        self,
        kind: str,
        inputs: str,
        outputs: str,
        *,
        domain: str = "",
        **attributes: AttributeValue,
    ) -> None:
        """Add a node; `inputs` and `outputs` are names separated by spaces."""
        node = _texts(1, *inputs.split()) + _texts(2, *outputs.split()) + _texts(4, kind)
        node += b"".join([_bytes(5, _attribute(*item)) for item in attributes.items()])
        self._nodes.append(node + (_texts(7, domain) if domain else b""))

    def value(self, name: str, array: ArrayLike) -> str:
        """Add a constant and return its name."""
        self._constants.append(_tensor(name, np.asarray(array)))
        return name

    def content(
        self, n_features: int, outputs: Sequence[Output], metadata: Mapping[str, str] | None = None
    ) -> bytes:
        """Encode the ModelProto of a graph that reads ``x``, float32 (n, n_features)."""
        graph = b"".join([_bytes(1, node) for node in self._nodes])
        graph += _texts(2, "gatewise")
        graph += b"".join([_bytes(5, constant) for constant in self._constants])
        graph += _bytes(11, _value_info(INPUT, FLOAT, n_features))
        graph += b"".join(_bytes(12, _value_info(*output)) for output in outputs)
        opsets = (("", OPSET), (ML_DOMAIN, ML_OPSET))
        return b"".join(
            (
                _number(1, IR_VERSION),
                _texts(2, "gatewise"),
                _bytes(7, graph),
                *(_bytes(8, _texts(1, domain) + _number(2, v)) for domain, v in opsets),
                *(_bytes(14, _texts(1, k) + _texts(2, v)) for k, v in (metadata or {}).items()),
            )
        )


# -- flat models -------------------------------------------------------------------------------


def write_graph(model: FlatModel) -> bytes:
    """Write a flat model as a graph from ``x`` to ``margins``; equal arrays give equal bytes."""
    writer = GraphWriter()
    append_model(writer, model)
    return writer.content(model.n_features, [Output(MARGINS, FLOAT, model.n_outputs)])


def append_model(writer: GraphWriter, model: FlatModel, rows: str = INPUT) -> None:
    """Add the nodes of a model from the value `rows` to ``margins``."""
    if model.n_features == 0:
        _append_constant(writer, rows, model.run(np.zeros((1, 0), np.float32))[0])
    elif isinstance(model, TreeEnsemble):
        writer.add("TreeEnsembleRegressor", rows, MARGINS, domain=ML_DOMAIN, **attributes_of(model))
    elif isinstance(model, KernelModel):
        _append_kernels(writer, rows, model)
    else:
        _append_scaling(writer, rows, model)
        _append_weighted_sum(writer, "z", model.weights, model.bias)


def _append_constant(writer: GraphWriter, rows: str, margins: NDArray[np.float32]) -> None:
    """Add nodes that give every row the same margins, for a model without inputs."""
    writer.value("columns", np.array([1]))
    writer.value("value", margins)
    writer.add("ReduceSum", f"{rows} columns", "zero", keepdims=1)
    writer.add("Add", "zero value", MARGINS)


def _append_scaling(writer: GraphWriter, rows: str, model: LinearModel | KernelModel) -> None:
    """Add nodes for ``z = (x - mean) * scale``, and a constant for the axis of sums."""
    writer.value("mean", model.mean)
    writer.value("scale", model.scale)
    writer.value("columns", np.array(1))
    writer.add("Sub", f"{rows} mean", "centred")
    writer.add("Mul", "centred scale", "z")


def _append_kernels(writer: GraphWriter, rows: str, model: KernelModel) -> None:
    """Add nodes for squared distances, kernel values and their weighted sum."""
    _append_scaling(writer, rows, model)
    writer.value("landmarks", model.landmarks.T)
    writer.value("rate", model.rate)
    writer.value("one", np.float32(1))
    writer.value("last_feature", np.array(model.n_features - 1))
    writer.value("landmark_axis", np.array([2]))
    writer.add("Unsqueeze", "z landmark_axis", "z_column")
    writer.add("Sub", "z_column landmarks", "gaps")  # (n, k, landmarks)
    writer.add("Mul", "gaps gaps", "squares")
    writer.add("CumSum", "squares columns", "distances")
    writer.add("Gather", "distances last_feature", "distance", axis=1)
    writer.add("Mul", "distance rate", "scaled")
    writer.add("Add", "scaled one", "shifted")
    writer.add("Div", "one shifted", "power_0")
    for i in range(SQUARINGS):
        writer.add("Mul", f"power_{i} power_{i}", f"power_{i + 1}")
    _append_weighted_sum(writer, f"power_{SQUARINGS}", model.weights, model.bias)


def _append_weighted_sum(
    writer: GraphWriter, values: str, weights: NDArray[np.float32], bias: NDArray[np.float32]
) -> None:
    """Add nodes for ``margins = sum_t values_t weights_t + bias``, summed in the order of t."""
    n_terms, n_outputs = weights.shape
    # for a single output, gather a list of one index, so that the sums stay a column
    writer.value("last", np.array([n_terms - 1] if n_outputs == 1 else n_terms - 1))
    writer.value("weights", weights[:, 0] if n_outputs == 1 else weights)
    writer.value("bias", bias + np.float32(0))  # turn -0 into 0, as numpy's sums start from 0
    if n_outputs > 1:
        writer.value("output_axis", np.array([2]))
        writer.add("Unsqueeze", f"{values} output_axis", "value_column")
        values = "value_column"
    writer.add("Mul", f"{values} weights", "terms")
    writer.add("CumSum", "terms columns", "sums")
    writer.add("Gather", "sums last", "sum", axis=1)
    writer.add("Add", "sum bias", MARGINS)
