"""Where ``gatewise edge`` gets its instances: a file, JSON lines, or a Python callable.

:func:`open_source` gives an :class:`InstanceSource`: an iterator whose items are rows, None where
the device's sensors are to be read, or an InputError for an instance that cannot be used (the run
goes on after it).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice, repeat
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from gatewise.columns.encoders import RowEncoder
from gatewise.console import note
from gatewise.errors import InputError
from gatewise.imports import import_object
from gatewise_edge.sensors.sensors import Sensors
from gatewise_edge.sensors.streams import read_piece
from gatewise_edge.sensors.table import parse_json_line, read_arrays, read_row, read_table
from gatewise_edge.stop_request import Stop, Stopped

Instance = NDArray[Any] | list[Any] | bytes | InputError | None

#: Bytes of one JSON line at most.
_LONGEST_LINE: Final = 2**20
#: Seconds before a function that failed is called again: doubled each time, up to a second.
_FIRST_PAUSE: Final = 0.01
#: Columns that are named in a note.
_MOST_SHOWN: Final = 8


class InstanceSource(Protocol):
    """Instances one after the other; where an item is None the device reads `sensors`.

    `held` instances were taken from a writer and not returned yet: they are answered even after a
    stop request. Rows have the features `names`, in this order. `kept` are the columns of the last
    instance that are passed on to its answer. `place` is where it stands in its stream, if it is of
    one: ``start``, the number of its first sample, ``time`` in seconds, ``gap`` if it follows one.
    """

    sensors: Sensors | None
    names: Sequence[str]
    kept: Mapping[str, Any]
    place: Mapping[str, Any]

    @property
    def held(self) -> int: ...

    def __iter__(self) -> Iterator[Instance]: ...

    def __next__(self) -> Instance: ...


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

    ``-``: JSON lines on standard input. ``name.csv``: a table. ``name.npy``, ``name.npz``: arrays.
    ``module:function``: Python, the module sought in the current folder first. Raises InputError if
    it is none of these, or cannot be opened. With an encoder `names` are its raw columns, and rows
    are lists of their cells. A feature that a row does not have is a missing value. The columns
    `keep` are passed on. With the shape of a `window` instances are arrays of it, in any form but a
    table's.
    """
    if window is not None and keep:
        raise InputError("--keep: windows have no further columns")
    if data == "-":
        return JsonLines(0, names, stop, encoder, keep=keep, window=window)
    if window is not None and Path(data).suffix.lower() == ".csv":
        raise InputError(
            f"--data {data}: the bundle takes windows of shape {window}; give an .npy file of "
            "them, or a recording as --signal"
        )
    if Path(data).suffix.lower() == ".csv":
        table = read_table(data, names, encoder, keep=keep, partial=True)
        if table.ignored:
            note(f"{data}: columns that are no features are left out: {', '.join(table.ignored)}")
        if table.absent:
            shown = ", ".join(table.absent[:_MOST_SHOWN])
            more = len(table.absent) - _MOST_SHOWN
            note(
                f"{data} has no column {shown}{f' (and {more} more)' if more > 0 else ''}: missing "
                "in every row; where a stage needs one, the cloud answers, or the last finished "
                "stage"
            )
        return _Given(zip(table.rows, table.kept, strict=True), names)
    if Path(data).suffix.lower() in (".npy", ".npz"):
        if encoder is not None:
            raise InputError(f"--data {data}: the bundle takes raw columns; give a .csv file")
        if keep:
            raise InputError(f"--keep: the arrays of --data {data} have no further columns")
        return _Given(((row, {}) for row in read_arrays(data, names, window)), names)
    module, colon, name = data.partition(":")
    if colon and module and name and all(p.isidentifier() for p in module.split(".")):
        read = _RowReader(names, encoder, keep, window)
        return _from_python(data, import_object(f"--data {data}", data), read, stop)
    raise InputError(
        f"--data {data}: give a .csv, .npy or .npz file, module:function, or - for JSON lines"
    )


Kept = tuple[Instance, Mapping[str, Any]]
"""An instance, and its columns that are passed on."""


class _RowReader:
    """Reads what a writer gave as an instance with the features `names`, and what is kept of it."""

    def __init__(
        self,
        names: Sequence[str],
        encoder: RowEncoder | None,
        keep: Sequence[str],
        window: tuple[int, ...] | None,
    ) -> None:
        self.names = names
        self.keep = keep
        self._encoder = encoder
        self._window = window

    def line(self, text: str) -> Kept:
        """Read a JSON line."""
        try:
            row = parse_json_line(text)
            return self.row(row) if self._window is None else self._as_window(row)
        except InputError as error:
            return error, {}

    def given(self, given: Any) -> Kept:
        """Read what Python code gave."""
        if isinstance(given, bytes):  # a JPEG file
            return given, {}
        if self._window is not None:
            return self._as_window(given)
        if hasattr(given, "tolist"):
            given = given.tolist()
        if isinstance(given, Mapping):
            return self.row({k: _plain(v) for k, v in given.items()})
        if isinstance(given, Sequence) and not isinstance(given, str | bytes):
            return self.row([*map(_plain, given)])
        n = len(self.names)
        return InputError(f"an instance is a mapping by feature name or a row of {n} numbers"), {}

    def _as_window(self, given: Any) -> Kept:
        try:
            # None is a missing sample in JSON; an array keeps its type
            window = given if isinstance(given, np.ndarray) else np.asarray(given, np.float64)
        except (TypeError, ValueError, OverflowError):
            window = np.empty(0, np.object_)
        if window.dtype.kind not in "fiub" or window.shape != self._window:
            return InputError(f"an instance is an array of numbers, shape {self._window}"), {}
        return window, {}

    def row(self, row: Any) -> Kept:
        """Read a dict or a list."""
        kept: dict[str, Any] = {}
        if isinstance(row, dict):
            kept = {name: row[name] for name in self.keep if name in row}
        try:
            return read_row(row, self.names, self._encoder, partial=True), kept
        except InputError as error:
            return error, kept


