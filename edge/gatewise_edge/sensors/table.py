"""Instances matched by name with a bundle's columns: CSV files, JSON lines, mappings and rows.

Standard library and numpy alone: a device needs no pandas to read a table. Where a bundle has
encoders, its columns are raw ones, and rows are lists of cells that the device encodes; else they
are its features, and rows are arrays of numbers.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from gatewise.columns.cells import MISSING_WORDS
from gatewise.columns.csv_file import csv_rows
from gatewise.columns.encoders import RowEncoder
from gatewise.errors import InputError

__all__ = [
    "TableRows",
    "parse_json_line",
    "read_arrays",
    "read_cells",
    "read_csv",
    "read_json_line",
    "read_row",
    "read_table",
]

Values = NDArray[np.float64]


@dataclass(frozen=True)
class TableRows:
    """Rows of a CSV file for a device.

    `rows` are arrays of features or, for an encoder, lists of cells; `kept` has the cells of the
    columns that are passed on, row by row. `ignored` columns are no features, `absent` ones are:
    their values are missing in all rows.
    """

    rows: Values | list[list[str]]
    kept: list[dict[str, str]]
    ignored: tuple[str, ...]
    absent: tuple[str, ...]


def read_table(
    path: str | Path,
    names: Sequence[str],
    encoder: RowEncoder | None = None,
    *,
    keep: Sequence[str] = (),
) -> TableRows:
    """Read instances of which not every column need be there, and the columns `keep` beside them.

    As :func:`read_csv` or, with an encoder, :func:`read_cells`; InputError if no column is a
    feature, or one to be kept is not there.
    """
    found = _columns(path, names, keep=keep, partial=True)
    rows = _values(path, found, names) if encoder is None else _cells(path, found, encoder)
    kept = [dict(zip(keep, cells, strict=True)) for cells in found.kept]
    others = tuple(name for name in found.others if name not in keep)
    return TableRows(rows, kept, others, found.absent)


def read_csv(path: str | Path, names: Sequence[str]) -> tuple[Values, tuple[str, ...]]:
    """Read the columns `names` of a CSV file with a header, and list the columns ignored.

    An empty cell, ``?``, ``NA`` or ``NaN`` is a missing value. All of the file is checked before
    anything is returned. Raises InputError if it is missing, empty or no text, a column is missing
    or double, a row has another length than the header, or a cell is not a number.
    """
    found = _columns(path, names)
    return _values(path, found, names), found.others


def read_cells(path: str | Path, encoder: RowEncoder) -> tuple[list[list[str]], tuple[str, ...]]:
    """Read the raw columns of an encoder, as :func:`read_csv`; every cell must be of its kind."""
    found = _columns(path, encoder.names)
    return _cells(path, found, encoder), found.others


class _Columns(NamedTuple):
    rows: list[tuple[int, list[str]]]  # with their lines; a cell of an absent column is empty
    kept: list[list[str]]
    others: tuple[str, ...]
    absent: tuple[str, ...]


def _columns(
    path: str | Path, names: Sequence[str], *, keep: Sequence[str] = (), partial: bool = False
) -> _Columns:
    """Cells of some columns and of those to be kept, row by row, and the names of the others."""
    lines = csv_rows(path)
    _, header = next(lines)
    doubles = [name for name in [*names, *keep] if header.count(name) > 1]
    if doubles:
        raise InputError(f"{path} has the column {doubles[0]!r} twice")
    absent = [name for name in names if name not in header]
    if absent and (not partial or len(absent) == len(names)):
        more = f" (and {len(absent) - 1} more)" if len(absent) > 1 else ""
        raise InputError(f"{path} has no column {absent[0]!r}{more}, which the bundle needs")
    strange = [name for name in keep if name not in header]
    if strange:
        raise InputError(f"--keep {','.join(strange)}: {path} has no such column")
    places = [header.index(name) if name in header else -1 for name in names]
    others = [header.index(name) for name in keep]
    rows, kept = [], []
    for line, row in lines:
        rows.append((line, [row[k] if k >= 0 else "" for k in places]))
        kept.append([row[k] for k in others])
    if not rows:
        raise InputError(f"{path} has a header and no rows")
    return _Columns(rows, kept, tuple(name for name in header if name not in names), tuple(absent))


def _values(path: str | Path, found: _Columns, names: Sequence[str]) -> Values:
    values = [
        [_number(f"{path}, line {line}", text, name) for text, name in zip(row, names, strict=True)]
        for line, row in found.rows
    ]
    return np.array(values, np.float64)


def _cells(path: str | Path, found: _Columns, encoder: RowEncoder) -> list[list[str]]:
    """Raw cells; every one must be of its column's kind."""
    known: list[set[str]] = [set() for _ in encoder.names]
    for line, row in found.rows:
        for c, cell in enumerate(row):
            if cell not in known[c]:
                try:
                    encoder.cell(c, cell)
                except InputError as error:
                    raise InputError(f"{path}, line {line}: {error}") from None
                known[c].add(cell)
    return [row for _, row in found.rows]


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
    return read_row(parse_json_line(line), names, encoder)


def parse_json_line(line: str) -> Any:
    """Parse one JSON line; raises InputError if it is none."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InputError(f"not a JSON line: {error}") from None


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
    given: object,
    names: Sequence[str],
    encoder: RowEncoder | None = None,
    *,
    partial: bool = False,
) -> Values | list[Any]:
    """Read one instance from a dict or a list, as :func:`read_json_line` from JSON.

    Nested lists are an array's, in row-major order.
    With `partial` an object may lack features, which are missing values, but not all of them.
    """
    if isinstance(given, dict) and partial:
        if not any(name in given for name in names):
            raise InputError(f"the instance has none of the features, as {names[0]!r}")
        given = {name: given.get(name) for name in names}
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
