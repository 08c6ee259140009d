"""Test helpers: one block of every kind, and random windows and images."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

import gatewise_signals as sig

RATE_HZ = 50.0
CHANNELS = 3  # of the windows that :func:`make_signal_blocks` reads


def make_signal_blocks(levels: int = 3) -> list[sig.Block]:
    """Make a block of each kind for windows of three channels and at least 16 samples."""
    acceleration = sig.Channels("acc", (0, 1, 2), ("x", "y", "z"), 0.5)
    one_channel = sig.Channels("one", (1,))
    spectrum = sig.Spectrum(acceleration, RATE_HZ)
    mel_spectrogram = sig.MelSpectrogram(sig.Spectrogram(one_channel, RATE_HZ, 16, 5), 4)
    return [
        sig.Mean(acceleration),
        sig.Statistics(acceleration),
        sig.Quantiles(acceleration),
        sig.ZeroCrossings(acceleration),
        sig.Autocorrelation(acceleration, (1, 3, 7)),
        sig.WaveletEnergies(acceleration, levels),
        sig.Tilt(acceleration),
        sig.Statistics(sig.Magnitude(acceleration)),
        sig.Statistics(sig.Jerk(acceleration, RATE_HZ)),
        sig.BandPowers(sig.Spectrum(sig.Envelope(acceleration, 4), RATE_HZ / 4), (0.0, 2.0, 6.0)),
        sig.BandPowers(spectrum, (0.0, 1.0, 1.25, 5.0, 25.0, 26.0)),
        sig.SpectralMoments(spectrum),
        sig.MelEnergies(mel_spectrogram),
        sig.Mfcc(mel_spectrogram, 3),
        # frames of which the length is not a power of 2
        sig.Mfcc(sig.MelSpectrogram(sig.Spectrogram(one_channel, RATE_HZ, 11, 5), 3), 2, 2),
    ]


def draw_window(rng: np.random.Generator, n_samples: int, n_channels: int) -> NDArray[Any]:
    """Draw a window with noise, constants, clipping, NaN, infinities or extreme values."""
    x = rng.normal(0, 10.0 ** rng.integers(-3, 6), (n_samples, n_channels))
    content_kind = rng.integers(8)  # 6 and 7 leave the noise as it is
    if content_kind == 0:
        x[:] = rng.normal(0, 1000, n_channels)
    elif content_kind == 1:
        x = np.clip(x, -np.abs(x).mean(), np.abs(x).mean()) if x.size else x
    elif content_kind in (2, 3) and x.size:
        # besides NaN and infinities, values near the largest and the smallest of float32
        special_values = np.asarray([np.nan, np.inf, -np.inf, 3e38, -0.0, 1e-42])
        x[rng.random(x.shape) < rng.random()] = rng.choice(special_values)
    elif content_kind == 4:
        return rng.choice([-32768, 32767, 0], x.shape).astype(np.int16)
    elif content_kind == 5:
        x[:] = 0
    dtype = rng.choice(["float64", "float32", "float16", "int16", "uint8", "int8"])
    with np.errstate(all="ignore"):
        return x.astype(dtype)


def make_image_blocks(source: sig.Picture) -> list[sig.Block]:
    """Make a block of each kind for images of at least 6 x 6 pixels."""
    return [
        sig.Thumbnail(source, 3, 5),
        sig.BlockStatistics(source, 4, 2),
        sig.GreyHistogram(source, 7, -10.0, 300.0),
        sig.Edges(source, 2, 5),
        sig.Edges(source, 3, 1, 8),
    ]


def draw_image(rng: np.random.Generator, *shape: int) -> NDArray[Any]:
    """Draw an image of any type, with the values of :func:`draw_window`."""
    n_pixels = int(np.prod(shape))
    return draw_window(rng, n_pixels, 1).reshape(shape)
