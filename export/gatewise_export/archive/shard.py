"""Shards: Parquet files of answered instances, and the probabilities of archiving them.

An instance is archived if the device sends it and the archive stores it. The device sends it with
the probability `sent_probability`, which is 1 for an offload and the sampler's probability for an
audit. The archive stores it with the probability `stored_probability`. The inverse of the product
is the number of instances that the archived instance represents.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from gatewise.errors import InputError, not_installed

#: Key of the facts in the metadata of a shard.
_FACTS_KEY: Final = b"gatewise"
_ID_BYTES: Final = 16
#: Model and version.
Release = tuple[str, str]
#: Smaller values of `sent_probability` count as this, which bounds the weight of an instance.
MIN_SENT_PROBABILITY: Final = 1e-3


class ShardFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about all instances of a shard.

    Attributes
    ----------
    model, version : str
        The high-cost model that answered them.
    classes : tuple
        Labels by class index.
    inputs : tuple of str
        Names of the values of an instance, in order.
    shape : tuple of int
        Shape of an instance; one number for a row of features.
    accuracy : float or None
        Accuracy of the system on its validation rows, if the bundle has it.
    stored_probability : float
        Probability with which the archive stored each instance.
    """

    model: str
    version: str
    classes: tuple[str | int | float | bool, ...]
    inputs: tuple[str, ...]
    shape: tuple[int, ...]
    accuracy: float | None = None
    stored_probability: float = msgspec.field(default=1.0, name="stored_chance")

    @property
    def release(self) -> Release:
        """Model and version."""
        return self.model, self.version


@dataclass(frozen=True, eq=False)
class RowColumns:
    """Base class of records of n rows; each field is a column: an array or a further record."""

    def take(self, selection: NDArray[Any] | slice) -> Self:
        """Select rows by a mask, indices or a slice."""
        columns = [getattr(self, field.name) for field in fields(self)]
        return type(self)(
            *(
                column.take(selection) if isinstance(column, RowColumns) else column[selection]
                for column in columns
            )
        )

    @classmethod
    def concatenate(cls, parts: Sequence[Self]) -> Self:
        """Concatenate one or more parts."""
        columns = [[getattr(part, field.name) for part in parts] for field in fields(cls)]
        return cls(
            *(
                type(column[0]).concatenate(column)
                if isinstance(column[0], RowColumns)
                else np.concatenate(column)
                for column in columns
            )
        )


@dataclass(frozen=True, eq=False)
class ArchivedRows(RowColumns):
    """The n archived instances of one model and version.

    Attributes
    ----------
    request_id : ndarray of uint8, shape (n, 16)
        Bytes of the id of the request that contained the instance.
    request_row : ndarray of uint16, shape (n,)
        Index of the instance among the rows of its request.
    device : ndarray of str, shape (n,)
        Name of the device that sent the instance.
    time : ndarray of float64, shape (n,)
        Unix time at which the device had the instance.
    X : ndarray, shape (n, k)
        Inputs of the high-cost model, as the device sent them.
    cloud_label : ndarray of int32, shape (n,)
        Class index of the high-cost model.
    probabilities : ndarray of float32, shape (n, classes)
        Class probabilities of the high-cost model.
    device_label : ndarray of int32, shape (n,)
        Class index of the device's answer, or -1 if the high-cost model answered.
    confidence : ndarray of float32, shape (n,)
        Largest class probability of the device's answer; NaN if it is unknown.
    sent_probability, stored_probability : ndarray of float64, shape (n,)
        Probabilities that the device sent it, and that the archive stored it.
    late : ndarray of bool, shape (n,)
        Whether the device sent it later, because it had no connection.
    """

    request_id: NDArray[np.uint8]
    request_row: NDArray[np.uint16]
    device: NDArray[np.str_]
    time: NDArray[np.float64]
    X: NDArray[Any]
    cloud_label: NDArray[np.int32]
    probabilities: NDArray[np.float32]
    device_label: NDArray[np.int32]
    confidence: NDArray[np.float32]
    sent_probability: NDArray[np.float64]
    stored_probability: NDArray[np.float64]
    late: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.time)

    @cached_property
    def ids(self) -> NDArray[np.str_]:
        """Ids of the instances: request id in hexadecimal digits, a hyphen, and the row."""
        digits = self.request_id.tobytes().hex()
        request_ids = (
            digits[start : start + 2 * _ID_BYTES] for start in range(0, len(digits), 2 * _ID_BYTES)
        )
        id_parts = zip(request_ids, self.request_row.tolist(), strict=True)
        return np.array([f"{request_id}-{row}" for request_id, row in id_parts], np.str_)

    @property
    def answers(self) -> NDArray[np.int32]:
        """Class index that the system answered, shape (n,)."""
        return np.where(self.device_label >= 0, self.device_label, self.cloud_label)

    @property
    def weights(self) -> NDArray[np.float64]:
        """Number of instances that each archived instance represents, shape (n,)."""
        sent_probability = np.maximum(self.sent_probability, MIN_SENT_PROBABILITY)
        return 1.0 / (sent_probability * self.stored_probability)


