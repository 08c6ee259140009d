"""Streams of samples: bytes or lines from standard input, a socket, a pipe or a file.

Samples that follow each other come as batches: arrays, lost samples, or errors.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray

from gatewise.errors import InputError
from gatewise_edge.sensors.instance_source import read_pieces, split_lines
from gatewise_edge.stop_request import Stop
from gatewise_signals.signal_input import SignalInput

#: Largest number of bytes of one line of samples.
_LONGEST_LINE: Final = 2**16
_CONNECT_SECONDS: Final = 10.0
#: First bytes of WAV, FLAC, Ogg, MP3 with tags, AIFF, numpy and zip files.
_HEADS: Final = (b"RIFF", b"RF64", b"fLaC", b"OggS", b"ID3", b"FORM", b"\x93NUMPY", b"PK\x03\x04")
#: Seconds of one unit of time.
TIME_UNITS: Final = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}


@dataclass(frozen=True, eq=False)
class Samples:
    """Samples that follow each other, shape (k,) or (k, channels), and the first one's second."""

    values: NDArray[Any]
    time: float | None = None


Batch = Sequence[Samples | InputError | None]
"""Samples in their order; an error where one cannot be read, None where samples were lost."""


# -- bytes ---------------------------------------------------------------------------------


def open_pieces(source: str, stop: Stop) -> Iterator[bytes]:
    """Open a stream; get its bytes as they come."""
    if source == "-":
        return read_pieces(0, "standard input", stop)
    if source.startswith("tcp://"):
        return _of_socket(_connected(source), source, stop)
    if not Path(source).is_file() and not Path(source).is_fifo() and not source.startswith("/dev/"):
        raise InputError(f"--signal {source}: there is no such file, pipe or device")
    return _of_file(source, stop)


def _connected(url: str) -> socket.socket:
    try:
        address = urlsplit(url)
        host = address.hostname
        port = address.port
        (host or "").encode("idna")  # as a look-up does
    except ValueError:
        host = None
        port = None
    if not host or port is None or address.path.strip("/"):
        raise InputError(f"--signal {url}: give tcp://host:port")
    try:
        return socket.create_connection((host, port), _CONNECT_SECONDS)
    except OSError as error:
        raise InputError(f"--signal {url}: {error.strerror or error}") from None


def _of_socket(connection: socket.socket, url: str, stop: Stop) -> Iterator[bytes]:
    with connection:
        connection.setblocking(True)
        yield from read_pieces(connection.fileno(), url, stop)


def _of_file(name: str, stop: Stop) -> Iterator[bytes]:
    try:
        with stop.interrupts():  # a pipe waits for its writer
            descriptor = os.open(name, os.O_RDONLY)
    except OSError as error:
        raise InputError(f"--signal {name}: {error.strerror}") from None
    with os.fdopen(descriptor, "rb", 0):
        yield from read_pieces(descriptor, name, stop)


def byte_batches(
    name: str, pieces: Iterator[bytes], shape: tuple[int, ...], dtype: str, flaws: list[str]
) -> Iterator[Batch]:
    """Read samples of a shape and type, little-endian; a part of one at the end is a flaw.

    InputError if the bytes are not plain numbers, but a file of audio or arrays.
    """
    kind = np.dtype(dtype).newbyteorder("<")
    size = kind.itemsize * int(np.prod(shape))
    remainder = b""
    for number, piece in enumerate(pieces):
        if number == 0 and piece.startswith(_HEADS):
            raise InputError(
                f"{name}: a file of audio or arrays begins with {piece[:4]!r}, but these must be "
                "plain numbers; give the file's name, or convert it (sox -t raw, ffmpeg -f s16le)"
            )
        remainder += piece
        whole = len(remainder) // size * size
        values = np.frombuffer(remainder[:whole], kind).astype(dtype)
        yield [Samples(values.reshape(-1, *shape))]
        remainder = remainder[whole:]
    if remainder:
        flaws.append(f"its last {len(remainder)} bytes are a part of a sample")


