"""Write the C call of each kind of step; ``templates/signal_steps.c`` holds the functions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from gatewise_export.c99.signals.step_code import StepCode
from gatewise_signals.blocks import images, sound, spectra, time_domain
from gatewise_signals.steps import LUMINANCE, Channels, Pixels, Step

#: Largest number of terms that numpy, and the C, sum without splitting them in halves.
SUM_BLOCK = 128

# -- the window ----------------------------------------------------------------------------


def _channels(code: StepCode, step: Channels) -> None:
    samples, width = (*code.input_shapes[0], 1)[:2]
    index = code.table(step.indices, "Columns of the window")
    code.call("channels", samples, width, index, len(step.indices), float(step.scale))


def _pixels(code: StepCode, step: Pixels) -> None:
    size = math.prod(code.shape)
    scale = float(step.scale)
    if code.input_shapes[0] == code.shape:
        code.call("pixels", size, scale)
    else:
        code.call("grey", size, scale, *LUMINANCE)


def _frame(code: StepCode, step: images.Frame) -> None:
    size = math.prod(code.shape)
    code.inputs = [f"{code.inputs[0]} + {step.index * size}"]
    code.call("pixels", size, float(step.scale))


# -- time ----------------------------------------------------------------------------------


def _quantiles(code: StepCode, step: time_domain.Quantiles) -> None:
    # quantile = sorted[lower] + fraction * (sorted[lower + 1] - sorted[lower])
    lower, _, fraction = time_domain.quantile_positions(step.at, code.length)
    indices = code.table(lower, "Index of the sorted sample below each quantile")
    fractions = code.floats(fraction, "Fraction of the way to the next sample")
    work = code.scratch_or_input(code.length)
    code.call_of_rows("quantiles", indices, fractions, len(fraction), work)


def _autocorrelation(code: StepCode, step: time_domain.Autocorrelation) -> None:
    code.call_of_rows("autocorrelation", code.table(step.lags, "Lags"), len(step.lags))


def _wavelet(code: StepCode, step: time_domain.WaveletEnergies) -> None:
    detail = code.scratch(SUM_BLOCK)
    work = code.scratch_or_input(code.length)
    code.call_of_rows("wavelet", float(time_domain.ROOT_HALF), step.levels, detail, work)


# -- frequency -----------------------------------------------------------------------------


def _transform(code: StepCode, samples: int, work: str) -> tuple[str | int | float, ...]:
    """List the C arguments for a power spectrum of `samples` values with working memory `work`."""
    window, squares = spectra.weighted_hann(samples)
    size = spectra.fft_size(samples)
    twiddles = code.tables.transform(size)
    half = code.floats(window[: samples // 2 + 1], "First half of a Hann window")
    return half, float(squares), size, twiddles, work


def _spectrum(code: StepCode, step: spectra.Spectrum) -> None:
    work = code.scratch_or_input(spectra.fft_size(code.length))
    code.put_result_in_input()
    code.call_of_rows("spectrum", *_transform(code, code.length, work))


def _band_powers(code: StepCode, step: spectra.BandPowers) -> None:
    edges = np.asarray(step.edges, np.float32)
    starts = np.searchsorted(step.source.hz(code.length), edges)
    code.call_of_rows("band_powers", code.table(starts, "First bins of bands"), len(starts) - 1)


def _moments(code: StepCode, step: spectra.SpectralMoments) -> None:
    hz = code.floats(step.source.hz(code.length), "Frequencies of bins")
    scale = float(-np.log(code.length))
    work = code.scratch(code.length)
    code.call_of_rows("spectral_moments", hz, float(step.rolloff), scale, work)


def _spectrogram(code: StepCode, step: sound.Spectrogram) -> None:
    work = code.scratch(spectra.fft_size(step.frame))
    code.call_of_rows("spectrogram", step.frame, step.hop, *_transform(code, step.frame, work))


def _mel_bands(code: StepCode, step: sound.MelSpectrogram) -> None:
    bins, weights, starts = step.filters()
    first_bins = code.table(bins[starts], "First bins of mel bands")
    weight = code.floats(weights, "Weights of the bins of mel bands")
    bounds = code.table([*starts, len(bins)], "Start of each band's weights")
    filters = first_bins, weight, bounds, step.bands
    if len(code.input_shapes[0]) == 3:
        code.call_of_rows("mel_bands", *filters)
        return
    # the plan left out the spectrogram, so compute the mel bands of each frame from its spectrum
    source = step.source
    work = code.scratch(spectra.fft_size(source.frame))
    if step.bands <= source.hop:  # no band overwrites samples of a later frame
        code.put_result_in_input()
    transform = _transform(code, source.frame, work)
    code.call_of_rows("mel_of_frames", source.frame, source.hop, *filters, *transform)


def _mel_energies(code: StepCode, step: sound.MelEnergies) -> None:
    channels, frames, bands = code.input_shapes[0]
    code.call("mel_energies", channels, frames, bands, code.scratch(frames))


def _mfcc(code: StepCode, step: sound.Mfcc) -> None:
    _, frames, bands = code.input_shapes[0]
    rows = code.floats(sound.dct_rows(step.coefficients, bands), "Rows of the cosine transform")
    work = code.scratch(frames * (step.coefficients + 1))
    settings = (rows, step.coefficients, step.parts)
    code.call("mfcc", *code.input_shapes[0], *settings, work)


# -- pictures ------------------------------------------------------------------------------


def _cells(function: str) -> Callable[[StepCode, Any], None]:
    def write(code: StepCode, step: images.Thumbnail | images.BlockStatistics) -> None:
        height, width = code.input_shapes[0]
        work = code.scratch(-(-height // step.rows))
        code.call(function, height, width, step.rows, step.columns, work)

    return write


def _histogram(code: StepCode, step: images.GreyHistogram) -> None:
    factor = step.bins / (step.high - step.low)
    code.call("histogram", math.prod(code.input_shapes[0]), step.bins, float(step.low), factor)


def _edges(code: StepCode, step: images.Edges) -> None:
    grid = (step.rows, step.columns, step.directions)
    code.call("edges", *code.input_shapes[0], *grid, step.directions / math.pi)


def _plain(function: str, *settings: str) -> Callable[[StepCode, Any], None]:
    """Make a writer of calls with the input's channels and these settings as arguments."""
    return lambda code, step: code.call_of_rows(function, *(getattr(step, s) for s in settings))


