"""Windows of a signal that comes as samples: from standard input, a socket, or a recording.

Samples that follow each other come as batches: arrays, lost samples, or what could not be read.
"""

from __future__ import annotations

import os
import socket
import wave
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray

from gatewise.errors import InputError
from gatewise.models.instances import DTYPES
from gatewise_edge.sensors.instance_source import (
    InstanceSource,
    Item,
    read_pieces,
    split_lines,
)
from gatewise_edge.stop_request import Stop
from gatewise_signals.signal_input import SignalInput
from gatewise_signals.steps import Channels
from gatewise_signals.windows import Windower

FORMATS: Final = (*DTYPES, "csv")
#: Bytes of one line of samples at most.
_LONGEST_LINE: Final = 2**16
#: Samples of a recording taken at a time.
_SAMPLES: Final = 4096
_CONNECT_SECONDS: Final = 10.0
_WAVE_TYPES: Final = {1: "|u1", 2: "<i2", 4: "<i4"}


@dataclass(frozen=True, eq=False)
class _Samples:
    """Samples that follow each other, shape (k,) or (k, channels), and the first one's second."""

    values: NDArray[Any]
    time: float | None = None


#: Samples as they come, and what is not one: errors, and None where samples were lost.
_Batch = Sequence[_Samples | InputError | None]


def _windows(batches: Iterator[_Batch], windower: Windower) -> Iterator[list[Item]]:
    """Windows cut from samples as they come, none across a gap."""
    gap = False  # since the last window
    timed = windower.rate_hz is not None  # seconds count from the first sample at the rate
    for batch in batches:
        ready: list[Item] = []
        for samples in batch:
            if not isinstance(samples, _Samples):
                windower.reset()
                gap, timed = True, False
                if samples is not None:
                    ready.append((samples, {}))
                continue
            if samples.time is not None and windower.rate_hz is None:
                raise InputError("the samples have times: set rate_hz, to find gaps")
            gaps = windower.gaps
            windows = windower.push(samples.values, samples.time)
            gap |= windower.gaps > gaps
            for window in windows:
                seconds = window.time
                if seconds is None and timed and windower.rate_hz is not None:
                    seconds = window.start / windower.rate_hz
                time = None if seconds is None else round(seconds, 6)
                position = {"start": window.start, "time": time}
                ready.append((window.values, position | ({"gap": True} if gap else {})))
                gap = False
        yield ready


def open_signal(
    given: str,
    signal: SignalInput,
    stop: Stop,
    *,
    rate_hz: float | None = None,
    hop: int | None = None,
    form: str | None = None,
) -> InstanceSource:
    """Open what ``--signal`` names, to be cut into windows of the bundle's shape.

    ``-``: standard input. ``tcp://host:port``: a socket. ``name.wav``, ``name.npy``, ``name.csv``:
    one long recording. Any other file, as a pipe: read as a stream. `form` is what a stream holds:
    whole samples, their channels interleaved, as numbers of a type in little-endian order, by
    default the bundle's; or ``csv``, a line a sample: its channels, with the seconds before them or
    without, or the word ``gap``; separated by commas, tabs, or semicolons beside decimal commas.
    Raises InputError if it is none of these, cannot be opened, or is for another rate than the
    bundle's blocks.
    """
    rate = _rate(signal, rate_hz)
    suffix = Path(given).suffix.lower()
    if len(signal.shape) > 2:
        raise InputError(f"--signal: the bundle takes pictures of shape {signal.shape}; use --data")
    if form is not None and form not in FORMATS:
        raise InputError(f"signal_format {form}: choose one of {', '.join(FORMATS)}")
    if form is not None and suffix in (".wav", ".npy", ".csv"):
        raise InputError(f"signal_format is for streams; {given} says itself what it holds")
    if suffix == ".wav":
        batches = _of_wave(given, signal, rate)
    elif suffix == ".npy":
        batches = _of_array(given, signal)
    elif "csv" in (form, suffix[1:]):
        batches = _of_lines(_pieces(given, stop), signal, given)
    else:
        batches = _of_bytes(_pieces(given, stop), signal, form or signal.dtype)
    return InstanceSource(_windows(batches, Windower(signal.shape[0], hop, rate_hz=rate)))


def _rate(signal: SignalInput, given: float | None) -> float | None:
    """The rate given, which must be that of the blocks on the window itself."""
    rates = {
        float(step.rate_hz)
        for step in signal.graph.steps
        if hasattr(step, "rate_hz") and all(isinstance(i, Channels) for i in step.inputs)
    }
    if given is None:
        return rates.pop() if len(rates) == 1 else None
    if rates and given not in rates:
        wanted = " or ".join(f"{rate:g}" for rate in sorted(rates))
        raise InputError(f"rate_hz {given:g}: the bundle's blocks are for {wanted} samples a s")
    return given


# -- streams -------------------------------------------------------------------------------


