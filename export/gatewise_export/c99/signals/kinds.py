"""Write the C call of each kind of step; ``templates/signal_steps.c`` has the functions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from gatewise_export.c99.signals.step_code import StepCode
from gatewise_signals.blocks import images, sound, spectra, time_domain
from gatewise_signals.steps import LUMINANCE, Channels, Pixels, Step

#: Largest number of terms that numpy and the C code sum without splitting them in halves.
SUM_BLOCK = 128

# -- the window ----------------------------------------------------------------------------


def _write_channels(code: StepCode, step: Channels) -> None:
    samples, width = (*code.input_shapes[0], 1)[:2]
    column_table = code.integer_table(step.indices, "Columns of the window")
    code.write_call("channels", samples, width, column_table, len(step.indices), float(step.scale))


def _write_pixels(code: StepCode, step: Pixels) -> None:
    size = math.prod(code.result_shape)
    scale = float(step.scale)
    if code.input_shapes[0] == code.result_shape:
        code.write_call("pixels", size, scale)
    else:
        code.write_call("grey", size, scale, *LUMINANCE)


def _write_frame(code: StepCode, step: images.Frame) -> None:
    size = math.prod(code.result_shape)
    code.input_expressions = [f"{code.input_expressions[0]} + {step.index * size}"]
    code.write_call("pixels", size, float(step.scale))


# -- time ----------------------------------------------------------------------------------


def _write_quantiles(code: StepCode, step: time_domain.Quantiles) -> None:
    # quantile = sorted[lower] + fraction * (sorted[lower + 1] - sorted[lower])
    positions = time_domain.quantile_positions(step.at, code.row_length)
    indices = code.integer_table(positions.lower, "Index of the sorted sample below each quantile")
    fractions = code.float_table(positions.upper_weight, "Fraction of the way to the next sample")
    scratch = code.reserve_scratch_or_input(code.row_length)
    code.write_row_call("quantiles", indices, fractions, len(step.at), scratch)


def _write_autocorrelation(code: StepCode, step: time_domain.Autocorrelation) -> None:
    code.write_row_call("autocorrelation", code.integer_table(step.lags, "Lags"), len(step.lags))


def _write_wavelet(code: StepCode, step: time_domain.WaveletEnergies) -> None:
    detail = code.reserve_scratch(SUM_BLOCK)
    scratch = code.reserve_scratch_or_input(code.row_length)
    code.write_row_call("wavelet", float(time_domain.ROOT_HALF), step.levels, detail, scratch)


# -- frequency -----------------------------------------------------------------------------


def _transform_arguments(
    code: StepCode, samples: int, scratch: str
) -> tuple[str | int | float, ...]:
    """List the C arguments for a power spectrum of `samples` values that works in `scratch`."""
    window, window_squares = spectra.hann_window_and_power(samples)
    size = spectra.fft_size(samples)
    twiddles = code.tables.twiddle_arguments(size)
    half_window = code.float_table(window[: samples // 2 + 1], "First half of a Hann window")
    return half_window, float(window_squares), size, twiddles, scratch


def _write_spectrum(code: StepCode, step: spectra.Spectrum) -> None:
    scratch = code.reserve_scratch_or_input(spectra.fft_size(code.row_length))
    code.put_result_in_input()
    code.write_row_call("spectrum", *_transform_arguments(code, code.row_length, scratch))


def _write_band_powers(code: StepCode, step: spectra.BandPowers) -> None:
    edges = np.asarray(step.edges, np.float32)
    starts = np.searchsorted(step.source.hz(code.row_length), edges)
    code.write_row_call(
        "band_powers", code.integer_table(starts, "First bins of bands"), len(starts) - 1
    )


def _write_moments(code: StepCode, step: spectra.SpectralMoments) -> None:
    hz = code.float_table(step.source.hz(code.row_length), "Frequencies of bins")
    # entropy = sum p log p / -log n, which is 1 for a flat spectrum of n bins
    entropy_scale = float(-np.log(code.row_length))
    scratch = code.reserve_scratch(code.row_length)
    code.write_row_call("spectral_moments", hz, float(step.rolloff), entropy_scale, scratch)


def _write_spectrogram(code: StepCode, step: sound.Spectrogram) -> None:
    scratch = code.reserve_scratch(spectra.fft_size(step.frame))
    code.write_row_call(
        "spectrogram", step.frame, step.hop, *_transform_arguments(code, step.frame, scratch)
    )


def _write_mel_bands(code: StepCode, step: sound.MelSpectrogram) -> None:
    filters = step.filters()
    first_bins = filters.bins[filters.starts]
    first_bin_table = code.integer_table(first_bins, "First bins of mel bands")
    weight_table = code.float_table(filters.weights, "Weights of the bins of mel bands")
    bounds = [*filters.starts, len(filters.bins)]
    bound_table = code.integer_table(bounds, "Start of each band's weights")
    filter_arguments = first_bin_table, weight_table, bound_table, step.bands
    if len(code.input_shapes[0]) == 3:
        code.write_row_call("mel_bands", *filter_arguments)
        return
    # without a planned spectrogram, compute the spectrum of each frame and then its mel bands
    source = step.source
    scratch = code.reserve_scratch(spectra.fft_size(source.frame))
    if step.bands <= source.hop:  # no band overwrites samples of a later frame
        code.put_result_in_input()
    transform_arguments = _transform_arguments(code, source.frame, scratch)
    code.write_row_call(
        "mel_of_frames", source.frame, source.hop, *filter_arguments, *transform_arguments
    )


def _write_mel_energies(code: StepCode, step: sound.MelEnergies) -> None:
    channels, frames, bands = code.input_shapes[0]
    code.write_call("mel_energies", channels, frames, bands, code.reserve_scratch(frames))


def _write_mfcc(code: StepCode, step: sound.Mfcc) -> None:
    _, frames, bands = code.input_shapes[0]
    cosine_table = code.float_table(
        sound.dct_rows(step.coefficients, bands), "Rows of the cosine transform"
    )
    scratch = code.reserve_scratch(frames * (step.coefficients + 1))
    arguments = (cosine_table, step.coefficients, step.parts)
    code.write_call("mfcc", *code.input_shapes[0], *arguments, scratch)


# -- pictures ------------------------------------------------------------------------------


def _grid_call_writer(function: str) -> Callable[[StepCode, Any], None]:
    """Make a writer of calls with the rows and columns of a grid as arguments."""

    def write(code: StepCode, step: images.Thumbnail | images.BlockStatistics) -> None:
        height, width = code.input_shapes[0]
        scratch = code.reserve_scratch(-(-height // step.rows))  # a float per row of a grid cell
        code.write_call(function, height, width, step.rows, step.columns, scratch)

    return write


def _write_histogram(code: StepCode, step: images.GreyHistogram) -> None:
    # bin = (value - low) * bins_per_unit
    bins_per_unit = step.bins / (step.high - step.low)
    size = math.prod(code.input_shapes[0])
    code.write_call("histogram", size, step.bins, float(step.low), bins_per_unit)


def _write_edges(code: StepCode, step: images.Edges) -> None:
    grid_arguments = (step.rows, step.columns, step.directions)
    code.write_call("edges", *code.input_shapes[0], *grid_arguments, step.directions / math.pi)


def _row_call_writer(function: str, *settings: str) -> Callable[[StepCode, Any], None]:
    """Make a writer of calls with the input's channels and these settings as arguments."""
    return lambda code, step: code.write_row_call(
        function, *(getattr(step, setting) for setting in settings)
    )