#: Call writers of the steps that C can compute.
KINDS: dict[type[Step], Callable[[StepCode, Any], None]] = {
    Channels: _channels,
    Pixels: _pixels,
    time_domain.Magnitude: _plain("magnitude"),
    time_domain.Envelope: _plain("envelope", "width"),
    time_domain.Jerk: lambda code, step: code.call_of_rows("jerk", float(step.rate_hz)),
    time_domain.Mean: _plain("mean"),
    time_domain.Statistics: _plain("statistics"),
    time_domain.Quantiles: _quantiles,
    time_domain.ZeroCrossings: _plain("crossings"),
    time_domain.Autocorrelation: _autocorrelation,
    time_domain.WaveletEnergies: _wavelet,
    time_domain.Tilt: lambda code, step: code.call("tilt", code.length),
    spectra.Spectrum: _spectrum,
    spectra.BandPowers: _band_powers,
    spectra.SpectralMoments: _moments,
    sound.Spectrogram: _spectrogram,
    sound.MelSpectrogram: _mel_bands,
    sound.MelEnergies: _mel_energies,
    sound.Mfcc: _mfcc,
    images.Frame: _frame,
    images.FrameDifference: lambda code, step: code.call("difference", math.prod(code.shape)),
    images.Thumbnail: _cells("thumbnail"),
    images.BlockStatistics: _cells("cells"),
    images.GreyHistogram: _histogram,
    images.Edges: _edges,
}
