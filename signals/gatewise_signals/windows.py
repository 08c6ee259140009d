"""Windows cut from a signal: from an array at once, or from samples as they come."""

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
    """Cut windows of a recording that may overlap.

    Parameters
    ----------
    signal : array-like of shape (samples,) or (samples, channels)
    length : int
        Samples of a window.
    hop : int, optional
        Samples from the start of one window to that of the next; `length` by default, so that
        windows do not overlap.

    Returns
    -------
    windows : ndarray, shape (n, length) or (n, length, channels), of the signal's dtype
    starts : ndarray of intp, shape (n,)
        First sample of each.

    Examples
    --------
    >>> windows, starts = cut_windows(range(10), 4, 3)
    >>> windows.tolist(), starts.tolist()
    ([[0, 1, 2, 3], [3, 4, 5, 6], [6, 7, 8, 9]], [0, 3, 6])
    """
    x = np.asarray(signal)
    length, hop = _sizes(length, hop)
    if x.ndim not in (1, 2):
        raise InputError(f"signal must have shape (samples,) or (samples, channels), not {x.shape}")
    starts = np.arange(0, len(x) - length + 1, hop)
    return x[starts[:, np.newaxis] + np.arange(length)], starts


@dataclass(frozen=True, eq=False)
class StreamWindow:
    """A window of a stream.

    Attributes
    ----------
    values : ndarray, shape (length,) or (length, channels)
    start : int
        Number of its first sample in the stream, lost ones not counted.
    time : float or None
        Seconds of its first sample, where the samples had times.
    """

    values: NDArray[Any]
    start: int
    time: float | None


CLOCK_ERROR = 0.1
"""Share by which a sensor's clock may be off: cheap ones are by 5 %."""
LATE = 0.5
"""Sample intervals by which a sample may be late before samples count as lost."""
EARLY = 1.0
"""Sample intervals by which a sample may be early before the order of samples is in doubt."""
MIN_TIMES = 16
"""Number of times from which their jitter is estimated."""
MAX_TIMES = 64
"""Number of the latest times that their jitter is estimated from."""
MAX_JITTER = 4.0
"""Largest lateness that is jitter, in third quartiles of the latest (4.6 normal deviations)."""


@dataclass(slots=True)
class _TimedPush:
    """Samples from number `start` of the stream on, the first at `time`.

    They come `late` sample intervals after the time that follows from the previous push, which
    began `n_before` samples earlier. Both are 0 without a previous push.
    """

    start: int
    time: float
    late: float = 0.0
    n_before: int = 0


