"""Sources of rows for ``gatewise edge --data``: a file, JSON lines, or a Python function."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice, repeat
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
    SourcedInstance,
    read_chunks,
    split_lines,
)
from gatewise_edge.sensors.row_reader import read_arrays, read_row, unpack_series
from gatewise_edge.sensors.sensors import Sensors
from gatewise_edge.sensors.table import read_table
from gatewise_edge.stop_request import StopInterrupt, StopRequest

#: File name endings of tables.
TABLE_SUFFIXES: Final = (".csv", ".parquet")
#: File name endings of arrays.
ARRAY_SUFFIXES: Final = (".npy", ".npz")
#: Largest size of one JSON line in bytes. A stream without line ends must not fill the memory.
_MAX_LINE_BYTES: Final = 2**20
#: Seconds before a function that failed is called again; doubled each time, up to a second.
_FIRST_PAUSE_SECONDS: Final = 0.01
_MAX_PAUSE_SECONDS: Final = 1.0
#: Largest number of column names in a note.
_MAX_LISTED_NAMES: Final = 8


def open_source(
    source_name: str,
    column_names: Sequence[str],
    stop_request: StopRequest,
    encoder: RowEncoder | None = None,
    *,
    kept_columns: Sequence[str] = (),
    window_shape: tuple[int, ...] | None = None,
) -> InstanceSource:
    """Open the source that ``--data`` names; a request to stop ends the wait for an instance.

    `source_name` is ``-`` for JSON lines on standard input, ``name.csv`` or ``name.parquet`` for a
    table, ``name.npy`` or ``name.npz`` for arrays, or ``module:function`` for Python. The module
    may be in the current folder. With an encoder, `column_names` are its raw columns, and rows have
    their cells. A feature that a row lacks is a missing value. The columns `kept_columns` are
    copied to the answers. With a `window_shape` instances are arrays of this shape, which a table
    cannot have. Raises InputError if `source_name` is anything else or cannot be opened.
    """
    if window_shape is not None and kept_columns:
        raise InputError("--keep: windows have no further columns; omit it")
    reader = InstanceReader(column_names, encoder is not None, kept_columns, window_shape)
    if source_name == "-":
        return InstanceSource(json_lines(read_chunks(0, "standard input", stop_request), reader))
    suffix = Path(source_name).suffix.lower()
    if suffix in TABLE_SUFFIXES:
        return _from_table(source_name, reader, encoder)
    if suffix in ARRAY_SUFFIXES:
        if encoder is not None:
            raise InputError(
                f"--data {source_name}: the bundle takes raw columns; give a .csv or .parquet file"
            )
        if kept_columns:
            raise InputError(
                f"--keep: the arrays of --data {source_name} have no further columns; omit it"
            )
        return InstanceSource(
            [(row, {})] for row in read_arrays(source_name, column_names, window_shape)
        )
    module_name, colon, function_name = source_name.partition(":")
    if colon and function_name and all(map(str.isidentifier, module_name.split("."))):
        source = import_object(f"--data {source_name}", source_name)
        return _from_python(source_name, source, reader, stop_request)
    raise InputError(
        f"--data {source_name}: give a .csv, .parquet, .npy or .npz file, module:function, or - "
        "for JSON lines; a recording or a stream of samples is a --signal"
    )


@dataclass(frozen=True)
class InstanceReader:
    """A reader of instances from JSON values and Python objects.

    An instance has the features or, with `has_raw_columns`, the raw columns `column_names`. It may
    also have the columns `kept_columns`, which are copied to its answer. With a `window_shape` an
    instance is an array of this shape.
    """

    column_names: Sequence[str]
    has_raw_columns: bool = False
    kept_columns: Sequence[str] = ()
    window_shape: tuple[int, ...] | None = None

    def read(self, raw_instance: Any) -> SourcedInstance:
        """Read an instance; an invalid one becomes an InputError in its place."""
        kept_cells = {}
        raw_instance = unpack_series(raw_instance)
        if isinstance(raw_instance, Mapping):
            cells = {name: _python_scalar(cell) for name, cell in raw_instance.items()}
            kept_cells = {name: cells[name] for name in self.kept_columns if name in cells}
            raw_instance = cells
        try:
            instance = self._instance(raw_instance)
        except InputError as error:
            instance = error
        return instance, {"kept": kept_cells} if kept_cells else {}

    def read_json(self, line: str) -> SourcedInstance:
        """Read a JSON line; InputError for an unknown or repeated key, ValueError for bad JSON."""
        raw_instance = unique_json(line)
        if isinstance(raw_instance, dict):
            for key in raw_instance.keys() - {*self.column_names, *self.kept_columns}:
                raise InputError(
                    f"the instance has an unknown key {key[:64]!r}: omit it, or name it in --keep"
                )
        return self.read(raw_instance)

    def _instance(self, raw_instance: Any) -> Instance:
        if self.window_shape is not None:
            return self._as_window(raw_instance)
        if hasattr(raw_instance, "tolist"):
            raw_instance = raw_instance.tolist()
        elif isinstance(raw_instance, Sequence) and not isinstance(raw_instance, str):
            raw_instance = [*map(_python_scalar, raw_instance)]
        # The device checks and encodes raw rows itself.
        return raw_instance if self.has_raw_columns else read_row(raw_instance, self.column_names)

    def _as_window(self, raw_instance: Any) -> Instance:
        """Check an array; InputError unless it has numbers and the shape of a window."""
        try:
            # None is a missing sample in JSON. An array keeps its type.
            window = (
                raw_instance
                if isinstance(raw_instance, np.ndarray)
                else np.asarray(raw_instance, np.float64)
            )
        except (TypeError, ValueError, OverflowError):
            window = np.empty(0, np.object_)
        if window.dtype.kind not in "fiub" or window.shape != self.window_shape:
            raise InputError(
                f"an instance must be an array of numbers of shape {self.window_shape}"
            )
        return window


def _python_scalar(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def json_lines(chunks: Iterable[bytes], reader: InstanceReader) -> Iterator[list[SourcedInstance]]:
    """Read instances from JSON lines as they arrive."""
    for lines in split_lines(chunks, _MAX_LINE_BYTES):
        instances: list[SourcedInstance] = []
        for line in lines:
            if line is None:
                message = f"a line has more than {_MAX_LINE_BYTES} bytes"
                instances.append((InputError(message), {}))
            elif line.strip():
                try:
                    instances.append(reader.read_json(line))
                except InputError as error:
                    instances.append((error, {}))
                except (ValueError, RecursionError) as error:
                    instances.append((InputError(f"not a JSON line: {error}"), {}))
        yield instances


def _from_table(
    source_name: str, reader: InstanceReader, encoder: RowEncoder | None
) -> InstanceSource:
    """Read a table as a whole, and print notes about its columns and invalid cells."""
    if reader.window_shape is not None:
        raise InputError(
            f"--data {source_name}: the bundle takes windows of shape {reader.window_shape}; give "
            "them as an .npy file, or give a recording as --signal"
        )
    table = read_table(
        source_name,
        reader.column_names,
        encoder,
        kept_columns=reader.kept_columns,
        allow_incomplete=True,
    )
    if table.ignored_columns:
        ignored_names = ", ".join(table.ignored_columns)
        note(f"{source_name}: columns that are not features are ignored: {ignored_names}")
    encoder_columns = () if encoder is None else encoder.columns
    filled_columns = {column.name for column in encoder_columns if column.fill is not None}
    _note_absent_columns(
        source_name,
        [name for name in table.absent_columns if name in filled_columns],
        "every row is filled in, like an empty cell in training",
    )
    _note_absent_columns(
        source_name,
        [name for name in table.absent_columns if name not in filled_columns],
        "missing in every row; if a stage needs it, the cloud answers, or else the last finished "
        "stage; in the first stage it is an error",
    )
    # Note invalid cells, which are errors only if a stage needs them.
    errors = table.row_errors
    if errors and encoder is not None:
        more_rows_note = f" (and {len(errors) - 1} more rows)" if len(errors) > 1 else ""
        note(f"{errors[min(errors)]}{more_rows_note}: a failed sensor if a stage needs the cell")
        errors = {}
    table_rows = zip(table.rows, table.kept_cells, strict=True)
    return InstanceSource(
        [(errors.get(row_index, row), {"kept": cells} if cells else {})]
        for row_index, (row, cells) in enumerate(table_rows)
    )


def _note_absent_columns(source_name: str, names: Sequence[str], treatment: str) -> None:
    """Print which columns a file lacks, and how rows without them are treated."""
    if names:
        n_more = len(names) - _MAX_LISTED_NAMES
        more_note = f" (and {n_more} more)" if n_more > 0 else ""
        listing = ", ".join(names[:_MAX_LISTED_NAMES]) + more_note
        note(f"{source_name} has no column {listing}: {treatment}")


# -- Python --------------------------------------------------------------------------------


def _from_python(
    source_name: str, source: Any, reader: InstanceReader, stop_request: StopRequest
) -> InstanceSource:
    """Open sensors, an iterator of instances, or a function that returns one at each call."""
    function: Callable[[], Any] | None = None
    if not isinstance(source, Sensors) and not hasattr(source, "__next__"):
        if not callable(source):
            raise InputError(
                f"--data {source_name}: give a function, Sensors or an iterator of rows"
            )
        function = source
        with stop_request.interrupts():
            try:
                source = function()
            except Exception as error:
                raise _call_error(f"--data {source_name}", error) from error
    if isinstance(source, Sensors):
        if reader.kept_columns:
            raise InputError(
                f"--keep: the sensors of --data {source_name} have no further columns; omit it"
            )
        return InstanceSource(repeat([(None, {})]), source)
    if hasattr(source, "__next__"):
        return InstanceSource(_read_rows(source_name, source, reader, stop_request))
    assert function is not None
    # the first call has returned the first instance
    rows = chain([source], map(operator.call, repeat(function)))
    return InstanceSource(_read_rows(source_name, rows, reader, stop_request, is_called=True))


def _read_rows(
    source_name: str,
    rows: Iterator[Any],
    reader: InstanceReader,
    stop_request: StopRequest,
    *,
    is_called: bool = False,
) -> Iterator[list[SourcedInstance]]:
    """Read the instances of an iterator until it ends.

    With `is_called` each instance is the result of a call. None then ends the instances, and the
    error of a call takes the place of its instance.
    """
    pause_s = _FIRST_PAUSE_SECONDS
    while True:
        try:
            next_rows = _next_rows(rows, stop_request)
        except Exception as error:
            if not is_called:  # a generator that has raised an exception cannot continue
                raise _call_error(f"--data {source_name}", error) from error
            yield [(_call_error(source_name, error), {})]
            stop_request.pause(pause_s)
            pause_s = min(2 * pause_s, _MAX_PAUSE_SECONDS)
            continue
        if not next_rows or (is_called and next_rows[0] is None):
            return
        pause_s = _FIRST_PAUSE_SECONDS
        yield [reader.read(next_rows[0])]


def _next_rows(rows: Iterator[Any], stop_request: StopRequest) -> list[Any]:
    """Return a list with the next row, or an empty list at the end; a stop loses no row."""
    next_rows: list[Any] = []
    try:
        with stop_request.interrupts():
            # This is one call in C: no signal handler can run between reading and storing the row.
            next_rows.extend(islice(rows, 1))
    except StopInterrupt:
        if not next_rows:
            raise
    return next_rows


def _call_error(place: str, error: Exception) -> InputError:
    return InputError(f"{place} failed: {type(error).__name__}: {error}")
