"""Streams of samples, as bytes or lines from standard input, a socket, a pipe or a file.

A stream yields batches of consecutive samples, errors, and marks of lost samples.
"""

from __future__ import annotations

import logging
import math
import os
import re
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray

from gatewise.errors import InputError
from gatewise_edge.sensors.instance_source import read_chunks, split_lines
from gatewise_edge.stop_request import StopRequest
from gatewise_signals.signal_input import SignalInput

_LOG = logging.getLogger(__name__)

#: Largest size of one line of samples in bytes. A stream without line ends must not fill the
#: memory.
_MAX_LINE_BYTES: Final = 2**16
#: Longest time to connect to a socket, in s. The system repeats a lost SYN after 1, 3 and 7 s.
_CONNECT_SECONDS: Final = 10.0
#: First bytes of WAV, FLAC, Ogg, MP3 with tags, AIFF, numpy and zip files.
_FILE_SIGNATURES: Final = (
    b"RIFF", b"RF64", b"BW64", b"fLaC", b"OggS", b"ID3", b"FORM", b"\x93NUMPY", b"PK\x03\x04",
)  # fmt: skip
#: Length of each unit of time in seconds.
TIME_UNITS: Final = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}


@dataclass(frozen=True, eq=False)
class Samples:
    """Consecutive samples, shape (k,) or (k, channels), and the time of the first in seconds."""

    values: NDArray[Any]
    time: float | None = None


#: Samples in order. An error stands for a sample that cannot be read, and None for lost samples.
Batch = Sequence[Samples | InputError | None]


# -- bytes ---------------------------------------------------------------------------------


def open_chunks(source_name: str, stop_request: StopRequest) -> Iterator[bytes]:
    """Open a stream, and return an iterator of its bytes as they arrive."""
    if source_name == "-":
        return read_chunks(0, "standard input", stop_request)
    if source_name.startswith("tcp://"):
        return _read_socket(_connect(source_name), source_name, stop_request)
    path = Path(source_name)
    if not path.is_file() and not path.is_fifo() and not source_name.startswith("/dev/"):
        raise InputError(f"--signal {source_name}: there is no such file, pipe or device")
    return _read_file(source_name, stop_request)


def _connect(url: str) -> socket.socket:
    """Connect to ``tcp://host:port``."""
    try:
        address = urlsplit(url)
        host = address.hostname
        port = address.port
        (host or "").encode("idna")  # a look-up would raise a less clear error
    except ValueError:
        host = None
        port = None
    if not host or port is None or address.path.strip("/"):
        raise InputError(f"--signal {url}: give tcp://host:port")
    try:
        return socket.create_connection((host, port), _CONNECT_SECONDS)
    except OSError as error:
        raise InputError(f"--signal {url}: {error.strerror or error}") from None


def _read_socket(connection: socket.socket, url: str, stop_request: StopRequest) -> Iterator[bytes]:
    with connection:
        connection.setblocking(True)
        yield from read_chunks(connection.fileno(), url, stop_request)


def _read_file(path: str, stop_request: StopRequest) -> Iterator[bytes]:
    try:
        with stop_request.interrupts():  # opening a pipe waits for its writer
            descriptor = os.open(path, os.O_RDONLY)
    except OSError as error:
        raise InputError(f"--signal {path}: {error.strerror}") from None
    with os.fdopen(descriptor, "rb", 0):
        yield from read_chunks(descriptor, path, stop_request)


def byte_batches(
    source_name: str,
    chunks: Iterator[bytes],
    sample_shape: tuple[int, ...],
    sample_type: str,
    flaws: list[str],
) -> Iterator[Batch]:
    """Read little-endian samples of a shape and type.

    An incomplete sample at the end is added to `flaws`. Raises InputError if the bytes are a file
    of audio or arrays instead of plain numbers.
    """
    sample_dtype = np.dtype(sample_type).newbyteorder("<")
    sample_bytes = sample_dtype.itemsize * int(np.prod(sample_shape))
    remainder = b""
    for chunk_index, chunk in enumerate(chunks):
        if chunk_index == 0 and chunk.startswith(_FILE_SIGNATURES):
            raise InputError(
                f"{source_name}: {chunk[:4]!r} is the beginning of a file of audio or arrays, but "
                "a stream must be plain numbers; give the file's name, or convert it (sox -t raw, "
                "ffmpeg -f s16le)"
            )
        remainder += chunk
        n_complete_bytes = len(remainder) // sample_bytes * sample_bytes
        values = np.frombuffer(remainder[:n_complete_bytes], sample_dtype).astype(sample_type)
        yield [Samples(values.reshape(-1, *sample_shape))]
        remainder = remainder[n_complete_bytes:]
    if remainder:
        flaws.append(f"its last {len(remainder)} bytes are an incomplete sample")


# -- lines ---------------------------------------------------------------------------------