def _pieces(given: str, stop: Stop) -> Iterator[bytes]:
    """Bytes as they come."""
    if given == "-":
        return read_pieces(0, "standard input", stop)
    if given.startswith("tcp://"):
        return _of_socket(_connected(given), given, stop)
    if not Path(given).is_file() and not Path(given).is_fifo() and not given.startswith("/dev/"):
        raise InputError(f"--signal {given}: there is no such file, pipe or device")
    return _of_file(given, stop)


def _connected(url: str) -> socket.socket:
    try:
        address = urlsplit(url)
        host, port = address.hostname, address.port
        (host or "").encode("idna")  # as a look-up does
    except ValueError:
        host, port = None, None
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


def _of_bytes(pieces: Iterator[bytes], signal: SignalInput, dtype: str) -> Iterator[_Batch]:
    kind = np.dtype(dtype).newbyteorder("<")
    size = kind.itemsize * int(np.prod(signal.shape[1:]))
    remainder = b""
    for piece in pieces:
        remainder += piece
        whole = len(remainder) // size * size
        values = np.frombuffer(remainder[:whole], kind).astype(dtype)
        yield [_Samples(values.reshape(-1, *signal.shape[1:]))]
        remainder = remainder[whole:]


def _of_lines(pieces: Iterator[bytes], signal: SignalInput, name: str) -> Iterator[_Batch]:
    number = 0
    for lines in split_lines(pieces, _LONGEST_LINE):
        found: list[_Samples | InputError | None] = []
        for text in lines:
            number += 1
            if text is None:
                raise InputError(f"{name}: a line of more than {_LONGEST_LINE} bytes is no sample")
            if text.strip() == "gap":
                found.append(None)
            elif text.strip():
                try:
                    found.append(_sample(text.strip(), signal.shape[1:]))
                except ValueError as error:
                    if number > 1:  # else a header
                        found.append(InputError(f"{name}, line {number}: {error}"))
        yield found


def _sample(text: str, channels: tuple[int, ...]) -> _Samples:
    count = int(np.prod(channels))
    separator = next((s for s in ";\t" if s in text), ",")
    cells = text.replace(",", ".").split(";") if separator == ";" else text.split(separator)
    if len(cells) not in (count, count + 1):
        raise ValueError(f"{len(cells)} cells; give {count}, or the seconds and {count}")
    try:
        numbers = [float(cell) for cell in cells]
    except ValueError:
        raise ValueError(f"{text[:40]!r} has a cell that is no number") from None
    values = np.array(numbers[-count:], np.float32).reshape(1, *channels)
    if len(cells) == count:
        return _Samples(values)
    if not np.isfinite(numbers[0]):
        raise ValueError(f"{cells[0]!r} is no time in seconds")
    return _Samples(values, numbers[0])


# -- recordings ----------------------------------------------------------------------------


def _of_wave(name: str, signal: SignalInput, rate: float | None) -> Iterator[_Batch]:
    try:
        recording = wave.open(name, "rb")  # noqa: SIM115 - read later, piece by piece
        size, channels = recording.getsampwidth(), recording.getnchannels()
    except (OSError, EOFError, wave.Error) as error:
        raise InputError(f"--signal {name}: {error}") from None
    wanted = int(np.prod(signal.shape[1:]))
    problems = []
    if size not in _WAVE_TYPES:
        problems.append(f"samples of {8 * size} bits; 8, 16 or 32 can be")
    elif np.dtype(signal.dtype).kind == "f":
        problems.append(
            f"whole numbers, and the bundle takes {signal.dtype}: give an .npy file of values as "
            "in training"
        )
    if channels != wanted:
        problems.append(f"{channels} channels, not {wanted}")
    if rate is not None and recording.getframerate() != rate:
        problems.append(f"{recording.getframerate()} samples a second, not {rate:g}")
    if problems:
        recording.close()
        raise InputError(f"--signal {name} has {'; '.join(problems)}")

    def batches() -> Iterator[_Batch]:
        with recording:
            while piece := recording.readframes(_SAMPLES):
                values = np.frombuffer(piece, _WAVE_TYPES[size])
                yield [_Samples(values.reshape(-1, *signal.shape[1:]))]

    return batches()


def _of_array(name: str, signal: SignalInput) -> Iterator[_Batch]:
    try:
        values = np.load(name, mmap_mode="r", allow_pickle=False)
    except (OSError, EOFError, ValueError) as error:
        raise InputError(f"--signal {name}: {error}") from None
    if values.dtype.kind not in "fiub" or values.shape[1:] != signal.shape[1:] or not values.ndim:
        raise InputError(
            f"--signal {name} holds {values.dtype} of shape {values.shape}; a recording has shape "
            f"({', '.join(['samples', *map(str, signal.shape[1:])])})"
        )
    starts = range(0, len(values), _SAMPLES)
    return ([_Samples(np.array(values[i : i + _SAMPLES]))] for i in starts)
