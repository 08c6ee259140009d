"""Steps for sound: spectrogram, mel energies and cepstral coefficients."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gatewise.errors import InputError
from gatewise_signals.blocks.block import Block
from gatewise_signals.blocks.spectra import TINY, bin_hz, fft_size, power_spectrum
from gatewise_signals.steps import (
    Signal,
    Step,
    Values,
    channel_means,
    check_number,
    check_whole,
    names_per_channel,
    read_only_float32,
    subtract_mean,
)

#: Constants of the mel scale, ``2595 * log10(1 + f / 700)``, on which 1000 Hz is 1000 mel.
MEL_HZ = 700.0
MEL_FACTOR = 2595.0


@dataclass(frozen=True, repr=False)
class Spectrogram(Step):
    """Power spectra of successive frames.

    The result has the shape (n, n_channels, frames, size // 2 + 1) with
    ``frames = 1 + (samples - frame) // hop``. Frame ``t`` contains the samples ``t * hop`` to
    ``t * hop + frame - 1``. :class:`.Spectrum` defines the spectrum of a frame and its `size`.

    Parameters
    ----------
    source : Signal
    rate_hz : float
        Samples per second of `source`.
    frame, hop : int
        Number of samples in a frame, and between the starts of two frames.
    """

    kind: ClassVar[str] = "spectrogram"
    source: Signal
    rate_hz: float
    frame: int
    hop: int

    @property
    def channels(self) -> tuple[str, ...]:
        """Names of the channels."""
        return self.source.channels

    def _check_settings(self) -> None:
        check_number("spectrogram: rate_hz", self.rate_hz, 0, 1e9)
        check_whole("spectrogram: frame", self.frame, 4, 1 << 20)
        check_whole("spectrogram: hop", self.hop, 1, 1 << 20)

    def run(self, *inputs: NDArray[Any]) -> Values:
        (x,) = inputs
        samples = x.shape[-1]
        if samples < self.frame:
            raise InputError(
                f"{self.label}: a frame needs {self.frame} samples, but windows have {samples}"
            )
        return power_spectrum(x.take(_index_frames(samples, self.frame, self.hop), axis=-1))


class MelFilters(NamedTuple):
    """Bins of all mel bands, one band after another, and their weights."""

    bins: NDArray[np.intp]
    weights: Values
    starts: NDArray[np.intp]  # (bands,): where each band starts


@dataclass(frozen=True, repr=False)
class MelSpectrogram(Step):
    """Logarithm of the power in mel bands, frame by frame.

    The result has the shape (n, n_channels, frames, bands). The frequencies ``e[0..bands + 1]`` are
    equally spaced from `low_hz` to `high_hz` on the scale ``mel(f) = 2595 * log10(1 + f / 700)``.
    The weight of frequency f in band b is ``max(0, min((f - e[b]) / (e[b + 1] - e[b]), (e[b + 2] -
    f) / (e[b + 2] - e[b + 1])))``, divided by the sum of the weights in the band. The value of a
    band is the natural logarithm of ``1e-12`` plus the sum of the weighted powers.

    Parameters
    ----------
    source : Spectrogram
    bands : int, default 20
    low_hz : float, default 0.0
    high_hz : float, default 0.0
        0 stands for half the rate.
    """

    kind: ClassVar[str] = "mel"
    source: Spectrogram
    bands: int = 20
    low_hz: float = 0.0
    high_hz: float = 0.0

    @property
    def channels(self) -> tuple[str, ...]:
        """Names of the channels."""
        return self.source.channels

    def _check_settings(self) -> None:
        check_whole("mel: bands", self.bands, 1, 512)
        half_rate = self.source.rate_hz / 2
        check_number("mel: low_hz", self.low_hz, -1e-9, half_rate)  # 0 is allowed
        check_number("mel: high_hz", self._high_hz, self.low_hz, half_rate)
        self.filters()

    @property
    def _high_hz(self) -> float:
        return self.high_hz or self.source.rate_hz / 2

    def filters(self) -> MelFilters:
        """Compute the filters of all bands."""
        n_bins = fft_size(self.source.frame) // 2 + 1
        return _make_mel_filters(
            self.bands, self.low_hz, self._high_hz, n_bins, self.source.rate_hz
        )

    def run(self, *inputs: NDArray[Any]) -> Values:
        # m[b] = log(1e-12 + sum_i weight[b, i] * power[i]) over the bins i of band b
        filters = self.filters()
        weighted_powers = inputs[0].take(filters.bins, axis=-1)
        weighted_powers *= filters.weights
        power: Values = np.add.reduceat(weighted_powers, filters.starts, axis=-1)
        power += TINY
        return np.log(power, out=power)


@dataclass(frozen=True, repr=False)
class MelEnergies(Block):
    """Mean and standard deviation of each mel band over the frames.

    Parameters
    ----------
    source : MelSpectrogram
    """

    kind: ClassVar[str] = "mel_energies"
    source: MelSpectrogram

    @property
    def suffixes(self) -> tuple[str, ...]:
        return _name_statistics(self.source, self.source.bands)

    def run(self, *inputs: NDArray[Any]) -> Values:
        return _compute_frame_statistics(inputs[0])


@dataclass(frozen=True, repr=False)
class Mfcc(Block):
    """Mean and standard deviation over the frames of mel-frequency cepstral coefficients.

    The coefficients are the orthonormal cosine transform (DCT-II) of the B bands m of a frame's mel
    spectrogram. Coefficient k is ``sqrt(2 / B) * sum(m[b] * cos(pi * k * (b + 0.5) / B))``, with
    ``sqrt(1 / B)`` instead of ``sqrt(2 / B)`` for k = 0.

    Parameters
    ----------
    source : MelSpectrogram
    coefficients : int, default 13
        Number of coefficients, at most the number of bands.
    parts : int, default 1
        Number of parts of a window. With several parts, the features also contain the means over
        the frames of each part, which depend on the order of sounds. Part j of F frames begins at
        frame ``j * F // parts``.
    """

    kind: ClassVar[str] = "mfcc"
    source: MelSpectrogram
    coefficients: int = 13
    parts: int = 1

    def _check_settings(self) -> None:
        check_whole("mfcc: coefficients", self.coefficients, 1, self.source.bands)
        check_whole("mfcc: parts", self.parts, 1, 1 << 10)

    @property
    def suffixes(self) -> tuple[str, ...]:
        return _name_statistics(self.source, self.coefficients, self.parts)

    def run(self, *inputs: NDArray[Any]) -> Values:
        # c[k] = sum_b m[b] * table[k, b]
        table = dct_rows(self.coefficients, self.source.bands)
        coefficients = np.add.reduce(inputs[0][..., np.newaxis, :] * table, -1)
        n_frames = coefficients.shape[-2]
        if self.parts > n_frames:
            raise InputError(
                f"{self.label}: {self.parts} parts need at least {self.parts} frames, but windows "
                f"have {n_frames}"
            )
        return _compute_frame_statistics(coefficients, self.parts)


def _name_statistics(source: MelSpectrogram, n_values: int, n_parts: int = 1) -> tuple[str, ...]:
    statistics = ["mean", "std", *(f"part{part}.mean" for part in range(n_parts) if n_parts > 1)]
    return names_per_channel(
        source.channels,
        tuple(f"{statistic}{index}" for statistic in statistics for index in range(n_values)),
    )


def _compute_frame_statistics(x: Values, n_parts: int = 1) -> Values:
    """Compute means and standard deviations over the frames, and means over several parts.

    Shapes: `x` (n, n_channels, frames, k); returns (n, n_features).
    """
    series = np.ascontiguousarray(x.swapaxes(-1, -2))  # so that sums run along contiguous frames
    deviations = subtract_mean(series)
    statistics = [channel_means(series), np.sqrt(channel_means(deviations * deviations))]
    if n_parts > 1:
        part_starts = np.arange(1, n_parts) * series.shape[-1] // n_parts
        statistics += [
            channel_means(np.ascontiguousarray(part))
            for part in np.split(series, part_starts, axis=-1)
        ]
    return np.ascontiguousarray(np.concatenate(statistics, axis=-1)).reshape(len(x), -1)


@lru_cache(maxsize=32)
def _index_frames(n_samples: int, frame: int, hop: int) -> NDArray[np.intp]:
    """Compute the indices of the samples of each frame, shape (n_frames, frame)."""
    starts = np.arange(1 + (n_samples - frame) // hop) * hop
    indices = starts[:, np.newaxis] + np.arange(frame)
    indices.flags.writeable = False
    return indices


@lru_cache(maxsize=32)
def _make_mel_filters(
    bands: int, low_hz: float, high_hz: float, n_bins: int, rate_hz: float
) -> MelFilters:
    """Compute the filters of mel bands, as :class:`MelSpectrogram` defines them."""
    low_mel, high_mel = (
        MEL_FACTOR * math.log10(1 + frequency_hz / MEL_HZ) for frequency_hz in (low_hz, high_hz)
    )
    # mel(f) = 2595 * log10(1 + f / 700); edges are equally spaced in mel
    edges = MEL_HZ * (10 ** (np.linspace(low_mel, high_mel, bands + 2) / MEL_FACTOR) - 1)
    frequencies = bin_hz(n_bins, rate_hz).astype(float)
    bins = []
    weights = []
    for low, middle, high in zip(edges[:-2], edges[1:-1], edges[2:], strict=True):
        # a triangle with its maximum at `middle`
        bin_weights = np.minimum(
            (frequencies - low) / (middle - low), (high - frequencies) / (high - middle)
        )
        band_bins = np.flatnonzero(bin_weights > 0)
        if not len(band_bins):
            raise InputError(
                f"mel: no bin of {n_bins} lies in the band {low:.4g} to {high:.4g} Hz; give "
                "fewer bands or a longer frame"
            )
        bins.append(band_bins)
        weights.append(bin_weights[band_bins] / bin_weights[band_bins].sum())
    starts = np.cumsum([0] + [len(band_bins) for band_bins in bins[:-1]])
    return MelFilters(np.concatenate(bins), read_only_float32(np.concatenate(weights)), starts)


@lru_cache(maxsize=32)
def dct_rows(coefficients: int, bands: int) -> Values:
    """Compute the first rows of the orthonormal DCT-II matrix, shape (coefficients, bands)."""
    k = np.arange(coefficients)[:, np.newaxis]
    table = np.sqrt(2 / bands) * np.cos(np.pi * k * (np.arange(bands) + 0.5) / bands)
    table[0] = np.sqrt(1 / bands)
    return read_only_float32(table)