class _Given:
    """Instances from an iterator."""

    held = 0

    def __init__(
        self, items: Iterator[Kept], names: Sequence[str], sensors: Sensors | None = None
    ) -> None:
        self._items = items
        self.names = names
        self.sensors = sensors
        self.kept: Mapping[str, Any] = {}
        self.place: Mapping[str, Any] = {}

    def __iter__(self) -> Iterator[Instance]:
        return self

    def __next__(self) -> Instance:
        instance, self.kept = next(self._items)
        return instance


# -- JSON lines ----------------------------------------------------------------------------


class JsonLines:
    """One instance a line from a file descriptor; a stop request ends the wait for the next."""

    sensors: Sensors | None = None

    def __init__(
        self,
        descriptor: int,
        names: Sequence[str],
        stop: Stop,
        encoder: RowEncoder | None = None,
        *,
        keep: Sequence[str] = (),
        window: tuple[int, ...] | None = None,
    ) -> None:
        self._reader = _RowReader(names, encoder, keep, window)
        self._descriptor = descriptor
        self._stop = stop
        self.names = names
        self.kept: Mapping[str, Any] = {}
        self.place: Mapping[str, Any] = {}
        self._buffer = bytearray()
        self._ended = False
        self._too_long = False

    @property
    def held(self) -> int:
        """Whole lines that were read and not given yet."""
        return self._buffer.count(b"\n") + (self._ended and bool(self._buffer))

    def __iter__(self) -> Iterator[Instance]:
        return self

    def __next__(self) -> Instance:
        while True:
            line = self._line()
            if self._too_long:
                self._too_long, self.kept = False, {}
                return InputError(f"a line of more than {_LONGEST_LINE} bytes is no instance")
            text = line.decode("utf-8", "replace")
            if text.strip():
                instance, self.kept = self._reader.line(text)
                return instance

    def _line(self) -> bytes:
        start = 0
        while (end := self._buffer.find(b"\n", start)) < 0:
            if self._ended:
                if not self._buffer and not self._too_long:
                    raise StopIteration
                end = len(self._buffer)
                break
            start = len(self._buffer)
            if start > _LONGEST_LINE:
                self._too_long, start = True, 0
                self._buffer.clear()
            piece = self._read()
            self._ended = not piece
            self._buffer += piece
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        return line

    def _read(self) -> bytes:
        try:
            return read_piece(self._descriptor, self._stop)
        except OSError as error:
            raise InputError(f"standard input cannot be read: {error.strerror}") from None


# -- Python --------------------------------------------------------------------------------


def _from_python(data: str, found: Any, read: _RowReader, stop: Stop) -> InstanceSource:
    """Instances from sensors, from an iterator, or from a function called for each."""
    if isinstance(found, Sensors):
        return _from_sensors(data, found, read)
    if not hasattr(found, "__next__"):
        if not callable(found):
            raise InputError(f"--data {data}: give a function, Sensors or an iterator of rows")
        with stop.interrupts():
            try:
                first = found()
            except Exception as error:
                raise _failed(f"--data {data}", error) from error
        if isinstance(first, Sensors):
            return _from_sensors(data, first, read)
        if not hasattr(first, "__next__"):
            return _Given(_polled(data, found, read, first, stop), read.names)
        found = first
    return _Given(_drawn(data, found, read, stop), read.names)


def _from_sensors(data: str, sensors: Sensors, read: _RowReader) -> InstanceSource:
    if read.keep:
        raise InputError(f"--keep: the sensors of --data {data} have no further columns")
    return _Given(repeat((None, {})), read.names, sensors)


def _polled(
    data: str, function: Callable[[], Any], read: _RowReader, first: Any, stop: Stop
) -> Iterator[Kept]:
    """Rows of a function that is called for each; one that fails is an instance's error."""
    given, pause = first, _FIRST_PAUSE
    while given is not None:
        yield read.given(given)
        while True:
            try:
                (given,) = _take(map(operator.call, (function,)), stop)
            except Exception as error:
                yield _failed(data, error), {}
                stop.pause(pause)
                pause = min(2 * pause, 1.0)
            else:
                pause = _FIRST_PAUSE
                break


def _drawn(data: str, rows: Iterator[Any], read: _RowReader, stop: Stop) -> Iterator[Kept]:
    while True:
        try:
            taken = _take(rows, stop)
        except Exception as error:
            # A generator that raised is at its end.
            raise _failed(f"--data {data}", error) from error
        if not taken:
            return
        yield read.given(taken[0])


def _take(rows: Iterator[Any], stop: Stop) -> list[Any]:
    """Draw one row; one that came with a stop request is kept."""
    taken: list[Any] = []
    try:
        with stop.interrupts():
            # One step of the interpreter, so that no signal comes between drawing and keeping.
            taken.extend(islice(rows, 1))
    except Stopped:
        if not taken:
            raise
    return taken


def _failed(what: str, error: Exception) -> InputError:
    return InputError(f"{what} failed: {type(error).__name__}: {error}")


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value
