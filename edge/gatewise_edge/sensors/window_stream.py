"""A stream of windows, cut from samples as they arrive."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

from numpy.typing import NDArray

from gatewise.errors import InputError
from gatewise_edge.sensors.instance_source import InstanceSource, SourcedInstance
from gatewise_edge.sensors.sample_conversion import SampleConversion, WindowResampler
from gatewise_edge.sensors.streams import TIME_UNITS, Batch, Samples
from gatewise_signals.signal_input import SignalInput
from gatewise_signals.windows import CLOCK_ERROR, Windower

_LOG = logging.getLogger(__name__)


class WindowStream(InstanceSource):
    """A source of windows, cut from samples as they arrive, but never across a gap.

    It ends with an InputError if there were too few samples for a window, or if the times of the
    samples before the first window show another rate. Later windows of another rate are errors in
    their places.
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
        time_unit: str,
    ) -> None:
        self._source_name = source_name
        self._conversion = conversion
        self._resampler = resampler
        self._flaws = flaws
        self._time_unit = time_unit
        self._n_marked_gaps = 0  # gaps from a line "gap" or an unreadable sample
        self._n_unreadable = 0
        length = signal.shape[0]
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
            "bad_samples": self._n_unreadable,
            "flaws": len(self._flaws),
        }

    def _instances(self, batches: Iterator[Batch]) -> Iterator[list[SourcedInstance]]:
        """Cut windows from batches of samples; errors take the places of windows."""
        windower = self._windower
        follows_gap = False  # whether the next window follows a gap
        # Without times, the time of a window is counted from the first sample up to the first gap.
        is_continuous = True
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
                        self._n_unreadable += 1
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
        # the window may differ although the mean rate does not
        problem = self._rate_problem() or (
            f"a window does not have {self._windower.rate_hz:g} samples per second by their times"
        )
        error = InputError(f"--signal {self._source_name}: {problem}")
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
        unit_seconds = ratio * TIME_UNITS[self._time_unit]
        units = [
            unit
            for unit, seconds in TIME_UNITS.items()
            if abs(unit_seconds / seconds - 1) <= CLOCK_ERROR
        ]
        expectation = f"the bundle's blocks are for {rate_hz:g}"
        advice = "set rate_hz to their rate, and convert = true to resample them"
        if self._resampler is not None:
            expectation = f"rate_hz is {rate_hz:g}"
            advice = "set rate_hz to their rate"
        if units:
            advice = f'if the times are in {units[0]}, set time_unit = "{units[0]}"'
        return (
            f"by their times there are {measured_hz:.6g} samples per second, but {expectation}: "
            f"{advice}"
        )

    def _check_end(self) -> None:
        """Log the flaws of the stream at its end; raise InputError if there was no window."""
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