# -- lines ---------------------------------------------------------------------------------


class LineReader:
    """Reader of lines of samples: the cells of the channels, and an optional time before them.

    The first line may name the columns, and the line before it a separator, as Excel's ``sep=;``.
    Columns with the names of the bundle's channels are in any order; with other names they are in
    the order of the channels. Times are in `time_unit`.
    """

    def __init__(self, name: str, signal: SignalInput, time_unit: str = "s") -> None:
        self._name = name
        self._shape = signal.shape[1:]
        self._channels = signal.channels
        self._seconds = TIME_UNITS[time_unit]
        self._n_lines = 0
        self._may_be_header = True
        #: Positions of the channels' columns, if the header names them.
        self._columns: list[int] | None = None

    def batches(self, pieces: Iterator[bytes]) -> Iterator[Batch]:
        """Read the samples of lines as they come."""
        for lines in split_lines(pieces, _LONGEST_LINE):
            samples = [self._sample(line) for line in lines if line is None or line.strip()]
            yield [sample for sample in samples if not isinstance(sample, _Header)]

    def _sample(self, line: str | None) -> Samples | InputError | _Header | None:
        self._n_lines += 1
        if line is None:
            raise InputError(
                f"{self._name}: a line of more than {_LONGEST_LINE} bytes is not a sample"
            )
        text = line.strip().removeprefix("\ufeff")
        if text == "gap":
            return None
        if self._may_be_header:
            if re.fullmatch(r"sep=.", text):
                return _Header()
            self._may_be_header = False
            cells = _cells(text)
            if not any(map(_is_number, cells)):
                self._read_header([cell.strip().strip('"').lower() for cell in cells])
                return _Header()
        try:
            return self._read_cells(_cells(text), text)
        except ValueError as error:
            return InputError(f"{self._name}, line {self._n_lines}: {error}")

    def _read_header(self, cells: list[str]) -> None:
        """Find the columns of the channels; InputError if only some of them have a name there."""
        axes = [channel.axis for channel in self._channels]
        columns = []
        for channel in self._channels:
            words = {channel.name.lower()}
            if axes.count(channel.axis) == 1:
                words.add(channel.axis.lower())
            columns.append([k for k, cell in enumerate(cells) if cell and cell in words])
        if not any(columns):
            return
        problems = [
            channel.name
            for channel, positions in zip(self._channels, columns, strict=True)
            if len(positions) != 1
        ]
        if problems:
            raise InputError(
                f"{self._name}: the columns are {', '.join(cells)}; not one of them is channel "
                f"{problems[0]!r} of the bundle"
            )
        self._columns = [positions[0] for positions in columns]

    def _read_cells(self, cells: list[str], text: str) -> Samples:
        """Read the cells of one line; ValueError if they are not a sample."""
        count = len(self._channels)
        if len(cells) not in (count, count + 1):
            raise ValueError(f"{len(cells)} cells; give {count}, or the time and {count}")
        if not all(map(_is_number, cells)):
            raise ValueError(f"{text[:40]!r} has a cell that is not a number")
        numbers = [float(cell) for cell in cells]
        columns = self._columns or range(len(cells) - count, len(cells))
        values = np.array([numbers[k] for k in columns], np.float32).reshape(1, *self._shape)
        if len(cells) == count:
            return Samples(values)
        (time,) = (cell for k, cell in enumerate(cells) if k not in columns)
        if not np.isfinite(float(time)):
            raise ValueError(f"{time!r} is not a time")
        return Samples(values, float(time) * self._seconds)


class _Header:
    """A line before the samples: a header, or Excel's separator."""


def _cells(text: str) -> list[str]:
    """Cells between semicolons, with decimal commas, or between tabs or commas."""
    if ";" in text:
        return text.replace(",", ".").split(";")
    return text.split("\t" if "\t" in text else ",")


def _is_number(cell: str) -> bool:
    try:
        float(cell.replace("_", "?"))
    except ValueError:
        return False
    return True