class LineReader:
    """A reader of text lines, each with one sample: a cell per channel, and perhaps a time.

    The first line may be a header, after a line such as Excel's ``sep=;``. If the header names the
    bundle's channels, their columns may have any order. Otherwise the cells are the time, if any,
    and the channels in order. Times are in `time_unit`.
    """

    def __init__(self, source_name: str, signal: SignalInput, time_unit: str = "s") -> None:
        self._source_name = source_name
        self._shape = signal.shape[1:]
        self._channels = signal.channels
        self._time_unit = time_unit
        self._n_lines = 0
        self._may_be_header = True
        #: Positions of the channels' columns if the header names them.
        self._columns: list[int] | None = None
        self._n_header_cells = 0

    def batches(self, chunks: Iterator[bytes]) -> Iterator[Batch]:
        """Read samples from lines as they arrive."""
        for lines in split_lines(chunks, _MAX_LINE_BYTES):
            yield [sample for line in lines for sample in self._read_line(line)]

    def _read_line(self, line: str | None) -> Batch:
        """Read a line's sample, the mark of lost samples or an error.

        An empty line and a header give nothing.
        """
        self._n_lines += 1
        if line is None:
            raise InputError(
                f"{self._source_name}, line {self._n_lines} has more than {_MAX_LINE_BYTES} bytes"
            )
        if not line.strip():
            return []
        stripped_line = line.strip().removeprefix("\ufeff").replace('"', "")
        if stripped_line == "gap":
            return [None]
        if self._may_be_header:
            # a tab after the equals sign is stripped
            if re.fullmatch(r"sep=.?", stripped_line):
                return []
            self._may_be_header = False
            cells = _split_cells(stripped_line)
            if not any(map(_is_number, cells)):
                self._read_header([cell.strip().lower() for cell in cells])
                return []
        try:
            return [self._read_cells(_split_cells(stripped_line), stripped_line)]
        except ValueError as error:
            return [InputError(f"{self._source_name}, line {self._n_lines}: {error}")]

    def _read_header(self, cells: list[str]) -> None:
        """Find the channels' columns; raise InputError if the header names only some of them."""
        axes = [channel.axis for channel in self._channels]
        positions_by_channel = []
        for channel in self._channels:
            channel_labels = {channel.name.lower()}
            # An axis such as x identifies a channel only if no other channel has it.
            if axes.count(channel.axis) == 1:
                channel_labels.add(channel.axis.lower())
            positions_by_channel.append(
                [position for position, cell in enumerate(cells) if cell and cell in channel_labels]
            )
        if not any(positions_by_channel):
            _LOG.warning(
                "%s: the columns are %s, not the bundle's channels %s; they are read in this order",
                self._source_name,
                ", ".join(cells),
                ", ".join(channel.name for channel in self._channels),
            )
            return
        ambiguous_names = [
            channel.name
            for channel, positions in zip(self._channels, positions_by_channel, strict=True)
            if len(positions) != 1
        ]
        if ambiguous_names:
            raise InputError(
                f"{self._source_name}: the columns are {', '.join(cells)}; exactly one of them "
                f"must be the bundle's channel {ambiguous_names[0]!r}"
            )
        if len(cells) > len(self._channels) + 1:
            raise InputError(
                f"{self._source_name}: the columns are {', '.join(cells)}; leave only the time and "
                f"the bundle's channels {', '.join(channel.name for channel in self._channels)}"
            )
        self._columns = [positions[0] for positions in positions_by_channel]
        for position in set(range(len(cells))).difference(self._columns):
            _LOG.info(
                "%s: the times are read from the column %r (numbers in %s)",
                self._source_name,
                cells[position],
                self._time_unit,
            )
        self._n_header_cells = len(cells)

    def _read_cells(self, cells: list[str], line: str) -> Samples:
        """Read the cells of one line; raise ValueError if they are not a sample."""
        n_channels = len(self._channels)
        if len(cells) not in (n_channels, n_channels + 1):
            expected_cells = f"{n_channels}, or the time and {n_channels}"
            raise ValueError(f"{len(cells)} cells; give {expected_cells}")
        if self._columns is not None and len(cells) != self._n_header_cells:
            raise ValueError(f"{len(cells)} cells, but the header has {self._n_header_cells}")
        columns = self._columns or range(len(cells) - n_channels, len(cells))
        sample_cells = [cells[position] for position in columns]
        if not all(map(_is_number, sample_cells)):
            raise ValueError(f"{line[:40]!r} has a cell that is not a number")
        values = np.array([float(cell) for cell in sample_cells], np.float32)
        values = values.reshape(1, *self._shape)
        if len(cells) == n_channels:
            return Samples(values)
        (time_cell,) = (cell for position, cell in enumerate(cells) if position not in columns)
        return Samples(values, self._read_time(time_cell))

    def _read_time(self, cell: str) -> float:
        """Read a time in seconds; raise ValueError if it is neither a number nor in ISO 8601."""
        if not _is_number(cell):
            try:
                time = datetime.fromisoformat(cell.strip())
            except ValueError:
                raise ValueError(f"{cell!r} is not a time: give a number, or ISO 8601") from None
            # A time without a zone may be a local time, but only differences matter.
            return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
        if not math.isfinite(float(cell)):
            raise ValueError(f"{cell!r} is not a time")
        return float(cell) * TIME_UNITS[self._time_unit]


def _split_cells(line: str) -> list[str]:
    """Split a line at semicolons, with decimal commas, or else at tabs or commas."""
    if ";" in line:
        return line.replace(",", ".").split(";")
    return line.split("\t" if "\t" in line else ",")


def _is_number(cell: str) -> bool:
    try:
        float(cell.replace("_", "?"))  # float() accepts 1_000, which no instrument writes
    except ValueError:
        return False
    return True
