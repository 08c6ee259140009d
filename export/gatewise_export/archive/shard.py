"""Shards, which are Parquet files of answered instances with their probabilities.

The probability that an instance is in the archive is known. It is the product of `sent_chance`, the
probability that the device sent it, and `stored_chance`, the probability that the archive stored
it. `sent_chance` is 1 for an offload, and the sampler's probability for an audit. An instance
represents as many instances as the inverse of the product.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final, Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from gatewise.errors import InputError, not_installed

#: Key of the facts in a shard's metadata.
_FACTS_KEY: Final = b"gatewise"
_ID_BYTES: Final = 16
#: Smallest `sent_chance` that is accepted from a device, because it limits the weight.
MIN_SENT_CHANCE: Final = 1e-3


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
    stored_chance : float
        Probability with which the archive stored each instance.
    """

    model: str
    version: str
    classes: tuple[str | int | float | bool, ...]
    inputs: tuple[str, ...]
    shape: tuple[int, ...]
    accuracy: float | None = None
    stored_chance: float = 1.0


@dataclass(frozen=True, eq=False)
class ArchivedRows:
    """The n archived instances of one model and version.

    Attributes
    ----------
    ids : ndarray of str, shape (n,)
        Request id in hexadecimal digits, a hyphen, and the index of the row in the request.
    device : ndarray of str, shape (n,)
    time : ndarray of float64, shape (n,)
        Time in Unix seconds at which the device had the instance.
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
    sent_chance, stored_chance : ndarray of float64, shape (n,)
        Probabilities that the device sent it, and that the archive stored it.
    late : ndarray of bool, shape (n,)
        Whether the device sent it later, because it had no connection.
    """

    ids: NDArray[np.str_]
    device: NDArray[np.str_]
    time: NDArray[np.float64]
    X: NDArray[Any]
    cloud_label: NDArray[np.int32]
    probabilities: NDArray[np.float32]
    device_label: NDArray[np.int32]
    confidence: NDArray[np.float32]
    sent_chance: NDArray[np.float64]
    stored_chance: NDArray[np.float64]
    late: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def answers(self) -> NDArray[np.int32]:
        """Class index that the system answered, shape (n,)."""
        return np.where(self.device_label >= 0, self.device_label, self.cloud_label)

    @property
    def weights(self) -> NDArray[np.float64]:
        """Number of instances that each one represents, ``1 / (sent_chance * stored_chance)``."""
        return 1.0 / (np.maximum(self.sent_chance, MIN_SENT_CHANCE) * self.stored_chance)

    def take(self, selection: NDArray[Any]) -> Self:
        """Select instances by a mask or by indices."""
        return type(self)(*(getattr(self, f.name)[selection] for f in fields(self)))

    @classmethod
    def concatenate(cls, parts: Sequence[Self]) -> Self:
        """Concatenate one or more parts."""
        columns = ([getattr(part, f.name) for part in parts] for f in fields(cls))
        return cls(*(np.concatenate(column) for column in columns))


def shard_table(rows: ArchivedRows, facts: ShardFacts) -> Any:
    """Make the Arrow table of a shard, with the facts in its metadata."""
    pa = require_pyarrow()
    raw_ids, positions = _split_ids(rows.ids)
    # Random ids do not compress, so that 16 bytes take half of the space of 32 digits.
    columns = {
        "id": pa.FixedSizeBinaryArray.from_buffers(
            pa.binary(_ID_BYTES), len(rows), [None, pa.py_buffer(raw_ids)]
        ),
        "row": pa.array(positions),
        "device": pa.array(rows.device).dictionary_encode(),
        "time": pa.array(rows.time),
        "x": _list_column(rows.X),
        "cloud_label": pa.array(rows.cloud_label),
        "probabilities": _list_column(rows.probabilities),
        "device_label": pa.array(rows.device_label),
        "confidence": pa.array(rows.confidence),
        "sent_chance": pa.array(rows.sent_chance),
        "stored_chance": pa.array(rows.stored_chance),
        "late": pa.array(rows.late),
    }
    return pa.table(columns, metadata={_FACTS_KEY: msgspec.json.encode(facts)})


def _list_column(matrix: NDArray[Any]) -> Any:
    """Arrow column with a list of fixed size for each row of a matrix."""
    pa = require_pyarrow()
    return pa.FixedSizeListArray.from_arrays(pa.array(matrix.reshape(-1)), matrix.shape[1])


