"""Windows cut from a signal: from an array at once, or from samples as they come."""

from __future__ import annotations

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
"""Share of the time between two pushes that a sensor's clock may be off: cheap ones are by 5 %."""


class Windower:
    """Windows of samples as they come, none across a gap.

    Parameters
    ----------
    length : int
        Samples of a window.
    hop : int, optional
        Samples from one window to the next; `length` by default.
    rate_hz : float, optional
        Samples per second: needed to find gaps from times.
    max_gap : float, default 1.5
        Samples were lost where the time from one sample to the next is above this many sample
        intervals, or below 0: the unfinished window is given up, and a new one begins. The time
        between two pushes may be off by a tenth, because a sensor's clock may be.

    Attributes
    ----------
    gaps : int
        Number of gaps so far.
    dropped : int
        Samples that no window holds because of gaps.

    Examples
    --------
    >>> windower = Windower(4, 2)
    >>> [w.values.tolist() for w in windower.push([1, 2, 3, 4, 5])]
    [[1, 2, 3, 4]]
    >>> [(w.values.tolist(), w.start) for w in windower.push([6, 7])]
    [([3, 4, 5, 6], 2)]
    """

    def __init__(
        self,
        length: int,
        hop: int | None = None,
        *,
        rate_hz: float | None = None,
        max_gap: float = 1.5,
    ) -> None:
        self.length, self.hop = _sizes(length, hop)
        if rate_hz is not None and not 0 < rate_hz < np.inf:
            raise InputError(f"rate_hz is {rate_hz}; give samples a second")
        if not max_gap >= 1:
            raise InputError(f"max_gap is {max_gap}; give at least 1 sample interval")
        self.rate_hz = rate_hz
        self.max_gap = max_gap
        self.gaps = self.dropped = 0
        self._buffer: NDArray[Any] | None = None
        self._begin = 0  # number of the buffer's first sample
        self._skip = 0  # samples before the next window, where the hop is longer than a window
        self._used = 0  # samples of the buffer that a window has held
        self._first: float | None = None  # time of the buffer's first sample
        self._next: float | None = None  # time at which the next sample is due
        self._pushed = 0  # samples of the last push that had a time

    def push(self, samples: ArrayLike, time: float | None = None) -> list[StreamWindow]:
        """Take samples that follow each other; get the windows that they complete.

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
        if time is not None and self.rate_hz is None:
            raise InputError("times need the windower's rate_hz")
        if self._buffer is not None and x.shape[1:] != self._buffer.shape[1:]:
            raise InputError(f"samples of {x.shape[1:]} channels follow {self._buffer.shape[1:]}")
        if not len(x):
            return []
        if time is not None:
            self._check_time(time, len(x))
        before = x[:0] if self._buffer is None or not len(self._buffer) else self._buffer
        if time is not None:  # at every push, because clocks drift from the rate
            assert self.rate_hz is not None
            self._first = time - len(before) / self.rate_hz
        self._buffer = np.concatenate([before, x])
        return list(self._complete())

    def reset(self) -> None:
        """Give up the window begun, as after a gap."""
        n_buffered = 0 if self._buffer is None else len(self._buffer)
        self.dropped += max(0, n_buffered - self._used)
        self._begin += n_buffered
        self._buffer = None if self._buffer is None else self._buffer[:0]
        self._skip = self._used = 0
        self._first = self._next = None

    def _check_time(self, time: float, count: int) -> None:
        assert self.rate_hz is not None
        if self._next is not None:
            # distance from the time at which the sample was due, in sample intervals
            late = (time - self._next) * self.rate_hz
            off = CLOCK_ERROR * self._pushed
            if not -max(1.0, off) < late <= max(self.max_gap - 1, off) + 1e-9:
                self.gaps += 1
                self.reset()
        self._next = time + count / self.rate_hz
        self._pushed = count

    def _complete(self) -> Iterator[StreamWindow]:
        assert self._buffer is not None
        while len(self._buffer) >= self._skip + self.length:
            self._advance(self._skip)  # samples between two windows, if the hop is longer
            yield StreamWindow(self._buffer[: self.length].copy(), self._begin, self._first)
            self._used = self.length
            self._skip = self.hop
            if self.hop <= self.length:
                self._advance(self.hop)

    def _advance(self, count: int) -> None:
        """Take samples off the front."""
        assert self._buffer is not None
        self._buffer = self._buffer[count:]
        self._begin += count
        self._used = max(0, self._used - count)
        self._skip = max(0, self._skip - count)
        if self._first is not None and self.rate_hz is not None:
            self._first += count / self.rate_hz


def _sizes(length: int, hop: int | None) -> tuple[int, int]:
    if length < 1 or (hop is not None and hop < 1):
        raise InputError(f"windows of {length} samples every {hop}: both must be at least 1")
    return length, length if hop is None else hop
