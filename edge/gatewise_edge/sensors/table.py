"""Read instances from CSV and Parquet files by the names of the columns.

Reading a CSV file needs only the standard library and numpy, and a Parquet file also pyarrow. If a
bundle has encoders, the names are those of raw columns, and rows are lists of cells that the device
encodes. Otherwise the names are those of features, and rows are arrays of numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

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
        Cells of the kept columns, by name, for each row.
    ignored_columns : tuple of str
        Columns that are neither features nor kept.
    absent_columns : tuple of str
        Features without a column; their values are missing in all rows.
    row_errors : dict of int to InputError
        Maps the index of a row to the error of its first invalid cell.
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
    allow_incomplete: bool = False,
) -> TableRows:
    """Read the columns `column_names` and `kept_columns` of a CSV or Parquet file.

    With an encoder, `column_names` are raw columns, and rows are lists of cells. Without one, they
    are features, and rows are numbers of shape (n, len(column_names)); an empty cell is NaN.

    All rows are checked before the function returns. Raises InputError if the file is missing,
    empty or not readable, if a column is missing or appears twice, if a row is not as long as the
    header, or if a cell is invalid in its column. With `allow_incomplete` some of `column_names`,
    but not all, may be missing, and the errors of invalid cells are returned in `row_errors`.
    """
    is_parquet = Path(path).suffix.lower() == ".parquet"
    file_rows = _parquet_rows(path) if is_parquet else csv_rows(path)
    _, names = next(file_rows)
    position_of_name = _find_columns(path, names, column_names, kept_columns)
    absent_columns = tuple(name for name in column_names if name not in position_of_name)
    n_absent = len(absent_columns)
    if n_absent and (not allow_incomplete or n_absent == len(column_names)):
        more_note = f" (and {n_absent - 1} more)" if n_absent > 1 else ""
        raise InputError(
            f"{path} has no column {absent_columns[0]!r}{more_note}, which the bundle needs"
        )
    positions = [position_of_name.get(name, -1) for name in column_names]
    line_numbers = []
    cells = []
    kept_cells = []
    for line_number, row in file_rows:
        line_numbers.append(line_number)
        cells.append([row[position] if position >= 0 else "" for position in positions])
        kept_cells.append({name: row[position_of_name[name]] for name in kept_columns})
    if not cells:
        raise InputError(f"{path} has a header and no rows")
    if encoder is not None:
        rows: Values | list[list[Any]] = cells
        cell_errors = [(index, str(error)) for index, error in encoder.invalid_cells(cells)]
    else:
        rows, cell_errors = _parse_numbers(cells, column_names)
    line_word = "row" if is_parquet else "line"
    # Reverse the order: the last entry of a row, for its first invalid cell, is the one that stays.
    row_errors = {
        row_index: InputError(f"{path}, {line_word} {line_numbers[row_index]}: {problem}")
        for row_index, problem in reversed(cell_errors)
    }
    if row_errors and not allow_incomplete:
        raise row_errors[min(row_errors)]
    return TableRows(
        rows=rows,
        line_numbers=line_numbers,
        kept_cells=kept_cells,
        ignored_columns=tuple(name for name in names if name not in position_of_name),
        absent_columns=absent_columns,
        row_errors=row_errors,
    )


def _find_columns(
    path: str | Path, names: list[str], column_names: Sequence[str], kept_columns: Sequence[str]
) -> dict[str, int]:
    """Find the positions of columns among the `names` of a header.

    Raises InputError if a column appears twice, or if a kept column is missing.
    """
    needed_names = [*column_names, *kept_columns]
    duplicate_names = [name for name in needed_names if names.count(name) > 1]
    if duplicate_names:
        raise InputError(f"{path} has the column {duplicate_names[0]!r} twice: rename one")
    unknown_names = [name for name in kept_columns if name not in names]
    if unknown_names:
        raise InputError(f"--keep {unknown_names[0]}: {path} has no such column")
    return {name: names.index(name) for name in needed_names if name in names}


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
    cells: Sequence[list[Any]], feature_names: Sequence[str]
) -> tuple[Values, list[tuple[int, str]]]:
    """Convert cells to numbers, and missing and invalid ones to NaN.

    Also returns the index of the row and the error of each invalid cell.
    """
    numbers: list[list[float]] = []
    cell_errors = []
    for row_index, row in enumerate(cells):
        numbers.append([])
        for cell, name in zip(row, feature_names, strict=True):
            number = np.nan
            try:
                if isinstance(cell, bool):
                    number = float(cell)
                elif not is_missing(cell):
                    number = read_number(cell)
            except InputError:
                problem = f"{str(cell)[:40]!r} in column {name!r} is not a number"
                cell_errors.append((row_index, problem))
            numbers[row_index].append(number)
    return np.array(numbers, np.float64), cell_errors