def write_shard(path: Path, rows: ArchivedRows, facts: ShardFacts) -> None:
    """Write a shard atomically: after a crash the file is complete or absent."""
    from pyarrow import parquet

    # readers ignore this suffix, and the next start deletes such files
    unfinished = path.with_suffix(".open")
    # dictionaries and statistics of random ids, values and probabilities only take space
    parquet.write_table(
        shard_table(rows, facts),
        unfinished,
        compression="zstd",
        use_dictionary=["device"],
        write_statistics=False,
    )
    with unfinished.open("rb+") as file:
        os.fsync(file.fileno())
    unfinished.replace(path)


def read_facts(path: Path) -> ShardFacts:
    """Read the facts of a shard; InputError if the file is not a shard."""
    pa = require_pyarrow()
    from pyarrow import parquet

    try:
        metadata = parquet.read_schema(path).metadata or {}
        return msgspec.json.decode(metadata[_FACTS_KEY], type=ShardFacts)
    except (KeyError, ValueError, OSError, msgspec.DecodeError, pa.ArrowException) as error:
        raise InputError(f"{path} is not a shard of kept instances: {error}") from None


def read_shard(path: Path) -> ArchivedRows:
    """Read the instances of a shard; InputError if the file is not a shard."""
    pa = require_pyarrow()
    from pyarrow import parquet

    facts = read_facts(path)
    try:
        table = parquet.read_table(path).combine_chunks()
        return _rows_of(table, facts)
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
        requested_rows = table.take(positions)
        requests = zip(
            requested_rows["id"].to_pylist(),
            ([row] for row in requested_rows["row"].to_pylist()),
            strict=True,
        )
        for position, instance_id in zip(
            positions.to_pylist(), instance_ids(requests), strict=True
        ):
            if str(instance_id) in ids:
                location_of.setdefault(str(instance_id), (file, position))
        if len(location_of) == len(ids):
            break
    return location_of


def _rows_of(table: Any, facts: ShardFacts) -> ArchivedRows:
    names = [f.name for f in fields(ArchivedRows) if f.name not in ("ids", "X", "probabilities")]
    columns = {name: table[name].to_numpy(zero_copy_only=False) for name in names}
    columns["device"] = columns["device"].astype(np.str_)
    requests = table["id"].to_pylist()
    positions = [(row,) for row in table["row"].to_pylist()]
    return ArchivedRows(
        ids=instance_ids(zip(requests, positions, strict=True)),
        X=_matrix(table["x"], len(facts.inputs)),
        probabilities=_matrix(table["probabilities"], len(facts.classes)),
        **columns,
    )


def _matrix(column: Any, width: int) -> NDArray[Any]:
    values = column.combine_chunks().flatten().to_numpy(zero_copy_only=False)
    return np.asarray(values).reshape(-1, width)


def _split_ids(ids: NDArray[np.str_]) -> tuple[bytes, NDArray[np.uint16]]:
    """Split ids into the bytes of the request ids and the row of each instance."""
    n_digits = 2 * _ID_BYTES
    digits = ids.astype(f"U{n_digits}").astype(f"S{n_digits}").tobytes()
    positions = [int(text[n_digits + 1 :]) for text in ids.tolist()]
    return bytes.fromhex(digits.decode()), np.array(positions, np.uint16)


def instance_ids(requests: Iterable[tuple[bytes, Sequence[int]]]) -> NDArray[np.str_]:
    """Format the ids of instances, given the request ids with the rows of each request."""
    ids: list[str] = []
    for request_id, rows in requests:
        digits = request_id.hex()
        ids += [f"{digits}-{row}" for row in rows]
    return np.array(ids, np.str_)


def rows_by_model(paths: Iterable[Path]) -> dict[tuple[str, str], tuple[ShardFacts, ArchivedRows]]:
    """Read shards, and concatenate the instances of each model and version.

    The facts of a version are from its last shard.
    """
    rows_of: dict[tuple[str, str], list[ArchivedRows]] = {}
    facts_of: dict[tuple[str, str], ShardFacts] = {}
    for path in paths:
        facts = read_facts(path)
        key = facts.model, facts.version
        facts_of[key] = facts
        rows_of.setdefault(key, []).append(read_shard(path))
    return {key: (facts_of[key], ArchivedRows.concatenate(rows)) for key, rows in rows_of.items()}


def require_pyarrow() -> Any:
    """Import pyarrow; InputError names the extra to install if it is missing."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ModuleNotFoundError as error:
        raise not_installed(error, "parquet") from None
    return pyarrow
