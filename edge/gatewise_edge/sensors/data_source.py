"""Sources of rows for ``gatewise edge --data``: a file, JSON lines, or a Python function."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, repeat
from pathlib import Path
from typing import Any, Final

import numpy as np

from gatewise.columns.encoders import RowEncoder
from gatewise.console import note
from gatewise.documents import unique_json
from gatewise.errors import InputError
from gatewise.imports import import_object
from gatewise_edge.sensors.instance_source import (
    Instance,
    InstanceSource,
    Item,
    read_pieces,
    split_lines,
)
from gatewise_edge.sensors.sensors import Sensors
from gatewise_edge.sensors.table import read_arrays, read_row, read_table
from gatewise_edge.stop_request import Stop, Stopped

#: File name endings of tables.
TABLE_SUFFIXES: Final = (".csv", ".parquet")
#: Largest size of one JSON line in bytes.
_MAX_LINE_BYTES: Final = 2**20
#: Seconds before a function that failed is called again; doubled each time, up to a second.
_FIRST_PAUSE_SECONDS: Final = 0.01
_MAX_PAUSE_SECONDS: Final = 1.0
#: Largest number of column names in a note.
_MAX_NAMES: Final = 8


def open_source(
    data: str,
    names: Sequence[str],
    stop: Stop,
    encoder: RowEncoder | None = None,
    *,
    keep: Sequence[str] = (),
    window: tuple[int, ...] | None = None,
) -> InstanceSource:
    """Open the source that ``--data`` names. A request to stop ends the wait for an instance.

    `data` is ``-`` for JSON lines on standard input, ``name.csv`` or ``name.parquet`` for a table,
    ``name.npy`` or ``name.npz`` for arrays, or ``module:function`` for Python, whose module may be
    in the current folder. With an encoder, `names` are its raw columns, and rows have their cells.
    A feature that a row lacks is a missing value. The columns `keep` are copied to the answers. If
    the shape of a `window` is given, instances are arrays of this shape, from any source but a
    table. Raises InputError if `data` is anything else, or cannot be opened.
    """
    if window is not None and keep:
        raise InputError("--keep: windows have no further columns")
    reader = InstanceReader(names, encoder is not None, keep, window)
    if data == "-":
        return InstanceSource(json_lines(read_pieces(0, "standard input", stop), reader))
    suffix = Path(data).suffix.lower()
    if suffix in TABLE_SUFFIXES:
        return _from_table(data, reader, encoder)
    if suffix in (".npy", ".npz"):
        if encoder is not None:
            raise InputError(
                f"--data {data}: the bundle takes raw columns; give a .csv or .parquet file"
            )
        if keep:
            raise InputError(f"--keep: the arrays of --data {data} have no further columns")
        return InstanceSource([(row, {})] for row in read_arrays(data, names, window))
    module, colon, name = data.partition(":")
    if colon and module and name and all(p.isidentifier() for p in module.split(".")):
        return _from_python(data, import_object(f"--data {data}", data), reader, stop)
    raise InputError(
        f"--data {data}: give a .csv, .parquet, .npy or .npz file, module:function, or - for JSON "
        "lines"
    )


@dataclass(frozen=True)
class InstanceReader:
    """A reader of instances from JSON values and Python objects.

    An instance has the features `names`, which are raw columns if `raw`, and perhaps the columns
    `keep`, which are copied to its answer. If the shape of a `window` is given, an instance is an
    array of this shape.
    """

    names: Sequence[str]
    raw: bool = False
    keep: Sequence[str] = ()
    window: tuple[int, ...] | None = None

    def read(self, value: Any) -> Item:
        """Read an instance; an invalid one becomes an InputError in its place."""
        kept_cells = {}
        if isinstance(value, Mapping):
            value = {name: _plain(value) for name, value in value.items()}
            kept_cells = {name: value[name] for name in self.keep if name in value}
        try:
            instance = self._instance(value)
        except InputError as error:
            instance = error
        return instance, {"kept": kept_cells} if kept_cells else {}

    def read_json(self, line: str) -> Item:
        """Read a JSON line; InputError for an unknown or repeated key, ValueError for bad JSON."""
        value = unique_json(line)
        if isinstance(value, dict):
            for key in value.keys() - {*self.names, *self.keep}:
                raise InputError(f"the instance has an unknown key {key[:64]!r}: see --keep")
        return self.read(value)

    def _instance(self, value: Any) -> Instance:
        if self.window is not None:
            return self._as_window(value)
        if hasattr(value, "tolist"):
            value = value.tolist()
        elif isinstance(value, Sequence) and not isinstance(value, str):
            value = [*map(_plain, value)]
        # The device checks and encodes raw rows itself.
        return value if self.raw else read_row(value, self.names)

    def _as_window(self, value: Any) -> Instance:
        try:
            # None is a missing sample in JSON. An array keeps its type.
            window = value if isinstance(value, np.ndarray) else np.asarray(value, np.float64)
        except (TypeError, ValueError, OverflowError):
            window = np.empty(0, np.object_)
        if window.dtype.kind not in "fiub" or window.shape != self.window:
            raise InputError(f"an instance is an array of numbers, shape {self.window}")
        return window


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def json_lines(pieces: Iterable[bytes], reader: InstanceReader) -> Iterator[list[Item]]:
    """Read instances from JSON lines as they arrive."""
    for lines in split_lines(pieces, _MAX_LINE_BYTES):
        items: list[Item] = []
        for line in lines:
            if line is None:
                message = f"a line has more than {_MAX_LINE_BYTES} bytes"
                items.append((InputError(message), {}))
            elif line.strip():
                try:
                    items.append(reader.read_json(line))
                except InputError as error:
                    items.append((error, {}))
                except (ValueError, RecursionError) as error:
                    items.append((InputError(f"not a JSON line: {error}"), {}))
        yield items


def _from_table(data: str, reader: InstanceReader, encoder: RowEncoder | None) -> InstanceSource:
    if reader.window is not None:
        raise InputError(
            f"--data {data}: the bundle takes windows of shape {reader.window}; give them as an "
            ".npy file, or give a recording as --signal"
        )
    table = read_table(data, reader.names, encoder, keep=reader.keep, partial=True)
    if table.ignored:
        note(f"{data}: columns that are not features are ignored: {', '.join(table.ignored)}")
    # Note the columns that the file lacks.
    columns = () if encoder is None else encoder.columns
    filled_columns = {column.name for column in columns if column.fill is not None}
    for names, treatment in (
        (
            [name for name in table.absent if name in filled_columns],
            "every row is filled in, like an empty cell in training",
        ),
        (
            [name for name in table.absent if name not in filled_columns],
            "missing in every row; if a stage needs it, the cloud answers, or else the last "
            "finished stage; in the first stage it is an error",
        ),
    ):
        if names:
            n_more = len(names) - _MAX_NAMES
            listed = ", ".join(names[:_MAX_NAMES]) + (f" (and {n_more} more)" if n_more > 0 else "")
            note(f"{data} has no column {listed}: {treatment}")
    # Note invalid cells, which are errors only if a stage needs them.
    errors = table.bad
    if errors and encoder is not None:
        more_rows = f" (and {len(errors) - 1} more rows)" if len(errors) > 1 else ""
        note(f"{errors[min(errors)]}{more_rows}: a failed sensor if a stage needs the cell")
        errors = {}
    rows = zip(table.rows, table.kept_cells, strict=True)
    return InstanceSource(
        [(errors.get(i, row), {"kept": cells} if cells else {})]
        for i, (row, cells) in enumerate(rows)
    )


# -- Python --------------------------------------------------------------------------------


def _from_python(data: str, source: Any, reader: InstanceReader, stop: Stop) -> InstanceSource:
    """Open sensors, an iterator of instances, or a function that returns one at each call."""
    function: Callable[[], Any] | None = None
    if not isinstance(source, Sensors) and not hasattr(source, "__next__"):
        if not callable(source):
            raise InputError(f"--data {data}: give a function, Sensors or an iterator of rows")
        function = source
        with stop.interrupts():
            try:
                source = function()
            except Exception as error:
                raise _failed(f"--data {data}", error) from error
    if isinstance(source, Sensors):
        if reader.keep:
            raise InputError(f"--keep: the sensors of --data {data} have no further columns")
        return InstanceSource(repeat([(None, {})]), source)
    if hasattr(source, "__next__"):
        return InstanceSource(_read_iterator(data, source, reader, stop))
    assert function is not None
    return InstanceSource(_call_repeatedly(data, function, reader, source, stop))


def _call_repeatedly(
    data: str, function: Callable[[], Any], reader: InstanceReader, first: Any, stop: Stop
) -> Iterator[list[Item]]:
    """Call a function for each instance until it returns None; `first` is its first result.

    If a call raises an exception, its error replaces the instance.
    """
    value = first
    pause = _FIRST_PAUSE_SECONDS
    while value is not None:
        yield [reader.read(value)]
        while True:
            try:
                (value,) = _next_rows(map(operator.call, (function,)), stop)
            except Exception as error:
                yield [(_failed(data, error), {})]
                stop.pause(pause)
                pause = min(2 * pause, _MAX_PAUSE_SECONDS)
            else:
                pause = _FIRST_PAUSE_SECONDS
                break


def _read_iterator(
    data: str, rows: Iterator[Any], reader: InstanceReader, stop: Stop
) -> Iterator[list[Item]]:
    """Read the instances of an iterator, until it ends."""
    while True:
        try:
            next_rows = _next_rows(rows, stop)
        except Exception as error:
            # A generator that raised an exception has ended, so that this ends the run.
            raise _failed(f"--data {data}", error) from error
        if not next_rows:
            return
        yield [reader.read(next_rows[0])]


def _next_rows(rows: Iterator[Any], stop: Stop) -> list[Any]:
    """Get a list of the next row, empty at the end; a stop loses no row that was read."""
    next_rows: list[Any] = []
    try:
        with stop.interrupts():
            # This is one call in C, so that no signal can come between the two steps.
            next_rows.extend(islice(rows, 1))
    except Stopped:
        if not next_rows:
            raise
    return next_rows


def _failed(what: str, error: Exception) -> InputError:
    return InputError(f"{what} failed: {type(error).__name__}: {error}")