def thin_rows(
    rows: ArchivedRows, facts: ShardFacts, rng: np.random.Generator
) -> tuple[ArchivedRows, ShardFacts]:
    """Keep each instance of a shard with probability 1/2, and halve `stored_probability`."""
    remaining_rows = rows.take(rng.random(len(rows)) < 0.5)
    return (
        replace(remaining_rows, stored_probability=remaining_rows.stored_probability / 2),
        msgspec.structs.replace(facts, stored_probability=facts.stored_probability / 2),
    )


def number_requests(first: int, n_requests: int) -> NDArray[np.uint8]:
    """Make request ids from successive numbers below 2^64, shape (n_requests, 16)."""
    numbers = np.zeros((n_requests, 2), ">u8")
    numbers[:, 1] = np.arange(first, first + n_requests, dtype=np.uint64)
    return numbers.view(np.uint8)


def shard_table(rows: ArchivedRows, facts: ShardFacts) -> Any:
    """Make the Arrow table of a shard, with the facts in its metadata."""
    pa = require_pyarrow()
    devices = rows.device.tolist()
    code_of_device = {device: code for code, device in enumerate(dict.fromkeys(devices))}
    device_codes = np.fromiter(
        (code_of_device[device] for device in devices), np.int32, len(devices)
    )
    # Random ids do not compress, so 16 bytes take half of the space of 32 digits.
    id_buffer = pa.py_buffer(np.ascontiguousarray(rows.request_id))
    columns = {
        "id": pa.FixedSizeBinaryArray.from_buffers(
            pa.binary(_ID_BYTES), len(rows), [None, id_buffer]
        ),
        "row": _arrow_array(rows.request_row),
        "device": pa.DictionaryArray.from_arrays(
            _arrow_array(device_codes), _arrow_texts(list(code_of_device))
        ),
        "time": _arrow_array(rows.time),
        "x": _arrow_lists(rows.X),
        "cloud_label": _arrow_array(rows.cloud_label),
        "probabilities": _arrow_lists(rows.probabilities),
        "device_label": _arrow_array(rows.device_label),
        "confidence": _arrow_array(rows.confidence),
        "sent_chance": _arrow_array(rows.sent_probability),
        "stored_chance": _arrow_array(rows.stored_probability),
        "late": _arrow_array(rows.late),
    }
    return pa.table(columns, metadata={_FACTS_KEY: msgspec.json.encode(facts)})


# pyarrow.array would import pandas, which takes a worker 0.2 s and 60 MB.


def _arrow_array(values: NDArray[Any]) -> Any:
    """Arrow array that shares the memory of numbers, or contains the bits of flags."""
    pa = require_pyarrow()
    if values.dtype == np.bool_:
        elements = np.packbits(values, bitorder="little")
    else:
        elements = np.ascontiguousarray(values)
    arrow_type = pa.from_numpy_dtype(values.dtype)
    return pa.Array.from_buffers(arrow_type, len(values), [None, pa.py_buffer(elements)])


def _arrow_texts(texts: Sequence[str]) -> Any:
    """Arrow array of texts."""
    pa = require_pyarrow()
    encoded_texts = [text.encode() for text in texts]
    offsets = np.cumsum([0, *map(len, encoded_texts)], dtype=np.int32)
    text_buffer = pa.py_buffer(b"".join(encoded_texts))
    return pa.StringArray.from_buffers(len(texts), pa.py_buffer(offsets), text_buffer)


def _arrow_lists(matrix: NDArray[Any]) -> Any:
    """Arrow array with a list of fixed size for each row of a matrix."""
    pa = require_pyarrow()
    return pa.FixedSizeListArray.from_arrays(_arrow_array(matrix.reshape(-1)), matrix.shape[1])


