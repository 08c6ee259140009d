"""Errors for invalid settings of blocks, which name the setting."""

from __future__ import annotations

import pytest

import gatewise_signals as sig
from gatewise.errors import InputError

PIXELS, CHANNEL = sig.Pixels(), sig.Channels()
THREE_CHANNELS = sig.Channels("acc", (0, 1, 2), ("x", "y", "z"))
RATE_HZ = 400.0
SPECTRUM = sig.Spectrum(CHANNEL, RATE_HZ)
SPECTROGRAM = sig.Spectrogram(CHANNEL, 8000.0, 200, 80)
MEL = sig.MelSpectrogram(SPECTROGRAM, 20, 60.0, 3800.0)


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
        (lambda: sig.Spectrogram(CHANNEL, RATE_HZ, 2, 80), "frame"),
        (lambda: sig.Spectrogram(CHANNEL, RATE_HZ, 200, 0), "hop"),
        (lambda: sig.MelSpectrogram(CHANNEL), "must be a Spectrogram"),
        (lambda: sig.MelSpectrogram(SPECTROGRAM, 200), "fewer bands"),
        (lambda: sig.MelSpectrogram(SPECTROGRAM, 20, 0.0, 5000.0), "high_hz"),
        (lambda: sig.Mfcc(MEL, 21), "coefficients"),
        (lambda: sig.Mfcc(MEL, 13, 0), "parts"),
        (lambda: sig.Mfcc(SPECTROGRAM), "must be a MelSpectrogram"),
        (lambda: sig.Spectrum(CHANNEL, 0), "rate_hz"),
        (lambda: sig.Spectrum(sig.Pixels(), 50), "must be a Signal"),
        (lambda: sig.BandPowers(SPECTRUM, (1.0,)), "two"),
        (lambda: sig.BandPowers(SPECTRUM, (2.0, 1.0)), "rising"),
        (lambda: sig.BandPowers(CHANNEL, (1.0, 2.0)), "must be a Spectrum"),
        (lambda: sig.SpectralMoments(SPECTRUM, 1.5), "rolloff"),
        (lambda: sig.Quantiles(THREE_CHANNELS, ()), "tuple"),
        (lambda: sig.Quantiles(THREE_CHANNELS, (0.5, 0.2)), "rising"),
        (lambda: sig.Quantiles(THREE_CHANNELS, (0.5, 2.0)), "0 to 1"),
        (lambda: sig.Quantiles(sig.Pixels()), "must be a Signal"),
        (lambda: sig.Autocorrelation(THREE_CHANNELS, (0, 1)), "rising"),
        (lambda: sig.Autocorrelation(THREE_CHANNELS, (1.5,)), "whole"),
        (lambda: sig.Envelope(THREE_CHANNELS, "8"), "width"),
        (lambda: sig.Jerk(THREE_CHANNELS, float("nan")), "rate_hz"),
        (lambda: sig.WaveletEnergies(THREE_CHANNELS, 0), "levels"),
        (lambda: sig.Tilt(sig.Channels()), "three channels"),
    ],
)
def test_invalid_settings_of_blocks_are_refused(make_block, message):
    with pytest.raises(InputError, match=message):
        make_block()
