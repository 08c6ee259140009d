"""Windows cut from the samples of ``--signal``, which are checked against the bundle."""

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
from gatewise_edge.sensors.instance_source import InstanceSource, Item
from gatewise_edge.sensors.recordings import Recording, open_recording
from gatewise_edge.sensors.streams import (
    TIME_UNITS,
    Batch,
    LineReader,
    Samples,
    byte_batches,
    open_pieces,
)
from gatewise_edge.stop_request import Stop
from gatewise_signals.signal_input import SignalInput
from gatewise_signals.windows import CLOCK_ERROR, Windower

_LOG = logging.getLogger(__name__)

FORMATS: Final = (*DTYPES, "csv")
#: Endings of files that state the form of their samples, and of files of plain numbers.
_RECORDINGS: Final = (".wav", ".flac", ".npy", ".csv")
_RAW: Final = ("", ".raw", ".pcm", ".bin")
#: Largest denominator of the ratio of two rates.
_LARGEST_RATIO: Final = 1000
#: Samples on each side of a window that resampling needs, at the lower of the two rates.
_MARGIN: Final = 10


class SignalOptions(Settings, frozen=True, kw_only=True):
    """Settings of the samples of ``--signal``."""

    signal_format: Annotated[
        str | None,
        FileOption("Type of a stream's samples: int16, float32, ... or csv; else the bundle's."),
    ] = None
    rate_hz: Annotated[
        Positive | None,
        FileOption("Samples per s of --signal; by default the recording's, or the bundle's."),
    ] = None
    hop: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        FileOption("Samples from one window to the next, at the bundle's rate; a window's."),
    ] = None
    convert: Annotated[
        bool,
        FileOption("Resample --signal to the bundle's rate, bring its width to full scale; false."),
    ] = False
    scale: Annotated[
        tuple[float, ...], FileOption("Unit of a count of --signal, of all or each channel.")
    ] = ()
    offset: Annotated[
        tuple[float, ...], FileOption("Added to counts before the scale, as Linux IIO's.")
    ] = ()
    unit: Annotated[str | None, FileOption("Name of the unit of --signal, such as m/s2.")] = None
    time_unit: Annotated[
        Literal["s", "ms", "us", "ns"], FileOption("Unit of times in lines of --signal.")
    ] = "s"


def open_signal(
    source: str, signal: SignalInput, stop: Stop, options: SignalOptions
) -> WindowStream:
    """Open what ``--signal`` names, to be cut into windows of the bundle's shape.

    ``-``: standard input. ``tcp://host:port``: a socket. ``name.wav``, ``name.flac``, ``name.npy``,
    ``name.csv``: one long recording. Any other file, as a pipe: read as a stream of whole samples,
    their channels interleaved, as little-endian numbers of a type; or as lines of csv
    (:class:`.LineReader`).

    Raises InputError if it is anything else, cannot be opened, or has another rate, unit, width or
    number of channels than the bundle.
    """
    _check_options(source, signal, options)
    recording = open_recording(source)
    rate = _rate(source, signal, options, recording)
    # samples of a recording, of lines or of bytes
    flaws: list[str] = []
    batches: Iterator[Batch]
    if recording is not None:
        if recording.n_channels != signal.n_channels:
            raise InputError(
                f"--signal {source} has {recording.n_channels} channels, the bundle takes "
                f"{signal.n_channels}"
            )
        flaws = recording.flaws
        batches = ([Samples(f.reshape(-1, *signal.shape[1:]))] for f in recording.frames)
    elif "csv" in (options.signal_format, Path(source).suffix.lower()[1:]):
        batches = LineReader(source, signal, options.time_unit).batches(open_pieces(source, stop))
    else:
        pieces = open_pieces(source, stop)
        form = options.signal_format or signal.dtype
        batches = byte_batches(source, pieces, signal.shape[1:], form, flaws)
    # windows of the bundle's rate and values
    resampler = None
    if rate is not None and signal.rate_hz is not None and not _same_rate(rate, signal.rate_hz):
        resampler = WindowResampler(rate, signal.rate_hz, signal.shape[0])
    values = _values(source, signal, options, recording)
    return WindowStream(
        source,
        signal,
        batches,
        values,
        rate_hz=rate,
        hop=options.hop,
        resampler=resampler,
        flaws=flaws,
    )


