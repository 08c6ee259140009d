"""The source of ``--signal``: it checks samples against the bundle and cuts them into windows."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from gatewise.documents import Meta, Positive
from gatewise.errors import InputError, not_installed
from gatewise.models.instances import DTYPES
from gatewise.settings import FileOption, Settings
from gatewise_edge.sensors.instance_source import InstanceSource, SourcedInstance
from gatewise_edge.sensors.recordings import Recording, open_recording
from gatewise_edge.sensors.streams import (
    TIME_UNITS,
    Batch,
    LineReader,
    Samples,
    byte_batches,
    open_chunks,
)
from gatewise_edge.stop_request import StopRequest
from gatewise_signals.signal_input import SignalInput
from gatewise_signals.windows import CLOCK_ERROR, Windower

_LOG = logging.getLogger(__name__)

#: Types of a stream's samples that `signal_format` may name.
FORMATS: Final = (*DTYPES, "csv")
#: Endings of files that state the format of their samples.
_RECORDING_SUFFIXES: Final = (".wav", ".flac", ".npy", ".csv")
#: Endings of files of plain numbers.
_RAW_SUFFIXES: Final = ("", ".raw", ".pcm", ".bin")
#: Largest denominator of the ratio of two rates. The filter of resample_poly has 20 times as many
#: taps as the larger of numerator and denominator, so that a finer ratio costs more time.
_MAX_DENOMINATOR: Final = 1000
#: Samples that resampling needs on each side of a window, at the lower of the two rates: half the
#: length of the filter of resample_poly.
_MARGIN_SAMPLES: Final = 10


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


class WindowResampler:
    """A resampler from windows at `from_hz` to windows of `output_length` samples at `to_hz`.

    An input window has `margin` further samples on each side, so that resampling is exact up to the
    ends of the window. The attribute `input_length` includes the margins.
    """

    def __init__(self, from_hz: float, to_hz: float, output_length: int) -> None:
        try:
            from scipy.signal import resample_poly
        except ModuleNotFoundError as error:
            raise not_installed(error, "train") from None
        self._resample: Callable[..., NDArray[Any]] = resample_poly
        ratio = Fraction(to_hz / from_hz).limit_denominator(_MAX_DENOMINATOR)
        self._up = ratio.numerator
        self._down = ratio.denominator
        self._output_length = output_length
        # The margin is a whole number of periods of the two rates.
        n_periods = math.ceil(_MARGIN_SAMPLES * max(1 / self._up, 1 / self._down))
        self.margin = n_periods * self._down
        self.input_length = self.n_input_samples(output_length) + 2 * self.margin

    def n_input_samples(self, n_samples: int) -> int:
        """Number of samples at `from_hz` in the time of `n_samples` at `to_hz`."""
        return math.ceil(n_samples * self._down / self._up)

    def resample(self, window: NDArray[Any]) -> NDArray[np.float64]:
        """Resample a window with its margins, shape (length,) or (length, channels)."""
        samples = self._resample(window.astype(np.float64), self._up, self._down)
        first_sample = self.margin * self._up // self._down
        resampled_window: NDArray[np.float64] = samples[
            first_sample : first_sample + self._output_length
        ]
        return resampled_window


# -- values --------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class SampleConversion:
    """The conversion from samples to the bundle's values: ``(sample + offset) * factor``.

    The result has the type of windows. Integers are rounded and clipped to the range of their type.
    """

    dtype: np.dtype[Any]
    factor: NDArray[np.float64] = field(default_factory=lambda: np.ones(1))
    offset: NDArray[np.float64] = field(default_factory=lambda: np.zeros(1))

    def cast(self, values: NDArray[Any]) -> NDArray[Any]:
        """Convert values to the type of windows."""
        if self.dtype.kind == "f":
            return values.astype(np.float32)
        type_range = np.iinfo(self.dtype)
        integers: NDArray[Any] = np.clip(np.rint(values), type_range.min, type_range.max)
        return integers.astype(self.dtype)

    def convert(self, samples: NDArray[Any]) -> NDArray[Any]:
        """Convert samples, shape (k,) or (k, channels), to the bundle's values."""
        if (self.factor == 1).all() and not self.offset.any():
            return samples
        return self.cast((samples.astype(np.float64) + self.offset) * self.factor)


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


# -- windows -------------------------------------------------------------------------------


