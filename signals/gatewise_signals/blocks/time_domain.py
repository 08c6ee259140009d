"""Steps in the time domain, computed from the samples of each channel."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gatewise.errors import InputError
from gatewise_signals.blocks.block import Block, SignalBlock
from gatewise_signals.steps import (
    ChannelwiseSignal,
    Signal,
    Values,
    channel_means,
    check_number,
    check_rising,
    check_whole,
    subtract_mean,
)

#: Factor of the Haar wavelet, with which the transform keeps the energy.
ROOT_HALF = np.float32(np.sqrt(0.5))


@dataclass(frozen=True, repr=False)
class Magnitude(Signal):
    """Euclidean norm over the channels of `source` at each sample, shape (n, 1, samples)."""

    kind: ClassVar[str] = "magnitude"
    channels: ClassVar[tuple[str, ...]] = ("magnitude",)
    source: Signal

    def run(self, *inputs: NDArray[Any]) -> Values:
        (x,) = inputs
        sum_of_squares = x[:, :1] * x[:, :1]
        for channel in range(1, x.shape[1]):
            samples = x[:, channel : channel + 1]
            sum_of_squares += samples * samples
        norms: Values = np.sqrt(sum_of_squares)
        return norms


@dataclass(frozen=True, repr=False)
class Envelope(ChannelwiseSignal):
    """Envelope of a signal: means of the rectified samples.

    The result has the shape (n, n_channels, samples // width). Let c be the samples minus their
    mean. Sample ``j`` of the envelope is the mean of ``|c|`` over the samples ``j * width`` to
    ``(j + 1) * width - 1``. The spectrum of the envelope, ``Spectrum(Envelope(x, 8), rate_hz /
    8)``, shows the rate of repeated shocks, for example from a damaged bearing.

    Parameters
    ----------
    source : Signal
    width : int
    """

    kind: ClassVar[str] = "envelope"
    width: int

    def _check_settings(self) -> None:
        check_whole("envelope: width", self.width, 1, 1 << 20)

    def run(self, *inputs: NDArray[Any]) -> Values:
        (x,) = inputs
        n_means = x.shape[-1] // self.width
        if not n_means:
            raise InputError(
                f"{self.label}: needs at least {self.width} samples, not {x.shape[-1]}"
            )
        magnitudes = subtract_mean(x)
        np.abs(magnitudes, out=magnitudes)
        whole_parts = magnitudes[..., : n_means * self.width]
        return channel_means(whole_parts.reshape(*x.shape[:-1], n_means, self.width))


@dataclass(frozen=True, repr=False)
class Jerk(ChannelwiseSignal):
    """Change of a signal per second, which for an acceleration is the jerk.

    It is ``(x[i + 1] - x[i]) * rate_hz``, shape (n, n_channels, samples - 1).

    Parameters
    ----------
    source : Signal
    rate_hz : float
        Samples per second of `source`.
    """

    kind: ClassVar[str] = "jerk"
    rate_hz: float

    def _check_settings(self) -> None:
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
    """Mean of the samples, the cheapest block."""

    kind: ClassVar[str] = "mean"
    channel_suffixes: ClassVar[tuple[str, ...]] = ("mean",)

    def values(self, x: Values) -> Values:
        return channel_means(x)[..., np.newaxis]


@dataclass(frozen=True, repr=False)
class Statistics(SignalBlock):
    """Standard deviation, skewness, kurtosis, RMS, crest factor and range of the samples.

    Let x be the samples, c the samples minus their mean, v the mean of ``c**2``, s the square root
    of v, and r the square root of the mean of ``x**2``. The features are ``s``,
    ``mean(c**3) / (v * s)``, ``mean(c**4) / v**2``, ``r``, ``max(|x|) / r`` and
    ``max(x) - min(x)``. A quotient is 0 unless its divisor is above 0.
    """

    kind: ClassVar[str] = "statistics"
    channel_suffixes: ClassVar[tuple[str, ...]] = (
        "std",
        "skewness",
        "kurtosis",
        "rms",
        "crest",
        "range",
    )

    def values(self, x: Values) -> Values:
        features = np.empty((*x.shape[:-1], 6), np.float32)
        # c = x - mean, the deviations; v = mean(c**2), s = sqrt(v)
        deviations = subtract_mean(x)
        squares = deviations * deviations
        variance = channel_means(squares)
        std = np.sqrt(variance)
        rms = np.sqrt(channel_means(x * x))
        highest = np.maximum.reduce(x, -1)
        lowest = np.minimum.reduce(x, -1)
        features[..., 0] = std
        # skewness = mean(c**3) / (v * s), kurtosis = mean(c**4) / v**2
        features[..., 1] = safe_ratio(channel_means(squares * deviations), variance * std)
        features[..., 2] = safe_ratio(channel_means(squares * squares), variance * variance)
        features[..., 3] = rms
        # crest factor = max(|x|) / rms
        features[..., 4] = safe_ratio(np.maximum(highest, -lowest), rms)
        features[..., 5] = highest - lowest
        return features


@dataclass(frozen=True, repr=False)
class Quantiles(SignalBlock):
    """Quantiles of the samples.

    Let s be the n samples in ascending order, with NaN at the end, and ``p = q * (n - 1)``. With
    ``i = floor(p)`` and ``j = min(i + 1, n - 1)``, quantile q is
    ``s[i] + (p - i) * (s[j] - s[i])``.

    Parameters
    ----------
    source : Signal
    at : tuple of float
        Probabilities q in ascending order, each from 0 to 1.
    """

    kind: ClassVar[str] = "quantiles"
    at: tuple[float, ...] = (0.05, 0.25, 0.5, 0.75, 0.95)

    def _check_settings(self) -> None:
        check_rising("quantiles: at", self.at, 0, 1)

    @property
    def channel_suffixes(self) -> tuple[str, ...]:
        return tuple(f"q{100 * probability:g}" for probability in self.at)

    def values(self, x: Values) -> Values:
        positions = quantile_positions(self.at, x.shape[-1])
        # s[i] + (p - i) * (s[i + 1] - s[i])
        sorted_samples = np.sort(x, axis=-1)
        lower_samples = sorted_samples.take(positions.lower, axis=-1)
        upper_samples = sorted_samples.take(positions.upper, axis=-1)
        quantiles: Values = lower_samples + positions.upper_weight * (upper_samples - lower_samples)
        return quantiles


@dataclass(frozen=True, repr=False)
class ZeroCrossings(SignalBlock):
    """Rate at which samples cross their mean, and mean change between neighbouring samples.

    Let x be the n samples, and c the samples minus their mean. The first feature is the share of
    the n - 1 pairs of neighbours in which exactly one c is below 0. The second feature is the mean
    of ``|x[i + 1] - x[i]|``. Both are 0 if there is only one sample.
    """

    kind: ClassVar[str] = "crossings"
    channel_suffixes: ClassVar[tuple[str, ...]] = ("rate", "change")

    def values(self, x: Values) -> Values:
        features = np.zeros((*x.shape[:-1], 2), np.float32)
        if x.shape[-1] > 1:
            is_negative = subtract_mean(x) < 0
            crossings = (is_negative[..., 1:] != is_negative[..., :-1]).astype(np.float32)
            features[..., 0] = channel_means(crossings)
            change = x[..., 1:] - x[..., :-1]
            features[..., 1] = channel_means(np.abs(change, out=change))
        return features


@dataclass(frozen=True, repr=False)
class Autocorrelation(SignalBlock):
    """Correlation of a signal with itself at several lags.

    Let c be the samples minus their mean. A feature is ``sum(c[i] * c[i + lag]) / sum(c**2)``, or 0
    unless the divisor is above 0.

    Parameters
    ----------
    source : Signal
    lags : tuple of int
        Lags in samples, in ascending order, each less than the length of a window.
    """

    kind: ClassVar[str] = "autocorrelation"
    lags: tuple[int, ...] = (1, 2, 4, 8)

    def _check_settings(self) -> None:
        check_rising("autocorrelation: lags", self.lags, 1, 1 << 20)
        for lag in self.lags:
            check_whole("autocorrelation: a lag", lag, 1, 1 << 20)

    @property
    def channel_suffixes(self) -> tuple[str, ...]:
        return tuple(f"lag{lag}" for lag in self.lags)

    def values(self, x: Values) -> Values:
        n_samples = x.shape[-1]
        if n_samples <= self.lags[-1]:
            raise InputError(
                f"{self.label}: lag {self.lags[-1]} needs more than {n_samples} samples"
            )
        deviations = subtract_mean(x)
        correlations = np.empty((*x.shape[:-1], len(self.lags)), np.float32)
        for column, lag in enumerate(self.lags):
            np.add.reduce(
                deviations[..., lag:] * deviations[..., :-lag], -1, out=correlations[..., column]
            )
        # r[lag] = sum(c[i] * c[i + lag]) / sum(c**2)
        sum_of_squares = np.add.reduce(deviations * deviations, -1, keepdims=True)
        return safe_ratio(correlations, np.broadcast_to(sum_of_squares, correlations.shape))


@dataclass(frozen=True, repr=False)
class WaveletEnergies(SignalBlock):
    """Energies of the Haar wavelet transform of the centred samples, level by level.

    The transform begins with ``a``, the samples minus their mean. Each level cuts ``a`` to an even
    number of samples, and splits it into details and new samples::

        d[k]     = (a[2 * k] - a[2 * k + 1]) / sqrt(2)
        a_new[k] = (a[2 * k] + a[2 * k + 1]) / sqrt(2)

    The features are the natural logarithm of ``1e-12 + mean(d**2)`` for each level, beginning with
    the highest frequencies, and of ``1e-12 + mean(a**2)`` for the samples after the last level.

    Parameters
    ----------
    source : Signal
    levels : int, default 4
        Windows need at least ``2 ** levels`` samples.
    """

    kind: ClassVar[str] = "wavelet"
    levels: int = 4

    def _check_settings(self) -> None:
        check_whole("wavelet: levels", self.levels, 1, 24)

    @property
    def channel_suffixes(self) -> tuple[str, ...]:
        return (*(f"level{level}" for level in range(1, self.levels + 1)), "rest")

    def values(self, x: Values) -> Values:
        if x.shape[-1] < 1 << self.levels:
            raise InputError(
                f"{self.label}: {self.levels} levels need {1 << self.levels} samples, not "
                f"{x.shape[-1]}"
            )
        energies = np.empty((*x.shape[:-1], self.levels + 1), np.float32)
        approximation = subtract_mean(x)
        for level in range(self.levels):
            n_samples = approximation.shape[-1] // 2 * 2
            even_samples = approximation[..., 0:n_samples:2]
            odd_samples = approximation[..., 1:n_samples:2]
            detail = (even_samples - odd_samples) * ROOT_HALF
            energies[..., level] = channel_means(detail * detail)
            approximation = (even_samples + odd_samples) * ROOT_HALF
        energies[..., -1] = channel_means(approximation * approximation)
        energies += np.float32(1e-12)
        return np.log(energies, out=energies)


@dataclass(frozen=True, repr=False)
class Tilt(Block):
    """Angles between an accelerometer and gravity, in radians.

    Let x, y and z be the means of the three channels. The features are the pitch
    ``atan2(x, sqrt(y**2 + z**2))``, the roll ``atan2(y, sqrt(x**2 + z**2))`` and the inclination
    ``atan2(sqrt(x**2 + y**2), z)``.

    Parameters
    ----------
    source : Signal
        Signal with three channels.
    """

    kind: ClassVar[str] = "tilt"
    suffixes: ClassVar[tuple[str, ...]] = ("pitch", "roll", "inclination")
    source: Signal

    def _check_settings(self) -> None:
        if len(self.source.channels) != 3:
            raise InputError("tilt needs a signal with three channels, x, y and z")

    def run(self, *inputs: NDArray[Any]) -> Values:
        # pitch, roll, inclination = atan2(x, |y, z|), atan2(y, |x, z|), atan2(|x, y|, z)
        gravity = channel_means(inputs[0])
        squares = gravity * gravity
        # lengths of (y, z), (x, z) and (x, y)
        lengths = np.sqrt(squares.take((1, 0, 0), axis=1) + squares.take((2, 2, 1), axis=1))
        numerator = np.concatenate([gravity[:, :2], lengths[:, 2:]], axis=1)
        denominator = np.concatenate([lengths[:, :2], gravity[:, 2:]], axis=1)
        angles: Values = np.arctan2(numerator, denominator)
        return angles


def safe_ratio(dividend: Values, divisor: Values) -> Values:
    """Divide element by element; the result is 0 unless the divisor is above 0."""
    return np.divide(dividend, divisor, out=np.zeros_like(dividend), where=divisor > 0)


class QuantilePositions(NamedTuple):
    """Indices of the sorted samples around each quantile, and the weight of the upper one."""

    lower: NDArray[np.intp]
    upper: NDArray[np.intp]
    upper_weight: Values


@lru_cache(maxsize=64)
def quantile_positions(probabilities: tuple[float, ...], n_samples: int) -> QuantilePositions:
    """Find the sorted samples between which each quantile lies."""
    positions = np.asarray(probabilities) * (n_samples - 1)
    lower = np.floor(positions).astype(np.intp)
    return QuantilePositions(
        lower, np.minimum(lower + 1, n_samples - 1), (positions - lower).astype(np.float32)
    )