def _check_options(source: str, signal: SignalInput, options: SignalOptions) -> None:
    """Refuse options that contradict each other or the bundle."""
    if len(signal.shape) > 2:
        raise InputError(f"--signal: the bundle takes pictures of shape {signal.shape}; use --data")
    if options.signal_format is not None and options.signal_format not in FORMATS:
        raise InputError(
            f"signal_format {options.signal_format}: choose one of {', '.join(FORMATS)}"
        )
    suffix = Path(source).suffix.lower()
    if options.signal_format is not None and suffix in _RECORDINGS:
        raise InputError(f"signal_format is for streams; {source} states its own format")
    if (
        options.signal_format is None
        and suffix not in (*_RECORDINGS, *_RAW)
        and Path(source).is_file()
    ):
        raise InputError(
            f"--signal {source}: the ending does not tell the format; set signal_format in "
            f"--settings, or give one of {', '.join(_RECORDINGS)}"
        )
    for name in ("scale", "offset"):
        if len(getattr(options, name)) not in (0, 1, signal.n_channels):
            raise InputError(f"{name}: give one number, or one for each of the bundle's channels")
    if 0 in options.scale:
        raise InputError("scale is 0; give the unit of one count")
    for channel in signal.channels:
        if options.unit is not None and channel.unit not in ("", options.unit):
            raise InputError(
                f"unit {options.unit}: channel {channel.name!r} of the bundle is in "
                f"{channel.unit}; give the scale that makes this unit"
            )


# -- rate ----------------------------------------------------------------------------------


def _same_rate(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=1e-6)


def _rate(
    source: str, signal: SignalInput, options: SignalOptions, recording: Recording | None
) -> float | None:
    """Get the rate of the samples; InputError if it differs from the bundle's unconverted."""
    stated = options.rate_hz
    recorded_rate = None if recording is None else recording.rate_hz
    if recorded_rate is not None and stated is not None and not _same_rate(recorded_rate, stated):
        raise InputError(
            f"--signal {source} has {recorded_rate:g} samples a second, not {stated:g}"
        )
    rate = recorded_rate if stated is None else stated
    if rate is None or signal.rate_hz is None or _same_rate(rate, signal.rate_hz):
        return signal.rate_hz if rate is None else rate
    if not options.convert:
        name = "rate_hz" if recorded_rate is None else f"--signal {source}"
        raise InputError(
            f"{name}: {rate:g} samples a second, the bundle's blocks are for {signal.rate_hz:g} "
            "samples a second; convert = true in --settings resamples them"
        )
    return rate


class WindowResampler:
    """Resamples longer windows at `from_hz` to windows of `length` samples at `to_hz`.

    A longer window has `margin` samples more on each side, so that its ends are as exact.
    """

    def __init__(self, from_hz: float, to_hz: float, length: int) -> None:
        try:
            from scipy.signal import resample_poly
        except ModuleNotFoundError as error:
            raise not_installed(error, "train") from None
        self._resample: Callable[..., NDArray[Any]] = resample_poly
        ratio = Fraction(to_hz / from_hz).limit_denominator(_LARGEST_RATIO)
        self._up = ratio.numerator
        self._down = ratio.denominator
        self._length = length
        # whole periods of the two rates
        periods = math.ceil(_MARGIN * max(1 / self._up, 1 / self._down))
        self.margin = periods * self._down
        self.length = self.inverse(length) + 2 * self.margin

    def inverse(self, count: int) -> int:
        """Samples at the first rate in the time of `count` at the second one."""
        return math.ceil(count * self._down / self._up)

    def resample(self, window: NDArray[Any]) -> NDArray[np.float64]:
        """Resample a window with its margins, shape (length,) or (length, channels)."""
        values = self._resample(window.astype(np.float64), self._up, self._down)
        begin = self.margin * self._up // self._down
        cut: NDArray[np.float64] = values[begin : begin + self._length]
        return cut


