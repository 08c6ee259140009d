"""Functions and classes that cut windows from a recording or from a stream of samples."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gatewise.errors import InputError


def cut_windows(
    signal: ArrayLike, length: int, hop: int | None = None
) -> tuple[NDArray[Any], NDArray[np.intp]]:
    """Cut a recording into windows, which overlap if `hop` is less than `length`.

    Parameters
    ----------
    signal : array-like of shape (samples,) or (samples, channels)
    length : int
        Number of samples in a window.
    hop : int, optional
        Number of samples between the starts of two windows; default: `length`.

    Returns
    -------
    windows : ndarray, shape (n, length) or (n, length, channels), with the signal's dtype
    starts : ndarray of intp, shape (n,)
        Index of the first sample of each window.

    Examples
    --------
    >>> windows, starts = cut_windows(range(10), 4, 3)
    >>> windows.tolist(), starts.tolist()
    ([[0, 1, 2, 3], [3, 4, 5, 6], [6, 7, 8, 9]], [0, 3, 6])
    """
    samples = np.asarray(signal)
    length, hop = _check_sizes(length, hop)
    if samples.ndim not in (1, 2):
        raise InputError(
            f"signal must have shape (samples,) or (samples, channels), not {samples.shape}"
        )
    starts = np.arange(0, len(samples) - length + 1, hop)
    return samples[starts[:, np.newaxis] + np.arange(length)], starts


@dataclass(frozen=True, eq=False)
class StreamWindow:
    """Window of a stream.

    Attributes
    ----------
    values : ndarray, shape (length,) or (length, channels)
    start : int
        Number of samples in the stream before the window, not counting lost samples.
    time : float or None
        Time of the first sample in seconds, or None if the samples have no times.
    """

    values: NDArray[Any]
    start: int
    time: float | None


#: Largest relative error of a sensor's clock; cheap clocks have an error of 5 %.
CLOCK_ERROR = 0.1
#: Largest delay, in sample intervals, of a sample after which no loss is assumed; half an interval,
#: because a lost sample delays the next one by a whole one.
MAX_DELAY = 0.5
#: Largest lead, in sample intervals, of a sample that is assumed to be in order.
MAX_LEAD = 1.0
#: Smallest number of times from which jitter is estimated.
MIN_TIMES = 16
#: Number of the latest times from which jitter is estimated.
MAX_TIMES = 64
#: Largest delay due to jitter, in third quartiles of the latest delays. For normal delays this is
#: 4.6 standard deviations.
MAX_JITTER = 4.0


@dataclass(slots=True)
class _TimedBatch:
    """Number and time of the first sample of a batch, which one push adds.

    The sample arrives `delay` sample intervals after its due time. The due time follows from the
    time of the previous batch, `n_before` samples earlier. Both are 0 for the first batch.
    """

    start: int
    time: float
    delay: float = 0.0
    n_before: int = 0


class Windower:
    """Windower that cuts windows from a stream of samples; no window spans a gap.

    The windower compares the times of samples with the rate. A clock error of up to a tenth, and
    jitter, which is estimated from the latest times, are normal. If a sample is later or earlier
    than these explain, samples were lost or are in the wrong order, and a new window begins. A
    window with another mean rate is refused.

    Parameters
    ----------
    length : int
        Number of samples in a window.
    hop : int, optional
        Number of samples between the starts of two windows; default: `length`.
    rate_hz : float, optional
        Samples per second; required if samples have times.

    Attributes
    ----------
    n_samples, n_windows, n_gaps : int
        Numbers of samples, windows and gaps so far.
    n_dropped : int
        Number of samples that are in no window because of gaps or a reset.
    n_refused : int
        Number of windows that were refused because of their mean rate.

    Examples
    --------
    >>> windower = Windower(4, 2)
    >>> [w.values.tolist() for w in windower.push([1, 2, 3, 4, 5])]
    [[1, 2, 3, 4]]
    >>> [(w.values.tolist(), w.start) for w in windower.push([6, 7])]
    [([3, 4, 5, 6], 2)]
    """

    def __init__(
        self, length: int, hop: int | None = None, *, rate_hz: float | None = None
    ) -> None:
        self.length, self.hop = _check_sizes(length, hop)
        if rate_hz is not None and not 0 < rate_hz < np.inf:
            raise InputError(f"rate_hz is {rate_hz}; give samples per second")
        self.rate_hz = rate_hz
        self.n_samples = 0
        self.n_windows = 0
        self.n_gaps = 0
        self.n_dropped = 0
        self.n_refused = 0
        self._buffer: NDArray[Any] | None = None
        self._buffer_start = 0  # number of the first sample in the buffer
        self._n_skipped = 0  # samples before the next window, if the hop is longer than a window
        self._n_used = 0  # samples of the buffer that were in a window
        self._batches: deque[_TimedBatch] = deque()  # batches of the samples in the buffer
        self._unchecked_batches: deque[_TimedBatch] = deque()  # batches that may follow a gap
        # the latest batches that follow no gap, from which jitter is estimated
        self._latest_batches: deque[_TimedBatch] = deque(maxlen=MAX_TIMES)
        self._timed_seconds = 0.0  # time from the first to the latest timed batch
        self._n_timed = 0  # number of samples in this time

    @property
    def is_timed(self) -> bool:
        """Whether samples had times."""
        return self._n_timed > 0

    @property
    def measured_hz(self) -> float | None:
        """Mean rate according to the times, in samples per second, or None without two times."""
        return self._n_timed / self._timed_seconds if self._timed_seconds > 0 else None

    def push(self, samples: ArrayLike, time: float | None = None) -> list[StreamWindow]:
        """Add consecutive samples, and return the windows that they complete.

        Parameters
        ----------
        samples : array-like of shape (k,) or (k, channels)
        time : float, optional
            Time of the first sample in seconds; the other samples follow at the rate.

        Returns
        -------
        list of StreamWindow

        Raises
        ------
        InputError
            If the number of channels changes, or if `time` is not finite or given without
            `rate_hz`.
        """
        new_samples = np.asarray(samples)
        if new_samples.ndim not in (1, 2) or new_samples.dtype.kind not in "fiub":
            raise InputError(
                f"samples must be numbers of shape (k,) or (k, channels), not {new_samples.shape}"
            )
        if self._buffer is None:
            self._buffer = new_samples[:0]
        if new_samples.shape[1:] != self._buffer.shape[1:]:
            raise InputError(
                f"samples of {new_samples.shape[1:]} channels follow samples of "
                f"{self._buffer.shape[1:]}"
            )
        if not len(new_samples):
            return []
        if time is not None:
            self._record_time(time, self._buffer_start + len(self._buffer))
        self.n_samples += len(new_samples)
        self._buffer = (
            np.concatenate([self._buffer, new_samples]) if len(self._buffer) else new_samples
        )
        return list(self._complete_windows())

    def reset(self) -> None:
        """Drop the samples of the unfinished window."""
        self._find_gaps()
        self._drop_samples(0 if self._buffer is None else len(self._buffer))

    def _record_time(self, time: float, start: int) -> None:
        """Record the time of sample `start`, and find gaps once jitter is known."""
        if self.rate_hz is None:
            raise InputError("samples with times need rate_hz=")
        if not np.isfinite(time):
            raise InputError(f"the time of a sample is {time}, not a number of seconds")
        timed_batch = _TimedBatch(start, time)
        if self._batches:
            previous_batch = self._batches[-1]
            timed_batch.n_before = start - previous_batch.start
            # delay in sample intervals = elapsed time * rate - number of samples
            timed_batch.delay = (time - previous_batch.time) * self.rate_hz - timed_batch.n_before
            self._timed_seconds += time - previous_batch.time
            self._n_timed += timed_batch.n_before
            self._unchecked_batches.append(timed_batch)
        self._batches.append(timed_batch)
        if (
            timed_batch.n_before > 1
            or len(self._latest_batches) + len(self._unchecked_batches) >= MIN_TIMES
        ):
            self._find_gaps()

    def _find_gaps(self) -> None:
        """Begin a new window at each batch that follows a gap."""
        while self._unchecked_batches:
            timed_batch = self._unchecked_batches[0]
            is_gap = self._is_unexplained(timed_batch.delay, timed_batch.n_before, is_relative=True)
            self._unchecked_batches.popleft()
            if is_gap:
                self.n_gaps += 1
                self._drop_samples(timed_batch.start - self._buffer_start)
            else:
                self._latest_batches.append(timed_batch)

    def _is_unexplained(self, delay: float, n_samples: int, *, is_relative: bool) -> bool:
        """Whether a delay after `n_samples` is larger than clock error and jitter explain.

        With `is_relative`, the delay is measured against the mean rate of the latest times.
        """
        # 1e-9 allows for the rounding of times
        clock_error = CLOCK_ERROR * n_samples
        if -max(MAX_LEAD, clock_error) < delay <= max(MAX_DELAY, clock_error) + 1e-9:
            return False
        drift, jitter = self._estimate_drift_and_jitter()
        if is_relative:
            delay -= drift * n_samples
        tolerance = max(clock_error, MAX_JITTER * jitter)
        return not -max(MAX_LEAD, tolerance) < delay <= max(MAX_DELAY, tolerance) + 1e-9

    def _estimate_drift_and_jitter(self) -> tuple[float, float]:
        """Estimate the median delay per sample, and the third quartile of distances from it.

        Both are 0 if there are too few times.
        """
        batches = [*self._latest_batches, *self._unchecked_batches]
        if len(batches) < MIN_TIMES:
            return 0.0, 0.0
        drifts = sorted(batch.delay / batch.n_before for batch in batches)
        drift = drifts[len(batches) // 2]
        distances = sorted(abs(batch.delay - drift * batch.n_before) for batch in batches)
        return drift, distances[3 * len(batches) // 4]

    def _complete_windows(self) -> Iterator[StreamWindow]:
        """Yield the complete windows at the start of the buffer, and remove their samples."""
        assert self._buffer is not None
        while len(self._buffer) >= self._n_skipped + self.length:
            if self._unchecked_batches:
                self._find_gaps()
                continue
            self._remove_samples(self._n_skipped)
            if self._has_expected_rate():
                self.n_windows += 1
                yield StreamWindow(
                    self._buffer[: self.length].copy(),
                    self._buffer_start,
                    self._compute_start_time(),
                )
            else:
                self.n_refused += 1
            self._n_used = self.length
            self._n_skipped = self.hop
            if self.hop <= self.length:
                self._remove_samples(self.hop)

    def _has_expected_rate(self) -> bool:
        """Whether the times of the first window in the buffer agree with the rate."""
        batches = [
            batch for batch in self._batches if batch.start < self._buffer_start + self.length
        ]
        if len(batches) < 2:
            return True
        delay = sum(batch.delay for batch in batches[1:])
        n_samples = batches[-1].start - batches[0].start
        return not self._is_unexplained(delay, n_samples, is_relative=False)

    def _compute_start_time(self) -> float | None:
        """Compute the time of the first sample in the buffer from the nearest known time."""
        if not self._batches or self.rate_hz is None:
            return None
        nearest_batch = self._batches[0]
        return nearest_batch.time + (self._buffer_start - nearest_batch.start) / self.rate_hz

    def _drop_samples(self, n_samples: int) -> None:
        """Drop the first samples of the buffer, and begin a new window."""
        self.n_dropped += max(0, n_samples - self._n_used)
        self._n_skipped = 0
        if self._buffer is not None:
            self._remove_samples(n_samples)
        self._n_used = 0
        while self._batches and self._batches[0].start < self._buffer_start:
            self._batches.popleft()

    def _remove_samples(self, n_samples: int) -> None:
        """Remove the first samples of the buffer."""
        assert self._buffer is not None
        self._buffer = self._buffer[n_samples:]
        self._buffer_start += n_samples
        self._n_used = max(0, self._n_used - n_samples)
        self._n_skipped = max(0, self._n_skipped - n_samples)
        while len(self._batches) > 1 and self._batches[1].start <= self._buffer_start:
            self._batches.popleft()


def _check_sizes(length: int, hop: int | None) -> tuple[int, int]:
    if length < 1 or (hop is not None and hop < 1):
        raise InputError(f"windows of {length} samples every {hop}: both must be at least 1")
    return length, length if hop is None else hop