def write_shard(path: Path, rows: ArchivedRows, facts: ShardFacts) -> None:
    """Write a shard atomically: after a crash the file is complete or absent."""
    require_pyarrow()
    from pyarrow import parquet

    # readers ignore this suffix, and the next start deletes such files
    unfinished_file = path.with_suffix(".open")
    # dictionaries and statistics of random ids, values and probabilities only take space
    parquet.write_table(
        shard_table(rows, facts),
        unfinished_file,
        compression="zstd",
        use_dictionary=["device"],
        write_statistics=False,
    )
    with unfinished_file.open("rb+") as file:
        os.fsync(file.fileno())
    unfinished_file.replace(path)


def read_facts(path: Path) -> ShardFacts:
    """Read the facts of a shard; InputError if the file is not a shard."""
    pa = require_pyarrow()
    from pyarrow import parquet

    try:
        metadata = parquet.read_schema(path).metadata or {}
        return msgspec.json.decode(metadata[_FACTS_KEY], type=ShardFacts)
    except (KeyError, ValueError, OSError, msgspec.DecodeError, pa.ArrowException) as error:
        raise InputError(f"{path} is not a shard of archived instances: {error}") from None


def read_shard(path: Path) -> ArchivedRows:
    """Read the instances of a shard; InputError if the file is not a shard."""
    pa = require_pyarrow()
    from pyarrow import parquet

    facts = read_facts(path)
    try:
        table = parquet.read_table(path).combine_chunks()
        return _rows_from_table(table, facts)
    except (KeyError, ValueError, OSError, pa.ArrowException) as error:
        raise InputError(f"{path} is not a complete shard: {error}") from None


def find_instances(files: Iterable[Path], ids: Collection[str]) -> dict[str, tuple[Path, int]]:
    """Find the first file with each instance, and the position of the instance in that file.

    Damaged files are skipped.
    """
    pa = require_pyarrow()
    from pyarrow import compute, parquet

    location_of: dict[str, tuple[Path, int]] = {}
    request_ids = sorted({bytes.fromhex(instance_id[: 2 * _ID_BYTES]) for instance_id in ids})
    value_set = pa.array(request_ids, pa.binary(_ID_BYTES))
    for file in files:
        try:
            table = parquet.read_table(file, columns=["id", "row"])
        except (OSError, ValueError, pa.ArrowException):
            continue
        positions = compute.indices_nonzero(compute.is_in(table["id"], value_set=value_set))
        requested_rows = table.take(positions).to_pylist()
        for position, row in zip(positions.to_pylist(), requested_rows, strict=True):
            instance_id = f"{row['id'].hex()}-{row['row']}"
            if instance_id in ids:
                location_of.setdefault(instance_id, (file, position))
        if len(location_of) == len(ids):
            break
    return location_of


def _rows_from_table(table: Any, facts: ShardFacts) -> ArchivedRows:
    """Read the Arrow table that :func:`shard_table` makes."""

    def column(name: str) -> NDArray[Any]:
        return np.asarray(table[name].to_numpy(zero_copy_only=False))

    request_ids = b"".join(table["id"].to_pylist())
    return ArchivedRows(
        request_id=np.frombuffer(request_ids, np.uint8).reshape(-1, _ID_BYTES),
        request_row=column("row"),
        device=column("device").astype(np.str_),
        time=column("time"),
        X=_matrix_from_lists(table["x"], len(facts.inputs)),
        cloud_label=column("cloud_label"),
        probabilities=_matrix_from_lists(table["probabilities"], len(facts.classes)),
        device_label=column("device_label"),
        confidence=column("confidence"),
        sent_probability=column("sent_chance"),
        stored_probability=column("stored_chance"),
        late=column("late"),
    )


def _matrix_from_lists(lists: Any, width: int) -> NDArray[Any]:
    """Matrix with a row for each list of an Arrow column."""
    values = lists.combine_chunks().flatten().to_numpy(zero_copy_only=False)
    return np.asarray(values).reshape(-1, width)


def require_pyarrow() -> Any:
    """Import pyarrow; InputError names the extra to install if it is missing."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ModuleNotFoundError as error:
        raise not_installed(error, "parquet") from None
    return pyarrow