# -- values --------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class SampleValues:
    """The bundle's values of samples: ``(sample + offset) * factor``, in the type of windows.

    Whole numbers are rounded, and end at the ends of their type.
    """

    dtype: np.dtype[Any]
    factor: NDArray[np.float64] = field(default_factory=lambda: np.ones(1))
    offset: NDArray[np.float64] = field(default_factory=lambda: np.zeros(1))

    def typed(self, values: NDArray[Any]) -> NDArray[Any]:
        """Bring values to the type of windows."""
        if self.dtype.kind == "f":
            return values.astype(np.float32)
        limits = np.iinfo(self.dtype)
        typed: NDArray[Any] = np.clip(np.rint(values), limits.min, limits.max).astype(self.dtype)
        return typed

    def of_samples(self, samples: NDArray[Any]) -> NDArray[Any]:
        """Get the values of samples, shape (k,) or (k, channels)."""
        if (self.factor == 1).all() and not self.offset.any():
            return samples
        return self.typed((samples.astype(np.float64) + self.offset) * self.factor)


def _values(
    source: str, signal: SignalInput, options: SignalOptions, recording: Recording | None
) -> SampleValues:
    """Compare the width of samples with the bundle's; InputError if they differ."""
    dtype = np.dtype(signal.dtype)
    if options.scale or options.offset:
        own_scale = np.array([channel.scale for channel in signal.channels])
        scale = np.array(options.scale) if options.scale else own_scale
        return SampleValues(dtype, scale / own_scale, np.array(options.offset or (0.0,)))
    if recording is None or recording.kind == "array":
        return SampleValues(dtype)
    # full scale: 1 of floats, 2 ** (bits - 1) of whole numbers
    is_float = recording.kind == "float"
    full_scale = 1.0 if is_float else 2.0 ** (recording.bits - 1)
    own_full_scale = 1.0 if dtype.kind == "f" else 2.0 ** (8 * dtype.itemsize - 1)
    same = full_scale == own_full_scale and is_float == (dtype.kind == "f")
    if not same and not options.convert:
        kind = "floats" if is_float else f"whole numbers of {recording.bits} bits"
        raise InputError(
            f"--signal {source} has {kind}, the bundle was trained on {dtype.name}: convert = true "
            "in --settings brings full scale to full scale, scale = ... gives the unit of a count"
        )
    # unsigned whole numbers have their zero in the middle
    middle = own_full_scale if dtype.kind == "u" else 0.0
    factor = own_full_scale / full_scale
    return SampleValues(dtype, np.array([factor]), np.array([middle / factor]))


# -- windows -------------------------------------------------------------------------------


