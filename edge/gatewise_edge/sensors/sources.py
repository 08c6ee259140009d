"""Sources of the rows of ``gatewise edge``: a file, JSON lines, or a Python callable."""

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

#: Endings of files whose rows are table rows.
TABLE_SUFFIXES: Final = (".csv", ".parquet")
#: Largest number of bytes of one JSON line.
_LONGEST_LINE: Final = 2**20
#: Seconds before a function that failed is called again: doubled each time, up to a second.
_FIRST_PAUSE: Final = 0.01
#: Columns that are named in a note.
_MOST_SHOWN: Final = 8


def open_source(
    data: str,
    names: Sequence[str],
    stop: Stop,
    encoder: RowEncoder | None = None,
    *,
    keep: Sequence[str] = (),
    window: tuple[int, ...] | None = None,
) -> InstanceSource:
    """Open what ``--data`` names; the wait for an instance ends on a stop request.

    ``-``: JSON lines on standard input. ``name.csv``, ``name.parquet``: a table. ``name.npy``,
    ``name.npz``: arrays. ``module:function``: Python, the module sought in the current folder
    first. Raises InputError if it is anything else, or cannot be opened. With an encoder `names`
    are its raw columns, and rows hold their cells. A feature that a row does not have is a missing
    value. The columns `keep` are passed on. With the shape of a `window` instances are arrays of
    it, in any form but a table's.
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
    """Reads instances as writers give them, and keeps the columns `keep`.

    It has the features `names`, raw columns if `raw`, or is an array of the shape `window`.
    """

    names: Sequence[str]
    raw: bool = False
    keep: Sequence[str] = ()
    window: tuple[int, ...] | None = None

    def read(self, value: Any) -> Item:
        """Read a value of JSON or Python code; an InputError where it is not an instance."""
        if isinstance(value, Mapping):
            value = {name: _plain(value) for name, value in value.items()}
            passed_on = {name: value[name] for name in self.keep if name in value}
        else:
            passed_on = {}
        try:
            instance = self._instance(value)
        except InputError as error:
            instance = error
        return instance, {"kept": passed_on} if passed_on else {}

    def read_json(self, line: str) -> Item:
        """Read a JSON line; InputError if a key is unknown or stands twice, ValueError if bad."""
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
        # the device checks and encodes raw rows itself
        return value if self.raw else read_row(value, self.names)

    def _as_window(self, value: Any) -> Instance:
        try:
            # None is a missing sample in JSON; an array keeps its type
            window = value if isinstance(value, np.ndarray) else np.asarray(value, np.float64)
        except (TypeError, ValueError, OverflowError):
            window = np.empty(0, np.object_)
        if window.dtype.kind not in "fiub" or window.shape != self.window:
            raise InputError(f"an instance is an array of numbers, shape {self.window}")
        return window


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def json_lines(pieces: Iterable[bytes], reader: InstanceReader) -> Iterator[list[Item]]:
    """Instances of JSON lines, as the lines come."""
    for lines in split_lines(pieces, _LONGEST_LINE):
        items: list[Item] = []
        for line in lines:
            if line is None:
                too_long = f"a line of more than {_LONGEST_LINE} bytes is no instance"
                items.append((InputError(too_long), {}))
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
            f"--data {data}: the bundle takes windows of shape {reader.window}; give an .npy file "
            "of them, or a recording as --signal"
        )
    table = read_table(data, reader.names, encoder, keep=reader.keep, partial=True)
    if table.ignored:
        note(f"{data}: columns that are not features are left out: {', '.join(table.ignored)}")
    # columns that the file lacks
    columns = () if encoder is None else encoder.columns
    filled_columns = {column.name for column in columns if column.fill is not None}
    for names, treatment in (
        (
            [n for n in table.absent if n in filled_columns],
            "filled in every row, as empty cells in training",
        ),
        (
            [n for n in table.absent if n not in filled_columns],
            "missing in every row; where a stage needs one, the cloud answers, or the last "
            "finished stage, or there is an error, if it is the first",
        ),
    ):
        if names:
            more = len(names) - _MOST_SHOWN
            listed = ", ".join(names[:_MOST_SHOWN]) + (f" (and {more} more)" if more > 0 else "")
            note(f"{data} has no column {listed}: {treatment}")
    errors = table.bad
    if errors and encoder is not None:  # the device knows which cells it needs
        more_rows = f" (and {len(errors) - 1} more rows)" if len(errors) > 1 else ""
        note(f"{errors[min(errors)]}{more_rows}: a failed sensor, where a stage needs the cell")
        errors = {}
    rows = zip(table.rows, table.kept_cells, strict=True)
    return InstanceSource(
        [(errors.get(i, row), {"kept": cells} if cells else {})]
        for i, (row, cells) in enumerate(rows)
    )


# -- Python --------------------------------------------------------------------------------


def _from_python(data: str, source: Any, reader: InstanceReader, stop: Stop) -> InstanceSource:
    """Instances from sensors, from an iterator, or from a function called for each."""
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
        return InstanceSource(_drawn(data, source, reader, stop))
    assert function is not None
    return InstanceSource(_polled(data, function, reader, source, stop))


def _polled(
    data: str, function: Callable[[], Any], reader: InstanceReader, first: Any, stop: Stop
) -> Iterator[list[Item]]:
    """Rows of a function that is called for each; one that fails is an instance's error."""
    value = first
    pause = _FIRST_PAUSE
    while value is not None:
        yield [reader.read(value)]
        while True:
            try:
                (value,) = _take(map(operator.call, (function,)), stop)
            except Exception as error:
                yield [(_failed(data, error), {})]
                stop.pause(pause)
                pause = min(2 * pause, 1.0)
            else:
                pause = _FIRST_PAUSE
                break


def _drawn(
    data: str, rows: Iterator[Any], reader: InstanceReader, stop: Stop
) -> Iterator[list[Item]]:
    while True:
        try:
            drawn_rows = _take(rows, stop)
        except Exception as error:
            # A generator that raised has ended.
            raise _failed(f"--data {data}", error) from error
        if not drawn_rows:
            return
        yield [reader.read(drawn_rows[0])]


def _take(rows: Iterator[Any], stop: Stop) -> list[Any]:
    """Draw one row; a row that comes together with a stop request is kept."""
    rows_taken: list[Any] = []
    try:
        with stop.interrupts():
            # One call in C, so that no signal can come between drawing the row and keeping it.
            rows_taken.extend(islice(rows, 1))
    except Stopped:
        if not rows_taken:
            raise
    return rows_taken


def _failed(what: str, error: Exception) -> InputError:
    return InputError(f"{what} failed: {type(error).__name__}: {error}")
