"""Errors for invalid settings of blocks, which name the setting."""

from __future__ import annotations

import pytest

import gatewise_signals as sig
from gatewise.errors import InputError

PIXELS, X = sig.Pixels(), sig.Channels()
AXES = sig.Channels("acc", (0, 1, 2), ("x", "y", "z"))
RATE = 400.0
SPECTRUM = sig.Spectrum(X, RATE)
FRAMES = sig.Spectrogram(X, 8000.0, 200, 80)
MEL = sig.MelSpectrogram(FRAMES, 20, 60.0, 3800.0)


@pytest.mark.parametrize(
    ("make_block", "message"),
    [
        (lambda: sig.Thumbnail(PIXELS, 0, 3), "rows"),
        (lambda: sig.Thumbnail(sig.Channels(), 3, 3), "must be a Picture"),
        (lambda: sig.GreyHistogram(PIXELS, 8, 5.0, 5.0), "high"),
        (lambda: sig.Edges(PIXELS, 2, 2, 6), "4, 8 or 16"),
        (lambda: sig.FrameDifference(PIXELS, sig.Channels()), "must be a Picture"),
        (lambda: sig.Frame(-1), "index"),
        (lambda: sig.standard_image_blocks((28,)), "shape"),
        (lambda: sig.Spectrogram(X, RATE, 2, 80), "frame"),
        (lambda: sig.Spectrogram(X, RATE, 200, 0), "hop"),
        (lambda: sig.MelSpectrogram(X), "must be a Spectrogram"),
        (lambda: sig.MelSpectrogram(FRAMES, 200), "fewer bands"),
        (lambda: sig.MelSpectrogram(FRAMES, 20, 0.0, 5000.0), "high_hz"),
        (lambda: sig.Mfcc(MEL, 21), "coefficients"),
        (lambda: sig.Mfcc(MEL, 13, 0), "parts"),
        (lambda: sig.Mfcc(FRAMES), "must be a MelSpectrogram"),
        (lambda: sig.Spectrum(X, 0), "rate_hz"),
        (lambda: sig.Spectrum(sig.Pixels(), 50), "must be a Signal"),
        (lambda: sig.BandPowers(SPECTRUM, (1.0,)), "two"),
        (lambda: sig.BandPowers(SPECTRUM, (2.0, 1.0)), "rising"),
        (lambda: sig.BandPowers(X, (1.0, 2.0)), "must be a Spectrum"),
        (lambda: sig.SpectralMoments(SPECTRUM, 1.5), "rolloff"),
        (lambda: sig.Quantiles(AXES, ()), "tuple"),
        (lambda: sig.Quantiles(AXES, (0.5, 0.2)), "rising"),
        (lambda: sig.Quantiles(AXES, (0.5, 2.0)), "0 to 1"),
        (lambda: sig.Quantiles(sig.Pixels()), "must be a Signal"),
        (lambda: sig.Autocorrelation(AXES, (0, 1)), "rising"),
        (lambda: sig.Autocorrelation(AXES, (1.5,)), "whole"),
        (lambda: sig.Envelope(AXES, "8"), "width"),
        (lambda: sig.Jerk(AXES, float("nan")), "rate_hz"),
        (lambda: sig.WaveletEnergies(AXES, 0), "levels"),
        (lambda: sig.Tilt(sig.Channels()), "three channels"),
    ],
)
def test_invalid_settings_of_blocks_are_refused(make_block, message):
    with pytest.raises(InputError, match=message):
        make_block()