#: Call writers of the steps that C can compute.
CALL_WRITERS: dict[type[Step], Callable[[StepCode, Any], None]] = {
    Channels: _write_channels,
    Pixels: _write_pixels,
    time_domain.Magnitude: _row_call_writer("magnitude"),
    time_domain.Envelope: _row_call_writer("envelope", "width"),
    time_domain.Jerk: lambda code, step: code.write_row_call("jerk", float(step.rate_hz)),
    time_domain.Mean: _row_call_writer("mean"),
    time_domain.Statistics: _row_call_writer("statistics"),
    time_domain.Quantiles: _write_quantiles,
    time_domain.ZeroCrossings: _row_call_writer("crossings"),
    time_domain.Autocorrelation: _write_autocorrelation,
    time_domain.WaveletEnergies: _write_wavelet,
    time_domain.Tilt: lambda code, step: code.write_call("tilt", code.row_length),
    spectra.Spectrum: _write_spectrum,
    spectra.BandPowers: _write_band_powers,
    spectra.SpectralMoments: _write_moments,
    sound.Spectrogram: _write_spectrogram,
    sound.MelSpectrogram: _write_mel_bands,
    sound.MelEnergies: _write_mel_energies,
    sound.Mfcc: _write_mfcc,
    images.Frame: _write_frame,
    images.FrameDifference: lambda code, step: code.write_call(
        "difference", math.prod(code.result_shape)
    ),
    images.Thumbnail: _grid_call_writer("thumbnail"),
    images.BlockStatistics: _grid_call_writer("cells"),
    images.GreyHistogram: _write_histogram,
    images.Edges: _write_edges,
}
