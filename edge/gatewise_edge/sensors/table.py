"""Read instances from tables, arrays, JSON values and mappings, with columns matched by name.

A device needs no pandas to read a table, and pyarrow only for a Parquet file. If a bundle has
encoders, the names are those of raw columns, and rows are lists of cells that the device encodes.
Otherwise the names are those of features, and rows are arrays of numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from gatewise.columns.cells import is_missing, read_number
from gatewise.columns.csv_file import csv_rows
from gatewise.columns.encoders import RowEncoder
from gatewise.errors import InputError, one_line

Values = NDArray[np.float64]


@dataclass(frozen=True)
class TableRows:
    """Rows of a CSV or Parquet file.

    Attributes
    ----------
    rows : ndarray of float64, shape (n, n_features), or list of list
        Features or, for an encoder, cells: texts of a CSV file or typed values of a Parquet file.
    line_numbers : list of int
        Line number of each row in a CSV file, or row number from 1 in a Parquet file.
    kept_cells : list of dict
        Cells of the columns `keep`, by row.
    ignored_columns : tuple of str
        Columns that are neither features nor kept.
    absent_columns : tuple of str
        Features without a column; their values are missing in all rows.
    row_errors : dict of int to InputError
        Error of the first invalid cell in each row that has one, by row.
    """

    rows: Values | list[list[Any]]
    line_numbers: list[int]
    kept_cells: list[dict[str, Any]]
    ignored_columns: tuple[str, ...]
    absent_columns: tuple[str, ...]
    row_errors: dict[int, InputError] = field(default_factory=dict)


def read_table(
    path: str | Path,
    column_names: Sequence[str],
    encoder: RowEncoder | None = None,
    *,
    kept_columns: Sequence[str] = (),
    allow_absent: bool = False,
) -> TableRows:
    """Read the columns `column_names` and `kept_columns` of a CSV or Parquet file.

    With an encoder, `column_names` are raw columns. Otherwise rows have shape (n,
    len(column_names)), and an empty cell is NaN. All rows are checked before the function returns.
    Raises InputError if the file is missing, empty or not readable, if a column is missing or
    appears twice, if a row is not as long as the header, or if a cell is invalid in its column.
    With `allow_absent` some of `column_names`, but not all, may be missing, and invalid cells are
    returned in `row_errors`.
    """
    # Find the columns.
    is_parquet = Path(path).suffix.lower() == ".parquet"
    file_rows = _parquet_rows(path) if is_parquet else csv_rows(path)
    _, header = next(file_rows)
    duplicate_names = [name for name in [*column_names, *kept_columns] if header.count(name) > 1]
    if duplicate_names:
        raise InputError(f"{path} has the column {duplicate_names[0]!r} twice")
    absent_columns = tuple(name for name in column_names if name not in header)
    n_absent = len(absent_columns)
    if absent_columns and (not allow_absent or n_absent == len(column_names)):
        more_note = f" (and {n_absent - 1} more)" if n_absent > 1 else ""
        raise InputError(
            f"{path} has no column {absent_columns[0]!r}{more_note}, which the bundle needs"
        )
    unknown_names = [name for name in kept_columns if name not in header]
    if unknown_names:
        raise InputError(f"--keep {','.join(unknown_names)}: {path} has no such column")
    positions = [header.index(name) if name in header else -1 for name in column_names]
    kept_positions = {name: header.index(name) for name in kept_columns}
    # Read the rows.
    line_numbers = []
    cells = []
    kept_cells = []
    for line_number, row in file_rows:
        line_numbers.append(line_number)
        cells.append([row[position] if position >= 0 else "" for position in positions])
        kept_cells.append({name: row[position] for name, position in kept_positions.items()})
    if not cells:
        raise InputError(f"{path} has a header and no rows")
    # Check the cells.
    ignored_columns = tuple(
        name for name in header if name not in column_names and name not in kept_columns
    )
    if encoder is not None:
        rows: Values | list[list[Any]] = cells
        cell_errors = [(i, str(error)) for i, error in encoder.invalid_cells(cells)]
    else:
        rows, cell_errors = _parse_numbers(cells, column_names)
    noun = "row" if is_parquet else "line"
    # Later entries replace earlier ones, so that each row keeps the error of its first cell.
    row_errors = {
        i: InputError(f"{path}, {noun} {line_numbers[i]}: {problem}")
        for i, problem in reversed(cell_errors)
    }
    if row_errors and not allow_absent:
        raise row_errors[min(row_errors)]
    return TableRows(rows, line_numbers, kept_cells, ignored_columns, absent_columns, row_errors)


def _parquet_rows(path: str | Path) -> Iterator[tuple[int, list[Any]]]:
    """Yield the header of a Parquet file as row 0, then each row with its number.

    Columns of lists and records are left out, because a cell cannot be one.
    """
    try:
        from pyarrow import ArrowException, parquet, types
    except ImportError:
        raise InputError(
            f"{path}: Parquet files need pyarrow: pip install 'gatewise[parquet]'"
        ) from None
    try:
        table = parquet.read_table(path)
        table = table.select(
            [column.name for column in table.schema if not types.is_nested(column.type)]
        )
        columns = [column.to_pylist() for column in table.columns]
    except FileNotFoundError:
        raise InputError(f"{path} does not exist") from None
    except (OSError, ValueError, ArrowException) as error:
        raise InputError(f"{path} cannot be read: {one_line(error)}") from error
    yield 0, [name.strip() for name in table.column_names]
    for row_number, row in enumerate(zip(*columns, strict=True), start=1):
        yield row_number, list(row)


def _parse_numbers(
    cells: Sequence[list[Any]], names: Sequence[str]
) -> tuple[Values, list[tuple[int, str]]]:
    """Convert cells to numbers, and missing and invalid ones to NaN.

    Also returns the row and the error of each invalid cell.
    """
    numbers: list[list[float]] = []
    cell_errors = []
    for i, row in enumerate(cells):
        numbers.append([])
        for cell, name in zip(row, names, strict=True):
            number = np.nan
            try:
                if isinstance(cell, bool):
                    number = float(cell)
                elif not is_missing(cell):
                    number = read_number(cell)
            except InputError:
                cell_errors.append((i, f"{str(cell)[:40]!r} in column {name!r} is not a number"))
            numbers[i].append(number)
    return np.array(numbers, np.float64), cell_errors


def read_arrays(
    path: str | Path, names: Sequence[str], window_shape: tuple[int, ...] | None = None
) -> NDArray[Any]:
    """Read instances from an .npy file, or from the array ``X`` of an .npz file.

    They are flattened to rows of float64. With a `window_shape` they must have this shape, and are
    neither flattened nor converted. Raises InputError if the file cannot be read, or if its
    instances have another number of values or another shape.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            content = np.load(file, allow_pickle=False)
            array = content if isinstance(content, np.ndarray) else content["X"]
    except FileNotFoundError:
        raise InputError(f"{path} does not exist") from None
    except KeyError:
        raise InputError(f"{path} has no array 'X'") from None
    except (ValueError, OSError, EOFError, BadZipFile) as error:
        raise InputError(f"{path} is not a readable file of arrays: {error}") from None
    # One instance has as many values as there are names, in any shape. Booleans, integers, unsigned
    # integers and floats are numbers.
    is_shape_valid = (
        array[:1].size == len(names) if window_shape is None else array.shape[1:] == window_shape
    )
    if array.ndim < 2 or not is_shape_valid or array.dtype.kind not in "biuf":
        expected_form = f"{len(names)} values" if window_shape is None else f"shape {window_shape}"
        raise InputError(
            f"{path} has {array.dtype} of shape {array.shape}; an instance must have "
            f"{expected_form}"
        )
    if window_shape is not None:
        return array
    rows: Values = array.reshape(len(array), -1).astype(np.float64)
    return rows