class WindowStream(InstanceSource):
    """Windows cut from samples as they come, none across a gap.

    It ends in an InputError if the samples give no window, or if their times show another rate.
    """

    def __init__(
        self,
        name: str,
        signal: SignalInput,
        batches: Iterator[Batch],
        values: SampleValues,
        *,
        rate_hz: float | None,
        hop: int | None,
        resampler: WindowResampler | None,
        flaws: list[str],
    ) -> None:
        self._name = name
        self._length = signal.shape[0]
        self._values = values
        self._resampler = resampler
        self._flaws = flaws
        self._n_breaks = 0  # gaps that a line stands for
        self._n_errors = 0
        length = self._length
        if resampler is not None:
            hop = max(1, resampler.inverse(hop or length))
            length = resampler.length
        self._windower = Windower(length, hop, rate_hz=rate_hz)
        super().__init__(self._items(batches))

    @property
    def counts(self) -> dict[str, int]:
        """Counts so far: samples, windows, gaps, and samples, windows and lines that were lost."""
        windower = self._windower
        return {
            "samples": windower.samples,
            "windows": windower.windows,
            "gaps": windower.gaps + self._n_breaks,
            "dropped_samples": windower.dropped,
            "refused_windows": windower.refused,
            "bad_samples": self._n_errors,
            "flaws": len(self._flaws),
        }

    def _items(self, batches: Iterator[Batch]) -> Iterator[list[Item]]:
        windower = self._windower
        gap = False  # since the last window
        timed = windower.rate_hz is not None  # seconds count from the first sample at the rate
        for batch in batches:
            ready: list[Item] = []
            for samples in batch:
                if not isinstance(samples, Samples):
                    # samples were lost, or could not be read: no window goes across
                    windower.reset()
                    self._n_breaks += 1
                    gap = True
                    timed = False
                    if samples is not None:
                        self._n_errors += 1
                        ready.append((samples, {}))
                    continue
                if samples.time is not None and windower.rate_hz is None:
                    raise InputError("the samples have times: set rate_hz, to find gaps")
                n_gaps = windower.gaps
                n_refused = windower.refused
                windows = windower.push(self._values.of_samples(samples.values), samples.time)
                gap |= windower.gaps > n_gaps
                for window in windows:
                    seconds = window.time
                    if seconds is None and timed and windower.rate_hz is not None:
                        seconds = window.start / windower.rate_hz
                    ready.append(self._item(window.values, window.start, seconds, gap))
                    gap = False
                if windower.refused > n_refused:
                    gap = True
                    ready.append((self._wrong_rate(), {}))
            yield ready
        windower.reset()
        self._end()

    def _item(self, values: NDArray[Any], start: int, seconds: float | None, gap: bool) -> Item:
        """Instance of a window, with its place in the stream."""
        if self._resampler is not None:
            values = self._values.typed(self._resampler.resample(values))
            start += self._resampler.margin
            if seconds is not None and self._windower.rate_hz is not None:
                seconds += self._resampler.margin / self._windower.rate_hz
        time = None if seconds is None else round(seconds, 6)
        return values, {"start": start, "time": time, **({"gap": True} if gap else {})}

    def _wrong_rate(self) -> InputError:
        """Error of a window with another rate; it is raised where there was no other window."""
        error = InputError(f"--signal {self._name}: {self._rate_by_times()}")
        if not self._windower.windows:
            raise error
        return error

    def _rate_by_times(self) -> str:
        """Say how the rate by times differs from the bundle's; empty if they agree."""
        measured = self._windower.measured_hz
        rate = self._windower.rate_hz
        if rate is None or not self._windower.is_timed:
            return ""
        if measured is None:
            return "the times of the samples do not advance"
        ratio = measured / rate
        if abs(1 / ratio - 1) <= CLOCK_ERROR:
            return ""
        unit = next((u for u, s in TIME_UNITS.items() if abs(ratio / s - 1) <= CLOCK_ERROR), None)
        advice = "set rate_hz to theirs and convert = true to resample them"
        if unit is not None:
            advice = f'if times are in {unit}, set time_unit = "{unit}"'
        return (
            f"by their times the samples come at {measured:.6g} a second, the bundle's blocks are "
            f"for {rate:g}: {advice}"
        )

    def _end(self) -> None:
        """Log flaws of the stream at its end; InputError if it gave no window."""
        for flaw in self._flaws:
            _LOG.warning("%s: %s; its whole windows are answered", self._name, flaw)
        windower = self._windower
        if windower.windows:
            return
        n_samples = windower.samples
        n_gaps = self.counts["gaps"]
        reasons = [
            f"{n_samples} samples and {n_gaps} gaps gave no window of {windower.length}",
            self._rate_by_times() if n_samples else "",
            *self._flaws,
        ]
        raise InputError(f"--signal {self._name}: {'; '.join(filter(None, reasons))}")
