"""The order of steps, and the memory that their results share."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

import gatewise_signals as sig
from gatewise_export import write_signals
from gatewise_export.c99.signals.signal_plan import _is_only_reader, plan_signals


def test_memory_is_shared_between_steps(tmp_path):
    """A transform works in the channel, and leaves its spectrum there; channels share memory."""
    channels = [sig.Channels(f"x{i}", (i,)) for i in range(6)]
    spectra = [sig.Spectrum(channel, 100.0) for channel in channels]
    blocks = [sig.BandPowers(spectrum, (0.0, 20.0, 50.0)) for spectrum in spectra]
    made = write_signals(sig.SignalGraph(blocks), (1000, 6), "int16", tmp_path)
    one = 1024  # a padded channel
    assert 4 * one < made.struct_bytes < 4.1 * one
    # two channels at once: each is read by a block that needs both
    both = sig.Channels("both", (0, 1))
    pair = sig.SignalGraph([*blocks[:2], sig.Statistics(sig.Magnitude(both))])
    made = write_signals(pair, (1000, 6), "int16", tmp_path)
    assert 4 * 3000 < made.struct_bytes < 4 * 3100


def test_blocks_of_sound_work_in_the_samples(tmp_path):
    """Beside the 8,192 samples there is room for one envelope and the features."""
    blocks = sig.standard_blocks(rate_hz=8000, channels=["sound"], samples=8192, scale=1 / 32768)
    made = write_signals(sig.SignalGraph(blocks), (8192,), "int16", tmp_path)
    assert made.struct_bytes <= 39_000


def test_a_result_stays_where_its_input_is_computed_again_meanwhile():
    """Sorted samples between two readers of a spectrum: it cannot lie where the samples do."""
    x = sig.Channels("x")
    spectrum = sig.Spectrum(x, 100.0)
    bands = sig.BandPowers(spectrum, (0.0, 20.0))
    moments = sig.SpectralMoments(spectrum)
    for blocks, shares in (
        ([bands, moments, sig.Quantiles(x)], True),
        ([bands, sig.Quantiles(x), moments], False),
    ):
        graph = sig.SignalGraph(blocks)
        order = [f for block in blocks for f in _features(graph, block)]
        plan = plan_signals(graph, np.zeros((64, 1), np.int16), order)
        offsets = {c.step: plan.offsets[f"RESULT_{c.number}"] for c in plan.codes}
        assert (offsets[spectrum] == offsets[x]) is shares


def _features(graph: sig.SignalGraph, block: sig.Step) -> range:
    columns = graph.columns(graph.blocks.index(block))
    return range(columns.start, columns.stop)


def test_a_step_does_not_work_in_an_input_that_its_block_reads_again():
    class Both:
        """A block of the channels and of their spectrum."""

        def __init__(self, *inputs: sig.Step) -> None:
            self.inputs = inputs

    channels = sig.Channels("x")
    spectrum = sig.Spectrum(channels, 100.0)
    both = Both(channels, spectrum)
    graph = SimpleNamespace(steps=(channels, spectrum, both), blocks=(both,))
    assert not _is_only_reader(graph, spectrum, channels)
    bands = sig.BandPowers(spectrum, (0.0, 20.0))
    apart = sig.SignalGraph([bands, sig.Mean(channels)])  # each block reads the channels once
    assert _is_only_reader(apart, spectrum, channels)
    assert not _is_only_reader(apart, bands, spectrum)  # which is no part of the window


def test_only_steps_that_write_over_the_channels_have_them_read_again():
    x = sig.Channels("acc", (0, 1, 2), ("x", "y", "z"), 1 / 720)
    blocks = [sig.Mean(x), sig.Quantiles(x), sig.Statistics(x), sig.Mean(sig.Magnitude(x))]
    plan = plan_signals(sig.SignalGraph(blocks), np.zeros((64, 3), np.int16))
    labels = {code.number: code.step.label for code in plan.codes}
    overwritten = {labels[code.number]: code.overwritten for code in plan.codes}
    assert {label for label, steps in overwritten.items() if steps} == {"quantiles(acc)"}
    # the magnitude lies right behind the channels, which it reads
    assert plan.offsets["RESULT_4"] == plan.offsets["RESULT_0"] + 3 * 64