class Windower:
    """Windows of samples as they come, none across a gap.

    The times of samples are compared with the rate. Where samples come later or earlier than clock
    and jitter explain, some were lost, or their order is wrong: a new window begins. The clock may
    be off by a tenth; jitter is estimated from the latest times. A window whose samples come at
    another mean rate is refused.

    Parameters
    ----------
    length : int
        Samples of a window.
    hop : int, optional
        Samples from one window to the next; `length` by default.
    rate_hz : float, optional
        Samples per second: needed to find gaps from times.

    Attributes
    ----------
    samples : int
        Number of samples so far.
    windows : int
        Number of windows so far.
    gaps : int
        Number of gaps so far.
    dropped : int
        Samples that no window holds, because of gaps or a reset.
    refused : int
        Windows of another mean rate so far.

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
        self.length, self.hop = _sizes(length, hop)
        if rate_hz is not None and not 0 < rate_hz < np.inf:
            raise InputError(f"rate_hz is {rate_hz}; give samples a second")
        self.rate_hz = rate_hz
        self.samples = 0
        self.windows = 0
        self.gaps = 0
        self.dropped = 0
        self.refused = 0
        self._buffer: NDArray[Any] | None = None
        self._begin = 0  # number of the buffer's first sample
        self._skip = 0  # samples before the next window, where the hop is longer than a window
        self._used = 0  # samples of the buffer that a window has held
        self._pushes: deque[_TimedPush] = deque()  # of the samples in the buffer
        self._unchecked: deque[_TimedPush] = deque()  # pushes that may follow a gap
        # lateness of the latest pushes, and the number of samples that each follows
        self._latest: deque[tuple[float, int]] = deque(maxlen=MAX_TIMES)
        self._seconds = 0.0  # from the first time to the latest
        self._n_timed = 0  # samples in these seconds

    @property
    def is_timed(self) -> bool:
        """Whether samples had times."""
        return self._n_timed > 0

    @property
    def measured_hz(self) -> float | None:
        """Mean rate by the times of the stream, in samples per second; None if they stand still."""
        return self._n_timed / self._seconds if self._seconds > 0 else None

    def push(self, samples: ArrayLike, time: float | None = None) -> list[StreamWindow]:
        """Take samples that follow each other; return the windows that they complete.

        Parameters
        ----------
        samples : array-like of shape (k,) or (k, channels)
        time : float, optional
            Seconds of the first one; the others follow at the rate.

        Raises
        ------
        InputError
            If samples have other channels than those before, or a time comes without `rate_hz`.
        """
        x = np.asarray(samples)
        if x.ndim not in (1, 2) or x.dtype.kind not in "fiub":
            raise InputError(
                f"samples must be numbers of shape (k,) or (k, channels), not {x.shape}"
            )
        if self._buffer is None:
            self._buffer = x[:0]
        if x.shape[1:] != self._buffer.shape[1:]:
            raise InputError(f"samples of {x.shape[1:]} channels follow {self._buffer.shape[1:]}")
        if not len(x):
            return []
        if time is not None:
            self._note_time(time, self._begin + len(self._buffer))
        self.samples += len(x)
        self._buffer = np.concatenate([self._buffer, x]) if len(self._buffer) else x
        return list(self._complete())

    def reset(self) -> None:
        """Give up the window begun, as after a gap or at the end."""
        self._find_gaps()
        self._drop(0 if self._buffer is None else len(self._buffer))

    def _note_time(self, time: float, start: int) -> None:
        """Note the time of sample `start`; look for a gap before it once jitter is known."""
        if self.rate_hz is None:
            raise InputError("times need the windower's rate_hz")
        timed_push = _TimedPush(start, time)
        if self._pushes:
            previous = self._pushes[-1]
            timed_push.n_before = start - previous.start
            # distance from the time at which the sample was due, in sample intervals
            timed_push.late = (time - previous.time) * self.rate_hz - timed_push.n_before
            self._seconds += time - previous.time
            self._n_timed += timed_push.n_before
            self._unchecked.append(timed_push)
        self._pushes.append(timed_push)
        if timed_push.n_before > 1 or len(self._latest) + len(self._unchecked) >= MIN_TIMES:
            self._find_gaps()

    def _find_gaps(self) -> None:
        """Begin a new window at each push before which there is a gap."""
        while self._unchecked:
            timed_push = self._unchecked[0]
            is_gap = self._is_off(timed_push.late, timed_push.n_before, relative=True)
            self._unchecked.popleft()
            if is_gap:
                self.gaps += 1
                self._drop(timed_push.start - self._begin)
            else:
                self._latest.append((timed_push.late, timed_push.n_before))

    def _is_off(self, late: float, n_samples: int, *, relative: bool) -> bool:
        """Whether clock and jitter do not explain that a sample is `late` after `n_samples`.

        With `relative` lateness counts from the mean rate of the latest times.
        """
        clock = CLOCK_ERROR * n_samples
        if -max(EARLY, clock) < late <= max(LATE, clock) + 1e-9:
            return False
        drift, jitter = self._drift_and_jitter()
        if relative:
            late -= drift * n_samples
        explained = max(clock, MAX_JITTER * jitter)
        return not -max(EARLY, explained) < late <= max(LATE, explained) + 1e-9

    def _drift_and_jitter(self) -> tuple[float, float]:
        """Usual lateness per sample, and how far pushes usually are from it; 0 if not known yet."""
        latest = [
            *self._latest,
            *((timed_push.late, timed_push.n_before) for timed_push in self._unchecked),
        ]
        if len(latest) < MIN_TIMES:
            return 0.0, 0.0
        drift = sorted(late / n for late, n in latest)[len(latest) // 2]
        distances = sorted(abs(late - drift * n) for late, n in latest)
        return drift, distances[3 * len(latest) // 4]

    def _complete(self) -> Iterator[StreamWindow]:
        assert self._buffer is not None
        while len(self._buffer) >= self._skip + self.length:
            if self._unchecked:
                self._find_gaps()
                continue
            self._advance(self._skip)  # samples between two windows, if the hop is longer
            if self._has_rate():
                self.windows += 1
                yield StreamWindow(self._buffer[: self.length].copy(), self._begin, self._time())
            else:
                self.refused += 1
            self._used = self.length
            self._skip = self.hop
            if self.hop <= self.length:
                self._advance(self.hop)

    def _has_rate(self) -> bool:
        """Whether the samples of the buffer's first window have the rate, by their times."""
        pushes = [p for p in self._pushes if p.start < self._begin + self.length]
        late = sum(timed_push.late for timed_push in pushes[1:])
        return len(pushes) < 2 or not self._is_off(
            late, pushes[-1].start - pushes[0].start, relative=False
        )

    def _time(self) -> float | None:
        """Seconds of the buffer's first sample, from the nearest time before it, or after it."""
        if not self._pushes or self.rate_hz is None:
            return None
        nearest = self._pushes[0]
        return nearest.time + (self._begin - nearest.start) / self.rate_hz

    def _drop(self, count: int) -> None:
        """Drop samples off the front, and begin a new window behind them."""
        self.dropped += max(0, count - self._used)
        self._skip = 0
        if self._buffer is not None:
            self._advance(count)
        self._used = 0
        while self._pushes and self._pushes[0].start < self._begin:
            self._pushes.popleft()

    def _advance(self, count: int) -> None:
        """Take samples off the front."""
        assert self._buffer is not None
        self._buffer = self._buffer[count:]
        self._begin += count
        self._used = max(0, self._used - count)
        self._skip = max(0, self._skip - count)
        while len(self._pushes) > 1 and self._pushes[1].start <= self._begin:
            self._pushes.popleft()


def _sizes(length: int, hop: int | None) -> tuple[int, int]:
    if length < 1 or (hop is not None and hop < 1):
        raise InputError(f"windows of {length} samples every {hop}: both must be at least 1")
    return length, length if hop is None else hop
