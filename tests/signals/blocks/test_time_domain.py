"""Features in the time domain, compared with numpy and scipy."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

import gatewise_signals as sig
from gatewise.errors import InputError

AXES = sig.Channels("acc", (0, 1, 2), ("x", "y", "z"))


def compute_features(block, windows):
    return sig.SignalGraph([block]).transform(windows).reshape(len(windows), 3, -1)


@pytest.fixture(scope="module")
def windows():
    rng = np.random.default_rng(0)
    random_walk = np.cumsum(rng.normal(0, 40, (20, 130, 3)), axis=1) + 700
    return random_walk.astype(np.int16)


def test_statistics_equal_scipys(windows):
    x = windows.astype(float)
    rms = np.sqrt((x**2).mean(1))
    expected_features = [
        x.std(1), stats.skew(x, axis=1), stats.kurtosis(x, axis=1, fisher=False), rms,
        np.abs(x).max(1) / rms, np.ptp(x, axis=1),
    ]  # fmt: skip
    np.testing.assert_allclose(
        compute_features(sig.Statistics(AXES), windows),
        np.stack(expected_features, -1),
        rtol=1e-5,
        atol=1e-5,
    )


def test_features_of_constant_signals_are_exact_in_any_unit():
    constant_windows = np.full((1, 77, 3), 12345, np.int16)
    scaled_channels = sig.Channels("acc", (0, 1, 2), ("x", "y", "z"), 0.0123)
    features = sig.SignalGraph(
        [
            sig.Statistics(scaled_channels),
            sig.Autocorrelation(scaled_channels),
            sig.ZeroCrossings(scaled_channels),
        ]
    ).transform(constant_windows)[0]
    # 151.8435 = 0.0123 * 12345 is the root of the mean square; the peak is once as large
    assert features[:6].tolist() == pytest.approx([0, 0, 0, 151.8435, 1, 0])
    assert not features[18:].any()


def test_quantiles_equal_numpys(windows):
    fractions = (0.0, 0.1, 0.5, 0.9, 1.0)
    expected_features = np.moveaxis(np.quantile(windows.astype(float), fractions, axis=1), 0, -1)
    features = compute_features(sig.Quantiles(AXES, fractions), windows)
    np.testing.assert_allclose(features, expected_features, rtol=1e-6, atol=1e-3)


def test_crossings_count_how_often_the_signal_crosses_its_mean(windows):
    x = windows.astype(float)
    is_below = x < x.mean(1, keepdims=True)
    features = compute_features(sig.ZeroCrossings(AXES), windows)
    np.testing.assert_allclose(
        features[..., 0], (is_below[:, 1:] != is_below[:, :-1]).mean(1), rtol=1e-6
    )
    np.testing.assert_allclose(features[..., 1], np.abs(np.diff(x, axis=1)).mean(1), rtol=1e-6)


def test_autocorrelation_follows_its_definition(windows):
    centred = windows.astype(float)
    centred -= centred.mean(1, keepdims=True)
    lags = (1, 5, 60)
    expected_features = [
        (centred[:, lag:] * centred[:, :-lag]).sum(1) / (centred**2).sum(1) for lag in lags
    ]
    features = compute_features(sig.Autocorrelation(AXES, lags), windows)
    np.testing.assert_allclose(features, np.stack(expected_features, -1), atol=2e-6)


@pytest.mark.parametrize("n_samples", [130, 64, 17])
def test_wavelet_energies_equal_those_of_haar_filters(windows, n_samples):
    x = windows[:, :n_samples].astype(float)
    approximation = x - x.mean(1, keepdims=True)
    expected_features = []
    for _ in range(4):
        n_pairs = approximation.shape[1] // 2
        pairs = approximation[:, : 2 * n_pairs].reshape(len(x), n_pairs, 2, x.shape[2])
        details = np.einsum("nktc,t->nkc", pairs, [np.sqrt(0.5), -np.sqrt(0.5)])
        approximation = np.einsum("nktc,t->nkc", pairs, [np.sqrt(0.5)] * 2)
        expected_features.append((details**2).mean(1))
    expected_features.append((approximation**2).mean(1))
    features = compute_features(sig.WaveletEnergies(AXES, 4), windows[:, :n_samples])
    np.testing.assert_allclose(np.exp(features), np.stack(expected_features, -1), rtol=2e-4)


def test_tilt_of_known_positions():
    flat_gravity, upright_gravity = [0, 0, 9.81], [9.81, 0, 0]
    rows = np.tile(np.asarray([flat_gravity, upright_gravity, [0, -1, 1]])[:, None], (1, 20, 1))
    features = sig.SignalGraph([sig.Tilt(AXES)]).transform(rows)
    expected_features = [[0, 0, 0], [np.pi / 2, 0, np.pi / 2], [0, -np.pi / 4, np.pi / 4]]
    np.testing.assert_allclose(features, expected_features, atol=1e-6)


def test_envelope_and_jerk_follow_their_formulas(windows):
    signals = windows.astype(float).transpose(0, 2, 1)
    graph = sig.SignalGraph(
        [sig.Mean(signal) for signal in (sig.Envelope(AXES, 9), sig.Jerk(AXES, 50.0))]
    )
    window_values = sig.graph.WindowValues(graph, windows)
    value_of_step = {step.kind: window_values.step_result(step) for step in graph.steps}
    # means of 14 groups of 9 samples; the rest is left out
    magnitudes = np.abs(signals - signals.mean(-1, keepdims=True))
    mean_magnitudes = magnitudes[..., :126].reshape(20, 3, 14, 9).mean(-1)
    np.testing.assert_allclose(value_of_step["envelope"], mean_magnitudes, rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(value_of_step["jerk"], np.diff(signals) * 50, rtol=1e-6)


@pytest.mark.parametrize(
    "block",
    [
        sig.Autocorrelation(AXES, (9,)),
        sig.WaveletEnergies(AXES, 4),
        sig.Mean(sig.Envelope(AXES, 10)),
    ],
)
def test_windows_that_are_too_short_are_refused(block):
    with pytest.raises(InputError, match=r"9"):
        compute_features(block, np.zeros((1, 9, 3)))


@pytest.mark.parametrize(
    "windows", [np.zeros((2, 0, 3)), np.zeros((2, 9, 2)), np.zeros(4), np.zeros((2, 9, 3, 1))]
)
def test_windows_of_another_shape_are_refused(windows):
    with pytest.raises(InputError, match="acc"):
        sig.SignalGraph([sig.Mean(AXES)]).transform(windows)
