"""Spectra and their features, compared with scipy."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import signal

import gatewise_signals as sig

RATE = 400.0
CHANNELS = sig.Channels()
SPECTRUM = sig.Spectrum(CHANNELS, RATE)


def compute_features(block, windows):
    return sig.SignalGraph([block]).transform(windows)


@pytest.fixture(scope="module")
def windows():
    rng = np.random.default_rng(1)
    seconds = np.arange(200) / RATE
    tones = np.sin(2 * np.pi * rng.uniform(5, 190, (30, 1)) * seconds)
    return 1000 * tones + rng.normal(0, 50, tones.shape) + 4000


def compute_spectrum(windows, fft_length=256):
    """Compute frequencies and two-sided power by scipy, in the units of Spectrum."""
    x = windows.astype(float)
    hz, power = signal.periodogram(
        x, fs=1.0, window="hann", nfft=fft_length, detrend="constant", return_onesided=False
    )
    return np.abs(hz[: fft_length // 2 + 1]) * RATE, power[:, : fft_length // 2 + 1]


def test_the_spectrum_equals_scipys(windows):
    graph = sig.SignalGraph([sig.BandPowers(SPECTRUM, (0.0, 1.0))])
    window_values = sig.graph.WindowValues(graph, windows)
    hz, power = compute_spectrum(windows)
    np.testing.assert_allclose(SPECTRUM.hz(129), hz, rtol=1e-6)  # 256 / 2 + 1 frequencies
    spectrum = window_values.step_result(SPECTRUM)[:, 0]
    np.testing.assert_allclose(spectrum, power, rtol=1e-3, atol=1e-6 * power.max())


def test_band_powers_are_log_means_of_bins_or_zero_without_bins(windows):
    hz, power = compute_spectrum(windows)
    edges = (0.0, 30.0, 30.5, 100.0, 200.0, 500.0, 600.0)
    features = compute_features(sig.BandPowers(SPECTRUM, edges), windows)
    for k in (0, 2, 3, 4):  # no bin lies in the bands 1 and 5
        is_inside = (hz >= edges[k]) & (hz < edges[k + 1])
        np.testing.assert_allclose(features[:, k], np.log(power[:, is_inside].mean(1)), rtol=1e-4)
    assert not features[:, [1, 5]].any()
    # above half of the rate
    assert not compute_features(sig.BandPowers(SPECTRUM, (201.0, 202.0)), windows).any()


def test_moments_follow_their_formulas(windows):
    hz, power = compute_spectrum(windows)
    power_shares = power / power.sum(1, keepdims=True)
    centroid = power_shares @ hz
    spread = np.sqrt((power_shares * (hz - centroid[:, None]) ** 2).sum(1))
    entropy = -(power_shares * np.log(power_shares + 1e-12)).sum(1) / np.log(len(hz))
    features = compute_features(sig.SpectralMoments(SPECTRUM), windows)
    np.testing.assert_allclose(features[:, 0], centroid, rtol=1e-4)
    np.testing.assert_allclose(features[:, 1], spread, rtol=1e-4)
    np.testing.assert_allclose(features[:, 2], entropy, rtol=1e-4)
    rolloff = hz[(np.cumsum(power_shares, 1) >= 0.85).argmax(1)]
    assert (features[:, 3] == rolloff).mean() > 0.9  # a sum next to 0.85 may fall on either side
    assert np.abs(features[:, 3] - rolloff).max() <= hz[1] * 1.01
    np.testing.assert_array_equal(features[:, 4], hz[power.argmax(1)])


@pytest.mark.parametrize("n_samples", [1, 2, 3])
def test_the_shortest_windows_have_a_spectrum(n_samples):
    block = sig.SpectralMoments(SPECTRUM)
    assert compute_features(block, np.ones((1, n_samples))).tolist() == [[0, 0, 0, 0, 0]]
