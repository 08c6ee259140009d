"""The source of ``--signal``, which checks samples and cuts them into windows."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

import numpy as np

from gatewise.documents import Finite, Meta, Positive
from gatewise.errors import InputError
from gatewise.models.instances import DTYPES
from gatewise.settings import FileOption, Settings
from gatewise_edge.sensors.recordings import Recording, open_recording
from gatewise_edge.sensors.sample_conversion import SampleConversion, WindowResampler
from gatewise_edge.sensors.streams import (
    Batch,
    LineReader,
    Samples,
    byte_batches,
    open_chunks,
)
from gatewise_edge.sensors.window_stream import WindowStream
from gatewise_edge.stop_request import StopRequest
from gatewise_signals.signal_input import SignalInput

#: Types of a stream's samples that `signal_format` may name.
FORMATS: Final = (*DTYPES, "csv")
#: Endings of files that state the format of their samples.
_RECORDING_SUFFIXES: Final = (".wav", ".flac", ".npy", ".csv")
#: Endings of files of plain numbers.
_RAW_SUFFIXES: Final = ("", ".raw", ".pcm", ".bin")


class SignalOptions(Settings, frozen=True, kw_only=True):
    """Settings of the samples of ``--signal``."""

    signal_format: Annotated[
        str | None,
        FileOption(
            "Type of a stream's samples: int16, float32, ... or csv; by default the bundle's."
        ),
    ] = None
    rate_hz: Annotated[
        Positive | None,
        FileOption("Samples per second of --signal; by default the recording's, or the bundle's."),
    ] = None
    hop: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        FileOption(
            "Samples from one window to the next at the bundle's rate; by default a window."
        ),
    ] = None
    convert: Annotated[
        bool,
        FileOption("Whether to resample --signal to the bundle's rate and rescale its full scale."),
    ] = False
    scale: Annotated[
        Finite | tuple[Finite, ...],
        FileOption("Value of one count of --signal; one number, or a list with one per channel."),
    ] = ()
    offset: Annotated[
        Finite | tuple[Finite, ...],
        FileOption("Number to add to counts before scaling, as in Linux IIO; one, or a list."),
    ] = ()
    unit: Annotated[str | None, FileOption("Name of the unit of --signal, such as m/s2.")] = None
    time_unit: Annotated[
        Literal["s", "ms", "us", "ns"], FileOption("Unit of the times in lines of --signal.")
    ] = "s"


def open_signal(
    source_name: str, signal: SignalInput, stop_request: StopRequest, options: SignalOptions
) -> WindowStream:
    """Open the source that ``--signal`` names, and cut its samples into windows of the bundle.

    `source_name` is ``-`` for standard input, ``tcp://host:port`` for a socket, a recording
    (``name.wav``, ``name.flac``, ``name.npy`` or ``name.csv``), or another file, such as a pipe. A
    stream has samples with interleaved channels as little-endian numbers, or lines of text
    (:class:`.LineReader`).

    Raises InputError if the source is anything else, cannot be opened, or has another rate, unit,
    width or number of channels than the bundle.
    """
    _check_options(source_name, signal, options)
    recording = open_recording(source_name)
    rate_hz = _sample_rate_hz(source_name, signal, options, recording)
    # Open the samples of a recording, of lines or of bytes.
    flaws: list[str] = []
    batches: Iterator[Batch]
    if recording is not None:
        if recording.n_channels != signal.n_channels:
            raise InputError(
                f"--signal {source_name} has {recording.n_channels} channels, the bundle takes "
                f"{signal.n_channels}; give a recording of those (sox remix selects channels)"
            )
        flaws = recording.flaws
        batch_shape = (-1, *signal.shape[1:])
        batches = ([Samples(frames.reshape(batch_shape))] for frames in recording.frames)
    elif "csv" in (options.signal_format, Path(source_name).suffix.lower()[1:]):
        line_reader = LineReader(source_name, signal, options.time_unit)
        batches = line_reader.batches(open_chunks(source_name, stop_request))
    else:
        chunks = open_chunks(source_name, stop_request)
        sample_type = options.signal_format or signal.dtype
        batches = byte_batches(source_name, chunks, signal.shape[1:], sample_type, flaws)
    # Cut windows, with the bundle's rate and values.
    resampler = None
    if (
        rate_hz is not None
        and signal.rate_hz is not None
        and not _are_equal_rates(rate_hz, signal.rate_hz)
    ):
        resampler = WindowResampler(rate_hz, signal.rate_hz, signal.shape[0])
    conversion = _sample_conversion(source_name, signal, options, recording)
    return WindowStream(
        source_name,
        signal,
        batches,
        conversion,
        rate_hz=rate_hz,
        hop=options.hop,
        resampler=resampler,
        flaws=flaws,
        time_unit=options.time_unit,
    )


def _check_options(source_name: str, signal: SignalInput, options: SignalOptions) -> None:
    """Refuse options that contradict each other or the bundle."""
    if len(signal.shape) > 2:
        raise InputError(f"--signal: the bundle takes pictures of shape {signal.shape}; use --data")
    if options.signal_format is not None and options.signal_format not in FORMATS:
        raise InputError(
            f"signal_format {options.signal_format}: choose one of {', '.join(FORMATS)}"
        )
    suffix = Path(source_name).suffix.lower()
    if options.signal_format is not None and suffix in _RECORDING_SUFFIXES:
        raise InputError(f"signal_format is for streams; {source_name} states its format itself")
    if (
        options.signal_format is None
        and suffix not in (*_RECORDING_SUFFIXES, *_RAW_SUFFIXES)
        and Path(source_name).is_file()
    ):
        raise InputError(
            f"--signal {source_name}: the format is unknown from the ending; set signal_format in "
            f"--settings, or give one of {', '.join(_RECORDING_SUFFIXES)}"
        )
    for option_name in ("scale", "offset"):
        if np.size(getattr(options, option_name)) not in (0, 1, signal.n_channels):
            raise InputError(
                f"{option_name}: give one number, or one for each of the bundle's channels"
            )
    if 0 in np.atleast_1d(options.scale):
        raise InputError("scale is 0; give the unit of one count")
    for channel in signal.channels:
        if options.unit is not None and channel.unit not in ("", options.unit):
            raise InputError(
                f"unit {options.unit}: channel {channel.name!r} of the bundle is in "
                f"{channel.unit}; give the scale that makes this unit"
            )


# -- rate ----------------------------------------------------------------------------------


def _are_equal_rates(rate_hz: float, other_hz: float) -> bool:
    """Whether two rates are equal, although a rate such as 100/3 is written with a few digits."""
    return math.isclose(rate_hz, other_hz, rel_tol=1e-6)


def _sample_rate_hz(
    source_name: str, signal: SignalInput, options: SignalOptions, recording: Recording | None
) -> float | None:
    """Find the rate of the samples: the option's, the recording's or the bundle's.

    Raises InputError if it is not the bundle's and `convert` is not set.
    """
    stated_hz = options.rate_hz
    recorded_hz = None if recording is None else recording.rate_hz
    if (
        recorded_hz is not None
        and stated_hz is not None
        and not _are_equal_rates(recorded_hz, stated_hz)
    ):
        raise InputError(
            f"--signal {source_name} has {recorded_hz:g} samples per second, not the rate_hz of "
            f"{stated_hz:g} in --settings: correct or omit it"
        )
    rate_hz = recorded_hz if stated_hz is None else stated_hz
    if rate_hz is None or signal.rate_hz is None or _are_equal_rates(rate_hz, signal.rate_hz):
        return signal.rate_hz if rate_hz is None else rate_hz
    if not options.convert:
        rate_source = "rate_hz" if recorded_hz is None else f"--signal {source_name}"
        raise InputError(
            f"{rate_source}: {rate_hz:g} samples per second, but the bundle's blocks are for "
            f"{signal.rate_hz:g} samples per second; convert = true in --settings resamples them"
        )
    return rate_hz


# -- values --------------------------------------------------------------------------------


def _sample_conversion(
    source_name: str, signal: SignalInput, options: SignalOptions, recording: Recording | None
) -> SampleConversion:
    """Choose the conversion of samples to the bundle's values.

    Raises InputError if a recording has another width than the bundle and `convert` is not set.
    """
    dtype = np.dtype(signal.dtype)
    if np.size(options.scale) or np.size(options.offset):
        bundle_scale = np.array([channel.scale for channel in signal.channels])
        scale = np.atleast_1d(options.scale) if np.size(options.scale) else bundle_scale
        offset = np.atleast_1d(options.offset) if np.size(options.offset) else np.zeros(1)
        return SampleConversion(dtype, scale / bundle_scale, offset)
    sample_range = _sample_range(options, recording)
    if sample_range is None:
        return SampleConversion(dtype)
    bundle_range = _SampleRange.of_type(dtype)
    if not options.convert and sample_range != bundle_range:
        raise InputError(
            f"--signal {source_name} has {sample_range}, but the bundle was trained on "
            f"{dtype.name}; in --settings, convert = true rescales the full scale, and "
            "scale = ... states the value of a count"
        )
    factor = bundle_range.full_scale / sample_range.full_scale
    zero_offset = bundle_range.middle / factor - sample_range.middle
    return SampleConversion(dtype, np.array([factor]), np.array([zero_offset]))


@dataclass(frozen=True)
class _SampleRange:
    """Range of samples: `full_scale` above and below the `middle`. Floats have full scale 1."""

    is_float: bool
    full_scale: float
    middle: float = field(default=0.0, compare=False)

    @classmethod
    def of_type(cls, dtype: np.dtype[Any]) -> Self:
        """Range of a type; for unsigned integers the middle of the range stands for 0."""
        if dtype.kind == "f":
            return cls(is_float=True, full_scale=1.0)
        half_range = 2.0 ** (8 * dtype.itemsize - 1)
        return cls(False, half_range, half_range if dtype.kind == "u" else 0.0)

    def __str__(self) -> str:
        return (
            "floats" if self.is_float else f"integers of {1 + int(np.log2(self.full_scale))} bits"
        )


def _sample_range(options: SignalOptions, recording: Recording | None) -> _SampleRange | None:
    """Find the range of the samples; None for values of any scale.

    Floats of a stream have a range only if `convert` is set. Otherwise they may be counts.
    """
    if recording is None:
        if options.signal_format in (None, "csv"):
            return None
        sample_range = _SampleRange.of_type(np.dtype(options.signal_format))
        return None if sample_range.is_float and not options.convert else sample_range
    if recording.kind == "array":
        return None
    if recording.kind == "float":
        return _SampleRange(is_float=True, full_scale=1.0)
    return _SampleRange(is_float=False, full_scale=2.0 ** (recording.bits - 1))
