"""Requests and responses of the Open Inference Protocol, version 2, for a bundle.

This module does no I/O. A request contains either one matrix of all columns, or a tensor for each
column by name. Its parameters are ignored. Source: https://github.com/kserve/open-inference-protocol.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from gatewise.errors import InputError
from gatewise_cloud.models.oip import DTYPES
from gatewise_edge.device.answer import Answer
from gatewise_export.bundle.manifest import Manifest

#: Name of the tensor that holds all columns.
MATRIX_NAME: Final = "x"
TEXT_TYPE: Final = "BYTES"
#: Largest number of rows in a request.
MAX_ROWS: Final = 4096

Row = NDArray[np.float32] | dict[str, Any]


class InputTensor(msgspec.Struct):
    """Tensor in a request; `data` is flat or nested, in row-major order."""

    name: str
    shape: list[int]
    datatype: str
    data: list[Any]


class RequestedOutput(msgspec.Struct):
    """Output that a request names."""

    name: str


class InferRequest(msgspec.Struct):
    """Body of a ``.../infer`` request."""

    inputs: list[InputTensor]
    id: str | None = None
    outputs: list[RequestedOutput] = []


def model_metadata(manifest: Manifest) -> dict[str, Any]:
    """Describe the bundle as a model of the protocol."""
    n_columns = len(manifest.column_names)
    inputs = [{"name": MATRIX_NAME, "datatype": "FP32", "shape": [-1, n_columns]}]
    if manifest.encoder is not None:
        inputs = [
            {"name": name, "datatype": TEXT_TYPE, "shape": [-1]} for name in manifest.column_names
        ]
    return {
        "name": manifest.name,
        "versions": [manifest.version],
        "platform": "gatewise",
        "inputs": inputs,
        "outputs": [
            {"name": "label", "datatype": TEXT_TYPE, "shape": [-1]},
            {"name": "class_index", "datatype": "INT64", "shape": [-1]},
            {"name": "probabilities", "datatype": "FP32", "shape": [-1, len(manifest.classes)]},
            {"name": "route", "datatype": TEXT_TYPE, "shape": [-1]},
            {"name": "cost", "datatype": "FP64", "shape": [-1]},
        ],
    }


def read_rows(request: InferRequest, columns: Sequence[str]) -> list[Row]:
    """Get the rows of a request: floats in the order of `columns`, or cells by name.

    Raises InputError if a tensor is unknown, or if its data do not match its shape and type.
    """
    tensors = {tensor.name: tensor for tensor in request.inputs}
    if len(tensors) != len(request.inputs) or not tensors:
        raise InputError("inputs must be one or more tensors with distinct names")
    if set(tensors) == {MATRIX_NAME} and MATRIX_NAME not in columns:
        matrix = _read_tensor(tensors[MATRIX_NAME])
        if matrix.dtype == object or matrix.ndim != 2 or matrix.shape[1] != len(columns):
            raise InputError(f"input {MATRIX_NAME!r} must be numbers of shape [n, {len(columns)}]")
        return list(matrix.astype(np.float32))
    unknown_names = [name for name in tensors if name not in columns]
    if unknown_names:
        raise InputError(
            f"input {unknown_names[0]!r} is not one of {MATRIX_NAME}, {', '.join(columns)}"
        )
    column_values = {name: _read_column(tensor) for name, tensor in tensors.items()}
    row_counts = {len(column) for column in column_values.values()}
    if len(row_counts) != 1:
        raise InputError("inputs must have the same number of rows")
    cells_by_column = {name: column.tolist() for name, column in column_values.items()}
    return [
        {name: cells_by_column[name][row_number] for name in cells_by_column}
        for row_number in range(row_counts.pop())
    ]


def _read_column(tensor: InputTensor) -> NDArray[Any]:
    """Read the values of one column, which have the shape [n] or [n, 1]."""
    values = _read_tensor(tensor)
    if values.size != len(values):
        raise InputError(f"input {tensor.name!r}: shape {tensor.shape} is not that of one column")
    return values.reshape(-1)


def _read_tensor(tensor: InputTensor) -> NDArray[Any]:
    if tensor.datatype not in DTYPES and tensor.datatype != TEXT_TYPE:
        raise InputError(f"input {tensor.name!r}: datatype {tensor.datatype!r} is not supported")
    if not tensor.shape or min(tensor.shape) < 0 or tensor.shape[0] > MAX_ROWS:
        raise InputError(
            f"input {tensor.name!r}: shape {tensor.shape} does not have 0 to {MAX_ROWS} rows"
        )
    is_text = tensor.datatype == TEXT_TYPE
    try:
        # null means a missing value, because JSON has no NaN
        values = np.array(tensor.data, object if is_text else np.float64)
        return values.reshape(tensor.shape)
    except (TypeError, ValueError, OverflowError):
        raise InputError(
            f"input {tensor.name!r}: data are not {tensor.datatype} of shape {tensor.shape}"
        ) from None


def infer_response(
    request: InferRequest, manifest: Manifest, answers: Sequence[Answer]
) -> dict[str, Any]:
    """Write answers as the outputs that a request names, or as all outputs if it names none."""
    columns: Mapping[str, Sequence[Any]] = {
        "label": [str(answer.label) for answer in answers],
        "class_index": [answer.class_index for answer in answers],
        "probabilities": [
            probability for answer in answers for probability in answer.probabilities.tolist()
        ],
        "route": [answer.route for answer in answers],
        "cost": [answer.cost for answer in answers],
    }
    output_specs = {output["name"]: output for output in model_metadata(manifest)["outputs"]}
    output_names = [output.name for output in request.outputs] or list(output_specs)
    unknown_names = [name for name in output_names if name not in output_specs]
    if unknown_names:
        raise InputError(
            f"no output {unknown_names[0]!r}; the outputs are {', '.join(output_specs)}"
        )
    response: dict[str, Any] = {
        "model_name": manifest.name,
        "model_version": manifest.version,
        "outputs": [
            output_specs[name]
            | {"shape": [len(answers), *output_specs[name]["shape"][1:]], "data": columns[name]}
            for name in output_names
        ],
    }
    if request.id is not None:
        response["id"] = request.id
    return response