def read_row(instance: object, names: Sequence[str]) -> Values:
    """Read one instance: a dict by feature name, or a list in the bundle's order.

    A dict may lack some features, but not all; these are missing values, like None and NaN. Other
    keys are ignored. Nested lists are an array in row-major order. Raises InputError for anything
    else, or if a value is not a number.

    >>> read_row({"b": 2, "x": 1}, ["a", "b"]).tolist()
    [nan, 2.0]
    """
    if isinstance(instance, dict):
        instance = order_cells(instance, names)
    while (
        isinstance(instance, list)
        and len(instance)
        and all(isinstance(element, list) for element in instance)
    ):
        instance = [value for row in instance for value in row]
    if not isinstance(instance, list) or len(instance) != len(names):
        raise InputError(
            f"an instance is an object by feature name, or an array of {len(names)} numbers"
        )
    return np.array([*map(_json_number, instance, names)], np.float64)


def order_cells(row: Mapping[str, Any], names: Sequence[str], noun: str = "features") -> list[Any]:
    """List the values of a mapping in the order of `names`, with None for absent ones.

    Raises InputError if all are absent; `noun` is the word for the names in its message.
    """
    if not any(name in row for name in names):
        raise InputError(f"the instance has none of the {noun}, such as {names[0]!r}")
    return [row.get(name) for name in names]


def _json_number(value: object, name: str) -> float:
    if value is None:
        return np.nan
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError(f"feature {name!r} is {str(value)[:40]!r}, not a number")
    try:
        return float(value)
    except OverflowError:
        return np.inf
