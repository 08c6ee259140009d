"""Instances matched by name with a bundle's features: CSV files, JSON lines, mappings and rows.

Standard library and numpy alone: a device needs no pandas to read a table.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gatewise.errors import InputError

__all__ = ["read_csv", "read_json_line", "read_row"]

Values = NDArray[np.float64]

_MISSING = frozenset({"", "nan", "na", "n/a", "null", "none", "?"})


def read_csv(path: str | Path, names: Sequence[str]) -> tuple[Values, tuple[str, ...]]:
    """Read the columns `names` of a CSV file with a header, and list the columns ignored.

    An empty cell, ``?``, ``NA`` or ``NaN`` is a missing value. All of the file is checked before
    anything is returned. Raises InputError if it is missing, empty or no text, a column is missing
    or double, a row has another length than the header, or a cell is not a number.
    """
    path = Path(path)
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file, skipinitialspace=True, strict=True)
            header = next(reader, None)
            if header is None:
                raise InputError(f"{path} is empty")
            columns = _columns(path, [cell.strip() for cell in header], names)
            rows = [
                _numbers(f"{path}, line {reader.line_num}", row, header, columns)
                for row in reader
                if row
            ]
    except FileNotFoundError:
        raise InputError(f"{path} does not exist") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path} is not a CSV file in UTF-8: {error}") from None
    if not rows:
        raise InputError(f"{path} has a header and no rows")
    ignored = tuple(cell.strip() for cell in header if cell.strip() not in names)
    return np.array(rows, np.float64), ignored


def _columns(path: Path, header: list[str], names: Sequence[str]) -> list[int]:
    doubles = [name for name in names if header.count(name) > 1]
    if doubles:
        raise InputError(f"{path} has the column {doubles[0]!r} twice")
    missing = [name for name in names if name not in header]
    if missing:
        more = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
        raise InputError(f"{path} has no column {missing[0]!r}{more}, which the bundle needs")
    return [header.index(name) for name in names]


def _numbers(where: str, row: list[str], header: list[str], columns: Iterable[int]) -> list[float]:
    if len(row) != len(header):
        raise InputError(f"{where}: {len(row)} cells under {len(header)} columns")
    values = []
    for k in columns:
        text = row[k].strip()
        try:
            # float() would also take Python's 1_000.
            values.append(np.nan if text.lower() in _MISSING else float(text.replace("_", "?")))
        except ValueError:
            raise InputError(
                f"{where}: {text[:40]!r} in column {header[k].strip()!r} is not a number"
            ) from None
    return values


def read_json_line(line: str, names: Sequence[str]) -> Values:
    """Read one instance: an object by feature name, or an array in the bundle's order.

    ``null`` and NaN are missing values; names that are no features are ignored. Raises InputError
    if it is neither, a feature is left out, or a value is not a number.

    >>> read_json_line('{"b": 2, "a": null}', ["a", "b"]).tolist()
    [nan, 2.0]
    """
    try:
        document = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InputError(f"not a JSON line: {error}") from None
    return read_row(document, names)


def read_row(given: object, names: Sequence[str]) -> Values:
    """Read one instance from a dict or a list, as :func:`read_json_line` from JSON."""
    if isinstance(given, dict):
        missing = [name for name in names if name not in given]
        if missing:
            raise InputError(f"the instance has no feature {missing[0]!r}")
        given = [given[name] for name in names]
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
