"""Order of steps in C and the memory that their results share."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

import gatewise_signals as sig
from gatewise_export import write_signals
from gatewise_export.c99.signals.signal_plan import _is_only_reader, plan_signals


def test_memory_is_shared_between_steps(tmp_path):
    """A spectrum overwrites its channel, and channels share memory."""
    channels = [sig.Channels(f"x{i}", (i,)) for i in range(6)]
    spectra = [sig.Spectrum(channel, 100.0) for channel in channels]
    blocks = [sig.BandPowers(spectrum, (0.0, 20.0, 50.0)) for spectrum in spectra]
    source = write_signals(sig.SignalGraph(blocks), (1000, 6), "int16", tmp_path)
    padded_samples = 1024  # the next power of two
    # One buffer of floats for all six channels, and a few bytes for features and flags.
    assert 4 * padded_samples < source.struct_bytes < 4.1 * padded_samples
    # The magnitude reads both channels, so that they cannot share memory.
    two_channels = sig.Channels("both", (0, 1))
    graph = sig.SignalGraph([*blocks[:2], sig.Statistics(sig.Magnitude(two_channels))])
    source = write_signals(graph, (1000, 6), "int16", tmp_path)
    # Floats of two channels and the magnitude, of 1,000 samples each.
    assert 4 * 3000 < source.struct_bytes < 4 * 3100


def test_blocks_of_sound_reuse_the_memory_of_the_samples(tmp_path):
    """The limit leaves memory for 8,192 samples, one envelope and the features."""
    blocks = sig.standard_blocks(rate_hz=8000, channels=["sound"], samples=8192, scale=1 / 32768)
    source = write_signals(sig.SignalGraph(blocks), (8192,), "int16", tmp_path)
    assert source.struct_bytes <= 39_000  # of which 4 * 8,192 are the samples


def test_a_result_keeps_its_memory_until_its_last_reader():
    """A block that sorts samples between two readers of a spectrum must not overwrite it."""
    channels = sig.Channels("x")
    spectrum = sig.Spectrum(channels, 100.0)
    bands = sig.BandPowers(spectrum, (0.0, 20.0))
    moments = sig.SpectralMoments(spectrum)
    for blocks, shares_memory in (
        ([bands, moments, sig.Quantiles(channels)], True),
        ([bands, sig.Quantiles(channels), moments], False),
    ):
        graph = sig.SignalGraph(blocks)
        feature_order = [feature for block in blocks for feature in _list_features(graph, block)]
        plan = plan_signals(graph, np.zeros((64, 1), np.int16), feature_order)
        offsets = {
            code.step: plan.offsets[f"RESULT_{code.step_number}"] for code in plan.step_codes
        }
        assert (offsets[spectrum] == offsets[channels]) is shares_memory


def _list_features(graph: sig.SignalGraph, block: sig.Step) -> range:
    """List the numbers of a block's features."""
    columns = graph.columns(graph.blocks.index(block))
    return range(columns.start, columns.stop)


def test_a_step_does_not_overwrite_an_input_that_its_block_reads_again():
    class TwoInputs:
        """Block of the channels and their spectrum."""

        def __init__(self, *inputs: sig.Step) -> None:
            self.inputs = inputs

    channels = sig.Channels("x")
    spectrum = sig.Spectrum(channels, 100.0)
    block = TwoInputs(channels, spectrum)
    graph = SimpleNamespace(steps=(channels, spectrum, block), blocks=(block,))
    assert not _is_only_reader(graph, spectrum, channels)
    bands = sig.BandPowers(spectrum, (0.0, 20.0))
    separate_graph = sig.SignalGraph([bands, sig.Mean(channels)])  # each block reads channels once
    assert _is_only_reader(separate_graph, spectrum, channels)
    # The spectrum is not a part of the window.
    assert not _is_only_reader(separate_graph, bands, spectrum)


def test_channels_are_read_again_only_after_steps_that_overwrite_them():
    channels = sig.Channels("acc", (0, 1, 2), ("x", "y", "z"), 1 / 720)
    blocks = [
        sig.Mean(channels),
        sig.Quantiles(channels),
        sig.Statistics(channels),
        sig.Mean(sig.Magnitude(channels)),
    ]
    plan = plan_signals(sig.SignalGraph(blocks), np.zeros((64, 3), np.int16))
    overwriting_codes = [code for code in plan.step_codes if code.overwritten_steps]
    # Quantiles sort the samples in place.
    assert [code.step.label for code in overwriting_codes] == ["quantiles(acc)"]
    # The magnitude is stored directly behind the three channels of 64 samples that it reads.
    assert plan.offsets["RESULT_4"] == plan.offsets["RESULT_0"] + 3 * 64
