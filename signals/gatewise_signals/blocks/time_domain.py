"""Steps in the time domain: from the samples of each channel."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from gatewise.errors import InputError
from gatewise_signals.blocks.block import Block, SignalBlock
from gatewise_signals.steps import (
    ChannelwiseSignal,
    Signal,
    Values,
    centred,
    check_number,
    check_rising,
    check_whole,
    means,
)

ROOT_HALF = np.float32(np.sqrt(0.5))
# Daubechies' scaling filter of 8 taps and 4 vanishing moments
DB4 = (
    0.23037781330885523,
    0.7148465705525415,
    0.6308807679295904,
    -0.02798376941698385,
    -0.18703481171888114,
    0.030841381835986965,
    0.032883011666982945,
    -0.010597401784997278,
)


@dataclass(frozen=True, repr=False)
class Magnitude(Signal):
    """Length of the vector of the channels of `source` at each sample: shape (n, 1, samples)."""

    kind: ClassVar[str] = "magnitude"
    channels: ClassVar[tuple[str, ...]] = ("magnitude",)
    source: Signal

    def run(self, *inputs: NDArray[Any]) -> Values:
        (x,) = inputs
        total = x[:, :1] * x[:, :1]
        for channel in range(1, x.shape[1]):
            samples = x[:, channel : channel + 1]
            total += samples * samples
        root: Values = np.sqrt(total)
        return root


@dataclass(frozen=True, repr=False)
class Resample(ChannelwiseSignal):
    """A signal at a rate that is lower by a whole factor.

    Shape (n, n_channels, samples // factor): sample ``j`` is the mean of the samples
    ``j * factor`` to ``(j + 1) * factor - 1``; the rest behind the last one is left out.

    Parameters
    ----------
    source : Signal
    factor : int
    """

    kind: ClassVar[str] = "resample"
    factor: int

    def _check(self) -> None:
        check_whole("resample: factor", self.factor, 1, 1 << 20)

    def run(self, *inputs: NDArray[Any]) -> Values:
        return _block_means(inputs[0], self.factor, self.label)


@dataclass(frozen=True, repr=False)
class Envelope(ChannelwiseSignal):
    """Envelope of a signal: means of the rectified samples.

    Shape (n, n_channels, samples // width): with c the samples minus their mean, sample ``j``
    is the mean of ``|c|`` over the samples ``j * width`` to ``(j + 1) * width - 1``. Its spectrum
    (``Spectrum(Envelope(x, 8), rate_hz / 8)``) shows how often a bearing is hit.

    Parameters
    ----------
    source : Signal
    width : int
    """

    kind: ClassVar[str] = "envelope"
    width: int

    def _check(self) -> None:
        check_whole("envelope: width", self.width, 1, 1 << 20)

    def run(self, *inputs: NDArray[Any]) -> Values:
        rectified = centred(inputs[0])
        np.abs(rectified, out=rectified)
        return _block_means(rectified, self.width, self.label)


@dataclass(frozen=True, repr=False)
class Jerk(ChannelwiseSignal):
    """Change of a signal per second: the jerk, if the signal is an acceleration.

    Shape (n, n_channels, samples - 1): ``(x[i + 1] - x[i]) * rate_hz``.

    Parameters
    ----------
    source : Signal
    rate_hz : float
        Samples a second of `source`.
    """

    kind: ClassVar[str] = "jerk"
    rate_hz: float

    def _check(self) -> None:
        check_number("jerk: rate_hz", self.rate_hz, 0, 1e9)

    def run(self, *inputs: NDArray[Any]) -> Values:
        (x,) = inputs
        if x.shape[-1] < 2:
            raise InputError(f"{self.label}: needs at least 2 samples, not {x.shape[-1]}")
        change: Values = x[..., 1:] - x[..., :-1]
        change *= np.float32(self.rate_hz)
        return change


@dataclass(frozen=True, repr=False)
class Mean(SignalBlock):
    """Mean of the samples: the cheapest block."""

    kind: ClassVar[str] = "mean"
    feature_words: ClassVar[tuple[str, ...]] = ("mean",)

    def values(self, x: Values) -> Values:
        return means(x)[..., np.newaxis]


@dataclass(frozen=True, repr=False)
class Statistics(SignalBlock):
    """Standard deviation, skewness, kurtosis, RMS, crest factor and range of the samples.

    With c the samples minus their mean, v the mean of ``c**2`` and s its root: ``s``,
    ``mean(c**3) / (v * s)``, ``mean(c**4) / v**2``, r = the root of the mean of ``x**2``,
    ``max(|x|) / r`` and ``max(x) - min(x)``. A quotient is 0 where its divisor is not above 0:
    skewness and kurtosis of a constant signal, the crest factor of zeros.
    """

    kind: ClassVar[str] = "statistics"
    feature_words: ClassVar[tuple[str, ...]] = (
        "std",
        "skewness",
        "kurtosis",
        "rms",
        "crest",
        "range",
    )

    def values(self, x: Values) -> Values:
        out = np.empty((*x.shape[:-1], 6), np.float32)
        # c = x - mean, v = mean(c**2), s = sqrt(v)
        c = centred(x)
        square = c * c
        variance = means(square)
        std = np.sqrt(variance)
        rms = np.sqrt(means(x * x))
        high = np.maximum.reduce(x, -1)
        low = np.minimum.reduce(x, -1)
        out[..., 0] = std
        # skewness = mean(c**3) / (v * s), kurtosis = mean(c**4) / v**2
        out[..., 1] = ratio(means(square * c), variance * std)
        out[..., 2] = ratio(means(square * square), variance * variance)
        out[..., 3] = rms
        # crest factor = max(|x|) / rms
        out[..., 4] = ratio(np.maximum(high, -low), rms)
        out[..., 5] = high - low
        return out


@dataclass(frozen=True, repr=False)
class Quantiles(SignalBlock):
    """Quantiles of the samples.

    With the n sorted samples s, NaN behind all numbers, and the position ``p = q * (n - 1)``,
    quantile q is ``s[i] + (p - i) * (s[j] - s[i])`` with ``i = floor(p)`` and ``j = min(i + 1, n -
    1)``.

    Parameters
    ----------
    source : Signal
    at : tuple of float
        Rising, each from 0 to 1.
    """

    kind: ClassVar[str] = "quantiles"
    at: tuple[float, ...] = (0.05, 0.25, 0.5, 0.75, 0.95)

    def _check(self) -> None:
        check_rising("quantiles: at", self.at, 0, 1)

    @property
    def feature_words(self) -> tuple[str, ...]:
        return tuple(f"q{100 * q:g}" for q in self.at)

    def values(self, x: Values) -> Values:
        lower, upper, weight = quantile_positions(self.at, x.shape[-1])
        # s[i] + (p - i) * (s[i + 1] - s[i])
        ordered = np.sort(x, axis=-1)
        low = ordered.take(lower, axis=-1)
        quantiles: Values = low + weight * (ordered.take(upper, axis=-1) - low)
        return quantiles


@dataclass(frozen=True, repr=False)
class ZeroCrossings(SignalBlock):
    """How often the samples cross their mean, and how much they change from one to the next.

    With c the n samples minus their mean: the share of the n - 1 neighbours of which exactly one
    is below 0, and the mean of ``|x[i + 1] - x[i]|``. Both are 0 for a single sample.
    """

    kind: ClassVar[str] = "crossings"
    feature_words: ClassVar[tuple[str, ...]] = ("rate", "change")

    def values(self, x: Values) -> Values:
        out = np.zeros((*x.shape[:-1], 2), np.float32)
        if x.shape[-1] > 1:
            is_negative = centred(x) < 0
            crossed = (is_negative[..., 1:] != is_negative[..., :-1]).astype(np.float32)
            out[..., 0] = means(crossed)
            change = x[..., 1:] - x[..., :-1]
            out[..., 1] = means(np.abs(change, out=change))
        return out


@dataclass(frozen=True, repr=False)
class Autocorrelation(SignalBlock):
    """Correlation of a signal with itself, some samples later.

    With c the samples minus their mean: ``sum(c[i] * c[i + lag]) / sum(c**2)``, and 0 where the
    divisor is not above 0.

    Parameters
    ----------
    source : Signal
    lags : tuple of int
        Rising, in samples, fewer than a window has.
    """

    kind: ClassVar[str] = "autocorrelation"
    lags: tuple[int, ...] = (1, 2, 4, 8)

    def _check(self) -> None:
        check_rising("autocorrelation: lags", self.lags, 1, 1 << 20)
        for lag in self.lags:
            check_whole("autocorrelation: a lag", lag, 1, 1 << 20)

    @property
    def feature_words(self) -> tuple[str, ...]:
        return tuple(f"lag{lag}" for lag in self.lags)

    def values(self, x: Values) -> Values:
        samples = x.shape[-1]
        if samples <= self.lags[-1]:
            raise InputError(f"{self.label}: lag {self.lags[-1]} of only {samples} samples")
        c = centred(x)
        out = np.empty((*x.shape[:-1], len(self.lags)), np.float32)
        for column, lag in enumerate(self.lags):
            np.add.reduce(c[..., lag:] * c[..., :-lag], -1, out=out[..., column])
        # r[lag] = sum(c[i] * c[i + lag]) / sum(c**2)
        power = np.add.reduce(c * c, -1, keepdims=True)
        return ratio(out, np.broadcast_to(power, out.shape))


@dataclass(frozen=True, repr=False)
class WaveletEnergies(SignalBlock):
    """Energies of the wavelet transform of the centred samples, level by level.

    With ``a`` the samples minus their mean, each level cuts ``a`` to an even number of samples
    and makes of it ``m`` details and ``m`` new samples, half as many::

        d[k]     = sum_j g[j] * a[(2 * k + j) % (2 * m)]     with g[j] = (-1)**j * h[taps - 1 - j]
        a_new[k] = sum_j h[j] * a[(2 * k + j) % (2 * m)]

    of the filter h: ``haar`` has (sqrt(1/2), sqrt(1/2)), ``db4`` Daubechies' 8 taps. The values
    are the natural logarithm of ``1e-12 + mean(d**2)`` for each level, the highest frequencies
    first, and of ``1e-12 + mean(a**2)`` of the last samples.

    Parameters
    ----------
    source : Signal
    levels : int, default 4
        Windows must have ``2 ** levels`` samples or more.
    wavelet : {"haar", "db4"}, default "haar"
    """

    kind: ClassVar[str] = "wavelet"
    levels: int = 4
    wavelet: str = "haar"

    def _check(self) -> None:
        check_whole("wavelet: levels", self.levels, 1, 24)
        if self.wavelet not in ("haar", "db4"):
            raise InputError(f"wavelet: {self.wavelet!r} is not known; give 'haar' or 'db4'")

    @property
    def feature_words(self) -> tuple[str, ...]:
        return (*(f"level{k}" for k in range(1, self.levels + 1)), "rest")

    def values(self, x: Values) -> Values:
        if x.shape[-1] < 1 << self.levels:
            raise InputError(
                f"{self.label}: {self.levels} levels need {1 << self.levels} samples, not "
                f"{x.shape[-1]}"
            )
        out = np.empty((*x.shape[:-1], self.levels + 1), np.float32)
        split = _haar if self.wavelet == "haar" else _db4
        a = centred(x)
        for level in range(self.levels):
            a, detail = split(a)
            out[..., level] = means(detail * detail)
        out[..., -1] = means(a * a)
        out += np.float32(1e-12)
        return np.log(out, out=out)


@dataclass(frozen=True, repr=False)
class Tilt(Block):
    """Angles of an accelerometer against gravity, in radians.

    With x, y, z the means of the three channels: pitch ``atan2(x, sqrt(y**2 + z**2))``, roll
    ``atan2(y, sqrt(x**2 + z**2))`` and inclination ``atan2(sqrt(x**2 + y**2), z)``.

    Parameters
    ----------
    source : Signal
        Of three channels.
    """

    kind: ClassVar[str] = "tilt"
    suffixes: ClassVar[tuple[str, ...]] = ("pitch", "roll", "inclination")
    source: Signal

    def _check(self) -> None:
        if len(self.source.channels) != 3:
            raise InputError("tilt: needs a signal of three channels, x, y and z")

    def run(self, *inputs: NDArray[Any]) -> Values:
        # pitch, roll, inclination = atan2(x, |y, z|), atan2(y, |x, z|), atan2(|x, y|, z)
        gravity = means(inputs[0])
        square = gravity * gravity
        lengths = np.sqrt(square.take((1, 0, 0), axis=1) + square.take((2, 2, 1), axis=1))
        numerator = np.concatenate([gravity[:, :2], lengths[:, 2:]], axis=1)
        denominator = np.concatenate([lengths[:, :2], gravity[:, 2:]], axis=1)
        angles: Values = np.arctan2(numerator, denominator)
        return angles


def ratio(above: Values, below: Values) -> Values:
    """Divide; 0 where the divisor is not above 0."""
    return np.divide(above, below, out=np.zeros_like(above), where=below > 0)


def _block_means(x: Values, width: int, label: str) -> Values:
    """Means of each `width` samples that follow each other."""
    count = x.shape[-1] // width
    if not count:
        raise InputError(f"{label}: needs at least {width} samples, not {x.shape[-1]}")
    return means(x[..., : count * width].reshape(*x.shape[:-1], count, width))


@lru_cache(maxsize=64)
def quantile_positions(
    at: tuple[float, ...], samples: int
) -> tuple[NDArray[np.intp], NDArray[np.intp], Values]:
    """Index of the sorted sample below and above each quantile, and the part of the way."""
    position = np.asarray(at) * (samples - 1)
    lower = np.floor(position).astype(np.intp)
    return lower, np.minimum(lower + 1, samples - 1), (position - lower).astype(np.float32)


def _haar(a: Values) -> tuple[Values, Values]:
    """One level of the Haar transform: the new samples, and the details."""
    n_samples = a.shape[-1] // 2 * 2
    even = a[..., 0:n_samples:2]
    odd = a[..., 1:n_samples:2]
    # new samples = (even + odd) / sqrt(2), details = (even - odd) / sqrt(2)
    return (even + odd) * ROOT_HALF, (even - odd) * ROOT_HALF


def _db4(a: Values) -> tuple[Values, Values]:
    """One level of the transform with Daubechies' 8 taps: the new samples, and the details."""
    indices, low, high = _taps(a.shape[-1] // 2)
    near = a.take(indices, axis=-1)
    return np.add.reduce(near * low, -1), np.add.reduce(near * high, -1)


@lru_cache(maxsize=64)
def _taps(half: int) -> tuple[NDArray[np.intp], Values, Values]:
    """Samples that each result reads, shape (half, 8), and the two filters."""
    indices = (2 * np.arange(half)[:, np.newaxis] + np.arange(8)) % (2 * half)
    low = np.asarray(DB4, np.float32)
    return indices, low, low[::-1] * np.asarray([1, -1] * 4, np.float32)