class WindowStream(InstanceSource):
    """A source of windows, cut from samples as they arrive, and never across a gap.

    It ends with an InputError if there were not enough samples for a window, or if the times of the
    samples show another rate.
    """

    def __init__(
        self,
        source_name: str,
        signal: SignalInput,
        batches: Iterator[Batch],
        conversion: SampleConversion,
        *,
        rate_hz: float | None,
        hop: int | None,
        resampler: WindowResampler | None,
        flaws: list[str],
    ) -> None:
        self._source_name = source_name
        self._length = signal.shape[0]
        self._conversion = conversion
        self._resampler = resampler
        self._flaws = flaws
        self._n_marked_gaps = 0  # gaps from a line "gap" or an unreadable sample
        self._n_errors = 0
        length = self._length
        if resampler is not None:
            hop = max(1, resampler.n_input_samples(hop or length))
            length = resampler.input_length
        self._windower = Windower(length, hop, rate_hz=rate_hz)
        super().__init__(self._instances(batches))

    @property
    def counts(self) -> dict[str, int]:
        """Counts so far: samples, windows, gaps, and lost samples, windows and lines."""
        windower = self._windower
        return {
            "samples": windower.n_samples,
            "windows": windower.n_windows,
            "gaps": windower.n_gaps + self._n_marked_gaps,
            "dropped_samples": windower.n_dropped,
            "refused_windows": windower.n_refused,
            "bad_samples": self._n_errors,
            "flaws": len(self._flaws),
        }

    def _instances(self, batches: Iterator[Batch]) -> Iterator[list[SourcedInstance]]:
        windower = self._windower
        follows_gap = False  # whether there was a gap since the last window
        # Without times, the seconds of a window count from the first sample, until there is a gap.
        is_continuous = windower.rate_hz is not None
        for batch in batches:
            instances: list[SourcedInstance] = []
            for samples in batch:
                # Cut no window across lost or unreadable samples.
                if not isinstance(samples, Samples):
                    windower.reset()
                    self._n_marked_gaps += 1
                    follows_gap = True
                    is_continuous = False
                    if samples is not None:
                        self._n_errors += 1
                        instances.append((samples, {}))
                    continue
                if samples.time is not None and windower.rate_hz is None:
                    raise InputError("the samples have times: set rate_hz, so that gaps are found")
                # Cut the windows that these samples complete.
                n_gaps_before = windower.n_gaps
                n_refused_before = windower.n_refused
                windows = windower.push(self._conversion.convert(samples.values), samples.time)
                follows_gap |= windower.n_gaps > n_gaps_before
                for window in windows:
                    seconds = window.time
                    if seconds is None and is_continuous and windower.rate_hz is not None:
                        seconds = window.start / windower.rate_hz
                    instances.append(
                        self._instance(window.values, window.start, seconds, follows_gap)
                    )
                    follows_gap = False
                if windower.n_refused > n_refused_before:
                    follows_gap = True
                    instances.append((self._rate_error(), {}))
            yield instances
        windower.reset()
        self._check_end()

    def _instance(
        self, window: NDArray[Any], first_sample: int, seconds: float | None, follows_gap: bool
    ) -> SourcedInstance:
        """Make the instance of a window, with its place in the stream."""
        if self._resampler is not None:
            window = self._conversion.cast(self._resampler.resample(window))
            first_sample += self._resampler.margin
            if seconds is not None and self._windower.rate_hz is not None:
                seconds += self._resampler.margin / self._windower.rate_hz
        time = None if seconds is None else round(seconds, 6)  # microseconds
        gap_field = {"gap": True} if follows_gap else {}
        return window, {"start": first_sample, "time": time} | gap_field

    def _rate_error(self) -> InputError:
        """Return the error of a window with another rate; raise it if there was no window yet."""
        error = InputError(f"--signal {self._source_name}: {self._rate_problem()}")
        if not self._windower.n_windows:
            raise error
        return error

    def _rate_problem(self) -> str:
        """Describe how the rate by the samples' times differs; empty if it does not."""
        measured_hz = self._windower.measured_hz
        rate_hz = self._windower.rate_hz
        if rate_hz is None or not self._windower.is_timed:
            return ""
        if measured_hz is None:
            return "the times of the samples do not advance"
        ratio = measured_hz / rate_hz
        if abs(1 / ratio - 1) <= CLOCK_ERROR:
            return ""
        # A ratio such as 1e-3 shows that the times have another unit.
        units = [
            unit for unit, seconds in TIME_UNITS.items() if abs(ratio / seconds - 1) <= CLOCK_ERROR
        ]
        advice = "set rate_hz to their rate, and convert = true to resample them"
        if units:
            advice = f'if the times are in {units[0]}, set time_unit = "{units[0]}"'
        return (
            f"by their times there are {measured_hz:.6g} samples per second, but the bundle's "
            f"blocks are for {rate_hz:g}: {advice}"
        )

    def _check_end(self) -> None:
        """Log the flaws of the stream at its end; InputError if there was no window."""
        for flaw in self._flaws:
            _LOG.warning("%s: %s; its complete windows are answered", self._source_name, flaw)
        windower = self._windower
        if windower.n_windows:
            return
        n_samples = windower.n_samples
        n_gaps = self.counts["gaps"]
        problems = [
            f"{n_samples} samples with {n_gaps} gaps contain no window of {windower.length}",
            self._rate_problem() if n_samples else "",
            *self._flaws,
        ]
        raise InputError(f"--signal {self._source_name}: {'; '.join(filter(None, problems))}")
