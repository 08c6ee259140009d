"""The source of ``--signal``: it checks samples against the bundle and cuts them into windows."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final, Literal

import numpy as np

from gatewise.documents import Meta, Positive
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
        tuple[float, ...],
        FileOption("Value of one count of --signal; one number, or one for each channel."),
    ] = ()
    offset: Annotated[
        tuple[float, ...], FileOption("Number to add to counts before scaling, as in Linux IIO.")
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
                f"{signal.n_channels}"
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
        and not _are_equal(rate_hz, signal.rate_hz)
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
        if len(getattr(options, option_name)) not in (0, 1, signal.n_channels):
            raise InputError(
                f"{option_name}: give one number, or one for each of the bundle's channels"
            )
    if 0 in options.scale:
        raise InputError("scale is 0; give the unit of one count")
    for channel in signal.channels:
        if options.unit is not None and channel.unit not in ("", options.unit):
            raise InputError(
                f"unit {options.unit}: channel {channel.name!r} of the bundle is in "
                f"{channel.unit}; give the scale that makes this unit"
            )


# -- rate ----------------------------------------------------------------------------------


def _are_equal(rate_hz: float, other_hz: float) -> bool:
    # A rate such as 100/3 is written with a few digits.
    return math.isclose(rate_hz, other_hz, rel_tol=1e-6)


def _sample_rate_hz(
    source_name: str, signal: SignalInput, options: SignalOptions, recording: Recording | None
) -> float | None:
    """Return the rate of the samples.

    Raises InputError if it is not the bundle's and `convert` is not set.
    """
    stated_hz = options.rate_hz
    recorded_hz = None if recording is None else recording.rate_hz
    if recorded_hz is not None and stated_hz is not None and not _are_equal(recorded_hz, stated_hz):
        raise InputError(
            f"--signal {source_name} has {recorded_hz:g} samples per second, not {stated_hz:g}"
        )
    rate_hz = recorded_hz if stated_hz is None else stated_hz
    if rate_hz is None or signal.rate_hz is None or _are_equal(rate_hz, signal.rate_hz):
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
    if options.scale or options.offset:
        bundle_scale = np.array([channel.scale for channel in signal.channels])
        scale = np.array(options.scale) if options.scale else bundle_scale
        return SampleConversion(dtype, scale / bundle_scale, np.array(options.offset or (0.0,)))
    if recording is None or recording.kind == "array":
        return SampleConversion(dtype)
    # Full scale is 1 for floats and 2 ** (bits - 1) for integers.
    is_float = recording.kind == "float"
    full_scale = 1.0 if is_float else 2.0 ** (recording.bits - 1)
    bundle_full_scale = 1.0 if dtype.kind == "f" else 2.0 ** (8 * dtype.itemsize - 1)
    is_same_scale = full_scale == bundle_full_scale and is_float == (dtype.kind == "f")
    if not is_same_scale and not options.convert:
        recording_type = "floats" if is_float else f"integers of {recording.bits} bits"
        raise InputError(
            f"--signal {source_name} has {recording_type}, but the bundle was trained on "
            f"{dtype.name}; in --settings, convert = true rescales the full scale, and "
            "scale = ... states the value of a count"
        )
    # The zero of unsigned integers is in the middle of their range.
    zero_offset = bundle_full_scale if dtype.kind == "u" else 0.0
    factor = bundle_full_scale / full_scale
    return SampleConversion(dtype, np.array([factor]), np.array([zero_offset / factor]))
