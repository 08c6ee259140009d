"""Instances matched by name with a bundle's columns: CSV files, JSON lines, mappings and rows.

Standard library and numpy alone: a device needs no pandas to read a table. Where a bundle has
encoders, its columns are raw ones, and rows are lists of cells that the device encodes; else they
are its features, and rows are arrays of numbers.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from gatewise.columns.cells import MISSING_WORDS
from gatewise.columns.csv_file import csv_rows
from gatewise.columns.encoders import RowEncoder
from gatewise.errors import InputError

__all__ = ["read_arrays", "read_cells", "read_csv", "read_json_line", "read_row"]

Values = NDArray[np.float64]


def read_csv(path: str | Path, names: Sequence[str]) -> tuple[Values, tuple[str, ...]]:
    """Read the columns `names` of a CSV file with a header, and list the columns ignored.

    An empty cell, ``?``, ``NA`` or ``NaN`` is a missing value. All of the file is checked before
    anything is returned. Raises InputError if it is missing, empty or no text, a column is missing
    or double, a row has another length than the header, or a cell is not a number.
    """
    rows, ignored = _columns(path, names)
    values = [
        [_number(f"{path}, line {line}", text, name) for text, name in zip(row, names, strict=True)]
        for line, row in rows
    ]
    return np.array(values, np.float64), ignored


def read_cells(path: str | Path, encoder: RowEncoder) -> tuple[list[list[str]], tuple[str, ...]]:
    """Read the raw columns of an encoder, as :func:`read_csv`; every cell must be of its kind."""
    rows, ignored = _columns(path, encoder.names)
    known: list[set[str]] = [set() for _ in encoder.names]
    for line, row in rows:
        for c, cell in enumerate(row):
            if cell not in known[c]:
                try:
                    encoder.cell(c, cell)
                except InputError as error:
                    raise InputError(f"{path}, line {line}: {error}") from None
                known[c].add(cell)
    return [row for _, row in rows], ignored


def _columns(
    path: str | Path, names: Sequence[str]
) -> tuple[list[tuple[int, list[str]]], tuple[str, ...]]:
    """Cells of some columns, row by row with their lines, and the names of the others."""
    lines = csv_rows(path)
    _, header = next(lines)
    doubles = [name for name in names if header.count(name) > 1]
    if doubles:
        raise InputError(f"{path} has the column {doubles[0]!r} twice")
    missing = [name for name in names if name not in header]
    if missing:
        more = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
        raise InputError(f"{path} has no column {missing[0]!r}{more}, which the bundle needs")
    places = [header.index(name) for name in names]
    rows = [(line, [row[k] for k in places]) for line, row in lines]
    if not rows:
        raise InputError(f"{path} has a header and no rows")
    return rows, tuple(name for name in header if name not in names)


def _number(where: str, text: str, name: str) -> float:
    try:
        # float() would also take Python's 1_000.
        return np.nan if text.lower() in MISSING_WORDS else float(text.replace("_", "?"))
    except ValueError:
        raise InputError(f"{where}: {text[:40]!r} in column {name!r} is not a number") from None


def read_json_line(
    line: str, names: Sequence[str], encoder: RowEncoder | None = None
) -> Values | list[Any]:
    """Read one instance: an object by feature name, or an array in the bundle's order.

    With an encoder it has raw columns, and its cells are returned as they are.

    ``null`` and NaN are missing values; names that are no features are ignored. Raises InputError
    if it is neither, a feature is left out, or a value is not a number.

    >>> read_json_line('{"b": 2, "a": null}', ["a", "b"]).tolist()
    [nan, 2.0]
    """
    try:
        document = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InputError(f"not a JSON line: {error}") from None
    return read_row(document, names, encoder)


def read_arrays(path: str | Path, names: Sequence[str]) -> Values:
    """Read instances from an .npy file, or from the array ``X`` of an .npz file, flat.

    Raises InputError if it cannot be read, or its instances have another number of values.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            loaded = np.load(file, allow_pickle=False)
            array = loaded if isinstance(loaded, np.ndarray) else loaded["X"]
    except FileNotFoundError:
        raise InputError(f"{path} does not exist") from None
    except KeyError:
        raise InputError(f"{path} has no array 'X'") from None
    except (ValueError, OSError, EOFError, BadZipFile) as error:
        raise InputError(f"{path} is not a readable file of arrays: {error}") from None
    if array.ndim < 2 or array[:1].size != len(names) or array.dtype.kind not in "biuf":
        raise InputError(
            f"{path} holds {array.dtype} of shape {array.shape}; an instance has {len(names)} "
            "values"
        )
    flat: Values = array.reshape(len(array), -1).astype(np.float64)
    return flat


def read_row(
    given: object, names: Sequence[str], encoder: RowEncoder | None = None
) -> Values | list[Any]:
    """Read one instance from a dict or a list, as :func:`read_json_line` from JSON.

    Nested lists are an array's, in row-major order.
    """
    if encoder is not None:
        return encoder.cells(given)  # type: ignore[arg-type]  # it checks
    if isinstance(given, dict):
        missing = [name for name in names if name not in given]
        if missing:
            raise InputError(f"the instance has no feature {missing[0]!r}")
        given = [given[name] for name in names]
    while isinstance(given, list) and len(given) and all(isinstance(v, list) for v in given):
        given = [value for part in given for value in part]  # an array, row by row
    if not isinstance(given, list) or len(given) != len(names):
        raise InputError(
            f"an instance is an object by feature name, or an array of {len(names)} numbers"
        )
    return np.array(list(_numbers_of(given, names)), np.float64)


def _numbers_of(values: list[Any], names: Sequence[str]) -> Iterator[float]:
    for name, value in zip(names, values, strict=True):
        if value is None:
            yield np.nan
        elif isinstance(value, int | float) and not isinstance(value, bool):
            try:
                yield float(value)
            except OverflowError:
                yield np.inf
        else:
            raise InputError(f"feature {name!r} is {str(value)[:40]!r}, not a number")
