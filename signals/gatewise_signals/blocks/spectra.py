"""Steps in the frequency domain, which are based on a power spectrum."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gatewise.errors import InputError
from gatewise_signals.blocks.block import SignalBlock
from gatewise_signals.blocks.time_domain import safe_ratio
from gatewise_signals.steps import (
    ChannelwiseSignal,
    Values,
    check_number,
    check_rising,
    read_only_float32,
    subtract_mean,
)

#: Number that is added to a power before its logarithm, which is then finite for silence.
TINY = np.float32(1e-12)


@dataclass(frozen=True, repr=False)
class Spectrum(ChannelwiseSignal):
    """Power spectrum of the centred samples under a Hann window.

    The result has the shape (n, n_channels, size // 2 + 1). The samples are padded with zeros to
    `size`, the next power of two. Bin ``i`` is the squared magnitude of the discrete Fourier
    transform at ``i * rate_hz / size``, divided by the sum of the squares of the Hann window.

    Parameters
    ----------
    source : Signal
    rate_hz : float
        Samples per second of `source`.
    """

    kind: ClassVar[str] = "spectrum"
    rate_hz: float

    def _check_settings(self) -> None:
        check_number("spectrum: rate_hz", self.rate_hz, 0, 1e9)

    def run(self, *inputs: NDArray[Any]) -> Values:
        return power_spectrum(inputs[0])

    def hz(self, n_bins: int) -> Values:
        """Compute the frequency of each bin in Hz, shape (`n_bins`,)."""
        return bin_hz(n_bins, self.rate_hz)


@dataclass(frozen=True, repr=False)
class BandPowers(SignalBlock):
    """Logarithm of the power in frequency bands.

    A band contains the bins from its lower edge up to, but not including, its upper edge. The
    feature is the natural logarithm of ``1e-12`` plus the mean of their powers. A band without bins
    has the feature 0.

    Parameters
    ----------
    source : Spectrum
    edges : tuple of float
        Edges of adjacent bands in Hz, in ascending order.
    """

    kind: ClassVar[str] = "bands"
    source: Spectrum
    edges: tuple[float, ...]

    def _check_settings(self) -> None:
        check_rising("bands: edges", self.edges, 0, 1e9)
        if len(self.edges) < 2:
            raise InputError(f"bands: edges are {self.edges}; give at least two, for one band")

    @property
    def channel_suffixes(self) -> tuple[str, ...]:
        bands = zip(self.edges[:-1], self.edges[1:], strict=True)
        return tuple(f"{low:g}-{high:g}Hz" for low, high in bands)

    def values(self, x: Values) -> Values:
        bands = _find_band_bins(self.edges, self.source.rate_hz, x.shape[-1])
        band_powers = np.zeros((*x.shape[:-1], len(bands.has_bins)), np.float32)
        if not len(bands.starts):
            return band_powers
        # reduceat sums from each start to the next one, because the bands are adjacent. Bands
        # without bins are left out: for an empty range it would return its first bin.
        powers = np.add.reduceat(x[..., : bands.end], bands.starts, axis=-1) / bands.counts
        powers += TINY
        np.log(powers, out=powers)
        if bands.has_bins.all():
            return np.asarray(powers)
        band_powers[..., bands.has_bins] = powers
        return band_powers


@dataclass(frozen=True, repr=False)
class SpectralMoments(SignalBlock):
    """Centroid, spread, entropy, rolloff and peak of a power spectrum.

    Let q be the powers of the n bins divided by their sum (0 where the sum is not above 0), and f
    the frequencies of the bins. The features are:

    - the centroid ``c = sum(f * q)`` in Hz
    - the spread ``sqrt(sum((f - c)**2 * q))`` in Hz
    - the entropy ``-sum(q * log(q + 1e-12)) / log(n)``
    - the rolloff: the frequency of the first bin at which the running sum of q reaches `rolloff` of
      its last value, or of bin 0 if no bin does
    - the peak: the frequency of the largest power, and of the first bin if several powers are equal

    NaN counts as the largest power.

    Parameters
    ----------
    source : Spectrum
    rolloff : float, default 0.85
        Above 0, at most 1.
    """

    kind: ClassVar[str] = "moments"
    channel_suffixes: ClassVar[tuple[str, ...]] = (
        "centroid",
        "spread",
        "entropy",
        "rolloff",
        "peak",
    )
    source: Spectrum
    rolloff: float = 0.85

    def _check_settings(self) -> None:
        check_number("moments: rolloff", self.rolloff, 0, 1)

    def values(self, x: Values) -> Values:
        # q = x / sum(x), c = sum(hz * q), spread = sqrt(sum((hz - c)**2 * q))
        hz = self.source.hz(x.shape[-1])
        # the last axis has the order of channel_suffixes
        features = np.empty((*x.shape[:-1], len(self.channel_suffixes)), np.float32)
        total_power = np.add.reduce(x, -1, keepdims=True)
        q = safe_ratio(x, np.broadcast_to(total_power, x.shape))
        centroid = np.add.reduce(q * hz, -1, keepdims=True)
        squared_distances = hz - centroid
        squared_distances *= squared_distances
        squared_distances *= q
        features[..., 0] = centroid[..., 0]
        features[..., 1] = np.sqrt(np.add.reduce(squared_distances, -1))
        # entropy = -sum(q * log(q + 1e-12)) / log(n)
        features[..., 2] = np.add.reduce(q * np.log(q + TINY), -1) / np.float32(-np.log(len(hz)))
        # rolloff: the first bin at which the running sum of q reaches that share of the total
        running_sum = np.add.accumulate(q, -1)
        is_reached = running_sum >= running_sum[..., -1:] * np.float32(self.rolloff)
        features[..., 3] = hz.take(is_reached.argmax(axis=-1))
        features[..., 4] = hz.take(x.argmax(axis=-1))
        return features


def power_spectrum(x: Values) -> Values:
    """Compute the power spectrum along the last axis, as :class:`Spectrum` defines it."""
    n_samples = x.shape[-1]
    window, window_power = hann_window_and_power(n_samples)
    centred_samples = subtract_mean(x)
    centred_samples *= window
    spectrum = np.fft.rfft(centred_samples, fft_size(n_samples)).astype(np.complex64, copy=False)
    # power = |DFT(window * (x - mean))|**2 / sum(window**2)
    power: Values = spectrum.real * spectrum.real
    power += spectrum.imag * spectrum.imag
    power /= window_power
    return power


def fft_size(n_samples: int) -> int:
    """Return the smallest power of two that is at least `n_samples`, and at least 2."""
    return 1 << max(n_samples - 1, 1).bit_length()


@lru_cache(maxsize=32)
def hann_window_and_power(n_samples: int) -> tuple[Values, np.float32]:
    """Compute a periodic Hann window, (samples,), and its sum of squares (1 for one sample)."""
    window = read_only_float32(0.5 - 0.5 * np.cos(2 * np.pi * np.arange(n_samples) / n_samples))
    return window, np.float32(np.sum(window * window) or 1.0)


@lru_cache(maxsize=32)
def bin_hz(n_bins: int, rate_hz: float) -> Values:
    """Compute the frequency of each bin of a spectrum, shape (n_bins,)."""
    return read_only_float32(np.arange(n_bins) * (rate_hz / (2 * (n_bins - 1))))


class _BandBins(NamedTuple):
    """Bins of adjacent bands; `starts` and `counts` leave out the bands without bins."""

    starts: NDArray[np.intp]  # first bin of each band that has bins
    counts: Values  # number of bins of each such band
    has_bins: NDArray[np.bool_]  # (n_bands,)
    end: int  # end of the last band


@lru_cache(maxsize=64)
def _find_band_bins(edges: tuple[float, ...], rate_hz: float, n_bins: int) -> _BandBins:
    edge_bins = np.searchsorted(bin_hz(n_bins, rate_hz), np.asarray(edges, np.float32))
    counts = np.diff(edge_bins)
    has_bins = counts > 0
    return _BandBins(
        starts=edge_bins[:-1][has_bins],
        counts=read_only_float32(counts[has_bins]),
        has_bins=has_bins,
        end=int(edge_bins[-1]),
    )
